//! `cnibox run` and `exec`: run commands in network namespaces.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use argh::{ArgsInfo, FromArgs};

use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::file;
use crate::kernel::launch::Launch;
use crate::kernel::netns::NetNs;
use crate::kernel::sandbox;
use crate::kernel::sys::{self, warn};
use crate::names::{Attachment, ContainerId, IfName, Mac};
use crate::runtime::Runtime;
use crate::runtime::attachments::container_like;
use crate::runtime::container_id_of;
use crate::runtime::lifecycle::NewAttachment;
use crate::runtime::multi_attach;
use crate::runtime::netns_lock::Purpose;

use super::output::usage_error;
use super::parameters::{self, AddOptions, ContainerNames, Published, RequestedIp, TIMEOUT_S};

/// The directories with the state of plugins. Without privileges, a run has empty ones in its mount namespace.
const STATE: [&str; 2] = ["/run", "/var/lib"];

const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The DNS servers that systemd-resolved asks.
const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";

/// Run a command in a new network namespace, attached to networks until the command ends.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "run",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} -n mynet -p 8080:80 -- busybox httpd -f -p 80",
    note = "The exit code is that of the command, or 128 and the number of its signal; 127 if it is not found, 126 if it \
            cannot be executed."
)]
pub(super) struct Run {
    /// a network, and the interface's name if it is not eth0, eth1 and so on: NETWORK[:IFNAME]; may be repeated
    #[argh(option, short = 'n')]
    network: Vec<String>,
    /// publish a port: [IP:]HOST:CONTAINER[/PROTO]; may be repeated
    #[argh(option, short = 'p')]
    publish: Vec<Published>,
    /// publish also a port that a program of the host uses
    #[cfg(feature = "tool")]
    #[argh(switch)]
    force: bool,
    /// the address to request in the first network; may be repeated
    #[argh(option)]
    ip: Vec<RequestedIp>,
    /// the MAC address to request in the first network
    #[argh(option)]
    mac: Option<Mac>,
    /// a DNS server for the command in place of those of the networks; may be repeated
    #[argh(option)]
    dns: Vec<IpAddr>,
    /// the name of the network namespace under /run/netns, for other commands
    #[argh(option)]
    name: Option<String>,
    /// another name by which the containers of a network with names find the command; may be repeated
    #[argh(option)]
    alias: Vec<String>,
    /// the host name that the command sees
    #[argh(option)]
    hostname: Option<String>,
    /// the seconds that an executed plugin may take; 180 if not given
    #[argh(option, default = "TIMEOUT_S")]
    timeout: u64,
    /// the command and its arguments
    #[argh(positional, greedy)]
    command: Vec<String>,
}

/// Run a command in an existing network namespace.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "exec",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} web -- ip addr"
)]
pub(super) struct Exec {
    /// the network namespace: a path, a name under /run/netns, the id of a process, or the beginning of the id of an attached
    /// container
    #[argh(positional)]
    target: String,
    /// the command and its arguments
    #[argh(positional, greedy)]
    command: Vec<String>,
}

