//! `cnibox oci-hook`: networks for containers of an OCI runtime that no manager started.
//!
//! Source: OCI runtime specification 1.2, "State" and "POSIX-platform Hooks".

use argh::FromArgs;

use crate::cni::json::Json;
use crate::cni::request::INPUT_BYTES_MAX;
use crate::error::{Error, Result};
use crate::kernel::{file, sys};
use crate::names::ContainerId;
use crate::plugin::Entry;

use super::parameters::{self, TIMEOUT_S, Wishes};

/// Attach a container when it is created, and detach it when it has stopped. An OCI runtime calls this as a hook, with
/// the container's state on stdin.
#[derive(FromArgs)]
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

impl OciHook {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let bytes = file::read_to_end(sys::Stdin, INPUT_BYTES_MAX)
            .map_err(|error| Error::internal(format_args!("cannot read the state: {error}")))?;
        let state = Json::parse(&bytes)
            .map_err(|error| error.context("cannot read the state of the container"))?;
        let runtime = parameters::runtime(plugins, self.timeout);
        let id = ContainerId::new(text(&state, "id")?)?;
        match text(&state, "status")? {
            "creating" | "created" => {
                let annotations = state.get("annotations").unwrap_or(&Json::Null);
                let publish = words(annotations, "cnibox.ports")?;
                let ip = words(annotations, "cnibox.ip")?;
                let mac = Some(text(annotations, "cnibox.mac")?).filter(|mac| !mac.is_empty());
                let wishes = Wishes { publish: &publish, ip: &ip, mac };
                let networks = words(annotations, "cnibox.networks")?;
                networks.iter().try_for_each(|network| named(network))?;
                let wanted = super::run::wanted(&runtime, &id, &networks, &wishes)?;
                let pid = match state.get("pid") {
                    Some(Json::Number(pid)) => pid.to_string().parse::<u32>().ok(),
                    _ => None,
                };
                let no_pid = || Error::config("the state of the container has no pid");
                let pid = pid.filter(|pid| *pid > 0).ok_or_else(no_pid)?.to_string();
                runtime.attach(&wanted, &parameters::netns(&pid)?)?;
            }
            "stopped" => {
                let attached = runtime.attachments_of(&id, None, None)?;
                runtime.detach(&attached, None)?;
            }
            status => {
                return Err(Error::config(format_args!("cannot handle status {status:?}"))
                    .with_details("the hooks are createRuntime and poststop"));
            }
        }
        Ok(0)
    }
}

/// An annotation names a network of the host, never a file: the author of an image or a pod can write annotations, and a
/// configuration decides which programs and files of the host are used.
fn named(network: &str) -> Result<()> {
    if !network.contains('/') {
        return Ok(());
    }
    let msg = format!("cnibox.networks: {network:?} is not the name of a network");
    Err(Error::config(msg).with_details("an annotation cannot name a file"))
}

/// The words of a list with commas.
fn words(annotations: &Json, key: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for word in text(annotations, key)?.split(',') {
        let word = word.trim();
        if !word.is_empty() {
            words.push(word.to_owned());
        }
    }
    Ok(words)
}

/// A string of an object; empty if it is missing.
fn text<'a>(json: &'a Json, key: &str) -> Result<&'a str> {
    match json.get(key) {
        None => Ok(""),
        Some(Json::String(text)) => Ok(text),
        Some(_) => Err(Error::config(format_args!("{key}: not a string"))),
    }
}
