//! Calls of cnibox, and of plugins as libcni makes them, and what the model learns from their outcomes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::libcni::{Listed, Of};
use super::{Effect, Play};
use crate::model::{Attachment, Container, Holds, Key, State, fails, plugins};
use crate::node::{CNIBOX, CONFIGURATIONS, Call, Outcome, PLUGINS};
use crate::step::{Action, By, Fault, Step};

/// cnibox with these words.
pub fn cnibox(words: &[&str]) -> Call {
    Call::new(&[&[CNIBOX], words].concat())
        .env("NETCONFPATH", CONFIGURATIONS)
        .env("CNI_PATH", PLUGINS)
}

/// `cnibox add` of an attachment.
pub fn add_call(key: &Key, path: &str, capabilities: &Value) -> Call {
    let of = ["add", "--container-id", &key.id, "-i", &key.interface, &key.network, path];
    let call = cnibox(&of);
    if *capabilities == Value::Null {
        return call;
    }
    call.env("CAP_ARGS", &capabilities.to_string())
}

/// The call with a fault.
pub fn under(call: Call, fault: &Fault) -> Call {
    match fault {
        Fault::None => call,
        Fault::Kill(name, when) => {
            let trace = format!("trace={name}");
            let inject = format!("inject={name}:signal=KILL:when={when}");
            call.under(&["strace", "-f", "-qq", "-o", "/mnt/trace", "-e", &trace, "-e", &inject])
        }
        Fault::Kernel(at) => call.env("CNIBOX_FAIL_KERNEL", &at.to_string()),
        Fault::File(at) => call.env("CNIBOX_FAIL_FILE", &at.to_string()),
        Fault::Descriptors(most) => call.under(&["prlimit", &format!("--nofile={most}:{most}")]),
    }
}

impl Play {
    /// The capability arguments of an attachment.
    pub(super) fn capabilities(&self, list: &Value, step: &Step) -> Value {
        let mut all = serde_json::Map::new();
        let (net, c, interface) = (step.network, step.container, step.interface);
        for plugin in plugins(list) {
            if plugin["capabilities"]["portMappings"] == true {
                let port = 8000 + net * 100 + c * 10 + interface;
                let mapping = |protocol: &str| json!({"hostPort": port, "containerPort": 80, "protocol": protocol});
                all.insert("portMappings".into(), json!([mapping("tcp"), mapping("udp")]));
            }
            if plugin["capabilities"]["ips"] == true {
                let subnet = plugin["model"].as_str().unwrap_or("10.99.0");
                let address = format!("{subnet}.{}/24", 100 + c * 4 + interface);
                all.insert("ips".into(), json!([address]));
            }
            if plugin["capabilities"]["mac"] == true {
                all.insert(
                    "mac".into(),
                    json!(format!("02:00:00:{net:02x}:{c:02x}:{interface:02x}")),
                );
            }
        }
        if all.is_empty() { Value::Null } else { Value::Object(all) }
    }

    pub(super) fn add(&mut self, step: &Step) -> Holds<Effect> {
        let (Some(list), Some(key)) = (self.list(step.network), self.key(step)) else {
            return Ok(Effect::none());
        };
        let container = self.model.containers[&step.container].clone();
        if step.by == By::Hook {
            return self.hook_add(step, &list, &key, &container);
        }
        // The daemon here is that of cnibox.
        if step.by == By::Go && list["plugins"][0]["ipam"]["type"] == "dhcp" {
            return Ok(Effect::none());
        }
        // No other runtime adds to a container of `cnibox run`.
        if step.by != By::Runtime && container.runner.is_some() {
            return Ok(Effect::none());
        }
        let known = self.model.attachments.get(&key).cloned();
        if step.by != By::Runtime && known.is_some() {
            // A runtime deletes what it knows before it adds again; it never adds over a living attachment.
            if self.is_up(&key) {
                return Ok(Effect::none());
            }
            self.del_of(&key, step.by, &Fault::None, step.number)?;
            if self.model.attachments.contains_key(&key) {
                return Ok(Effect::of(key));
            }
        }
        if self.interface_is_taken(&key, &container) {
            return Ok(Effect::none());
        }
        if plugins(&list).iter().any(|plugin| plugin["device"].is_string()) {
            let device = format!("card{}", step.network);
            self.make_card(&device);
        }
        let capabilities = self.capabilities(&list, step);
        self.model.has_go |= step.by == By::Go;
        self.model.used.entry(key.clone()).or_default();
        let before = self.lines_of(&key);
        let listed = if step.by == By::Runtime {
            self.runtime_add(step, &key, &container.path, &capabilities)?
        } else {
            let of = Of {
                key: &key,
                path: &container.path,
                config: &list,
                capabilities: &capabilities,
                by: step.by,
                fault: &step.fault,
                number: step.number,
            };
            self.libcni_add(&of)?
        };
        let takes_back = known.is_none()
            && matches!(step.fault, Fault::None | Fault::Kernel(_) | Fault::File(_));
        let report = match &listed {
            Listed::FailedAsWhole(report) if takes_back && step.by != By::Go => {
                Some(report.clone())
            }
            _ => None,
        };
        let made = Made { list, capabilities, by: step.by, container };
        let was_up = known.is_some_and(|attachment| attachment.state == State::Up);
        let mut effect = self.learn_add(key.clone(), &made, listed, was_up)?;
        self.perturb_with_same_ifb(&key, step.by, &mut effect);
        report.map_or(Ok(()), |report| self.has_left_nothing(&key, &before, &report))?;
        Ok(effect)
    }

