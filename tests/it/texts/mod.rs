//! Texts that programs match: where the reference has a message for a mistake, ours begins with the same text.
//!
//! The sections are those of the notes on the reference's behaviour. Codes are ours where the reference says 999 for all.

mod configuration;
mod environment;
mod state;

use serde_json::{Value, json};

use crate::world::{Call, with};

/// A call that fails, and how its message begins.
struct Row {
    section: &'static str,
    plugin: &'static str,
    /// Laid over `base`.
    more: Value,
    code: u64,
    begins: &'static str,
}

fn row(
    section: &'static str,
    plugin: &'static str,
    more: Value,
    code: u64,
    begins: &'static str,
) -> Row {
    Row { section, plugin, more, code, begins }
}

impl Row {
    fn config(&self) -> Value {
        with(&base(self.plugin), self.more.clone())
    }
}

/// A configuration without a mistake, as far as a plugin needs anything.
fn base(plugin: &str) -> Value {
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": plugin});
    let host_local =
        json!({"ipam": {"type": "host-local", "dataDir": "/run/nets", "subnet": "10.1.0.0/24"}});
    let prev_result = json!({"prevResult": {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}],
    }});
    match plugin {
        "bridge" | "veth" | "ptp" | "macvlan" | "ipvlan" | "vlan" | "dummy" | "host-device"
        | "tap" => config,
        "loopback" | "flannel" | "dhcp" => config,
        "host-local" | "static" => with(&config, host_local),
        _ => with(&config, prev_result),
    }
}

/// Why the error of a call is not as it should be.
fn problem(of: &str, call: Call<'_>, code: u64, begins: &str) -> Option<String> {
    let outcome = call.run();
    let report = || format!("{of}: expected code {code}, {begins:?}: {}", outcome.report());
    if outcome.status != 1 {
        return Some(report());
    }
    let error = outcome.error_object();
    (error.code != code || !error.msg.starts_with(begins)).then(report)
}

#[track_caller]
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
