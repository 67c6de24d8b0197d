//! Where FORWARD drops packets, only those of containers pass.

use serde_json::{Value, json};

use super::{
    OUTSIDE, address, assert_does_not_reach, assert_reaches, attach, bridge, drop_forwarded,
    firewall, forget, outside, rules,
};
use crate::world::{World, with};

#[test]
fn a_container_gets_answers_from_outside_where_the_host_drops_in_both_families() {
    let world = World::new();
    let (outside, c1, c2) = (outside(&world), world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let result = attach(&c1, &bridge("net", 1), json!({}));
    c2.add("bridge", &bridge("net", 1));
    assert_reaches(&c1, &OUTSIDE);
    // The other container has no rule, and new connections from outside are dropped.
    assert_does_not_reach(&c2, &OUTSIDE);
    assert_does_not_reach(&outside, &[&address(&result, 0), &address(&result, 1)]);
    forget(&c1, "net");
    assert_does_not_reach(&c1, &OUTSIDE);
}

#[test]
fn a_connection_over_tcp_is_answered() {
    let world = World::new();
    let (outside, c1) = (outside(&world), world.container("c1"));
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), json!({"backend": "iptables"}));
    for (host, bind) in [("192.0.2.2", "0.0.0.0"), ("fd02::2", "::")] {
        let server = outside.tool(["python3", "-c", SERVER, bind]).start();
        let answer = c1.exec(["python3", "-c", CLIENT, host]);
        assert_eq!(answer.trim(), "hello");
        server.finish().output();
    }
}

const SERVER: &str = "import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 7777), family=family)
server.accept()[0].sendall(b'hello')";

const CLIENT: &str = "import socket, sys, time
for attempt in range(3000):
    try:
        print(socket.create_connection((sys.argv[1], 7777), 60).recv(9).decode())
        break
    except ConnectionRefusedError:
        time.sleep(0.02)";

#[test]
fn no_other_program_is_needed() {
    let world = World::new();
    let _outside = outside(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({"ingressPolicy": "isolated"}), &result);
    // A plugin gets no PATH at all here, and strace would show another program.
    let call = c1.call("firewall", "ADD", &config).under(&[
        "strace",
        "-f",
        "-e",
        "trace=execve,fork,vfork,clone,clone3",
    ]);
    let outcome = call.run();
    let calls: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains('(')).collect();
    assert_eq!(calls.len(), 1, "{}", outcome.report());
    assert_eq!(outcome.success(), result);
    assert_reaches(&c1, &OUTSIDE);
}

#[test]
fn iptables_still_reads_its_table_and_finds_the_chains_first() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    world.host(["iptables", "-A", "FORWARD", "-s", "192.0.2.0/24", "-j", "ACCEPT"]);
    attach(&c1, &bridge("net", 1), json!({}));
    for program in ["iptables", "ip6tables"] {
        let listed = world.tool(&[program, "-S"], None).run();
        assert_eq!(listed.stderr, "", "{}", listed.report());
        let lines: Vec<&str> = listed.stdout.lines().collect();
        let first = |chain: &str| {
            let start = format!("-A {chain} ");
            *lines.iter().find(|line| line.starts_with(&start)).unwrap()
        };
        assert!(first("FORWARD").ends_with("-j CNI-FORWARD"), "{lines:?}");
        assert!(first("CNI-FORWARD").ends_with("-j CNI-ADMIN"), "{lines:?}");
        let saved = world.tool(&[&format!("{program}-save")], None).run();
        assert_eq!((saved.status, saved.stderr.as_str()), (0, ""), "{}", saved.report());
        // The restored rules accept no other packets.
        assert!(!saved.stdout.contains("-A CNI-FORWARD -j ACCEPT"), "{}", saved.report());
    }
}

