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

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cni::json::{self, Json};
use crate::cni::request::Request;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::process::Process;
use crate::kernel::sys;
use crate::names::{Attachment, Mac, NetworkName, hex};
use crate::netlink::rtnl::{Nsid, Rtnl};

pub use begun::{Begun, Replaced};
pub use files::{AllRecords, DIRECTORY, Records, Unreadable};
pub use held::{Held, Hold, Shared};

/// The newest version of a record's file that this release reads and writes. A release that needs another one writes a higher
/// number.
const VERSION: u32 = 1;

/// The begin of the line with the request of the runtime: the first key of an entry of libcni's cache.
const REQUEST: &[u8] = br#"{"kind":"#;

/// The record of one attachment. It is the first line of the record's file. Each other line is a [`Made`], of which the last one
/// counts, a [`Note`], or the request of the runtime.
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
    /// What the runtime of cnibox was asked for: the configuration and the parameters, as an entry of libcni's cache without a
    /// result. With it a DEL can be repeated. Empty if only plugins were called.
    #[serde(skip)]
    pub request: Vec<u8>,
    /// The ADD of the runtime of cnibox is complete: its caller has the result. And no DEL of this runtime has begun.
    #[serde(skip)]
    pub is_added: bool,
}

/// An operation of the runtime of cnibox that has begun and is not complete. If no process holds the lock of the container, its
/// process was killed, or it failed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    Add,
    Del,
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

impl Maker {
    /// Whether the maker makes interfaces: what the record's plugins made is all that the executable has of the attachment.
    pub fn makes_interfaces(&self) -> bool {
        matches!(self, Self::Cnibox | Self::Plugin)
    }
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
    /// Whether the ADD of the runtime is complete, and no DEL of the runtime has begun. The last line with a value counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<bool>,
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

/// Appends lines to a record's file. They begin with a newline, so that they are not read as a part of a line that a full disk or a
/// kill has cut off.
fn append(mut file: &File, lines: &[u8]) -> io::Result<()> {
    fault::file_operation()?;
    file.write_all(&[b"\n", lines].concat())
}

/// The line with the request of the runtime. Empty if there is none.
fn request_line(request: &[u8]) -> Vec<u8> {
    if request.is_empty() { Vec::new() } else { [request, b"\n"].concat() }
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
            request: Vec::new(),
            is_added: false,
        })
    }

    /// The operation of the runtime of cnibox that is in progress or was interrupted.
    pub fn operation(&self) -> Option<Operation> {
        // A release up to 0.2.0 wrote no request.
        let is_of_runtime =
            !self.request.is_empty() || matches!(self.maker, Maker::Cnibox) && self.made.is_empty();
        // The DEL of a plugin alone, which somebody else calls, is no operation of the runtime.
        match self.is_deleting {
            _ if !is_of_runtime || self.is_added => None,
            true => Some(Operation::Del),
            false => Some(Operation::Add),
        }
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
        let note = Note {
            plugins: self.plugins.clone(),
            deleting: self.is_deleting.then_some(true),
            repeated: self.is_repeated,
            added: self.is_added.then_some(true),
            ..Note::default()
        };
        [line(self), note.line(), request_line(&self.request)].concat()
    }

    /// Reads the content of a record's file. Fails if the first line is no record of a known version.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let first = lines.next().filter(|first| !first.is_empty());
        let first = first.ok_or_else(|| Error::internal("it is empty"))?;
        let mut record: Self = json::read(first).map_err(Error::internal)?;
        for line in lines {
            // Skip an incomplete line: its writer was killed, or the disk is full.
            if line.starts_with(REQUEST) {
                if Json::parse(line).is_ok() {
                    record.request = line.to_vec();
                }
                continue;
            }
            record.made.extend(json::read::<Made>(line));
            let Ok(note) = json::read::<Note>(line) else { continue };
            record.claims.extend(note.claims);
            record.plugins.extend(note.plugins);
            record.ports.iter_mut().for_each(|ports| ports.extend_from_slice(&note.ports));
            record.is_deleting = note.deleting.unwrap_or(record.is_deleting);
            record.is_repeated |= note.repeated;
            record.is_added = note.added.unwrap_or(record.is_added);
        }
        Ok(record)
    }
}

/// Whether a record is of the ADD whose result is `prevResult`. If the addresses differ, plugins that write no record have attached
/// the container again, or the call is that of an earlier container.
pub fn is_of_result(record: &Record, request: &Request) -> bool {
    let matches_result = |made: &Made| match request.prev_result() {
        Ok(Some(result)) => made.is(&Made::of(&result)),
        Ok(None) | Err(_) => true,
    };
    record.made.is_empty() || record.made.iter().any(matches_result)
}

/// Whether `netns`, the namespace at the path of a DEL, is not the recorded namespace, but a later one. False if the record tells
/// nothing about it. Fails if the boot of the record is unknown. `host` is a socket in the namespace of this process.
pub fn is_of_another(
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
pub fn is_current(record: &Record, netns: &NetNs, host: &Rtnl) -> Result<bool> {
    let here = Identity::of(host.netns_cookie());
    // Without cookies (a kernel before 5.14) namespaces cannot be compared: only a record of another boot is not current.
    if !here.is(&here) {
        return Ok(!record.identity.is_of_another_boot(&here));
    }
    let is_seen_from_here = record.identity.with_cookie(record.observer).is(&here);
    Ok(is_seen_from_here && is_of_namespace(record, netns, (host, &here))?)
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
