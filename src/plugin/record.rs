//! The record of an attachment: a file with the number that the kernel keeps for the container's network namespace. `life` asks
//! the kernel with this number whether the namespace still exists.
//!
//! An ADD of a plugin that makes an interface or reserves an address writes the record before it changes anything, whichever
//! runtime calls. At its end it appends the MAC addresses and the addresses of the result. A chained plugin that leaves objects
//! with an owner on the host does the same if there is no record of this namespace: with the record of an earlier container of
//! the same name, the kernel would report the end of the earlier namespace. DEL and GC remove the record: an interface plugin
//! removes any record, an IPAM plugin one of an IPAM plugin or an adopted one, a chained plugin only the one that it wrote. A
//! record that cannot be written is a warning: the life of the attachment can then be unknown.
//!
//! Each plugin of an ADD notes its name in the record, and a DEL first notes that it has begun: `reconcile` makes only what these
//! plugins made, and nothing for an attachment that a runtime removes.

mod begun;
pub(crate) mod claims;
mod files;
mod held;
pub(crate) mod orphans;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cni::json;
use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::process::Process;
use crate::kernel::sys;
use crate::names::{Attachment, Mac, NetworkName, hex};
use crate::netlink::rtnl::{Nsid, Rtnl};
use crate::plugin::Context;

pub use begun::{Begun, Replaced};
pub use files::{AllRecords, DIRECTORY, Records, Unreadable};
use held::Shared;
pub use held::{Held, Hold};

/// The newest version of a record's file that this release reads and writes. A release that needs another one writes a higher
/// number.
const VERSION: u32 = 1;

/// The record of one attachment. It is the first line of the record's file. Each other line is a [`Made`], of which the last one
/// counts, or a [`Note`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The first key, so that the error about a later version names the version.
    #[serde(default)]
    pub version: Version,
    pub network: NetworkName,
    #[serde(flatten)]
    pub at: Attachment,
    /// CNI_NETNS.
    #[serde(serialize_with = "as_text")]
    pub netns: PathBuf,
    /// The identity of the container's namespace.
    pub identity: Identity,
    /// The cookie of the node's namespace, in which `number` is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observer: Option<u64>,
    /// The number of the container's namespace in the node's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Nsid>,
    /// A random value, which distinguishes one ADD from a later one of the same attachment.
    pub generation: String,
    pub maker: Maker,
    /// The process that starts the container in the namespace after the ADD, if this is known. Only the driver of netavark knows
    /// it, see `runtime::abandoned`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starter: Option<Process>,
    /// The host ports that the attachment may have published, in the form of `portmap`: it appends ports before it publishes them.
    /// `None` if they are unknown: a release up to 0.2.0 made the attachment, or the record was written after the ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<String>>,
    /// What the ADD made; empty until its end. The last item has the present addresses: a chained plugin can change the MAC
    /// address, and a DHCP server the IP address.
    #[serde(skip)]
    pub made: Vec<Made>,
    /// The names of the claims that the attachment may have, see `claims`.
    #[serde(skip)]
    pub claims: Vec<String>,
    /// The plugins of cnibox in the ADD; if the runtime of cnibox called them, also those that they delegate to. Empty if they are unknown: other plugins made the attachment, or a release up to 0.2.0.
    #[serde(skip)]
    pub plugins: Vec<String>,
    /// The DEL of the attachment has begun.
    #[serde(skip)]
    pub is_deleting: bool,
    /// The ADD that wrote the record repeats one of this namespace that has succeeded.
    #[serde(skip)]
    pub is_repeated: bool,
}

/// The version of a record's file. Releases up to 0.2.0 wrote none: version 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Version(u32);

impl Default for Version {
    fn default() -> Self {
        Self(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            version if version <= VERSION => Ok(Self(version)),
            version => Err(D::Error::custom(format_args!(
                "its form has version {version}, and this release reads up to version {VERSION}"
            ))),
        }
    }
}

/// The paths of a runtime need not be UTF-8, and the text of a JSON document is.
pub fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// The program or plugin that wrote a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maker {
    /// The runtime of cnibox, such as `cnibox add` and `cnibox run`.
    Cnibox,
    /// A plugin that makes an interface.
    Plugin,
    /// An IPAM plugin of cnibox, called by a plugin of another executable.
    Ipam,
    /// The runtime of cnibox, which found the attachment alive. Plugins of other executables made the attachment.
    Adopted,
    /// The first chained plugin of cnibox in a list, by its name. The plugins before it are of other executables. DEL calls the
    /// plugins in reverse order, so its DEL is the last one of cnibox.
    Chained(String),
}

