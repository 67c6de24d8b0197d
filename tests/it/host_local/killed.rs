//! A call that is killed at any point leaves what the next one can live with: SIGKILL comes with every system call that
//! it makes, one after the other.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;

use super::Net;

/// The n-th call of a system call.
type Point = (String, usize);

impl Net {
    fn traced(&self, verb: &str, options: &[&str]) -> i32 {
        let trace = self.bare.scratch.text("trace");
        let words = [&["strace", "-qq", "-o", &trace], options].concat();
        self.call(verb, "abc").under(&words).run().status
    }

    /// All system calls from the lock on.
    fn points(&self, verb: &str) -> Vec<Point> {
        assert_eq!(self.traced(verb, &[]), 0);
        let trace = fs::read_to_string(self.bare.scratch.file("trace")).unwrap();
        let mut counts = BTreeMap::new();
        let mut points = Vec::new();
        for name in trace.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name) {
            let count = counts.entry(name.to_owned()).or_insert(0);
            *count += 1;
            points.push((name.to_owned(), *count));
        }
        let lock = points.iter().position(|(name, _)| name == "flock").unwrap();
        points.split_off(lock)
    }

    /// Whether the call was killed.
    fn killed_at(&self, verb: &str, (name, count): &Point) -> bool {
        let inject = format!("inject={name}:signal=KILL:when={count}");
        self.traced(verb, &["-e", &inject]) != 0
    }
}

fn net() -> Net {
    // Every address, so the test finds a lost one.
    Net::new(json!({
        "sticky": true, "ranges": [[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/126"}]],
    }))
}

#[test]
fn an_add_that_is_killed_leaves_nothing_that_its_del_does_not_find() {
    let net = net();
    net.add("other");
    let points = net.points("ADD");
    net.del("abc");
    let mut killed = 0;
    for point in points {
        // How often stdin is read is a matter of luck, so the last of the reads need not come.
        killed += u32::from(net.killed_at("ADD", &point));
        net.del("abc");
        assert_eq!(net.taken(), ["10.1.0.2", "fd00::2"], "killed at {point:?}");
        net.run("STATUS", "x").silence();
        assert_eq!(net.add("abc").len(), 2, "killed at {point:?}");
        net.run("CHECK", "abc").silence();
        net.del("abc");
    }
    assert!(killed > 30, "{killed}");
}

#[test]
fn a_del_that_is_killed_can_be_repeated() {
    let net = net();
    net.add("other");
    net.add("abc");
    let mut killed = 0;
    for point in net.points("DEL") {
        net.add("abc");
        killed += u32::from(net.killed_at("DEL", &point));
        net.run("CHECK", "other").silence();
        net.del("abc");
        assert_eq!(net.taken(), ["10.1.0.2", "fd00::2"], "killed at {point:?}");
    }
    assert!(killed > 10, "{killed}");
}
