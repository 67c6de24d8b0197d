//! Lists of plugins as real clusters and hosts have them, through our links alone, the way a runtime calls them: each
//! plugin gets the result of the one before, DEL goes backwards, and capabilities become `runtimeConfig`.

use serde_json::{Value, json};

use crate::world::{Container, State, World, with};

/// k3s's `10-flannel.conflist`, with a fixed rate, too.
fn k3s() -> Value {
    json!({
        "name": "cbr0", "cniVersion": "1.0.0", "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": true, "forceAddress": true, "isDefaultGateway": true}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ],
    })
}

/// The files that `podman network create` wrote while podman used CNI.
fn podman() -> Value {
    json!({
        "cniVersion": "0.4.0", "name": "podman", "plugins": [
            {
                "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
            {"type": "tuning", "capabilities": {"mac": true}, "sysctl": {"net.core.somaxconn": "500"}},
        ],
    })
}

/// The capabilities of the runtime.
fn offered() -> Value {
    json!({
        "portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}],
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": u32::MAX, "egressRate": 8_000_000, "egressBurst": u32::MAX},
        "mac": "02:00:00:00:00:07",
    })
}

/// A plugin's own configuration: name and version of the list, and of what is offered what it can do.
fn config(list: &Value, plugin: &Value, result: &Value) -> Value {
    let inherited =
        json!({"cniVersion": list["cniVersion"], "name": list["name"], "prevResult": result});
    let mut config = with(plugin, inherited);
    for (name, can) in plugin["capabilities"].as_object().into_iter().flatten() {
        if can == true {
            config["runtimeConfig"][name] = offered()[name].clone();
        }
    }
    config
}

fn plugins(list: &Value) -> &Vec<Value> {
    list["plugins"].as_array().unwrap()
}

fn kind(plugin: &Value) -> &str {
    plugin["type"].as_str().unwrap()
}

fn add(container: &Container<'_>, list: &Value) -> Value {
    plugins(list).iter().fold(Value::Null, |result, plugin| {
        container.add(kind(plugin), &config(list, plugin, &result))
    })
}

/// The first plugin that fails CHECK.
fn check(container: &Container<'_>, list: &Value, result: &Value) -> Option<String> {
    let fails = |plugin: &&Value| {
        let call = container.call(kind(plugin), "CHECK", &config(list, plugin, result));
        let outcome = call.run();
        let failed = outcome.status != 0;
        if failed {
            assert!(!outcome.error().msg.is_empty());
        }
        failed
    };
    plugins(list).iter().find(fails).map(|plugin| kind(plugin).to_owned())
}

fn del(container: &Container<'_>, list: &Value, result: &Value) {
    for plugin in plugins(list).iter().rev() {
        container.del(kind(plugin), &config(list, plugin, result));
    }
}

/// GC of all that there is.
fn gc(world: &World, list: &Value) {
    for plugin in plugins(list) {
        let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []});
        world
            .call(kind(plugin), "GC", &with(&config(list, plugin, &Value::Null), keys))
            .run()
            .silence();
    }
}

fn world() -> World {
    let world = World::new();
    let text = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
    world.write("/run/flannel/subnet.env", text);
    // With iptables' table, as Docker's host has it.
    world.host(["iptables", "-P", "FORWARD", "ACCEPT"]);
    world
}

fn state(world: &World, list: &Value) -> State {
    let bridge = list["plugins"][0]["bridge"].as_str().unwrap_or("cni0");
    world.state().apart_from(bridge, list["name"].as_str().unwrap())
}

/// The first word that a server in the container says to who connects to port 8080 of the host's address.
fn published(container: &Container<'_>, host: &str) -> String {
    let world = container.world;
    let server =
        container.tool(["socat", "-T60", "TCP4-LISTEN:80,reuseaddr", "EXEC:echo hello"]).start();
    world.eventually("the server listens", || {
        container.tool(["ss", "-ltnH", "sport = :80"]).output_of_success().contains(":80")
    });
    let said = world.host(["socat", "-T60", "-u", &format!("TCP4:{host}:8080"), "STDOUT"]);
    server.finish().output();
    said.trim().to_owned()
}

