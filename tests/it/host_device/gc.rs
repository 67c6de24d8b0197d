//! GC: what the kernel brought back to the host is made what it was.

use serde_json::{Value, json};

use super::{card, config, config_with, end_namespace, world};

fn gc(keep: &[&str]) -> Value {
    let attachment = |id: &&str| json!({"containerID": id, "ifname": "eth0"});
    let keep: Vec<Value> = keep.iter().map(attachment).collect();
    config_with(json!({"cni.dev/valid-attachments": keep}))
}

#[test]
fn a_card_that_came_back_by_itself_gets_everything_back() {
    // Whether a link on the host has the name that the card had in the container.
    for is_taken in [false, true] {
        let world = world();
        let c1 = world.container("c1");
        world.host(["ip", "link", "set", "nic0", "allmulticast", "on", "promisc", "on"]);
        let before = card(&world, "nic0");
        c1.add("host-device", &config());
        let script = "ip link set eth0 promisc off allmulticast off mtu 1300
            ip link set eth0 address 02:00:00:00:07:99";
        c1.exec(["sh", "-ec", script]);
        if is_taken {
            world.host(["ip", "link", "add", "eth0", "type", "bridge"]);
        }
        end_namespace(&c1, "eth0");
        world.call("host-device", "GC", &gc(&["c2"])).run().silence();
        assert_eq!(card(&world, "nic0"), before);
        assert!(!world.state().has("file /var/lib/cni/networks/uplink/10.7.0.10"), "its address");
        world.call("host-device", "GC", &gc(&[])).run().silence();
        c1.call("host-device", "DEL", &config()).env("CNI_NETNS", "").run().silence();
        assert_eq!(card(&world, "nic0"), before);
    }
}

#[test]
fn a_card_of_a_valid_attachment_or_another_network_is_left_alone() {
    let world = world();
    let c1 = world.container("c1");
    c1.add("host-device", &config());
    end_namespace(&c1, "eth0");
    let before = card(&world, "eth0");
    world.call("host-device", "GC", &gc(&["c1"])).run().silence();
    let other = crate::world::with(&gc(&[]), json!({"name": "uplink2"}));
    world.call("host-device", "GC", &other).run().silence();
    assert_eq!(card(&world, "eth0"), before);
}

/// The kernel deletes a virtual device with its namespace.
#[test]
fn the_record_of_a_device_that_ended_with_its_namespace_is_removed() {
    let file = "/run/cni/host-device/c1:eth0";
    for verb in ["DEL", "DEL without a path", "GC"] {
        let world = world();
        let c1 = world.container("c1");
        let keeper = world.container("keeper");
        c1.add("host-device", &config());
        let status = || world.call("host-device", "STATUS", &config()).run();
        let call = || {
            let outcome = match verb {
                "DEL" => c1.call("host-device", "DEL", &config()).run(),
                "GC" => world.call("host-device", "GC", &gc(&[])).run(),
                _ => c1.call("host-device", "DEL", &config()).env("CNI_NETNS", "").run(),
            };
            outcome.silence();
        };
        if verb != "DEL" {
            call();
            assert!(world.path(file).exists(), "{verb}: the device lives");
        }
        status().silence();
        c1.destroy();
        world.eventually("the device is gone", || !world.links().contains(&"wire0".into()));
        status().fails(50, &["device: nic0"]);
        call();
        assert!(!world.path(file).exists(), "{verb}");
        drop(keeper);
    }
}

#[test]
fn gc_goes_on_past_a_damaged_record_and_reports_it() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    c1.add("host-device", &config());
    end_namespace(&c1, "eth0");
    for name in ["a:eth0", "z:eth0"] {
        world.write(&format!("/run/cni/host-device/{name}"), "damaged");
    }
    let outcome = world.call("host-device", "GC", &gc(&[])).run();
    outcome.fails(6, &["/run/cni/host-device/a:eth0: ", "/run/cni/host-device/z:eth0: "]);
    assert_eq!(card(&world, "nic0"), before);
    assert!(!world.path("/run/cni/host-device/c1:eth0").exists());
}

#[test]
fn a_card_in_a_living_container_is_not_touched() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &config());
    world.call("host-device", "GC", &gc(&["c1"])).run().silence();
    c1.check("host-device", &config(), &result);
    c1.ping("10.7.0.1");
}

#[test]
fn a_name_that_is_taken_is_an_error_until_it_is_free() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    c1.add("host-device", &config());
    end_namespace(&c1, "eth0");
    world.host(["ip", "link", "add", "nic0", "type", "bridge"]);
    let call = || world.call("host-device", "GC", &gc(&[])).run();
    call().fails(999, &["nic0", "eth0", "File exists"]);
    assert!(!world.state().has("file /var/lib/cni/networks/uplink/10.7.0.10"), "its address");
    world.host(["ip", "link", "del", "nic0"]);
    call().silence();
    assert_eq!(card(&world, "nic0"), before);
}
