//! The parameters of the commands that act as a container runtime: arguments, and the environment variables that cnitool reads.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;

use crate::cni::json::Json;
use crate::cni::request::{INPUT_BYTES_MAX, is_true};
use crate::error::{Error, Result};
use crate::kernel::{file, sys};
use crate::names::{Attachment, IfName, Mac, NetworkName};
use crate::netlink::nft::Transport;
use crate::plugin::log::Log;
use crate::plugins::dnsname;
#[cfg(feature = "tool")]
use crate::plugins::portmap::shadowed::{self, HostPorts};
use crate::runtime::NAMED_NAMESPACES;
use crate::runtime::Runtime;
use crate::runtime::chain::{self, CallSettings};
use crate::runtime::conf::{self, Network};
use crate::runtime::lifecycle::{Choice, NewAttachment};
use crate::runtime::podman;

use super::output::usage_error;

/// The timeout of an executed plugin, in seconds.
pub(super) const TIMEOUT_S: u64 = 180;

/// The runtime with the settings from the environment.
pub(super) fn runtime(timeout_s: u64) -> Runtime {
    let (configurations, path) = directories();
    let value = |name: &str| variable(name)?.into_string().ok();
    let settings = CallSettings {
        path,
        timeout: Duration::from_secs(timeout_s),
        netns_override: variable("CNI_NETNS_OVERRIDE").is_some_and(|value| is_true(&value)),
        bus_address: variable("DBUS_SYSTEM_BUS_ADDRESS"),
        turns: std::sync::Arc::default(),
        log: Log::open(value("CNIBOX_LOG").as_deref(), value("TRACEPARENT")),
    };
    let mut runtime = Runtime::new(settings, configurations);
    runtime.of_podman = podman::directories(variable("HOME").map(PathBuf::from));
    runtime
}

/// The directory of the network configurations, and the directories of the plugins.
pub(super) fn directories() -> (PathBuf, Vec<PathBuf>) {
    let configurations = variable("NETCONFPATH").unwrap_or_else(|| conf::DIRECTORY.into());
    let path = variable("CNI_PATH").unwrap_or_else(|| chain::PATH.into());
    let plugins = std::env::split_paths(&path).filter(|path| !path.as_os_str().is_empty());
    (configurations.into(), plugins.collect())
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn text(name: &str) -> Result<String> {
    let text = variable(name).unwrap_or_default().into_string();
    text.map_err(|_| usage_error(format!("{name}: not UTF-8")))
}

/// The JSON document on stdin. `what` names it in errors.
pub(super) fn document(what: &str) -> Result<Json> {
    let bytes = file::read_to_end(std::io::stdin(), INPUT_BYTES_MAX)
        .map_err(|error| Error::internal(format_args!("cannot read {what}: {error}")))?;
    Json::parse(&bytes)
}

/// The network that an argument names: by its name, or by the path of its file.
pub(super) fn choice(network: &str) -> Result<Choice> {
    if network.contains('/') {
        return Network::load(Path::new(network)).map(Choice::Configuration);
    }
    let name = NetworkName::new(network);
    name.map(Choice::Named).map_err(usage_error)
}

/// The network that an argument names. Each unreadable file before it in the directory is a warning on stderr.
pub(super) fn find(runtime: &Runtime, network: &str) -> Result<Network> {
    match choice(network)? {
        Choice::Configuration(network) => Ok(network),
        Choice::Named(name) => {
            let warn = &mut |error: &Error| sys::warn(format_args!("warning: {error}"));
            Network::find(&name, &runtime.configurations, warn)
        }
    }
}

/// The path of a network namespace. The argument is a path, a name below /run/netns, or the id of a process in the namespace.
pub(super) fn netns(argument: &str) -> Result<PathBuf> {
    if argument.is_empty() || argument == "." || argument == ".." {
        return Err(usage_error(format!("{argument:?} is no network namespace")));
    }
    if argument.contains('/') {
        let path = std::path::absolute(argument)
            .map_err(|error| usage_error(format!("{argument:?}: {error}")))?;
        return Ok(cleaned(&path));
    }
    if argument.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(format!("/proc/{argument}/ns/net").into());
    }
    Ok(Path::new(NAMED_NAMESPACES).join(argument))
}

/// Splits the operands `[NETWORK [NETNS]]`.
pub(super) fn network_and_netns(operands: &[String]) -> Result<(Option<&str>, Option<&str>)> {
    match operands {
        [] => Ok((None, None)),
        [network] => Ok((Some(network), None)),
        [network, netns] => Ok((Some(network), Some(netns))),
        [_, _, other, ..] => Err(usage_error(format!("Unrecognized argument: {other}"))),
    }
}

