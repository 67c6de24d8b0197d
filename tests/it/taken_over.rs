//! Containers that ended without a DEL: a later ADD takes their addresses, and a late DEL takes nothing from a later container.

use serde_json::{Value, json};

use crate::world::{Container, World, addresses, all_at_once, is_full, with};

/// A network with `plugin`, and subnets of these prefix lengths.
fn network(plugin: &str, v4: u8, v6: u8) -> Value {
    let ranges =
        json!([[{"subnet": format!("10.1.0.0/{v4}")}], [{"subnet": format!("fd00:1::/{v6}")}]]);
    json!({"cniVersion": "1.1.0", "name": "net", "type": plugin, "bridge": "br1", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "ranges": ranges}})
}

fn publishing(network: &Value, port: u16, result: &Value) -> Value {
    let mappings = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    json!({"cniVersion": "1.1.0", "name": network["name"], "type": "portmap", "prevResult": result,
        "runtimeConfig": {"portMappings": mappings}})
}

fn ips(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

fn holder(world: &World, address: &str) -> String {
    world.read(&format!("/var/lib/cni/networks/net/{address}"))
}

fn reservations(world: &World) -> usize {
    let state = world.state();
    let is_reservation = |line: &&String| {
        let name = line.strip_prefix("file /var/lib/cni/networks/net/").unwrap_or_default();
        name.starts_with("10.") || name.starts_with("fd")
    };
    state.lines().iter().filter(is_reservation).count()
}

/// Removes the namespace, without waiting for its end.
fn kill(container: &Container<'_>) {
    let path = container.netns();
    container.world.host(["sh", "-c", "umount $0 && rm $0", &path]);
}

#[test]
fn a_container_that_is_started_again_gets_addresses() {
    for plugin in ["bridge", "ptp"] {
        let world = World::new();
        let net = network(plugin, 24, 64);
        let old = world.container("c1");
        let result = old.add(plugin, &net);
        old.add("portmap", &publishing(&net, 8080, &result));
        kill(&old);
        let new = world.container("c1");
        let outcome = new.call(plugin, "ADD", &net).run();
        assert!(
            outcome.stderr.contains("removed what an earlier eth0 of container c1"),
            "{}",
            outcome.report()
        );
        let result = outcome.success();
        assert_eq!(reservations(&world), 2, "{plugin}");
        new.check(plugin, &net, &result);
        new.ping("10.1.0.1");
        new.ping("fd00:1::1");
        // The second container publishes nothing.
        let rules = world.host(["nft", "list", "ruleset"]);
        assert!(!rules.contains("8080") && !rules.contains("10.1.0.2"), "{rules}");
        new.del(plugin, &with(&net, json!({"prevResult": result})));
        assert_eq!(reservations(&world), 0, "{plugin}");
    }
}

/// Attaches as many containers as 10.1.0.0/29 has addresses, with a published port each.
fn fill<'w>(world: &'w World, net: &Value) -> Vec<(Container<'w>, Value)> {
    let attach = |number: u16| {
        let container = world.container(&format!("old{number}"));
        let result = container.add("bridge", net);
        container.add("portmap", &publishing(net, 8000 + number, &result));
        (container, result)
    };
    (0..5).map(attach).collect()
}

#[test]
fn a_full_range_of_ended_containers_is_not_full() {
    let world = World::new();
    let net = network("bridge", 29, 64);
    let all = fill(&world, &net);
    let status = || world.call("bridge", "STATUS", &net).run();
    let refused = "no IP addresses available in range set: 10.1.0.1-10.1.0.6";
    let new = world.container("new");
    let before = world.state_with(&[&new]);
    new.call("bridge", "ADD", &net).run().fails(999, &[refused]);
    before.assert_same(&world.state_with(&[&new]), "after the refused ADD");
    status().fails(50, &[refused]);
    // The search of a full range is not repeated at once.
    world.within(60, "a search", || {
        kill_once(&all[2].0);
        status().status == 0
    });
    let outcome = new.call("bridge", "ADD", &net).run();
    let took = "released 10.1.0.4 of eth0 of container old2 in network net: its network namespace has ended";
    assert!(outcome.stderr.contains(took), "{}", outcome.report());
    let result = outcome.success();
    assert_eq!(ips(&result)[0], "10.1.0.4/29");
    assert_eq!(holder(&world, "10.1.0.4"), "new\r\neth0");
    let rules = world.host(["nft", "list", "ruleset"]);
    assert!(!rules.contains("8002") && rules.contains("8001"), "{rules}");
    new.add("portmap", &publishing(&net, 8002, &result));
    // The late DEL of the container that had the address.
    let (old, old_result) = &all[2];
    let before = world.state_with(&[&new]);
    for (plugin, config) in [
        ("portmap", publishing(&net, 8002, old_result)),
        ("bridge", with(&net, json!({"prevResult": old_result}))),
    ] {
        old.del(plugin, &config);
    }
    let gone = before.difference(&world.state_with(&[&new]));
    let is_of_old = |line: &String| line.contains("old2");
    assert!(gone.iter().all(is_of_old), "{gone:?}");
    new.check("bridge", &net, &result);
    new.ping("10.1.0.1");
}