#[test]
fn the_chain_of_the_administrator_is_first_and_its_name_is_configurable() {
    let world = World::new();
    let _outside = outside(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), json!({"iptablesAdminChainName": "NOMAD-ADMIN"}));
    assert_reaches(&c1, &OUTSIDE);
    world.host(["iptables", "-A", "NOMAD-ADMIN", "-d", "192.0.2.2", "-j", "DROP"]);
    assert_does_not_reach(&c1, &OUTSIDE[..1]);
    assert_reaches(&c1, &OUTSIDE[1..]);
    assert!(!rules(&world).contains("CNI-ADMIN"));
}

#[test]
fn rules_before_our_jump_stay_there() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), json!({}));
    world.host(["iptables", "-I", "FORWARD", "-s", "10.1.0.66", "-j", "DROP"]);
    attach(&c2, &bridge("net", 1), json!({}));
    let listed = world.host(["iptables", "-S", "FORWARD"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[1], "-A FORWARD -s 10.1.0.66/32 -j DROP");
    assert!(lines[2].ends_with("-j CNI-FORWARD") && lines.len() == 3, "{lines:?}");
}

/// Regression: without a FORWARD chain an ADD made no rule, and Docker or ufw, started later, cut the container off.
#[test]
fn a_host_that_drops_only_after_the_add_lets_the_container_pass() {
    let world = World::new();
    let _outside = outside(&world);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    assert_eq!(rules(&world), "");
    let result = attach(&c1, &bridge("net", 1), json!({}));
    c2.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({}), &result);
    c1.check("firewall", &config, &result);
    // As dockerd and ufw begin.
    for program in ["iptables", "ip6tables"] {
        let script = format!(
            "{program} -P FORWARD DROP && {program} -N DOCKER-USER &&
             {program} -A DOCKER-USER -j RETURN && {program} -I FORWARD -j DOCKER-USER &&
             {program}-restore -n <<'END'\n*filter\n:ufw-forward - [0:0]\n-A FORWARD -j ufw-forward\nCOMMIT\nEND"
        );
        world.host(["sh", "-c", &script]);
    }
    assert_reaches(&c1, &OUTSIDE);
    assert_does_not_reach(&c2, &OUTSIDE);
    c1.check("firewall", &config, &result);
    forget(&c1, "net");
    assert_does_not_reach(&c1, &OUTSIDE);
    c1.add("firewall", &config);
    assert_reaches(&c1, &OUTSIDE);
    let none = with(&config, json!({"cni.dev/valid-attachments": []}));
    world.call("firewall", "GC", &none).run().silence();
    assert_does_not_reach(&c1, &OUTSIDE);
    assert!(!rules(&world).contains("net c1"), "{}", rules(&world));
}

/// The tables are those that iptables makes itself.
#[test]
fn iptables_reads_the_forward_that_an_add_made_and_makes_none_of_its_own() {
    let [ours, theirs] = [World::new(), World::new()];
    let c1 = ours.container("c1");
    attach(&c1, &bridge("net", 1), json!({}));
    for program in ["iptables", "ip6tables"] {
        theirs.host([program, "-A", "FORWARD", "-j", "ACCEPT"]);
        for words in [&["-S"][..], &["-S", "FORWARD"], &["-L", "-n", "-v"]] {
            let listed = ours.tool(&[&[program], words].concat(), None).run();
            assert_eq!((listed.status, listed.stderr.as_str()), (0, ""), "{}", listed.report());
        }
        let family = if program == "iptables" { "ip" } else { "ip6" };
        let chain = ["nft", "-j", "list", "chain", family, "filter", "FORWARD"];
        let [ours, theirs] = [&ours, &theirs].map(|world| declared(&world.host(chain)));
        assert_eq!(ours, theirs);
    }
    // A DEL leaves the chains, as with the reference, and iptables can remove them.
    forget(&c1, "net");
    ours.host(["sh", "-c", "iptables -F && iptables -X && ip6tables -F && ip6tables -X"]);
}

/// A base chain as nft lists it, without its handle and its rules.
fn declared(listed: &str) -> Value {
    let listed: Value = serde_json::from_str(listed).unwrap();
    let mut chains =
        listed["nftables"].as_array().unwrap().iter().filter_map(|object| object.get("chain"));
    let mut chain = chains.next_back().unwrap().clone();
    chain.as_object_mut().unwrap().remove("handle").unwrap();
    chain
}