/// What an ADD made in the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    pub macs: Vec<Mac>,
    pub addresses: Vec<IpAddr>,
    /// For an adopted attachment: the state of the cache file at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

impl Made {
    /// From a result: the MAC addresses of the interfaces in the container, and the addresses without loopback addresses, which
    /// each namespace has.
    pub fn of(success: &Success) -> Self {
        let in_container =
            success.interfaces.iter().filter(|interface| !interface.sandbox.is_empty());
        let macs = in_container.filter_map(|interface| interface.mac.parse().ok());
        let addresses = success.ips.iter().map(|ip| ip.address.addr());
        Self {
            macs: macs.filter(|mac| *mac != Mac([0; 6])).collect(),
            addresses: addresses.filter(|address| !address.is_loopback()).collect(),
            cache: None,
        }
    }

    /// Whether `self` and `other` can be what one ADD made: they have a common MAC address (or one of them has none), and the
    /// same addresses. An earlier attachment of the same name had another MAC address or other addresses.
    pub fn is(&self, other: &Self) -> bool {
        let is_same_mac = self.macs.is_empty()
            || other.macs.is_empty()
            || self.macs.iter().any(|mac| other.macs.contains(mac));
        is_same_mac && self.addresses == other.addresses
    }
}

/// A line of a record's file. The lists of several lines count together.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    /// The names of claims that the attachment may have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    claims: Vec<String>,
    /// Plugins of the ADD.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugins: Vec<String>,
    /// Host ports that the attachment may have published.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
    /// Whether the DEL has begun. The last line with a value counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleting: Option<bool>,
    /// Whether the ADD repeats one that has succeeded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    repeated: bool,
}

impl Note {
    /// The line of the file. Empty if the note is empty.
    fn line(&self) -> Vec<u8> {
        if *self == Self::default() { Vec::new() } else { line(self) }
    }

    /// The DEL has begun.
    fn of_del() -> Self {
        Self { deleting: Some(true), ..Self::default() }
    }

    fn of_claims(claims: &[String]) -> Self {
        Self { claims: claims.to_vec(), ..Self::default() }
    }
}

fn cannot(verb: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}", path.display()))
        .with_details(sys::reason(&error))
}

/// A line of a record's file.
fn line(document: &impl Serialize) -> Vec<u8> {
    (json::compact(document) + "\n").into_bytes()
}

impl Record {
    /// Makes the record of an ADD that begins. `host` is a socket in the namespace of this process, `rtnl` a socket in `netns`.
    /// Assigns a number (nsid) to `netns`. Without CAP_NET_ADMIN the record has no number, and cannot prove the end of `netns`.
    pub fn of(
        network: &NetworkName,
        at: &Attachment,
        netns: &NetNs,
        (host, rtnl): (&Rtnl, &Rtnl),
        (maker, plugins): (Maker, Vec<String>),
    ) -> Result<Self> {
        let cookie = rtnl.netns_cookie();
        Ok(Self {
            version: Version::default(),
            network: network.clone(),
            at: at.clone(),
            netns: netns.path().into(),
            identity: Identity::of(cookie),
            observer: host.netns_cookie(),
            // Without a cookie the kernel would choose the number, and reuse it for a later namespace.
            number: cookie.and_then(|_| host.ensure_nsid(netns, cookie).ok()),
            generation: hex(&sys::random_bytes::<8>()?),
            maker,
            starter: None,
            // An ADD begins without ports. Without plugins the attachment existed before.
            ports: (!plugins.is_empty()).then(Vec::new),
            made: Vec::new(),
            claims: Vec::new(),
            plugins,
            is_deleting: false,
            is_repeated: false,
        })
    }

    /// Whether the ADD of the record may have reserved an address. The record of a killed ADD does not list its addresses.
    pub fn may_have_reserved(&self, address: IpAddr) -> bool {
        self.made.is_empty() || self.made.iter().any(|made| made.addresses.contains(&address))
    }

