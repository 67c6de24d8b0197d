//! Containers that ended without a DEL, and a late DEL, by the commands of the runtime.

use serde_json::json;

use super::{Host, network};

/// Removes the namespace, without waiting for its end.
fn kill(host: &Host, name: &str) {
    host.world.host(["sh", "-c", "umount /run/netns/$0 && rm /run/netns/$0", name]);
}

#[test]
fn an_add_takes_the_addresses_of_ended_containers() {
    let host = Host::new();
    let mut net = network();
    net["plugins"][0]["ipam"]["ranges"] =
        json!([[{"subnet": "10.1.0.0/30"}], [{"subnet": "fd00:1::/126"}]]);
    host.configure("1.conflist", &net);
    for name in ["c1", "c2", "c3", "c4"] {
        let _container = host.world.container(name);
        host.cnibox(&["add", "net", name, "--container-id", name]).run().success();
        assert_eq!(
            host.world.read("/var/lib/cni/networks/net/10.1.0.2"),
            format!("{name}\r\neth0")
        );
        kill(&host, name);
    }
    host.world.within(60, "STATUS knows that an address can be taken", || {
        host.cnibox(&["status", "net"]).run().status == 0
    });
    // What the ADDs left goes, and the last one ends, too.
    host.cnibox(&["gc"]).run().output();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_gc_right_after_the_end_of_a_container_waits_for_the_kernel() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    for name in ["c1", "c2", "c3", "c4", "c5"] {
        let _container = host.world.container(name);
        host.cnibox(&["add", "net", name, "--container-id", name]).run().success();
        kill(&host, name);
        let said = host.cnibox(&["gc"]).run().output();
        assert!(said.contains(&format!("eth0 of container {name}")), "{name}: {said}");
        assert_eq!(host.kept(), [""; 0]);
    }
}

#[test]
fn a_late_del_touches_nothing_of_the_successor() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let [_living, other] = ["c1", "other"].map(|name| host.world.container(name));
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    let before = host.kept();
    let is_spared = || {
        let late = host.cnibox(&["del", "net", &other.netns(), "--container-id", "c1"]).run();
        let why = "touched nothing of eth0 of container c1 in network net: it lives";
        assert!(late.stderr.contains(why), "{}", late.report());
        late.silence();
        assert_eq!(before, host.kept());
        host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run().silence();
    };
    is_spared();
    // The record can be read, and not be locked.
    let records = "/var/lib/cni/attachments";
    host.world.host(["mount", "--bind", records, records]);
    host.world.host(["mount", "-o", "remount,bind,ro", records]);
    is_spared();
    host.world.host(["umount", records]);
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_living_attachment_without_a_cache_entry_is_not_deleted_by_another_namespace() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let [living, other] = ["c1", "other"].map(|name| host.world.container(name));
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    host.world.host(["sh", "-c", "rm -r /var/lib/cni/results"]);
    let before = host.kept();
    let late = host.cnibox(&["del", "net", &other.netns(), "--container-id", "c1"]).run();
    assert!(late.stderr.contains("touched nothing"), "{}", late.report());
    late.silence();
    for (words, why) in [
        (
            ["del", "net", "/proc/self/ns/net", "--container-id", "c1"],
            "it is the namespace of the host",
        ),
        (["add", "net", &other.netns(), "--container-id", "c1"], "it is attached already"),
    ] {
        let refused = host.cnibox(&words).run();
        assert!(refused.status == 1 && refused.stderr.contains(why), "{}", refused.report());
    }
    assert_eq!(before, host.kept());
    living.ping("10.1.0.1");
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

/// An entry of the cache that cannot be read once is no absence.
#[test]
fn an_add_over_a_living_attachment_is_refused_whatever_cannot_be_read() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    for number in 1..40 {
        let number = number.to_string();
        let add = host.cnibox(&["add", "net", "c1", "--container-id", "c1"]);
        let outcome = add.env("CNIBOX_FAIL_FILE", &number).run();
        assert_eq!(outcome.status, 1, "file operation {number}: {}", outcome.report());
    }
    // Another network with an interface of this name.
    let mut other = network();
    other["name"] = json!("other");
    other["plugins"][0]["bridge"] = json!("br-other");
    other["plugins"][0]["ipam"]["ranges"] = json!([[{"subnet": "10.2.0.0/24"}]]);
    host.configure("2.conflist", &other);
    for number in 1..40 {
        let number = number.to_string();
        let add = host.cnibox(&["add", "other", "c1", "--container-id", "c1"]);
        let outcome = add.env("CNIBOX_FAIL_FILE", &number).run();
        assert_eq!(outcome.status, 1, "other, file operation {number}: {}", outcome.report());
    }
    container.ping("10.1.0.1");
    host.cnibox(&["check", "net", "c1", "--container-id", "c1"]).run().silence();
}