impl Run {
    pub(super) fn run(&self) -> Result<u8> {
        let words = &command(self.command.len())?;
        sys::catch_interrupts();
        let runtime = parameters::runtime(self.timeout);
        let named = self.name.as_deref().map(parameters::named_netns).transpose()?;
        let container_id = match &named {
            Some(path) => container_id_of(path)?,
            None => ContainerId::new(format!("run-{}", std::process::id()))?,
        };
        let options = AddOptions { publish: &self.publish, ip: &self.ip, mac: self.mac };
        let mut wanted = requested_attachments(&runtime, &container_id, &self.network, &options)?;
        let name = self.name.as_deref().or(self.hostname.as_deref());
        let names = ContainerNames { name, aliases: &self.alias };
        names.require_served(&wanted)?;
        wanted.iter_mut().for_each(|new| names.apply(new));
        let missing = sandbox::missing_capabilities();
        let (mut hidden, mut directory) = (&[][..], runtime.state.as_path());
        if !missing.is_empty() {
            enter_private_host(&wanted, named.is_some(), &missing.join(" and "))?;
            (hidden, directory) = (&STATE[..], Path::new("/tmp"));
        }
        #[cfg(feature = "tool")]
        if !self.force {
            parameters::refuse_shadowed(&self.publish)?;
        }
        let hostname = self.hostname.as_deref();
        let (netns, lock) = match &named {
            Some(path) => {
                let (netns, lock) = runtime.make_namespace(path, Purpose::Command)?;
                (netns, Some(lock))
            }
            None => {
                let netns = NetNs::own()?.make()?;
                netns.rtnl()?.raise_loopback()?;
                (netns, None)
            }
        };
        let launch = |netns: &NetNs, results: &[Success]| {
            let resolv_conf = match self.dns.as_slice() {
                [] => multi_attach::resolv_conf(results).or_else(|| of_upstream(results)),
                given => {
                    Some(given.iter().map(|server| format!("nameserver {server}\n")).collect())
                }
            };
            // After a SIGKILL of this process, the descendants of the command hold the lock: they can use the namespace from
            // another one.
            let inherited = lock.as_ref().map(|lock| lock.file());
            Launch { netns, words, resolv_conf, directory, hostname, hidden, inherited }.run()
        };
        let code = run_attached(&runtime, &wanted, &netns, &launch);
        let Some(path) = named else { return code };
        match (code, sandbox::remove_namespace(&path)) {
            (code, Ok(())) => code,
            (Ok(_), Err(error)) => Err(error),
            (Err(error), removed) => Err(error.and(removed)),
        }
    }
}

/// The resolv.conf of a command with a network, if the host's has only servers on the loopback of the host, which the command
/// does not reach: that of systemd-resolved with the servers that it asks itself.
fn of_upstream(results: &[Success]) -> Option<String> {
    let servers = |text: &str| -> Vec<IpAddr> {
        let words =
            text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok());
        words.collect()
    };
    let host = file::read_lossy(RESOLV_CONF).ok()?;
    let is_local = !servers(&host).is_empty() && servers(&host).iter().all(IpAddr::is_loopback);
    if results.is_empty() || !is_local {
        return None;
    }
    let upstream = file::read_lossy(UPSTREAM).ok().filter(|text| !servers(text).is_empty());
    match &upstream {
        Some(_) => warn(format_args!("note: the DNS servers are those of {UPSTREAM}")),
        None => warn(format_args!(
            "warning: the command reaches no DNS server: that of {RESOLV_CONF} is on the loopback of the host; \
             --dns sets another one"
        )),
    }
    upstream
}

/// Without privileges: enters new user, mount and network namespaces, in which this process may create networks. The namespaces
/// end with this process.
fn enter_private_host(wanted: &[NewAttachment], has_name: bool, missing: &str) -> Result<()> {
    if has_name {
        let msg = format!("cannot create a named network namespace without {missing}");
        return Err(Error::internal(msg));
    }
    for network in wanted.iter().map(|wanted| &wanted.network) {
        if let Some(kind) = multi_attach::host_plugin(network) {
            let msg = format!("cannot attach to network {} without {missing}", network.name);
            return Err(Error::internal(msg)
                .with_details(format_args!("plugin {kind} needs the network of the host")));
        }
    }
    sandbox::enter_as_root()?;
    STATE.iter().try_for_each(|directory| sandbox::mount_memory(Path::new(directory)))
}

/// Attaches the namespace, runs `launch`, and detaches the namespace.
fn run_attached(
    runtime: &Runtime,
    wanted: &[NewAttachment],
    netns: &NetNs,
    launch: &dyn Fn(&NetNs, &[Success]) -> Result<u8>,
) -> Result<u8> {
    let results = runtime.attach(wanted, netns.path())?;
    let code = launch(netns, &results);
    sys::forget_interrupt();
    match (code, runtime.detach(&multi_attach::attachment_ids(wanted), Some(netns.path()))) {
        (code, Ok(())) => code,
        (Err(error), undone) => Err(error.and(undone)),
        (Ok(0), Err(undo)) => Err(undo),
        (Ok(code), Err(undo)) => {
            warn(format_args!("cnibox: {undo}"));
            Ok(code)
        }
    }
}

