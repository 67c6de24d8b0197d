//! `ipvlan`: an interface on a link of the host that shares the MAC address of the link and has its own IP addresses.
//! It is for networks that allow one MAC address per port (clouds, Wi-Fi).
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "lan", "type": "ipvlan", "master": "eth0", "mode": "l3", "flag": "private",
//!   "ipam": { "type": "host-local", "subnet": "192.168.1.0/24", "routes": [ { "dst": "0.0.0.0/0" } ] }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `master` | string | see below | Link that the interface is on: its name, or an alternative name of up to 127 bytes. |
//! | `mode` | string | `l2` | `l2`: the container is in the network of the master. `l3`: the host routes, without broadcast. `l3s`: as `l3`, and packets pass the netfilter hooks of the host. |
//! | `flag` | string | `bridge` | `bridge`: interfaces on one master reach each other. `private`: they do not. `vepa`: they do if the switch sends frames back. Not in the reference. |
//! | `mtu` | integer | MTU of the master | MTU in bytes; at least 1280 with IPv6. It may exceed that of the master. |
//! | `linkInContainer` | boolean | false | `master` is a link in the container. |
//!
//! Without `master`, the interface of the previous result is the master; without `prevResult`, the interface of the
//! default route with the lowest metric. The alias of the new interface then records the master for CHECK. Mode and
//! flag belong to the master: the latest ADD sets them for all of its interfaces.
//!
//! - **ADD** makes the interface in the container and configures it. Without `ipam` it uses the addresses and routes
//!   of `prevResult`; without these it sets none.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares kind, mode, flag, `mtu` and master with the
//!   configuration, and the MAC address, addresses and routes with `prevResult`.
//! - **DEL** removes the interface, if it is of this kind, and releases the addresses. It needs neither the
//!   configuration nor the master.
//! - **GC** releases the addresses of attachments that are not valid. The kernel removes an interface with its
//!   namespace.
//! - **STATUS** fails if the kernel lacks this kind of link, if the master does not exist or is the port of a bridge,
//!   if the master's MTU is below 1280 and there are IPv6 addresses, or if the IPAM plugin fails. Without `master` and
//!   `ipam` it does not look for a master: the previous plugin of the chain will make it.

use crate::cni::json::keys;
use crate::error::Result;
use crate::netlink::rtnl::LinkProperty;
use crate::plugin::{Context, Entry};
use crate::steps::link::interface::{NewInterface, Property, SingleLink};
use crate::steps::link::mtu;
use crate::steps::link::parent::Parent;

/// The modes (IPVLAN_MODE_*) and the flags (IPVLAN_F_*) of linux/if_link.h. The first mode and the first flag are the default.
const MODES: &[(&str, u16)] = &[("l2", 0), ("l3", 1), ("l3s", 2)];
const FLAGS: &[(&str, u16)] = &[("bridge", 0), ("private", 1), ("vepa", 2)];

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_links: Some("ipvlan"),
    probes: &[Entry::ON_LO],
    ..Entry::plugin::<Ipvlan>(
        "ipvlan",
        "an interface on a link of the host, with the MAC address of that link",
    )
};

keys! {
    pub struct Ipvlan {
        "master" => master: String,
        "mode" => mode: String,
        "flag" => flag: String,
        "mtu" => mtu: i64,
        "linkInContainer" => link_in_container: bool,
    }
}

impl SingleLink for Ipvlan {
    const KIND: &'static str = "ipvlan";

    fn interface(&self, _: &Context<'_>) -> Result<NewInterface<'_>> {
        Ok(NewInterface {
            kind: Self::KIND,
            option: "CONFIG_IPVLAN",
            properties: vec![
                Property::of_word(("ipvlan", "mode"), &self.mode, MODES, LinkProperty::IpvlanMode)?,
                Property::of_word(
                    ("ipvlan", "flag"),
                    &self.flag,
                    FLAGS,
                    LinkProperty::IpvlanFlags,
                )?,
            ],
            mtu: self.mtu,
            mtu_range: mtu::ETHERNET,
            mac: None,
            parent: Some(Parent {
                master: &self.master,
                in_container: self.link_in_container,
                // As in the reference, the MTU is not limited by that of the master.
                limits_mtu: false,
                must_be_up: false,
                takes_frames: true,
            }),
            uses_prev_result: true,
        })
    }
}
