//! Links: reading them, waiting for their state, deleting them.

use std::time::Duration;

use neli::consts::nl::NlmF;
use nix::libc::{self, IFF_ALLMULTI, IFF_LOWER_UP, IFF_PROMISC, IFF_UP, c_int};

use super::Rtnl;
use super::consts::{
    AF_UNSPEC, DEVCONF_ACCEPT_RA, DEVCONF_DISABLE_IPV6, IF_OPER_UP, IFLA_ADDRESS, IFLA_AF_SPEC,
    IFLA_ALT_IFNAME, IFLA_BRPORT_ISOLATED, IFLA_BRPORT_MODE, IFLA_BRPORT_STATE, IFLA_EXT_MASK,
    IFLA_GROUP, IFLA_IFALIAS, IFLA_IFNAME, IFLA_INET_CONF, IFLA_INET6_CONF, IFLA_INFO_DATA,
    IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND, IFLA_LINK, IFLA_LINK_NETNSID,
    IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU, IFLA_OPERSTATE, IFLA_PROP_LIST, IFLA_TXQLEN, IFLA_XDP,
    IFLA_XDP_ATTACHED, IPV4_DEVCONF_FORWARDING, IPV4_DEVCONF_ROUTE_LOCALNET,
    RTEXT_FILTER_SKIP_STATS,
};
use super::namespace::Nsid;
use crate::error::Result;
use crate::names::{IFNAME_BYTES_MAX, Mac};
use crate::netlink::{
    AF_INET, AF_INET6, Attrs, Error, Requests, attribute, attributes, found, text, u8_of, u32_at,
    u32_of,
};

/// The state of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `None` if the link has no Ethernet address.
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub kind: Option<String>,
    /// The attributes in IFLA_INFO_DATA, which the module `property` reads.
    pub(super) data: Vec<u8>,
    pub master: Option<u32>,
    /// IFLA_LINK: the index of the other end of a veth pair, or of the parent of a macvlan, ipvlan or vlan. The peer can be in
    /// another namespace.
    pub peer: Option<u32>,
    /// The peer is in another namespace.
    pub peer_is_elsewhere: bool,
    /// If `peer_is_elsewhere`: the id of the peer's namespace. `None` if that namespace has ended: the kernel is about to
    /// remove this link.
    pub peer_netns: Option<Nsid>,
    /// IFF_UP: the link is configured up. `operstate_up` tells whether the link can carry traffic.
    pub up: bool,
    /// IFF_LOWER_UP: a cable is connected, or what stands for it.
    pub has_carrier: bool,
    /// Promiscuous mode was set by configuration. Packet sockets and masters do not set this flag.
    pub promiscuous: bool,
    pub all_multicast: bool,
    /// In packets.
    pub tx_queue_len: u32,
    /// IFLA_OPERSTATE is IF_OPER_UP: the link can carry traffic. Never true for links without a carrier state, like `lo`.
    pub operstate_up: bool,
    /// `net.ipv6.conf.LINK.accept_ra`; `None` without IPv6.
    pub accept_ra: Option<u32>,
    /// `net.ipv6.conf.LINK.disable_ipv6` is not 0; `None` without IPv6.
    pub disables_ipv6: Option<bool>,
    /// `net.ipv4.conf.LINK.forwarding` is not 0: the host may forward IPv4 packets that arrive on the link. `None` without IPv4.
    pub forwards_ipv4: Option<bool>,
    /// `net.ipv4.conf.LINK.route_localnet` is not 0: the kernel delivers packets to 127.0.0.0/8 that arrive on the link.
    pub route_localnet: bool,
    pub alias: Option<String>,
    /// The group of the link, 0 by default.
    pub group: u32,
    /// Alternative names, of up to 127 bytes.
    pub alt_names: Vec<String>,
    /// `Some` for the port of a bridge.
    pub port: Option<Port>,
    /// An XDP program gets the received packets.
    pub has_xdp: bool,
}

/// The state of a port of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub state: PortState,
    pub hairpin: bool,
    pub isolated: bool,
}

/// BR_STATE_* (linux/if_bridge.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortState {
    /// The port is down, has no carrier, or is disabled by configuration.
    #[default]
    Disabled,
    /// A state of the spanning tree protocol before forwarding, as `Learning`.
    Listening,
    Learning,
    Forwarding,
    Blocking,
}

impl PortState {
    /// The name that `ip` prints.
    pub fn text(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Listening => "listening",
            Self::Learning => "learning",
            Self::Forwarding => "forwarding",
            Self::Blocking => "blocking",
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Listening,
            2 => Self::Learning,
            3 => Self::Forwarding,
            4 => Self::Blocking,
            _ => Self::Disabled,
        }
    }
}

