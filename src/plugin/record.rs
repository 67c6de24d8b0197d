//! The record of an attachment: by it the kernel is asked whether the container's network namespace still exists.
//!
//! An ADD of a plugin that makes an interface or gives an address writes it before it changes anything, whichever runtime calls,
//! and adds at its end what it made. So does a chained plugin that leaves objects with the mark of their owner, if the interface is
//! of a plugin that wrote none: what an earlier container of the name has left would tell that this one has ended. DEL and GC
//! remove it: the interface plugin last, an IPAM plugin and a chained plugin only their own. A record that cannot be written is a
//! warning: without it there is less proof.

pub(crate) mod claims;
mod files;

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::error::Result;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName, Mac, NetworkName, hex};
use crate::netlink::rtnl::{Number, Rtnl};
use crate::plugin::Context;

pub use files::{Begun, DIRECTORY, Records};

/// The record of one attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub network: NetworkName,
    pub at: Attachment,
    /// CNI_NETNS.
    pub netns: PathBuf,
    /// Of the namespace.
    pub identity: Identity,
    /// The cookie of the namespace that knows the other one by its number.
    pub observer: Option<u64>,
    pub number: Option<Number>,
    /// Random: tells one ADD from a later one.
    pub generation: String,
    pub maker: Maker,
    /// What the ADD made: nothing until its end. What it has now is the last one; a chained plugin gives another MAC address, a DHCP
    /// server another address.
    pub made: Vec<Made>,
    /// The names of the claims that it may have, see `claims`.
    pub claims: Vec<String>,
}

/// The writer of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Maker {
    /// `cnibox add` and the like.
    Cnibox,
    /// A plugin that makes an interface.
    Plugin,
    /// An IPAM plugin, called by a plugin of others.
    Ipam,
    /// Plugins of others made the attachment, and it was alive.
    Adopted,
    /// The first chained plugin of ours, by its name, after plugins of others. Its DEL is the last one of ours.
    Chained(String),
}

/// What an ADD made in the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    pub macs: Vec<Mac>,
    pub addresses: Vec<IpAddr>,
    /// The file of the cache when the attachment was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

impl Made {
    /// The MAC addresses of the interfaces in the container, and the addresses that only one namespace has.
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

    fn line(&self) -> Vec<u8> {
        (json::compact(self) + "\n").into_bytes()
    }

    /// Whether both are of one ADD. An earlier attachment of the same name had another MAC address, or another address.
    pub fn is(&self, other: &Self) -> bool {
        let is_same_mac = self.macs.is_empty()
            || other.macs.is_empty()
            || self.macs.iter().any(|mac| other.macs.contains(mac));
        is_same_mac && self.addresses == other.addresses
    }
}

/// The first line of a file. The others are [`Made`]: the last one counts.
#[derive(Serialize, Deserialize)]
struct Kept {
    network: NetworkName,
    #[serde(rename = "containerID")]
    container_id: ContainerId,
    ifname: IfName,
    netns: String,
    identity: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observer: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<Number>,
    generation: String,
    maker: Maker,
}

/// Another kind of line.
#[derive(Serialize, Deserialize)]
struct Claims {
    claims: Vec<String>,
}

impl Claims {
    fn list(self) -> Vec<String> {
        self.claims
    }
}

fn claims_line(claims: &[String]) -> Vec<u8> {
    if claims.is_empty() {
        return Vec::new();
    }
    (json::compact(&Claims { claims: claims.to_vec() }) + "\n").into_bytes()
}

impl Record {
    /// The record of a namespace, for an ADD that begins. `host` is a socket in the namespace of this process, `rtnl` one in the
    /// other. Gives the namespace a number; without the right to do so the record has none, and proves less.
    pub fn of(
        network: &NetworkName,
        at: &Attachment,
        netns: &NetNs,
        (host, rtnl): (&Rtnl, &Rtnl),
        maker: Maker,
    ) -> Result<Self> {
        let cookie = rtnl.netns_cookie();
        Ok(Self {
            network: network.clone(),
            at: at.clone(),
            netns: netns.path().into(),
            identity: Identity::of(cookie),
            observer: host.netns_cookie(),
            // Without a cookie the kernel would choose a number, and give it again.
            number: cookie.and_then(|_| host.number_of(netns, cookie).ok()),
            generation: hex(&sys::random_bytes::<8>()?),
            maker,
            made: Vec::new(),
            claims: Vec::new(),
        })
    }

    /// The content with what there is now, and what there was before, in place of all.
    fn shortened(&self, now: &Made) -> Vec<u8> {
        let is_of_now = |claim: &&String| {
            now.addresses.iter().any(|address| claim.starts_with(&claims::name(*address, "")))
        };
        let claims: Vec<String> = self.claims.iter().filter(is_of_now).cloned().collect();
        let before = self.made.last().map(Made::line).unwrap_or_default();
        [self.content(), claims_line(&claims), before, now.line()].concat()
    }

