//! `dummy`: an interface without a cable. It has addresses that services of the container can listen on.
//!
//! ```json
//! { "cniVersion": "1.1.0", "name": "vips", "type": "dummy", "ipam": { "type": "host-local", "subnet": "10.5.0.0/24" } }
//! ```
//!
//! `ipam` is required. `mtu` and `mac` are as for macvlan; the reference ignores them, and `dns`.
//!
//! DEL removes the interface and releases the addresses. GC releases the addresses of what is not valid; an interface
//! ends with its namespace.

use serde::Deserialize;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::{Context, Plugin, Scope};
use crate::steps::interface::{self, NewInterface};

const KIND: &str = "dummy";

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Dummy {
    mtu: i64,
    mac: String,
}

impl Plugin for Dummy {
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

impl Dummy {
    fn interface(&self, cx: &Context<'_>) -> Result<NewInterface<'_>> {
        if cx.request.conf.ipam.kind.is_empty() {
            return Err(Error::config("dummy interface requires an IPAM configuration"));
        }
        Ok(NewInterface {
            kind: KIND,
            needs: "CONFIG_DUMMY (module dummy)",
            properties: Vec::new(),
            mtu: self.mtu,
            mac: interface::wanted_mac(cx, &self.mac)?,
            parent: None,
        })
    }
}
