//! Whether a network namespace that a killed process made is in use. No thread in it is not sufficient: the processes of a
//! container can be in a namespace of their own, and reach the network through this one, as with a VPN.
//!
//! A namespace is in use if a thread is in it, if a process belongs to the container (see `Processes`), or if one of its links
//! leads to a namespace other than the host's, or is a device that the kernel cannot make again. An error is no answer: the
//! caller keeps the namespace.
//!
//! From outside this is not visible: a macvlan, ipvlan or WireGuard interface that was made in the namespace and moved to
//! another one, and a process without a control group of the container (`podman run --cgroups=disabled`) that moved to another one.
//! The descendants of the command of `cnibox run --name` hold the lock of the namespace (see `netns_lock`), unless they close it.

use std::path::Path;

use crate::attachments::life::{Life, Witness};
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::kernel::process::{Process, Processes};
use crate::netlink::rtnl::{Link, Nsid};
use crate::runtime::Runtime;
use crate::runtime::cache::CacheEntry;

/// Who uses namespaces, from one survey of the processes.
pub(super) struct Uses {
    processes: Processes,
}

impl Uses {
    /// Surveys the processes. `containers` are the ids of the containers that `is_in_use` can be asked about.
    pub fn survey(containers: &[&str]) -> Result<Self> {
        Ok(Self { processes: Processes::survey(containers)? })
    }

    /// Whether the namespace of these containers is in use.
    pub fn is_in_use(&self, netns: &NetNs, containers: &[&str]) -> Result<bool> {
        Ok(self.processes.have_thread_in(netns.identity()?)
            || containers.iter().any(|id| self.processes.name(id))
            || has_link_in_use(netns)?)
    }
}

impl Runtime {
    /// The namespaces of podman (`netns-UUID`) that are not in use, of these attachments. A namespace in which podman is about to
    /// start a container is in use.
    pub fn unused_namespaces<'a>(&self, all: &'a [(CacheEntry, Life)]) -> Result<Vec<&'a Path>> {
        let is_of_podman = |path: &Path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"netns-"))
        };
        let living = all.iter().filter(|(_, life)| *life == Life::Alive).map(|(entry, _)| entry);
        let of_podman: Vec<&CacheEntry> =
            living.filter(|entry| is_of_podman(&entry.netns)).collect();
        let witness = Witness::new()?;
        let Some(view) = witness.view().ok().filter(|_| !of_podman.is_empty()) else {
            return Ok(Vec::new());
        };
        let records = self.records.all()?.records;
        let containers: Vec<&str> = of_podman.iter().map(|entry| &*entry.at.container_id).collect();
        let uses = Uses::survey(&containers)?;
        let mut unused: Vec<&Path> = Vec::new();
        for entry in &of_podman {
            let path = &*entry.netns;
            let Ok(Some(netns)) = view.namespace_at(path) else { continue };
            let mut starters = records.iter().filter(|record| record.netns == path);
            let will_start = starters.any(|record| {
                record.starter.as_ref().is_some_and(|starter| !Process::has_ended(starter))
            });
            let in_it = of_podman.iter().filter(|other| other.netns == path);
            let containers: Vec<&str> = in_it.map(|other| &*other.at.container_id).collect();
            if !will_start && !uses.is_in_use(&netns, &containers)? {
                unused.push(path);
            }
        }
        Ok(unused)
    }
}

/// Whether a link of a namespace is in use beyond it.
fn has_link_in_use(netns: &NetNs) -> Result<bool> {
    let rtnl = netns.rtnl()?;
    // The kernel numbers the namespaces of peers when it lists the links, so list them before the number of the host is read.
    let links = rtnl.links()?;
    let host = rtnl.nsid_of(&NetNs::own()?)?;
    Ok(links.iter().any(|link| is_in_use(link, host)))
}

/// Whether the peer of a link is in a third namespace, or the link is a device of the host. `host` is the number of the host's
/// namespace.
fn is_in_use(link: &Link, host: Option<Nsid>) -> bool {
    // A peer without a number is in a namespace that is about to end.
    let is_host = link.peer_netns.is_some() && link.peer_netns == host;
    let is_device = link.kind.is_none() && link.name != "lo";
    is_device || (link.peer_is_elsewhere && !is_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_in_use_if_it_leads_to_a_third_namespace_or_is_a_device() {
        let [host, third] = ["1", "2"].map(Nsid::parse);
        let link = |name: &str, kind: Option<&str>, peer: Option<Option<Nsid>>| {
            let mut link = Link::default();
            link.name = name.into();
            link.kind = kind.map(str::to_owned);
            link.peer_is_elsewhere = peer.is_some();
            link.peer_netns = peer.flatten();
            link
        };
        for (link, expected) in [
            (link("lo", None, None), false),
            (link("eth0", None, None), true),
            (link("eth0", Some("veth"), Some(host)), false),
            (link("eth0", Some("veth"), Some(third)), true),
            (link("eth0", Some("veth"), Some(None)), true),
            (link("eth0", Some("veth"), None), false),
            (link("eth0", Some("macvlan"), Some(host)), false),
            (link("br0", Some("bridge"), None), false),
        ] {
            assert_eq!(is_in_use(&link, host), expected, "{link:?}");
        }
        assert!(is_in_use(&link("eth0", Some("veth"), Some(None)), None));
    }
}
