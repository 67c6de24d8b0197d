//! Plays the steps of a history on a node, and looks after each step whether the rules hold.

mod beside;
mod calls;
mod containers;
mod dhcp;
mod end;
mod fixes;
mod hidden;
mod intruders;
mod judge;
mod libcni;
mod race;
mod runs;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde_json::Value;

pub use dhcp::Dhcp;

use crate::look::Seen;
use crate::model::{Failure, Holds, Key, Model, State};
use crate::node::{Node, Outcome};
use crate::step::{Action, Step};

pub struct Play {
    pub node: Node,
    pub model: Model,
    pub seen: Seen,
    /// The calls of the steps with their outcomes, for a person to read.
    pub log: Vec<String>,
    pub is_verbose: bool,
    pub counts: BTreeMap<String, u64>,
    /// The disk, or the server or daemon of `dhcp`, lets calls fail.
    is_hindered: bool,
    /// A gc that removes what has ended lets other calls try again.
    is_beside: bool,
    /// The call that was started last.
    begun: String,
    steps: u64,
}

/// The living attachments that a step may change.
#[derive(Default)]
pub struct Effect {
    /// The step is about these.
    pub touched: BTreeSet<Key>,
    /// The step is of a program that may change everything.
    pub shakes: bool,
}

impl Effect {
    pub fn none() -> Self {
        Self::default()
    }

    pub fn of(key: Key) -> Self {
        Self { touched: [key].into(), shakes: false }
    }

    pub fn shaking() -> Self {
        Self { shakes: true, ..Self::default() }
    }
}

impl Play {
    pub fn new() -> Self {
        let mut play = Self {
            node: Node::start(),
            model: Model::default(),
            seen: Seen::default(),
            log: Vec::new(),
            is_verbose: false,
            counts: BTreeMap::new(),
            is_hindered: false,
            is_beside: false,
            begun: String::new(),
            steps: 0,
        };
        play.furnish_host();
        play.seen = Seen::look(&mut play.node, &[]);
        play
    }

    /// Plays all steps and the end. Returns the number of the step that failed.
    pub fn history(&mut self, steps: &[Step]) -> Result<(), (usize, Failure)> {
        for (number, step) in steps.iter().enumerate() {
            self.step(step).map_err(|failure| (number, failure))?;
        }
        self.end().map_err(|failure| (steps.len(), failure))
    }

    fn step(&mut self, step: &Step) -> Holds {
        self.steps += 1;
        let begin = Instant::now();
        self.say(format!("# {step}"));
        let effect = self.act(step)?;
        self.judge(&effect)?;
        if self.steps.is_multiple_of(10) {
            self.traffic()?;
        }
        let name = if step.by == crate::step::By::Runtime {
            step.action.word().to_owned()
        } else {
            format!("{} by {}", step.action.word(), step.by.word())
        };
        *self.counts.entry(name).or_default() += 1;
        if !matches!(step.fault, crate::step::Fault::None) {
            *self.counts.entry("with a fault".into()).or_default() += 1;
        }
        self.say(format!("  {} ms", begin.elapsed().as_millis()));
        Ok(())
    }

    pub(crate) fn say(&mut self, line: String) {
        if self.is_verbose {
            println!("{line}");
        }
        self.log.push(line);
    }

    fn act(&mut self, step: &Step) -> Holds<Effect> {
        match step.action {
            Action::Network => self.write_network(step),
            Action::Mounted | Action::Process | Action::Shared => self.make_container(step),
            Action::End | Action::Unmount | Action::Replace => self.end_container(step),
            Action::Leave => self.leave(step),
            Action::Nest => self.nest(step),
            Action::Beside => self.beside(step),
            Action::Reboot => self.reboot(),
            Action::Dhcp => self.dhcp(step),
            Action::StopDaemon => self.stop_daemon(step),
            Action::Forge => self.forge(step),
            Action::Clock => Ok(self.jump(step)),
            Action::Add => self.add(step),
            Action::Del => self.del(step),
            Action::Check => self.check(step),
            Action::Status => self.status(step),
            Action::Gc => self.gc(step),
            Action::Doctor => self.doctor(step),
            Action::Confirm => self.confirm(step),
            Action::Reconcile => self.reconcile(step),
            Action::Storm => self.storm(),
            Action::Race => self.race(step),
            Action::Run => self.run_container(step),
            Action::HookByPath => self.hook_by_path(step),
            Action::Attachments => self.attachments(step),
            Action::GcOfPid | Action::GcOfMount | Action::GcOfNet | Action::GcOfNoProc => {
                self.gc_from_elsewhere(step)
            }
            Action::Rename
            | Action::Down
            | Action::Readdress
            | Action::Flush
            | Action::Remac
            | Action::Vanish => self.intrude(step),
            _ => self.disturb(step),
        }
    }

    /// Notes a call and its outcome, and looks whether it came in time.
    fn note(&mut self, outcome: &Outcome) -> Holds {
        self.say(outcome.report());
        // The Go plugins are here for what they leave.
        if outcome.what.contains(crate::node::GO_PLUGINS) {
            return Ok(());
        }
        if outcome.is_late {
            return crate::model::fails("a call waits beyond its limit", outcome.report());
        }
        if outcome.stderr.contains("panicked at") || [-6, -11].contains(&outcome.status) {
            return crate::model::fails("a call crashes", outcome.report());
        }
        Ok(())
    }

    /// The configuration of a network, and that of an attachment in it.
    fn list(&self, network: usize) -> Option<Value> {
        self.model.networks.get(&network).cloned()
    }

    fn key(&self, step: &Step) -> Option<Key> {
        let container = self.model.containers.get(&step.container)?;
        Some(Key {
            network: format!("n{}", step.network),
            id: container.id.clone(),
            interface: format!("eth{}", step.interface),
        })
    }

    /// Whether an ADD of this key has succeeded and its container lives.
    fn is_up(&self, key: &Key) -> bool {
        let attachment = self.model.attachments.get(key);
        attachment
            .is_some_and(|attachment| attachment.state == State::Up && self.model.lives(attachment))
    }
}
