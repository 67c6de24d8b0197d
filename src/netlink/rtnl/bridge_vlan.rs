//! VLANs of bridges and their ports, as `bridge vlan` shows and changes them.

use neli::consts::nl::NlmF;
use nix::libc;

use super::consts::{
    AF_BRIDGE, BRIDGE_VLAN_INFO_PVID, BRIDGE_VLAN_INFO_RANGE_BEGIN, BRIDGE_VLAN_INFO_RANGE_END,
    BRIDGE_VLAN_INFO_UNTAGGED, IFLA_AF_SPEC, IFLA_BR_VLAN_PROTOCOL, IFLA_BRIDGE_VLAN_INFO,
    IFLA_EXT_MASK, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_NUM_TX_QUEUES,
    RTEXT_FILTER_BRVLAN_COMPRESSED,
};
use super::link::{HEADER_BYTES, Link, header};
use super::{Batch, Rtnl};
use crate::error::Result;
use crate::netlink::{Attrs, Requests, attribute, attributes, u16_at};

/// Consecutive VLANs of a port with the same flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange {
    pub first: u16,
    pub last: u16,
    /// PVID: incoming frames without a tag are in this VLAN. A range with this flag has one VLAN.
    pub is_pvid: bool,
    /// Frames of these VLANs leave the port without a tag.
    pub untagged: bool,
}

/// A bridge or one of its ports, with its VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortVlans {
    pub index: u32,
    pub name: String,
    /// The index of the bridge that the port belongs to. For a bridge, its own index.
    pub bridge: u32,
    /// IFLA_LINK, as in `Link::peer`. `None` if both ends of the veth pair have the same index, in different namespaces.
    pub peer: Option<u32>,
    /// In ascending order, in as few ranges as possible.
    pub vlans: Vec<VlanRange>,
}

impl PortVlans {
    pub fn pvid(&self) -> Option<u16> {
        self.vlans.iter().find(|range| range.is_pvid).map(|range| range.first)
    }

    pub fn is_in(&self, vlan: u16) -> bool {
        self.vlans.iter().any(|range| (range.first..=range.last).contains(&vlan))
    }

    fn parse(payload: &[u8]) -> Option<Self> {
        let link = Link::parse(payload)?;
        let vlans = attribute(payload.get(HEADER_BYTES..)?, IFLA_AF_SPEC);
        let vlans = vlans.map(ranges).unwrap_or_default();
        let Link { index, name, master, peer, .. } = link;
        Some(Self { index, name, bridge: master?, peer, vlans })
    }
}

impl Rtnl {
    /// All bridges and their ports, with their VLANs. The kernel cannot filter this list.
    pub fn bridge_ports(&self) -> Result<Vec<PortVlans>> {
        let doing = "cannot list VLANs of bridges";
        let request = Requests::one(libc::RTM_GETLINK, NlmF::empty(), doing, |attrs| {
            attrs.raw(&bridge_header(0));
            attrs.u32(IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
        });
        Ok(self.socket.dump(request, PortVlans::parse)?)
    }

    /// Whether the kernel has CONFIG_BRIDGE_VLAN_FILTERING.
    ///
    /// Requests a bridge with an invalid VLAN protocol and 0 queues, which no kernel creates. A kernel with the option refuses
    /// the protocol (EPROTONOSUPPORT); a kernel without the option ignores the protocol and refuses the 0 queues.
    pub fn can_filter_vlans(&self) -> bool {
        let flags = NlmF::CREATE | NlmF::EXCL;
        let request = Requests::one(libc::RTM_NEWLINK, flags, "", |attrs| {
            attrs.raw(&header(0, 0, 0));
            attrs.u32(IFLA_NUM_TX_QUEUES, 0);
            attrs.nested(IFLA_LINKINFO, |info| {
                info.string(IFLA_INFO_KIND, "bridge");
                info.nested(IFLA_INFO_DATA, |data| data.bytes(IFLA_BR_VLAN_PROTOCOL, &[0xff; 2]));
            });
        });
        self.change(request).is_err_and(|error| error.errno == libc::EPROTONOSUPPORT)
    }
}

impl Batch {
    /// Adds VLANs to a port, or changes their flags. The name is for the error message.
    pub fn add_vlans(&mut self, index: u32, name: &str, vlans: &[VlanRange]) {
        let doing = format!("cannot add VLANs to bridge port {name}");
        self.change_vlans(libc::RTM_SETLINK, doing, index, vlans);
    }

    /// Removes a port from a VLAN. A missing VLAN is no error.
    pub fn del_vlan(&mut self, index: u32, name: &str, vlan: u16) {
        let doing = format!("cannot delete VLAN {vlan} from bridge port {name}");
        let range = VlanRange { first: vlan, last: vlan, is_pvid: false, untagged: false };
        self.change_vlans(libc::RTM_DELLINK, doing, index, &[range]);
    }

