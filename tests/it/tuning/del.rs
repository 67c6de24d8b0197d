//! DEL puts everything back as it was before the first ADD, and leaves no file; GC removes files of what is not valid.

use serde_json::{Value, json};

use super::{AFTERWARDS, FILE, all, container, files, tuned, tuning};
use crate::world::{COVERED_BOOT, World, with};

#[test]
fn everything_is_put_back() {
    let world = World::new();
    let (c1, result) = container(&world);
    let (before, state) = (tuned(&c1), world.state_with(&[&c1]));
    let config = tuning(all(), &result);
    // A second ADD must not take what the first one set for what was there before.
    for adds in [1, 2] {
        for _ in 0..adds {
            c1.add("tuning", &config);
            assert_eq!(tuned(&c1), AFTERWARDS);
        }
        for _ in 0..2 {
            c1.del("tuning", &config);
            assert_eq!(tuned(&c1), before, "after {adds} ADDs");
        }
        let lines = |state: &crate::world::State| {
            state
                .lines()
                .iter()
                .filter(|line| !line.starts_with("dir "))
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(&world.state_with(&[&c1])), lines(&state));
    }
    assert!(world.state().has("dir /run/cni/tuning mode=700"));
}

/// As in a container of systemd-nspawn that has the network of the host.
#[test]
fn a_caller_with_another_boot_id_puts_the_values_back() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = tuned(&c1);
    let config = tuning(all(), &result);
    c1.add("tuning", &config);
    c1.call("tuning", "ADD", &config).under(&COVERED_BOOT).run().success();
    c1.call("tuning", "DEL", &config).under(&COVERED_BOOT).run().silence();
    assert_eq!(tuned(&c1), before);
}

#[test]
fn two_of_them_in_one_chain_share_a_file() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = tuned(&c1);
    let first = tuning(json!({"mtu": 1300, "sysctl": {"net.core.somaxconn": "5"}}), &result);
    let second = tuning(all(), &c1.add("tuning", &first));
    c1.add("tuning", &second);
    c1.del("tuning", &second);
    c1.del("tuning", &first);
    assert_eq!(tuned(&c1), before);
}

#[test]
fn del_in_all_its_ways() {
    type Way = (&'static str, fn(&Value) -> Value);
    let ways: [Way; 4] = [
        ("as it was added", Value::clone),
        ("without a result", |config| with(config, json!({"prevResult": null}))),
        ("changed", |config| {
            with(config, json!({"mtu": 1300, "sysctl": null, "mac": "nonsense", "txQLen": null}))
        }),
        ("with sysctls that cannot be", |config| {
            with(config, json!({"sysctl": {"kernel.x": "1"}}))
        }),
    ];
    for (how, change) in ways {
        let world = World::new();
        let (c1, result) = container(&world);
        let before = tuned(&c1);
        let config = tuning(all(), &result);
        c1.add("tuning", &config);
        c1.del("tuning", &change(&config));
        assert_eq!(tuned(&c1), before, "{how}");
        assert!(files(&world).is_empty(), "{how}");
    }
}

#[test]
fn without_its_link_the_rest_is_put_back() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(all(), &result);
    c1.add("tuning", &config);
    c1.exec(["ip", "link", "del", "eth0"]);
    c1.del("tuning", &config);
    assert_eq!(c1.sysctl("net/core/somaxconn"), "4096");
    assert!(files(&world).is_empty());
}

/// The reference writes in place, and before it changes a value. A file that cnibox replaced is never torn.
#[test]
fn a_torn_file_is_removed() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(all(), &result);
    for content in ["", "{", "{\n \"mtu\": 15"] {
        world.write(FILE, content);
        let before = tuned(&c1);
        c1.del("tuning", &config);
        assert!(files(&world).is_empty(), "{content}");
        world.write(FILE, content);
        c1.add("tuning", &config);
        assert_eq!(tuned(&c1), AFTERWARDS);
        c1.del("tuning", &config);
        assert_eq!(tuned(&c1), before, "{content}");
    }
}

/// The values of the container are those of an earlier ADD. They do not replace the saved ones.
#[test]
fn a_damaged_file_is_not_replaced() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config = tuning(all(), &result);
    c1.add("tuning", &config);
    let too_long = "\0".repeat((16 << 20) + 1);
    for content in ["[]", "{\"mtu\": \"x\"}", "no JSON", "{\"mtu\": 1500}}", &too_long] {
        world.write(FILE, content);
        c1.call("tuning", "ADD", &config).run().fails(6, &[FILE]);
        assert!(world.read(FILE) == content);
        assert_eq!(tuned(&c1), AFTERWARDS);
        let keys = json!({"cniVersion": "1.1.0", "cni.dev/valid-attachments": []});
        world.call("tuning", "GC", &with(&config, keys)).run().silence();
        let content = &content[..content.len().min(20)];
        let del = c1.call("tuning", "DEL", &config).run();
        assert!(del.stderr.contains(FILE), "{content}: {}", del.report());
        del.silence();
        assert!(files(&world).is_empty(), "{content}");
    }
    // A damaged file of another network is left to that network.
    let of_another = "{\"mtu\": \"x\", \"owner\": \"other c1 eth0\"}";
    world.write(FILE, of_another);
    c1.del("tuning", &config);
    assert_eq!(world.read(FILE), of_another);
}

