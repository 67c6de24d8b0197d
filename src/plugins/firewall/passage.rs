//! The rules of a host as they are after an ADD, for `cnibox doctor`. ADD adds its rules at fixed positions: rules before them
//! can drop packets that the plugin would accept.

use std::ffi::OsStr;

use super::firewalld;
use super::{Accept, Backend, Firewall, Firewalld, Mark, forward};
use crate::cni::json::Json;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{Chain, Field, Nft, Program, Table};

/// The rules that ADD adds to accept the packets of its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Rules in the table of iptables-nft, after those of this chain of the administrator. They accept packets with this bit of
    /// the mark. Packets to published ports have it, too, if `accepts_published` is true.
    Forward { admin_chain: String, mark_bit: u8, accepts_published: bool },
    /// Sources of this zone of firewalld.
    Zone(String),
}

/// Whether the container is the source or the destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Source,
    Destination,
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
                admin_chain: settings.accept.admin_chain.into(),
                mark_bit: settings.accept.mark.bit,
                accepts_published: settings.accept.mark.accepts_published,
            },
        }))
    }
}

/// A copy of the rules of a table, as packets from or to a container pass them after its ADD. Without a passage, ADD adds no
/// rules. `table` is `None` for the table of iptables-legacy, which ADD does not change.
pub fn passed(
    program: &Program,
    table: Option<Table<'_>>,
    passage: Option<&Passage>,
    end: End,
) -> Result<Program> {
    let mut program = program.clone();
    if let (Some(Passage::Zone(zone)), End::Source) = (passage, end) {
        firewalld::add_to_program(&mut program, zone);
    }
    let Some(family) = table.and_then(family_of_iptables) else { return Ok(program) };
    program.add_chain(forward::FORWARD);
    let mut known = None;
    if let Some(Passage::Forward { admin_chain, mark_bit, accepts_published }) = passage {
        let mark = Mark { bit: *mark_bit, accepts_published: *accepts_published };
        forward::add_to_program(&mut program, family, &Accept { admin_chain, mark })?;
        let [source, destination] = Field::addresses(family);
        known = Some(if end == End::Source { source } else { destination });
    }
    forward::resolve(&mut program, family, known);
    if let (Some(Passage::Forward { accepts_published: true, .. }), End::Destination) =
        (passage, end)
    {
        forward::add_published(&mut program);
    }
    Ok(program)
}

/// Fails with code 7 if a rule of another program uses this bit of the packet mark.
pub fn check_mark(nft: &Nft, bit: u8) -> Result<()> {
    Mark { bit, accepts_published: false }.check_unused(nft, &forward::is_accept)
}

/// The base chain that ADD adds to a table with these chains: FORWARD of iptables, if it is missing. Its policy is accept.
pub fn chain_of_add(table: Table<'_>, chains: &[&Chain]) -> Option<&'static str> {
    let is_there = chains.iter().any(|chain| chain.name == forward::FORWARD);
    family_of_iptables(table).filter(|_| !is_there).map(|_| forward::FORWARD)
}

/// The family of the table of iptables-nft; `None` for another table.
fn family_of_iptables(table: Table<'_>) -> Option<IpFamily> {
    IpFamily::ALL.into_iter().find(|family| table == forward::table(*family))
}
