//! The networks that no file of NETCONFPATH configures, for the commands that list, compare and explain networks.

#[cfg(feature = "netavark")]
pub(super) mod list;
#[cfg(feature = "netavark")]
pub(super) mod object;

use crate::error::{Error, Result};
use crate::names::NetworkName;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::lifecycle::Choice;

use super::parameters;
use super::similar::hint;

/// The runtime with the networks that no file of NETCONFPATH configures: those of podman's driver, and those of attachments in
/// the cache.
pub(super) fn runtime(timeout_s: u64) -> Runtime {
    let mut runtime = parameters::runtime(timeout_s);
    // The command that uses the runtime reports what cannot be read.
    let configured = Network::all(&runtime.configurations).unwrap_or_default();
    let mut known: Vec<NetworkName> =
        configured.into_iter().flatten().map(|network| network.name).collect();
    #[cfg(feature = "netavark")]
    for network in list::of_podman(&runtime) {
        if !known.contains(&network.name) {
            runtime.others.push(network);
        }
    }
    known.extend(runtime.others.iter().map(|network| network.name.clone()));
    runtime.others.extend(runtime.networks_of_cache(&known).unwrap_or_default());
    runtime
}

/// Fails if no network has the chosen name. If a file cannot be read, each name can be that of a network.
pub(super) fn require_known(choice: Option<&Choice>) -> Result<()> {
    let Some(Choice::Named(name)) = choice else { return Ok(()) };
    match runtime(parameters::TIMEOUT_S).known_names() {
        Ok(known) if !known.contains(name) => {
            let known: Vec<&str> = known.iter().map(|known| &**known).collect();
            Err(Error::config(format_args!("there is no network {name}{}", hint(name, &known))))
        }
        _ => Ok(()),
    }
}

/// Whether an argument names a network, or can be the name of one.
pub(super) fn is_network(argument: &str) -> bool {
    parameters::choice(argument).is_ok_and(|choice| require_known(Some(&choice)).is_ok())
}
