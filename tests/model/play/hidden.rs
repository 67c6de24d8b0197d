//! Living namespaces that their paths or processes do not show.

use serde_json::json;

use super::{Effect, Play};
use crate::model::{Attachment, Container, Holds, Key, State, fails};
use crate::node::{Call, TOOLS};
use crate::step::Step;

/// The link of a nested namespace, in that of the container.
const NESTED: &str = "nest0";
/// The interfaces of a namespace that no runtime has attached.
const OF_STRANGER: [&str; 2] = ["eth0", "eth1"];

impl Play {
    /// A process keeps the namespace of a container, and its path is unmounted.
    pub(super) fn leave(&mut self, step: &Step) -> Holds<Effect> {
        let Some(container) = self.model.containers.get(&step.container).cloned() else {
            return Ok(Effect::none());
        };
        let Container { path, space, pid, .. } = container;
        // `cnibox run` has the file open until its end.
        let mut shared = self.model.containers.values().filter(|other| other.space == space);
        let is_run = shared.any(|other| other.runner.is_some());
        if pid.is_some() || is_run || self.model.is_left(space) {
            return Ok(Effect::none());
        }
        let holder = self.start(json!({"netns": path}));
        self.node.must(&Call::new(&["umount", &path]));
        let space = &mut self.model.spaces[space];
        space.path = format!("/proc/{holder}/ns/net");
        space.is_left = true;
        space.pids.push(holder);
        match step.number % 3 {
            0 => drop(self.node.must(&Call::new(&["rm", &path]))),
            1 => {}
            _ => self.make_stranger(&path),
        }
        // Without a record a path that leads to nothing is the proof of the end.
        for (key, attachment) in &mut self.model.attachments {
            let is_in_it = attachment.space == container.space;
            if is_in_it && !self.seen.files.contains_key(&key.record()) {
                attachment.state = State::Unsure;
            }
        }
        Ok(Effect::none())
    }

    /// A namespace of another program, with interfaces of the names that containers have.
    fn make_stranger(&mut self, path: &str) {
        self.node.ask(&json!({"do": "netns", "path": path}));
        for name in OF_STRANGER {
            let link = ["ip", "link", "add", name, "type", "veth", "peer", "name"];
            let peer = format!("{name}p");
            self.node.must(&Call::new(&[&link[..], &[&peer]].concat()).netns(path));
        }
        self.model.strangers.insert(path.into());
    }

    /// A process in a namespace of its own reaches the network through that of a container, as with a VPN.
    pub(super) fn nest(&mut self, step: &Step) -> Holds<Effect> {
        let Some(container) = self.model.containers.get(&step.container).cloned() else {
            return Ok(Effect::none());
        };
        let space = container.space;
        if self.model.spaces[space].is_nested {
            return Ok(Effect::none());
        }
        let inner = self.start(json!({"network": true}));
        let path = self.model.spaces[space].path.clone();
        let script = format!(
            "set -e; ip link add {NESTED} type veth peer name eth0 netns {inner}; ip link set {NESTED} up
             ip address add 10.252.0.1/30 dev {NESTED}
             nsenter --net=/proc/{inner}/ns/net sh -ec 'ip address add 10.252.0.2/30 dev eth0; ip link set eth0 up'"
        );
        self.node.must(&Call::shell(&script).netns(&path));
        self.model.spaces[space].is_nested = true;
        self.model.spaces[space].pids.push(inner);
        if let Some(runner) = container.runner.filter(|_| step.number.is_multiple_of(2)) {
            self.kill_runner(runner);
        }
        Ok(Effect::none())
    }

    /// Starts a process that stays. Returns its id.
    fn start(&mut self, mut request: serde_json::Value) -> u64 {
        request["do"] = "start".into();
        request["argv"] = json!(["sleep", "100000"]);
        request["env"] = json!({"PATH": TOOLS});
        let answer = self.node.ask(&request);
        answer["pid"].as_u64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// The namespaces of other programs have their interfaces, and those of containers the links of nested ones.
    pub(super) fn hidden_ones_are_whole(&self) -> Holds {
        let strangers = self.model.strangers.iter();
        let of_strangers = strangers.flat_map(|path| OF_STRANGER.map(|name| (path, name)));
        let nested = self.model.spaces.iter().filter(|space| space.is_alive && space.is_nested);
        let of_nested = nested.map(|space| (&space.path, NESTED));
        for (path, name) in of_strangers.chain(of_nested) {
            if !self.seen.spaces.get(path).is_some_and(|space| space.has_link(name)) {
                let text = format!("{path} has no {name}");
                return fails("nothing that no runtime made is removed", text);
            }
        }
        Ok(())
    }

    /// Whether an attachment has left its interface in a namespace that no DEL finds by its path. The end of a veth on the host
    /// takes the other end with it. A device of the host comes back when the namespace ends; here devices are veths, too.
    pub(super) fn may_leave_interface(&self, key: &Key, known: &Attachment) -> bool {
        let path = &self.model.spaces[known.space].path;
        let is_veth = self.seen.spaces.get(path).is_some_and(|space| {
            space
                .lines
                .iter()
                .any(|line| line.starts_with(&format!("link {} kind veth ", key.interface)))
        });
        self.model.is_left(known.space) && (!is_veth || known.has_plugin("host-device"))
    }
}
