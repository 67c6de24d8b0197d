//! `tap`: an interface in the container for a program that reads and writes its frames: a virtual machine or a VPN.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "vm", "type": "tap", "owner": 107, "group": 107, "multiQueue": true,
//!   "ipam": { "type": "host-local", "subnet": "10.6.0.0/24" } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `multiQueue` | boolean | false | Programs open the interface with several queues. With false they open it with one. |
//! | `mtu` | integer | kernel's | MTU in bytes, 68 to 65521; at least 1280 with IPv6. |
//! | `mac` | string | random | MAC address of the interface. The three keys at the end override it. |
//! | `owner` | integer | none | User id that may open the interface, beside root. |
//! | `group` | integer | none | Group id that may open the interface, beside root. |
//! | `selinuxContext` | string | none | SELinux context of the interface. ADD fails on a host where the context is not valid. |
//! | `bridge` | string | none | Bridge in the container that the interface becomes a port of. |
//! | `runtimeConfig.mac` | string | value of `mac` | MAC address from the runtime (capability `mac`). |
//! | `args.cni.mac` | string | value of `mac` | The same, if `runtimeConfig.mac` is not set. |
//! | `CNI_ARGS: MAC` | string | value of `mac` | The same, if neither of them is set. |
//!
//! The interface is always made by the same system calls, without the program `ip`. The reference has two implementations with
//! different keys. Each program that opens the interface chooses the frame header (IFF_VNET_HDR, IFF_NO_PI). The interface has
//! no carrier until then.
//!
//! - **ADD** makes the interface, sets its keys, and configures it. The interface is temporary until the last step, so
//!   it ends with the process if ADD is killed.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares kind, persistence, `multiQueue`, `owner`, `group`,
//!   `mtu` and `bridge` with the configuration, and the MAC address, addresses and routes with `prevResult`.
//! - **DEL** removes the interface, if it is of this kind, and releases the addresses.
//! - **GC** releases the addresses of attachments that are not valid. The kernel removes an interface with its
//!   namespace.
//! - **STATUS** fails if `/dev/net/tun` cannot be opened, or if the IPAM plugin fails.

use std::ops::RangeInclusive;

use crate::attachments::owner::Owner;
use crate::cni::json::keys;
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::tun::{self, NewTap};
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, LinkChange, LinkProperty, Rtnl};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::delegate;
use crate::steps::link::inside;
use crate::steps::link::interface::{self, NewInterface, Property};
use crate::steps::link::routes;
use crate::steps::undo::Undo;

/// The link kind in the kernel. It is the same for tap (frames) and tun (packets).
const KIND: &str = "tun";

/// The MTUs of a tap (MIN_MTU and MAX_MTU in drivers/net/tun.c, the latter without the Ethernet header).
const MTU_RANGE: RangeInclusive<u32> = 68..=65_521;

/// The type of a tap (linux/if_tun.h).
const IFF_TAP: u8 = 2;

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_links: Some("tun"),
    probes: &[("", "")],
    ..Entry::plugin::<Tap>(
        "tap",
        "an interface that a program reads and writes, for example a virtual machine",
    )
};

keys! {
    pub struct Tap {
        "multiQueue" => multi_queue: bool,
        "mtu" => mtu: i64,
        "mac" => mac: String,
        "owner" => owner: Option<u32>,
        "group" => group: Option<u32>,
        "selinuxContext" => selinux_context: String,
        "bridge" => bridge: String,
    }
}

impl Plugin for Tap {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        interface::examine(cx, &self.interface(cx)?)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let new = self.interface(cx)?;
        let (mtu, mac) = (interface::valid_mtu(cx, &new, None)?, new.mac);
        let container = cx.session.container()?;
        let master = self.find_bridge(container)?.map(|bridge| bridge.index);
        let tap = netns.run(|| {
            tun::Tap::create(&NewTap {
                name: &at.ifname,
                owner: self.owner,
                group: self.group,
                multi_queue: self.multi_queue,
                selinux_context: &self.selinux_context,
            })
        })?;
        let mut link = container.link(&at.ifname)?.ok_or_else(|| {
            Error::internal(format_args!("cannot find the new interface {}", at.ifname))
        })?;
        let up = delegate::ipam_needs_link(cx).then_some(true);
        let change = LinkChange { mac, mtu, master, up, ..LinkChange::default() };
        container.change_link(link.index, &at.ifname, &change)?;

        let mut undo = Undo::new(cx);
        // The interface exists before the call of the IPAM plugin, because `dhcp` needs it.
        let success = delegate::add_ipam(cx, at, None, &mut undo)?;
        let alias = Owner::new(&cx.request.network, at).alias();
        link.mac = mac.or(link.mac);
        routes::undo_rejecting(cx, &success, &mut undo)?;
        let success = interface::configure(cx, at, &link, success, Some(&alias))?;
        tap.keep()?;
        undo.keep();
        Ok(success)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        interface::check(cx, at, &self.interface(cx)?)?;
        let container = cx.session.container()?;
        let Some(bridge) = self.find_bridge(container)? else { return Ok(()) };
        match container.link(&at.ifname)? {
            Some(link) if link.master == Some(bridge.index) => Ok(()),
            _ => Err(Error::internal(format_args!(
                "interface {} is not a port of bridge {}",
                at.ifname, bridge.name
            ))),
        }
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        inside::reconcile(cx, at, parts)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        interface::clean(cx, scope, netns, KIND)
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        tun::open().map_err(Error::into_not_available)?;
        interface::valid_mtu(cx, &self.interface(cx)?, None)?;
        delegate::call_ipam(cx, &Verb::Status)
    }
}

impl Tap {
    /// The properties that CHECK compares. The frame format is not among them: each program chooses it.
    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>> {
        let property = |title: &str, value| Property { title: title.into(), value };
        let id = |key: &str, id: u32, value| property(&format!("{key} {id}"), value);
        let mut properties = vec![
            property("mode tap", LinkProperty::TunType(IFF_TAP)),
            property("persistence", LinkProperty::TunPersistent(true)),
            property(
                "the multiQueue of its configuration",
                LinkProperty::TunMultiQueue(self.multi_queue),
            ),
        ];
        properties.extend(self.owner.map(|uid| id("owner", uid, LinkProperty::TunOwner(uid))));
        properties.extend(self.group.map(|gid| id("group", gid, LinkProperty::TunGroup(gid))));
        Ok(NewInterface {
            kind: KIND,
            option: "CONFIG_TUN",
            properties,
            mtu: self.mtu,
            mtu_range: MTU_RANGE,
            mac: interface::requested_mac(cx, &self.mac)?,
            parent: None,
            uses_prev_result: false,
        })
    }

    fn find_bridge(&self, container: &Rtnl) -> Result<Option<Link>> {
        let name = self.bridge.as_str();
        if name.is_empty() {
            return Ok(None);
        }
        match container.link(name)? {
            Some(link) if link.kind.as_deref() == Some("bridge") => Ok(Some(link)),
            Some(_) => Err(Error::config(format_args!("bridge: interface {name} is not a bridge"))),
            None => Err(Error::config(format_args!(
                "bridge: interface {name} not found in the container"
            ))),
        }
    }
}