/// A whole life: traffic, perturbations, DEL, GC.
fn live(list: &Value, gateway: &str, changes: &[(&str, &str)]) {
    let world = world();
    let container = world.container("c1");
    // Shared rules stay from the first ADD on.
    let result = add(&container, list);
    del(&container, list, &result);
    let before = state(&world, list);

    let result = add(&container, list);
    assert_eq!(check(&container, list, &result), None);
    container.ping(gateway);
    assert_eq!(published(&container, gateway), "hello");
    del(&container, list, &result);
    assert_eq!(before.difference(&state(&world, list)), [""; 0], "after DEL");
    gc(&world, list);
    assert_eq!(before.difference(&state(&world, list)), [""; 0], "after DEL and GC");

    for (change, expected) in changes {
        let result = add(&container, list);
        let ifb =
            world.links().into_iter().find(|link| link.starts_with("bwp")).unwrap_or_default();
        let script = change
            .replace("IFB", &ifb)
            .replace("IN", &format!("nsenter --net={}", container.netns()));
        world.host(["sh", "-ec", &script]);
        assert_eq!(check(&container, list, &result).as_deref(), Some(*expected), "{change}");
        del(&container, list, &result);
        // The next ADD restores the shared rules that the change removed.
        let result = add(&container, list);
        del(&container, list, &result);
        assert_eq!(before.difference(&state(&world, list)), [""; 0], "after DEL after {change}");
    }

    add(&container, list);
    container.destroy();
    gc(&world, list);
    assert_eq!(before.difference(&state(&world, list)), [""; 0], "after GC");
}

#[test]
fn a_list_of_k3s_passes_every_verb() {
    live(
        &k3s(),
        "10.42.1.1",
        &[
            ("IN ip address flush dev eth0 scope global", "flannel"),
            ("nft flush map ip cnibox portmap-published", "portmap"),
            ("tc qdisc del dev IFB root", "bandwidth"),
            (
                "tc qdisc del dev $(ip -o link | grep -o 'veth[0-9a-f]*' | head -n 1) root",
                "bandwidth",
            ),
        ],
    );
}

#[test]
fn a_list_of_podman_passes_every_verb() {
    live(
        &podman(),
        "10.88.0.1",
        &[
            ("IN ip link set eth0 address 02:00:00:00:00:08", "bridge"),
            ("nft flush map ip cnibox masquerade-sources", "bridge"),
            ("nft flush map ip cnibox portmap-published", "portmap"),
            ("nft flush set ip cnibox firewall-addresses", "firewall"),
            ("IN sh -c 'echo 400 >/proc/sys/net/core/somaxconn'", "tuning"),
        ],
    );
}

/// Code 3 tells a runtime that there is nothing to clean up, but the bridge plugin has made a link and a reservation.
#[test]
fn a_namespace_that_goes_in_the_middle_of_a_chain_is_not_code_3() {
    let world = World::new();
    let c1 = world.container("c1");
    let list = podman();
    let bridge = config(&list, &plugins(&list)[0], &Value::Null);
    let result = c1.add("bridge", &bridge);
    c1.destroy();
    let text = "no such file or directory";
    let chained = [json!({"type": "sbr"}), json!({"type": "bandwidth"})];
    for plugin in plugins(&list)[1..].iter().chain(&chained) {
        let config = config(&list, plugin, &result);
        for verb in ["ADD", "CHECK"] {
            c1.call(kind(plugin), verb, &config).run().fails(999, &[text]);
        }
    }
    let checked = with(&bridge, json!({"prevResult": result}));
    c1.call("bridge", "CHECK", &checked).run().fails(999, &[text]);
}
