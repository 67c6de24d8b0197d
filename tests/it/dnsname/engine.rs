//! The process aardvark-dns: its start, its end, and what it cannot serve.

use serde_json::{Value, json};

use super::{
    Attached, ID, args, attach, dnsname, engine, kill, leftovers, network, occupy, prepare,
};
use crate::world::{DNS_ENGINE, World, all_at_once, with};

#[test]
fn the_last_name_ends_the_engine_and_the_next_one_starts_it() {
    let world = World::new();
    let net = network("net", 1);
    let keeper = attach(&world, "keeper", &network("other", 2), json!({}));
    keeper.detach();
    for _ in 0..20 {
        let one = attach(&world, "one", &net, json!({}));
        assert_eq!(one.asks("one"), one.addresses());
        one.detach();
        assert_eq!(leftovers(&world), "");
        one.container.destroy();
    }
}

#[test]
fn calls_at_once_lose_no_name_and_no_engine() {
    let world = World::new();
    let net = network("net", 1);
    let all: Vec<Attached<'_>> = (0..12)
        .map(|number| {
            let container = world.container(&format!("c{number}"));
            let before = container.add("bridge", &net);
            let config = with(&dnsname(&net, json!({})), json!({"prevResult": before}));
            Attached {
                container,
                network: net.clone(),
                ifname: "eth0".into(),
                config,
                result: Value::Null,
            }
        })
        .collect();
    for _ in 0..3 {
        for outcome in all_at_once(
            all.iter().map(|one| one.call("ADD").env("CNI_ARGS", &args(&one.container.name))),
        ) {
            outcome.success();
        }
        let asking = attach(&world, "asking", &net, json!({}));
        for one in &all {
            assert_eq!(asking.asks(&one.container.name).len(), 2, "{}", one.container.name);
        }
        // The last name goes while the next one comes.
        let (half, rest) = all.split_at(6);
        asking.detach();
        asking.container.destroy();
        let calls =
            half.iter().map(|one| one.call("DEL")).chain(rest.iter().map(|one| one.call("ADD")));
        for outcome in all_at_once(calls) {
            assert_eq!(outcome.status, 0, "{}", outcome.report());
        }
        assert_eq!(world.read("/run/cnibox/names/aardvark/n-net").lines().count(), 1 + rest.len());
        for outcome in all_at_once(all.iter().map(|one| one.call("DEL"))) {
            outcome.silence();
        }
        assert_eq!(leftovers(&world), "");
    }
}

#[test]
fn a_killed_engine_is_told_of_and_started_again() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let db = attach(&world, "db", &net, json!({}));
    let first = engine(&world);
    kill(&world);
    web.check("web").run().fails(999, &["aardvark-dns does not run"]);
    // An ADD, a DEL and a GC start it for all names.
    let more = attach(&world, "more", &net, json!({}));
    assert_ne!(engine(&world), first);
    assert_eq!(db.asks("web"), web.addresses());
    kill(&world);
    more.detach();
    assert_eq!(db.asks("web"), web.addresses());
    assert_eq!(db.asks("more"), [""; 0]);
    kill(&world);
    let valid = ["web", "db"].map(|id| json!({"containerID": id, "ifname": "eth0"}));
    let gc = with(&web.config, json!({"cni.dev/valid-attachments": valid}));
    world.call("dnsname", "GC", &gc).run().silence();
    assert_eq!(db.asks("web"), web.addresses());
    // The id of the process is that of another one by now: it must not get a signal.
    let mut stranger = world.tool(&["sleep", "1000"], None).start();
    kill(&world);
    world.write(ID, format!("{}\n", stranger.pid_in_world()));
    db.detach();
    assert!(stranger.is_running());
    assert_eq!(web.asks("web"), web.addresses());
    web.detach();
    assert!(stranger.is_running());
    assert_eq!(leftovers(&world), "");
}

#[test]
fn a_call_that_was_killed_is_completed_by_the_next_one() {
    let world = World::new();
    let (net, other) = (network("net", 1), network("other", 2));
    let web = attach(&world, "web", &net, json!({}));
    let db = attach(&world, "db", &other, json!({}));
    // As after a SIGKILL between the file of the attachment and that of the engine.
    world.write("/run/cnibox/names/changing", "");
    world.write("/run/cnibox/names/aardvark/n-net", "10.1.0.1,fd00:1::1\n");
    world.write("/run/cnibox/names/aardvark/n-gone", "10.9.0.1\nx 10.9.0.2  x\n");
    let more = attach(&world, "more", &other, json!({}));
    assert_eq!(web.asks("web"), web.addresses(), "the file of another network is made again");
    assert_eq!(more.asks("db"), db.addresses());
    let files = world.host(["ls", "-A", "/run/cnibox/names", "/run/cnibox/names/aardvark"]);
    assert!(!files.contains("changing") && !files.contains("n-gone"), "{files}");
}

