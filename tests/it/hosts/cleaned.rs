//! A node that was cleaned as scripts of k3s and kubeadm do it: the bridge and all state of CNI are removed, and the rules stay.

use serde_json::{Value, json};

use crate::portmap::{ask, neighbours, serve};
use crate::world::{Container, World, is_full, with};

fn network() -> Value {
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
        "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}})
}

fn publishing(port: u16, result: &Value) -> Value {
    let mappings = json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    json!({"cniVersion": "1.0.0", "name": "net", "type": "portmap", "prevResult": result,
        "runtimeConfig": {"portMappings": mappings}})
}

/// One attempt to attach a container and to publish a port. Undoes it if it fails, as a runtime does.
fn attempt(pod: &Container<'_>, port: u16) -> Result<Value, String> {
    let result = pod.add("bridge", &network());
    let config = publishing(port, &result);
    let published = pod.call("portmap", "ADD", &config).run();
    if published.status == 0 {
        return Ok(result);
    }
    let error = published.error_object();
    pod.del("portmap", &config);
    pod.del("bridge", &with(&network(), json!({"prevResult": result})));
    Err(error.msg)
}

fn clean(world: &World) {
    world.host(["ip", "link", "del", "cni0"]);
    world.host(["sh", "-c", "rm -rf /var/lib/cni/*"]);
}

fn first_address(result: &Value) -> String {
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split('/').next().unwrap().to_owned()
}

#[test]
fn all_pods_start_again_in_another_order_with_their_ports() {
    let count = if is_full() { 200 } else { 6 };
    let world = World::new();
    let [client, _] = neighbours(&world);
    let port = |number: usize| 8000 + u16::try_from(number).unwrap();
    let old: Vec<Container<'_>> =
        (0..count).map(|number| world.container(&format!("old{number}"))).collect();
    for (number, pod) in old.iter().enumerate() {
        attempt(pod, port(number)).unwrap();
    }
    old.iter().for_each(Container::destroy);
    clean(&world);
    // In the opposite order, so no pod gets the address that its port had.
    let mut waiting: Vec<(usize, Container<'_>)> =
        (0..count).rev().map(|number| (number, world.container(&format!("new{number}")))).collect();
    let mut started: Vec<(usize, Container<'_>)> = Vec::new();
    for _ in 0..2 * count {
        let mut refused = Vec::new();
        for (number, pod) in waiting {
            match attempt(&pod, port(number)) {
                Ok(result) => {
                    // From now on each port of another container at this address is gone.
                    let address = first_address(&result);
                    let ports =
                        world.host(["nft", "list", "map", "ip", "cnibox", "portmap-published"]);
                    assert_eq!(ports.matches(&format!(" {address} .")).count(), 1, "{ports}");
                    started.push((number, pod));
                }
                Err(why) => {
                    assert!(
                        why.contains("it has no record") && why.contains("cnibox gc --none-alive"),
                        "{why}"
                    );
                    refused.push((number, pod));
                }
            }
        }
        waiting = refused;
        if waiting.is_empty() {
            break;
        }
    }
    assert!(waiting.is_empty(), "{} pods have not started", waiting.len());
    for (number, pod) in [started.first().unwrap(), started.last().unwrap()] {
        serve(pod, "tcp", 80);
        for host in ["192.0.2.1", "fd00:2::1"] {
            let answer = ask(&world, Some(&client.netns()), "tcp", host, port(*number));
            assert!(answer.starts_with(&pod.name), "{answer}");
        }
    }
    assert!(!world.path("/var/lib/cni/orphans").exists());
}

#[test]
fn an_address_that_somebody_on_the_link_has_is_not_given() {
    let world = World::new();
    let [living, other] = ["living", "other"].map(|name| world.container(name));
    let result = attempt(&living, 8080).unwrap();
    let address = first_address(&result);
    // Only the state is removed: the container lives on the bridge.
    world.host(["sh", "-c", "rm -rf /var/lib/cni/*"]);
    let of_living = || {
        let mut rules = world.host(["nft", "-s", "list", "ruleset"]);
        rules = rules.lines().filter(|line| line.contains("living")).collect();
        rules
    };
    let before = of_living();
    let result = other.add("bridge", &network());
    assert_ne!(first_address(&result), address, "the next address is taken");
    assert_eq!(before, of_living());
    other.ping(&address);
    // Nobody else may have the requested address.
    let third = world.container("third");
    let asked = third.call("bridge", "ADD", &network()).env("CNI_ARGS", &format!("IP={address}"));
    asked.run().fails(999, &[&format!("cannot use {address}: "), " on link cni0 has it"]);
    // In the other family, too.
    let asked = third.call("bridge", "ADD", &network()).env("CNI_ARGS", "IP=fd00:1::2");
    asked.run().fails(999, &["cannot use fd00:1::2: ", " on link cni0 has it"]);
    // Without packet sockets nobody can be asked: that does not mean that the address is free.
    let asked = third.call("bridge", "ADD", &network()).env("CNI_ARGS", &format!("IP={address}"));
    let asked = asked.under(&["setpriv", "--bounding-set=-net_raw"]);
    asked.run().fails(999, &[&format!("cannot use {address}: nobody on link cni0 can be asked")]);
    assert_eq!(before, of_living());
}

/// Whatever request fails in the first ADD of a cleaned node: no ADD gets the address of the living container.
#[test]
fn a_list_that_fails_is_made_later() {
    let world = World::new();
    let [living, other, next] = ["living", "other", "next"].map(|name| world.container(name));
    let address = first_address(&attempt(&living, 8080).unwrap());
    let faults = (1..=25).map(|number| ("CNIBOX_FAIL_KERNEL", number));
    for (variable, number) in faults.chain((1..=25).map(|number| ("CNIBOX_FAIL_FILE", number))) {
        world.host(["sh", "-c", "rm -rf /var/lib/cni/*"]);
        let add = |container: &Container<'_>, about: &str| {
            let call = container.call("bridge", "ADD", &network());
            let outcome = call.env(variable, &number.to_string()).run();
            if outcome.status == 0 {
                let result = outcome.success();
                assert_ne!(first_address(&result), address, "{about}: {variable}={number}");
            }
        };
        add(&other, "the first ADD");
        // The list is read again, and fails again.
        world.host([
            "sh",
            "-c",
            "mkdir -p /var/lib/cni/attachments; echo unlisted >/var/lib/cni/orphans",
        ]);
        add(&next, "the second ADD");
        next.del("bridge", &network());
        assert_ne!(first_address(&next.add("bridge", &network())), address);
        other.del("bridge", &network());
        next.del("bridge", &network());
    }
}