    /// The content of a shorter file: of the `Made` lines only the last one and `now`, and of the claims only those of the
    /// addresses in `now`.
    fn shortened(&self, now: &Made) -> Vec<u8> {
        let is_present = |claim: &&String| {
            now.addresses.iter().any(|address| claim.starts_with(&claims::name(*address, "")))
        };
        let claims: Vec<String> = self.claims.iter().filter(is_present).cloned().collect();
        let before = self.made.last().map(line).unwrap_or_default();
        [self.content(), Note::of_claims(&claims).line(), before, line(now)].concat()
    }

    /// The lines for all that does not depend on the addresses.
    fn content(&self) -> Vec<u8> {
        let (plugins, deleting) = (self.plugins.clone(), self.is_deleting.then_some(true));
        let note = Note { plugins, deleting, repeated: self.is_repeated, ..Note::default() };
        [line(self), note.line()].concat()
    }

    /// Reads the content of a record's file. Fails if the first line is no record of a known version.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let first = lines.next().filter(|first| !first.is_empty());
        let first = first.ok_or_else(|| Error::internal("it is empty"))?;
        let mut record: Self = json::read(first).map_err(Error::internal)?;
        for line in lines {
            // Skip an incomplete line: its writer was killed.
            record.made.extend(json::read::<Made>(line));
            let Ok(note) = json::read::<Note>(line) else { continue };
            record.claims.extend(note.claims);
            record.plugins.extend(note.plugins);
            record.ports.iter_mut().for_each(|ports| ports.extend_from_slice(&note.ports));
            record.is_deleting = note.deleting.unwrap_or(record.is_deleting);
            record.is_repeated |= note.repeated;
        }
        Ok(record)
    }
}

/// Whether a record is of the ADD whose result is `prevResult`. If the addresses differ, plugins that write no record have attached
/// the container again, or the call is that of an earlier container.
pub(super) fn is_of_result(record: &Record, request: &Request) -> bool {
    let matches_result = |made: &Made| match request.prev_result() {
        Ok(Some(result)) => made.is(&Made::of(&result)),
        Ok(None) | Err(_) => true,
    };
    record.made.is_empty() || record.made.iter().any(matches_result)
}

/// Whether `netns`, the namespace at the path of a DEL, is not the recorded namespace, but a later one. False if the record tells
/// nothing about it. Fails if the boot of the record is unknown. `host` is a socket in the namespace of this process.
pub(super) fn is_of_another(
    record: &Record,
    request: &Request,
    netns: &NetNs,
    host: &Rtnl,
) -> Result<bool> {
    if record.identity.cookie.is_none() || !is_of_result(record, request) {
        return Ok(false);
    }
    let here = Identity::of(host.netns_cookie());
    if is_of_namespace(record, netns, (host, &here))? {
        return Ok(false);
    }
    if record.identity.is_another(&here.with_cookie(netns.rtnl()?.netns_cookie())) {
        return Ok(true);
    }
    let path = netns.path().display();
    Err(Error::internal(format_args!("cannot compare {path} with the record: its boot is unknown")))
}

/// Whether `netns` is the recorded namespace. `here` is the identity of the namespace of this process, `host` a socket in it.
fn is_of_namespace(
    record: &Record,
    netns: &NetNs,
    (host, here): (&Rtnl, &Identity),
) -> Result<bool> {
    if let Some(number) = record.number.filter(|number| number.is_unique())
        && record.identity.with_cookie(record.observer).is(here)
    {
        return Ok(host.nsid_of(netns)? == Some(number));
    }
    Ok(record.identity.is(&here.with_cookie(netns.rtnl()?.netns_cookie())))
}

/// Whether `netns`, the namespace of an ADD, is the recorded namespace, and the record can prove the end of `netns`. If not,
/// the record is of an earlier container of the same name, or was written in another namespace of a node.
fn is_current(record: &Record, netns: &NetNs, host: &Rtnl) -> Result<bool> {
    let here = Identity::of(host.netns_cookie());
    // Without cookies (a kernel before 5.14) namespaces cannot be compared: only a record of another boot is not current.
    if !here.is(&here) {
        return Ok(!record.identity.is_of_another_boot(&here));
    }
    let is_seen_from_here = record.identity.with_cookie(record.observer).is(&here);
    Ok(is_seen_from_here && is_of_namespace(record, netns, (host, &here))?)
}