impl Rtnl {
    /// The link that has this name, or has it as an alternative name.
    pub fn link(&self, name: &str) -> Result<Option<Link>> {
        // Both attributes find both kinds of names. The kernel refuses a long name in IFLA_IFNAME.
        let kind = if name.len() > IFNAME_BYTES_MAX { IFLA_ALT_IFNAME } else { IFLA_IFNAME };
        self.get_link(format!("cannot find link {name}"), |attrs| {
            attrs.raw(&header(0, 0, 0));
            attrs.string(kind, name);
        })
    }

    pub fn link_at(&self, index: u32) -> Result<Option<Link>> {
        self.get_link(format!("cannot find link {index}"), |attrs| {
            attrs.raw(&header(index, 0, 0));
        })
    }

    /// All links, in the order of their indexes.
    pub fn links(&self) -> Result<Vec<Link>> {
        self.list_links(|_| {}, |_| true)
    }

    /// The ports of a bridge, or the links of a VRF.
    pub fn links_with_master(&self, master: u32) -> Result<Vec<Link>> {
        let filter = |attrs: &mut Attrs| attrs.u32(IFLA_MASTER, master);
        self.list_links(filter, |link| link.master == Some(master))
    }

    pub fn links_of_kind(&self, kind: &str) -> Result<Vec<Link>> {
        let filter = |attrs: &mut Attrs| filter_kind(attrs, kind);
        self.list_links(filter, |link| link.kind.as_deref() == Some(kind))
    }

    /// Whether there is a link of a kind. Reads only the first link of the list: for an unknown kind the kernel lists all
    /// links.
    pub fn has_kind(self, kind: &str) -> Result<bool> {
        let request = links_request(|attrs| filter_kind(attrs, kind));
        let first = self.socket.first(&request, Link::parse)?;
        Ok(first.is_some_and(|link| link.kind.as_deref() == Some(kind)))
    }

    /// Deletes a link. A missing link is no error.
    pub fn del_link(&self, index: u32) -> Result<()> {
        self.delete(format!("cannot delete link {index}"), index, |_| {}).map(drop)
    }

    /// Deletes a link. Returns false if the link does not exist.
    pub fn del_link_named(&self, name: &str) -> Result<bool> {
        self.delete(format!("cannot delete link {name}"), 0, |attrs| {
            attrs.string(IFLA_IFNAME, name);
        })
    }

    /// Deletes the links that an index or an attribute selects. Returns false if there are none.
    pub(super) fn delete(
        &self,
        doing: String,
        index: u32,
        select: impl FnOnce(&mut Attrs),
    ) -> Result<bool> {
        let requests = Requests::one(libc::RTM_DELLINK, NlmF::empty(), doing, |attrs| {
            attrs.raw(&header(index, 0, 0));
            select(attrs);
        });
        Ok(found(self.change(requests), Error::is_not_found)?.is_some())
    }

    /// Waits until the link meets a condition, or until the timeout. Returns its last state; `None` if it was removed.
    pub fn wait_for_link(
        &self,
        index: u32,
        timeout: Duration,
        is_met: impl Fn(&Link) -> bool,
    ) -> Result<Option<Link>> {
        let (_, link) = self.wait(libc::RTNLGRP_LINK, timeout, || {
            let link = self.link_at(index)?;
            Ok((link.as_ref().is_none_or(&is_met), link))
        })?;
        Ok(link)
    }

    fn get_link(&self, doing: String, write: impl FnOnce(&mut Attrs)) -> Result<Option<Link>> {
        let request = Requests::one(libc::RTM_GETLINK, NlmF::empty(), doing, |attrs| {
            write(attrs);
            attrs.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        });
        Ok(found(self.socket.get(request, Link::parse), Error::is_not_found)?.flatten())
    }

    fn list_links(
        &self,
        filter: impl FnOnce(&mut Attrs),
        keep: impl Fn(&Link) -> bool,
    ) -> Result<Vec<Link>> {
        let request = links_request(filter);
        Ok(self.socket.dump(request, |payload| Link::parse(payload).filter(&keep))?)
    }
}

fn links_request(filter: impl FnOnce(&mut Attrs)) -> Requests {
    Requests::one(libc::RTM_GETLINK, NlmF::empty(), "cannot list links", |attrs| {
        attrs.raw(&header(0, 0, 0));
        attrs.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        filter(attrs);
    })
}

fn filter_kind(attrs: &mut Attrs, kind: &str) {
    attrs.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, kind));
}

