//! `cnibox explain`: what an ADD would make. The plugins do the ADD in a copy of the host, and the kernel's objects before and after
//! each plugin are compared.
//!
//! The copy is new network and mount namespaces of this process, so it ends with the process. It has the links that the
//! configuration names, and private copies of the directories in which plugins keep files. Plugins of other executables, `dhcp`,
//! `dnsname` and firewalld would act outside of the copy, so they are not called.

mod host;
mod objects;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};
use serde::Serialize;

use crate::cni::json::{Json, is_key};
use crate::cni::request::Verb;
use crate::cni::success::Success;
use crate::cni::version;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sandbox;
use crate::kernel::sys::warn;
use crate::names::{Mac, NetworkName};
use crate::netlink::nft::Nft;
use crate::plugin::execute::Program;
use crate::plugins::portmap::{self, on_host};
use crate::plugins::{bridge, dnsname, firewall, tuning};
use crate::runtime::Runtime;
use crate::runtime::chain::{CallSettings, Chain};
use crate::runtime::conf::{self, Network};
use crate::runtime::lifecycle::NewAttachment;
use crate::runtime::request::configuration;

use super::attach;
use super::output::{print_json, print_line};
use super::parameters::{self, AddOptions, Published, RequestedIp, TIMEOUT_S};
use super::podman;
use host::Host;
use objects::{Object, View};

/// Print what an ADD would make for a new container, and make nothing.
#[derive(ArgsInfo, FromArgs)]
#[argh(
    subcommand,
    name = "explain",
    help_triggers("-h", "--help", "help"),
    example = "{command_name} mynet -p 8080:80",
    note = "NETCONFPATH, CNI_PATH, CNI_ARGS, CAP_ARGS and CNI_IFNAME have the same meaning as for add."
)]
pub(super) struct Explain {
    /// the network's name, or the path of its file
    #[argh(positional)]
    network: String,
    /// the name of the interface in the container; eth0 if not given
    #[argh(option, short = 'i')]
    ifname: Option<String>,
    /// publish a port: [IP:]HOST:CONTAINER[/PROTO]; may be repeated
    #[argh(option, short = 'p')]
    publish: Vec<Published>,
    /// the address to request for the container; may be repeated
    #[argh(option)]
    ip: Vec<RequestedIp>,
    /// the MAC address to request for the interface
    #[argh(option)]
    mac: Option<Mac>,
    /// print one JSON document
    #[argh(switch)]
    json: bool,
}

/// The output of --json.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    network: NetworkName,
    file: PathBuf,
    cni_version: &'static str,
    plugins: Vec<Step>,
    /// `None` if it depends on a plugin that was not called.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Json>,
    #[serde(skip)]
    success: Option<Success>,
}

/// One plugin of the list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    #[serde(rename = "type")]
    kind: String,
    /// What its ADD adds, or changes.
    objects: Vec<Object>,
    /// The reason why it is not called.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_called: Option<String>,
}

/// Why a plugin is not called.
struct NotCalled {
    reason: String,
    /// The plugins after it need its result.
    ends_list: bool,
}

impl Explain {
    pub(super) fn run(&self) -> Result<u8> {
        let mut runtime = podman::runtime(TIMEOUT_S);
        let network = attach::find_any(&runtime, &self.network)?;
        let at = attach::attachment(&Some(CONTAINER_ID.into()), &self.ifname, Path::new(""))?;
        let mut new = parameters::new_attachment(network, at)?;
        let options = AddOptions { publish: &self.publish, ip: &self.ip, mac: self.mac };
        options.apply(&mut new)?;
        let missing = sandbox::missing_capabilities();
        if !missing.is_empty() {
            let (name, missing) = (&new.network.name, missing.join(" and "));
            return Err(Error::internal(format_args!("cannot explain {name} without {missing}")));
        }
        let not_called = not_called(&runtime.settings, &new.network)?;
        let (names, directories) = named(&new.network);
        let host = Host::read(&names)?;
        let home = NetNs::own()?;
        sandbox::enter()?;
        let home = home.entered_from(&NetNs::own()?);
        sandbox::copy_directories(&directories)?;
        // Nothing can be executed without CNI_PATH. The log is a file of the host.
        (runtime.settings.path, runtime.settings.log) = (Vec::new(), None);
        let explained = add_in_copy(&runtime, &new, (&home, &host), not_called)?;
        if self.json {
            print_json(&explained)
        } else {
            explained.print(&new)
        }
        Ok(0)
    }
}

