//! `dnsname`: containers of a network find each other by name.
//!
//! ```json
//! { "type": "dnsname", "domainName": "dns.podman", "capabilities": { "aliases": true } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `domainName` | string | `dns.podman` | The domain of the names: containers also find each other as `NAME.DOMAIN`. |
//! | `internal` | boolean | false | Other names are not asked for: queries for them have no answer. |
//! | `runtimeConfig.aliases` | object of arrays | none | More names of the container, by network (capability `aliases`). |
//! | `CNI_ARGS: K8S_POD_NAME` | string | none | The name of the container. |
//! | `CNI_ARGS: NERDCTL_CNI_DHCP_HOSTNAME` | string | none | One more name. |
//!
//! The queries are answered by aardvark-dns, the program of podman, at the gateway of the network: release 1.13 or later must be in a
//! directory of CNI_PATH, where podman has its helpers, such as `/usr/lib/podman`, or in `/usr/bin`. One process answers for all
//! networks. The first name starts it, and the last one ends it. Where systemd runs, it is in a scope of its own: stopping the unit of a
//! container does not stop it.
//!
//! The plugin follows a plugin that gives the host an address in the network, as `bridge` with `isGateway` and `ptp` do. It has the keys
//! of the plugin `dnsname` of github.com/containers/dnsname, and takes its place.
//!
//! A container has the names of its runtime, its aliases, and the first 12 characters of its id. A name consists of letters, digits,
//! `-`, `_` and `.`; another one is left out with a warning. If two containers have the same name, both addresses are answered. A
//! container in two networks finds the names of both, whichever of its servers it asks. Addresses have a name, too (PTR).
//!
//! The files are below `/run/cnibox/names`: one for each attachment, from which those of aardvark-dns are made. If aardvark-dns was
//! killed, the next ADD, DEL or GC with this plugin starts it again, and so does `cnibox reconcile`, with `--watch` at once. What it
//! cannot serve, since another program has port 53 of the gateway or the host does not have its address, is left out with a warning, and
//! tried again by the next call in that network. Files that were lost are made again by `reconcile`, without the servers of other names:
//! the host's are asked then.
//!
//! **A host that drops packets to itself.** If the chain INPUT of the table `filter` of iptables-nft is there, rules at its beginning
//! accept the queries of the network's containers to the gateway, by UDP and TCP. The last name of the network takes them away. They do
//! not overrule a `drop` in another table: `cnibox doctor --probe` names that rule. With firewalld, the plugin `firewall` puts the
//! containers into a zone that accepts them.
//!
//! A published port 53 without an address of the host takes these queries, too: publish it for one address (`-p 192.0.2.1:53:53/udp`).
//!
//! - **ADD** adds the names of the container, and fails if port 53 of the gateway is taken; the error names the program. The servers of
//!   the result are the gateways: aardvark-dns asks the servers of `prevResult` for other names, or else those of the host. The first
//!   domain of the result's `search` is `domainName`.
//! - **CHECK** fails if the names or the rules are missing, or aardvark-dns does not run or does not serve the gateway.
//! - **DEL** removes the names of the attachment, by its owner. It needs neither the namespace nor `prevResult`.
//! - **GC** does the same for all attachments that are not valid.
//! - **STATUS** fails with code 50 if aardvark-dns is missing or too old, or the kernel has no pidfd (before Linux 5.3).

mod engine;
mod input;
mod named;
mod registry;
mod rendered;

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::cni::args::Args;
use crate::cni::json::{Map, keys};
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::process::Opened;
use crate::names::Attachment;
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::chained;
use crate::steps::state;
use named::{DIRECTORY, Named};
use registry::Registry;

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    // podman 4 adds the plugin to each new network.
    is_linked_on_request: true,
    ..Entry::chained::<Dnsname>("dnsname", "containers of a network find each other by name")
};