/// The path without `.` and `..`. cnitool cleans the path in the same way before it derives a container id from it.
fn cleaned(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// The path of a namespace below /run/netns. The commands create and remove only such namespaces.
pub(super) fn named_netns(argument: &str) -> Result<PathBuf> {
    let path = netns(argument)?;
    if path.parent() == Some(Path::new(NAMED_NAMESPACES)) {
        return Ok(path);
    }
    Err(usage_error(format!("{argument:?} is not the name of a network namespace")))
}

/// The name of the interface, from the option or from CNI_IFNAME.
pub(super) fn ifname(option: &Option<String>) -> Result<Option<IfName>> {
    let name = match option {
        None => Some(text("CNI_IFNAME")?).filter(|name| !name.is_empty()),
        given => given.clone(),
    };
    name.map(IfName::new).transpose().map_err(usage_error)
}

/// An attachment to make, with CNI_ARGS and CAP_ARGS.
pub(super) fn new_attachment(network: Network, at: Attachment) -> Result<NewAttachment> {
    Ok(NewAttachment { network, at, args: cni_args()?, capability_args: capability_args()? })
}

/// CNI_ARGS, checked: pairs `KEY=VALUE`, separated by semicolons.
pub(super) fn cni_args() -> Result<String> {
    let args = text("CNI_ARGS")?;
    let pairs = args.split(';').filter(|_| !args.is_empty());
    for pair in pairs {
        let parts =
            pair.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
        parts.ok_or_else(|| usage_error(format!("CNI_ARGS: invalid pair {pair:?}")))?;
    }
    Ok(args)
}

/// CAP_ARGS, the capability arguments: an object, or `Null` if the variable is not set.
pub(super) fn capability_args() -> Result<Json> {
    let args = text("CAP_ARGS")?;
    if args.is_empty() {
        return Ok(Json::Null);
    }
    match Json::parse(args.as_bytes()) {
        Ok(object @ Json::Object(_)) => Ok(object),
        Ok(_) => Err(usage_error("CAP_ARGS: not an object")),
        Err(error) => Err(usage_error(format!("CAP_ARGS: {error}"))),
    }
}

/// The options of `add` for ports and addresses.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct AddOptions<'a> {
    pub(super) publish: &'a [Published],
    pub(super) ip: &'a [RequestedIp],
    pub(super) mac: Option<Mac>,
}

impl AddOptions<'_> {
    /// Adds the options to the capability arguments if a plugin of the network declares the capability. Else adds `--ip` and
    /// `--mac` to CNI_ARGS; `--publish` and several addresses are an error.
    pub(super) fn apply(&self, new: &mut NewAttachment) -> Result<()> {
        let NewAttachment { network, args, capability_args: caps, .. } = new;
        let cannot = |what: &str, capability: &str| {
            let msg = format!("cannot {what}: no plugin of network {} can", network.name);
            Error::config(msg).with_details(format_args!("none has the capability {capability}"))
        };
        match self.publish {
            [] => {}
            ports if network.is_capable_of("portMappings") => {
                let mappings = ports.iter().flat_map(Published::mappings).collect();
                set_capability(caps, "portMappings", Json::Array(mappings));
            }
            _ => return Err(cannot("publish a port", "portMappings")),
        }
        match self.ip {
            [] => {}
            ips if network.is_capable_of("ips") => {
                let ips = ips.iter().map(|ip| ip.to_string().into()).collect();
                set_capability(caps, "ips", Json::Array(ips));
            }
            [ip] => push_cni_arg(args, "IP", &ip.to_string()),
            _ => return Err(cannot("use several addresses", "ips")),
        }
        if let Some(mac) = self.mac {
            let mac = mac.to_string();
            match network.is_capable_of("mac") {
                true => set_capability(caps, "mac", mac.into()),
                false => push_cni_arg(args, "MAC", &mac),
            }
        }
        Ok(())
    }
}

/// The names of a container, for the networks of which the plugin `dnsname` serves names.
#[derive(Clone, Copy, Default)]
pub(super) struct ContainerNames<'a> {
    /// K8S_POD_NAME in CNI_ARGS overrides it.
    pub(super) name: Option<&'a str>,
    pub(super) aliases: &'a [String],
}