/// Removes the namespace of a container that has one.
fn kill_once(container: &Container<'_>) {
    if container.world.path(container.netns()).exists() {
        container.destroy();
    }
}

#[test]
fn a_container_that_only_a_process_keeps_alive_keeps_its_address() {
    let world = World::new();
    let net = network("bridge", 29, 64);
    let all = fill(&world, &net);
    let living = all[0].0.tool(["sleep", "1000"]).start();
    kill(&all[0].0);
    let new = world.container("new");
    new.call("bridge", "ADD", &net).run().fails(999, &["no IP addresses available"]);
    let asked = new.call("bridge", "ADD", &net).env("CNI_ARGS", "IP=10.1.0.2").run();
    asked.fails(999, &["requested IP address 10.1.0.2 is not available", "it is taken by old0"]);
    assert_eq!(holder(&world, "10.1.0.2"), "old0\r\neth0");
    drop(living);
}

#[test]
fn a_requested_address_of_an_ended_container_is_given() {
    for address in ["10.1.0.2", "fd00:1::2"] {
        let world = World::new();
        let net = network("bridge", 24, 64);
        let old = world.container("old");
        old.add("bridge", &net);
        kill(&old);
        let new = world.container("new");
        let args = format!("IP={address}");
        let result = new.call("bridge", "ADD", &net).env("CNI_ARGS", &args).run().success();
        assert!(ips(&result).iter().any(|ip| ip.starts_with(address)), "{result}");
        assert_eq!(holder(&world, address), "new\r\neth0");
    }
}

#[test]
fn many_adds_at_once_get_the_addresses_of_ended_containers() {
    // They search one after the other, which each waits for at most 30 seconds, also beside the load of the tier.
    let (prefix, count) = if is_full() { (26, 61) } else { (28, 13) };
    let world = World::new();
    let net = network("bridge", prefix, 64);
    let containers = |kind: &str| -> Vec<Container<'_>> {
        (0..count).map(|number| world.container(&format!("{kind}{number}"))).collect()
    };
    let all = containers("old");
    let results: Vec<Value> = all.iter().map(|container| container.add("bridge", &net)).collect();
    all.iter().for_each(Container::destroy);
    let new = containers("new");
    let outcomes = all_at_once(new.iter().map(|container| container.call("bridge", "ADD", &net)));
    let mut given: Vec<String> =
        outcomes.into_iter().map(|outcome| ips(&outcome.success())[0].clone()).collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), count);
    for (container, result) in all.iter().zip(&results) {
        container.del("bridge", &with(&net, json!({"prevResult": result})));
    }
    for container in &new {
        let own = addresses(&container.json(["ip", "-j", "-4", "address", "show", "dev", "eth0"]));
        let address = own[0].split('/').next().unwrap();
        assert_eq!(holder(&world, address), format!("{}\r\neth0", container.name));
        container.ping("10.1.0.1");
    }
}

