//! `macvlan`: an interface with a MAC address of its own on a link of the host; the container is in that link's network.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "lan", "type": "macvlan", "master": "eth0", "mode": "bridge",
//!   "ipam": { "type": "host-local", "subnet": "192.168.1.0/24" }
//! }
//! ```
//!
//! - `master`: the link. Without, the one that the previous plugin of the chain made; without a chain, the one of the
//!   default route. With `linkInContainer` a link of the container.
//! - `mode`: `bridge` (default; such interfaces on one link reach each other), `private` (they do not), `vepa` (they do
//!   if the switch sends frames back), `passthru` (one only; it takes over the link, and its MAC address).
//! - `mtu`: at most the link's, which it is by default. `mac`: random by default; CNI_ARGS and the runtime go before it.
//! - `bcqueuelen`: how many frames for everybody the link keeps for its interfaces; the kernel takes the largest.
//!
//! The host and the container cannot reach one another over the link. Without `ipam` the interface has no address.
//!
//! DEL removes the interface and releases the addresses. GC releases the addresses of what is not valid; an interface
//! ends with its namespace.

use serde::Deserialize;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::interface::{self, NewInterface, Property};
use crate::steps::parent;

const KIND: &str = "macvlan";

/// Attributes and modes (linux/if_link.h).
const IFLA_MACVLAN_MODE: u16 = 1;
const IFLA_MACVLAN_BC_QUEUE_LEN: u16 = 7;
const MODES: [(&str, u32); 4] = [("bridge", 4), ("private", 1), ("vepa", 2), ("passthru", 8)];

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Macvlan {
    master: String,
    mode: String,
    mtu: i64,
    mac: String,
    link_in_container: bool,
    /// 0 leaves it to the kernel.
    #[serde(rename = "bcqueuelen")]
    broadcast_queue_length: u32,
}

impl Plugin for Macvlan {
    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        interface::add(cx, at, netns, &self.interface(cx)?, None)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        interface::check(cx, at, &self.interface(cx)?)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::clean(cx, scope, netns, KIND)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        interface::status(cx, &self.interface(cx)?)
    }
}

impl Macvlan {
    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>> {
        let mode = if self.mode.is_empty() { MODES[0].0 } else { &self.mode };
        let Some((_, number)) = MODES.iter().find(|(name, _)| *name == mode) else {
            return Err(Error::config(format!("mode: unknown macvlan mode {mode:?}")));
        };
        let property = |what: String, attribute, number: u32| Property {
            what,
            attribute,
            value: number.to_ne_bytes().into(),
        };
        let mut properties = vec![property(format!("mode {mode}"), IFLA_MACVLAN_MODE, *number)];
        if self.broadcast_queue_length != 0 {
            let what = format!("bcqueuelen {}", self.broadcast_queue_length);
            let number = self.broadcast_queue_length;
            properties.push(property(what, IFLA_MACVLAN_BC_QUEUE_LEN, number));
        }
        Ok(NewInterface {
            kind: KIND,
            needs: "CONFIG_MACVLAN (module macvlan)",
            properties,
            mtu: self.mtu,
            mac: interface::wanted_mac(cx, &self.mac)?,
            parent: Some(parent::Wanted {
                master: &self.master,
                in_container: self.link_in_container,
                limits_mtu: true,
                must_be_up: false,
                takes_frames: true,
            }),
        })
    }
}
