//! Calls of plugins exactly as libcni makes them, with its cache.

use serde_json::{Value, json};

use super::Play;
use super::calls::under;
use super::containers::writing;
use crate::model::{Holds, Key, fails, plugins};
use crate::node::{Call, GO_PLUGINS, Outcome, PLUGINS};
use crate::step::{By, Fault};

/// A call that finds its attachment locked waits 5 s each time.
const ATTEMPTS_MAX: u32 = 12;

/// The outcome of a list of plugins.
pub enum Listed {
    Done(Value),
    Failed(String),
    /// The first plugin failed, or a runtime that takes everything back.
    FailedAsWhole(String),
    /// A plugin was killed.
    Killed,
}

impl Listed {
    /// The outcome of `cnibox add`.
    pub fn of_command(outcome: &Outcome) -> Self {
        match outcome.status {
            0 => Self::Done(serde_json::from_str(&outcome.stdout).unwrap_or_default()),
            1 => Self::FailedAsWhole(outcome.report()),
            _ => Self::Killed,
        }
    }
}

/// A call of all plugins of a list.
pub struct Of<'a> {
    pub key: &'a Key,
    pub path: &'a str,
    pub config: &'a Value,
    pub capabilities: &'a Value,
    pub by: By,
    pub fault: &'a Fault,
    pub number: u64,
}

impl Of<'_> {
    fn directory(&self) -> &'static str {
        if self.by == By::Go { GO_PLUGINS } else { PLUGINS }
    }

    fn call(&self, verb: &str, plugin: &Value, previous: &Value) -> Call {
        let mut config = plugin.clone();
        config["name"] = self.config["name"].clone();
        config["cniVersion"] = self.config["cniVersion"].clone();
        // Debian's plugins are older than version 1.1.0.
        if self.by == By::Go && config["cniVersion"] == "1.1.0" {
            config["cniVersion"] = "1.0.0".into();
        }
        if *previous != Value::Null {
            config["prevResult"] = previous.clone();
        }
        let mut runtime = serde_json::Map::new();
        for (name, value) in self.capabilities.as_object().into_iter().flatten() {
            if plugin["capabilities"][name] == true {
                runtime.insert(name.clone(), value.clone());
            }
        }
        if !runtime.is_empty() {
            config["runtimeConfig"] = Value::Object(runtime);
        }
        let directory = self.directory();
        let kind = plugin["type"].as_str().unwrap_or_default();
        Call::new(&[format!("{directory}/{kind}")])
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &self.key.id)
            .env("CNI_NETNS", self.path)
            .env("CNI_IFNAME", &self.key.interface)
            .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=pod")
            .env("CNI_PATH", directory)
            .stdin(config.to_string())
    }
}

impl Play {
    pub(super) fn libcni_add(&mut self, of: &Of<'_>) -> Holds<Listed> {
        let mut result = Value::Null;
        let list = plugins(of.config);
        for (index, plugin) in list.iter().enumerate() {
            let call = of.call("ADD", plugin, &result);
            let outcome = self.plugin(of, index, list.len(), call)?;
            match outcome.status {
                0 => {
                    result = serde_json::from_str(&outcome.stdout).unwrap_or_default();
                    if !result.is_object() || result.get("code").is_some() {
                        return fails("an ADD returns a result", outcome.report());
                    }
                }
                1 if index == 0 => return Ok(Listed::FailedAsWhole(outcome.report())),
                1 => return Ok(Listed::Failed(outcome.report())),
                _ => return Ok(Listed::Killed),
            }
        }
        let outcome = self.write_cache(of, &result);
        if outcome.status != 0 {
            // libcni leaves the part that it could write.
            self.model.damaged.insert(of.key.cache());
            return Ok(Listed::Failed(outcome.report()));
        }
        Ok(Listed::Done(result))
    }

    /// DEL in the reverse order. libcni stops at the first error.
    pub(super) fn libcni_del(&mut self, of: &Of<'_>, result: &Value) -> Holds<Listed> {
        let list = plugins(of.config);
        for (index, plugin) in list.iter().enumerate().rev() {
            let call = of.call("DEL", plugin, result);
            let outcome = self.plugin(of, index, list.len(), call)?;
            match outcome.status {
                0 if !outcome.stdout.is_empty() && of.by != By::Go => {
                    return fails("a DEL prints nothing", outcome.report());
                }
                0 => {}
                1 => return Ok(Listed::Failed(outcome.report())),
                _ => return Ok(Listed::Killed),
            }
        }
        let outcome = self.node.run(&Call::new(&["rm", "-rf", &of.key.cache()]));
        Ok(match outcome.status {
            0 => Listed::Done(Value::Null),
            _ => Listed::Failed(outcome.report()),
        })
    }