#[test]
fn a_temporary_file_of_a_crash_is_removed() {
    let world = World::new();
    let (c1, result) = container(&world);
    let (dir, name) = FILE.rsplit_once('/').unwrap();
    world.write(&format!("{dir}/.{name}.0123456789abcdef~"), "{\n \"mtu\": 15");
    c1.del("tuning", &tuning(all(), &result));
    assert!(files(&world).is_empty());
}

#[test]
fn another_directory_is_used() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = tuned(&c1);
    let config = tuning(with(&all(), json!({"dataDir": "/run/elsewhere/deep"})), &result);
    c1.add("tuning", &config);
    assert!(world.read("/run/elsewhere/deep/c1_eth0.json").contains("1500"));
    c1.del("tuning", &config);
    assert_eq!(tuned(&c1), before);
    assert!(std::fs::read_dir(world.path("/run/elsewhere/deep")).unwrap().next().is_none());
}

#[test]
fn gc_removes_files_of_this_network_that_are_not_valid() {
    let world = World::new();
    let (c1, result) = container(&world);
    let config =
        |network: &str| with(&tuning(json!({"mtu": 1400}), &result), json!({"name": network}));
    let add = |network: &str, id: &str| {
        c1.call("tuning", "ADD", &config(network)).env("CNI_CONTAINERID", id).run().success();
    };
    add("net", "valid");
    add("net", "stale");
    add("net2", "other");
    world.write("/run/cni/tuning/reference_eth0.json", "{\n \"mtu\": 1500\n}");
    world.write("/run/cni/tuning/torn_eth0.json", "{");
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "valid", "ifname": "eth0"}]});
    world.call("tuning", "GC", &with(&config("net"), valid)).run().silence();
    let mut left: Vec<String> = std::fs::read_dir(world.path("/run/cni/tuning"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["other_eth0.json", "reference_eth0.json", "torn_eth0.json", "valid_eth0.json"]
    );
    let gc =
        with(&config("net9"), json!({"cni.dev/valid-attachments": [], "dataDir": "/run/nowhere"}));
    world.call("tuning", "GC", &gc).run().silence();
}

#[test]
fn a_backup_of_another_namespace_is_not_believed() {
    for verb in ["ADD", "DEL"] {
        let world = World::new();
        let (old, result) = container(&world);
        let config = tuning(all(), &result);
        old.exec(["ip", "link", "set", "eth0", "mtu", "1234"]);
        old.add("tuning", &config);
        let left = world.read(FILE);
        old.destroy();

        // The same id and path, after a crash or a reboot without a DEL.
        let (c1, result) = container(&world);
        let config = tuning(all(), &result);
        let before = tuned(&c1);
        if verb == "ADD" {
            c1.add("tuning", &config);
            let written = world.read(FILE);
            assert!(written.contains("1500") && !written.contains("1234"), "{left} {written}");
        }
        c1.del("tuning", &config);
        assert_eq!(tuned(&c1), before, "{verb} with what another one left: {left}");
        assert!(files(&world).is_empty());
    }
}

#[test]
fn a_backup_of_another_attachment_with_the_same_file_stays() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = tuned(&c1);
    let config = tuning(all(), &result);
    let call =
        |verb: &str, id: &str| c1.call("tuning", verb, &config).env("CNI_CONTAINERID", id).run();
    let c2 = world.container("c2");
    call("ADD", "a_b").success();
    let other = c2.call("tuning", "DEL", &config).env("CNI_CONTAINERID", "a");
    other.env("CNI_IFNAME", "b_eth0").run().silence();
    assert_eq!(files(&world).len(), 1);
    call("DEL", "a_b").silence();
    assert_eq!(tuned(&c1), before);
    assert!(files(&world).is_empty());
}

#[test]
fn the_longest_container_ids() {
    // 245: its file's name has 255 bytes, the longest that there may be.
    for length in [230, 244, 245, 246, 255, 4000] {
        let world = World::new();
        let (c1, result) = container(&world);
        let (before, config) = (tuned(&c1), tuning(all(), &result));
        let id = "i".repeat(length);
        let call = |verb: &str| c1.call("tuning", verb, &config).env("CNI_CONTAINERID", &id).run();
        call("DEL").silence();
        call("ADD").success();
        call("ADD").success();
        assert_eq!((tuned(&c1).as_str(), files(&world).len()), (AFTERWARDS, 1), "{length}");
        let as_it_was = format!("file /run/cni/tuning/{id}_eth0.json ");
        assert_eq!(world.state().has(&as_it_was), length <= 245, "{length}");
        call("DEL").silence();
        assert_eq!(tuned(&c1), before, "{length}");
        assert!(files(&world).is_empty(), "{length}");
    }
}
