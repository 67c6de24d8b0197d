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

/// An unreadable text is no absent one: after each failed operation of the first call of a boot, the reservation of the boot before is
/// still known as such.
#[test]
fn a_failed_read_after_a_reboot_does_not_change_the_boot_of_a_reservation() {
    let net = Net::new(
        json!({"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.2", "rangeEnd": "10.1.0.2"}),
    );
    let boot_file = net.bare.scratch.text("boot");
    let call = |verb: &str, id: &str, boot: &str| {
        fs::write(&boot_file, format!("{boot}-e6cd-4471-bb46-39adcacd0000\n")).unwrap();
        net.call(verb, id).env("CNIBOX_BOOT_FILE", &boot_file)
    };
    for number in 1.. {
        assert!(number < 100);
        net.write("10.1.0.2", "old\r\neth0");
        call("DEL", "x", "00000001").run().silence();
        let failing =
            call("DEL", "x", "00000002").env("CNIBOX_FAIL_FILE", &number.to_string()).run();
        call("ADD", "new", "00000002").run().success();
        call("DEL", "new", "00000002").run().silence();
        if !failing.is_faulty {
            assert!(number > 10, "{number}");
            break;
        }
    }
}