/// Writes the record of an ADD before the plugin with this name runs. For a chained plugin, a record of the present namespace stays
/// as it is, and `None` is returned. Fails with code 11 while a GC removes an earlier attachment of this name: it would remove the
/// new one, too. Warns of other errors.
pub(super) fn begin(
    cx: &Context<'_>,
    at: &Attachment,
    maker: Maker,
    plugin: &str,
) -> Result<Option<Begun>> {
    write(cx, at, (maker, vec![plugin.into()]), Records::begin)
}

/// `begin` for a reconcile, which holds the record. The plugins of the ADD are unknown.
pub(super) fn renew(cx: &Context<'_>, at: &Attachment, maker: Maker) -> Result<Option<Begun>> {
    write(cx, at, (maker, Vec::new()), Records::renew)
}

fn write(
    cx: &Context<'_>,
    at: &Attachment,
    (maker, plugins): (Maker, Vec<String>),
    create: fn(&Records, &Record) -> Result<Begun>,
) -> Result<Option<Begun>> {
    let write = || -> Result<Option<Begun>> {
        // No namespace, no record: an IPAM plugin can be called before the namespace exists.
        let Ok(netns) = cx.session.required_netns() else { return Ok(None) };
        let (network, records) = (&cx.request.network, Records::of_host());
        if let Maker::Chained(_) = maker
            && let Some(found) = records.read(network, at)?
            && is_current(&found, netns, cx.session.host()?)?
        {
            cx.session.keep_record(found);
            return Ok(None);
        }
        let sockets = (cx.session.host()?, cx.session.container()?);
        let record = Record::of(network, at, netns, sockets, (maker, plugins))?;
        create(&records, &record).map(Some)
    };
    match write() {
        Err(error) if error.code == Code::TRY_AGAIN_LATER => Err(error),
        Err(error) => {
            cx.warn(error);
            let records = Records::of_host();
            // A record that cannot be read can be that of a living container.
            cx.session.is_repeated.set(records.read(&cx.request.network, at) != Ok(None));
            // The first record would have listed the orphans.
            let listed = records.list_orphans();
            cx.session.is_unlisted.set(listed.is_err());
            cx.or_warn(listed);
            Ok(None)
        }
        Ok(begun) => {
            cx.session.is_repeated.set(begun.as_ref().is_some_and(|begun| begun.is_repeated));
            Ok(begun)
        }
    }
}

/// Removes the records of the attachments that a DEL or GC has removed, as far as `maker` may remove them.
pub(super) fn clean(cx: &Context<'_>, verb: &Verb, maker: &Maker) -> Result<()> {
    let (network, records) = (&cx.request.network, Records::of_host());
    let may_remove = |record: &Record| match maker {
        Maker::Chained(_) => record.maker == *maker,
        Maker::Ipam => matches!(record.maker, Maker::Ipam | Maker::Adopted),
        Maker::Cnibox | Maker::Plugin | Maker::Adopted => true,
    };
    match verb {
        Verb::Del(at) => clean_deleted(cx, (network, at), maker, may_remove),
        Verb::Gc(keep) => clean_stale(&records, network, keep, may_remove),
        _ => Ok(()),
    }
}

/// Removes the record of an attachment after its DEL.
fn clean_deleted(
    cx: &Context<'_>,
    (network, at): (&NetworkName, &Attachment),
    maker: &Maker,
    may_remove: impl Fn(&Record) -> bool,
) -> Result<()> {
    let records = Records::of_host();
    let (_lock, now) = match records.share(network, at) {
        // Without the file of the lock, a later ADD would not wait for the GC, which would then remove what that ADD made.
        Ok(Shared::Held) => return Ok(()),
        Ok(Shared::Missing) => return records.remove_leftovers(network, at),
        Ok(Shared::Locked(lock)) => {
            let now = records.read_by(network, at, &|_, max| file::read_open(&lock, max));
            (Some(lock), now)
        }
        // The runtime orders the DEL, so a file that cannot be opened goes.
        Err(_) => (None, records.read(network, at)),
    };
    // A later ADD has written the record since the DEL began.
    let is_of_later = |now: &Record| {
        let first = cx.session.record(network, at);
        first.is_ok_and(|first| first.is_none_or(|first| first.generation != now.generation))
    };
    match (maker, now) {
        (_, Ok(Some(now))) if is_of_later(&now) => Ok(()),
        (Maker::Plugin, _) => records.remove(network, at),
        // Also remove the claims: the record took over the claims of the record that it replaced, and no plugin has removed them.
        (_, Ok(Some(now))) if may_remove(&now) => records.discard(&now),
        // An unreadable record goes, too.
        (Maker::Ipam, Ok(None) | Err(_)) => records.remove(network, at),
        _ => Ok(()),
    }
}

