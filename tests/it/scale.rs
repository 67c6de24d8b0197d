//! The cost of a call of host-local does not depend on the number of reservations, unless the next addresses are taken. It is counted, in system calls
//! and in bytes, and not timed: a file that is read, a directory that is listed or an address that is tried is a
//! system call, wherever it happens.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use crate::world::{Bare, Call};

const MANY: u32 = 60_000;

/// How many of them a container has. They are one file under several names, which is made sooner.
const EACH: u32 = 4;

/// What a measurement may differ by. For each set of ranges.
const MORE_CALLS_MAX: i64 = 4;
const MORE_BYTES_MAX: i64 = 256;
/// What a search may cost that passes the whole run of taken addresses: it tries the first ones, and then reads the names of
/// all files once. The C library reads them in pieces of 32 KiB (glibc) or 2 KiB (musl).
const MORE_CALLS_OF_RUN_MAX: i64 = 1_800;
const MORE_BYTES_OF_RUN_MAX: i64 = 64 * MANY as i64;

/// The system calls of one call of a plugin, and the bytes that it read and wrote.
#[derive(Debug)]
struct Cost {
    calls: i64,
    bytes: i64,
}

impl Cost {
    fn least(&self, other: &Self) -> Self {
        Self { calls: self.calls.min(other.calls), bytes: self.bytes.min(other.bytes) }
    }
}

/// The n-th taken address of a set, and the last reserved one.
type Set = (fn(u32) -> IpAddr, &'static str);

struct Case {
    ranges: Value,
    sets: Vec<Set>,
    /// The whole run lies between the last address and the next.
    is_run_passed: bool,
}

fn v4(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a01_0002 + n).into()
}

fn v6(n: u32) -> IpAddr {
    Ipv6Addr::from_bits((0xfd00 << 112) + 2 + u128::from(n)).into()
}

/// All over the range.
fn scattered_v6(n: u32) -> IpAddr {
    let host = u64::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ipv6Addr::from_bits((0xfd00 << 112) + u128::from(host)).into()
}

fn cases() -> Vec<Case> {
    let case = |ranges, sets, is_run_passed| Case { ranges, sets, is_run_passed };
    let (range_v4, range_v6) =
        (json!([{"subnet": "10.1.0.0/16"}]), json!([{"subnet": "fd00::/64"}]));
    vec![
        case(json!([range_v4]), vec![(v4, "10.1.0.1")], true),
        case(json!([range_v4]), vec![(v4, "10.1.234.97")], false),
        case(json!([range_v6]), vec![(v6, "fd00::1")], true),
        case(json!([range_v6]), vec![(scattered_v6, "fd00::1")], false),
        case(json!([range_v4, range_v6]), vec![(v4, "10.1.234.97"), (v6, "fd00::ea61")], false),
    ]
}

const VERBS: [&str; 5] = ["ADD", "CHECK", "STATUS", "DEL", "DEL"];

/// How often is measured until the costs are the same. The least of all counts.
const MEASUREMENTS: usize = 5;

/// The costs of each verb in the empty and in the full network.
type Costs = [[Cost; 5]; 2];

fn least(one: &Costs, other: &Costs) -> Costs {
    std::array::from_fn(|network| {
        std::array::from_fn(|verb| one[network][verb].least(&other[network][verb]))
    })
}

/// The first verb that costs more in the full network.
fn dearer([small, large]: &Costs, case: &Case) -> Option<String> {
    let sets = i64::try_from(case.sets.len()).unwrap();
    let (calls_max, bytes_max) = match case.is_run_passed {
        true => (MORE_CALLS_OF_RUN_MAX, MORE_BYTES_OF_RUN_MAX),
        false => (MORE_CALLS_MAX, MORE_BYTES_MAX),
    };
    let mut verbs = VERBS.iter().zip(small).zip(large);
    let ((verb, small), large) = verbs.find(|((_, small), large)| {
        large.calls - small.calls > calls_max * sets || large.bytes - small.bytes > bytes_max * sets
    })?;
    Some(format!("{verb}: {small:?} became {large:?}"))
}

struct Network<'b> {
    bare: &'b Bare,
    name: &'static str,
    config: Value,
}

