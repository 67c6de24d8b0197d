//! The driver of netavark: what podman 5 and 6 call for a network of `podman network create --driver cnibox`, through a link to
//! this executable in a directory of netavark's plugins.
//!
//! Source: netavark, plugin-API.md.

mod caller;
pub(super) mod command;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use caller::Caller;

use super::lint;
use super::parameters::{self, AddOptions, Published, TIMEOUT_S, document};
use super::podman::list;
use super::podman::object::{self, Call, Object};
use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName};
use crate::plugin::VERSION;
use crate::plugins::dnsname;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::lifecycle::NewAttachment;
use crate::runtime::new_network::Addresses;

/// The version of the interface between netavark and a driver.
const API_VERSION: &str = "1.0.0";
/// The longest name of a pod in Kubernetes, in characters of ASCII.
const POD_NAME_MAX: usize = 253;
const VERBS: [&str; 4] = ["create", "setup", "teardown", "info"];

/// Answers a call of netavark: prints a document, or an object with the key `error`. Returns the exit code; `None` if the
/// arguments are of another program.
pub fn answer(args: &[OsString]) -> Option<u8> {
    let args: Vec<&str> = args.iter().map(|arg| arg.to_str()).collect::<Option<_>>()?;
    let is_call = args.first().is_some_and(|verb| VERBS.contains(verb));
    is_call.then(|| run(&args))
}

fn run(args: &[&str]) -> u8 {
    sys::survive_failed_writes();
    let answer = match args {
        ["create", ..] => create(),
        ["setup", netns, ..] => setup(Path::new(netns)),
        ["teardown", netns, ..] => teardown(Path::new(netns)),
        ["info", ..] => Ok(info()),
        _ => Err(Error::config("the path of a network namespace is missing")),
    };
    match answer.and_then(|document| print(&document)) {
        Ok(()) => 0,
        Err(error) => {
            // Without a reader nobody can be told.
            let _ = print(&Json::object([("error", Some(error.to_string().into()))]));
            1
        }
    }
}

/// Prints a document; nothing for `Null`.
fn print(document: &Json) -> Result<()> {
    let text = if document.is_null() { String::new() } else { document.to_compact() + "\n" };
    let written = sys::write_all(io::stdout().as_fd(), text.as_bytes());
    written.map_err(|error| Error::internal(format_args!("cannot write to stdout: {error}")))
}

fn info() -> Json {
    Json::object([
        ("version", Some(VERSION.into())),
        ("api_version", Some(API_VERSION.into())),
        ("about", Some("networks of CNI plugins, in one executable".into())),
    ])
}

/// The runtime for a network. Only for the network of a file CNI_PATH decides which plugins are executed.
fn runtime_for(object: &Object) -> Runtime {
    let mut runtime = parameters::runtime(TIMEOUT_S);
    if object.option(list::NETWORK).is_none() {
        runtime.settings.path.clear();
    }
    runtime
}

/// Validates a network, and prints its object with what was chosen. Writes nothing: podman never says that a network was removed.
fn create() -> Result<Json> {
    let json = document("the request")?;
    let object: Object = json.read("the network")?;
    let known = object::refuse_unknown(&json);
    let Json::Object(entries) = json else { return Err(Error::config("not an object")) };
    known
        .and_then(|()| completed(entries, &object))
        .map_err(|error| error.context(format!("cannot create network {}", object.name)))
}