/// Removes the records of a network's attachments after a GC, except those of `keep`.
fn clean_stale(
    records: &Records,
    network: &NetworkName,
    keep: &[Attachment],
    may_remove: impl Fn(&Record) -> bool,
) -> Result<()> {
    let is_stale = |of: &NetworkName, at: &Attachment| of == network && !keep.contains(at);
    let AllRecords { records: all, unreadable } = records.all()?;
    let remove = |record: &Record| {
        // The process that has the lock is removing the attachment, or a later one has the name.
        if let Shared::Locked(_lock) = records.share(network, &record.at)?
            && let Some(now) = records.read(network, &record.at)?
            && now.generation == record.generation
        {
            records.discard(record)?;
        }
        Ok(())
    };
    let stale = all.iter().filter(|record| is_stale(&record.network, &record.at));
    let removed = stale.filter(|record| may_remove(record)).map(remove);
    let mut errors: Vec<Error> = removed.filter_map(Result::err).collect();
    // A damaged record stays. One that could not be read may be readable in the next GC.
    let has_failed = |file: &Unreadable| {
        file.error.code == Code::IO && file.named().is_some_and(|(of, at)| is_stale(&of, &at))
    };
    errors.extend(unreadable.into_iter().filter(has_failed).map(|file| file.error));
    Error::joined(errors)
}

/// Appends to the record that a chained plugin has made its part of the ADD, and its result if it has other addresses than the
/// record, for example another MAC address.
pub(super) fn amend(cx: &Context<'_>, at: &Attachment, plugin: &str, success: &Success) {
    let (network, records) = (&cx.request.network, Records::of_host());
    let Some(record) = cx.or_warn(records.read(network, at)) else { return };
    let made = Made::of(success);
    let is_known = |known: &Made| (&known.macs, &known.addresses) == (&made.macs, &made.addresses);
    let mut amended = records.note_add(&record, plugin, Vec::new());
    if !record.made.last().is_some_and(is_known) {
        amended = amended.and_then(|()| records.amend(network, at, &made));
    }
    cx.or_warn(amended);
}

/// The addresses of an earlier ADD of the attachment that the result of this ADD no longer has. Empty for our runtime, which first
/// deletes an earlier attachment.
pub fn former_addresses(cx: &Context<'_>, at: &Attachment, success: &Success) -> Vec<IpAddr> {
    let earlier = match cx.session.is_recorded {
        true => None,
        false => {
            let found = cx.or_warn(cx.session.record(&cx.request.network, at));
            found.and_then(|mut record| record.made.pop())
        }
    };
    let mut former = earlier.map(|made| made.addresses).unwrap_or_default();
    former.retain(|address| success.ips.iter().all(|ip| ip.address.addr() != *address));
    former
}

/// Notes that the DEL of an attachment has begun, before it removes anything.
pub(super) fn mark(cx: &Context<'_>, at: &Attachment) {
    let network = &cx.request.network;
    if cx.or_warn(cx.session.record(network, at)).is_some_and(|record| !record.is_deleting) {
        cx.or_warn(Records::of_host().mark_deleting(network, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(address: &str) -> Made {
        let macs = vec![Mac([2, 0, 0, 0, 0, 7])];
        Made { macs, addresses: vec![address.parse().unwrap()], cache: None }
    }

    #[test]
    fn an_earlier_attachment_had_another_mac_or_address() {
        let one = made("10.1.0.2");
        let bare = Made { macs: vec![], ..one.clone() };
        assert!(one.is(&one.clone()) && one.is(&bare) && bare.is(&one));
        let other = Made { macs: vec![Mac([2, 0, 0, 0, 0, 8])], ..one.clone() };
        assert!(!one.is(&other) && !one.is(&made("10.1.0.3")));
    }
}