#[test]
fn a_network_without_its_gateway_does_not_stop_the_others() {
    let world = World::new();
    let (net, other) = (network("net", 1), network("other", 2));
    let web = attach(&world, "web", &net, json!({}));
    let lost = attach(&world, "lost", &other, json!({}));
    world.host(["ip", "address", "flush", "dev", "cni2"]);
    kill(&world);
    let db = attach(&world, "db", &net, json!({}));
    assert_eq!(db.asks("web"), web.addresses());
    lost.check("lost")
        .run()
        .fails(7, &["cannot serve names in network other", "no gateway address"]);
    // With the gateway its names are back.
    world.host([
        "sh",
        "-ec",
        "ip address add 10.2.0.1/24 dev cni2; ip address add fd00:2::1/64 dev cni2 nodad",
    ]);
    let found = attach(&world, "found", &other, json!({}));
    assert_eq!(found.asks("lost"), lost.addresses());
    lost.check("lost").run().silence();
}

#[test]
fn a_program_on_port_53_is_named() {
    let world = World::new();
    let net = network("net", 1);
    let program = occupy(&world, "0.0.0.0");
    let (container, config) = prepare(&world, "c1", &net);
    let pid = program.pid_in_world();
    let add = container.call("dnsname", "ADD", &config).run();
    add.fails(
        999,
        &[
            "cannot serve udp port 53 of 10.1.0.1",
            &format!("the program socat, process {pid}, has this port of 0.0.0.0"),
        ],
    );
    assert_eq!(leftovers(&world), "");
    drop(program);
    world.host(["pkill", "socat"]);
    container.add("dnsname", &config);
    // One that came to a second network while the engine runs.
    let other = network("other", 2);
    container.call("bridge", "ADD", &other).env("CNI_IFNAME", "eth1").run().success();
    let program = occupy(&world, "10.2.0.1");
    let before = container
        .call("bridge", "ADD", &with(&other, json!({})))
        .env("CNI_IFNAME", "eth2")
        .run()
        .success();
    let second = with(&dnsname(&other, json!({})), json!({"prevResult": before}));
    let add = container.call("dnsname", "ADD", &second).env("CNI_IFNAME", "eth2").run();
    add.fails(999, &["cannot serve udp port 53 of 10.2.0.1", "socat"]);
    assert!(!world.read("/run/cnibox/names/aardvark/n-net").is_empty());
    assert!(!world.path("/run/cnibox/names/aardvark/n-other").exists());
    drop(program);
}

#[test]
fn a_missing_or_old_engine_is_named_with_its_package() {
    let world = World::new();
    let net = network("net", 1);
    let (c1, config) = prepare(&world, "c1", &net);
    // Without the directories of the machine, which may have the engine.
    world.host(["sh", "-ec", "rm /run/plugins/aardvark-dns"]);
    let texts =
        ["cannot find aardvark-dns", "need aardvark-dns 1.13 or later", "the package aardvark-dns"];
    c1.call("dnsname", "ADD", &config).run().fails(999, &texts);
    world.call("dnsname", "STATUS", &config).run().fails(50, &texts);
    world.write("/run/plugins/aardvark-dns", "#!/bin/sh\necho aardvark-dns 1.4.0\n");
    world.host(["chmod", "+x", "/run/plugins/aardvark-dns"]);
    let texts = ["/run/plugins/aardvark-dns is release 1.4", "need aardvark-dns 1.13 or later"];
    c1.call("dnsname", "ADD", &config).run().fails(999, &texts);
    world.call("dnsname", "STATUS", &config).run().fails(50, &texts);
    assert_eq!(leftovers(&world), "");
    // Names that are there can be removed without it.
    world.host(["ln", "-sf", DNS_ENGINE, "/run/plugins/aardvark-dns"]);
    world.call("dnsname", "STATUS", &config).run().silence();
    c1.add("dnsname", &config);
    let web = attach(&world, "web", &net, json!({}));
    world.host(["sh", "-ec", "rm /run/plugins/aardvark-dns"]);
    kill(&world);
    let del = web.call("DEL").run();
    assert!(
        del.stderr.contains("cannot find aardvark-dns")
            && del.stderr.contains("the names of containers are not answered"),
        "{}",
        del.report()
    );
    del.silence();
    c1.del("dnsname", &config);
    assert_eq!(leftovers(&world), "");
}

#[test]
fn an_engine_whose_file_is_lost_or_names_another_process_is_found() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let first = engine(&world);
    world.host(["rm", ID]);
    web.check("web").run().silence();
    let db = attach(&world, "db", &net, json!({}));
    assert_eq!(engine(&world), first);
    assert_eq!(db.asks("web"), web.addresses());
    let mut stranger = world.tool(&["sleep", "1000"], None).start();
    world.write(ID, format!("{}\n", stranger.pid_in_world()));
    db.detach();
    assert_eq!(engine(&world), first);
    assert_eq!(web.asks("db"), [""; 0]);
    // All files are gone: the names of those that are attached again are answered by the same process.
    world.host(["rm", "-r", "/run/cnibox/names"]);
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    assert_eq!(engine(&world), first);
    assert_eq!(web.asks("web"), web.addresses());
    web.detach();
    assert!(stranger.is_running());
    assert_eq!(leftovers(&world), "");
}

