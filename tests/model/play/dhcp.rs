//! The DHCP server of the network outside, the daemon of `dhcp`, and the addresses that follow the server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::calls::{Made, add_call, cnibox};
use super::containers::OUTSIDE;
use super::judge::has_own_number;
use super::libcni::Listed;
use super::{Effect, Play};
use crate::history::LAN;
use crate::look::names;
use crate::model::{Attachment, Holds, Key, State, bare, fails};
use crate::node::{Call, PLUGINS, TOOLS};
use crate::step::{Action, By, Step};

const CONTROL: &str = "/mnt/dhcp";
/// A client that had no answer asks again after 60 s, and again after 60 s, until its lease ends: see the server. Two packets
/// at once can be one: masquerading (bridge-nf-call-iptables) gives both the same port, and the kernel drops the later one.
const LIMIT: Duration = Duration::from_secs(200);

/// The server and the daemon, which run since a network asks for them.
#[derive(Clone, Debug, Default)]
pub struct Dhcp {
    /// The third byte of the addresses.
    pub subnet: u8,
    /// The server has changed the addresses, and not all attachments are known to have followed.
    pub is_moving: bool,
    daemon: u64,
}

impl Dhcp {
    fn gives(&self, address: &str) -> bool {
        address.starts_with(&format!("10.8.{}.", self.subnet))
    }
}

impl Attachment {
    pub fn has_dhcp(&self) -> bool {
        self.config["plugins"][0]["ipam"]["type"] == "dhcp"
    }
}

impl Play {
    pub(super) fn begin_dhcp(&mut self) {
        self.model.dhcp.get_or_insert_default();
        self.node.must(&Call::shell(&format!(
            "set -e; ip link add {LAN} type bridge; ip address add 10.8.0.1/16 dev {LAN}; ip link set {LAN} up
             echo 1 > /proc/sys/net/ipv4/ip_forward
             ip link add lan1 type veth peer name lan1 netns {OUTSIDE}; ip link set lan1 master {LAN} up
             nsenter --net={OUTSIDE} sh -e -c 'ip address add 10.8.0.2/16 dev lan1; ip link set lan1 up'"
        )));
        self.server("give");
        let argv = ["/proc/1/exe", "--dhcp-server", "lan1", CONTROL];
        self.node
            .ask(&json!({"do": "start", "argv": argv, "env": {"PATH": TOOLS}, "netns": OUTSIDE}));
        self.start_daemon();
    }

    fn server(&mut self, mode: &str) {
        let subnet = self.model.dhcp.get_or_insert_default().subnet;
        self.node.must(&Call::shell(&format!(
            "echo {subnet} {mode} > {CONTROL}.new; mv {CONTROL}.new {CONTROL}"
        )));
    }

    fn start_daemon(&mut self) {
        let dhcp = format!("{PLUGINS}/dhcp");
        let times = ["-timeout", "1s", "-resendmax", "1s", "-resendtimeout", "3s"];
        let argv = [&[dhcp.as_str(), "daemon"], &times[..]].concat();
        let answer = self.node.ask(&json!({"do": "start", "argv": argv, "env": {"PATH": TOOLS}}));
        let pid = answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        self.model.dhcp.get_or_insert_default().daemon = pid;
        self.node.must(&Call::shell(
            "i=0; until ss -xlH | grep -q dhcp.sock; do sleep 0.01; i=$((i+1)); [ $i -lt 2000 ] || exit 1; done",
        ));
    }

    fn kill_daemon(&mut self) {
        let pid = self.model.dhcp.get_or_insert_default().daemon;
        let answer = self.node.ask(&json!({"do": "kill", "pid": pid}));
        assert!(answer.get("error").is_none(), "the daemon of dhcp has ended: {answer}");
    }

    pub(super) fn dhcp(&mut self, step: &Step) -> Holds<Effect> {
        if self.model.dhcp.is_none() {
            return Ok(Effect::none());
        }
        match step.number % 4 {
            0 => {
                self.renumber();
                // The next steps race with the daemon, or all wait for it.
                if (step.number / 4).is_multiple_of(2) { Ok(Effect::none()) } else { self.settle() }
            }
            1 => {
                self.server("refuse");
                let effect = self.during_dhcp(step);
                self.node.shell("sleep 2");
                self.renumber();
                self.settle()?;
                effect.map(|_| Effect::shaking())
            }
            2 => {
                self.server("silent");
                let effect = self.during_dhcp(step);
                self.server("give");
                effect
            }
            _ => {
                self.kill_daemon();
                let effect = self.during_dhcp(step);
                self.start_daemon();
                effect
            }
        }
    }