    /// Another attachment, to whatever network, has an interface of this name in the namespace. No runtime does that.
    pub(super) fn interface_is_taken(&self, key: &Key, container: &Container) -> bool {
        self.model.attachments.iter().any(|(other, attachment)| {
            other != key && other.interface == key.interface && attachment.space == container.space
        })
    }

    fn runtime_add(
        &mut self,
        step: &Step,
        key: &Key,
        path: &str,
        capabilities: &Value,
    ) -> Holds<Listed> {
        let call = add_call(key, path, capabilities);
        let outcome = self.node.run(&under(call, &step.fault));
        self.note(&outcome)?;
        self.tool_form(&outcome)?;
        Ok(Listed::of_command(&outcome))
    }

    /// The model after an ADD.
    pub(super) fn learn_add(
        &mut self,
        key: Key,
        made: &Made,
        listed: Listed,
        was_up: bool,
    ) -> Holds<Effect> {
        let effect = Effect::of(key.clone());
        let is_up_before = was_up && self.is_up(&key);
        let is_perturbed =
            self.model.attachments.get(&key).is_some_and(|attachment| attachment.is_perturbed);
        let (state, result) = match listed {
            // Without its interface it can be added again.
            Listed::Done(_) if is_up_before && !is_perturbed => {
                return fails("an ADD over a living attachment is refused", key.owner());
            }
            // It was refused, so the attachment stays as it is: nothing may change.
            Listed::Failed(_) | Listed::FailedAsWhole(_) if is_up_before && !is_perturbed => {
                return Ok(Effect::none());
            }
            Listed::Killed if is_up_before && !is_perturbed => return Ok(Effect::none()),
            // It was refused, or it has deleted the attachment first. The other runtimes know the list of the earlier ADD.
            Listed::Failed(_) | Listed::FailedAsWhole(_) if is_up_before => {
                if let Some(known) = self.model.attachments.get_mut(&key) {
                    known.state = State::Unsure;
                }
                return Ok(effect);
            }
            Listed::Done(result) => (State::Up, result),
            Listed::Failed(_) | Listed::FailedAsWhole(_) | Listed::Killed => {
                (State::Unsure, Value::Null)
            }
        };
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        let addresses: Vec<String> =
            ips.iter().filter_map(|ip| ip["address"].as_str().map(str::to_owned)).collect();
        self.model.used.entry(key.clone()).or_default().extend(addresses.iter().cloned());
        // An interface that was there before is another's, and a DEL leaves it.
        let space = self.seen.spaces.get(&made.container.path);
        let was_there = space.is_some_and(|space| space.has_link(&key.interface));
        let earlier = self.model.attachments.get(&key).cloned();
        let entry = self.seen.files.get(&key.cache()).cloned();
        let mut attachment = Attachment {
            state,
            by: made.by,
            space: made.container.space,
            path: made.container.path.clone(),
            config: made.list.clone(),
            capabilities: made.capabilities.clone(),
            result,
            addresses,
            is_perturbed: state != State::Up && was_there,
            facts: BTreeSet::new(),
        };
        self.seen = self.look();
        // Before it has changed the entry of the cache, other runtimes know the list of the earlier ADD.
        if let (State::Unsure, Some(earlier), Some(_)) = (state, earlier, &entry)
            && self.seen.files.get(&key.cache()) == entry.as_ref()
        {
            attachment.config = earlier.config;
            attachment.capabilities = earlier.capabilities;
        }
        self.model.attachments.insert(key.clone(), attachment);
        if state == State::Up && made.by != By::Go {
            self.is_made(&key)?;
        }
        Ok(effect)
    }

