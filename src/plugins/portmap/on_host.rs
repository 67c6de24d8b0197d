//! What an ADD would find on the host, for `cnibox explain`, which does the ADD in a copy of the host: ports of other containers, and
//! those on which a program of the host waits.

use super::bindings::PortBindings;
use super::shadowed::{self, HostPorts, Shadowed};
use super::{Portmap, container_address};
use crate::attachments::life;
use crate::attachments::owner::Owner;
use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::error::Result;
use crate::names::{Attachment, IpFamily, NetworkName};
use crate::netlink::nft::Nft;
use crate::rules::shared_rules;

/// Fails as the ADD would fail in the network namespace of this thread: a port is taken. Returns what its warning names: a port on
/// which a program waits. `config` is the configuration of the ADD, and `result` that of the plugin before.
pub fn examine(
    config: &Json,
    network: &NetworkName,
    at: &Attachment,
    result: &Success,
) -> Result<Option<Shadowed>> {
    let settings = config.read::<Portmap>("the plugin portmap")?.settings()?;
    let owner = shared_rules::comment(&Owner::new(network, at))?;
    let addresses: Vec<_> = IpFamily::ALL
        .into_iter()
        .filter_map(|family| container_address(family, at, result))
        .collect();
    if let Some(nft) = Nft::open_if_supported()? {
        for address in &addresses {
            let bindings = PortBindings::new(&owner, *address, &settings);
            bindings.refuse_of_reference(&nft, network, at)?;
            // An ADD removes those of containers that have ended.
            let owners = bindings.conflicting_owners(&nft)?;
            if owners.iter().any(|owner| !life::has_ended(owner)) {
                bindings.read_existing(&nft)?;
            }
        }
    }
    shadowed::find(&HostPorts::of(&settings.mappings), Some(&at.container_id))
}
