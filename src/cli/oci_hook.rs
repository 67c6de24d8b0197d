//! `cnibox oci-hook`: attaches the containers of an OCI runtime, such as runc, to networks without a container manager.
//!
//! Source: OCI runtime specification 1.2, "State" and "POSIX-platform Hooks".

use std::fmt::Display;
use std::str::FromStr;

use argh::{ArgsInfo, FromArgs};

use crate::cni::json::keys;
use crate::error::{Error, Result};
use crate::names::{ContainerId, Mac};

use super::parameters::{self, AddOptions, ContainerNames, TIMEOUT_S};

/// Attach a container when it is created, and detach it when it has stopped. An OCI runtime calls this as a hook, with
/// the container's state on stdin.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "oci-hook",
    help_triggers("-h", "--help", "help"),
    note = "Hooks: createRuntime and poststop. Annotations: cnibox.networks (NETWORK[:IFNAME],...), cnibox.ports (as -p), \
            cnibox.ip, cnibox.mac, cnibox.names (NAME,ALIAS,...)."
)]
pub(super) struct OciHook {
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
}

keys! {
    /// The state of a container, which the OCI runtime writes to the stdin of a hook.
    struct State {
        "id" => id: String,
        "status" => status: String,
        "pid" => pid: u32,
        "annotations" => annotations: Annotations,
    }

    struct Annotations {
        "cnibox.networks" => networks: String,
        "cnibox.ports" => ports: String,
        "cnibox.ip" => ip: String,
        "cnibox.mac" => mac: Option<Mac>,
        /// The first is the name of the container, the others are aliases.
        "cnibox.names" => names: String,
    }
}

impl OciHook {
    pub(super) fn run(&self) -> Result<u8> {
        let state: State = parameters::document("the state")?.read("the state of the container")?;
        let runtime = parameters::runtime(self.timeout);
        let id = ContainerId::new(state.id)?;
        match state.status.as_str() {
            "creating" | "created" => {
                let Annotations { networks, ports, ip, mac, names } = &state.annotations;
                let networks: Vec<String> = items("cnibox.networks", networks)?;
                let (publish, ip) = (&items("cnibox.ports", ports)?, &items("cnibox.ip", ip)?);
                let options = AddOptions { publish, ip, mac: *mac };
                networks.iter().try_for_each(|network| refuse_path(network))?;
                let mut wanted =
                    super::run::requested_attachments(&runtime, &id, &networks, &options)?;
                let names: Vec<String> = items("cnibox.names", names)?;
                let (name, aliases) = names.split_first().unzip();
                let names = ContainerNames {
                    name: name.map(String::as_str),
                    aliases: aliases.unwrap_or_default(),
                };
                names.require_served(&wanted)?;
                wanted.iter_mut().for_each(|new| names.apply(new));
                if state.pid == 0 {
                    return Err(Error::config("the state of the container has no pid"));
                }
                runtime.attach(&wanted, &parameters::netns(&state.pid.to_string())?)?;
            }
            "stopped" => {
                runtime.detach_all(&id, None, None)?;
            }
            status => {
                return Err(Error::config(format_args!("cannot handle status {status:?}"))
                    .with_details("the hooks are createRuntime and poststop"));
            }
        }
        Ok(0)
    }
}

/// Refuses a path in place of the name of a network. The author of an image or a pod can write annotations, and a configuration
/// decides which programs and files of the host are used.
fn refuse_path(network: &str) -> Result<()> {
    if !network.contains('/') {
        return Ok(());
    }
    let msg = format!("cnibox.networks: {network:?} is not the name of a network");
    Err(Error::config(msg).with_details("an annotation cannot name a file"))
}

/// The items of an annotation, which are separated by commas.
fn items<T: FromStr<Err: Display>>(annotation: &str, list: &str) -> Result<Vec<T>> {
    let items = list.split(',').map(str::trim).filter(|item| !item.is_empty());
    let invalid = |item, error| Error::config(format_args!("{annotation}: {item:?}: {error}"));
    items.map(|item| item.parse().map_err(|error| invalid(item, error))).collect()
}
