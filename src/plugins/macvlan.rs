//! `macvlan`: an interface with its own MAC address on a link of the host. The container is in the network of that
//! link.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "master": "eth0", "mode": "bridge",
//!   "ipam": { "type": "host-local", "subnet": "192.168.1.0/24" }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `master` | string | see below | Link that the interface is on: its name, or an alternative name of up to 127 bytes. |
//! | `mode` | string | `bridge` | `bridge`, `private`, `vepa` or `passthru`, see below. |
//! | `mtu` | integer | MTU of the master | MTU in bytes, at most that of the master; at least 1280 with IPv6. |
//! | `mac` | string | random | MAC address of the interface. The three keys below override it. |
//! | `linkInContainer` | boolean | false | `master` is a link in the container. |
//! | `bcqueuelen` | integer | kernel's | Length of the master's queue for broadcast frames. The kernel uses the largest of all interfaces. |
//! | `runtimeConfig.mac` | string | value of `mac` | MAC address from the runtime (capability `mac`). |
//! | `args.cni.mac` | string | value of `mac` | The same, if `runtimeConfig.mac` is not set. |
//! | `CNI_ARGS: MAC` | string | value of `mac` | The same, if neither of them is set. |
//!
//! Without `master`, the interface of the previous result is the master; without `prevResult`, the interface of the
//! default route with the lowest metric. The alias of the new interface then records the master for CHECK.
//!
//! Modes: interfaces on one master exchange frames (`bridge`), do not (`private`), or do so if the switch sends the
//! frames back (`vepa`). In mode `passthru` there is one interface only, and it takes over the master and its MAC
//! address. In every mode, host and container do not reach each other over the master.
//!
//! A MAC address that another interface on the master has is an error, which names that interface if it can be seen. If its
//! container is ending, ADD waits up to five seconds.
//!
//! - **ADD** makes the interface in the container and configures it. Without `ipam` it gets no addresses.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares kind, mode, `bcqueuelen`, `mtu` and master with the
//!   configuration, and the MAC address, addresses and routes with `prevResult`.
//! - **DEL** removes the interface, if it is of this kind, and releases the addresses. It needs neither the
//!   configuration nor the master.
//! - **GC** releases the addresses of attachments that are not valid. The kernel removes an interface with its
//!   namespace.
//! - **STATUS** fails if the kernel lacks this kind of link, if the master does not exist or is the port of a bridge,
//!   if `mtu` is too large, if the master's MTU is below 1280 and there are IPv6 addresses, or if the IPAM plugin
//!   fails.

use crate::cni::json::keys;
use crate::error::Result;
use crate::netlink::rtnl::LinkProperty;
use crate::plugin::{Context, Entry};
use crate::steps::link::interface::{self, NewInterface, Property, SingleLink};
use crate::steps::link::mtu;
use crate::steps::link::parent::Parent;

/// The values of `mode`: MACVLAN_MODE_* (linux/if_link.h). The first value is the default.
const MODES: &[(&str, u32)] = &[("bridge", 4), ("private", 1), ("vepa", 2), ("passthru", 8)];

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_links: Some("macvlan"),
    probes: &[Entry::ON_LO],
    ..Entry::plugin::<Macvlan>(
        "macvlan",
        "an interface on a link of the host, with its own MAC address",
    )
};

keys! {
    pub struct Macvlan {
        "master" => master: String,
        "mode" => mode: String,
        "mtu" => mtu: i64,
        "mac" => mac: String,
        "linkInContainer" => link_in_container: bool,
        /// 0 means the kernel's default.
        "bcqueuelen" => broadcast_queue_length: u32,
    }
}

impl SingleLink for Macvlan {
    const KIND: &'static str = "macvlan";

    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>> {
        let mode =
            Property::of_word(("macvlan", "mode"), &self.mode, MODES, LinkProperty::MacvlanMode)?;
        let mut properties = vec![mode];
        let length = self.broadcast_queue_length;
        if length != 0 {
            properties.push(Property {
                title: format!("bcqueuelen {length}"),
                value: LinkProperty::MacvlanBroadcastQueueLength(length),
            });
        }
        Ok(NewInterface {
            kind: Self::KIND,
            option: "CONFIG_MACVLAN",
            properties,
            mtu: self.mtu,
            mtu_range: mtu::ETHERNET,
            mac: interface::requested_mac(cx, &self.mac)?,
            parent: Some(Parent {
                master: &self.master,
                in_container: self.link_in_container,
                limits_mtu: true,
                must_be_up: false,
                takes_frames: true,
            }),
            uses_prev_result: false,
        })
    }
}