    pub(super) fn del(&mut self, step: &Step) -> Holds<Effect> {
        let Some(key) = self.key_or_dead(step) else { return Ok(Effect::none()) };
        let by = match (step.by, self.model.attachments.get(&key)) {
            // `cnibox run` deletes what it adds.
            _ if self
                .model
                .containers
                .get(&step.container)
                .is_some_and(|container| container.runner.is_some()) =>
            {
                By::Runtime
            }
            // The hook deletes all networks of its container, as it ends.
            (By::Hook, _) => By::Runtime,
            (By::Libcni | By::Go, None) => return Ok(Effect::none()),
            (by, _) => by,
        };
        self.del_of(&key, by, &step.fault, step.number)
    }

    /// An attachment of this container, or a dead one of its id.
    fn key_or_dead(&self, step: &Step) -> Option<Key> {
        self.key(step).or_else(|| {
            let id = format!("c{}", step.container);
            let mut dead = self.model.attachments.keys().filter(|key| key.id == id);
            dead.next().cloned()
        })
    }

    /// DEL of an attachment, with the namespace if that lives.
    pub(super) fn del_of(
        &mut self,
        key: &Key,
        by: By,
        fault: &Fault,
        number: u64,
    ) -> Holds<Effect> {
        let known = self.model.attachments.get(key).cloned();
        let lives = known.as_ref().is_some_and(|attachment| self.model.lives(attachment));
        let current = self.model.containers.values().find(|container| container.id == key.id);
        let path = match &known {
            Some(known) if lives => known.path.clone(),
            // containerd removes a sandbox without its namespace; others pass a path that is gone.
            Some(_) if number.is_multiple_of(2) => String::new(),
            Some(known) => known.path.clone(),
            // A DEL of an attachment that nobody made removes an interface without an owner by its name, as the Go plugins do.
            None => current
                .map(|container| container.path.clone())
                .filter(|path| !self.model.strangers.contains(path))
                .unwrap_or_default(),
        };
        // The Go plugins delete an interface by its name, also in the namespace of another program or container.
        let space = known.as_ref().map(|attachment| attachment.space);
        if by == By::Go && self.leads_to_another(&path, space) {
            return Ok(Effect::none());
        }
        let listed = if by == By::Runtime {
            self.runtime_del(key, &path, fault)?
        } else {
            let Some(known) = &known else { return Ok(Effect::none()) };
            let of = Of {
                key,
                path: &path,
                config: &known.config,
                capabilities: &known.capabilities,
                by,
                fault,
                number,
            };
            let result = known.result.clone();
            self.libcni_del(&of, &result)?
        };
        if let (Listed::Failed(report), Fault::None) = (&listed, fault)
            && !self.model.is_disturbed
            && !self.is_hindered
            && by != By::Go
        {
            return fails("a DEL without a fault succeeds", report);
        }
        self.learn_del(key, by, listed)?;
        let mut effect = Effect::of(key.clone());
        self.perturb_with_same_ifb(key, by, &mut effect);
        // An interface of the Go plugins names no owner, and goes by its name.
        let of_name = self.model.attachments.iter().filter(|(other, attachment)| {
            let is_there = other.id == key.id || attachment.path == path;
            attachment.by == By::Go && is_there && other.interface == key.interface
        });
        let of_name: Vec<Key> = of_name.map(|(other, _)| other.clone()).collect();
        for other in of_name {
            if let Some(attachment) = self.model.attachments.get_mut(&other) {
                attachment.state = State::Unsure;
            }
            effect.touched.insert(other);
        }
        Ok(effect)
    }

    /// The Go plugin `bandwidth` names an ifb by network and container: it deletes that of another interface.
    fn perturb_with_same_ifb(&mut self, key: &Key, by: By, effect: &mut Effect) {
        if by != By::Go {
            return;
        }
        for (other, attachment) in &mut self.model.attachments {
            let has_same = other.network == key.network && other.id == key.id && other != key;
            if has_same && attachment.has_plugin("bandwidth") {
                attachment.is_perturbed = true;
                effect.touched.insert(other.clone());
            }
        }
    }

