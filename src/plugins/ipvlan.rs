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
//! | `master` | string | see below | Link that the interface is on. |
//! | `mode` | string | `l2` | `l2`: the container is in the network of the master. `l3`: the host routes, without broadcast. `l3s`: as `l3`, and packets pass the netfilter hooks of the host. |
//! | `flag` | string | `bridge` | `bridge`: interfaces on one master reach each other. `private`: they do not. `vepa`: they do if the switch sends frames back. Not in the reference. |
//! | `mtu` | integer | MTU of the master | MTU in bytes. It may exceed that of the master. |
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
//!   or if the IPAM plugin fails. Without `master` and `ipam` it does not look for a master: the previous plugin of
//!   the chain will make it.

use serde::Deserialize;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::link::interface::{self, NewInterface, Property};
use crate::steps::link::parent;

const KIND: &str = "ipvlan";

/// Attributes, modes and flags (linux/if_link.h).
const IFLA_IPVLAN_MODE: u16 = 1;
const IFLA_IPVLAN_FLAGS: u16 = 2;
const MODES: &[(&str, u16)] = &[("l2", 0), ("l3", 1), ("l3s", 2)];
const FLAGS: &[(&str, u16)] = &[("bridge", 0), ("private", 1), ("vepa", 2)];

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvlan {
    master: String,
    mode: String,
    flag: String,
    mtu: i64,
    link_in_container: bool,
}

impl Plugin for Ipvlan {
    const UNREADABLE: &'static str = "failed to load netconf";

    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        interface::examine(cx, &self.interface()?)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let given = match cx.request.prev_result()? {
            Some(result) if is_without_ipam(cx) => Some(result),
            _ => None,
        };
        interface::add(cx, at, netns, &self.interface()?, given)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        interface::check(cx, at, &self.interface()?)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::clean(cx, scope, netns, KIND)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let mut interface = self.interface()?;
        if self.master.is_empty() && is_without_ipam(cx) {
            // In a chain, the plugin before this one will make it.
            interface.parent = None;
        }
        interface::status(cx, &interface)
    }
}

fn is_without_ipam(cx: &Context<'_>) -> bool {
    cx.request.conf.ipam.kind.is_empty()
}

impl Ipvlan {
    fn interface(&self) -> Result<NewInterface<'_>> {
        Ok(NewInterface {
            kind: KIND,
            needs: "CONFIG_IPVLAN (module ipvlan)",
            properties: vec![
                property("mode", &self.mode, IFLA_IPVLAN_MODE, MODES)?,
                property("flag", &self.flag, IFLA_IPVLAN_FLAGS, FLAGS)?,
            ],
            mtu: self.mtu,
            mac: None,
            parent: Some(parent::Wanted {
                master: &self.master,
                in_container: self.link_in_container,
                // Nor does the reference look.
                limits_mtu: false,
                must_be_up: false,
                takes_frames: true,
            }),
        })
    }
}

/// The kernel's number of a word. The first of `words` is the default.
fn property(key: &str, word: &str, attribute: u16, words: &[(&str, u16)]) -> Result<Property> {
    let word = if word.is_empty() { words[0].0 } else { word };
    match words.iter().find(|(known, _)| *known == word) {
        Some((_, number)) => Ok(Property {
            what: format!("{key} {word}"),
            attribute,
            value: number.to_ne_bytes().into(),
        }),
        None => Err(Error::config(format!("unknown ipvlan {key} {word:?}"))),
    }
}
