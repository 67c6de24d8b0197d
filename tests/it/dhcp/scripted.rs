//! Servers that answer as a test says; see scripted.py and scripted6.py.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::LIMIT_S;
use super::service::Service;
use crate::world::{Container, with};

const PROGRAM: &str = include_str!("scripted.py");
const PROGRAM6: &str = include_str!("scripted6.py");
const PLAN: &str = "/run/scripted.plan";

pub struct Scripted<'w>(pub Service<'w>);

/// An OFFER or an ACK (`kind` 2 or 5) of 10.1.0.20/24 with a lease of 600 s, and renewal after 1 s.
pub fn answer(kind: u8, more: Value) -> Value {
    with(
        &json!({"type": kind, "yiaddr": "10.1.0.20", "options": {"58": "00000001", "59": "0000001e"}}),
        more,
    )
}

/// The plan of a server that gives one address.
pub fn plan() -> Value {
    plan_with(json!({}))
}

/// The same with more in the OFFER and the ACK.
pub fn plan_with(more: Value) -> Value {
    json!({"discover": [answer(2, more.clone())], "request": [answer(5, more)]})
}

/// The plan of a server for DHCPv6 that gives one address.
pub fn plan6(address: &str) -> Value {
    let one = |kind: u8| json!([{"type": kind, "addresses": [[address, 500, 600]]}]);
    json!({"solicit": one(2), "request": one(7), "renew": one(7), "rebind": one(7)})
}

impl<'w> Scripted<'w> {
    pub fn start(place: &Container<'w>, plan: &Value) -> Self {
        Self::start_program(place, plan, PROGRAM)
    }

    /// The same for DHCPv6.
    pub fn start6(place: &Container<'w>, plan: &Value) -> Self {
        place.wait_for_link_local("sw");
        Self::start_program(place, plan, PROGRAM6)
    }

    fn start_program(place: &Container<'w>, plan: &Value, program: &str) -> Self {
        place.world.write("/run/scripted.py", program);
        let words = ["python3", "-u", "/run/scripted.py", "sw", PLAN];
        let service = Service::new(place.world, "scripted", Some(place.netns()), &words);
        let mut scripted = Self(service);
        scripted.answer_by(plan);
        scripted.0.start("scripted server is ready");
        scripted
    }

    /// Changes the plan.
    pub fn answer_by(&self, plan: &Value) {
        let aside = format!("{PLAN}.new");
        self.0.world.write(&aside, plan.to_string());
        self.0.world.host(["mv", &aside, PLAN]);
    }

    /// How many messages of this kind (`discover` and so on) have come.
    pub fn count(&self, kind: &str) -> usize {
        self.0.log().lines().filter(|line| line.split(' ').next() == Some(kind)).count()
    }

    /// How many transactions have a message of this kind. A client sends a message again, with the same id, if the answer is
    /// late.
    pub fn transactions(&self, kind: &str) -> usize {
        let log = self.0.log();
        let of_kind = log.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
        let ids: BTreeSet<_> = of_kind.map(|rest| rest.split(' ').next()).collect();
        ids.len()
    }

    /// Waits until so many messages of this kind have come.
    #[track_caller]
    pub fn wait_for(&self, kind: &str, count: usize) {
        let has_come = || self.count(kind) >= count;
        self.0
            .world
            .within_or(LIMIT_S, has_come, || format!("{count} of {kind}: {}", self.0.log()));
    }

    /// Waits for another message of this kind.
    #[track_caller]
    pub fn wait_for_another(&self, kind: &str) {
        self.wait_for(kind, self.count(kind) + 1);
    }
}