keys! {
    pub struct Dnsname {
        "domainName" => domain_name: String = engine::DOMAIN.into(),
        "internal" => internal: bool,
        "runtimeConfig" => runtime_config: RuntimeConfig,
    }

    struct RuntimeConfig {
        "aliases" => aliases: Map<Vec<String>>,
    }
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "must be called as chained plugin";

/// The length of a container's id in podman's lists, and of its name in its network.
const SHORT_ID: usize = 12;
/// The longest name. Source: RFC 1035, section 2.3.4.
const NAME_MAX: usize = 253;

impl Plugin for Dnsname {
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        self.domain()?;
        self.names(cx, at)?;
        chained::prev_result(cx, WITHOUT_RESULT).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let mut result = chained::prev_result(cx, WITHOUT_RESULT)?;
        let (names, refused) = self.names(cx, at)?;
        let named = self.named(cx, at, (&result, names))?;
        for name in refused {
            cx.warn(format_args!("{name:?} is no name of a host: it is left out"));
        }
        Registry::new(cx).put(at, &named)?;
        let domain = self.domain()?;
        result.dns.nameservers = named.listen.iter().map(ToString::to_string).collect();
        result.dns.search.retain(|search| search != domain);
        result.dns.search.insert(0, domain.to_owned());
        Ok(result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        self.reconcile(cx, at, &mut Parts::to_check())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let result = chained::prev_result(cx, WITHOUT_RESULT)?;
        let registry = Registry::new(cx);
        // The result of the list has the servers of this plugin in place of those of the plugins before it.
        let recorded = registry.read(at).ok().flatten();
        let is_lost = recorded.is_none();
        let servers = recorded.map(|recorded| recorded.servers).unwrap_or_default();
        let (names, _) = self.names(cx, at)?;
        let named = Named { servers, ..self.named(cx, at, (&result, names))? };
        let is_recorded = || match registry.read(at) {
            Ok(Some(recorded)) if recorded == named => registry.check(&named),
            // A damaged file is made again.
            Err(error) if error.code != Code::DECODE => Err(error),
            _ => Err(Error::difference(format_args!(
                "the names of container {} are missing in {}",
                at.container_id, DIRECTORY
            ))),
        };
        parts.ensure(&is_recorded, &mut || {
            if is_lost && !named.internal {
                cx.warn(format_args!(
                    "the servers that the names of container {} had for other names are lost: those of the host are asked",
                    at.container_id
                ));
            }
            registry.put(at, &named)
        })
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        Registry::new(cx).remove(&cx.owners(scope))
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.domain()?;
        let is_possible = engine::find(&cx.request.parameters.path)
            .and_then(|_| engine::require_signals())
            .and_then(|()| state::check_writable(DIRECTORY));
        is_possible.map_err(Error::into_not_available)
    }
}

/// Fails if the program that answers is missing or too old. `path` has the directories of CNI_PATH.
pub fn require_engine(path: &[PathBuf]) -> Result<()> {
    engine::find(path).map(drop)
}

/// The process that answers names, if there is one. Its end is an event for a watcher.
pub fn running_engine() -> Option<Opened> {
    let has_names = cfg!(feature = "dnsname") && named::has_names();
    if has_names { registry::ENGINE.running().ok().flatten() } else { None }
}

impl Dnsname {
    fn domain(&self) -> Result<&str> {
        match self.domain_name.as_str() {
            "" => Ok(engine::DOMAIN),
            domain if is_name(domain) => Ok(domain),
            domain => Err(Error::config(format_args!("domainName: {domain:?} is no domain"))),
        }
    }

    /// The names of an attachment, at the gateways that the host has.
    fn named(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        (result, mut names): (&Success, Vec<String>),
    ) -> Result<Named> {
        let domain = self.domain()?;
        let on_host = cx.session.host()?.all_addresses()?;
        let (addresses, mut listen) = addresses(at, result);
        listen.retain(|gateway| on_host.contains(gateway));
        if listen.is_empty() {
            let msg = format!("cannot serve names in network {}", cx.request.network);
            return Err(Error::config(msg).with_details(
                "this host has no gateway address of the container: the plugin needs one, as isGateway of bridge gives it",
            ));
        }
        let servers = result.dns.nameservers.iter().filter_map(|server| server.parse().ok());
        if domain != engine::DOMAIN {
            let within: Vec<String> = names.iter().map(|name| format!("{name}.{domain}")).collect();
            names.extend(within.into_iter().filter(|name| is_name(name)));
        }
        Ok(Named {
            container: at.container_id.to_string(),
            addresses,
            names,
            servers: servers.filter(|server| !listen.contains(server)).collect(),
            listen,
            internal: self.internal,
        })
    }

    /// The names that the container is given, and those that cannot be served.
    fn names(&self, cx: &Context<'_>, at: &Attachment) -> Result<(Vec<String>, Vec<String>)> {
        let args = Args::parse(&cx.request.parameters.args)?;
        let aliases = self.runtime_config.aliases.0.iter();
        let own = aliases.filter(|(network, _)| *network == *cx.request.network);
        let mut names: Vec<String> = Vec::new();
        let given = args.pod_name.into_iter().map(str::to_owned);
        let short = at.container_id.chars().take(SHORT_ID).collect::<String>();
        let all = given.chain(own.flat_map(|(_, names)| names.iter().cloned()));
        for name in all.chain(args.hostname.map(str::to_owned)).chain([short]) {
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names.into_iter().partition(|name| is_name(name)))
    }
}

/// The addresses of the container, and the gateways that can be servers of names.
fn addresses(at: &Attachment, result: &Success) -> (Vec<IpNet>, Vec<IpAddr>) {
    let addresses = chained::ips(result, at).map(|ip| ip.address).collect();
    let gateways = chained::ips(result, at).filter_map(|ip| ip.gateway);
    let mut listen: Vec<IpAddr> = gateways.filter(|gateway| !is_link_local(*gateway)).collect();
    listen.sort_unstable();
    listen.dedup();
    (addresses, listen)
}

/// The rules of iptables that an ADD makes, in the words of nft, each behind the chain in which it is made if there is that chain.
/// `on_host` are the addresses of the host.
#[cfg(feature = "tool")]
pub fn rules(at: &Attachment, result: &Success, on_host: &[IpAddr]) -> Vec<(String, String)> {
    let (addresses, mut listen) = addresses(at, result);
    listen.retain(|gateway| on_host.contains(gateway));
    input::texts(&Named { addresses, listen, ..Named::default() })
}

/// Whether a text can be a name: a comma, a space or the end of a line would make another entry of it.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= NAME_MAX && text.split('.').all(is_label)
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_forges_no_entry() {
        for name in ["web", "Web-1_a", "web.example.org", "3a08bfa1b2c3", &"a".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "a b",
            "a,b",
            "a\nb",
            ".",
            "a.",
            ".a",
            "a..b",
            "ä",
            &"a".repeat(64),
            &"a.".repeat(127),
        ] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