    fn runtime_del(&mut self, key: &Key, path: &str, fault: &Fault) -> Holds<Listed> {
        let mut words = vec!["del", "--ignore", "--container-id", &key.id, "-i", &key.interface];
        words.push(&key.network);
        if !path.is_empty() {
            words.push(path);
        } else {
            words.push("/run/netns/nowhere");
        }
        let outcome = self.node.run(&under(cnibox(&words), fault));
        self.note(&outcome)?;
        self.tool_form(&outcome)?;
        Ok(match outcome.status {
            0 => Listed::Done(Value::Null),
            1 => Listed::Failed(outcome.report()),
            _ => Listed::Killed,
        })
    }

    /// Whether a DEL counts as that of an earlier container of the id: the attachment lives, and another namespace is at its path.
    fn is_late(&self, key: &Key) -> bool {
        let Some(known) = self.model.attachments.get(key) else { return false };
        let is_of_another = self.leads_to_another(&known.path, Some(known.space));
        self.model.lives(known) && self.model.is_left(known.space) && is_of_another
    }

    /// Whether a path leads to the namespace of another program or container.
    fn leads_to_another(&self, path: &str, space: Option<usize>) -> bool {
        let mut others = self.model.containers.values();
        self.model.strangers.contains(path)
            || others.any(|other| other.path == path && Some(other.space) != space)
    }

    pub(super) fn learn_del(&mut self, key: &Key, by: By, listed: Listed) -> Holds {
        match listed {
            // It touches nothing, unless nothing proves that.
            Listed::Done(_) if self.is_late(key) => {
                if let Some(known) = self.model.attachments.get_mut(key) {
                    known.state = State::Unsure;
                }
                Ok(())
            }
            Listed::Done(_) => {
                let known = self.model.attachments.remove(key);
                // The Go plugins leave the rules of ours, and no entry that tells of them.
                if by == By::Go && known.as_ref().is_some_and(|attachment| attachment.by != By::Go)
                {
                    self.model.forgotten.insert(key.clone());
                }
                let is_ours =
                    by != By::Go && known.as_ref().is_none_or(|attachment| attachment.by != By::Go);
                self.seen = self.look();
                // Without its entry a DEL knows the plugins of today only. That of the runtime also goes by what is there.
                let knows = !self.model.forgotten.contains(key);
                let left = if by == By::Runtime { key.marked(&self.seen) } else { Vec::new() };
                match is_ours {
                    true if knows => self.is_gone(key, known.as_ref(), "a DEL"),
                    _ if left.is_empty() => Ok(()),
                    _ => fails("a DEL goes by what is there", left.join("\n")),
                }
            }
            _ => {
                if let Some(known) = self.model.attachments.get_mut(key) {
                    known.state = State::Unsure;
                    // Nothing in the record tells that the DEL has begun: other plugins note nothing, and a full or read-only disk
                    // takes no note.
                    known.is_perturbed |= by == By::Go || self.is_hindered;
                }
                Ok(())
            }
        }
    }

    pub(super) fn check(&mut self, step: &Step) -> Holds<Effect> {
        let Some(key) = self.key(step) else { return Ok(Effect::none()) };
        let Some(known) = self.model.attachments.get(&key).cloned() else {
            return Ok(Effect::none());
        };
        let version = known.config["cniVersion"].as_str().unwrap_or_default();
        if version == "0.3.1" || known.by == By::Go {
            return Ok(Effect::none());
        }
        // The daemon of `dhcp` changes the interface before the cache, and what the model knows is of the former address.
        let is_found = !self.model.is_left(known.space) && !self.is_moving(&known);
        let is_sound =
            is_found && self.is_up(&key) && !known.is_perturbed && step.fault == Fault::None;
        let listed = if step.by == By::Runtime {
            let call = cnibox(&[
                "check",
                "--container-id",
                &key.id,
                "-i",
                &key.interface,
                &key.network,
                &known.path,
            ]);
            let outcome = self.node.run(&under(call, &step.fault));
            self.note(&outcome)?;
            self.tool_form(&outcome)?;
            match outcome.status {
                0 => Listed::Done(Value::Null),
                1 => Listed::Failed(outcome.report()),
                _ => Listed::Killed,
            }
        } else {
            let of = Of {
                key: &key,
                path: &known.path,
                config: &known.config,
                capabilities: &known.capabilities,
                by: By::Libcni,
                fault: &step.fault,
                number: step.number,
            };
            self.libcni_check(&of, &known.result)?
        };
        match listed {
            Listed::Failed(report) if is_sound && !self.model.is_disturbed => {
                fails("a CHECK of a sound attachment succeeds", report)
            }
            _ => Ok(Effect::none()),
        }
    }