#[test]
fn a_table_that_was_removed_accepts_all_containers_with_the_next_add() {
    let world = World::new();
    let _outside = outside(&world);
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    attach(&c1, &bridge("net", 1), json!({}));
    world.host(["sh", "-c", "nft delete table ip filter && nft delete table ip6 filter"]);
    drop_forwarded(&world);
    assert_does_not_reach(&c1, &OUTSIDE);
    attach(&c2, &bridge("net", 1), json!({}));
    assert_reaches(&c1, &OUTSIDE);
    assert_reaches(&c2, &OUTSIDE);
}

#[test]
fn an_add_puts_back_rules_that_were_flushed() {
    let world = World::new();
    let _outside = outside(&world);
    let c1 = world.container("c1");
    drop_forwarded(&world);
    let result = attach(&c1, &bridge("net", 1), json!({}));
    for flush in ["iptables -F", "iptables -F && iptables -X", "iptables -F CNI-FORWARD"] {
        world.host(["sh", "-c", flush]);
        assert_does_not_reach(&c1, &OUTSIDE[..1]);
        c1.add("firewall", &firewall("net", json!({}), &result));
        assert_reaches(&c1, &OUTSIDE);
    }
}

#[test]
fn an_add_once_more_changes_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    for policy in ["open", "same-bridge", "isolated"] {
        let keys = json!({"ingressPolicy": policy});
        let result = attach(&c1, &bridge("net", 1), keys.clone());
        let before = rules(&world);
        c1.add("firewall", &firewall("net", keys, &result));
        assert_eq!(rules(&world), before);
        c1.del("bridge", &bridge("net", 1));
    }
}

#[test]
fn an_address_that_is_given_out_again_is_its_new_owners() {
    let world = World::new();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    drop_forwarded(&world);
    let result = attach(&c1, &bridge("net", 1), json!({"ingressPolicy": "isolated"}));
    // c1 has ended without a DEL.
    c1.destroy();
    let fresh = json!({"ipam": {"dataDir": "/run/fresh"}});
    let again = c2.add("bridge", &with(&bridge("net", 1), fresh));
    assert_eq!(address(&again, 0), address(&result, 0));
    c2.add("firewall", &firewall("net", json!({}), &again));
    let rules = rules(&world);
    assert!(rules.contains("10.1.0.2 comment \"net c2 eth0\""), "{rules}");
    assert!(!rules.contains("10.1.0.2 comment \"net c1 eth0\""), "{rules}");
    forget(&c1, "net");
    c2.check("firewall", &firewall("net", json!({}), &again), &again);
}

#[test]
fn rules_of_iptables_legacy_are_in_the_way_and_it_is_said() {
    let world = World::new();
    let c1 = world.container("c1");
    let result = c1.add("bridge", &bridge("net", 1));
    let config = firewall("net", json!({}), &result);
    world.host(["iptables-legacy", "-S"]);
    // In use, but not in the way.
    world.call("firewall", "STATUS", &config).run().silence();
    world.host(["iptables-legacy", "-P", "FORWARD", "DROP"]);
    let outcome = c1.call("firewall", "ADD", &config).run();
    assert!(outcome.stderr.contains("iptables-legacy"), "{}", outcome.report());
    assert_eq!(outcome.success(), result);
    // STATUS fails only if an ADD would.
    let warns = |program: &str| {
        let outcome = world.call("firewall", "STATUS", &config).run();
        let warning = format!("the policy of FORWARD in {program} is DROP");
        assert!(outcome.stderr.contains(&warning), "{}", outcome.report());
        outcome.silence();
    };
    warns("iptables-legacy");
    world.host(["iptables-legacy", "-P", "FORWARD", "ACCEPT"]);
    let outcome = world.call("firewall", "STATUS", &config).run();
    assert_eq!(outcome.stderr, "", "{}", outcome.report());
    outcome.silence();
    world.host(["ip6tables-legacy", "-P", "FORWARD", "DROP"]);
    warns("ip6tables-legacy");
}
