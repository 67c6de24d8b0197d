//! `flannel`: the daemon's file becomes a configuration of the delegate, which is saved until DEL succeeds.

use serde_json::{Value, json};

use crate::world::{Container, Outcome, State, World, all_at_once, parse, with, without};

const ENV: &str = "/run/flannel/subnet.env";
const DATA: &str = "/var/lib/cni/flannel";

const SUBNETS: &str = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:42::/56\n\
                       FLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// The configuration of k3s.
fn flannel() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "cbr0", "type": "flannel",
        "delegate": {"hairpinMode": true, "forceAddress": true, "isDefaultGateway": true},
    })
}

fn world() -> World {
    let world = World::new();
    world.write(ENV, SUBNETS);
    world
}

/// Without the bridge and the directory of the reservations: the delegate leaves them, too.
fn state(world: &World) -> State {
    world.state().apart_from("cni0", "cbr0")
}

fn files(world: &World) -> Vec<String> {
    let list = world.tool(&["ls", DATA], None).run();
    list.stdout.lines().map(str::to_owned).collect()
}

/// The state with everything that stays after a DEL: directories, empty tables.
fn primed(container: &Container<'_>) -> State {
    container.add("flannel", &flannel());
    container.del("flannel", &flannel());
    state(container.world)
}

#[test]
fn containers_of_the_subnet_reach_each_other_and_the_host() {
    let world = world();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let result = c1.add("flannel", &flannel());
    c2.add("flannel", &flannel());
    assert_eq!(c1.addresses("eth0"), ["10.42.1.2/24", "fd00:42:0:1::2/64"]);
    for address in ["10.42.1.1", "10.42.1.3", "fd00:42:0:1::1", "fd00:42:0:1::3"] {
        c1.ping(address);
    }
    let link = &c1.json(["ip", "-j", "-d", "link", "show", "eth0"])[0];
    assert_eq!((&link["mtu"], &link["linkinfo"]["info_kind"]), (&json!(1450), &json!("veth")));
    assert_eq!(result["interfaces"][0]["name"], "cni0");
    let routes = c1.exec(["ip", "route"]) + &c1.exec(["ip", "-6", "route"]);
    for expected in
        ["10.42.0.0/16 via 10.42.1.1", "fd00:42::/56 via fd00:42:0:1::1", "default via 10.42.1.1"]
    {
        assert!(routes.contains(expected), "{expected}: {routes}");
    }
    c1.check("flannel", &flannel(), &result);
}

#[test]
fn the_saved_configuration_is_that_of_the_reference() {
    let world = world();
    let c1 = world.container("c1");
    let more = json!({
        "ipam": {"type": "host-local", "dataDir": "/run/n", "routes": [{"dst": "192.168.0.0/16"}]},
        "runtimeConfig": {"mac": "02:00:00:00:00:07"},
    });
    c1.add("flannel", &with(&flannel(), more));
    let text = world.read(&format!("{DATA}/c1"));
    let expected = json!({
        "cniVersion": "1.0.0", "cnibox.owner": "cbr0 c1 eth0", "forceAddress": true, "hairpinMode": true,
        "ipMasq": false, "ipam": {
            "dataDir": "/run/n", "ranges": [[{"subnet": "10.42.1.0/24"}], [{"subnet": "fd00:42:0:1::/64"}]],
            "routes": [{"dst": "192.168.0.0/16"}, {"dst": "10.42.0.0/16"}, {"dst": "fd00:42::/56"}],
            "type": "host-local",
        },
        "isDefaultGateway": true, "isGateway": true, "mtu": 1450, "name": "cbr0",
        "runtimeConfig": {"mac": "02:00:00:00:00:07"}, "type": "bridge",
    });
    // serde_json's objects are in order, too.
    assert_eq!(text, expected.to_string());
    assert_eq!(world.host(["stat", "-c", "%a", &format!("{DATA}/c1")]).trim(), "600");
    assert_eq!(world.host(["stat", "-c", "%a", DATA]).trim(), "700");
}

