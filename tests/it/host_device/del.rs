//! DEL: whatever happened in between, the card is on the host as it was.

use serde_json::json;

use super::{MAC, card, config, config_with, end_namespace, plain, world};
use crate::world::{Container, at_every_system_call, with};

type Happening = fn(&Container<'_>);

fn del(c: &Container<'_>) {
    c.del("host-device", &config());
}

fn del_without_netns(c: &Container<'_>) {
    c.call("host-device", "DEL", &config()).env("CNI_NETNS", "").run().silence();
}

/// The runtime names a process by an id that is that of a process of the host by now.
fn del_in_host_netns(c: &Container<'_>) {
    let del = c.call("host-device", "DEL", &config()).env("CNI_NETNS", "/proc/self/ns/net").run();
    assert!(
        del.stderr.contains("is the network namespace of the plugin itself"),
        "{}",
        del.report()
    );
    del.silence();
}

const HAPPENINGS: [(&str, Happening); 14] = [
    ("nothing", del),
    ("it has another name in the container", |c| {
        c.exec(["sh", "-ec", "ip link set eth0 down; ip link set eth0 name wan0"]);
        del(c);
    }),
    ("another interface has taken its name in the container", |c| {
        c.exec([
            "sh",
            "-ec",
            "ip link set eth0 down; ip link set eth0 name wan0
            ip link add eth0 type bridge",
        ]);
        del(c);
    }),
    ("the container has changed it", |c| {
        c.exec(["ip", "link", "set", "eth0", "mtu", "1300", "promisc", "on"]);
        c.exec(["ip", "link", "set", "eth0", "address", "02:00:00:00:07:99"]);
        del(c);
    }),
    ("the host has an interface of the name in the container", |c| {
        c.world.host(["ip", "link", "add", "eth0", "type", "bridge"]);
        del(c);
    }),
    ("the namespace has ended", |c| {
        end_namespace(c, "eth0");
        del(c);
    }),
    ("the namespace has ended, and none is named", |c| {
        end_namespace(c, "eth0");
        del_without_netns(c);
    }),
    ("the namespace has ended, and CNI_NETNS is the host's", |c| {
        end_namespace(c, "eth0");
        del_in_host_netns(c);
    }),
    ("the namespace has ended, and somebody sets up what came back", |c| {
        end_namespace(c, "eth0");
        c.world.host(["ip", "link", "set", "eth0", "up", "mtu", "1300"]);
        del(c);
    }),
    ("the host has given it its name back already", |c| {
        end_namespace(c, "eth0");
        c.world.host(["ip", "link", "set", "eth0", "name", "nic0"]);
        del(c);
    }),
    ("udev has found out one more name for it", |c| {
        end_namespace(c, "eth0");
        c.world.host(["ip", "link", "property", "add", "dev", "eth0", "altname", "nic0"]);
        del(c);
    }),
    ("another container that wanted it has left a passport on it", |c| {
        c.exec([
            "sh",
            "-ec",
            "mine=$(ip -j link show eth0 | grep -o 'cnibox[^\"]*')
            ip link property del dev eth0 altname $mine
            ip link property add dev eth0 altname cnibox.1.2.1300.02-00-00-00-07-09..nic8
            ip link property add dev eth0 altname $mine",
        ]);
        del(c);
    }),
    ("the selector leads nowhere any more", |c| {
        c.del("host-device", &config_with(json!({"device": null, "pciBusID": "ffff:ff:1f.7"})));
    }),
    ("there is no selector any more, nor an IPAM plugin of that configuration", |c| {
        c.del("host-device", &config_with(json!({"device": null, "ipam": {"ranges": null}})));
    }),
];

#[test]
fn the_card_is_restored_whatever_happened() {
    for (what, happening) in HAPPENINGS {
        // Settings of the administrator on the host.
        for setting in ["up", "down", "up promisc on", "up alias upstairs", "up mtu 1280"] {
            let world = world();
            let c1 = world.container("c1");
            let words = format!("ip link set nic0 {setting}");
            world.host(["sh", "-ec", &words]);
            let before = card(&world, "nic0");
            c1.add("host-device", &config());
            happening(&c1);
            assert_eq!(card(&world, "nic0"), before, "{what}, {setting}");
            let file = "file /var/lib/cni/networks/uplink/10.7.0.10";
            assert!(!world.state().has(file), "{what}: the address is released");
            del_without_netns(&c1);
            c1.del("host-device", &config());
            assert_eq!(card(&world, "nic0"), before, "{what}, {setting}: after two more DELs");
        }
    }
}

#[test]
fn a_name_that_is_taken_is_an_error_but_the_card_is_not_lost() {
    // With the name in the container taken on the host, too, or free.
    for (also, name) in [("wan0", "eth0"), ("eth0", "dev")] {
        let world = world();
        let c1 = world.container("c1");
        let before = card(&world, "nic0");
        c1.add("host-device", &config());
        c1.exec(["ip", "link", "set", "eth0", "mtu", "1300"]);
        for taken in ["nic0", also] {
            world.host(["ip", "link", "add", taken, "type", "bridge"]);
        }
        let call = || c1.call("host-device", "DEL", &config()).run();
        for _ in 0..2 {
            call().fails(
                999,
                &["cannot restore device nic0, which is on the host as", name, "File exists"],
            );
            let links = world.links();
            let found: Vec<&String> =
                links.iter().filter(|link| link.starts_with(name) && *link != also).collect();
            assert_eq!(found.len(), 1, "it is on the host: {links:?}");
            let there = card(&world, found[0]);
            assert!(there.contains("mtu=1400 up=false"), "all but its name is as before: {there}");
            let file = "file /var/lib/cni/networks/uplink/10.7.0.10";
            assert!(!world.state().has(file), "the address is released");
        }
        world.host(["ip", "link", "del", "nic0"]);
        call().silence();
        assert_eq!(card(&world, "nic0"), before);
    }
}

#[test]
fn a_card_in_a_living_container_is_not_taken_by_a_del_in_the_hosts_namespace() {
    let world = world();
    let c1 = world.container("c1");
    let result = c1.add("host-device", &config());
    let del = || c1.call("host-device", "DEL", &config()).env("CNI_NETNS", "/proc/self/ns/net");
    for _ in 0..2 {
        del().run().fails(8, &["it is the network namespace of the plugin itself"]);
        c1.check("host-device", &config(), &result);
    }
    // Without a record its life is unknown, so it is not in the way. The card stays where it is.
    world.host(["rm", "/var/lib/cni/attachments/uplink+c1+eth0"]);
    del().run().silence();
    assert!(c1.exec(["ip", "link", "show", "dev", "eth0"]).contains(MAC));
}

#[test]
fn an_alias_of_the_container_does_not_come_along() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    c1.add("host-device", &config());
    c1.exec(["ip", "link", "set", "eth0", "alias", "mine"]);
    del(&c1);
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn an_interface_that_is_not_ours_stays_in_the_container() {
    let setups = [
        "ip link add eth0 type bridge",
        "ip link add eth0 type veth peer name x0; ip link set eth0 alias 'no name'",
        "ip link add eth0 type veth peer name x0; ip link set eth0 alias other0",
    ];
    for setup in setups {
        let world = world();
        let c1 = world.container("c1");
        c1.exec(["sh", "-ec", setup]);
        let before = world.state_with(&[&c1]).apart_from("", "uplink");
        c1.del("host-device", &config());
        before.assert_same(&world.state_with(&[&c1]).apart_from("", "uplink"), setup);
    }
}

#[test]
fn del_of_another_container_leaves_the_card_and_is_an_error() {
    let world = world();
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = c1.add("host-device", &config());
    let outcome = c2.call("host-device", "DEL", &config()).env("CNI_NETNS", &c1.netns()).run();
    assert!(outcome.stderr.contains("eth0 is not a device of c2 eth0"), "{}", outcome.report());
    outcome.silence();
    c1.check("host-device", &config(), &result);
    c1.ping("10.7.0.1");
}

#[test]
fn del_of_another_network_leaves_the_card_to_its_own() {
    let happenings: [Happening; 2] = [|_| (), |c| end_namespace(c, "eth0")];
    for happening in happenings {
        let world = world();
        let c1 = world.container("c1");
        let before = card(&world, "nic0");
        c1.add("host-device", &plain());
        happening(&c1);
        let meanwhile = world.state();
        c1.del("host-device", &with(&plain(), json!({"name": "other"})));
        meanwhile.assert_same(&world.state(), "after DEL of another network");
        c1.del("host-device", &plain());
        assert_eq!(card(&world, "nic0"), before);
        assert!(!world.state().has("file /run/cni/host-device/"));
    }
}

#[test]
fn a_device_in_an_unknown_namespace_is_reported() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    c1.add("host-device", &plain());
    let outcome = c1.call("host-device", "DEL", &plain()).env("CNI_NETNS", "").run();
    assert!(
        outcome.stderr.contains("cannot return device nic0 of c1 eth0: "),
        "{}",
        outcome.report()
    );
    outcome.silence();
    // A later DEL restores it.
    c1.del("host-device", &plain());
    assert_eq!(card(&world, "nic0"), before);
}