fn completed(mut entries: Vec<(String, Json)>, object: &Object) -> Result<Json> {
    if !object.dns_servers.is_empty() && object.option(list::DNS).is_some() {
        return Err(Error::config("--dns and the option dns exclude each other"));
    }
    let runtime = runtime_for(object);
    let has_names;
    let ipam = if object.option(list::NETWORK).is_some() {
        has_names = list::network(&runtime, object, &[])?.plugin(dnsname::ENTRY.name).is_some();
        if has_names && (!object.dns_servers.is_empty() || object.option(list::DNS).is_some()) {
            return Err(Error::config(
                "--dns: the file of the network serves names, and decides that",
            ));
        }
        if has_names && !object.has_names {
            let name = &object.name;
            sys::warn(format_args!(
                "note: containers of network {name} find each other by name: the file of the network decides that"
            ));
        }
        list::IPAM
    } else {
        let (mut new, keys) = list::new_network(object)?;
        list::complete(&runtime, object, &mut new)?;
        if object.has_names {
            let missing = || dnsname::require_engine(&runtime.settings.path).err();
            let why = new.obstacle_to_names().or_else(|| missing().map(|error| error.to_string()));
            new.has_names = why.is_none();
            if let Some(why) = why {
                let name = &object.name;
                sys::warn(format_args!(
                    "note: containers of network {name} do not find each other by name: {why}"
                ));
            }
        }
        has_names = new.has_names;
        // What was chosen must make a list, without values that a plugin refuses.
        lint::refuse(&list::of_new(object, &new, keys)?, &[])?;
        let link = new.bridge.as_deref().or(new.parent.as_deref());
        set(&mut entries, "network_interface", link.map(|name| name.to_string().into()));
        set(&mut entries, "subnets", list::subnets(&new));
        match new.addresses {
            Addresses::HostLocal => list::IPAM,
            Addresses::Dhcp => "dhcp",
            Addresses::Nobody => "none",
        }
    };
    set(&mut entries, "ipam_options", Some(Json::object([("driver", Some(ipam.into()))])));
    set(&mut entries, "dns_enabled", Some(Json::Bool(has_names)));
    if !has_names {
        move_servers(&mut entries, object);
    }
    Ok(Json::Object(entries))
}

/// Moves the DNS servers to the options: podman refuses them for a network whose names are not served.
fn move_servers(entries: &mut Vec<(String, Json)>, object: &Object) {
    if object.dns_servers.is_empty() {
        return;
    }
    let (servers, name) = (&object.dns_servers, &object.name);
    let servers = servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    sys::warn(format_args!(
        "note: containers of network {name} ask {servers}; the names of containers are not served"
    ));
    let options = object.options.0.iter().cloned().chain([(list::DNS.to_owned(), servers)]);
    let options = options.map(|(key, value)| (key, value.into())).collect();
    set(entries, "options", Some(Json::Object(options)));
    set(entries, "network_dns_servers", None);
}

fn set(entries: &mut Vec<(String, Json)>, key: &str, value: Option<Json>) {
    entries.retain(|(known, _)| known != key);
    entries.extend(value.map(|value| (key.to_owned(), value)));
}

/// The container and the interface of a call.
fn attachment(call: &Call) -> Result<Attachment> {
    Ok(Attachment {
        container_id: ContainerId::new(call.container_id.as_str())?,
        ifname: IfName::new(call.own.ifname.as_str())?,
    })
}

fn setup(netns: &Path) -> Result<Json> {
    let call: Call = document("the request")?.read("the request")?;
    let at = attachment(&call)?;
    if let Some((key, value)) = call.own.options.0.first() {
        return Err(Error::config(format_args!(
            "--network {}:{key}={value}: a driver has no options of a container",
            call.network.name
        )));
    }
    let mut runtime = runtime_for(&call.network);
    let network = list::network(&runtime, &call.network, &call.own.ips)?;
    let ips = list::asked(&network, &call.network.name, &call.own.ips)?;
    let caller = Caller::find(netns)?;
    runtime.starter = caller.podman;
    // podman was killed, or the host was shut down, and this container has another namespace now.
    delete(&at, None)?;
    let own = &call.own;
    let texts = own.aliases.iter().map(|alias| alias.as_str().into()).collect();
    let aliases = Json::object([(&*network.name, Some(Json::Array(texts)))]);
    let publish = published(&call, &network)?;
    // A DHCP server gets the name in one option, so it can have 255 bytes.
    let name: String = call.container_name.chars().take(POD_NAME_MAX).collect();
    let mut new = NewAttachment {
        network,
        at,
        args: format!("IgnoreUnknown=1;K8S_POD_NAME={name}"),
        capability_args: Json::object([("aliases", Some(aliases))]),
    };
    AddOptions { publish: &publish, ip: &ips, mac: own.mac }.apply(&mut new)?;
    let added = runtime.add(&new, netns)?;
    // Containers ask the server of names only: it asks the others.
    let has_names = new.network.plugin(dnsname::ENTRY.name).is_some();
    let dns = call.network.option(list::DNS).filter(|_| !has_names);
    let told = caller.require().and_then(|()| status(&added.success, &new, netns, dns));
    // netavark calls no teardown for what it was not told.
    match told.and_then(|status| print(&status)) {
        Ok(()) => added.keep().map(|()| Json::Null),
        Err(error) => Err(added.undo_after(error)),
    }
}