#[test]
fn delegate_type_names_another_plugin_and_the_keys_override_defaults() {
    let world = world();
    let c1 = world.container("c1");
    let keys =
        json!({"cniVersion": "1.1.0", "delegate": {"type": "veth", "mtu": 1400, "ipMasq": true}});
    let config = with(&without(&flannel(), "delegate"), keys);
    let result = c1.add("flannel", &config);
    assert_eq!(c1.json(["ip", "-j", "link", "show", "eth0"])[0]["mtu"], 1400);
    let saved = parse(&world.read(&format!("{DATA}/c1")));
    assert_eq!((&saved["isGateway"], &saved["ipMasq"]), (&Value::Null, &json!(true)));
    c1.check("flannel", &config, &result);
    c1.del("flannel", &config);
    assert_eq!(files(&world), [""; 0]);
}

#[test]
fn a_wrong_configuration_is_refused_before_any_change() {
    let world = world();
    let c1 = world.container("c1");
    for (keys, text) in [
        (json!({"delegate": {"name": "x"}}), "'delegate' dictionary must not have 'name' field"),
        (json!({"delegate": {"ipam": {}}}), "'delegate' dictionary must not have 'ipam' field"),
        (json!({"delegate": {"type": 5}}), "must have (string) 'type' field"),
        (json!({"delegate": {"type": "flannel"}}), "flannel cannot delegate to itself"),
        (json!({"delegate": []}), "delegate: it is not an object"),
        (json!({"ipam": {"routes": "x"}}), "ipam.routes: it is not a list of routes"),
        (json!({"ipam": {"routes": [{"dst": "x"}]}}), "ipam.routes: "),
    ] {
        let config = with(&flannel(), keys);
        c1.call("flannel", "ADD", &config).run().fails(7, &[text]);
        assert!(!world.links().contains(&"cni0".into()) && files(&world).is_empty(), "{text}");
        c1.del("flannel", &config);
    }
}

/// A saved configuration that another program wrote can name flannel, by any of its names.
#[test]
fn a_saved_configuration_that_names_flannel_is_an_error_of_every_verb() {
    let by_prefix = "too many plugins call one another";
    for (name, code, text) in [
        ("flannel", 7, "flannel cannot delegate to itself"),
        ("buildkit-cni-flannel", 7, by_prefix),
        ("cnv-flannel", 7, by_prefix),
    ] {
        let world = world();
        let c1 = world.container("c1");
        world.host(["ln", "-sf", "/run/bin/cnibox", &format!("/run/plugins/{name}")]);
        let saved = with(&flannel(), json!({"type": name, "cnibox.owner": "cbr0 c1 eth0"}));
        let file = format!("{DATA}/c1");
        let config = with(&flannel(), json!({"cniVersion": "1.1.0"}));
        let result = json!({"cniVersion": "1.1.0"});
        world.write(&file, saved.to_string());
        c1.call("flannel", "DEL", &config).run().fails(code, &[text]);
        c1.checking("flannel", &config, &result).run().fails(code, &[text]);
        let none = with(&config, json!({"cni.dev/valid-attachments": []}));
        world.call("flannel", "GC", &none).run().fails(code, &[text]);
        assert_eq!(files(&world), ["c1"], "{name}");
        // An ADD writes its own.
        c1.add("flannel", &config);
        c1.del("flannel", &config);
        assert_eq!(files(&world), [""; 0], "{name}");
    }
}

#[test]
fn the_error_names_a_missing_or_wrong_subnet_file() {
    let world = World::new();
    let c1 = world.container("c1");
    let status = with(&flannel(), json!({"cniVersion": "1.1.0"}));
    c1.call("flannel", "ADD", &flannel())
        .run()
        .fails(11, &[ENV, "No such file", "flannel pod log"]);
    world.call("flannel", "STATUS", &status).run().fails(50, &[ENV]);
    world.write(ENV, SUBNETS.replace("FLANNEL_MTU=1450", "FLANNEL_MTU"));
    c1.call("flannel", "ADD", &flannel()).run().fails(999, &[ENV, "line 5", "FLANNEL_MTU"]);
    world.write(ENV, "FLANNEL_MTU=1450\n");
    let missing = "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ";
    c1.call("flannel", "ADD", &flannel()).run().fails(999, &[missing]);
    world.call("flannel", "STATUS", &status).run().fails(50, &[missing]);
    world.write(ENV, SUBNETS);
    world.call("flannel", "STATUS", &status).run().silence();
}

#[test]
fn a_failing_delegate_leaves_nothing() {
    let world = world();
    let c1 = world.container("c1");
    let before = primed(&c1);
    c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    let outcome = c1.call("flannel", "ADD", &flannel()).run();
    assert!(outcome.error().msg.contains("already exists"));
    assert_eq!(before.difference(&state(&world)), [""; 0]);
    assert_eq!(files(&world), [""; 0]);
}