/// Commands in the container that make its device claim to be `dbus0`, or nothing.
const FORGERIES: [&str; 3] = [
    "ip link property del dev eth0 altname $mine
    ip link property add dev eth0 altname ${mine%nic0}dbus0; ip link set eth0 alias dbus0",
    "ip link property del dev eth0 altname $mine; ip link set eth0 alias dbus0",
    "ip link property del dev eth0 altname $mine; ip link set eth0 alias ''",
];

#[test]
fn a_container_cannot_choose_the_name_on_the_host() {
    let by_mac = with(&plain(), json!({"device": null, "hwaddr": super::MAC}));
    for forgery in FORGERIES {
        for config in [&plain(), &by_mac] {
            let world = world();
            let c1 = world.container("c1");
            c1.add("host-device", config);
            let find = "mine=$(ip -j link show eth0 | grep -o 'cnibox[^\"]*')\n";
            c1.exec(["sh", "-ec", &(find.to_owned() + forgery)]);
            let error = c1.call("host-device", "DEL", config).run().error();
            let name = error.msg.rsplit(' ').next().unwrap().to_owned();
            assert!(
                error.msg.contains("cannot restore the name") && name.starts_with("dev"),
                "{error:?}"
            );
            let there = card(&world, &name);
            assert!(there.contains("up=false") && !there.contains("dbus0"), "{there}");
            assert!(!world.links().contains(&"dbus0".into()), "{:?}", world.links());
            c1.del("host-device", config);
        }
    }
}