    fn change_vlans(&mut self, kind: u16, doing: String, index: u32, vlans: &[VlanRange]) {
        self.requests.push(kind, NlmF::empty(), doing, |attrs| {
            attrs.raw(&bridge_header(index));
            attrs.nested(IFLA_AF_SPEC, |spec| vlans.iter().for_each(|range| range.encode(spec)));
        });
    }
}

impl VlanRange {
    fn encode(&self, spec: &mut Attrs) {
        let pvid = if self.is_pvid { BRIDGE_VLAN_INFO_PVID } else { 0 };
        let untagged = if self.untagged { BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
        let flags = pvid | untagged;
        if self.first == self.last {
            put_info(spec, flags, self.first);
        } else {
            put_info(spec, flags | BRIDGE_VLAN_INFO_RANGE_BEGIN, self.first);
            put_info(spec, flags | BRIDGE_VLAN_INFO_RANGE_END, self.last);
        }
    }
}

/// Appends a struct bridge_vlan_info: flags, VLAN.
fn put_info(spec: &mut Attrs, flags: u16, vlan: u16) {
    let ([a, b], [c, d]) = (flags.to_ne_bytes(), vlan.to_ne_bytes());
    spec.bytes(IFLA_BRIDGE_VLAN_INFO, &[a, b, c, d]);
}

fn ranges(spec: &[u8]) -> Vec<VlanRange> {
    let mut list: Vec<VlanRange> = Vec::new();
    for (kind, value) in attributes(spec) {
        let (Some(flags), Some(vlan)) = (u16_at(value, 0), u16_at(value, 2)) else { continue };
        match list.last_mut() {
            _ if kind != IFLA_BRIDGE_VLAN_INFO => {}
            Some(range) if flags & BRIDGE_VLAN_INFO_RANGE_END != 0 => range.last = vlan,
            _ => list.push(VlanRange {
                first: vlan,
                last: vlan,
                is_pvid: flags & BRIDGE_VLAN_INFO_PVID != 0,
                untagged: flags & BRIDGE_VLAN_INFO_UNTAGGED != 0,
            }),
        }
    }
    list
}

fn bridge_header(index: u32) -> [u8; HEADER_BYTES] {
    let mut header = header(index, 0, 0);
    header[0] = AF_BRIDGE;
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;
    use crate::netlink::rtnl::consts::{IFLA_IFNAME, IFLA_LINK, IFLA_MASTER};

    const ACCESS: VlanRange = VlanRange { first: 10, last: 10, is_pvid: true, untagged: true };
    const TRUNK: VlanRange = VlanRange { first: 20, last: 30, is_pvid: false, untagged: false };

    /// The bytes of iproute2 6.15 (`bridge vlan add dev X vid 10 pvid untagged`, `vid 20-30`, and `del`), except the
    /// flag of nested attributes, and with both additions in one request.
    #[test]
    fn vlans_of_a_port_are_one_request() {
        let mut batch = Batch::new();
        batch.add_vlans(7, "x", &[ACCESS, TRUNK]);
        batch.del_vlan(7, "x", 1);
        assert_eq!(
            rows(&batch.requests.bytes()),
            "3c000000 13000100 00000000 00000000 07000000 07000000 00000000 00000000 \
             1c001a80 08000200 06000a00 08000200 08001400 08000200 10001e00 \
             2c000000 11000100 00000000 00000000 07000000 07000000 00000000 00000000 \
             0c001a80 08000200 00000100"
        );
    }

    fn reply() -> Attrs {
        let mut reply = Attrs::default();
        reply.raw(&bridge_header(7));
        reply.string(IFLA_IFNAME, "veth1");
        reply.u32(IFLA_MASTER, 2);
        reply.u32(IFLA_LINK, 3);
        reply.nested(IFLA_AF_SPEC, |spec| {
            ACCESS.encode(spec);
            spec.u32(0, 1); // IFLA_BRIDGE_FLAGS, in place of any other attribute
            TRUNK.encode(spec);
        });
        reply
    }

    #[test]
    fn vlans_are_read_back() {
        let port = PortVlans {
            index: 7,
            name: "veth1".into(),
            bridge: 2,
            peer: Some(3),
            vlans: vec![ACCESS, TRUNK],
        };
        assert_eq!(PortVlans::parse(reply().as_slice()), Some(port.clone()));
        assert_eq!(port.pvid(), Some(10));
        for (vlan, is_in) in [(9, false), (10, true), (19, false), (20, true), (30, true)] {
            assert_eq!(port.is_in(vlan), is_in, "{vlan}");
        }
    }

    #[test]
    fn a_truncated_reply_is_read_as_far_as_possible() {
        let whole = reply();
        for end in 0..whole.as_slice().len() {
            let port = PortVlans::parse(&whole.as_slice()[..end]);
            assert!(port.is_none_or(|port| port.vlans.is_empty()), "{end}");
        }
        // The end of a range without its beginning, and half of a VLAN.
        let mut spec = Attrs::default();
        put_info(&mut spec, BRIDGE_VLAN_INFO_RANGE_END, 5);
        spec.bytes(IFLA_BRIDGE_VLAN_INFO, &[0, 0, 9]);
        let alone = VlanRange { first: 5, last: 5, ..TRUNK };
        assert_eq!(ranges(spec.as_slice()), [alone]);
    }
}
