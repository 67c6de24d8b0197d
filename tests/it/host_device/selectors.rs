//! The keys that select a device. A file system over the real sysfs invents cards.

use serde_json::{Value, json};

use super::{card, world};
use crate::world::{World, with};

const PCI: &str = "0000:03:00.0";

fn config(keys: Value) -> Value {
    let static_ipam = json!({"type": "static", "addresses": [{"address": "10.7.0.9/24"}]});
    let base = json!({
        "cniVersion": "1.1.0", "name": "uplink", "type": "host-device", "ipam": static_ipam,
    });
    with(&base, keys)
}

/// Puts nic0 to 0000:03:00.0, and other cards elsewhere.
fn with_buses() -> World {
    let world = world();
    world.host(["sh", "-ec", r#"
        ip link add nic1 address 02:00:00:00:07:02 type veth peer name wire1
        ip link add nic2 address 02:00:00:00:07:03 type veth peer name wire2
        mount -t tmpfs none /sys/bus
        mount -t tmpfs none /sys/devices
        pci() { mkdir -p /sys/bus/pci/devices/$1/$3; ln -s ../../../bus/pci/drivers/$2 /sys/bus/pci/devices/$1/driver; }
        pci 0000:03:00.0 e1000 net/nic0
        pci 0000:03:00.1 virtio-pci virtio7/net/nic1
        pci 0000:03:00.2 vfio-pci vfio-dev
        pci 0000:03:00.3 mlx5_core net/nic9
        pci 0000:03:00.4 mlx5_core infiniband
        mkdir -p /sys/bus/pci/devices/0000:03:00.5 /sys/bus/pci/devices/0000:03:00.0/net/zz9
        mkdir -p /sys/bus/auxiliary/devices/mlx5_core.sf.2/net/nic2
        mkdir -p /sys/devices/pci0000:00/0000:03:00.0/net/nic0
    "#]);
    world
}

fn moved(world: &World, keys: Value) -> Vec<String> {
    let c1 = world.container("c1");
    let before = world.links();
    let config = config(keys);
    world.call("host-device", "STATUS", &config).run().silence();
    let result = c1.add("host-device", &config);
    let left = world.links();
    c1.check("host-device", &config, &result);
    c1.del("host-device", &config);
    assert_eq!(world.links().len(), before.len(), "it came back: {config}");
    c1.destroy();
    before.into_iter().filter(|link| !left.contains(link)).collect()
}

#[test]
fn every_selector_finds_its_card() {
    let device_id = |id: &str| json!({"runtimeConfig": {"deviceID": id}});
    let cases = [
        (json!({"device": "nic0"}), "nic0"),
        (json!({"device": "a-very-long-name-of-a-card"}), "nic1"),
        (json!({"hwaddr": "02-00-00-00-07-02"}), "nic1"),
        (json!({"kernelpath": "/sys/devices/pci0000:00/0000:03:00.0"}), "nic0"),
        (json!({"pciBusID": PCI}), "nic0"),
        (json!({"pciBusID": "0000:03:00.1"}), "nic1"),
        (device_id(PCI), "nic0"),
        (device_id("mlx5_core.sf.2"), "nic2"),
        // The order in which they count.
        (json!({"device": "nic2", "hwaddr": "02:00:00:00:07:02", "pciBusID": PCI}), "nic2"),
        (json!({"hwaddr": "02:00:00:00:07:02", "pciBusID": PCI}), "nic1"),
        (with(&device_id("0000:03:00.1"), json!({"pciBusID": PCI})), "nic1"),
        (with(&device_id("mlx5_core.sf.2"), json!({"pciBusID": PCI})), "nic2"),
        (with(&device_id("mlx5_core.sf.2"), json!({"pciBusID": "nonsense/"})), "nic2"),
        (json!({"device": "nic0", "hwaddr": "", "kernelpath": null, "pciBusID": ""}), "nic0"),
    ];
    let world = with_buses();
    world.host([
        "ip",
        "link",
        "property",
        "add",
        "dev",
        "nic1",
        "altname",
        "a-very-long-name-of-a-card",
    ]);
    for (keys, name) in cases {
        assert_eq!(moved(&world, keys.clone()), [name], "{keys}");
    }
}

#[test]
fn a_missing_device_is_named() {
    let cases = [
        (json!({"hwaddr": "02:00:00:00:00:99"}), "hwaddr: 02:00:00:00:00:99"),
        (json!({"kernelpath": "/sys/devices/none"}), "kernelpath: /sys/devices/none"),
        (json!({"pciBusID": "0000:03:00.3"}), "pciBusID: 0000:03:00.3"),
        (json!({"pciBusID": "0000:03:00.4"}), "pciBusID: 0000:03:00.4"),
        (json!({"pciBusID": "0000:03:00.5"}), "pciBusID: 0000:03:00.5: the device has no driver"),
        (json!({"pciBusID": "0000:03:00.6"}), "pciBusID: 0000:03:00.6: device not found"),
        (json!({"runtimeConfig": {"deviceID": "none.sf"}}), "deviceID: none.sf: device not found"),
    ];
    let world = with_buses();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("", "uplink");
    for (keys, says) in cases {
        let config = config(keys);
        c1.call("host-device", "ADD", &config).run().fails(7, &[says]);
        world.call("host-device", "STATUS", &config).run().fails(50, &[says]);
        c1.del("host-device", &config);
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "uplink"), says);
    }
}