impl Network<'_> {
    fn fill(&self, case: &Case, count: u32) {
        let dir = self.bare.network(self.name);
        fs::create_dir_all(&dir).unwrap();
        for (index, (address, _)) in case.sets.iter().enumerate() {
            let path = |n| dir.join(address(n).to_string());
            for n in 0..count {
                let first = n - n % EACH;
                if n == first {
                    fs::write(path(n), format!("c{first}\r\neth0")).unwrap();
                } else {
                    fs::hard_link(path(first), path(n)).unwrap();
                }
            }
            self.set_last(index, case);
        }
    }

    /// In place, as the Go plugin does it.
    fn set_last(&self, index: usize, case: &Case) {
        let path = self.bare.network(self.name).join(format!("last_reserved_ip.{index}"));
        fs::write(path, case.sets[index].1).unwrap();
    }

    fn call(&self, verb: &str, id: &str) -> Call<'static> {
        self.bare.call("host-local", verb, &self.config).env("CNI_CONTAINERID", id)
    }

    /// The cost of each verb in a life of an attachment.
    fn costs(&self, case: &Case) -> [Cost; 5] {
        (0..case.sets.len()).for_each(|index| self.set_last(index, case));
        VERBS.map(|verb| self.cost(verb, "abc"))
    }

    fn cost(&self, verb: &str, id: &str) -> Cost {
        let trace = self.bare.scratch.text("trace");
        let outcome = self.call(verb, id).under(&["strace", "-f", "-qq", "-o", &trace]).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let trace = fs::read_to_string(trace).unwrap();
        let lines: Vec<&str> = trace.lines().filter(|line| line.contains('(')).collect();
        assert!(lines.iter().any(|line| line.contains("flock(")), "{trace}");
        let moved = |line: &&&str| {
            ["read(", "write(", "pread64(", "pwrite64(", "getdents64("]
                .iter()
                .any(|call| line.contains(call))
        };
        let result =
            |line: &&str| line.rsplit(" = ").next()?.split(' ').next()?.parse::<i64>().ok();
        let bytes = lines.iter().filter(moved).filter_map(result).filter(|n| *n > 0).sum();
        Cost { calls: i64::try_from(lines.len()).unwrap(), bytes }
    }
}

#[test]
fn every_verb_costs_the_same_with_many_reservations_as_with_none() {
    for case in cases() {
        let bare = Bare::new();
        let network = |name| {
            let ipam =
                json!({"type": "host-local", "dataDir": bare.data_dir(), "ranges": case.ranges});
            let config = json!({"cniVersion": "1.1.0", "name": name, "type": "bridge", "ipam": ipam,
                "cni.dev/valid-attachments": []});
            Network { bare: &bare, name, config }
        };
        let (empty, full) = (network("empty"), network("full"));
        empty.fill(&case, 0);
        full.fill(&case, MANY);
        // The first call reads all files.
        for network in [&empty, &full] {
            network.call("ADD", "first").run().success();
        }
        let measure = || [&empty, &full].map(|network| network.costs(&case));
        let mut costs = measure();
        for _ in 1..MEASUREMENTS {
            if dearer(&costs, &case).is_none() {
                break;
            }
            costs = least(&costs, &measure());
        }
        assert_eq!(dearer(&costs, &case), None, "{}", case.ranges);
    }
}

#[test]
fn gc_looks_at_no_file_that_it_keeps() {
    let bare = Bare::new();
    let ipam = json!({"type": "host-local", "dataDir": bare.data_dir(), "subnet": "10.1.0.0/16"});
    let keep: Vec<Value> = (0..MANY)
        .step_by(EACH as usize)
        .map(|n| json!({"containerID": format!("c{n}"), "ifname": "eth0"}))
        .collect();
    let config = json!({"cniVersion": "1.1.0", "name": "full", "type": "bridge", "ipam": ipam,
        "cni.dev/valid-attachments": keep});
    let full = Network { bare: &bare, name: "full", config };
    let sets: Vec<Set> = vec![(v4, "10.1.0.1")];
    full.fill(&Case { ranges: Value::Null, sets, is_run_passed: true }, MANY);
    full.call("ADD", "stale").run().success();
    assert_eq!(bare.taken("full").len(), MANY as usize + 1);
    let cost = full.cost("GC", "x");
    assert_eq!(bare.taken("full").len(), MANY as usize);
    // The list itself is read, and the names of the owners, in large pieces.
    assert!(cost.calls < i64::from(MANY) / 20, "{cost:?}");
}
