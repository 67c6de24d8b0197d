//! The remains of containers that have ended: they are found, and removed only on demand.

use serde_json::{Value, json};

use super::{CONFIGURATIONS, configure, doctor, faults, healthy, network, only_fault};
use crate::tool::cnibox;
use crate::world::{Outcome, PLUGIN_DIR, World, parse, with};

const STORE: &str = "/var/lib/cni/networks/a";

fn call(world: &World, args: &[&str]) -> Outcome {
    let call = cnibox(world, args).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", CONFIGURATIONS).run()
}

/// An attachment that the cache has, and that has no namespace.
fn stale(world: &World) {
    let container = world.container("web");
    call(world, &["add", "a", "web", "--container-id", "web"]).output();
    container.destroy();
    world.eventually("the host's end is gone", || world.ports_of("cni-a").is_empty());
}

/// A container that other programs attached with bridge and portmap and that has ended: no cache entry, no reservation.
fn leaked_rules(world: &World) {
    let container = world.container("f00dcafe");
    let common = json!({"cniVersion": "1.0.0", "name": "a"});
    let bridge = with(&network("a", 1)["plugins"][0], json!({"ipMasq": true}));
    let result = container.add("bridge", &with(&bridge, common.clone()));
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let portmap =
        json!({"type": "portmap", "runtimeConfig": {"portMappings": ports}, "prevResult": result});
    container.add("portmap", &with(&portmap, common));
    world.host(["sh", "-c", &format!("rm {STORE}/10.*")]);
    container.destroy();
    world.eventually("the host's end is gone", || world.ports_of("cni-a").is_empty());
}

#[test]
fn a_stale_attachment_is_found_and_removed_on_demand() {
    let world = healthy(&[network("a", 1)]);
    stale(&world);
    let fix = only_fault(
        &world,
        "leaked",
        &["eth0 of container web in network a has ended: its network namespace has ended"],
    );
    assert_eq!(fix, "cnibox gc a");
    let before = world.state();
    let outcome = doctor(&world, &["--fix"]);
    let text = "--fix needs a terminal for its question, or --yes";
    assert!(outcome.status == 2 && outcome.stderr.contains(text), "{}", outcome.report());
    let outcome = doctor(&world, &["--fix", "--dry-run"]);
    let text =
        "\nwould remove eth0 of container web from network a: its network namespace has ended";
    assert!(outcome.status == 1 && outcome.stdout.contains(text), "{}", outcome.report());
    before.assert_same(&world.state(), "after --dry-run");
    let outcome = doctor(&world, &["--fix", "--yes"]);
    let text = "\nremoved eth0 of container web from network a: its network namespace has ended";
    assert!(outcome.status == 0 && outcome.stdout.contains(text), "{}", outcome.report());
    assert_eq!(faults(&world), [] as [Value; 0]);
    assert!(!world.path(STORE).join("10.1.0.2").exists());
}

#[test]
fn the_question_is_answered_on_a_terminal() {
    let world = healthy(&[network("a", 1)]);
    stale(&world);
    let ask = |answer: &str| {
        let command = format!(
            "NETCONFPATH={CONFIGURATIONS} CNI_PATH={PLUGIN_DIR} /run/bin/cnibox doctor --fix"
        );
        let script = ["script", "--quiet", "--return", "--command", &command, "/dev/null"];
        world.tool(&script, None).stdin(answer).run()
    };
    let outcome = ask("\n");
    assert!(
        outcome.status == 1 && outcome.stdout.contains("Remove the leaks? [y/N]"),
        "{}",
        outcome.report()
    );
    assert!(world.path(STORE).join("10.1.0.2").exists());
    let outcome = ask("y\n");
    assert!(outcome.status == 0 && outcome.stdout.contains("removed eth0"), "{}", outcome.report());
    assert_eq!(faults(&world), [] as [Value; 0]);
}