#[test]
fn a_second_add_that_fails_keeps_the_file_of_the_first() {
    let world = world();
    let c1 = world.container("c1");
    let before = primed(&c1);
    c1.add("flannel", &flannel());
    let written = world.read(&format!("{DATA}/c1"));
    let again = with(&flannel(), json!({"ipam": {"dataDir": "/run/elsewhere"}}));
    assert_ne!(c1.call("flannel", "ADD", &again).run().status, 0);
    assert_eq!(world.read(&format!("{DATA}/c1")), written);
    world.host(["rm", ENV]);
    c1.del("flannel", &flannel());
    world.write(ENV, SUBNETS);
    assert_eq!(files(&world), [""; 0]);
    let taken = world.tool(&["ls", "/var/lib/cni/networks/cbr0"], None).run().stdout;
    assert!(!taken.contains("10.42.1."), "{taken}");
    assert_eq!(before.difference(&state(&world).apart_from("cni0", "cbr0")), [""; 0]);
}

#[test]
fn a_del_needs_neither_the_daemon_nor_the_namespace_nor_the_configuration() {
    let world = world();
    let c1 = world.container("c1");
    let before = primed(&c1);
    type Del = fn(&Container<'_>);
    let ways: [(&str, Del); 3] = [
        ("without the daemon's file", |c| {
            c.world.host(["rm", ENV]);
            c.del("flannel", &flannel());
        }),
        ("with another configuration", |c| {
            c.del("flannel", &with(&flannel(), json!({"delegate": {"type": "veth", "name": "x"}})));
        }),
        ("without a namespace", |c| {
            c.exec(["ip", "link", "del", "eth0"]);
            c.call("flannel", "DEL", &flannel()).without("CNI_NETNS").run().silence();
        }),
    ];
    for (way, del) in ways {
        world.write(ENV, SUBNETS);
        c1.add("flannel", &flannel());
        del(&c1);
        world.write(ENV, SUBNETS);
        assert_eq!(before.difference(&state(&world)), [""; 0], "{way}");
        assert_eq!(files(&world), [""; 0], "{way}");
    }
}

#[test]
fn the_file_stays_until_the_del_of_the_delegate_succeeds() {
    let world = world();
    let c1 = world.container("c1");
    world.write("/run/ipam/fragile", "#!/bin/sh\n[ $CNI_COMMAND != DEL ] || [ -e /run/fixed ] || exit 3\nexec /run/plugins/static\n");
    world.host(["chmod", "755", "/run/ipam/fragile"]);
    let ipam = json!({"type": "fragile", "addresses": [{"address": "10.42.1.9/24"}]});
    let config = with(
        &flannel(),
        json!({"ipam": ipam, "delegate": {"isGateway": false, "isDefaultGateway": false}}),
    );
    let call = |verb| c1.call("flannel", verb, &config).env("CNI_PATH", "/run/ipam:/run/plugins");
    assert_eq!(call("ADD").env("PATH", "/usr/bin:/bin").run().status, 0);
    assert_ne!(call("DEL").env("PATH", "/usr/bin:/bin").run().status, 0);
    assert_eq!(files(&world), ["c1"]);
    world.write("/run/fixed", "");
    call("DEL").env("PATH", "/usr/bin:/bin").run().silence();
    assert_eq!(files(&world), [""; 0]);
}

#[test]
fn the_file_stays_if_the_delegate_cannot_undo_its_add() {
    let world = world();
    let c1 = world.container("c1");
    // Its ADD fails and leaves a file. Its DEL removes the file only if /run/fixed exists.
    let script = "#!/bin/sh
        case $CNI_COMMAND in
        ADD) : >/run/made; exit 3 ;;
        DEL) [ -e /run/fixed ] || exit 3; rm -f /run/made ;;
        esac\n";
    world.write("/run/ipam/fragile", script);
    world.host(["chmod", "755", "/run/ipam/fragile"]);
    let config = with(&without(&flannel(), "delegate"), json!({"delegate": {"type": "fragile"}}));
    let call = |verb| {
        let call = c1.call("flannel", verb, &config);
        call.env("CNI_PATH", "/run/ipam").env("PATH", "/usr/bin:/bin").run()
    };
    call("ADD").error();
    assert_eq!(files(&world), ["c1"]);
    world.host(["rm", ENV]);
    call("DEL").error();
    world.write("/run/fixed", "");
    call("DEL").silence();
    assert_eq!(files(&world), [""; 0]);
    assert_eq!(world.tool(&["ls", "/run/made"], None).run().status, 2);
    // After an undo no file stays.
    world.write(ENV, SUBNETS);
    call("ADD").error();
    assert_eq!(files(&world), [""; 0]);
}