    pub(super) fn libcni_check(&mut self, of: &Of<'_>, result: &Value) -> Holds<Listed> {
        let list = plugins(of.config);
        for (index, plugin) in list.iter().enumerate() {
            let call = of.call("CHECK", plugin, result);
            let outcome = self.plugin(of, index, list.len(), call)?;
            match outcome.status {
                0 => {}
                1 => return Ok(Listed::Failed(outcome.report())),
                _ => return Ok(Listed::Killed),
            }
        }
        Ok(Listed::Done(Value::Null))
    }

    /// GC with these valid attachments.
    pub(super) fn libcni_gc(&mut self, of: &Of<'_>, valid: &[Key]) -> Holds<Listed> {
        let valid: Vec<Value> = valid
            .iter()
            .map(|key| json!({"containerID": key.id, "ifname": key.interface}))
            .collect();
        let list = plugins(of.config);
        for (index, plugin) in list.iter().enumerate() {
            let mut plugin = plugin.clone();
            plugin["cni.dev/valid-attachments"] = Value::Array(valid.clone());
            plugin["cni.dev/attachments"] = Value::Array(valid.clone());
            let mut call = of.call("GC", &plugin, &Value::Null);
            for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"] {
                call.env.remove(name);
            }
            let outcome = self.plugin(of, index, list.len(), call)?;
            match outcome.status {
                0 => {}
                1 => return Ok(Listed::Failed(outcome.report())),
                _ => return Ok(Listed::Killed),
            }
        }
        Ok(Listed::Done(Value::Null))
    }

    /// Runs one plugin; the fault is that of the plugin that the number chooses.
    fn plugin(&mut self, of: &Of<'_>, index: usize, all: usize, call: Call) -> Holds<Outcome> {
        let chosen = usize::try_from(of.number % all.max(1) as u64).unwrap_or_default();
        let is_faulty = chosen == index && of.by != By::Go;
        let call = if is_faulty { under(call, of.fault) } else { call };
        let mut outcome = self.node.run(&call);
        for _ in 0..ATTEMPTS_MAX {
            if !self.is_beside || !says_try_again(&outcome) {
                break;
            }
            self.note(&outcome)?;
            outcome = self.node.run(&call);
        }
        self.note(&outcome)?;
        if of.by != By::Go {
            self.well_formed(&outcome)?;
        }
        Ok(outcome)
    }

    /// The error of a plugin is one object with a code and a message; the success has none.
    pub(super) fn well_formed(&mut self, outcome: &Outcome) -> Holds {
        if outcome.status < 0 || outcome.status > 128 {
            return Ok(());
        }
        let rule = "an error is one well-formed object";
        if outcome.status != 1 {
            let is_fine = outcome.status == 0;
            return if is_fine { Ok(()) } else { fails(rule, outcome.report()) };
        }
        let object: Value = match serde_json::from_str(&outcome.stdout) {
            Ok(object) => object,
            Err(error) => return fails(rule, format!("{error}: {}", outcome.report())),
        };
        let known = ["cniVersion", "code", "msg", "details"];
        let has_only_known = object
            .as_object()
            .is_some_and(|object| object.keys().all(|key| known.contains(&key.as_str())));
        let code = object["code"].as_u64().unwrap_or_default();
        let is_code = (1..=11).contains(&code) || (50..=51).contains(&code) || code >= 100;
        let has_msg = object["msg"].as_str().is_some_and(|msg| !msg.is_empty());
        if has_only_known && is_code && has_msg && object["cniVersion"].is_string() {
            Ok(())
        } else {
            fails(rule, outcome.report())
        }
    }

    fn write_cache(&mut self, of: &Of<'_>, result: &Value) -> Outcome {
        let mut entry = json!({
            "kind": "cniCacheV1", "containerId": of.key.id, "config": base64(of.config.to_string().as_bytes()),
            "ifName": of.key.interface, "networkName": of.key.network, "netns": of.path,
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "pod"]], "result": result,
        });
        if *of.capabilities != Value::Null {
            entry["capabilityArgs"] = of.capabilities.clone();
        }
        self.node.run(&writing(&of.key.cache()).stdin(entry.to_string()))
    }
}

/// Code 11 (try again later) of a plugin.
fn says_try_again(outcome: &Outcome) -> bool {
    let object: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    outcome.status == 1 && object["code"] == 11
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut bits = 0_usize;
        for index in 0..3 {
            bits = bits << 8 | usize::from(chunk.get(index).copied().unwrap_or(0));
        }
        for digit in 0..4 {
            let is_there = digit <= chunk.len();
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(if is_there { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}
