//! Finds rules of other programs that use the bit of the packet mark with which `firewall` accepts packets.

use std::collections::BTreeSet;

use crate::error::{Code, Result};
use crate::netlink::nft::Nft;
use crate::plugins::firewall::passage::{self, Passage};

use super::finding::{Findings, Harm, quoted};
use super::host::Host;

pub(super) fn marks(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let Some(nft) = Nft::open_if_supported()? else { return Ok(()) };
    let mut seen = BTreeSet::new();
    for network in &host.networks {
        let Ok(Some(Passage::Forward { mark_bit, .. })) = network.passage else { continue };
        if !seen.insert(mark_bit) {
            continue;
        }
        match passage::check_mark(&nft, mark_bit) {
            Err(error) if error.code == Code::INVALID_CONFIG => found.add(
                Harm::Broken,
                format_args!("network {}: {error}", network.network.name),
                "ADD fails, or a packet with the bit of the one program is taken for that of the other.",
                format_args!("set markAcceptBit in {}", quoted(network.network.file.display())),
            ),
            checked => checked?,
        }
    }
    Ok(())
}
