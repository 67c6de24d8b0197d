//! `dummy`: an interface without a link to anything. Its addresses serve programs in the container.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "vips", "type": "dummy", "ipam": { "type": "host-local", "subnet": "10.5.0.0/24" } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `mtu` | integer | kernel's | MTU in bytes; at least 1280 with IPv6. The reference ignores it. |
//! | `mac` | string | random | MAC address of the interface. The three keys below override it. The reference ignores it. |
//! | `runtimeConfig.mac` | string | value of `mac` | MAC address from the runtime (capability `mac`). |
//! | `args.cni.mac` | string | value of `mac` | The same, if `runtimeConfig.mac` is not set. |
//! | `CNI_ARGS: MAC` | string | value of `mac` | The same, if neither of them is set. |
//!
//! `ipam` is required.
//!
//! - **ADD** makes the interface in the container and configures it.
//! - **CHECK** calls the CHECK of the IPAM plugin. It compares kind and `mtu` with the configuration, and the MAC
//!   address, addresses and routes with `prevResult`.
//! - **DEL** removes the interface, if it is of this kind, and releases the addresses.
//! - **GC** releases the addresses of attachments that are not valid. The kernel removes an interface with its
//!   namespace.
//! - **STATUS** fails if the kernel lacks this kind of link, or if the IPAM plugin fails.

use crate::cni::json::keys;
use crate::error::{Error, Result};
use crate::plugin::{Context, Entry};
use crate::steps::link::interface::{self, NewInterface, SingleLink};

pub const ENTRY: Entry = Entry {
    is_in_container: true,
    leaves_owned: true,
    leaves_links: Some("dummy"),
    probes: &[("", r#""ipam":{"type":"static","addresses":[{"address":"10.0.0.1/32"}]}"#)],
    ignored_by_reference: &["mtu", "mac"],
    unreadable: Some("failed to parse network config"),
    ..Entry::plugin::<Dummy>("dummy", "an interface for addresses only, without a connection")
};

keys! {
    pub struct Dummy {
        "mtu" => mtu: i64,
        "mac" => mac: String,
    }
}

impl SingleLink for Dummy {
    const KIND: &'static str = "dummy";

    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>> {
        if cx.request.conf.ipam.kind.is_empty() {
            return Err(Error::config("dummy interface requires an IPAM configuration"));
        }
        Ok(NewInterface {
            kind: Self::KIND,
            option: "CONFIG_DUMMY",
            properties: Vec::new(),
            mtu: self.mtu,
            mtu_range: 1..=i32::MAX.unsigned_abs(),
            mac: interface::requested_mac(cx, &self.mac)?,
            parent: None,
            uses_prev_result: false,
        })
    }
}
