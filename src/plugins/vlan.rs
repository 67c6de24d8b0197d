//! `vlan`: an interface in one VLAN (802.1Q) of a link of the host.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "dmz", "type": "vlan", "master": "eth0", "vlanId": 10,
//!   "ipam": { "type": "host-local", "subnet": "192.168.10.0/24" }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `master` | string | required | Link that carries the VLAN: its name, or an alternative name of up to 127 bytes. It must be up. |
//! | `vlanId` | integer | 0 | VLAN id, 0 to 4094. A master has one interface per id; a second ADD fails. |
//! | `mtu` | integer | MTU of the master | MTU in bytes, at most that of the master; at least 1280 with IPv6. |
//! | `linkInContainer` | boolean | false | `master` is a link in the container. |
//!
//! The interface has the MAC address of the master.
//!
//! - **ADD** makes the interface in the container and configures it. Without `ipam` it gets no addresses.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares kind, VLAN id, `mtu` and master with the configuration,
//!   and the MAC address, addresses and routes with `prevResult`.
//! - **DEL** removes the interface, if it is of this kind, and releases the addresses. It needs neither the
//!   configuration nor the master.
//! - **GC** releases the addresses of attachments that are not valid. The kernel removes an interface with its
//!   namespace.
//! - **STATUS** fails if the kernel lacks this kind of link, if the master does not exist or is down, if `mtu` is too
//!   large, if the master's MTU is below 1280 and there are IPv6 addresses, or if the IPAM plugin fails.

use crate::cni::json::keys;
use crate::error::{Error, Result};
use crate::netlink::rtnl::LinkProperty;
use crate::plugin::{Context, Entry};
use crate::steps::link::interface::{NewInterface, Property, SingleLink};
use crate::steps::link::mtu;
use crate::steps::link::parent::Parent;

/// The largest id that 802.1Q does not reserve.
const ID_MAX: u16 = 4094;

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_links: Some("vlan"),
    probes: &[("", r#""master":"lo","vlanId":5"#)],
    ..Entry::plugin::<Vlan>("vlan", "an interface in a VLAN of a link of the host")
};

keys! {
    pub struct Vlan {
        "master" => master: String,
        "vlanId" => vlan_id: i64,
        "mtu" => mtu: i64,
        "linkInContainer" => link_in_container: bool,
    }
}

impl SingleLink for Vlan {
    const KIND: &'static str = "vlan";

    fn interface(&self, _: &Context<'_>) -> Result<NewInterface<'_>> {
        if self.master.is_empty() {
            return Err(Error::config(
                "\"master\" field is required. It specifies the host interface name to create the VLAN for.",
            ));
        }
        let id = u16::try_from(self.vlan_id).ok().filter(|id| *id <= ID_MAX).ok_or_else(|| {
            let id = self.vlan_id;
            let msg = format_args!("invalid VLAN ID {id} (must be between 0 and 4095 inclusive)");
            Error::config(msg).with_details("vlanId: 4095 is reserved")
        })?;
        Ok(NewInterface {
            kind: Self::KIND,
            option: "CONFIG_VLAN_8021Q",
            properties: vec![Property {
                title: format!("VLAN id {id}"),
                value: LinkProperty::VlanId(id),
            }],
            mtu: self.mtu,
            mtu_range: 1..=*mtu::ETHERNET.end(),
            mac: None,
            parent: Some(Parent {
                master: &self.master,
                in_container: self.link_in_container,
                limits_mtu: true,
                must_be_up: true,
                takes_frames: false,
            }),
            uses_prev_result: false,
        })
    }
}
