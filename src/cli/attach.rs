//! `cnibox add`, `check`, `del` and `status`: a container runtime by hand, with cnitool's words.

use std::path::{Path, PathBuf};

use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::sandbox;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName};
use crate::runtime::conf::Network;
use crate::runtime::container_id_of;
use crate::runtime::lifecycle::{Choice, Runtime, Target};
use crate::runtime::named::Purpose;

use super::call::Call;
use super::parameters::{self, Wishes, not_understood};

const IFNAME: &str = "eth0";

/// The parameters of the environment and the namespace of a call.
struct Given {
    runtime: Runtime,
    args: String,
    capability_args: Json,
}

impl Given {
    fn of(call: &Call<'_>) -> Result<Self> {
        let runtime = parameters::runtime(call.plugins, call.timeout_s);
        let (args, capability_args) = (parameters::cni_args()?, parameters::capability_args()?);
        Ok(Self { runtime, args, capability_args })
    }

    fn target<'a>(&'a self, at: &'a Attachment, netns: Option<&'a Path>) -> Target<'a> {
        Target { at, netns, args: &self.args, capability_args: &self.capability_args }
    }
}

/// The path of a namespace: with a name if it is to be made or removed.
fn path_of(netns: &str, must_be_named: bool) -> Result<PathBuf> {
    if must_be_named { parameters::named(netns) } else { parameters::netns(netns) }
}

/// `cnibox add`.
pub(super) fn add(call: &Call<'_>) -> Result<u8> {
    let creates = call.has("--create");
    let path = path_of(&call.operands[1], creates)?;
    let at = attachment(call, &path)?;
    let mut given = Given::of(call)?;
    let network = find(&given.runtime, &call.operands[0])?;
    let (publish, ip) = (call.values("--publish"), call.values("--ip"));
    let wishes = Wishes { publish: &publish, ip: &ip, mac: call.value("--mac") };
    wishes.apply(&network, &mut given.args, &mut given.capability_args)?;
    // The namespace stays when this value is dropped.
    let _made = match creates {
        true => Some(given.runtime.make_namespace(&path, Purpose::Attachment)?),
        false => None,
    };
    let added = add_and_print(&given, &network, &given.target(&at, Some(&path)));
    match added {
        Ok(()) => Ok(0),
        Err(error) if creates => Err(error.and(sandbox::remove_namespace(&path))),
        Err(error) => Err(error),
    }
}

fn add_and_print(given: &Given, network: &Network, target: &Target<'_>) -> Result<()> {
    let added = given.runtime.add(network, target)?;
    match sys::write_all(sys::stdout(), (added.result.to_pretty() + "\n").as_bytes()) {
        Ok(()) => added.keep(),
        Err(error) => Err(added.undo_after(super::cannot_write(&error))),
    }
}

/// `cnibox check`.
pub(super) fn check(call: &Call<'_>) -> Result<u8> {
    let path = parameters::netns(&call.operands[1])?;
    let at = attachment(call, &path)?;
    let given = Given::of(call)?;
    let choice = parameters::choice(&call.operands[0])?;
    given.runtime.check(&choice, &given.target(&at, Some(&path))).map(|()| 0)
}

/// `cnibox del`.
pub(super) fn del(call: &Call<'_>) -> Result<u8> {
    let (network, netns) = parameters::network_and_netns(&call.operands)?;
    let deletes = call.has("--delete");
    if deletes && netns.is_none() {
        return Err(not_understood("--delete needs NETNS"));
    }
    let path = netns.map(|netns| path_of(netns, deletes)).transpose()?;
    let given = Given::of(call)?;
    let choice = network.map(parameters::choice).transpose()?;
    let attached = match (call.value("--container-id"), &choice, &path) {
        (Some(id), choice, None) => {
            let name = parameters::ifname(call.value("--ifname"))?;
            let name = name.map(ifname).transpose()?;
            given.runtime.attachments_of(&container_id(id)?, choice.as_ref(), name.as_ref())?
        }
        (_, Some(choice), Some(path)) => vec![(choice.name().clone(), attachment(call, path)?)],
        _ => return Err(not_understood("NETWORK and NETNS, or --container-id, are missing")),
    };
    let mut errors = Vec::new();
    for (name, at) in attached {
        let target = given.target(&at, path.as_deref());
        let named = Choice::Named(name);
        errors.extend(given.runtime.del(choice.as_ref().unwrap_or(&named), &target).err());
    }
    Error::joined(errors)?;
    match path {
        Some(path) if deletes => sandbox::remove_namespace(&path)?,
        _ => {}
    }
    Ok(0)
}

/// `cnibox status`.
pub(super) fn status(call: &Call<'_>) -> Result<u8> {
    let runtime = parameters::runtime(call.plugins, call.timeout_s);
    runtime.status(&find(&runtime, &call.operands[0])?).map(|()| 0)
}

/// The network of an argument. Each broken file in front of it is a line on stderr.
pub(super) fn find(runtime: &Runtime, network: &str) -> Result<Network> {
    match parameters::choice(network)? {
        Choice::Given(network) => Ok(network),
        Choice::Named(name) => {
            let warn = &mut |error: &Error| sys::warning(format_args!("warning: {error}"));
            Network::find(&name, &runtime.configurations, warn)
        }
    }
}

fn attachment(call: &Call<'_>, path: &Path) -> Result<Attachment> {
    let name = parameters::ifname(call.value("--ifname"))?.unwrap_or_else(|| IFNAME.into());
    let container_id = match call.value("--container-id") {
        Some(id) => container_id(id)?,
        None => container_id_of(path)?,
    };
    Ok(Attachment { container_id, ifname: ifname(name)? })
}

fn container_id(id: &str) -> Result<ContainerId> {
    ContainerId::new(id).map_err(invalid)
}

fn ifname(name: String) -> Result<IfName> {
    IfName::new(name).map_err(invalid)
}

/// An argument that is not valid.
pub(super) fn invalid(error: Error) -> Error {
    not_understood(error.to_string())
}
