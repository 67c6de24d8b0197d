//! SIGKILL with every system call that a call makes, one after the other.

use std::collections::BTreeMap;

use super::{Call, World};

/// Where strace writes, in the world.
const TRACE: &str = "/run/trace";

/// Runs what `call` returns once as it is, and then killed at each system call from its first socket on. `before`
/// prepares each run, `after` looks at what a killed one has left.
pub fn at_every_system_call<'w>(
    world: &World,
    call: impl Fn() -> Call<'w>,
    before: impl Fn(),
    after: impl Fn(&str),
) {
    let traced = |options: &[&str]| {
        let words = [&["strace", "-qq", "-o", TRACE], options].concat();
        call().under(&words).run().status
    };
    before();
    assert_eq!(traced(&[]), 0);
    after("not killed");
    let trace = world.read(TRACE);
    let mut counts = BTreeMap::new();
    let mut points = Vec::new();
    for name in trace.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name) {
        let count = counts.entry(name).or_insert(0);
        *count += 1;
        points.push((name, *count));
    }
    let first = points.iter().position(|(name, _)| *name == "socket").unwrap();
    let mut killed = 0;
    for (name, count) in points.split_off(first) {
        let point = format!("inject={name}:signal=KILL:when={count}");
        before();
        killed += u32::from(traced(&["-e", &point]) != 0);
        after(&point);
    }
    assert!(killed > 10, "{killed}");
}
