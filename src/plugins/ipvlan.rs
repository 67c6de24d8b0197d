//! `ipvlan`: an interface on a link of the host that shares the link's MAC address and has IP addresses of its own, for
//! networks that allow one MAC address per port (clouds, Wi-Fi).
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "lan", "type": "ipvlan", "master": "eth0", "mode": "l3", "flag": "private",
//!   "ipam": { "type": "host-local", "subnet": "192.168.1.0/24", "routes": [ { "dst": "0.0.0.0/0" } ] }
//! }
//! ```
//!
//! - `master`: the link. Without, the one that the previous plugin of the chain made; without a chain, the one of the
//!   default route. With `linkInContainer` a link of the container.
//! - `mode`: `l2` (default; the container is in the link's network), `l3` (the host's side routes for it, without
//!   broadcasts), `l3s` (the same, and netfilter of the host sees its packets).
//! - `flag`: `bridge` (default; such interfaces on one link reach each other), `private` (they do not), `vepa` (they do
//!   if the switch sends frames back). Not in the reference.
//! - `mtu`: by default the link's. In mode `l3` it may be larger, since the host's side fragments.
//!
//! Mode and flag belong to the link: the latest ADD decides for all of its interfaces, and their CHECK will tell.
//!
//! Without `ipam` it takes the addresses and routes of the previous plugin's result; without these it has none.
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

/// One of several words, by default the first, as the kernel numbers them.
fn property(key: &str, word: &str, attribute: u16, words: &[(&str, u16)]) -> Result<Property> {
    let word = if word.is_empty() { words[0].0 } else { word };
    match words.iter().find(|(known, _)| *known == word) {
        Some((_, number)) => Ok(Property {
            what: format!("{key} {word}"),
            attribute,
            value: number.to_ne_bytes().into(),
        }),
        None => Err(Error::config(format!("{key}: unknown ipvlan {key} {word:?}"))),
    }
}
