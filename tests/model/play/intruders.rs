//! Containers change their interfaces, and other programs change the host.

use serde_json::json;

use super::{Effect, Play};
use crate::model::{Holds, fails};
use crate::node::{Call, TOOLS};
use crate::step::{Action, By, Step};

impl Play {
    /// The container changes what it was given.
    pub(super) fn intrude(&mut self, step: &Step) -> Holds<Effect> {
        let Some(key) = self.key(step) else { return Ok(Effect::none()) };
        let container = self.model.containers[&step.container].clone();
        let device = &key.interface;
        let known = self.model.attachments.get(&key);
        let has_addresses = known.is_some_and(|attachment| !attachment.addresses.is_empty());
        let is_of_go = known.is_some_and(|attachment| attachment.by == By::Go);
        // Nothing else tells that the attachment is there; see `Action::Vanish`.
        if step.action == Action::Rename && !has_addresses {
            return Ok(Effect::none());
        }
        let other = format!("10.250.{}.{}/32", step.container, step.interface + 1);
        let script = match step.action {
            Action::Rename => format!(
                "ip link set {device} down; ip link set {device} name own{device}; ip link set own{device} up"
            ),
            Action::Down => format!("ip link set {device} down"),
            Action::Readdress => format!(
                "ip address add {other} dev {device}; ip route add 10.251.0.0/24 dev {device}"
            ),
            Action::Flush => format!("ip address flush dev {device}"),
            Action::Remac => format!(
                "ip link set {device} address 02:00:00:ff:{:02x}:{:02x}",
                step.container, step.interface
            ),
            _ if step.number.is_multiple_of(3) => {
                format!("ip link set {device} down; ip link set {device} name gone{device}")
            }
            // The Go plugins do not find it on the host.
            _ if step.number.is_multiple_of(2) && !is_of_go => format!(
                "ip link set {device} netns 1 name moved{}{}",
                step.container, step.interface
            ),
            _ => format!("ip link del {device}"),
        };
        if self.model.attachments.contains_key(&key) {
            let path = &self.model.spaces[container.space].path;
            self.node.run(&Call::shell(&script).netns(path));
        }
        let mut effect = Effect::of(key.clone());
        // Containers of one namespace share its interfaces.
        for (other, attachment) in &mut self.model.attachments {
            if attachment.space == container.space && other.interface == key.interface {
                attachment.is_perturbed = true;
                effect.touched.insert(other.clone());
            }
        }
        Ok(effect)
    }

    /// Another program of the host, or its operator.
    pub(super) fn disturb(&mut self, step: &Step) -> Holds<Effect> {
        let files: Vec<String> = self.seen.files.keys().cloned().collect();
        let pick = |part: &str| {
            let of_kind: Vec<&String> = files.iter().filter(|path| path.contains(part)).collect();
            let index = usize::try_from(step.number).unwrap_or_default();
            of_kind.get(index % of_kind.len().max(1)).map(|path| (*path).clone())
        };
        let damaged = pick(match (step.file.as_str(), step.action) {
            ("", Action::Damage) => "/var/lib",
            ("", _) => "/attachments/",
            (file, _) => file,
        });
        assert!(step.file.is_empty() || damaged.is_some(), "{step}: there is no such file");
        let script = match step.action {
            Action::NftFlush => "nft flush ruleset".to_owned(),
            Action::LinkDel => "ip -o link | sed -n 's/^[0-9]*: \\(veth[^@:]*\\).*/\\1/p' | sort | head -n 1 | xargs -r ip link del".to_owned(),
            Action::RmCache => match pick("/results/") {
                Some(path) => format!("rm -f {path}"),
                None => return Ok(Effect::none()),
            },
            Action::RmReservation => match pick("/networks/n") {
                Some(path) => format!("rm -f {path}"),
                None => return Ok(Effect::none()),
            },
            Action::Damage | Action::DamageRecord => match damaged {
                Some(path) => {
                    let script = damage(&path, step.number);
                    self.model.damaged.insert(path);
                    script
                }
                None => return Ok(Effect::none()),
            },
            Action::Litter => litter(step.number),
            Action::Full => return self.with_full_disk(step),
            _ => return self.with_read_only(step),
        };
        self.model.forget(&script);
        self.say(format!("  {script}"));
        self.node.shell(&script);
        self.model.is_disturbed = true;
        for attachment in self.model.attachments.values_mut() {
            attachment.is_perturbed = true;
        }
        Ok(Effect::shaking())
    }

