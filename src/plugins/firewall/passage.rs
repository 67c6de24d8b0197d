//! How the plugin accepts packets, for `cnibox doctor`.

use std::ffi::OsStr;

use super::{Backend, Firewall, Firewalld, Mark, forward};
use crate::cni::json::Json;
use crate::error::Result;
use crate::netlink::nft::Nft;

/// The rules that ADD adds to accept the packets of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// A rule in the table of iptables-nft, which accepts packets with this bit of the mark. Packets to published ports have it,
    /// too, if `accepts_published` is true.
    Forward { mark_bit: u8, accepts_published: bool },
    /// Sources of this zone of firewalld.
    Zone(String),
}

impl Passage {
    /// The rules that ADD adds with this configuration. `None` if ADD refuses the configuration. `bus` is the address of the
    /// system bus.
    pub fn of(plugin: &Json, bus: Option<&OsStr>) -> Result<Option<Self>> {
        let Ok(firewall) = plugin.read::<Firewall>("the plugin firewall") else { return Ok(None) };
        let Ok(settings) = firewall.settings() else { return Ok(None) };
        let uses_firewalld = match settings.backend {
            Backend::Iptables => false,
            // ADD fails if firewalld does not run.
            Backend::Firewalld => true,
            Backend::Any => Backend::Any.choose(Firewalld::find_at(bus)?)?.is_some(),
        };
        Ok(Some(match uses_firewalld {
            true => Self::Zone(firewall.zone().into()),
            false => Self::Forward {
                mark_bit: settings.accept.mark.bit,
                accepts_published: settings.accept.mark.accepts_published,
            },
        }))
    }
}

/// Fails with code 7 if a rule of another program uses this bit of the packet mark.
pub fn check_mark(nft: &Nft, bit: u8) -> Result<()> {
    Mark { bit, accepts_published: false }.check_unused(nft, &forward::is_accept)
}
