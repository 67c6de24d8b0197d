//! The keys of a network configuration that have the same meaning in every plugin.
//!
//! The other keys of a plugin are in its manual: `cnibox help NAME`. A plugin that makes an interface
//! reads `ipam` and `dns`. A chained plugin reads `prevResult`. The IPAM plugins `host-local` and `static` read
//! `ipam.routes`.
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `cniVersion` | string | 0.1.0 | Version of the protocol, 0.1.0 to 1.1.0. Determines the format of the result. |
//! | `name` | string | required | Name of the network. It is part of the owner (network, container, interface) of all objects that an ADD makes. |
//! | `type` | string | required by runtimes | Name of the plugin that the runtime calls. |
//! | `prevResult` | object | none | Result of the previous plugin, from the runtime. CHECK requires it; chained plugins require it in ADD. |
//! | `capabilities` | object of booleans | none | Keys of `runtimeConfig` that the runtime sends. Plugins only check the type of this key. |
//! | `ipam.type` | string | none | IPAM plugin that provides the addresses. The other keys of `ipam` are in its manual. |
//! | `ipam.routes[].dst` | string | required | Destination prefix: `0.0.0.0/0`. |
//! | `ipam.routes[].gw` | string | first gateway of the family | Address of the next hop; outside of the subnets, it gets a route on the link. No default if `scope` is not 0. |
//! | `ipam.routes[].mtu` | integer | kernel's | MTU of the route in bytes. |
//! | `ipam.routes[].advmss` | integer | kernel's | Advertised TCP segment size in bytes. |
//! | `ipam.routes[].priority` | integer | kernel's | Metric of the route. |
//! | `ipam.routes[].table` | integer | main table | Routing table. |
//! | `ipam.routes[].scope` | integer | kernel's | Scope as in rtnetlink: 0 universe, 253 link, 254 host. |
//! | `ipam.routes[].type` | string | `unicast` | `blackhole`, `unreachable` or `prohibit`: packets to the destination are dropped or refused. The route has no gateway. DEL removes it, unless the container has another interface that is up: the route can be that of another attachment, too, and stays. |
//! | `dns.nameservers` | list of strings | none | Name servers in the result. If `dns` has any key, the DNS of the IPAM plugin is ignored. |
//! | `dns.domain` | string | none | Local domain in the result. |
//! | `dns.search` | list of strings | none | Search domains in the result. |
//! | `dns.options` | list of strings | none | Resolver options in the result. |
//! | `cni.dev/valid-attachments` | list of objects | required by GC | Attachments that GC keeps. GC without this list is refused; with an empty list GC removes all. |
//! | `cni.dev/valid-attachments[].containerID` | string | required | Container of a valid attachment. |
//! | `cni.dev/valid-attachments[].ifname` | string | required | Interface of a valid attachment. |
//! | `cni.dev/attachments` | list of objects | none | Other name of the same list, which some runtimes use. |
//! | `cni.dev/attachments[].containerID` | string | required | Container of a valid attachment. |
//! | `cni.dev/attachments[].ifname` | string | required | Interface of a valid attachment. |

use crate::cni::args::Args;
use crate::cni::json::{Json, Map, is_key, keys};
use crate::cni::success::Dns;
use crate::error::{Error, Result};
use crate::names::{Attachment, ContainerId, IfName};

keys! {
    /// The keys that all plugins read. Source: CNI specification 1.1.0, section 1.
    #[derive(Debug)]
    pub struct NetConf {
        "cniVersion" => pub cni_version: String,
        "name" => pub name: String,
        /// The name of the plugin.
        "type" => pub kind: String,
        "ipam" => pub ipam: Ipam,
        "dns" => pub dns: ConfiguredDns,
        /// Only the runtime uses it. A value of another type is an error, as in the reference.
        "capabilities" => capabilities: Map<bool>,
    }

    /// The attachments that GC keeps. Some runtimes use the key `cni.dev/attachments`, the result of an error in a draft.
    struct KeepSet {
        "cni.dev/valid-attachments" => valid_attachments: Vec<ListedAttachment>,
        "cni.dev/attachments" => attachments: Vec<ListedAttachment>,
    }

    struct ListedAttachment {
        "containerID" => container_id: String,
        "ifname" => ifname: String,
    }

    #[derive(Debug)]
    pub struct Ipam {
        /// The name of the IPAM plugin. Empty if the configuration has none.
        "type" => pub kind: String,
    }

    /// The DNS of the network. A key that is present, even an empty list, replaces the DNS of the IPAM plugin.
    #[derive(Debug)]
    pub struct ConfiguredDns {
        "nameservers" => nameservers: Option<Vec<String>>,
        "domain" => domain: String,
        "search" => search: Option<Vec<String>>,
        "options" => options: Option<Vec<String>>,
    }
}

impl ConfiguredDns {
    /// The DNS of the network, or the DNS of the IPAM plugin if the network has none.
    pub fn or(&self, of_ipam: Dns) -> Dns {
        let lists = [&self.nameservers, &self.search, &self.options];
        if self.domain.is_empty() && lists.iter().all(|list| list.is_none()) {
            return of_ipam;
        }
        let [nameservers, search, options] = lists.map(|list| list.clone().unwrap_or_default());
        Dns { nameservers, domain: self.domain.clone(), search, options }
    }
}

/// The attachments that GC keeps. All others are stale.
///
/// An empty or `null` list means that no attachment is valid. A missing list is refused (code 7), and so is an unreadable one
/// (code 6): GC would release the address of every container of the network.
pub fn valid_attachments(json: &Json) -> Result<Vec<Attachment>> {
    let keep_set: KeepSet = json.read("network configuration")?;
    let has = |wanted: &str| match json {
        Json::Object(entries) => entries.iter().any(|(key, _)| is_key(key, wanted)),
        _ => false,
    };
    let listed = if has("cni.dev/valid-attachments") {
        &keep_set.valid_attachments
    } else if has("cni.dev/attachments") {
        &keep_set.attachments
    } else {
        return Err(Error::config(
            "cannot collect garbage: the configuration has no cni.dev/valid-attachments",
        )
        .with_details("an empty list means that no attachment is valid"));
    };
    let parse = |listed: &ListedAttachment| {
        Ok(Attachment {
            container_id: ContainerId::new(listed.container_id.as_str())?,
            ifname: IfName::new(listed.ifname.as_str())?,
        })
    };
    listed.iter().map(parse).collect::<Result<_>>().map_err(|error: Error| {
        let msg = "cannot collect garbage: cni.dev/valid-attachments has an invalid entry";
        Error::config(msg).with_details(error.to_string())
    })
}

/// The MAC address, as text, that the user or the runtime requests for the container's interface. `runtimeConfig.mac`
/// overrides `args.cni.mac`, which overrides `MAC` of CNI_ARGS.
pub fn requested_mac(json: &Json, args: &str) -> Result<Option<String>> {
    keys! {
        struct Sources {
            "runtimeConfig" => runtime_config: Source,
            "args" => args: Cni,
        }

        struct Cni {
            "cni" => cni: Source,
        }

        struct Source {
            "mac" => mac: String,
        }
    }
    // The message of the reference's interface plugins.
    let sources = json.read("network configuration");
    let sources = sources.map_err(|error| error.in_front("failed to load netconf"))?;
    let Sources { runtime_config, args: Cni { cni } } = sources;
    let env = Args::parse(args)?.mac;
    let mut sources =
        [runtime_config.mac.as_str(), cni.mac.as_str(), env.unwrap_or("")].into_iter();
    Ok(sources.find(|mac| !mac.is_empty()).map(str::to_owned))
}