#[test]
fn a_late_del_does_not_touch_the_successor() {
    for plugin in ["bridge", "ptp"] {
        let world = World::new();
        let net = network(plugin, 24, 64);
        let [living, other] = ["c1", "other"].map(|name| world.container(name));
        let result = living.add(plugin, &net);
        let publishing = publishing(&net, 8080, &result);
        living.add("portmap", &publishing);
        let before = world.state_with(&[&living, &other]);
        let del = with(&net, json!({"prevResult": result}));
        for (plugin, config) in [("portmap", &publishing), (plugin, &del), ("host-local", &del)] {
            let late = living.call(plugin, "DEL", config).env("CNI_NETNS", &other.netns()).run();
            let why = "touched nothing: CNI_NETNS is not the network namespace of the attachment";
            assert!(late.stderr.contains(why), "{}", late.report());
            late.silence();
        }
        before.assert_same(&world.state_with(&[&living, &other]), "after the late DEL");
        living.check(plugin, &net, &result);
        // When the container has ended, the same DEL removes what it left.
        living.destroy();
        for (plugin, config) in [("portmap", &publishing), (plugin, &del)] {
            living.call(plugin, "DEL", config).env("CNI_NETNS", &other.netns()).run().silence();
        }
        assert_eq!(reservations(&world), 0);
        assert!(!world.host(["nft", "list", "ruleset"]).contains("8080"));
    }
}

/// The runtime keeps the result of the first ADD. By then another container has the path of the first namespace.
#[test]
fn a_late_del_with_the_old_result_does_not_touch_the_successor() {
    for plugin in ["bridge", "ptp"] {
        let world = World::new();
        let net = network(plugin, 24, 64);
        let first = world.container("c1");
        let old = first.add(plugin, &net);
        first.destroy();
        let second = world.container("again");
        let add = second.call(plugin, "ADD", &net).env("CNI_CONTAINERID", "c1").run();
        let result = add.success();
        assert_ne!(ips(&old), ips(&result));
        let third = world.container("c1");
        let before = world.state_with(&[&second, &third]);
        let del = with(&net, json!({"prevResult": old}));
        for called in [plugin, "host-local"] {
            let late = third.call(called, "DEL", &del).run();
            assert!(late.stderr.contains("touched nothing"), "{}", late.report());
            late.silence();
        }
        before.assert_same(&world.state_with(&[&second, &third]), "after the late DEL");
    }
}

#[test]
fn the_search_of_a_full_range_is_remembered_each_time() {
    let world = World::new();
    let net = network("bridge", 30, 64);
    let living = world.container("c1");
    living.add("bridge", &net);
    let new = world.container("new");
    let search = "/var/lib/cni/networks/.cnibox/net~search";
    for _ in 0..2 {
        new.call("bridge", "ADD", &net).run().fails(999, &["no IP addresses available"]);
        let age = "test $(($(date +%s) - $(stat -c %Y $0))) -lt 1000 && test -s $0";
        world.host(["sh", "-c", age, search]);
        world.host(["touch", "-d", "2001-01-01", search]);
    }
}

/// Somebody on the bridge has an address that is free by the reservations.
#[test]
fn an_address_of_somebody_on_the_link_is_no_end() {
    for sticky in [false, true] {
        let world = World::new();
        let mut net = network("bridge", 29, 64);
        net["ipam"]["sticky"] = sticky.into();
        let living = world.container("living");
        living.add("bridge", &net);
        world.host([
            "rm",
            "/var/lib/cni/networks/net/10.1.0.2",
            "/var/lib/cni/networks/net/fd00:1::2",
        ]);
        // All other addresses belong to ended containers.
        for name in ["a", "b", "c", "d"] {
            let ended = world.container(name);
            ended.add("bridge", &net);
            ended.destroy();
        }
        for name in ["e", "f"] {
            let result = world.container(name).add("bridge", &net);
            assert_ne!(ips(&result)[0], "10.1.0.2/29", "{sticky}");
        }
        assert!(living.exec(["ip", "address", "show", "dev", "eth0"]).contains("10.1.0.2"));
    }
}

/// The Go plugins write no record: their ADD can have reserved the address for a later container of the same name.
#[test]
fn a_reservation_that_is_later_than_the_record_is_not_taken() {
    let world = World::new();
    let net = network("bridge", 24, 64);
    let old = world.container("c1");
    old.add("bridge", &net);
    kill(&old);
    world.host(["touch", "-d", "+1 minute", "/var/lib/cni/networks/net/10.1.0.2"]);
    let new = world.container("c1");
    new.call("bridge", "ADD", &net)
        .run()
        .fails(999, &["10.1.0.2", "duplicate allocation is not allowed"]);
    assert_eq!(holder(&world, "10.1.0.2"), "c1\r\neth0");
}
