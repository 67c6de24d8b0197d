//! An invalid key is refused by its name; an ADD that the kernel refuses is undone.

use serde_json::{Value, json};

use super::{all, container, files, tuned, tuning};
use crate::world::{World, with};

#[test]
fn invalid_keys_are_named_before_any_change() {
    let world = World::new();
    let (c1, result) = container(&world);
    let before = world.state_with(&[&c1]);
    for (keys, code, text) in [
        (json!({"mac": "02:00"}), 7, "mac"),
        (json!({"mac": 5}), 7, "mac"),
        (json!({"runtimeConfig": {"mac": "x"}}), 7, "mac"),
        (json!({"args": {"cni": {"mac": "x"}}}), 7, "mac"),
        (json!({"mtu": -1}), 7, "mtu"),
        (json!({"mtu": "1500"}), 7, "mtu"),
        (json!({"args": {"cni": {"mtu": "1500"}}}), 7, "mtu"),
        (json!({"promisc": "yes"}), 7, "promisc"),
        (json!({"allmulti": 1}), 7, "allmulti"),
        (json!({"txQLen": -1}), 7, "txQLen"),
        (json!({"dataDir": 1}), 6, "dataDir"),
        (json!({"sysctl": ["net.core.somaxconn"]}), 7, "sysctl"),
        (json!({"sysctl": {"net.core.somaxconn": 77}}), 7, "sysctl.net.core.somaxconn"),
        (
            json!({"sysctl": {"kernel.hostname": "x"}}),
            7,
            "invalid net sysctl key: \"kernel.hostname\"",
        ),
        (json!({"sysctl": {"net/../kernel/hostname": "x"}}), 7, "invalid net sysctl key"),
        (json!({"args": {"cni": {"sysctl": {"fs.file-max": "1"}}}}), 7, "invalid net sysctl key"),
        (json!({"sysctl": {"net.core.nothing": "1"}}), 999, "cannot read net.core.nothing"),
        (
            json!({"sysctl": {"net.core.somaxconn": "1", "net/core/somaxconn": "2"}}),
            7,
            "duplicated sysctl keys are not allowed",
        ),
    ] {
        let keys = with(&json!({"mtu": 1400}), keys);
        c1.call("tuning", "ADD", &tuning(keys, &result)).run().fails(code, &[text]);
        before.assert_same(&world.state_with(&[&c1]), text);
    }
}

#[test]
fn the_same_key_twice_is_refused() {
    let world = World::new();
    let (c1, result) = container(&world);
    let keys = json!({"sysctl": {"net.core.somaxconn": "1", "net.core.SECOND": "2"}});
    let text = tuning(keys, &result).to_string().replace("SECOND", "somaxconn");
    for verb in ["ADD", "CHECK"] {
        let outcome = c1.call("tuning", verb, &Value::Null).stdin(text.clone()).run();
        outcome.fails(7, &["duplicated sysctl keys are not allowed", "net.core.somaxconn"]);
    }
    c1.call("tuning", "DEL", &Value::Null).stdin(text).run().silence();
}

#[test]
fn an_add_that_the_kernel_refuses_is_undone() {
    for keys in [
        json!({"mtu": 10}),
        json!({"mac": "01:00:5e:00:00:01"}),
        json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "many"}}),
    ] {
        let world = World::new();
        let (c1, result) = container(&world);
        c1.call("tuning", "ADD", &tuning(json!({}), &result)).run().success();
        let before = tuned(&c1);
        let call = |keys: Value| c1.call("tuning", "ADD", &tuning(keys, &result)).run();
        call(with(&all(), keys.clone())).fails(999, &["cannot "]);
        assert_eq!(tuned(&c1), before, "{keys}");
        assert!(files(&world).is_empty());
        // A second ADD that fails leaves what the first one did, and its file.
        call(all()).success();
        let (after, written) = (tuned(&c1), files(&world));
        call(with(&json!({"mtu": 1300, "sysctl": {"net.core.rmem_max": null, "net.unix.max_dgram_qlen": "5"}}), keys))
            .error();
        assert_eq!((tuned(&c1), files(&world)), (after, written));
    }
}
