//! The life of containers, networks and the host itself.

use serde_json::{Value, json};

use super::judge::number_in;
use super::{Effect, Play};
use crate::look::Seen;
use crate::model::{Container, Holds, Key, Space, plugins};
use crate::node::{CONFIGURATIONS, Call};
use crate::step::{Action, Step};

/// The address of the host in the network outside, and that of a neighbour there.
pub const UPLINK: &str = "192.0.2.2";
pub const OUTSIDE: &str = "/run/netns/outside";

/// The kernel ends a namespace within milliseconds, or when a daemon has closed its socket.
const END_TRIES: u32 = 200;

/// Writes stdin to a file.
pub fn writing(path: &str) -> Call {
    let script = "mkdir -p \"$(dirname \"$1\")\" && cat > \"$1\"";
    Call::new(&["sh", "-c", script, "sh", path])
}

impl Play {
    /// The uplink, with a neighbour on its other end.
    pub(super) fn furnish_host(&mut self) {
        self.node.ask(&json!({"do": "netns", "path": OUTSIDE}));
        self.node.must(&Call::shell(&format!(
            "mkdir -p /run/flannel; printf '%s\\n' FLANNEL_NETWORK=10.9.0.0/16 FLANNEL_SUBNET=10.9.1.1/24 FLANNEL_MTU=1450 \\
                 FLANNEL_IPMASQ=true > /run/flannel/subnet.env
             ip link set lo up
             ip link add up0 type veth peer name lan0 netns {OUTSIDE}
             ip address add {UPLINK}/24 dev up0; ip link set up0 up
             ip route add default via 192.0.2.9
             nsenter --net={OUTSIDE} sh -c 'ip link set lo up; ip address add 192.0.2.9/24 dev lan0; ip link set lan0 up'"
        )));
    }

    pub(super) fn write_network(&mut self, step: &Step) -> Holds<Effect> {
        // libcni has no entry of an ADD that failed. Its DEL uses the configuration of today, perhaps without a plugin.
        let name = format!("n{}", step.network);
        let of_network = self.model.used.keys().filter(|key| key.network == name);
        let uncached = of_network.filter(|key| !self.seen.files.contains_key(&key.cache()));
        let uncached: Vec<Key> = uncached.cloned().collect();
        self.model.forgotten.extend(uncached);
        self.model.networks.insert(step.network, step.config.clone());
        let path = format!("{CONFIGURATIONS}/n{}.conflist", step.network);
        self.write(&path, &step.config.to_string());
        for plugin in plugins(&step.config) {
            if plugin["ipam"]["type"] == "dhcp" && self.model.dhcp.is_none() {
                self.begin_dhcp();
            }
            if let Some(device) = plugin["device"].as_str() {
                self.make_card(device);
            }
        }
        Ok(Effect::none())
    }

    /// A link of the host that `host-device` moves.
    pub(super) fn make_card(&mut self, device: &str) {
        let wire = format!("{device}w");
        self.node.shell(&format!(
            "ip link show {device} || ip link add {device} type veth peer name {wire}; ip link set {wire} up"
        ));
    }

    pub(super) fn write(&mut self, path: &str, content: &str) {
        self.node.must(&writing(path).stdin(content));
    }

    pub(super) fn make_container(&mut self, step: &Step) -> Holds<Effect> {
        if self.model.containers.contains_key(&step.container) {
            return Ok(Effect::none());
        }
        let id = format!("c{}", step.container);
        let container = match step.action {
            Action::Shared => {
                let other = usize::try_from(step.number).unwrap_or_default();
                let Some(other) = self.model.containers.get(&other) else {
                    return Ok(Effect::none());
                };
                Container { id, runner: None, ..other.clone() }
            }
            Action::Process => {
                let pid = self.start_process(step.number);
                let path = format!("/proc/{pid}/ns/net");
                Container { id, space: self.new_space(&path), path, pid: Some(pid), runner: None }
            }
            _ => {
                let path = format!("/run/netns/c{}", step.container);
                // Another container that shared a namespace can have its place.
                if self.model.containers.values().any(|other| other.path == path) {
                    return Ok(Effect::none());
                }
                self.node.ask(&json!({"do": "netns", "path": path}));
                Container { id, space: self.new_space(&path), path, pid: None, runner: None }
            }
        };
        self.model.containers.insert(step.container, container);
        Ok(Effect::none())
    }