#[test]
fn without_the_record_only_the_name_of_the_configuration_is_restored() {
    let by_mac = with(&plain(), json!({"device": null, "hwaddr": super::MAC}));
    for (config, marks) in [(plain(), "reference"), (by_mac.clone(), "reference"), (by_mac, "ours")]
    {
        let world = world();
        let c1 = world.container("c1");
        c1.add("host-device", &config);
        world.host(["rm", "/run/cni/host-device/c1:eth0"]);
        if marks == "reference" {
            let script = "ip link property del dev eth0 altname \
                $(ip -j link show eth0 | grep -o 'cnibox[^\"]*')";
            c1.exec(["sh", "-ec", script]);
        }
        let outcome = c1.call("host-device", "DEL", &config).run();
        if config["device"] == "nic0" {
            outcome.silence();
            assert!(world.links().contains(&"nic0".into()));
        } else {
            outcome
                .fails(999, &["cannot restore the name of device eth0: it is on the host as dev"]);
        }
        assert_eq!(c1.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1, "it has left");
    }
}

/// A damaged record has a device, unlike a missing one.
#[test]
fn a_damaged_record_is_no_missing_record() {
    const FILE: &str = "/run/cni/host-device/c1:eth0";
    let by_mac = with(&plain(), json!({"device": null, "hwaddr": super::MAC}));
    for damage in ["", "cnibox.1.2.3", "\u{fffd}", "too long"] {
        let world = world();
        let [c1, c2] = ["c1", "c2"].map(|name| world.container(name));
        let before = card(&world, "nic0");
        world.host(["ip", "link", "add", "nic9", "type", "bridge"]);
        c1.add("host-device", &by_mac);
        let whole = world.read(FILE);
        match damage {
            "too long" => drop(world.host(["truncate", "-s", "17M", FILE])),
            damage => world.write(FILE, damage),
        }
        let meanwhile = world.state_with(&[&c1, &c2]);
        let fails = |outcome: crate::world::Outcome| {
            let error = outcome.error();
            assert!(format!("{} {}", error.msg, error.details).contains(FILE), "{error:?}");
            meanwhile.assert_same(&world.state_with(&[&c1, &c2]), damage);
        };
        fails(c1.call("host-device", "DEL", &by_mac).run());
        fails(c2.call("host-device", "ADD", &with(&plain(), json!({"device": "nic9"}))).run());
        fails(world.call("host-device", "STATUS", &by_mac).run());
        world.write(FILE, &whole);
        c1.del("host-device", &by_mac);
        assert_eq!(card(&world, "nic0"), before);
    }
}

#[test]
fn del_restores_the_card_although_ipam_fails_with_an_error() {
    let world = world();
    let c1 = world.container("c1");
    let before = card(&world, "nic0");
    c1.add("host-device", &config());
    let gone = config_with(json!({"ipam": {"type": "gone-ipam"}}));
    c1.call("host-device", "DEL", &gone).run().fails(7, &["failed to find plugin"]);
    assert_eq!(card(&world, "nic0"), before);
}

#[test]
fn a_call_that_is_killed_at_any_point_leaves_a_card_that_del_restores() {
    for verb in ["ADD", "DEL"] {
        let world = world();
        let c1 = world.container("c1");
        let before = card(&world, "nic0");
        let call = || c1.call("host-device", verb, &plain());
        let prepare = || {
            if verb == "DEL" {
                c1.add("host-device", &plain());
            }
        };
        at_every_system_call(&world, call, prepare, |point| {
            c1.del("host-device", &plain());
            assert_eq!(card(&world, "nic0"), before, "{verb}, {point}");
        });
    }
}