impl Link {
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let flags = u32_at(payload, 8)?.cast_signed();
        let mut link = Self {
            index: u32_at(payload, 4)?,
            up: flags & IFF_UP != 0,
            has_carrier: flags & IFF_LOWER_UP != 0,
            promiscuous: flags & IFF_PROMISC != 0,
            all_multicast: flags & IFF_ALLMULTI != 0,
            ..Self::default()
        };
        for (kind, value) in attributes(payload.get(HEADER_BYTES..)?) {
            match kind {
                IFLA_IFNAME => link.name = text(value).into_owned(),
                IFLA_ADDRESS => link.mac = value.try_into().ok().map(Mac),
                IFLA_MTU => link.mtu = u32_of(value).unwrap_or_default(),
                IFLA_TXQLEN => link.tx_queue_len = u32_of(value).unwrap_or_default(),
                IFLA_MASTER => link.master = u32_of(value),
                IFLA_LINK => link.peer = u32_of(value),
                IFLA_LINK_NETNSID => {
                    link.peer_is_elsewhere = true;
                    link.peer_netns = u32_of(value).and_then(Nsid::of_reply);
                }
                IFLA_OPERSTATE => link.operstate_up = u8_of(value) == Some(IF_OPER_UP),
                IFLA_IFALIAS => link.alias = Some(text(value).into_owned()),
                IFLA_GROUP => link.group = u32_of(value).unwrap_or_default(),
                IFLA_LINKINFO => link.parse_info(value),
                IFLA_AF_SPEC => {
                    let accept_ra = (IFLA_INET6_CONF, DEVCONF_ACCEPT_RA);
                    link.accept_ra = parameter(value, AF_INET6, accept_ra);
                    let disables_ipv6 = (IFLA_INET6_CONF, DEVCONF_DISABLE_IPV6);
                    let disables_ipv6 = parameter(value, AF_INET6, disables_ipv6);
                    link.disables_ipv6 = disables_ipv6.map(|value| value != 0);
                    let forwarding = (IFLA_INET_CONF, usize::from(IPV4_DEVCONF_FORWARDING) - 1);
                    let forwarding = parameter(value, AF_INET, forwarding);
                    link.forwards_ipv4 = forwarding.map(|value| value != 0);
                    let localnet = (IFLA_INET_CONF, IPV4_DEVCONF_ROUTE_LOCALNET - 1);
                    let localnet = parameter(value, AF_INET, localnet);
                    link.route_localnet = localnet.is_some_and(|value| value != 0);
                }
                IFLA_XDP => {
                    let attached = attribute(value, IFLA_XDP_ATTACHED).and_then(u8_of);
                    link.has_xdp = attached.is_some_and(|mode| mode != 0);
                }
                IFLA_PROP_LIST => link.alt_names = alt_names(value),
                _ => {}
            }
        }
        Some(link)
    }

    fn parse_info(&mut self, info: &[u8]) {
        self.kind = attribute(info, IFLA_INFO_KIND).map(|kind| text(kind).into_owned());
        self.data = attribute(info, IFLA_INFO_DATA).unwrap_or_default().to_vec();
        if attribute(info, IFLA_INFO_SLAVE_KIND).is_some_and(|kind| text(kind) == "bridge") {
            self.port = attribute(info, IFLA_INFO_SLAVE_DATA).map(Port::parse);
        }
    }
}

impl Port {
    fn parse(data: &[u8]) -> Self {
        let number = |kind| attribute(data, kind).and_then(u8_of).unwrap_or_default();
        Self {
            state: PortState::from_number(number(IFLA_BRPORT_STATE)),
            hairpin: number(IFLA_BRPORT_MODE) != 0,
            isolated: number(IFLA_BRPORT_ISOLATED) != 0,
        }
    }
}

fn alt_names(properties: &[u8]) -> Vec<String> {
    let names = attributes(properties).filter(|(kind, _)| *kind == IFLA_ALT_IFNAME);
    names.map(|(_, name)| text(name).into_owned()).collect()
}

/// A parameter of the link in IFLA_AF_SPEC: the attribute of the family, and the index in it.
fn parameter(families: &[u8], family: u8, (kind, index): (u16, usize)) -> Option<u32> {
    let values = attribute(attribute(families, family.into())?, kind)?;
    u32_at(values, index * size_of::<u32>())
}

pub(super) const HEADER_BYTES: usize = 16;