/// Another mount namespace has other files at the same path: its engine is not this one.
#[test]
fn an_engine_of_other_files_is_a_stranger() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let first = engine(&world);
    let other = network("other", 2);
    let (db, config) = prepare(&world, "db", &other);
    let apart = "mount -t tmpfs none /run/cnibox/names; \"$0\" \"$@\" && cat /run/cnibox/names/aardvark/aardvark.pid >&2";
    let add = db.call("dnsname", "ADD", &config).under(&["unshare", "--mount", "sh", "-ec", apart]);
    let outcome = add.run();
    let second = outcome.stderr.trim().to_owned();
    outcome.success();
    assert!(!second.is_empty() && second != first, "{second}");
    // Its pid in the file of this one: it gets no signal.
    world.write(ID, format!("{second}\n"));
    let more = attach(&world, "more", &net, json!({}));
    assert_eq!(engine(&world), first);
    assert_eq!(more.asks("web"), web.addresses());
    assert_eq!(world.host(["pgrep", "-x", "aardvark-dns"]).lines().count(), 2);
    world.host(["kill", &second]);
}

#[test]
fn an_address_that_cannot_be_served_at_a_start_is_told_of_and_served_later() {
    let world = World::new();
    let (net, other) = (network("net", 1), network("other", 2));
    let web = attach(&world, "web", &net, json!({}));
    let lost = attach(&world, "lost", &other, json!({}));
    kill(&world);
    let program = occupy(&world, "10.2.0.1");
    // A bridge without a port has no carrier, so its address stays tentative.
    let port = world.ports_of("cni2").remove(0);
    let tentative = format!(
        "ip link set {port} nomaster; sysctl -qw net.ipv6.conf.cni2.accept_dad=1 net.ipv6.conf.cni2.dad_transmits=1
        ip -6 address flush dev cni2 scope global; ip address add fd00:2::1/64 dev cni2"
    );
    world.host(["sh", "-ec", &tentative]);
    let (db, config) = prepare(&world, "db", &net);
    let add = db.call("dnsname", "ADD", &config).run();
    let said = add.stderr.clone();
    add.success();
    for text in [
        "cannot serve udp port 53 of 10.2.0.1: the program socat, process ",
        "cannot serve udp port 53 of fd00:2::1: ",
    ] {
        assert!(said.contains(text), "{said}");
    }
    assert_eq!(web.asks("web"), web.addresses());
    lost.check("lost").run().fails(999, &["aardvark-dns does not serve 10.2.0.1"]);
    drop(program);
    world.host(["pkill", "socat"]);
    world.host(["ip", "link", "set", &port, "master", "cni2"]);
    world.eventually("the address is usable", || {
        !world.host(["ip", "-6", "address", "show", "dev", "cni2"]).contains("tentative")
    });
    lost.call("ADD").env("CNI_ARGS", &args("lost")).run().success();
    lost.check("lost").run().silence();
    assert_eq!(web.asks("web"), web.addresses());
    assert_eq!(lost.asks("lost"), lost.addresses());
}

/// aardvark-dns would end at its next start.
#[test]
fn a_second_network_at_the_same_gateway_is_refused() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let twin = with(
        &network("twin", 1),
        json!({"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.100"}]]}}),
    );
    let (db, config) = prepare(&world, "db", &twin);
    db.call("dnsname", "ADD", &config)
        .run()
        .fails(7, &["cannot serve names at 10.1.0.1", "network net is served there"]);
    kill(&world);
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    assert_eq!(web.asks("web"), web.addresses());
    web.detach();
    assert_eq!(leftovers(&world), "");
    db.add("dnsname", &config);
    db.del("dnsname", &config);
}

#[test]
fn lost_files_of_names_are_made_again() {
    let world = World::new();
    let net = network("net", 1);
    let web = attach(&world, "web", &net, json!({}));
    let db = attach(&world, "db", &net, json!({}));
    world.host(["rm", "/run/cnibox/names/networks/net/web+eth0"]);
    web.check("web").run().fails(999, &["the names of container web are missing"]);
    web.call("ADD").env("CNI_ARGS", &args("web")).run().success();
    assert_eq!(db.asks("web"), web.addresses());
    world.write("/run/cnibox/names/aardvark/foreign", "");
    [web, db].iter().for_each(Attached::detach);
    assert_eq!(
        leftovers(&world),
        "/run/cnibox/names/aardvark\n/run/cnibox/names/aardvark/foreign\n"
    );
}
