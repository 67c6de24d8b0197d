//! `cnibox oci-hook`: attaches the containers of an OCI runtime, such as runc, to networks without a container manager.
//!
//! Source: OCI runtime specification 1.2, "State" and "POSIX-platform Hooks".

use std::io;

use argh::{ArgsInfo, FromArgs};

use crate::cni::json::{Json, keys};
use crate::cni::request::INPUT_BYTES_MAX;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::ContainerId;

use super::parameters::{self, AddOptions, TIMEOUT_S};

/// Attach a container when it is created, and detach it when it has stopped. An OCI runtime calls this as a hook, with
/// the container's state on stdin.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "oci-hook",
    help_triggers("-h", "--help", "help"),
    note = "Hooks: createRuntime and poststop. Annotations: cnibox.networks (NETWORK[:IFNAME],...), cnibox.ports (as -p), \
            cnibox.ip, cnibox.mac."
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
        "cnibox.mac" => mac: String,
    }
}

impl OciHook {
    pub(super) fn run(&self) -> Result<u8> {
        let bytes = file::read_to_end(io::stdin(), INPUT_BYTES_MAX)
            .map_err(|error| Error::internal(format_args!("cannot read the state: {error}")))?;
        let state: State = Json::parse(&bytes)?.read("the state of the container")?;
        let runtime = parameters::runtime(self.timeout);
        let id = ContainerId::new(state.id)?;
        match state.status.as_str() {
            "creating" | "created" => {
                let Annotations { networks, ports, ip, mac } = &state.annotations;
                let (publish, ip, networks) = (items(ports), items(ip), items(networks));
                let mac = Some(mac.as_str()).filter(|mac| !mac.is_empty());
                let options = AddOptions { publish: &publish, ip: &ip, mac };
                networks.iter().try_for_each(|network| refuse_path(network))?;
                let wanted = super::run::requested_attachments(&runtime, &id, &networks, &options)?;
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

/// The items of a list that are separated by commas.
fn items(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}
