//! Creating and changing links.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use neli::consts::nl::NlmF;
use nix::libc::{self, IFF_ALLMULTI, IFF_PROMISC, IFF_UP};

use super::consts::{
    IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_ALT_IFNAME, IFLA_BRPORT_ISOLATED, IFLA_BRPORT_MODE,
    IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INET_CONF, IFLA_INFO_DATA, IFLA_INFO_KIND,
    IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU,
    IFLA_NET_NS_FD, IFLA_PROP_LIST, IFLA_TXQLEN, IPV4_DEVCONF_ARP_NOTIFY, IPV4_DEVCONF_FORWARDING,
    RTM_DELLINKPROP, RTM_NEWLINKPROP,
};
use super::link::{Link, header};
use super::{Batch, LinkProperty, Rtnl};
use crate::kernel::netns::NetNs;
use crate::names::Mac;
use crate::netlink::{self, AF_INET, Attrs, Requests};

/// A link to create. `None` is the kernel's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewLink<'a> {
    pub name: &'a str,
    pub mtu: Option<u32>,
    pub mac: Option<Mac>,
    pub master: Option<u32>,
    /// The parent of a macvlan, ipvlan or vlan: an index in the namespace of the `Rtnl`.
    pub parent: Option<u32>,
    /// The namespace of the link, if it is not that of the `Rtnl`.
    pub netns: Option<&'a NetNs>,
    pub up: bool,
}

/// Changes of a link. `None` changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkChange<'a> {
    pub up: Option<bool>,
    pub promiscuous: Option<bool>,
    pub all_multicast: Option<bool>,
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: Option<u32>,
    /// In packets.
    pub tx_queue_len: Option<u32>,
    /// Before Linux 6.3 the kernel refuses to rename a link that is up.
    pub name: Option<&'a str>,
    /// Moves the link into this namespace. The other changes are made at the same time, so `name` has to be free in this
    /// namespace.
    pub netns: Option<&'a NetNs>,
    /// An empty text removes the alias.
    pub alias: Option<&'a str>,
    /// 0 removes the master.
    pub master: Option<u32>,
    pub group: Option<u32>,
    /// Sets `net.ipv4.conf.LINK.arp_notify`: from then on the kernel announces the IPv4 addresses whenever the link
    /// comes up or its MAC address is set.
    ///
    /// A write to /proc/sys is slower: the kernel searches the directories of all namespaces, which have the same name. With
    /// 300 containers that takes a tenth of the time of a whole attachment.
    pub announce_ipv4: bool,
    /// Sets `net.ipv4.conf.LINK.forwarding`: the host forwards the IPv4 packets that arrive on the link.
    pub forward_ipv4: bool,
    /// A flag of a bridge port, and so is `isolated`.
    pub hairpin: Option<bool>,
    pub isolated: Option<bool>,
}

impl NewLink<'_> {
    pub(super) fn encode(&self, attrs: &mut Attrs) {
        let flags = if self.up { IFF_UP } else { 0 };
        attrs.raw(&header(0, flags, flags));
        attrs.string(IFLA_IFNAME, self.name);
        attrs.u32s(&[(IFLA_MTU, self.mtu), (IFLA_LINK, self.parent), (IFLA_MASTER, self.master)]);
        if let Some(mac) = self.mac {
            attrs.bytes(IFLA_ADDRESS, &mac.0);
        }
        if let Some(netns) = self.netns {
            put_netns(attrs, netns);
        }
    }
}

fn put_netns(attrs: &mut Attrs, netns: &NetNs) {
    attrs.u32(IFLA_NET_NS_FD, netns.as_fd().as_raw_fd().cast_unsigned());
}

