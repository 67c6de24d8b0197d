//! Beside the Go plugin: the same effect, the same file, and each removes what the other made.

use serde_json::{Value, json};

use super::{FILE, all, container, tuned, tuning};
use crate::parity::reference;
use crate::world::{PLUGIN_DIR, World, with};

/// The keys of Debian's release.
fn config(result: &Value) -> Value {
    let keys = with(&all(), json!({"txQLen": null, "cniVersion": "1.0.0"}));
    with(&tuning(keys, result), json!({"prevResult": {"cniVersion": "1.0.0"}}))
}

#[test]
fn both_do_the_same_and_write_the_same() {
    let theirs = reference();
    let done_by = |dir: &str| {
        let world = World::new();
        let (c1, result) = container(&world);
        c1.call("tuning", "ADD", &config(&result)).of_directory(dir).run().success();
        (tuned(&c1), world.read(FILE))
    };
    let (of_reference, ours) = (done_by(&theirs), done_by(PLUGIN_DIR));
    assert_eq!(of_reference.0, ours.0);
    // Ours has more keys after the reference's.
    let keys = of_reference.1.strip_suffix("\n}").unwrap();
    assert!(
        ours.1.starts_with(&format!("{keys},\n \"sysctl\": {{\n  ")),
        "{} {}",
        of_reference.1,
        ours.1
    );
}

#[test]
fn each_del_restores_the_values_of_the_other_add() {
    let theirs = reference();
    for (adder, remover) in [(theirs.as_str(), PLUGIN_DIR), (PLUGIN_DIR, theirs.as_str())] {
        let world = World::new();
        let (c1, result) = container(&world);
        let before = tuned(&c1);
        let config = with(&config(&result), json!({"sysctl": null}));
        let call = |verb: &str, dir: &str| c1.call("tuning", verb, &config).of_directory(dir).run();
        call("ADD", adder).success();
        assert_ne!(tuned(&c1), before);
        call("DEL", remover).silence();
        assert_eq!(tuned(&c1), before, "ADD by {adder}, DEL by {remover}");
        assert!(!world.path(FILE).exists());
    }
}

#[test]
fn saved_values_of_the_reference_stay() {
    let theirs = reference();
    let world = World::new();
    let (c1, result) = container(&world);
    let before = tuned(&c1);
    let config = config(&result);
    c1.call("tuning", "ADD", &with(&config, json!({"sysctl": null})))
        .of_directory(&theirs)
        .run()
        .success();
    c1.add("tuning", &config);
    c1.del("tuning", &config);
    assert_eq!(tuned(&c1), before);
}

#[test]
fn each_finds_what_the_other_added() {
    let theirs = reference();
    for (adder, checker) in [(theirs.as_str(), PLUGIN_DIR), (PLUGIN_DIR, theirs.as_str())] {
        let world = World::new();
        let (c1, result) = container(&world);
        // It compares texts, and looks for an interface called IFNAME.
        let keys = json!({"mac": "02:00:00:00:00:ff", "sysctl": {"net.ipv4.ip_local_port_range": "2000	3000"}});
        let config = with(&with(&config(&result), json!({"sysctl": null})), keys);
        let added = c1.call("tuning", "ADD", &config).of_directory(adder).run().success();
        c1.checking("tuning", &config, &added).of_directory(checker).run().silence();
    }
}