#[test]
fn networks_and_interfaces_of_a_container_do_not_collide() {
    let world = world();
    let c1 = world.container("c1");
    let other = with(
        &flannel(),
        json!({"name": "other", "delegate": {"bridge": "cni1", "isDefaultGateway": false}}),
    );
    let attachments = [(flannel(), "eth0"), (flannel(), "eth1"), (other, "net0")];
    for (config, ifname) in &attachments {
        let second = with(config, json!({"delegate": {"isDefaultGateway": false}}));
        c1.call("flannel", "ADD", &second).env("CNI_IFNAME", ifname).run().success();
    }
    assert_eq!(files(&world).len(), 3);
    for (count, (config, ifname)) in (0..3).rev().zip(&attachments) {
        c1.call("flannel", "DEL", config).env("CNI_IFNAME", ifname).run().silence();
        assert_eq!(files(&world).len(), count);
        let links = c1.exec(["ip", "-o", "link"]);
        assert!(!links.contains(ifname), "{links}");
    }
}

#[test]
fn concurrent_interfaces_of_a_container_do_not_collide() {
    let world = world();
    let c1 = world.container("c1");
    let config = with(&flannel(), json!({"delegate": {"isDefaultGateway": false}}));
    let ifnames: Vec<String> = (0..8).map(|number| format!("eth{number}")).collect();
    let calls = |verb| {
        all_at_once(
            ifnames
                .iter()
                .map(|ifname| c1.call("flannel", verb, &config).env("CNI_IFNAME", ifname)),
        )
    };
    for _ in 0..20 {
        calls("ADD").into_iter().for_each(|outcome| drop(outcome.success()));
        let mut owners: Vec<String> = files(&world)
            .iter()
            .map(|file| parse(&world.read(&format!("{DATA}/{file}")))["cnibox.owner"].to_string())
            .collect();
        owners.sort();
        let expected: Vec<String> =
            ifnames.iter().map(|ifname| format!("\"cbr0 c1 {ifname}\"")).collect();
        assert_eq!(owners, expected);
        calls("DEL").into_iter().for_each(Outcome::silence);
        assert_eq!(files(&world), [""; 0]);
    }
}

#[test]
fn a_file_of_the_reference_is_found() {
    let world = world();
    let c1 = world.container("c1");
    let before = primed(&c1);
    c1.add("flannel", &flannel());
    let path = format!("{DATA}/c1");
    let of_reference = without(&parse(&world.read(&path)), "cnibox.owner").to_string();
    world.write(&path, of_reference);
    world.host(["rm", ENV]);
    c1.del("flannel", &flannel());
    world.write(ENV, SUBNETS);
    assert_eq!(before.difference(&state(&world)), [""; 0]);
}

#[test]
fn a_second_interface_leaves_the_file_of_the_reference_alone() {
    let world = world();
    let c1 = world.container("c1");
    c1.add("flannel", &flannel());
    let path = format!("{DATA}/c1");
    let of_reference = without(&parse(&world.read(&path)), "cnibox.owner").to_string();
    world.write(&path, of_reference.as_str());
    let second = with(&flannel(), json!({"delegate": {"isDefaultGateway": false}}));
    c1.call("flannel", "ADD", &second).env("CNI_IFNAME", "eth1").run().success();
    assert_eq!((world.read(&path), files(&world).len()), (of_reference, 2));
    world.host(["rm", ENV]);
    for ifname in ["eth1", "eth0"] {
        c1.call("flannel", "DEL", &second).env("CNI_IFNAME", ifname).run().silence();
        let links = c1.exec(["ip", "-o", "link"]);
        assert!(!links.contains(ifname), "{links}");
    }
    assert_eq!(files(&world), [""; 0]);
}