    /// A process with a network namespace of its own. A number says which earlier process id it gets again.
    fn start_process(&mut self, number: u64) -> u64 {
        let taken: Vec<u64> =
            self.model.containers.values().filter_map(|container| container.pid).collect();
        let free: Vec<u64> =
            self.model.pids.iter().copied().filter(|pid| !taken.contains(pid)).collect();
        let again = usize::try_from(number).unwrap_or_default().checked_sub(1);
        let again = again.and_then(|index| free.get(index % free.len().max(1)).copied());
        let answer = self.node.ask(&json!({
            "do": "start", "argv": ["sleep", "100000"], "env": {"PATH": crate::node::TOOLS}, "network": true,
            "pid": again,
        }));
        let pid = answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        if !self.model.pids.contains(&pid) {
            self.model.pids.push(pid);
        }
        pid
    }

    pub(super) fn new_space(&mut self, path: &str) -> usize {
        self.node.run(&Call::new(&["ip", "link", "set", "lo", "up"]).netns(path));
        self.model.spaces.push(Space { path: path.into(), is_alive: true, ..Space::default() });
        self.model.spaces.len() - 1
    }

    /// The namespace of a container ends. Containers that share it end, too.
    pub(super) fn end_container(&mut self, step: &Step) -> Holds<Effect> {
        let Some(container) = self.model.containers.get(&step.container).cloned() else {
            return Ok(Effect::none());
        };
        let Container { path, space, pid, .. } = container;
        self.model.spaces[space].is_alive = false;
        for pid in std::mem::take(&mut self.model.spaces[space].pids) {
            self.node.ask(&json!({"do": "kill", "pid": pid}));
        }
        self.model.strangers.remove(&path);
        let mut shared = self.model.containers.values().filter(|other| other.space == space);
        let runner = shared.find_map(|other| other.runner);
        let is_of_another = |other: &Container| other.space != space;
        self.model.containers.retain(|_, other| is_of_another(other));
        if let Some(runner) = runner {
            self.end_runner(runner, step);
        }
        if let Some(pid) = pid {
            self.node.ask(&json!({"do": "kill", "pid": pid}));
            return Ok(Effect::none());
        }
        self.node.shell(&format!("umount {path}"));
        match step.action {
            Action::Unmount => {}
            Action::Replace => {
                self.node.ask(&json!({"do": "netns", "path": path}));
                let id = format!("c{}", step.container);
                let space = self.new_space(&path);
                let container = Container { id, path, space, pid: None, runner: None };
                self.model.containers.insert(step.container, container);
            }
            _ => drop(self.node.shell(&format!("rm -f {path}"))),
        }
        Ok(Effect::none())
    }

    /// Waits until the kernel has given up the numbers of namespaces that have ended. It does so some time after their last
    /// process, and the daemon of `dhcp` can have a socket in them.
    pub(super) fn wait_for_ends(&mut self) {
        let ended = self.model.attachments.iter().filter(|(_, known)| !self.model.lives(known));
        let records = ended.filter_map(|(key, _)| self.seen.files.get(&key.record()));
        let ended: Vec<String> = records
            .filter_map(|record| number_in(record))
            .map(|number| number.to_string())
            .collect();
        for _ in 0..END_TRIES {
            let known = self.node.must(&Call::shell("ip netns list-id"));
            let mut numbers = known.lines().filter_map(|line| line.split_whitespace().nth(1));
            if !numbers.any(|number| ended.iter().any(|ended| ended == number)) {
                break;
            }
            self.node.must(&Call::shell("sleep 0.05"));
        }
    }

    pub(super) fn reboot(&mut self) -> Holds<Effect> {
        self.model.boots += 1;
        let id = format!("00000000-0000-4000-8000-{:012}", self.model.boots);
        let answer: Value = self.node.ask(&json!({"do": "boot", "id": id}));
        assert!(answer.get("error").is_none(), "{answer}");
        self.model.containers.clear();
        self.model.strangers.clear();
        self.model.spaces.iter_mut().for_each(|space| space.is_alive = false);
        self.furnish_host();
        if self.model.dhcp.is_some() {
            self.begin_dhcp();
        }
        let devices: Vec<Value> = self.model.networks.values().flat_map(plugins).collect();
        for device in devices.iter().filter_map(|plugin| plugin["device"].as_str()) {
            self.make_card(device);
        }
        Ok(Effect::none())
    }

    pub(super) fn look(&mut self) -> Seen {
        let paths = self.model.paths();
        Seen::look(&mut self.node, &paths)
    }
}