/// struct ifinfomsg: family, type, index, flags, and the mask of flags to change.
pub(super) fn header(index: u32, flags: c_int, mask: c_int) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = AF_UNSPEC;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&mask.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to RTM_GETLINK for the port of a bridge.
    fn port() -> (Link, Attrs) {
        let link = Link {
            index: 7,
            name: "veth1".into(),
            mac: Some(Mac([2, 0, 0, 0, 0, 7])),
            mtu: 1380,
            kind: Some("veth".into()),
            data: vec![1, 2, 3, 4],
            master: Some(2),
            peer: Some(3),
            peer_is_elsewhere: true,
            peer_netns: Nsid::parse("0"),
            up: true,
            has_carrier: true,
            promiscuous: true,
            all_multicast: true,
            tx_queue_len: 1000,
            operstate_up: true,
            accept_ra: Some(2),
            disables_ipv6: Some(true),
            forwards_ipv4: Some(true),
            route_localnet: true,
            alias: Some("abc".into()),
            group: 9,
            alt_names: vec!["one".into(), "other".into()],
            port: Some(Port { state: PortState::Forwarding, hairpin: true, isolated: false }),
            has_xdp: true,
        };
        let mut reply = Attrs::default();
        reply.raw(&header(7, IFF_UP | IFF_LOWER_UP | IFF_PROMISC | IFF_ALLMULTI, 0));
        reply.string(IFLA_IFNAME, "veth1");
        reply.nested(IFLA_XDP, |xdp| xdp.u8(IFLA_XDP_ATTACHED, 1));
        reply.bytes(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]);
        reply.u32(IFLA_MTU, 1380);
        reply.u32(IFLA_TXQLEN, 1000);
        reply.u32(IFLA_MASTER, 2);
        reply.u32(IFLA_LINK, 3);
        reply.u32(IFLA_LINK_NETNSID, 0);
        reply.u8(IFLA_OPERSTATE, IF_OPER_UP);
        reply.string(IFLA_IFALIAS, "abc");
        reply.u32(IFLA_GROUP, 9);
        reply.nested(IFLA_AF_SPEC, |families| {
            families.nested(AF_INET.into(), |ipv4| {
                let mut values = [0; 4 * 26];
                values[..4].copy_from_slice(&1_u32.to_ne_bytes());
                values[4 * 25..].copy_from_slice(&1_u32.to_ne_bytes());
                ipv4.bytes(IFLA_INET_CONF, &values);
            });
            families.nested(AF_INET6.into(), |ipv6| {
                let mut values = [0_u32; 27];
                (values[3], values[26]) = (2, 1);
                ipv6.bytes(IFLA_INET6_CONF, values.map(u32::to_ne_bytes).as_flattened());
            });
        });
        reply.nested(IFLA_PROP_LIST, |properties| {
            properties.string(IFLA_ALT_IFNAME, "one");
            properties.string(IFLA_ALT_IFNAME, "other");
        });
        reply.nested(IFLA_LINKINFO, |info| {
            info.string(IFLA_INFO_KIND, "veth");
            info.bytes(IFLA_INFO_DATA, &[1, 2, 3, 4]);
            info.string(IFLA_INFO_SLAVE_KIND, "bridge");
            info.nested(IFLA_INFO_SLAVE_DATA, |data| {
                data.u8(IFLA_BRPORT_STATE, 3);
                data.u8(IFLA_BRPORT_MODE, 1);
                data.u8(IFLA_BRPORT_ISOLATED, 0);
            });
        });
        (link, reply)
    }

    #[test]
    fn a_link_is_read() {
        let (link, reply) = port();
        assert_eq!(Link::parse(reply.as_slice()), Some(link));
    }

    #[test]
    fn a_truncated_or_empty_link_is_read_as_far_as_possible() {
        let (_, reply) = port();
        for end in 0..reply.as_slice().len() {
            assert_eq!(Link::parse(&reply.as_slice()[..end]).is_some(), end >= HEADER_BYTES);
        }
        let mut reply = Attrs::default();
        reply.raw(&header(7, 0, 0));
        for kind in
            [IFLA_IFNAME, IFLA_ADDRESS, IFLA_MTU, IFLA_MASTER, IFLA_OPERSTATE, IFLA_LINKINFO]
        {
            reply.bytes(kind, &[]);
        }
        let expected = Link { index: 7, ..Link::default() };
        assert_eq!(Link::parse(reply.as_slice()), Some(expected));
    }

    #[test]
    fn only_ethernet_addresses_are_macs() {
        for (address, mac) in [(&[1; 6][..], Some(Mac([1; 6]))), (&[1; 4], None), (&[1; 20], None)]
        {
            let mut reply = Attrs::default();
            reply.raw(&header(7, 0, 0));
            reply.bytes(IFLA_ADDRESS, address);
            assert_eq!(Link::parse(reply.as_slice()).and_then(|link| link.mac), mac);
        }
    }
}