/// Does the ADD in the namespaces of this process. `home` is the namespace of the host.
fn add_in_copy(
    runtime: &Runtime,
    new: &NewAttachment,
    (home, host): (&NetNs, &Host),
    not_called: Vec<Option<NotCalled>>,
) -> Result<Explained> {
    let NewAttachment { network, at, args, capability_args } = new;
    let (rtnl, _beyond) = host.make()?;
    let netns = NetNs::own()?.make()?;
    let container = netns.rtnl()?;
    container.raise_loopback()?;
    let sysctls = sysctls(network, &at.ifname);
    let path = netns.path().to_owned();
    let view = View { host: rtnl, nft: Nft::open_if_supported()?, netns, container, sysctls };
    let verb = Verb::Add(at.clone());
    let chain = Chain {
        netns: &path,
        args,
        capability_args,
        ..Chain::without_parameters(&runtime.settings, network, verb)
    };
    let (mut steps, mut success) = (Vec::new(), Some(Success::default()));
    let mut before = view.objects()?;
    for (index, (plugin, not_called)) in network.plugins.iter().zip(not_called).enumerate() {
        let kind = conf::kind(plugin).to_owned();
        let mut step = Step { kind, objects: Vec::new(), not_called: None };
        match (success.take(), not_called) {
            (None, _) => {
                step.not_called = Some("it needs the result of the plugin before".into());
            }
            (Some(previous), Some(NotCalled { reason, ends_list })) => {
                step.not_called = Some(reason);
                if step.kind == dnsname::ENTRY.name {
                    step.objects = queries_accepted(
                        host,
                        &dnsname::rules(at, &previous, &view.host.all_addresses()?),
                    );
                }
                success = Some(previous).filter(|_| !ends_list);
            }
            (Some(previous), None) => {
                if conf::kind(plugin) == portmap::ENTRY.name {
                    home.run(|| examine_ports(new, plugin, &previous))
                        .map_err(|error| chain.with_plugin("add", plugin, error))?;
                }
                let previous = Some(previous).filter(|_| index > 0);
                success = Some(chain.add_one(plugin, previous).map_err(|failed| failed.error)?);
                let after = view.objects()?;
                let new = after.iter().filter(|object| !before.contains(object)).cloned();
                step.objects =
                    new.filter_map(|object| object.compared_with(&host.tables)).collect();
                before = after;
            }
        }
        steps.push(step);
    }
    let result = success.as_ref().map(|success| version::print_result(success, network.version));
    Ok(Explained {
        network: network.name.clone(),
        file: network.file.clone(),
        cni_version: network.version.text(),
        plugins: steps,
        result: result.transpose()?,
        success,
    })
}

/// The rules that accept queries, for the chains that the host has.
fn queries_accepted(host: &Host, rules: &[(String, String)]) -> Vec<Object> {
    let is_possible =
        |(chain, _): &&(String, String)| host.tables.contains(&format!("chain {chain}"));
    let object = |(chain, rule): &(String, String)| Object {
        side: "host",
        object: format!("rule {chain} {{ {rule} }}"),
        on_host: None,
    };
    rules.iter().filter(is_possible).map(object).collect()
}

/// Fails if a port is taken on the host, the network namespace of this thread. Warns if a program of the host waits on one.
fn examine_ports(new: &NewAttachment, plugin: &Json, previous: &Success) -> Result<()> {
    let NewAttachment { network, at, capability_args, .. } = new;
    let config = configuration(network, plugin, capability_args, None);
    if let Some(found) = on_host::examine(&config, &network.name, at, previous)? {
        warn(format_args!("warning: {found}; its clients reach the container instead"));
    }
    Ok(())
}