    pub(super) fn status(&mut self, step: &Step) -> Holds<Effect> {
        if !self.model.networks.contains_key(&step.network) {
            return Ok(Effect::none());
        }
        let name = format!("n{}", step.network);
        self.cnibox_call(&["status", &name], &step.fault)?;
        Ok(Effect::none())
    }

    pub(super) fn attachments(&mut self, step: &Step) -> Holds<Effect> {
        let words: &[&str] = match step.number % 4 {
            0 => &["attachments", "--json"],
            1 => &["ipam", "list", "--json"],
            2 => &["metrics"],
            _ => &["doctor", "--json"],
        };
        self.cnibox_call(words, &step.fault)?;
        Ok(Effect::none())
    }

    pub(super) fn cnibox_call(&mut self, words: &[&str], fault: &Fault) -> Holds<Outcome> {
        let outcome = self.node.run(&under(cnibox(words), fault));
        self.note(&outcome)?;
        Ok(outcome)
    }

    /// A command fails with one line that says why.
    pub(super) fn tool_form(&mut self, outcome: &Outcome) -> Holds {
        let has_line = outcome.stderr.lines().any(|line| line.starts_with("cnibox: "));
        match outcome.status {
            0 => Ok(()),
            1 if has_line => Ok(()),
            status if !(0..=128).contains(&status) => Ok(()),
            _ => fails("a command fails with a line that says why", outcome.report()),
        }
    }

    pub(super) fn gc(&mut self, step: &Step) -> Holds<Effect> {
        if step.by == By::Libcni || step.by == By::Go {
            return self.gc_by_libcni(step);
        }
        if step.fault == Fault::None {
            self.wait_for_ends();
        }
        let outcome = self.cnibox_call(&["gc"], &step.fault)?;
        self.tool_form(&outcome)?;
        self.learn_gc(&outcome, step)
    }

    fn gc_by_libcni(&mut self, step: &Step) -> Holds<Effect> {
        let Some(list) = self.list(step.network) else { return Ok(Effect::none()) };
        if list["cniVersion"] != "1.1.0" {
            return Ok(Effect::none());
        }
        let name = format!("n{}", step.network);
        let of_network = self.model.attachments.iter().filter(|(key, _)| key.network == name);
        let living = of_network.filter(|(_, attachment)| self.model.lives(attachment));
        let valid: Vec<Key> = living.map(|(key, _)| key.clone()).collect();
        let key = Key { network: name, id: "none".into(), interface: "eth0".into() };
        let of = Of {
            key: &key,
            path: "",
            config: &list,
            capabilities: &Value::Null,
            by: By::Libcni,
            fault: &step.fault,
            number: step.number,
        };
        self.libcni_gc(&of, &valid)?;
        Ok(Effect::none())
    }

    pub(super) fn doctor(&mut self, step: &Step) -> Holds<Effect> {
        let outcome = self.cnibox_call(&["doctor", "--fix", "--yes"], &step.fault)?;
        let is_done = outcome.status < 2;
        if !is_done && outcome.status < 128 && outcome.status > 0 {
            return fails("a command fails with a line that says why", outcome.report());
        }
        Ok(Effect::none())
    }

    pub(super) fn gc_from_elsewhere(&mut self, step: &Step) -> Holds<Effect> {
        // systemd-nspawn covers the boot id.
        let script = match step.action {
            Action::GcOfPid => {
                "unshare --pid --fork --mount --mount-proc sh -c 'mount --bind /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id && exec \"$@\"' sh \"$@\""
            }
            Action::GcOfMount => {
                "unshare --mount --propagation private sh -c 'for path in /run/netns/*; do umount -l $path; done; exec \"$@\"' sh \"$@\""
            }
            Action::GcOfNet => "unshare --net \"$@\"",
            _ => {
                "unshare --mount --propagation private sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh \"$@\""
            }
        };
        let words: &[&str] =
            if step.number.is_multiple_of(3) { &["doctor", "--fix", "--yes"] } else { &["gc"] };
        let call = cnibox(words).under(&["sh", "-c", script, "sh"]);
        let outcome = self.node.run(&call);
        self.note(&outcome)?;
        Ok(Effect::none())
    }
}

/// The parameters of an ADD.
pub struct Made {
    pub list: Value,
    pub capabilities: Value,
    pub by: By,
    pub container: Container,
}