    /// A daemon that was stopped learns late which namespaces have ended, when their numbers can be those of later ones.
    pub(super) fn stop_daemon(&mut self, step: &Step) -> Holds<Effect> {
        let container = self.model.containers.get(&step.container);
        let is_run = container.is_some_and(|container| container.runner.is_some());
        let is_ours = matches!(step.by, By::Runtime | By::Libcni);
        let Some(dhcp) = self.model.dhcp.clone().filter(|_| is_ours && !is_run) else {
            return Ok(Effect::none());
        };
        self.node.must(&Call::shell(&format!("kill -STOP {}", dhcp.daemon)));
        self.end_container(&Step { action: Action::End, ..step.clone() })?;
        self.make_container(&Step { action: Action::Mounted, ..step.clone() })?;
        if step.number.is_multiple_of(2) {
            self.node.shell(&format!("ip netns set c{} auto", step.container));
        }
        let add = Step { action: Action::Add, ..step.clone() };
        let begun = self.begin_add(&add);
        self.node.shell(&format!("sleep 0.{}", step.number % 10));
        self.node.must(&Call::shell(&format!("kill -CONT {}", dhcp.daemon)));
        let effect = match begun {
            Some((key, made)) => {
                let outcome = self.finish();
                self.note(&outcome)?;
                self.tool_form(&outcome)?;
                self.learn_add(key, &made, Listed::of_command(&outcome), false)?
            }
            None => self.add(&add)?,
        };
        if step.number % 4 > 1 {
            self.judge(&effect)?;
            self.renumber();
            return self.settle();
        }
        Ok(effect)
    }

    /// Begins `cnibox add`, if the container can be attached.
    fn begin_add(&mut self, step: &Step) -> Option<(Key, Made)> {
        let (list, key) = (self.list(step.network)?, self.key(step)?);
        let container = self.model.containers.get(&step.container)?.clone();
        let can_add = step.by == By::Runtime
            && list["plugins"][0]["ipam"]["type"] == "dhcp"
            && !self.is_up(&key)
            && !self.interface_is_taken(&key, &container);
        if !can_add {
            return None;
        }
        let capabilities = self.capabilities(&list, step);
        self.model.used.entry(key.clone()).or_default();
        self.begin(&add_call(&key, &container.path, &capabilities));
        Some((key, Made { list, capabilities, by: By::Runtime, container }))
    }

    /// The call that a fault of the server or the daemon meets.
    fn during_dhcp(&mut self, step: &Step) -> Holds<Effect> {
        self.is_hindered = true;
        let effect = match step.number / 4 % 3 {
            0 => self.add(&Step { action: Action::Add, ..step.clone() }),
            1 => self.del(&Step { action: Action::Del, ..step.clone() }),
            _ => self.gc(&Step { action: Action::Race, ..step.clone() }),
        };
        self.is_hindered = false;
        effect
    }

    fn renumber(&mut self) {
        if let Some(dhcp) = &mut self.model.dhcp {
            dhcp.subnet += 1;
            dhcp.is_moving = true;
        }
        self.server("give");
    }