/// The ports to publish. podman hands the ports of a container to each of its networks, also to those that cannot publish any.
fn published(call: &Call, network: &Network) -> Result<Vec<Published>> {
    let mut all = Vec::new();
    for mapping in &call.port_mappings {
        all.extend(mapping.published()?);
    }
    let why = match call.network.is_internal {
        true => "it is internal",
        false if network.is_capable_of("portMappings") => return Ok(all),
        false => "no plugin of it can",
    };
    for port in all {
        let name = &call.network.name;
        sys::warn(format_args!("note: network {name} does not publish port {port}: {why}"));
    }
    Ok(Vec::new())
}

/// The interfaces, addresses and DNS settings of a result, as netavark reads them.
fn status(success: &Success, new: &NewAttachment, netns: &Path, dns: Option<&str>) -> Result<Json> {
    let mut interfaces = Vec::new();
    let keys = |mac: String, subnets: Vec<Json>| {
        Json::object([("mac_address", Some(mac.into())), ("subnets", Some(Json::Array(subnets)))])
    };
    for (index, interface) in success.interfaces.iter().enumerate() {
        if interface.sandbox.is_empty() {
            continue;
        }
        let subnets = success.ips_of(index).map(|ip| {
            Json::object([
                ("ipnet", Some(ip.address.to_string().into())),
                ("gateway", ip.gateway.map(|gateway| gateway.to_string().into())),
            ])
        });
        let mac = match interface.mac.as_str() {
            "" => mac_of(netns, &interface.name)?,
            mac => mac.to_owned(),
        };
        interfaces.push((interface.name.clone(), keys(mac, subnets.collect())));
    }
    if interfaces.is_empty() {
        let mac = mac_of(netns, &new.at.ifname)?;
        interfaces.push((new.at.ifname.to_string(), keys(mac, Vec::new())));
    }
    let own = success.dns.nameservers.iter().map(String::as_str);
    let servers = list::addresses(own.chain(dns.into_iter().flat_map(list::words)))?;
    let mut all: Vec<Json> = Vec::new();
    for server in servers.iter().map(|server| Json::from(server.to_string())) {
        if !all.contains(&server) {
            all.push(server);
        }
    }
    let search = success.dns.search.iter().map(|word| word.as_str().into()).collect();
    Ok(Json::object([
        ("interfaces", Some(Json::Object(interfaces))),
        ("dns_server_ips", Some(Json::Array(all))),
        ("dns_search_domains", Some(Json::Array(search))),
    ]))
}

fn mac_of(netns: &Path, name: &str) -> Result<String> {
    let link = NetNs::own()?.open(netns)?.rtnl()?.link(name)?;
    Ok(link.and_then(|link| link.mac).map_or_else(String::new, |mac| mac.to_string()))
}

fn teardown(netns: &Path) -> Result<Json> {
    // What a teardown does not use can be unreadable.
    let (call, _): (Call, _) = document("the request")?.read_or_drop("the request")?;
    let netns = Some(netns).filter(|netns| netns.exists());
    delete(&attachment(&call)?, netns).map(|()| Json::Null)
}

/// Deletes the attachments of an interface of a container, to whatever network: the object may have changed since.
fn delete(at: &Attachment, netns: Option<&Path>) -> Result<()> {
    parameters::runtime(TIMEOUT_S).detach_all(&at.container_id, Some(&at.ifname), netns)
}