impl ContainerNames<'_> {
    /// Adds the names to CNI_ARGS and to the capability arguments.
    pub(super) fn apply(&self, new: &mut NewAttachment) {
        let NewAttachment { network, args, capability_args: caps, .. } = new;
        if !network.plugins.iter().any(|plugin| conf::kind(plugin) == dnsname::ENTRY.name) {
            return;
        }
        let is_given = args.split(';').any(|pair| pair.starts_with(POD_NAME));
        if let Some(name) = self.name.filter(|name| !is_given && !name.contains(';')) {
            push_cni_arg(args, "K8S_POD_NAME", name);
        }
        if !self.aliases.is_empty() {
            let aliases = self.aliases.iter().map(|alias| alias.as_str().into()).collect();
            let by_network = Json::object([(&*network.name, Some(Json::Array(aliases)))]);
            set_capability(caps, "aliases", by_network);
        }
    }

    /// Fails if there is an alias, and no network that serves it.
    pub(super) fn require_served(&self, all: &[NewAttachment]) -> Result<()> {
        if self.aliases.is_empty() || all.iter().any(|new| new.network.is_capable_of("aliases")) {
            return Ok(());
        }
        Err(Error::config("cannot give the container an alias: no plugin of its networks can")
            .with_details("none has the capability aliases"))
    }
}

/// Sets a key of an object of capabilities, whose names are case-sensitive. `Null` becomes an object.
pub(super) fn set_capability(caps: &mut Json, key: &str, value: Json) {
    if *caps == Json::Null {
        *caps = Json::Object(Vec::new());
    }
    if let Json::Object(entries) = caps {
        entries.retain(|(known, _)| known != key);
        entries.push((key.into(), value));
    }
}

/// The begin of the pair of CNI_ARGS with the name of a container.
const POD_NAME: &str = "K8S_POD_NAME=";

/// Appends a pair to CNI_ARGS, and IgnoreUnknown: without it, the plugins of the reference refuse the keys of other plugins.
fn push_cni_arg(args: &mut String, key: &str, value: &str) {
    for (key, value) in [("IgnoreUnknown", "1"), (key, value)] {
        let is_there = args.split(';').any(|pair| pair.split('=').next() == Some(key));
        if !is_there || key != "IgnoreUnknown" {
            let separator = if args.is_empty() { "" } else { ";" };
            args.push_str(&format!("{separator}{key}={value}"));
        }
    }
}

/// An address to request.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum RequestedIp {
    Address(IpAddr),
    /// With the length of its prefix.
    Net(IpNet),
}

impl FromStr for RequestedIp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.parse().map(Self::Address);
        address.or_else(|_| text.parse().map(Self::Net)).map_err(|_| "it is no IP address")
    }
}

impl Display for RequestedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

/// Ports to publish: `[IP:]HOST:CONTAINER[/PROTOCOL]`, where HOST and CONTAINER are ports or ranges of equal length.
#[derive(PartialEq)]
pub(super) struct Published {
    pub(super) ip: Option<IpAddr>,
    pub(super) host: RangeInclusive<u16>,
    pub(super) container: RangeInclusive<u16>,
    pub(super) transport: Transport,
}

impl FromStr for Published {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let transport = Transport::named(protocol).ok_or("the protocol is not tcp, udp or sctp")?;
        let (rest, container) =
            address.rsplit_once(':').ok_or("it is not [IP:]HOST:CONTAINER[/PROTOCOL]")?;
        let (ip, host) = match rest.rsplit_once(':') {
            None => (None, rest),
            Some((ip, host)) => {
                let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
                let valid = match bare {
                    Some(ip) => ip.parse().map(IpAddr::V6),
                    None => ip.parse().map(IpAddr::V4),
                };
                (Some(valid.map_err(|_| "the IP address is invalid")?), host)
            }
        };
        let (Some(host), Some(container)) = (ports(host), ports(container)) else {
            return Err("a port is a number from 1 to 65535, or two with a - between them");
        };
        if host.len() != container.len() {
            return Err("the ranges differ in length");
        }
        Ok(Self { ip, host, container, transport })
    }
}

impl Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, container) = (self.host.start(), self.container.start());
        match self.ip {
            None => host.fmt(f)?,
            Some(ip) => SocketAddr::new(ip, *host).fmt(f)?,
        }
        let rest = |ports: &RangeInclusive<u16>| match ports.len() {
            1 => String::new(),
            _ => format!("-{}", ports.end()),
        };
        let (more, to) = (rest(&self.host), rest(&self.container));
        write!(f, "{more}:{container}{to}/{}", self.transport.name())
    }
}

impl Published {
    /// The port mappings of the capability.
    fn mappings(&self) -> impl Iterator<Item = Json> {
        let mapping = |(host, container): (u16, u16)| {
            Json::object([
                ("hostPort", Some(u32::from(host).into())),
                ("containerPort", Some(u32::from(container).into())),
                ("protocol", Some(self.transport.name().into())),
                ("hostIP", self.ip.map(|ip| ip.to_string().into())),
            ])
        };
        self.host.clone().zip(self.container.clone()).map(mapping)
    }
}

