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
//! | `master` | string | required | Link that carries the VLAN. It must be up. |
//! | `vlanId` | integer | 0 | VLAN id, 0 to 4094. A master has one interface per id; a second ADD fails. |
//! | `mtu` | integer | MTU of the master | MTU in bytes, at most that of the master. |
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
//!   large, or if the IPAM plugin fails.

use serde::Deserialize;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::link::interface::{self, NewInterface, Property};
use crate::steps::link::parent;

const KIND: &str = "vlan";

/// The attribute (linux/if_link.h), and the largest id that 802.1Q does not reserve.
const IFLA_VLAN_ID: u16 = 1;
const ID_MAX: u16 = 4094;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Vlan {
    master: String,
    vlan_id: i64,
    mtu: i64,
    link_in_container: bool,
}

impl Plugin for Vlan {
    const UNREADABLE: &'static str = "failed to load netconf";

    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        interface::examine(cx, &self.interface()?)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        interface::add(cx, at, netns, &self.interface()?, None)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        interface::check(cx, at, &self.interface()?)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::clean(cx, scope, netns, KIND)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        interface::status(cx, &self.interface()?)
    }
}

impl Vlan {
    fn interface(&self) -> Result<NewInterface<'_>> {
        if self.master.is_empty() {
            return Err(Error::config(
                "\"master\" field is required: the interface that the VLAN is on",
            ));
        }
        let id = u16::try_from(self.vlan_id).ok().filter(|id| *id <= ID_MAX).ok_or_else(|| {
            let id = self.vlan_id;
            Error::config(format!("invalid VLAN ID {id}, must be [0, {ID_MAX}]"))
        })?;
        Ok(NewInterface {
            kind: KIND,
            needs: "CONFIG_VLAN_8021Q (module 8021q)",
            properties: vec![Property {
                what: format!("VLAN id {id}"),
                attribute: IFLA_VLAN_ID,
                value: id.to_ne_bytes().into(),
            }],
            mtu: self.mtu,
            mac: None,
            parent: Some(parent::Wanted {
                master: &self.master,
                in_container: self.link_in_container,
                limits_mtu: true,
                must_be_up: true,
                takes_frames: false,
            }),
        })
    }
}
