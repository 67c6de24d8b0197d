//! What `doctor CONTAINER` says of a container that has ended, and what doctor says of what it cannot read: never nothing.

use super::attachments::{call, host};
use super::{CONFIGURATIONS, PLUGIN_DIR, cnibox, doctor, is_mended_by, only_fault};
use crate::world::{Outcome, World};

#[test]
fn an_ended_container_is_leaked_also_by_its_name() {
    let world = host();
    let id =
        world.host(["sh", "-c", "ls /var/lib/cni/results | sed -n 's/^a-\\(.*\\)-eth0$/\\1/p'"]);
    world.host(["ip", "netns", "delete", "c1"]);
    world.eventually("its link is gone", || world.ports_of("cni-a").len() == 1);
    let leaked = doctor(&world, &[]);
    let line = leaked.stdout.lines().find(|line| line.starts_with("leaked: ")).unwrap().to_owned();
    let id = id.lines().find(|id| line.contains(id)).unwrap();
    for word in ["c1", id, &id[..id.len() - 2]] {
        let outcome = doctor(&world, &[word]);
        assert_eq!(outcome.status, 1, "{word}: {}", outcome.report());
        assert!(outcome.stdout.contains(&line), "{word}: {}", outcome.report());
    }
    let other = doctor(&world, &["c2"]);
    assert_eq!(other.status, 0, "{}", other.report());
    let network = doctor(&world, &["a"]);
    let text = "cannot find container a: it has no attachment; it is a network: ";
    assert!(network.status != 0 && network.stderr.contains(text), "{}", network.report());
}

#[test]
fn an_entry_that_cannot_be_read_is_a_finding_about_a_container() {
    let world = host();
    world.host(["sh", "-c", "for file in /var/lib/cni/results/*; do truncate -s 100 $file; done"]);
    for word in [&["c1"][..], &["--port", "8081"]] {
        let outcome = doctor(&world, word);
        let text = "broken: cannot use cache entry /var/lib/cni/results/a-";
        assert!(outcome.status == 1 && outcome.stdout.contains(text), "{}", outcome.report());
    }
}

fn failing(world: &World, variable: &str, number: u32) -> Outcome {
    let call = cnibox(world, &["doctor"]).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", CONFIGURATIONS).env(variable, &number.to_string()).run()
}

#[test]
fn a_fault_that_cannot_be_examined_is_no_absence() {
    let world = host();
    world.host(["ip", "-n", "c1", "link", "set", "eth0", "down"]);
    world.host(["sh", "-c", "rm /var/lib/cni/networks/a/10.1.0.2"]);
    let whole = doctor(&world, &[]).stdout;
    let texts = ["the interface is down", "its address 10.1.0.2 is not reserved"];
    assert!(texts.iter().all(|text| whole.contains(text)), "{whole}");
    for (variable, numbers) in [("CNIBOX_FAIL_FILE", 40..90), ("CNIBOX_FAIL_KERNEL", 160..220)] {
        for number in numbers.step_by(2) {
            let outcome = failing(&world, variable, number);
            let printed = [&*outcome.stdout, &outcome.stderr].concat();
            let is_whole = texts.iter().all(|text| printed.contains(text));
            assert!(is_whole || printed.contains("cannot "), "{variable} {number}: {printed}");
            assert!(!printed.contains("no timer calls gc"), "{variable} {number}: {printed}");
        }
    }
}

#[test]
fn another_route_to_a_container_is_found() {
    let world = host();
    let route = |family: &str, address: &str| format!("ip {family} route get {address}");
    for (fault, undo, family, address) in [
        (
            "ip address add 10.1.0.100/25 dev wan",
            "ip address delete 10.1.0.100/25 dev wan",
            "",
            "10.1.0.2",
        ),
        ("ip route add 10.1.0.2/32 dev wan", "ip route delete 10.1.0.2/32 dev wan", "", "10.1.0.2"),
        (
            "ip route add 10.1.0.0/25 via 198.18.0.254",
            "ip route delete 10.1.0.0/25",
            "",
            "10.1.0.2",
        ),
        (
            "ip route add blackhole 10.1.0.2/32",
            "ip route delete blackhole 10.1.0.2/32",
            "",
            "10.1.0.2",
        ),
        (
            "ip route add fd00:1::2/128 dev wan",
            "ip route delete fd00:1::2/128 dev wan",
            "",
            "fd00:1::2",
        ),
    ] {
        world.host(["sh", "-ec", fault]);
        let fix = only_fault(
            &world,
            "broken",
            &["the host sends packets for its address ", "not through cni-a: ip route get "],
        );
        assert!(fix.ends_with(&route(family, address).replace("  ", " ")), "{fault}: {fix}");
        let about = call(&world, &["doctor", "c1"]);
        assert_eq!(about.status, 1, "{fault}: {}", about.report());
        is_mended_by(&world, undo);
    }
    for delete in ["ip route delete 10.1.0.0/16", "ip -6 route delete fd00:1::/64 dev cni-a"] {
        world.host(["sh", "-ec", delete]);
        let fix = only_fault(&world, "broken", &["not through cni-a", "(and 1 more)"]);
        assert!(fix.starts_with("ip route replace "), "{fix}");
        is_mended_by(&world, &fix);
    }
}
