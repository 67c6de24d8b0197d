//! Calls of cnibox for several containers at the same time.

use serde_json::Value;

use super::calls::{Made, add_call, cnibox};
use super::libcni::Listed;
use super::{Effect, Play};
use crate::model::{Holds, Key};
use crate::node::{Call, Outcome};
use crate::step::{Action, By, Step};

/// A call of a race.
enum Racer {
    Add(Key, Made),
    Del(Key),
    Gc,
    Reconcile,
}

impl Play {
    /// Adds each container of the bits of `number` that is not attached, and deletes each that is, with a gc and a reconcile in
    /// between.
    pub(super) fn race(&mut self, step: &Step) -> Holds<Effect> {
        let Some(list) = self.list(step.network) else { return Ok(Effect::none()) };
        let mut racers =
            vec![(Racer::Gc, cnibox(&["gc"])), (Racer::Reconcile, cnibox(&["reconcile"]))];
        let mut spaces = Vec::new();
        let containers: Vec<usize> = self.model.containers.keys().copied().collect();
        for container in
            containers.into_iter().filter(|container| step.number >> container & 1 == 1)
        {
            let space = self.model.containers[&container].space;
            // No runtime adds an interface twice to one namespace.
            if !spaces.contains(&space) {
                let step = Step { container, ..step.clone() };
                racers.extend(self.racer(&step, &list));
                spaces.push(space);
            }
        }
        if racers.len() < 4 || list["plugins"][0]["device"].is_string() {
            return Ok(Effect::none());
        }
        let calls: Vec<Call> = racers.iter().map(|(_, call)| call.clone()).collect();
        let outcomes = self.node.race(&calls);
        let mut effect = Effect::none();
        for ((racer, _), outcome) in racers.into_iter().zip(outcomes) {
            self.note(&outcome)?;
            self.tool_form(&outcome)?;
            effect.touched.extend(self.learn_racer(racer, &outcome, step)?.touched);
        }
        Ok(effect)
    }

    fn racer(&self, step: &Step, list: &Value) -> Option<(Racer, Call)> {
        let key = self.key(step)?;
        let container = self.model.containers.get(&step.container)?.clone();
        let known = self.model.attachments.get(&key);
        if known.is_some_and(|attachment| attachment.by != By::Runtime)
            || container.runner.is_some()
        {
            return None;
        }
        if known.is_some() {
            let of = [
                "del",
                "--ignore",
                "--container-id",
                &key.id,
                "-i",
                &key.interface,
                &key.network,
                &container.path,
            ];
            return Some((Racer::Del(key.clone()), cnibox(&of)));
        }
        if self.interface_is_taken(&key, &container) {
            return None;
        }
        let capabilities = self.capabilities(list, step);
        let call = add_call(&key, &container.path, &capabilities);
        let made = Made { list: list.clone(), capabilities, by: By::Runtime, container };
        Some((Racer::Add(key, made), call))
    }

    fn learn_racer(&mut self, racer: Racer, outcome: &Outcome, step: &Step) -> Holds<Effect> {
        let listed = Listed::of_command(outcome);
        match racer {
            Racer::Add(key, made) => {
                self.model.used.entry(key.clone()).or_default();
                self.learn_add(key, &made, listed, false)
            }
            Racer::Del(key) => {
                self.learn_del(&key, By::Runtime, listed)?;
                Ok(Effect::of(key))
            }
            // What it says depends on the others.
            Racer::Reconcile => Ok(Effect::none()),
            // A container may have ended since the last gc, and now is another one.
            Racer::Gc => self.learn_gc(outcome, &Step { action: Action::Race, ..step.clone() }),
        }
    }
}
