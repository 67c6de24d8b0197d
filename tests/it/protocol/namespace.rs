//! A plugin must never work on the host when a container is meant.

use serde_json::json;

use crate::world::{World, lan, plugin_names, with};

#[test]
fn nothing_in_the_hosts_own_namespace_is_touched() {
    let world = World::new();
    let before = world.state();
    for plugin in plugin_names() {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin, "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        let call = |verb| {
            let call = world.call(&plugin, verb, &config).env("CNI_CONTAINERID", "abc");
            // `lo` is what a DEL on the host would hurt most.
            call.env("CNI_IFNAME", "lo").env("CNI_NETNS", "/proc/self/ns/net").run()
        };
        call("ADD").fails(8, &[]);
        // A DEL removes what is outside of the container: nothing here.
        let del = call("DEL");
        assert!(
            del.stderr.contains("is the network namespace of the plugin itself"),
            "{}",
            del.report()
        );
        assert!(del.status == 0 || plugin == "dhcp", "{}", del.report());
    }
    before.assert_same(&world.state(), "after refused calls");
}

#[test]
fn check_takes_any_path_of_the_namespace() {
    let world = World::new();
    lan(&world);
    for plugin in ["bridge", "veth", "macvlan", "tap"] {
        let c1 = world.container(plugin);
        let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
        let network = json!({
            "cniVersion": "1.0.0", "name": plugin, "type": plugin, "master": "lan",
            "ipam": {"type": "host-local", "ranges": ranges},
        });
        let result = c1.add(plugin, &network);
        let process = c1.tool(["sleep", "1000"]).start();
        let number = process.pid_in_world();
        world.host(["ln", "-sfn", "/run/netns", "/run/elsewhere"]);
        let others = [
            format!("/proc/{number}/ns/net"),
            format!("/proc/{number}/root/run/netns/{plugin}"),
            format!("/run/elsewhere/{plugin}"),
            format!("//run/./netns/{plugin}"),
        ];
        for path in &others {
            c1.checking(plugin, &network, &result).env("CNI_NETNS", path).run().silence();
        }
        let other = world.container(&format!("other-{plugin}"));
        let check = c1.checking(plugin, &network, &result).env("CNI_NETNS", &other.netns()).run();
        assert_eq!(check.status, 1, "{}", check.report());
    }
}

#[test]
fn the_check_of_the_namespace_can_be_overridden() {
    let world = World::new();
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
    });
    for (id, yes) in [("a", "1"), ("b", "true"), ("c", "TRUE")] {
        let call = world.call("host-local", "ADD", &config).env("CNI_CONTAINERID", id);
        let call = call.env("CNI_IFNAME", "eth0").env("CNI_NETNS", "/proc/self/ns/net");
        call.env("CNI_NETNS_OVERRIDE", yes).run().success();
    }
}

#[test]
fn add_refuses_a_path_that_is_no_namespace() {
    let world = World::new();
    world.write("/run/netns/file", "");
    let before = world.state();
    for plugin in ["bridge", "veth", "ptp", "loopback"] {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
        });
        for path in ["/run/netns/none", "/run/netns/file", "/proc/self/ns/mnt", "relative"] {
            let call = world.call(plugin, "ADD", &config).env("CNI_CONTAINERID", "abc");
            let error = call.env("CNI_IFNAME", "eth0").env("CNI_NETNS", path).run().error();
            assert!(format!("{error:?}").contains(path), "{error:?}");
        }
    }
    let after = world.state().apart_from("cni0", "net");
    before.apart_from("cni0", "net").assert_same(&after, "after refused calls");
}

/// Code 3 tells the runtime that nothing has to be cleaned up.
#[test]
fn a_namespace_that_is_gone_is_not_said_to_have_left_nothing() {
    let world = World::new();
    let c1 = world.container("c1");
    let network = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"},
    });
    let result = c1.add("bridge", &network);
    c1.destroy();
    for plugin in plugin_names() {
        let config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": plugin, "device": "lan", "vrfname": "blue",
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}, "prevResult": result,
        });
        for verb in ["ADD", "CHECK"] {
            let outcome = c1.call(&plugin, verb, &config).run();
            if outcome.status != 0 {
                let report = outcome.report();
                assert_ne!(outcome.error().code, 3, "{report}");
            }
        }
    }
    c1.call("bridge", "CHECK", &with(&network, json!({"prevResult": result})))
        .run()
        .fails(999, &["failed to open netns \"/run/netns/c1\": no such file or directory"]);
}

#[test]
fn an_ipam_plugin_that_knows_no_container_does_not_speak_for_the_link() {
    let world = World::new();
    let c1 = world.container("c1");
    let script = "#!/bin/sh\n[ $CNI_COMMAND = CHECK ] || exit 0\n\
                  echo '{\"cniVersion\": \"1.0.0\", \"code\": 3, \"msg\": \"unknown\"}'; exit 1\n";
    world.write("/run/ipam/other", script);
    world.host(["chmod", "755", "/run/ipam/other"]);
    let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge"});
    let result = c1.add("bridge", &network);
    let keys = json!({"ipam": {"type": "other"}, "prevResult": result});
    let check = c1.call("bridge", "CHECK", &with(&network, keys)).env("CNI_PATH", "/run/ipam");
    check.run().fails(999, &["unknown"]);
}