    fn content(&self) -> Vec<u8> {
        let Attachment { container_id, ifname } = self.at.clone();
        let kept = Kept {
            network: self.network.clone(),
            container_id,
            ifname,
            netns: self.netns.to_string_lossy().into_owned(),
            identity: self.identity.text(),
            observer: self.observer,
            number: self.number,
            generation: self.generation.clone(),
            maker: self.maker.clone(),
        };
        (json::compact(&kept) + "\n").into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let kept: Kept = json::read(lines.next()?).ok()?;
        Some(Self {
            network: kept.network,
            at: Attachment { container_id: kept.container_id, ifname: kept.ifname },
            netns: kept.netns.into(),
            identity: Identity::parse(&kept.identity)?,
            observer: kept.observer,
            number: kept.number,
            generation: kept.generation,
            maker: kept.maker,
            // A process that was killed leaves an incomplete line.
            made: lines.clone().filter_map(|line| json::read(line).ok()).collect(),
            claims: lines.filter_map(|line| json::read(line).ok()).flat_map(Claims::list).collect(),
        })
    }
}

/// Whether the namespace at the path of a DEL is a later one than that of the record. False if that cannot be told. `host` is a
/// socket in the namespace of this process.
pub(super) fn is_of_another(
    record: &Record,
    request: &Request,
    netns: &NetNs,
    host: &Rtnl,
) -> Result<bool> {
    // Plugins that write no record have attached the container again.
    let is_of_it = |made: &Made| match request.prev_result() {
        Ok(Some(result)) => made.is(&Made::of(&result)),
        _ => true,
    };
    let is_of_add = record.made.is_empty() || record.made.iter().any(is_of_it);
    if record.identity.cookie.is_none() || !is_of_add {
        return Ok(false);
    }
    let here = Identity::of(host.netns_cookie());
    Ok(!is_of_namespace(record, netns, (host, &here))?)
}

/// `here` is the namespace of this process.
fn is_of_namespace(
    record: &Record,
    netns: &NetNs,
    (host, here): (&Rtnl, &Identity),
) -> Result<bool> {
    if let Some(number) = record.number.filter(|number| number.is_unique())
        && record.identity.with_cookie(record.observer).is(here)
    {
        return Ok(host.known_number_of(netns)? == Some(number));
    }
    Ok(record.identity.is(&here.with_cookie(netns.rtnl()?.netns_cookie())))
}

/// Whether a record is of the life of a container that an ADD is for. That of an earlier life tells that it has ended.
fn is_of_life(record: &Record, netns: &NetNs, host: &Rtnl) -> Result<bool> {
    let here = Identity::of(host.netns_cookie());
    // Without cookies nothing but another boot tells that.
    if !here.is(&here) {
        return Ok(!record.identity.is_of_another_boot(&here));
    }
    let is_seen_from_here = record.identity.with_cookie(record.observer).is(&here);
    Ok(is_seen_from_here && is_of_namespace(record, netns, (host, &here))?)
}

/// Writes the record of an ADD before it begins. That of the same life stays as it is if the plugin is a chained one.
pub(super) fn begin(cx: &Context<'_>, at: &Attachment, maker: Maker) -> Option<Begun> {
    let begin = || -> Result<Option<Begun>> {
        // An IPAM plugin works before the namespace exists, too.
        let Ok(netns) = cx.session.required_netns() else { return Ok(None) };
        let (network, records) = (&cx.request.network, Records::of_host());
        if let Maker::Chained(_) = maker
            && let Some(found) = records.read(network, at)
            && is_of_life(&found, netns, cx.session.host()?)?
        {
            return Ok(None);
        }
        let sockets = (cx.session.host()?, cx.session.container()?);
        let record = Record::of(network, at, netns, sockets, maker)?;
        records.begin(&record).map(Some)
    };
    begin().unwrap_or_else(|error| {
        cx.warn(error);
        None
    })
}

/// Removes the records of what a DEL or GC of the plugins of a maker has removed.
pub(super) fn clean(cx: &Context<'_>, verb: &Verb, maker: &Maker) -> Result<()> {
    let (network, records) = (&cx.request.network, Records::of_host());
    let is_its = |record: &Record| match maker {
        Maker::Chained(_) => record.maker == *maker,
        Maker::Ipam => matches!(record.maker, Maker::Ipam | Maker::Adopted),
        Maker::Cnibox | Maker::Plugin | Maker::Adopted => true,
    };
    match (verb, maker) {
        (Verb::Del(at), Maker::Plugin) => records.remove(network, at),
        (Verb::Del(at), _)
            if cx.session.record(network, at).is_some_and(|found| !is_its(&found)) =>
        {
            Ok(())
        }
        (Verb::Del(at), _) => match records.read(network, at) {
            // No plugin has released the claims of the record in whose place it is.
            Some(found) if is_its(&found) => records.discard(&found),
            Some(_) => Ok(()),
            None if *maker == Maker::Ipam => records.remove(network, at),
            None => Ok(()),
        },
        (Verb::Gc(keep), _) => records.all().iter().try_for_each(|record| {
            let is_stale = record.network == *network && !keep.contains(&record.at);
            if is_stale && is_its(record) { records.discard(record) } else { Ok(()) }
        }),
        _ => Ok(()),
    }
}

/// Adds what a chained plugin has changed, such as the MAC address.
pub(super) fn amend(cx: &Context<'_>, verb: &Verb, success: &Success) {
    let Verb::Add(at) = verb else { return };
    let made = Made::of(success);
    let before = cx.request.prev_result().ok().flatten().map(|before| Made::of(&before));
    if before.is_some_and(|before| before != made) {
        let amended = Records::of_host().amend(&cx.request.network, at, &made);
        amended.unwrap_or_else(|error| cx.warn(error));
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
