//! `cnibox networks`: what is configured, and `create` and `rm` with podman's words.

use std::str::FromStr;

use ipnet::IpNet;

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::kernel::sys::{warn, warning};
use crate::names::{IfName, NetworkName};
use crate::runtime::conf;
use crate::runtime::lifecycle::Runtime;
use crate::runtime::networks::Listed;
use crate::runtime::new_network::{Kind, NewNetwork};

use super::attach::invalid;
use super::call::Call;
use super::parameters::{self, TIMEOUT_S, not_understood};
use super::say;
use super::table::Table;

/// `cnibox networks`, `networks create` and `networks rm`.
pub(super) fn networks(call: &Call<'_>) -> Result<u8> {
    let runtime = parameters::runtime(call.plugins, TIMEOUT_S);
    match call.command.as_str() {
        "networks create" => create(call, &runtime)?,
        "networks rm" => remove(call, &runtime)?,
        _ => list(&runtime, call.has("--json"))?,
    }
    Ok(0)
}

fn list(runtime: &Runtime, is_json: bool) -> Result<()> {
    let (listed, broken) = runtime.networks()?;
    let mut objects = Vec::new();
    let mut table = Table::new(&[
        "NETWORK",
        "SUBNETS",
        "PLUGINS",
        "MISSING",
        "CONTAINERD",
        "CRI-O",
        "PODMAN",
        "FILE",
    ]);
    let mut built_in: Vec<&str> = Vec::new();
    for it in &listed {
        let mut subnets = Vec::new();
        for subnet in &it.subnets {
            subnets.push(subnet.to_string());
        }
        let mut plugins: Vec<String> = Vec::new();
        for plugin in &it.network.plugins {
            plugins.push(conf::kind(plugin).into());
        }
        if is_json {
            objects.push(object(it, &subnets, &plugins));
        } else {
            add_row(&mut table, it, &subnets, &plugins);
        }
        for kind in &it.built_in {
            if !built_in.contains(&kind.as_str()) {
                built_in.push(kind);
            }
        }
    }
    if is_json {
        super::say_json(Object::default().list("networks", objects));
    } else {
        table.print();
    }
    for error in &broken {
        warning(format_args!("warning: {error}"));
    }
    built_in.sort_unstable();
    if !built_in.is_empty() {
        let kinds = built_in.join(", ");
        warning(format_args!(
            "note: only cnibox finds {kinds}: no directory of CNI_PATH has such a file"
        ));
    }
    Ok(())
}

fn add_row(table: &mut Table, it: &Listed, subnets: &[String], plugins: &[String]) {
    let order = |order: Option<u32>| match order {
        Some(order) => order.to_string(),
        None => String::new(),
    };
    table.row(&[
        &it.network.name,
        &subnets.join(","),
        &plugins.join(","),
        &it.missing.join(","),
        &order(it.containerd),
        &order(it.crio),
        &order(it.podman),
        &it.network.file.display(),
    ]);
}

fn object(it: &Listed, subnets: &[String], plugins: &[String]) -> Json {
    let network = &it.network;
    let mut order = Object::default();
    for (runtime, place) in
        [("containerd", it.containerd), ("cri-o", it.crio), ("podman", it.podman)]
    {
        if let Some(place) = place {
            order.number(runtime, place.into());
        }
    }
    let mut object = Object::default();
    object.text("name", &network.name).text("file", &network.file.to_string_lossy());
    object.text("cniVersion", &network.version.text()).texts("subnets", subnets);
    object.texts("plugins", plugins).texts("missing", &it.missing);
    object.texts("builtIn", &it.built_in).put("order", order.json()).json()
}

fn create(call: &Call<'_>, runtime: &Runtime) -> Result<()> {
    let new = new_network(call)?;
    runtime.create_network(&new)?;
    say(&new.name);
    let (listed, _) = runtime.networks()?;
    match listed.as_slice() {
        [first, _, ..] if first.network.name == new.name && first.containerd.is_some() => {
            warn("note: its file is the first now: containerd and CRI-O take this network");
        }
        _ => {}
    }
    Ok(())
}

fn new_network(call: &Call<'_>) -> Result<NewNetwork> {
    let wanted = call.value("--type").unwrap_or("bridge");
    let Some((_, kind)) = Kind::ALL.into_iter().find(|(name, _)| *name == wanted) else {
        let all = Kind::ALL.map(|(name, _)| name).join(", ");
        return Err(not_understood(format!("--type {wanted}: not one of {all}")));
    };
    let mut new = NewNetwork {
        name: NetworkName::new(&*call.operands[0]).map_err(invalid)?,
        kind,
        subnets: Vec::new(),
        gateways: Vec::new(),
        bridge: None,
        parent: None,
        mode: None,
        mtu: None,
        vlan: None,
        isolate: false,
    };
    for subnet in &call.values("--subnet") {
        new.subnets.push(parse::<IpNet>("--subnet", subnet, "a subnet")?.trunc());
    }
    for gateway in &call.values("--gateway") {
        new.gateways.push(parse("--gateway", gateway, "an IP address")?);
    }
    for option in &call.values("--opt") {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        set(&mut new, key, value)?;
    }
    if let Some(parent) = call.value("--parent") {
        set(&mut new, "parent", parent)?;
    }
    match call.value("--interface-name") {
        Some(bridge) if kind == Kind::Bridge => {
            new.bridge = Some(ifname("--interface-name", bridge)?)
        }
        Some(parent) => set(&mut new, "parent", parent)?,
        None => {}
    }
    match kind {
        Kind::Vlan if new.parent.is_none() || new.vlan.is_none() => {
            Err(not_understood("a vlan needs --parent and -o vlan=ID"))
        }
        _ => Ok(new),
    }
}

/// Sets an option of podman. An option that the type does not have is an error.
fn set(new: &mut NewNetwork, key: &str, value: &str) -> Result<()> {
    let option = format!("-o {key}");
    match (key, new.kind) {
        ("mtu", _) => new.mtu = Some(parse(&option, value, "a number")?),
        ("parent", kind) if kind.has_parent() => new.parent = Some(ifname(&option, value)?),
        ("mode", Kind::Macvlan | Kind::Ipvlan) if !value.is_empty() => {
            new.mode = Some(value.into())
        }
        ("vlan", Kind::Bridge | Kind::Vlan) => {
            new.vlan = Some(parse::<u16>(&option, value, "the number of a VLAN")?.into());
        }
        ("isolate", Kind::Bridge) => new.isolate = parse(&option, value, "true or false")?,
        _ => return Err(not_understood(format!("-o {key}={value}: not an option of this type"))),
    }
    Ok(())
}

fn ifname(option: &str, name: &str) -> Result<IfName> {
    IfName::new(name).map_err(|error| not_understood(format!("{option}: {error}")))
}

fn parse<T: FromStr>(option: &str, value: &str, what: &str) -> Result<T> {
    value.parse().map_err(|_| not_understood(format!("{option}: {value:?} is not {what}")))
}

fn remove(call: &Call<'_>, runtime: &Runtime) -> Result<()> {
    if call.operands.is_empty() {
        return Err(not_understood("NAME is missing"));
    }
    let mut errors = Vec::new();
    for name in &call.operands {
        let name = NetworkName::new(name.as_str()).map_err(invalid)?;
        match runtime.remove_network(&name, call.has("--force")) {
            Ok(()) => say(&name),
            Err(error) => errors.push(error),
        }
    }
    Error::joined(errors)
}