impl Rtnl {
    /// Creates a link and returns it as the kernel reports it at the creation. `operstate_up` and `port` can change later;
    /// `wait_for_link` waits for such a change.
    pub fn add_link(
        &self,
        new: &NewLink<'_>,
        kind: &str,
        properties: &[LinkProperty<'_>],
    ) -> Result<Link, netlink::Error> {
        // The kernel echoes into the namespace of the new link. In another namespace the echo would go to the socket that has
        // our port number there: a socket of another process, or a later one of this process.
        let echo = if new.netns.is_none() { NlmF::ECHO } else { NlmF::empty() };
        let requests = new_link(new, kind, echo, properties);
        let mut echoed = None;
        let made = self.socket.commit(requests, |payload| echoed = Link::parse(payload));
        made.map_err(|error| match error.errno {
            libc::EXFULL => error.with_hint("the bridge has 1023 ports, and cannot have more"),
            _ => error,
        })?;
        let link = match (echoed, new.netns) {
            // The kernel sends the echo before it sets the master.
            (Some(mut link), _) => {
                link.master = new.master.or(link.master);
                Some(link)
            }
            // Before Linux 6.2 the kernel does not echo links.
            (None, None) => self.link(new.name).ok().flatten(),
            (None, Some(netns)) => netns.rtnl().and_then(|rtnl| rtnl.link(new.name)).ok().flatten(),
        };
        // The link cannot be read, or another process renamed or removed it meanwhile. The caller gets an error, so the
        // link must not stay.
        link.ok_or_else(|| {
            let rtnl = new.netns.map(NetNs::rtnl).transpose();
            // If this fails, the error below still names the link.
            let _ = rtnl.and_then(|rtnl| rtnl.as_ref().unwrap_or(self).del_link_named(new.name));
            let doing = format!("cannot find {kind} link {}", new.name);
            netlink::Error::new(doing, libc::ENODEV, None)
        })
    }

    /// Creates a link without reading it back. After an error there is no link.
    pub fn make_link(
        &self,
        new: &NewLink<'_>,
        kind: &str,
        properties: &[LinkProperty<'_>],
    ) -> Result<(), netlink::Error> {
        self.change(new_link(new, kind, NlmF::empty(), properties))
    }

    /// Repeats `make_link` after each change of a link until it does not fail with an error for which `is_taken` is true, or
    /// until the timeout. The inner result is that of the last `make_link`.
    pub fn make_link_when_free(
        &self,
        new: &NewLink<'_>,
        kind: &str,
        properties: &[LinkProperty<'_>],
        timeout: Duration,
        is_taken: impl Fn(&netlink::Error) -> bool,
    ) -> crate::error::Result<Result<(), netlink::Error>> {
        let (_, made) = self.wait(libc::RTNLGRP_LINK, timeout, || {
            let made = self.make_link(new, kind, properties);
            Ok((!made.as_ref().is_err_and(&is_taken), made))
        })?;
        Ok(made)
    }

    /// Makes one change of a link. The name is for the error message.
    pub fn change_link(
        &self,
        index: u32,
        name: &str,
        change: &LinkChange<'_>,
    ) -> crate::error::Result<()> {
        Ok(self.try_to_change_link(index, name, change)?)
    }

    /// Makes one change of a link, for a caller that looks at the error.
    pub fn try_to_change_link(
        &self,
        index: u32,
        name: &str,
        change: &LinkChange<'_>,
    ) -> Result<(), netlink::Error> {
        let mut batch = Batch::new();
        batch.change_link(index, name, change);
        self.change(batch.requests)
    }

    /// Brings the loopback interface up.
    pub fn raise_loopback(&self) -> crate::error::Result<()> {
        let Some(lo) = self.link("lo")? else { return Ok(()) };
        self.change_link(lo.index, "lo", &LinkChange { up: Some(true), ..LinkChange::default() })
    }
}

fn new_link(
    new: &NewLink<'_>,
    kind: &str,
    flags: NlmF,
    properties: &[LinkProperty<'_>],
) -> Requests {
    let doing = format!("cannot add {kind} link {}", new.name);
    let flags = NlmF::CREATE | NlmF::EXCL | flags;
    Requests::one(libc::RTM_NEWLINK, flags, doing, |attrs| {
        new.encode(attrs);
        attrs.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, kind);
            info.nested(IFLA_INFO_DATA, |data| {
                properties.iter().for_each(|property| property.encode(data));
            });
        });
    })
}

impl Batch {
    /// Changes a link. The name is for the error message.
    pub fn change_link(&mut self, index: u32, name: &str, change: &LinkChange<'_>) {
        let mut rest = *change;
        let is_about_port = change.hairpin.is_some() || change.isolated.is_some();
        if is_about_port && let Some(master) = rest.master.take() {
            // In one request the kernel would set the flags before it sets the master.
            let first = LinkChange { master: Some(master), ..LinkChange::default() };
            self.push_link_change(index, name, &first);
        }
        self.push_link_change(index, name, &rest);
    }

    /// Brings a link down. A missing link is no error.
    pub fn take_down(&mut self, index: u32, name: &str) {
        let down = LinkChange { up: Some(false), ..LinkChange::default() };
        self.change_if_exists(index, name, &down);
    }

    /// Changes a link. A missing link is no error.
    pub(super) fn change_if_exists(&mut self, index: u32, name: &str, change: &LinkChange<'_>) {
        self.push_link_change(index, name, change);
        self.requests.tolerate(libc::ENODEV);
    }

    /// Adds an alternative name. Kernels before 5.5 have no such names; that is no error.
    pub fn add_alt_name(&mut self, link: &str, alt_name: &str) {
        let flags = NlmF::CREATE | NlmF::EXCL;
        self.push_alt_name(RTM_NEWLINKPROP, flags, link, alt_name);
        self.requests.tolerate(libc::EOPNOTSUPP);
    }

    /// Deletes an alternative name. A missing name is no error.
    pub fn del_alt_name(&mut self, link: &str, alt_name: &str) {
        self.push_alt_name(RTM_DELLINKPROP, NlmF::empty(), link, alt_name);
        self.requests.tolerate(libc::ENOENT);
    }