#[test]
fn gc_calls_the_delegate_with_each_saved_configuration() {
    let world = world();
    let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
    let old = with(&flannel(), json!({"ipam": {"dataDir": "/run/old"}}));
    c1.add("flannel", &old);
    // Both get the first address of the subnet.
    c1.exec(["ip", "link", "del", "eth0"]);
    c2.add("flannel", &flannel());
    let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []});
    world.call("flannel", "GC", &with(&flannel(), keys)).run().silence();
    assert_eq!(files(&world), [""; 0]);
    for directory in ["/run/old/cbr0", "/var/lib/cni/networks/cbr0"] {
        assert!(!world.path(format!("{directory}/10.42.1.2")).exists(), "{directory}");
    }
}

#[test]
fn gc_calls_the_delegate_and_removes_the_files_of_stale_attachments() {
    for has_file in [true, false] {
        let world = world();
        let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
        let results = [&c1, &c2].map(|container| container.add("flannel", &flannel()));
        world.write(&format!("{DATA}/c9"), json!({"name": "other", "type": "bridge"}).to_string());
        if !has_file {
            world.host(["rm", ENV]);
        }
        let keys = json!({
            "cniVersion": "1.1.0", "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}],
        });
        world.call("flannel", "GC", &with(&flannel(), keys)).run().silence();
        assert_eq!(files(&world), ["c1", "c9"]);
        let ends =
            results.map(|result| result["interfaces"][1]["name"].as_str().unwrap().to_owned());
        assert!(world.links().contains(&ends[0]) && !world.links().contains(&ends[1]));
        assert!(!world.path("/var/lib/cni/networks/cbr0/10.42.1.3").exists());
    }
}

#[test]
fn gc_goes_on_past_a_file_that_cannot_be_read_and_reports_it() {
    let world = world();
    let c1 = world.container("c1");
    c1.add("flannel", &flannel());
    for name in ["a", "z"] {
        world.host(["mkdir", &format!("{DATA}/{name}")]);
    }
    let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []});
    let outcome = world.call("flannel", "GC", &with(&flannel(), keys)).run();
    outcome.fails(5, &[&format!("cannot read {DATA}/a: "), &format!("cannot read {DATA}/z: ")]);
    assert_eq!(files(&world), ["a", "z"]);
    assert!(!world.path("/var/lib/cni/networks/cbr0/10.42.1.2").exists());
}

/// The delegate has made something. Without a configuration its DEL cannot be called.
#[test]
fn a_damaged_saved_configuration_is_no_missing_one() {
    let saved = format!("{DATA}/c1");
    let too_long = "\0".repeat((16 << 20) + 1);
    for damage in ["", "{\"na", "[1]}", &too_long] {
        let world = world();
        let c1 = world.container("c1");
        let address = world.path("/var/lib/cni/networks/cbr0/10.42.1.2");
        let result = c1.add("flannel", &flannel());
        assert!(address.exists());
        world.write(&saved, damage);
        let damage = &damage[..damage.len().min(20)];
        c1.checking("flannel", &flannel(), &result).run().fails(6, &[&saved]);
        world.host(["rm", ENV]);
        c1.call("flannel", "DEL", &flannel()).run().fails(6, &[&saved]);
        assert!(address.exists(), "{damage}");

        world.write(ENV, SUBNETS);
        let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
        for outcome in [
            world.call("flannel", "GC", &with(&flannel(), keys)).run(),
            c1.call("flannel", "DEL", &flannel()).run(),
        ] {
            assert!(outcome.stderr.contains(&saved), "{damage}: {}", outcome.report());
            outcome.silence();
        }
        assert!(!address.exists(), "{damage}");
        assert_eq!(c1.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1, "eth0 is left");
        // It can be the file of another network.
        assert_eq!(files(&world), ["c1"]);
    }
}

#[test]
fn check_calls_the_delegate_with_the_saved_configuration() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("flannel", &flannel());
    // The daemon has another subnet now. The saved configuration counts.
    world.write(ENV, SUBNETS.replace("10.42.1.1", "10.42.2.1"));
    c1.check("flannel", &flannel(), &result);
    c1.exec(["ip", "address", "del", "10.42.1.2/24", "dev", "eth0"]);
    c1.checking("flannel", &flannel(), &result).run().fails(999, &["10.42.1.2/24"]);
}

#[test]
fn del_removes_the_incomplete_file_of_a_killed_add() {
    let world = world();
    let c1 = world.container("c1");
    world.write(&format!("{DATA}/.c1.0123456789abcdef~"), "{\"na");
    c1.del("flannel", &flannel());
    assert_eq!(files(&world), [""; 0]);
}