#[test]
fn a_device_that_cannot_be_looked_for_is_not_missing() {
    const PATH: &str = "/sys/devices/pci0000:00/0000:03:00.0";
    let world = with_buses();
    let c1 = world.container("c1");
    let failing = |verb: &str, keys: Value, (path, calls): (&str, &str)| {
        let inject = format!("inject={calls}:error=EIO");
        let strace = ["strace", "-qq", "-o", "/run/trace", "-P", path, "-e", &inject];
        c1.call("host-device", verb, &config(keys)).under(&strace).run()
    };
    let keys = json!({"kernelpath": PATH});
    c1.add("host-device", &config(keys.clone()));
    world.call("host-device", "STATUS", &config(keys.clone())).run().silence();
    let outcome = failing("STATUS", keys, (&format!("{PATH}/net"), "open,openat"));
    outcome.fails(50, &[&format!("cannot list {PATH}/net: I/O error")]);
    c1.del("host-device", &config(json!({"kernelpath": PATH})));
    let directory = format!("/sys/bus/pci/devices/{PCI}");
    let driver = format!("{directory}/driver");
    for (path, calls) in [(&directory, "stat,statx,newfstatat"), (&driver, "readlink,readlinkat")] {
        let outcome = failing("ADD", json!({"pciBusID": PCI}), (path, calls));
        outcome.fails(999, &[&format!("cannot read {path}"), "(os error 5)"]);
    }
}

#[test]
fn a_device_that_a_program_drives_only_gets_addresses() {
    let cases = [
        json!({"pciBusID": "0000:03:00.2"}),
        json!({"runtimeConfig": {"deviceID": "0000:03:00.2"}}),
        json!({"device": "nic0", "DPDKMode": true}),
        json!({"device": "nic0", "dpdkMode": true}),
    ];
    for keys in cases {
        let world = with_buses();
        let c1 = world.container("c1");
        let ipam = json!({"type": "host-local", "subnet": "10.7.0.0/24", "addresses": null});
        let config = with(&config(keys), json!({"ipam": ipam, "dns": {"domain": "d"}}));
        let before = world.state_with(&[&c1]).apart_from("", "uplink");
        let result = c1.add("host-device", &config);
        assert_eq!(result["interfaces"], json!([{"name": "eth0", "sandbox": c1.netns()}]));
        assert_eq!(result["ips"][0]["address"], "10.7.0.2/24");
        assert_eq!(result["ips"][0]["interface"], 0);
        assert_eq!(result["dns"], json!({"domain": "d"}));
        assert_eq!(world.links(), ["lo", "wire0", "nic0", "wire1", "nic1", "wire2", "nic2"]);
        c1.check("host-device", &config, &result);
        world.call("host-device", "STATUS", &config).run().silence();
        world.host(["umount", "/sys/bus"]);
        c1.del("host-device", &config);
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "uplink"), "after DEL");
    }
}

#[test]
fn a_driver_that_leaves_the_link_is_no_such_program() {
    let world = with_buses();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    // The driver takes precedence over DPDKMode.
    let config = config(json!({"pciBusID": PCI, "DPDKMode": true}));
    c1.add("host-device", &config);
    c1.ping("10.7.0.1");
    c1.del("host-device", &config);
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn the_device_may_be_unbound_before_del() {
    let world = with_buses();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    let config = config(json!({"pciBusID": PCI}));
    c1.add("host-device", &config);
    world.host(["umount", "/sys/bus"]);
    c1.del("host-device", &config);
    c1.del("host-device", &config);
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn an_alternative_name_selects_a_device() {
    let world = world();
    let longest = "x".repeat(127);
    world.host(["ip", "link", "property", "add", "dev", "nic0", "altname", &longest]);
    let before = card(&world, "nic0");
    let config = config(json!({"device": longest}));
    let c1 = world.container("c1");
    let status = || world.call("host-device", "STATUS", &config).run().silence();
    status();
    let result = c1.add("host-device", &config);
    c1.check("host-device", &config, &result);
    status();
    c1.del("host-device", &config);
    assert_eq!(card(&world, "nic0"), before);
}