/// For each plugin of the list the reason not to call it. Fails if a plugin or its delegate does not exist.
fn not_called(settings: &CallSettings, network: &Network) -> Result<Vec<Option<NotCalled>>> {
    let chain = Chain::without_parameters(settings, network, Verb::Status);
    let reason_for = |(index, plugin): (usize, &Json)| {
        let kind = conf::kind(plugin);
        if let Program::Executable(file) = chain.program(kind)? {
            let reason = format!("{} is another executable", file.display());
            return Ok(Some(NotCalled { reason, ends_list: index == 0 }));
        }
        for delegate in conf::delegates(plugin).into_iter().filter(|kind| !kind.is_empty()) {
            let found = chain.program(delegate);
            let reason = match found.map_err(|error| chain.with_plugin("add", plugin, error))? {
                Program::Executable(file) => format!("{} is another executable", file.display()),
                Program::Ours(entry) if entry.needs_link => {
                    format!("{delegate} asks a server on the network")
                }
                Program::Ours(_) => continue,
            };
            return Ok(Some(NotCalled { reason, ends_list: true }));
        }
        if kind == firewall::ENTRY.name
            && firewall::uses_firewalld(plugin, settings.bus_address.as_deref())?
        {
            let reason = "it gives the addresses to firewalld".into();
            return Ok(Some(NotCalled { reason, ends_list: false }));
        }
        if kind == dnsname::ENTRY.name {
            let reason = "it would start aardvark-dns".into();
            return Ok(Some(NotCalled { reason, ends_list: false }));
        }
        Ok(None)
    };
    network.plugins.iter().enumerate().map(reason_for).collect()
}

/// The texts in the configuration that can be names of links of the host, and the directories in which plugins keep files.
fn named(network: &Network) -> (Vec<String>, Vec<PathBuf>) {
    let mut names = vec![bridge::DEFAULT.to_owned()];
    let mut directories: Vec<PathBuf> = STATE.iter().map(PathBuf::from).collect();
    let mut rest: Vec<(&str, &Json)> = network.plugins.iter().map(|plugin| ("", plugin)).collect();
    while let Some((key, json)) = rest.pop() {
        match json {
            Json::String(text) if is_key(key, "dataDir") => {
                directories.extend(std::path::absolute(text))
            }
            Json::String(text) => names.push(text.clone()),
            Json::Array(values) => rest.extend(values.iter().map(|value| (key, value))),
            Json::Object(entries) => {
                rest.extend(entries.iter().map(|(key, value)| (key.as_str(), value)))
            }
            _ => {}
        }
    }
    (names, directories)
}

/// The paths of the parameters that `tuning` sets.
fn sysctls(network: &Network, ifname: &str) -> Vec<String> {
    let tuned = network.plugins.iter().filter_map(|plugin| plugin.get("sysctl"));
    let keys = tuned.flat_map(|sysctl| match sysctl {
        Json::Object(entries) => entries.as_slice(),
        _ => &[],
    });
    // The plugin itself reports a key that is invalid.
    keys.filter_map(|(key, _)| tuning::key::path(key, ifname).ok()).collect()
}

impl Explained {
    fn print(&self, new: &NewAttachment) {
        let (network, at) = (&self.network, &new.at);
        print_line(format_args!("{}, {}", at.title(network), self.file.display()));
        for Step { kind, objects, not_called } in &self.plugins {
            let why = not_called.as_ref().map(|reason| format!(" is not called: {reason}"));
            print_line("");
            let nothing =
                objects.iter().all(Object::is_index).then(|| ": nothing to do".to_owned());
            print_line(format_args!("{kind}{}", why.or(nothing).unwrap_or_default()));
            // Nobody reads hashes.
            for Object { side, object, on_host } in objects.iter().filter(|it| !it.is_index()) {
                let there = on_host.as_ref().map(|there| format!("; the host has {there}"));
                print_line(format_args!("  {side:<9}  {object}{}", there.unwrap_or_default()));
            }
        }
        let Some(Success { ips, routes, dns, .. }) = &self.success else { return };
        print_line("");
        print_line("result");
        let via = |word: &str, gateway: Option<IpAddr>| {
            gateway.map_or_else(String::new, |gateway| format!(" {word} {gateway}"))
        };
        for ip in ips {
            print_line(format_args!("  address {}{}", ip.address, via("gateway", ip.gateway)));
        }
        for route in routes {
            let kind = route.kind.prefix();
            print_line(format_args!("  route {kind}{}{}", route.dst, via("via", route.gw)));
        }
        for (key, values) in [
            ("nameserver", &dns.nameservers),
            ("domain", &vec![dns.domain.clone()]),
            ("search", &dns.search),
            ("options", &dns.options),
        ] {
            for value in values.iter().filter(|value| !value.is_empty()) {
                print_line(format_args!("  dns {key} {value}"));
            }
        }
    }
}

/// The container id of the attachment.
const CONTAINER_ID: &str = "new";
/// The directories of files of plugins and of this runtime.
const STATE: [&str; 3] = ["/run/cnibox", "/run/cni", "/var/lib/cni"];