    fn push_alt_name(&mut self, kind: u16, flags: NlmF, link: &str, alt_name: &str) {
        let doing = format!("cannot change the alternative name {alt_name} of link {link}");
        self.requests.push(kind, flags, doing, |attrs| {
            attrs.raw(&header(0, 0, 0));
            attrs.string(IFLA_IFNAME, link);
            attrs.nested(IFLA_PROP_LIST, |list| list.string(IFLA_ALT_IFNAME, alt_name));
        });
    }

    fn push_link_change(&mut self, index: u32, name: &str, change: &LinkChange<'_>) {
        let doing = format!("cannot change link {name}");
        // RTM_SETLINK cannot set the flags of a bridge port.
        let encode = |attrs: &mut Attrs| change.encode(index, attrs);
        self.requests.push(libc::RTM_NEWLINK, NlmF::empty(), doing, encode);
    }
}

impl LinkChange<'_> {
    fn encode(&self, index: u32, attrs: &mut Attrs) {
        let (mut flags, mut mask) = (0, 0);
        let requested = [
            (IFF_UP, self.up),
            (IFF_PROMISC, self.promiscuous),
            (IFF_ALLMULTI, self.all_multicast),
        ];
        for (flag, wanted) in requested {
            mask |= if wanted.is_some() { flag } else { 0 };
            flags |= if wanted == Some(true) { flag } else { 0 };
        }
        attrs.raw(&header(index, flags, mask));
        attrs.u32s(&[
            (IFLA_MASTER, self.master),
            (IFLA_GROUP, self.group),
            (IFLA_MTU, self.mtu),
            (IFLA_TXQLEN, self.tx_queue_len),
        ]);
        if let Some(mac) = self.mac {
            attrs.bytes(IFLA_ADDRESS, &mac.0);
        }
        if let Some(name) = self.name {
            attrs.string(IFLA_IFNAME, name);
        }
        if let Some(netns) = self.netns {
            put_netns(attrs, netns);
        }
        if let Some(alias) = self.alias {
            // Without a NUL, because the kernel would store it.
            attrs.bytes(IFLA_IFALIAS, alias.as_bytes());
        }
        if self.announce_ipv4 || self.forward_ipv4 {
            let value = |is_set: bool| is_set.then_some(1);
            attrs.nested(IFLA_AF_SPEC, |families| {
                families.nested(AF_INET.into(), |ipv4| {
                    ipv4.nested(IFLA_INET_CONF, |conf| {
                        conf.u32s(&[
                            (IPV4_DEVCONF_FORWARDING, value(self.forward_ipv4)),
                            (IPV4_DEVCONF_ARP_NOTIFY, value(self.announce_ipv4)),
                        ]);
                    });
                });
            });
        }
        if self.hairpin.is_none() && self.isolated.is_none() {
            return;
        }
        attrs.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_SLAVE_KIND, "bridge");
            info.nested(IFLA_INFO_SLAVE_DATA, |port| {
                let flags =
                    [(IFLA_BRPORT_MODE, self.hairpin), (IFLA_BRPORT_ISOLATED, self.isolated)];
                for (kind, wanted) in flags {
                    if let Some(wanted) = wanted {
                        port.u8(kind, wanted.into());
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    #[test]
    fn new_link_with_a_master_and_up() {
        let new = NewLink { name: "veth1", master: Some(2), up: true, ..NewLink::default() };
        let mut attrs = Attrs::default();
        new.encode(&mut attrs);
        assert_eq!(
            rows(attrs.as_slice()),
            "00000000 00000000 01000000 01000000 0a000300 76657468 31000000 08000a00 02000000"
        );
    }

    #[test]
    fn parameters_of_ipv4() {
        let change = |announce_ipv4, forward_ipv4| {
            let mut batch = Batch::new();
            let change = LinkChange { announce_ipv4, forward_ipv4, ..LinkChange::default() };
            batch.change_link(7, "x", &change);
            rows(&batch.requests.bytes())
        };
        assert_eq!(
            change(true, false),
            "34000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 00000000 14001a80 10000280 0c000180 08001600 \
             01000000"
        );
        assert_eq!(
            change(true, true),
            "3c000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 00000000 1c001a80 18000280 14000180 08000100 \
             01000000 08001600 01000000"
        );
    }

    #[test]
    fn change_of_flags_and_alias() {
        let mut batch = Batch::new();
        let change = LinkChange { up: Some(false), alias: Some("abc"), ..LinkChange::default() };
        batch.change_link(7, "x", &change);
        assert_eq!(
            rows(&batch.requests.bytes()),
            "28000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 01000000 07001400 61626300"
        );
    }

    #[test]
    fn port_flags_follow_the_master_in_a_request_of_their_own() {
        let mut batch = Batch::new();
        let change = LinkChange { master: Some(2), hairpin: Some(true), ..LinkChange::default() };
        batch.change_link(7, "x", &change);
        assert_eq!(
            rows(&batch.requests.bytes()),
            "28000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 00000000 08000a00 02000000 \
             3c000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 00000000 1c001280 0b000400 62726964 67650000 \
             0c000580 05000400 01000000"
        );
    }
}
