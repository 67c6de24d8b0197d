//! `cnibox run` and `exec`: commands in network namespaces.

use std::ffi::OsString;
use std::path::Path;

use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::launch::Launch;
use crate::kernel::netns::NetNs;
use crate::kernel::sandbox;
use crate::kernel::sys::{self, warning};
use crate::names::ContainerId;
use crate::runtime::container_id_of;
use crate::runtime::group::{self, Wanted};
use crate::runtime::lifecycle::Runtime;
use crate::runtime::named::Purpose;

use super::call::Call;
use super::parameters::{self, TIMEOUT_S, Wishes, not_understood};

/// Where state is; without privileges a private and empty one.
const STATE: [&str; 2] = ["/run", "/var/lib"];

/// `cnibox run`.
pub(super) fn run(call: &Call<'_>) -> Result<u8> {
    let words = command(call.words, call.operands.len())?;
    sys::catch_interrupts();
    let runtime = parameters::runtime(call.plugins, call.timeout_s);
    let named = call.value("--name").map(parameters::named).transpose()?;
    let container_id = match &named {
        Some(path) => container_id_of(path)?,
        None => ContainerId::new(format!("run-{}", std::process::id()))?,
    };
    let publish = call.values("--publish");
    let wishes = Wishes { publish: &publish, ip: &[], mac: None };
    let networks = call.values("--network");
    let wanted = parameters::wanted(&runtime, &container_id, &networks, &wishes)?;
    let missing = sandbox::missing_capabilities();
    let (mut hidden, mut directory) = (&[][..], runtime.state());
    if !missing.is_empty() {
        enter_private_host(&wanted, named.is_some(), &missing.join(" and "))?;
        (hidden, directory) = (&STATE[..], Path::new("/tmp"));
    }
    let hostname = call.value("--hostname");
    let launch = |netns: &NetNs, results: &[Success]| {
        let resolv_conf = group::resolv_conf(results);
        Launch { netns, words, resolv_conf, directory, hostname, hidden }.run()
    };
    let Some(path) = named else {
        let netns = NetNs::own()?.make()?;
        sandbox::raise_loopback(&netns)?;
        return attached(&runtime, &wanted, &netns, &launch);
    };
    let (netns, _lock) = runtime.make_namespace(&path, Purpose::Command)?;
    let code = attached(&runtime, &wanted, &netns, &launch);
    match (code, sandbox::remove_namespace(&path)) {
        (code, Ok(())) => code,
        (Ok(_), Err(error)) => Err(error),
        (Err(error), removed) => Err(error.and(removed)),
    }
}

/// Without privileges, the networks of this process begin and end in namespaces of its own.
fn enter_private_host(wanted: &[Wanted], has_name: bool, missing: &str) -> Result<()> {
    if has_name {
        let msg = format!("cannot create a named network namespace without {missing}");
        return Err(Error::internal(msg));
    }
    for network in wanted.iter().map(|wanted| &wanted.network) {
        if let Some(kind) = network.host_plugin() {
            let msg = format!("cannot attach to network {} without {missing}", network.name);
            return Err(Error::internal(msg)
                .with_details(format!("plugin {kind} needs the network of the host")));
        }
    }
    sandbox::enter_as_root()?;
    STATE.iter().try_for_each(|directory| sandbox::mount_memory(Path::new(directory)))
}

/// Attaches the namespace while `launch` runs.
fn attached(
    runtime: &Runtime,
    wanted: &[Wanted],
    netns: &NetNs,
    launch: &dyn Fn(&NetNs, &[Success]) -> Result<u8>,
) -> Result<u8> {
    let results = runtime.attach(wanted, netns.path())?;
    let code = launch(netns, &results);
    sys::forget_interrupt();
    match (code, runtime.detach(&group::attached(wanted), Some(netns.path()))) {
        (code, Ok(())) => code,
        (Err(error), undone) => Err(error.and(undone)),
        (Ok(0), Err(undo)) => Err(undo),
        (Ok(code), Err(undo)) => {
            warning(format_args!("cnibox: {undo}"));
            Ok(code)
        }
    }
}

/// `cnibox exec`.
pub(super) fn exec(call: &Call<'_>) -> Result<u8> {
    let words = command(call.words, call.operands.len() - 1)?;
    let target = &call.operands[0];
    let runtime = parameters::runtime(call.plugins, TIMEOUT_S);
    let own = NetNs::own()?;
    let mut path = parameters::netns(target)?;
    let entries = runtime.entries()?;
    if !own.is_at(&path)? {
        let of_id = entries.iter().find(|it| *it.at.container_id == **target);
        path = of_id.map_or(path, |entry| entry.netns.clone());
    }
    let netns = own.open(&path)?;
    let mut results: Vec<Success> = Vec::new();
    for entry in &entries {
        if is_same(&own, &entry.netns, &netns)
            && let Some(success) = entry.success()?
        {
            results.push(success);
        }
    }
    let resolv_conf = group::resolv_conf(&results);
    let directory = runtime.state();
    let (netns, hidden) = (&netns, &[][..]);
    Launch { netns, words, resolv_conf, directory, hostname: None, hidden }.exec()
}

fn is_same(own: &NetNs, path: &Path, netns: &NetNs) -> bool {
    let other = own.open_if_exists(path).ok().flatten();
    other.is_some_and(|other| other.is(netns) == Ok(true))
}

/// The last arguments, as they were given: they need not be UTF-8.
fn command(words: &[OsString], count: usize) -> Result<&[OsString]> {
    match words.len().checked_sub(count).map(|start| &words[start..]) {
        Some(command) if !command.is_empty() => Ok(command),
        _ => Err(not_understood("the command is missing")),
    }
}
