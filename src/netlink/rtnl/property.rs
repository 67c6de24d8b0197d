//! Properties of a link that only its kind has: the attributes in IFLA_INFO_DATA.

use super::{Link, NewLink};
use crate::netlink::{Attrs, attribute, attributes, u8_of, u16_of, u32_of};

/// The kind of both ends of a veth pair.
pub const VETH: &str = "veth";

/// A property of a new link, or one to compare an existing link with.
#[derive(Clone, Copy, Debug)]
pub enum LinkProperty<'a> {
    /// The other end of a veth pair. The kernel refuses to create it up (ENOTCONN).
    VethPeer(NewLink<'a>),
    BridgeVlanFiltering(bool),
    VrfTable(u32),
    VlanId(u16),
    /// MACVLAN_MODE_*
    MacvlanMode(u32),
    MacvlanBroadcastQueueLength(u32),
    /// IPVLAN_MODE_*
    IpvlanMode(u16),
    /// IPVLAN_F_*; 0 is the flag that `ip link` calls `bridge`
    IpvlanFlags(u16),
    TunOwner(u32),
    TunGroup(u32),
    /// IFF_TUN or IFF_TAP
    TunType(u8),
    TunPersistent(bool),
    TunMultiQueue(bool),
}

/// Where the spanning tree protocol of a bridge runs: BR_*_STP (net/bridge/br_private.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanningTree {
    Off,
    Kernel,
    /// In a program. Ports forward when the program allows it.
    User,
}

impl LinkProperty<'_> {
    pub(super) fn encode(&self, data: &mut Attrs) {
        match *self {
            Self::VethPeer(peer) => data.nested(VETH_INFO_PEER, |attrs| peer.encode(attrs)),
            Self::BridgeVlanFiltering(value) => data.u8(IFLA_BR_VLAN_FILTERING, value.into()),
            Self::VrfTable(table) => data.u32(IFLA_VRF_TABLE, table),
            Self::VlanId(id) => data.u16(IFLA_VLAN_ID, id),
            Self::MacvlanMode(mode) => data.u32(IFLA_MACVLAN_MODE, mode),
            Self::MacvlanBroadcastQueueLength(length) => {
                data.u32(IFLA_MACVLAN_BC_QUEUE_LEN, length);
            }
            Self::IpvlanMode(mode) => data.u16(IFLA_IPVLAN_MODE, mode),
            Self::IpvlanFlags(flags) => data.u16(IFLA_IPVLAN_FLAGS, flags),
            Self::TunOwner(id) => data.u32(IFLA_TUN_OWNER, id),
            Self::TunGroup(id) => data.u32(IFLA_TUN_GROUP, id),
            Self::TunType(value) => data.u8(IFLA_TUN_TYPE, value),
            Self::TunPersistent(value) => data.u8(IFLA_TUN_PERSIST, value.into()),
            Self::TunMultiQueue(value) => data.u8(IFLA_TUN_MULTI_QUEUE, value.into()),
        }
    }
}

impl Link {
    /// Whether the link has the property with this value.
    pub fn has_property(&self, property: &LinkProperty<'_>) -> bool {
        let mut wanted = Attrs::default();
        property.encode(&mut wanted);
        attributes(wanted.as_slice())
            .all(|(kind, value)| attribute(&self.data, kind) == Some(value))
    }

    /// Whether a bridge separates VLANs. A kernel without CONFIG_BRIDGE_VLAN_FILTERING reports false.
    pub fn filters_vlans(&self) -> bool {
        self.number(IFLA_BR_VLAN_FILTERING, u8_of).is_some_and(|value| value != 0)
    }

    /// The VLAN that a bridge gives to new ports, 0 for none; `None` if the kernel lacks
    /// CONFIG_BRIDGE_VLAN_FILTERING.
    pub fn default_vlan(&self) -> Option<u16> {
        self.number(IFLA_BR_VLAN_DEFAULT_PVID, u16_of)
    }

    /// Where the spanning tree protocol of a bridge runs.
    pub fn spanning_tree(&self) -> SpanningTree {
        match self.number(IFLA_BR_STP_STATE, u32_of) {
            None | Some(BR_NO_STP) => SpanningTree::Off,
            Some(BR_KERNEL_STP) => SpanningTree::Kernel,
            Some(_) => SpanningTree::User,
        }
    }

    /// The VLAN of a link of the kind vlan.
    pub fn vlan_id(&self) -> Option<u16> {
        (self.kind.as_deref() == Some("vlan")).then(|| self.number(IFLA_VLAN_ID, u16_of))?
    }

    /// The routing table of a VRF.
    pub fn vrf_table(&self) -> Option<u32> {
        self.number(IFLA_VRF_TABLE, u32_of)
    }

    fn number<T>(&self, kind: u16, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        attribute(&self.data, kind).and_then(read)
    }
}

/// Source: linux/if_link.h, linux/veth.h.
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BR_VLAN_DEFAULT_PVID: u16 = 39;
const IFLA_VRF_TABLE: u16 = 1;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_FLAGS: u16 = 2;
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_PERSIST: u16 = 6;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;

const BR_NO_STP: u32 = 0;
const BR_KERNEL_STP: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Mac;
    use crate::netlink::rows;

    #[test]
    fn veth_with_its_peer() {
        let mac = Some(Mac([2, 0, 0, 0, 0, 7]));
        let peer = NewLink { name: "eth0", mtu: Some(1380), mac, ..NewLink::default() };
        let mut attrs = Attrs::default();
        LinkProperty::VethPeer(peer).encode(&mut attrs);
        assert_eq!(
            rows(attrs.as_slice()),
            "34000180 00000000 00000000 00000000 00000000 09000300 65746830 00000000 \
             08000400 64050000 0a000100 02000000 00070000"
        );
    }

    fn with(property: &LinkProperty<'_>) -> Link {
        let mut data = Attrs::default();
        data.u8(99, 1);
        property.encode(&mut data);
        let data = data.as_slice().to_vec();
        Link { data, ..Link::default() }
    }

    #[test]
    fn properties_are_compared_with_their_values() {
        use LinkProperty::{IpvlanMode, MacvlanMode, TunMultiQueue, VlanId};

        for (property, other) in [
            (VlanId(10), VlanId(11)),
            (MacvlanMode(4), MacvlanMode(1)),
            (IpvlanMode(0), IpvlanMode(1)),
            (TunMultiQueue(false), TunMultiQueue(true)),
        ] {
            let link = with(&property);
            assert!(link.has_property(&property) && !link.has_property(&other), "{property:?}");
            assert!(!Link::default().has_property(&property), "{property:?}");
        }
    }

    #[test]
    fn numbers_are_read() {
        assert!(with(&LinkProperty::BridgeVlanFiltering(true)).filters_vlans());
        assert!(!with(&LinkProperty::BridgeVlanFiltering(false)).filters_vlans());
        assert_eq!(with(&LinkProperty::VrfTable(10)).vrf_table(), Some(10));
        let empty = Link::default();
        assert_eq!((empty.default_vlan(), empty.vrf_table()), (None, None));
        assert_eq!(empty.spanning_tree(), SpanningTree::Off);
    }
}