impl Exec {
    pub(super) fn run(&self) -> Result<u8> {
        let words = &command(self.command.len())?;
        let runtime = parameters::runtime(TIMEOUT_S);
        let own = NetNs::own()?;
        let path = parameters::netns(&self.target)?;
        let entries = runtime.entries()?;
        let netns = match own.open_if_exists(&path) {
            Ok(None) => match container_like(&self.target, Some(&path), &entries)? {
                Some(id) => runtime.namespace_of(&id, &entries)?,
                None => None,
            },
            _ => None,
        };
        let netns = netns.map_or_else(|| own.open(&path), Ok)?;
        if netns.is(&own)? {
            let path = netns.path().display();
            let msg = format!("cannot enter {path}: it is the namespace of the host");
            return Err(Error::new(Code::SAME_NETNS, msg));
        }
        let mut results: Vec<Success> = Vec::new();
        for entry in &entries {
            if is_same(&own, &entry.netns, &netns)
                && let Some(success) = entry.success()?
            {
                results.push(success);
            }
        }
        let resolv_conf = multi_attach::resolv_conf(&results);
        let directory = &runtime.state;
        let (netns, hidden) = (&netns, &[][..]);
        Launch { netns, words, resolv_conf, directory, hostname: None, hidden, inherited: None }
            .exec()
    }
}

fn is_same(own: &NetNs, path: &Path, netns: &NetNs) -> bool {
    let other = own.open_if_exists(path).ok().flatten();
    other.is_some_and(|other| other.is(netns) == Ok(true))
}

/// The command and its arguments: the last `count` arguments of the process. They need not be UTF-8, unlike those from argh.
fn command(count: usize) -> Result<Vec<OsString>> {
    if count == 0 {
        return Err(usage_error("the command is missing"));
    }
    let args = std::env::args_os();
    let before = args.len() - count;
    Ok(args.skip(before).collect())
}

/// The attachments to make for a container. `networks` are arguments `NETWORK[:IFNAME]`. The published ports go to the first
/// network that can publish ports, the addresses to the first network.
pub(super) fn requested_attachments(
    runtime: &Runtime,
    container_id: &ContainerId,
    networks: &[String],
    options: &AddOptions<'_>,
) -> Result<Vec<NewAttachment>> {
    let mut wanted: Vec<NewAttachment> = Vec::new();
    for (index, argument) in networks.iter().enumerate() {
        let named = argument.rsplit_once(':').filter(|(_, ifname)| !ifname.contains('/'));
        let (name, ifname) = match named {
            Some((name, ifname)) => (name, ifname.to_owned()),
            None => (argument.as_str(), format!("eth{index}")),
        };
        let ifname = IfName::new(ifname).map_err(usage_error)?;
        if wanted.iter().any(|other| other.at.ifname == ifname) {
            return Err(usage_error(format_args!("two networks have the interface {ifname}")));
        }
        let at = Attachment { container_id: container_id.clone(), ifname };
        wanted.push(parameters::new_attachment(parameters::find(runtime, name)?, at)?);
    }
    let can_publish = |attachment: &NewAttachment| attachment.network.is_capable_of("portMappings");
    let publisher = wanted.iter().position(can_publish).unwrap_or_default();
    for (index, parts) in [
        (publisher, AddOptions { ip: &[], mac: None, ..*options }),
        (0, AddOptions { publish: &[], ..*options }),
    ] {
        match wanted.get_mut(index) {
            Some(new) => parts.apply(new)?,
            None if parts == AddOptions::default() => {}
            None => return Err(usage_error("a port or an address needs a network")),
        }
    }
    Ok(wanted)
}