    /// An ADD, a CHECK and a DEL while a program in the container sends messages that look like the kernel's. Then an ADD
    /// without it, which tells whether the first one could succeed.
    pub(super) fn forge(&mut self, step: &Step) -> Holds<Effect> {
        let (Some(key), Some(container)) =
            (self.key(step), self.model.containers.get(&step.container).cloned())
        else {
            return Ok(Effect::none());
        };
        // A failed ADD of the Go plugins leaves its interface.
        let space = self.seen.spaces.get(&container.path);
        let is_there = self.model.is_left(container.space)
            || self.model.attachments.contains_key(&key)
            || space.is_some_and(|space| space.has_link(&key.interface));
        // The Go plugins believe the messages.
        if step.by == By::Go || is_there || self.interface_is_taken(&key, &container) {
            return Ok(Effect::none());
        }
        let answer = self.node.ask(&json!({
            "do": "start", "argv": ["/proc/1/exe", "--forger"], "env": {"PATH": TOOLS}, "netns": container.path,
        }));
        let pid = answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"));
        let add = Step { action: Action::Add, ..step.clone() };
        let outcome = self.add(&add);
        let is_up = self.is_up(&key);
        let report = self.log.last().cloned().unwrap_or_default();
        // The hook has no CHECK of its own.
        let by = if step.by == By::Hook { By::Runtime } else { step.by };
        let check = Step { action: Action::Check, by, ..step.clone() };
        let outcome = outcome.and_then(|_| self.check(&check)).and_then(|_| self.del(&add));
        let answer = self.node.ask(&json!({"do": "kill", "pid": pid}));
        assert!(answer.get("error").is_none(), "the forger has ended: {answer}");
        outcome?;
        let effect = self.add(&add)?;
        if self.is_up(&key) && !is_up {
            return fails("messages of others fail no call", report);
        }
        Ok(effect)
    }

    /// A jump of the clock: files of another age are the same to the product. The files of the cache stay: the record of an adopted
    /// attachment has their ctime, since a program that writes such a file again can have attached the container again.
    pub(super) fn jump(&mut self, step: &Step) -> Effect {
        let sign = if step.number.is_multiple_of(2) { '-' } else { '+' };
        let secs = 60 << (step.number / 2 % 20);
        self.node.must(&Call::shell(&format!(
            "mkdir -p /var/lib/cni /run/cnibox; find /var/lib/cni /run/cnibox -path /var/lib/cni/results -prune -o \\( -type f -o -type d \\) -exec sh -c 'for file; do
             at=$(stat -c %.9Y \"$file\") || continue; touch -c -d \"@$((${{at%.*}} {sign} {secs})).${{at#*.}}\" \"$file\"; done' sh {{}} +"
        )));
        Effect::none()
    }

    /// A step while /var/lib is full: an ADD or a DEL of this container, or a gc.
    fn with_full_disk(&mut self, step: &Step) -> Holds<Effect> {
        let directory = if step.number.is_multiple_of(3) { "/run" } else { "/var/lib" };
        self.node.shell(&format!("cat /dev/zero > {directory}/filler 2>/dev/null"));
        let effect = self.during(step);
        self.node.shell(&format!("rm -f {directory}/filler"));
        effect
    }

    fn with_read_only(&mut self, step: &Step) -> Holds<Effect> {
        let directory = if step.number.is_multiple_of(3) { "/run" } else { "/var/lib" };
        self.node.shell(&format!("mount -o remount,ro {directory}"));
        let effect = self.during(step);
        self.node.shell(&format!("mount -o remount,rw {directory}"));
        effect
    }

    /// The call that a fault of the disk meets.
    fn during(&mut self, step: &Step) -> Holds<Effect> {
        let action = match step.number / 3 % 4 {
            0 | 1 => Action::Add,
            2 => Action::Del,
            _ => Action::Doctor,
        };
        let step = Step { action, ..step.clone() };
        self.is_hindered = true;
        let effect = match action {
            Action::Add => self.add(&step),
            Action::Del => self.del(&step),
            _ => self.doctor(&step),
        };
        self.is_hindered = false;
        effect
    }
}

fn damage(path: &str, number: u64) -> String {
    match number % 6 {
        0 => format!(": > {path}"),
        1 => format!("echo garbage > {path}"),
        2 => format!("head -c 20 {path} > {path}.cut; mv {path}.cut {path}"),
        3 => format!("rm -f {path}; mkfifo {path}"),
        4 => format!("rm -f {path}; mkdir {path}"),
        _ => format!("truncate -s 64M {path}"),
    }
}

fn litter(number: u64) -> String {
    let directory = [
        "/var/lib/cni/results",
        "/var/lib/cni/networks/n0",
        "/var/lib/cni/attachments",
        "/run/cnibox/locks",
    ];
    let directory = directory[usize::try_from(number % 4).unwrap_or_default()];
    let make = match number / 4 % 5 {
        0 => "mkfifo litter",
        1 => "mkdir litter",
        2 => "ln -sfn /etc/passwd litter",
        3 => "echo '{\"kind\": \"cniCacheV1\"' > litter",
        _ => "truncate -s 64M litter",
    };
    format!("mkdir -p {directory}; cd {directory}; rm -rf litter; {make}")
}
