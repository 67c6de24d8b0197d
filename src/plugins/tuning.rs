//! `tuning`: sets sysctls of a container, and MAC address, MTU and flags of its interface.
//!
//! ```json
//! { "type": "tuning", "sysctl": { "net.ipv4.conf.IFNAME.arp_notify": "1" }, "mac": "02:00:00:00:00:01", "mtu": 1400 }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `sysctl` | object of strings | none | Sysctls below `net` and their values, written in this order. |
//! | `mac` | string | unchanged | MAC address of the interface. |
//! | `mtu` | integer | unchanged | MTU in bytes; at least 1280 if `prevResult` has IPv6 addresses, which the interface would lose. 0 means unchanged. |
//! | `promisc` | boolean | unchanged | true enables promiscuous mode; false means unchanged. |
//! | `allmulti` | boolean | unchanged | Receives all multicast frames, or not. |
//! | `txQLen` | integer | unchanged | Length of the transmit queue in packets. |
//! | `dataDir` | string | `/run/cni/tuning` | Directory of the saved values. |
//! | `runtimeConfig.mac` | string | value of `mac` | MAC address from the runtime (capability `mac`). Overrides `mac` and CNI_ARGS. |
//! | `args.cni.mac` | string | value of `mac` | Overrides all other MAC addresses. |
//! | `args.cni.mtu` | integer | value of `mtu` | Overrides `mtu`. |
//! | `args.cni.promisc` | boolean | value of `promisc` | Overrides `promisc`. |
//! | `args.cni.allmulti` | boolean | value of `allmulti` | Overrides `allmulti`. |
//! | `args.cni.txQLen` | integer | value of `txQLen` | Overrides `txQLen`. |
//! | `args.cni.sysctl` | object of strings | none | Added to `sysctl`, and overrides equal keys. |
//! | `CNI_ARGS: MAC` | string | value of `mac` | Overrides `mac`. |
//!
//! A sysctl key is read as in the reference, where `.` and `/` both separate names, or as in sysctl(8), where a name can have a
//! dot: `net/ipv4/conf/eth0.100/rp_filter` and `net.ipv4.conf.eth0/100.rp_filter`. The first of these two readings whose file
//! exists in the container is used. The first `IFNAME` is replaced by the name of the interface. If the file
//! `/etc/cni/tuning/allowlist.conf` exists, one of its lines, a regular expression, must match each key as it is written. The
//! syntax is that of Go's regexp. A line with one of these parts of it is an error:
//!
//! - Unicode classes (`\pL`), quotes (`\Q..\E`), octal numbers (`\123`), surrogates (`\x{D800}`), and `\<`, `\>` and `\b{`
//! - flags and names of groups: `(?i)`, `(?P<n>a)`; `(?:a)` is allowed
//! - a `{` as a literal: `a{,2}`, `a{02}`; `a\{` is allowed
//! - a number of repetitions of a group: `(ab){2}`; `(ab)*` and `a{2}` are allowed
//! - in a class: `[a[b]`, `&&`, `--` and `~~` as literals, a range that begins with `\d` or the first `-` or `]`, and `-[`
//! - more than about 20 nested groups, or a compiled size of more than 10 MB
//!
//! The plugin follows a plugin that made the interface.
//!
//! - **ADD** saves the old values in `dataDir/CONTAINERID_IFNAME.json` and sets the new ones. The file has the
//!   reference's format, with the sysctls and the identity of the namespace in addition. A second ADD keeps what the
//!   first one saved; values of another namespace are replaced. If the file is damaged, ADD fails. The result is
//!   `prevResult` with the new MAC address and MTU.
//! - **CHECK** compares the values with the configuration, numbers as the kernel reads them. If the file is in the default
//!   `dataDir`, the CHECK of the plugin that made the interface accepts the MTU that `tuning` set; `bridge` and `veth` accept a
//!   smaller MTU only.
//! - **DEL** restores the saved values, if the namespace exists and the file belongs to that namespace, and removes the
//!   file. From a damaged file it restores nothing, and writes a warning to stderr. It does not change a file or an
//!   interface of another network.
//! - **GC** removes the files of attachments that are not valid.
//! - **STATUS** fails if a key is wrong, a sysctl is not allowed or does not exist, or the allowlist cannot be read or
//!   `dataDir` cannot be written.

mod allowlist;
mod backup;
pub mod key;
mod pattern;
mod tuned;

use std::collections::{HashMap, HashSet};

use crate::attachments::owner::Owner;
use crate::cni::args::Args;
use crate::cni::json::{Json, keys};
use crate::cni::success::{Ip, Success};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::Attachment;
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::link::tuned::{DIR, record};
use crate::steps::link::{chained, host_link, mtu};
use crate::steps::state;
use crate::steps::undo::Undo;
use backup::Backup;
use tuned::Tuned;

pub const ENTRY: Entry = Entry {
    is_in_container: true,
    ..Entry::chained::<Tuning>(
        "tuning",
        "sets sysctls of the container, and the MAC address, MTU and flags of an interface",
    )
};

