//! Finds missing features of the kernel: tries to create a link of each kind and runs STATUS of each plugin in a new network
//! namespace.

use std::path::Path;

use crate::cni::json::Json;
use crate::cni::request::{Request, Verb};
use crate::error::Result;
use crate::kernel::file;
use crate::names::Mac;
use crate::netlink::rtnl::NewLink;
use crate::plugin::{Context, Entry, Session};
use crate::plugins::PLUGINS;

use super::finding::{Findings, Harm};
use super::host::Host;

/// A kernel option (`CONFIG_…`) that is missing, and the plugins that need it.
struct MissingOption {
    option: String,
    plugins: Vec<String>,
    is_used: bool,
}

pub(super) fn features(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let scratch = host.home.make()?;
    scratch.rtnl()?.raise_loopback()?;
    let mut missing = Vec::new();
    for entry in PLUGINS {
        for (kind, option) in entry.kinds {
            // The MAC address is invalid, so no link is created: a kernel that supports the kind refuses the address, and any
            // other kernel refuses the kind.
            let mac = Some(Mac([0; 6]));
            let probe = NewLink { name: "cnibox-probe", mac, ..NewLink::default() };
            let made = scratch.rtnl()?.make_link(&probe, kind, &[]);
            if made.is_err_and(|error| error.is_unsupported()) {
                add_missing(&mut missing, option, entry.name, "", host.uses(entry.name, ""));
            }
        }
    }
    for entry in PLUGINS {
        for (key, keys) in entry.probes {
            let Err(error) = scratch.run(|| status(entry, keys)) else { continue };
            let (plugin, text) = (entry.name, error.to_string());
            let options = options(&text);
            for option in &options {
                add_missing(&mut missing, option, plugin, key, host.uses(plugin, key));
            }
            if options.is_empty() {
                let what = format!("{plugin} {key} does not work in an empty namespace: {text}");
                let (why, fix) =
                    ("ADD will fail in the same way.", format!("cnibox help {plugin}"));
                match host.uses(plugin, key) {
                    true => found.add(Harm::Broken, what, why, fix),
                    false => found.add_unused(what, why, fix),
                }
            }
        }
    }
    for option in &missing {
        option.add_to(found);
    }
    Ok(())
}

fn add_missing(
    missing: &mut Vec<MissingOption>,
    option: &str,
    plugin: &str,
    key: &str,
    is_used: bool,
) {
    let name = if key.is_empty() { plugin.to_owned() } else { format!("{plugin} ({key})") };
    match missing.iter_mut().find(|known| known.option == option) {
        Some(known) => {
            known.is_used |= is_used;
            if !known.plugins.contains(&name) {
                known.plugins.push(name);
            }
        }
        None => missing.push(MissingOption { option: option.into(), plugins: vec![name], is_used }),
    }
}

/// Runs STATUS of a plugin in the namespace of this thread.
fn status(entry: &Entry, keys: &str) -> Result<()> {
    let plugin = entry.name;
    let comma = if keys.is_empty() { "" } else { "," };
    let conf = format!(r#"{{"cniVersion":"1.1.0","name":"probe","type":"{plugin}"{comma}{keys}}}"#);
    let request = Request::new(&Verb::Status, Json::parse(conf.as_bytes())?)?;
    let session = Session::without_container();
    let context = Context { request: &request, session: &session, plugins: PLUGINS };
    entry.run(&context, &Verb::Status).map(drop)
}

/// The names of kernel options in the text of an error.
fn options(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with(PREFIX)).collect()
}

const PREFIX: &str = "CONFIG_";

/// The module that an option builds; `None` if it builds no module.
fn module(option: &str) -> Option<String> {
    let name = option.strip_prefix(PREFIX).unwrap_or(option);
    match MODULES.iter().find(|(known, _)| name.starts_with(known)) {
        Some((_, "")) => None,
        Some((_, module)) => Some((*module).to_owned()),
        None => Some(name.strip_prefix("NET_").unwrap_or(name).to_ascii_lowercase()),
    }
}

/// The modules whose name differs from that of the option, by the beginning of the option. Empty: the option builds no module.
const MODULES: [(&str, &str); 7] = [
    ("NF_TABLES_", ""),
    ("BRIDGE_VLAN_FILTERING", ""),
    ("IP_MULTIPLE_TABLES", ""),
    ("NETFILTER_NETLINK", "nfnetlink"),
    ("NETFILTER_XT_MARK", "xt_mark"),
    ("NFT_BRIDGE_REJECT", "nft_reject_bridge"),
    ("VLAN_8021Q", "8021q"),
];

/// Whether the module is installed for the running kernel.
fn is_installed(module: &str) -> bool {
    let release = file::read_lossy("/proc/sys/kernel/osrelease").unwrap_or_default();
    let list = file::read_text(Path::new(&format!("/lib/modules/{}/modules.dep", release.trim())));
    list.is_ok_and(|list| list.contains(&format!("/{module}.ko")))
}

impl MissingOption {
    fn add_to(&self, found: &mut Findings) {
        let option = &self.option;
        let module = module(option);
        let fix = match &module {
            Some(module) if is_installed(module) => format!("modprobe {module}"),
            _ => format!("install a kernel with {option}, or the package with its modules"),
        };
        let module = module.map_or_else(String::new, |module| format!(" (module {module})"));
        let plugins = self.plugins.join(", ");
        let what = format_args!("the kernel lacks {option}{module}; needed by {plugins}");
        match self.is_used {
            true => found.add(Harm::Broken, what, "ADD fails in networks with the plugin.", fix),
            false => found.add_unused(what, "No network uses it.", fix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_errors_with_their_modules() {
        let text =
            "cannot publish ports: the kernel lacks CONFIG_NFT_NAT, CONFIG_NF_TABLES_IPV6; x";
        let found: Vec<_> =
            options(text).into_iter().map(|option| (option, module(option))).collect();
        let expected =
            [("CONFIG_NFT_NAT", Some("nft_nat".to_owned())), ("CONFIG_NF_TABLES_IPV6", None)];
        assert_eq!(found, expected);
        for (option, expected) in [
            ("CONFIG_NET_SCH_TBF", "sch_tbf"),
            ("CONFIG_IPVLAN", "ipvlan"),
            ("CONFIG_NET_VRF", "vrf"),
            ("CONFIG_VLAN_8021Q", "8021q"),
            ("CONFIG_NF_TABLES", "nf_tables"),
        ] {
            assert_eq!(module(option).as_deref(), Some(expected), "{option}");
        }
    }
}
