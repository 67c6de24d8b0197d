//! Leaves out steps of a failing history while the same rule fails (delta debugging).

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::model::Failure;
use crate::play::Play;
use crate::step::{Action, Fault, Step};

const LIMIT: Duration = Duration::from_secs(120);

/// The few steps, and how the last of them failed.
pub fn shrink(steps: &[Step], failure: &Failure) -> (Vec<Step>, Failure) {
    let last = RefCell::new(failure.clone());
    let deadline = Instant::now() + LIMIT;
    let fails = |steps: &[Step]| {
        if Instant::now() >= deadline {
            return false;
        }
        match crate::outcome_of(&mut Play::new(), steps) {
            Err((_, failure)) if failure.rule == last.borrow().rule => {
                last.replace(failure);
                true
            }
            _ => false,
        }
    };
    let mut steps = steps.to_vec();
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < steps.len() {
            let end = steps.len().min(at + size);
            let fewer = [&steps[..at], &steps[end..]].concat();
            if fails(&fewer) {
                steps = fewer;
                has_shrunk = true;
            } else {
                at = end;
            }
        }
        size = if has_shrunk && size == 1 { 1 } else { size / 2 };
    }
    let steps = simplify(steps, fails);
    (steps, last.into_inner())
}

/// Without faults and plugins that do not matter.
fn simplify(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    for at in 0..steps.len() {
        if steps[at].fault != Fault::None {
            let mut simpler = steps.clone();
            simpler[at].fault = Fault::None;
            if fails(&simpler) {
                steps = simpler;
            }
        }
        if steps[at].action != Action::Network {
            continue;
        }
        let count = steps[at].config["plugins"].as_array().map_or(0, Vec::len);
        for plugin in (1..count).rev() {
            let mut simpler = steps.clone();
            if let Some(plugins) = simpler[at].config["plugins"].as_array_mut() {
                plugins.remove(plugin);
            }
            if fails(&simpler) {
                steps = simpler;
            }
        }
    }
    steps
}