keys! {
    /// `wanted` reads all other keys: an error in them must not make DEL and GC fail.
    pub struct Tuning {
        "dataDir" => data_dir: String = DIR.into(),
    }
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "Required prevResult missing";

impl Plugin for Tuning {
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        let wanted = wanted(cx, &at.ifname)?;
        check_allowlist(cx)?;
        check_mtu(&wanted, chained::ips(&chained::prev_result(cx, WITHOUT_RESULT)?, at))
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success> {
        let wanted = netns.run(|| wanted(cx, &at.ifname))?;
        check_allowlist(cx)?;
        let mut result = chained::prev_result(cx, WITHOUT_RESULT)?;
        check_mtu(&wanted, chained::ips(&result, at))?;
        if wanted.is_empty() {
            return Ok(result);
        }
        let rtnl = cx.session.container()?;
        let link = link(&wanted, rtnl, at)?;
        let before = wanted.read_current(netns, link.as_ref())?;

        let mut undo = Undo::new(cx);
        let netns_id = backup::netns_id(netns, rtnl);
        self.save(cx, at, (&before, netns_id), &mut undo)?;
        undo.push("restore the old values", || before.restore(netns, rtnl, link.as_ref()));
        wanted.apply(netns, rtnl, link.as_ref())?;
        undo.keep();
        // The sandbox is not compared, as in the reference: plugins and runtimes write it in several ways.
        for interface in
            result.interfaces.iter_mut().filter(|interface| interface.name == *at.ifname)
        {
            if let Some(mac) = wanted.mac {
                interface.mac = mac.to_string();
            }
            // As in the reference, an interface that has no MTU in the result gets none.
            interface.mtu = wanted.mtu.filter(|_| interface.mtu != 0).unwrap_or(interface.mtu);
        }
        Ok(result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()> {
        let wanted = netns.run(|| wanted(cx, &at.ifname))?;
        chained::prev_result(cx, WITHOUT_RESULT)?;
        let link = link(&wanted, cx.session.container()?, at)?;
        wanted.compare(&wanted.read_current(netns, link.as_ref())?, &at.ifname)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()> {
        cx.or_warn(wanted(cx, "IFNAME"));
        let Some(at) = scope.one() else {
            return backup::collect(&self.data_dir, &cx.owners(scope));
        };
        let record = record(&self.data_dir, at);
        let owner = Owner::new(&cx.request.network, at);
        let Some(content) = record.read()? else {
            record.remove_aside();
            return Ok(());
        };
        let Some(backup) = Backup::of(&record, content) else { return record.remove() };
        if backup.is_of_another(&owner) {
            return Ok(());
        }
        if let Some(netns) = netns {
            let rtnl = cx.session.container()?;
            let link = rtnl.link(&at.ifname)?;
            let is_of_another = match &link {
                Some(link) => chained::is_of_another(cx, at, link)?,
                None => false,
            };
            if is_of_another && !backup.has_owner() {
                return Ok(());
            }
            let is_same = !backup.is_of_another_netns(backup::netns_id(netns, rtnl).as_deref());
            match backup.before {
                _ if !is_same => {}
                // The container renamed the interface, and another network has its name.
                Ok(before) if is_of_another => {
                    before.without_sysctls_of(&at.ifname).restore(netns, rtnl, None)?;
                }
                Ok(before) => before.restore(netns, rtnl, link.as_ref())?,
                Err(error) => {
                    cx.warn(format_args!("{error}; {at} stays as it is"));
                }
            }
        }
        record.remove()
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.check_possible(cx).map_err(Error::into_not_available)
    }
}

impl Tuning {
    /// For STATUS: fails if an ADD would fail on this host.
    fn check_possible(&self, cx: &Context<'_>) -> Result<()> {
        let wanted = wanted(cx, "IFNAME")?;
        check_allowlist(cx)?;
        check_mtu(&wanted, cx.request.prev_result()?.unwrap_or_default().ips.iter())?;
        for (path, _) in &wanted.sysctls {
            // The sysctls of an interface exist in the container only.
            let is_of_interface = path.contains("/conf/") || path.contains("/neigh/");
            if !is_of_interface && !sysctl::exists(path) {
                let msg = format!("cannot find sysctl {path}: it does not exist");
                return Err(Error::internal(msg));
            }
        }
        if wanted.is_empty() { Ok(()) } else { state::check_writable(&self.data_dir) }
    }

    /// Writes the values that the container had before the first ADD of the attachment to the file of the attachment.
    fn save<'a>(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        (now, netns_id): (&Tuned, Option<String>),
        undo: &mut Undo<'a>,
    ) -> Result<()> {
        let owner = Owner::new(&cx.request.network, at);
        let record = record(&self.data_dir, at);
        let old = record.read()?.transpose()?;
        let is_ours = |old: &Backup| {
            !old.is_of_another(&owner) && !old.is_of_another_netns(netns_id.as_deref())
        };
        let earlier = old.clone().and_then(|content| Backup::of(&record, Ok(content)));
        let earlier = match earlier.filter(is_ours) {
            // The present values can be those of an earlier ADD.
            Some(backup) => backup.before?,
            None => Tuned::default(),
        };
        let before = earlier.or(now.clone());
        record.write(backup::content(&before, &owner, netns_id).as_bytes())?;
        undo.push("restore the record", move || match &old {
            Some(old) => record.write(old),
            None => record.remove(),
        });
        Ok(())
    }
}

/// The interface, if a key changes one of its attributes.
fn link(wanted: &Tuned, rtnl: &Rtnl, at: &Attachment) -> Result<Option<Link>> {
    if wanted.changes_link() { host_link::in_container(rtnl, at).map(Some) } else { Ok(None) }
}

/// Fails if the MTU is too small for IPv6 and there are IPv6 addresses: the kernel would remove them.
fn check_mtu<'a>(wanted: &Tuned, mut ips: impl Iterator<Item = &'a Ip>) -> Result<()> {
    let has_v6 = ips.any(|ip| ip.address.addr().is_ipv6());
    match wanted.mtu {
        Some(mtu) if has_v6 && mtu::is_too_small(mtu) => Err(mtu::too_small(mtu)),
        _ => Ok(()),
    }
}

/// Fails if the allowlist does not allow a configured sysctl.
fn check_allowlist(cx: &Context<'_>) -> Result<()> {
    let mut sysctls = sysctls(&cx.request.json)?;
    sysctls.extend(self::sysctls(args(cx))?);
    allowlist::check(&sysctls)
}

fn args<'a>(cx: &'a Context<'_>) -> &'a Json {
    cx.request.json.get("args").and_then(|args| args.get("cni")).unwrap_or(&Json::Null)
}

/// The configured values. If there is a container, the caller must be in its namespace: a sysctl key can mean two paths, and
/// the files that exist there decide which one.
fn wanted(cx: &Context<'_>, ifname: &str) -> Result<Tuned> {
    let (json, by_args) = (&cx.request.json, args(cx));
    let mut wanted = Tuned::read(by_args)?;
    let by_runtime = json.get("runtimeConfig").and_then(|config| config.get("mac")).cloned();
    for mac in [by_runtime, Args::parse(&cx.request.parameters.args)?.mac.map(Json::from)] {
        wanted = wanted.or(Tuned::read(&Json::object([("mac", mac)]))?);
    }
    wanted = wanted.or(Tuned::read(json)?);
    wanted.promisc = wanted.promisc.filter(|is_on| *is_on);
    wanted.sysctls = merged(&sysctls(json)?, &sysctls(by_args)?, ifname)?;
    Ok(wanted)
}

/// The sysctls of the configuration in their order, with the values of `args.cni`; then the other sysctls of `args.cni`.
fn merged(
    keys: &[(&str, &str)],
    of_args: &[(&str, &str)],
    ifname: &str,
) -> Result<Vec<(String, String)>> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for list in [keys, of_args] {
        let earlier = merged.len();
        for (key, value) in list {
            let path = key::path(key, ifname)?;
            match places.get(&path) {
                // Two keys of the list name the same sysctl.
                Some(at) if *at >= earlier => return Err(duplicate(key)),
                Some(at) => merged[*at].1 = (*value).into(),
                None => {
                    places.insert(path.clone(), merged.len());
                    merged.push((path, (*value).into()));
                }
            }
        }
    }
    Ok(merged)
}

/// The keys and values of `sysctl` as they are written.
fn sysctls(json: &Json) -> Result<Vec<(&str, &str)>> {
    let entries = match json.get("sysctl") {
        None => return Ok(Vec::new()),
        Some(Json::Object(entries)) => entries,
        Some(_) => return Err(tuned::unreadable(format_args!("sysctl: it is not an object"))),
    };
    let (mut list, mut known) = (Vec::new(), HashSet::new());
    for (key, value) in entries {
        let Json::String(value) = value else {
            return Err(tuned::unreadable(format_args!("sysctl.{key}: it is not a string")));
        };
        if !known.insert(key) {
            return Err(duplicate(key));
        }
        list.push((key.as_str(), value.as_str()));
    }
    Ok(list)
}

fn duplicate(key: &str) -> Error {
    Error::config("duplicated sysctl keys are not allowed")
        .with_details(format_args!("sysctl.{key}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_of_args_override_those_of_the_configuration() {
        let list = |text: &'static [(&str, &str)]| text.to_vec();
        let keys = list(&[("net.a", "1"), ("net.b", "2")]);
        let args = list(&[("net/b", "3"), ("net.c", "4")]);
        let merged = merged(&keys, &args, "eth0").unwrap();
        let merged: Vec<(&str, &str)> =
            merged.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(merged, [("net/a", "1"), ("net/b", "3"), ("net/c", "4")]);
        assert!(super::merged(&list(&[("net.a", "1"), ("net/a", "2")]), &[], "eth0").is_err());
    }
}