    /// Waits until all attachments have an address of today, and rules, ports and the cache have followed.
    pub(super) fn settle(&mut self) -> Holds<Effect> {
        let Some(dhcp) = self.model.dhcp.clone() else { return Ok(Effect::none()) };
        let begin = Instant::now();
        let all = self.model.attachments.iter();
        let all = all.filter(|(key, attachment)| {
            // The daemon does not find a namespace without its path, and keeps the lease.
            let is_found = !self.model.is_left(attachment.space);
            attachment.has_dhcp() && self.is_up(key) && is_found && !attachment.is_perturbed
        });
        let keys: Vec<Key> = all.map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.follow(key, &dhcp, begin)?;
        }
        // Those that something has changed may stay where they are.
        for attachment in
            self.model.attachments.values_mut().filter(|attachment| attachment.has_dhcp())
        {
            attachment.facts.clear();
        }
        if let Some(dhcp) = &mut self.model.dhcp {
            dhcp.is_moving = false;
        }
        Ok(Effect { touched: keys.into_iter().collect(), shakes: false })
    }

    /// The daemon has a lease for each living attachment that asked for one.
    pub(super) fn leases_are_kept(&self) -> Holds {
        for (key, attachment) in &self.model.attachments {
            if !attachment.has_dhcp() || !self.is_up(key) || attachment.is_perturbed {
                continue;
            }
            // A later namespace can have a number that the kernel chose, so the daemon goes by the path.
            let record = self.seen.files.get(&key.record());
            if self.model.is_left(attachment.space)
                && !record.is_some_and(|record| has_own_number(record))
            {
                continue;
            }
            let name = format!("/{}:{}:{}.lease", key.network, key.id, key.interface);
            if !self.seen.files.keys().any(|path| path.ends_with(&name)) {
                return fails("nothing living loses its lease", key.owner());
            }
        }
        Ok(())
    }

    fn follow(&mut self, key: &Key, dhcp: &Dhcp, begin: Instant) -> Holds {
        loop {
            self.seen = self.look();
            match self.followed(key, dhcp) {
                Ok(result) => {
                    let attachment = self.model.attachments.get_mut(key).expect("it is up");
                    attachment.addresses = addresses(&result);
                    attachment.result = result;
                    let used = attachment.addresses.clone();
                    self.model.used.entry(key.clone()).or_default().extend(used);
                    // The daemon changes the address and the cache before the rules.
                    let made = self.is_made(key);
                    if self.model.is_disturbed {
                        return Ok(());
                    }
                    if made.is_ok() || begin.elapsed() > LIMIT {
                        return made;
                    }
                }
                Err(text) if begin.elapsed() > LIMIT => {
                    let leases = self.node.run(&cnibox(&["dhcp", "leases"])).report();
                    return fails(
                        "an attachment follows the DHCP server",
                        format!("{text}\n{leases}"),
                    );
                }
                Err(_) => {}
            }
            self.node.shell("sleep 0.1");
        }
    }

    /// The result of an attachment with its new address, or why it has not followed.
    fn followed(&self, key: &Key, dhcp: &Dhcp) -> Result<Value, String> {
        let attachment = &self.model.attachments[key];
        let owner = key.owner();
        // Without a cache entry only the interface can tell.
        let entry = self.seen.files.get(&key.cache());
        let entry: Value =
            entry.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut result = entry["result"].clone();
        let space = self.seen.spaces.get(&self.model.spaces[attachment.space].path);
        let there = space.into_iter().flat_map(|space| &space.addresses);
        let there: Vec<&String> = there
            .filter(|(address, link)| *link == key.interface && address.starts_with("10.8."))
            .map(|(address, _)| address)
            .collect();
        let [address] = there.as_slice() else { return Err(format!("{owner}: has {there:?}")) };
        if result == Value::Null && self.model.forgotten.contains(key) {
            result = attachment.result.clone();
            result["ips"][0]["address"] = (*address).clone().into();
        }
        if !dhcp.gives(address) || addresses(&result) != [(*address).clone()] {
            return Err(format!("{owner}: has {there:?}, and the cache {result}"));
        }
        let used = self.model.used.get(key).into_iter().flatten();
        for old in used.filter(|old| old != address) {
            let of_another = |rule: &str| {
                // The server has given the address to it.
                let mut others = self.model.attachments.keys().filter(|other| *other != key);
                others.any(|other| names(rule, &other.owner()))
            };
            let mut rules = self.seen.nft.iter().filter(|rule| !of_another(rule));
            if let Some(rule) = rules.find(|rule| names(rule, bare(old))) {
                return Err(format!("{owner}: has {address}, but not this rule: {rule}"));
            }
        }
        let is_made = attachment.state == State::Up;
        if is_made { Ok(result) } else { Err(format!("{owner}: is not up")) }
    }
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["address"].as_str().map(str::to_owned)).collect()
}