/// Fails if a program of the host waits on a port to publish: its clients would reach the container instead.
#[cfg(feature = "tool")]
pub(super) fn refuse_shadowed(publish: &[Published]) -> Result<()> {
    let ports = |Published { ip, host, transport, .. }: &Published| HostPorts {
        transport: *transport,
        ports: host.clone(),
        address: *ip,
    };
    match shadowed::find(&publish.iter().map(ports).collect::<Vec<_>>(), None)? {
        None => Ok(()),
        Some(found) => Err(Error::config(format_args!("cannot publish {found}"))
            .with_details("--force publishes it in place of the program")),
    }
}

/// Parses `PORT` or `FIRST-LAST`.
fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0 && !text.starts_with('+'));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::names::ContainerId;

    #[test]
    fn ports_are_published_as_podman_reads_them() {
        let printed = |text: &str| {
            let published: Result<Published, _> = text.parse();
            published.map(|published| Json::Array(published.mappings().collect()).to_compact())
        };
        assert_eq!(
            printed("8080:80").unwrap(),
            r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]"#
        );
        assert_eq!(
            printed("127.0.0.1:53:5353/UDP").unwrap(),
            r#"[{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"127.0.0.1"}]"#
        );
        assert_eq!(
            printed("[fd00::1]:1-2:7-8/sctp").unwrap(),
            r#"[{"hostPort":1,"containerPort":7,"protocol":"sctp","hostIP":"fd00::1"},{"hostPort":2,"containerPort":8,"protocol":"sctp","hostIP":"fd00::1"}]"#
        );
        for text in [
            "80",
            "80:",
            ":80",
            "0:80",
            "80:65536",
            "1-2:80",
            "2-1:2-1",
            "x:1:2",
            "fd00::1:1:2",
            "[10.0.0.1]:1:2",
            "1:2/icmp",
            "1:2/",
            "+1:2",
            "1:2:3:4",
        ] {
            assert!(printed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn namespaces_are_paths_names_or_processes() {
        let path =
            |argument: &str| netns(argument).unwrap().into_os_string().into_string().unwrap();
        assert_eq!(path("web"), "/run/netns/web");
        assert_eq!(path("123"), "/proc/123/ns/net");
        assert_eq!(path("12a"), "/run/netns/12a");
        assert_eq!(path("/run//netns/./x/../web/"), "/run/netns/web");
        assert!(path("./web").ends_with("/web") && path("./web").starts_with('/'));
        assert!(netns("").is_err() && netns("..").is_err());
        assert!(named_netns("web").is_ok());
        assert!(named_netns("1").is_err() && named_netns("/tmp/x").is_err());
    }

    #[test]
    fn an_option_without_a_capability_goes_into_cni_args() {
        let network = |capabilities: &str| {
            let text = format!(
                r#"{{"name":"net","plugins":[{{"type":"a","capabilities":{capabilities}}}]}}"#
            );
            Network::from_cache(text.as_bytes()).unwrap()
        };
        let apply = |capabilities: &str, args: &str, ip: &[&str]| {
            let ip: Vec<RequestedIp> = ip.iter().map(|ip| ip.parse().unwrap()).collect();
            let mac = Some("02-00-00-00-00-01".parse().unwrap());
            let options = AddOptions { publish: &[], ip: &ip, mac };
            let container_id = ContainerId::new("c").unwrap();
            let mut new = NewAttachment {
                network: network(capabilities),
                at: Attachment { container_id, ifname: IfName::new("eth0").unwrap() },
                args: args.to_owned(),
                capability_args: Json::Null,
            };
            options.apply(&mut new).map_err(|error| error.code)?;
            Ok((new.args, new.capability_args.to_compact()))
        };
        assert_eq!(
            apply("{}", "A=b", &["10.0.0.2"]),
            Ok(("A=b;IgnoreUnknown=1;IP=10.0.0.2;MAC=02:00:00:00:00:01".into(), "null".into()))
        );
        assert_eq!(
            apply(r#"{"ips":true,"mac":true}"#, "", &["10.0.0.2", "fd00::2/64"]),
            Ok((
                String::new(),
                r#"{"ips":["10.0.0.2","fd00::2/64"],"mac":"02:00:00:00:00:01"}"#.into()
            ))
        );
        assert_eq!(apply("{}", "", &["10.0.0.2", "fd00::2"]), Err(Code::INVALID_CONFIG));
        for ip in ["x", "10.0.0.2/33", "10.0.0.2/", "10.0.0.2/24;GATEWAY=10.0.0.9", "10.0.0.2;MAC="]
        {
            assert!(ip.parse::<RequestedIp>().is_err(), "{ip}");
        }
    }
}