#[test]
fn a_leaked_reservation_is_found_and_released_on_demand() {
    let world = healthy(&[network("a", 1)]);
    // Addresses without an interface of ours: the plugins of others call the IPAM plugin.
    let container = world.container("f00dcafe");
    let ipam = network("a", 1)["plugins"][0]["ipam"].clone();
    let config = json!({"cniVersion": "1.0.0", "name": "a", "ipam": ipam});
    let [one, two] = ["eth0", "eth1"].map(|ifname| {
        let add = container.call("host-local", "ADD", &config).env("CNI_IFNAME", ifname);
        let address = add.run().success()["ips"][0]["address"].as_str().unwrap().to_owned();
        address.split('/').next().unwrap().to_owned()
    });
    assert_eq!(faults(&world), [] as [Value; 0]);
    container.destroy();
    let outcome = doctor(&world, &["--json"]);
    let findings = parse(&outcome.stdout)["findings"].clone();
    assert_eq!((outcome.status, &findings[0]["kind"]), (1, &"leaked".into()), "{findings:#}");
    let what = findings[0]["what"].as_str().unwrap();
    let ended = "of container f00dcafe in network a: its network namespace has ended";
    assert!(what.starts_with(&format!("{one} is reserved for eth0 {ended}")), "{what}");
    assert_eq!(findings[0]["fix"], "cnibox ipam release --leaks --network a");
    let text = doctor(&world, &[]).stdout;
    assert!(text.contains(" (and 1 more)\n") && text.lines().count() == 3, "{text}");
    let outcome = doctor(&world, &["--fix", "--yes", "--json"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    let done = parse(&outcome.stdout)["done"].clone();
    for (index, (address, ifname)) in [(&one, "eth0"), (&two, "eth1")].into_iter().enumerate() {
        let line = format!("released {address} of {ifname} {ended}");
        assert!(done[index].as_str().unwrap().starts_with(&line), "{done}");
    }
    assert_eq!(done.as_array().unwrap().len(), 2);
    assert!(!world.path(STORE).join(&one).exists() && !world.path(STORE).join(&two).exists());
}

#[test]
fn rules_of_a_container_that_ended_are_found_and_removed_on_demand() {
    let world = healthy(&[network("a", 1)]);
    leaked_rules(&world);
    let is_published = || world.host(["nft", "list", "ruleset"]).contains("f00dcafe");
    let outcome = doctor(&world, &[]);
    let text =
        "leaked: rules or links name eth0 of container f00dcafe in network a, which has ended\n";
    assert!(outcome.status == 1 && outcome.stdout.starts_with(text), "{}", outcome.report());
    assert!(is_published());
    // The rules are removed also without the configuration, and by the plugins of this executable.
    world.host(["rm", "-r", CONFIGURATIONS]);
    let outcome = doctor(&world, &["--fix", "--yes"]);
    let text = "removed the rules and links of eth0 of container f00dcafe in network a: its network namespace has ended\n";
    assert!(outcome.status == 0 && outcome.stdout.ends_with(text), "{}", outcome.report());
    assert!(!is_published(), "{}", world.host(["nft", "list", "ruleset"]));
    assert_eq!(doctor(&world, &[]).status, 0);
}

#[test]
fn the_rules_of_a_living_container_stay() {
    let world = healthy(&[network("a", 1)]);
    configure(&world, "a", &network("a", 1));
    let container = world.container("f00dcafe");
    let bridge = with(
        &network("a", 1)["plugins"][0],
        json!({"ipMasq": true, "cniVersion": "1.0.0", "name": "a"}),
    );
    container.add("bridge", &bridge);
    world.host(["sh", "-c", &format!("rm {STORE}/10.*")]);
    let before = world.state();
    let outcome = doctor(&world, &["--fix", "--yes"]);
    super::assert_no_fault(&outcome);
    before.assert_same(&world.state(), "after --fix");
}

#[test]
fn options_of_fix_need_it() {
    let world = healthy(&[]);
    for option in ["--yes", "--dry-run"] {
        assert_eq!(doctor(&world, &[option]).status, 2);
    }
}
