//! The life of attachments: what follows a failure, what is refused, what is repeated.

use serde_json::json;

use super::{Host, list, network, printing};
use crate::world::{LAN, all_at_once, with};

fn host_with(kinds: &[&str]) -> Host {
    let host = Host::new();
    for kind in kinds {
        host.recorder(kind, &printing(&json!({"cniVersion": "1.0.0"})));
    }
    host.configure("1.conflist", &list("1.0.0", kinds));
    host
}

const FAILING: &str = r#"if [ $CNI_COMMAND = $TEST_FAILS ]; then
echo 'what the plugin says' >&2; echo '{"code": 107, "msg": "no more", "details": "of it"}'; exit 1; fi; echo '{}'"#;

#[test]
fn a_failed_add_is_followed_by_del_of_the_whole_list() {
    let host = host_with(&["one", "two", "three"]);
    host.recorder("two", FAILING);
    host.world.container("c1");
    let outcome = host.cnibox(&["add", "net", "c1"]).env("TEST_FAILS", "ADD").run();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{}", outcome.report());
    for text in ["what the plugin says\n", "two", "failed (add)", "no more", "of it"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
    assert_eq!(host.titles(), ["one ADD", "two ADD", "three DEL", "two DEL", "one DEL"]);
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_del_goes_on_past_what_fails_or_is_missing_and_keeps_the_entry_until_all_succeeded() {
    let host = host_with(&["one", "two", "three", "four"]);
    host.recorder("three", FAILING);
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).env("TEST_FAILS", "-").run().success();
    host.seen();
    host.world.host(["rm", "/run/own/two"]);
    // The conflist is gone, too: the cache has it.
    host.world.host(["rm", "/run/net.d/1.conflist"]);
    let del = || host.cnibox(&["del", "net", "c1"]);
    let outcome = del().env("TEST_FAILS", "DEL").run();
    assert_eq!(outcome.status, 1);
    for text in ["three", "no more", "failed to find plugin \"two\""] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.report());
    }
    assert_eq!(host.titles(), ["four DEL", "three DEL", "one DEL"]);
    assert!(host.kept().iter().any(|file| file.starts_with("/var/lib/cni/results/net-")));
    host.recorder("two", "");
    del().env("TEST_FAILS", "-").run().silence();
    assert_eq!(host.titles(), ["four DEL", "three DEL", "two DEL", "one DEL"]);
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn del_of_a_missing_attachment_calls_the_plugins_and_fails_without_ignore() {
    let host = host_with(&["one"]);
    host.world.container("c1");
    for _ in 0..2 {
        host.cnibox(&["del", "net", "c1", "--ignore"]).run().silence();
        assert_eq!(host.titles(), ["one DEL"]);
    }
    host.cnibox(&["del", "--container-id", "nobody", "--ignore"]).run().silence();
    assert_eq!(host.titles(), [""; 0]);
    for args in [&["del", "net", "c1"][..], &["del", "--container-id", "nobody"]] {
        let del = host.cnibox(args).run();
        assert_eq!(del.status, 1, "{}", del.report());
        assert!(del.stderr.contains("no such attachment"), "{}", del.report());
    }
    assert_eq!(host.titles(), ["one DEL"]);
}

#[test]
fn the_configuration_of_the_add_is_that_of_the_del() {
    let host = host_with(&["one"]);
    host.world.container("c1");
    host.recorder("other", "");
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.configure("1.conflist", &list("1.0.0", &["other"]));
    host.seen();
    host.cnibox(&["check", "net", "c1"]).run().silence();
    host.cnibox(&["del", "net", "c1"]).run().silence();
    assert_eq!(host.titles(), ["one CHECK", "one DEL"]);
    // A file counts where it is named.
    host.cnibox(&["del", "/run/net.d/1.conflist", "c1", "--ignore"]).run().silence();
    assert_eq!(host.titles(), ["other DEL"]);
}

#[test]
fn a_plugin_that_is_missing_fails_the_add_before_anything_is_done() {
    let host = host_with(&["one", "two"]);
    host.world.host(["rm", "/run/own/two"]);
    host.world.container("c1");
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("failed to find plugin \"two\""), "{}", outcome.report());
    assert_eq!((host.titles(), host.kept()), (vec![], vec![]));
}

#[test]
fn add_refuses_an_interface_that_is_attached_and_changes_nothing() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.configure("2.conflist", &with(&network(), json!({"name": "second"})));
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "-p", "8080:80"]).run().success();
    let before = host.world.state_with(&[&container]);
    // The same interface in another network is as good as taken, too.
    for name in ["net", "second"] {
        let outcome = host.cnibox(&["add", name, "c1"]).run();
        assert_eq!(outcome.status, 1);
        assert!(
            outcome.stderr.contains("attached already, with 10.1.0.2/24"),
            "{}",
            outcome.report()
        );
    }
    before.assert_same(&host.world.state_with(&[&container]), "after the refusals");
    host.cnibox(&["check", "net", "c1"]).run().silence();
    host.cnibox(&["del", "net", "c1"]).run().silence();
}

#[test]
fn an_attachment_with_a_changed_address_is_alive() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let container = host.world.container("c1");
    host.cnibox(&["add", "net", "c1"]).run().success();
    container.exec(["ip", "address", "flush", "dev", "eth0"]);
    container.exec(["ip", "address", "add", "10.1.0.99/24", "dev", "eth0"]);
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    assert!(outcome.stderr.contains("attached already"), "{}", outcome.report());
    host.cnibox(&["gc"]).run().silence();
    container.exec(["ip", "link", "set", "eth0", "down"]);
    container.exec(["ip", "link", "set", "eth0", "name", "renamed"]);
    // Its namespace has not ended.
    host.cnibox(&["gc"]).run().silence();
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    assert!(outcome.stderr.contains("attached already"), "{}", outcome.report());
    host.cnibox(&["del", "net", "c1"]).run().silence();
    host.cnibox(&["add", "net", "c1"]).run().success();
    host.cnibox(&["del", "net", "c1"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn an_interface_of_another_runtime_survives_an_add_of_its_name() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let container = host.world.container("c1");
    container.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
    let before = host.world.state_with(&[&container]).apart_from("cni0", "net");
    let outcome = host.cnibox(&["add", "net", "c1"]).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let after = host.world.state_with(&[&container]).apart_from("cni0", "net");
    assert!(after.has("c1 link eth0 "), "{after:?}");
    assert_eq!(before.has("c1 link eth0 "), after.has("c1 link eth0 "));
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_namespace_that_was_made_again_is_attached_again() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.cnibox(&["add", "net", "web", "--create"]).run().success();
    for _ in 0..3 {
        host.world.host(["ip", "netns", "del", "web"]);
        host.cnibox(&["add", "net", "web", "--create"]).run().success();
        host.cnibox(&["check", "net", "web"]).run().silence();
        let taken = host.world.host(["ls", "/var/lib/cni/networks/net"]);
        assert_eq!(taken.lines().filter(|name| name.starts_with("10.")).count(), 1, "{taken}");
    }
    host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
    assert!(!host.world.path("/run/netns/web").exists());
}

#[test]
fn a_stale_attachment_to_another_network_is_deleted_first() {
    let host = host_with(&["one"]);
    host.recorder("one", &printing(&json!({"cniVersion": "1.0.0"})));
    let other = json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "one"}]});
    host.configure("2.conflist", &other);
    host.cnibox(&["add", "other", "web", "--create", "--container-id", "c1"]).run().success();
    host.world.host(["ip", "netns", "del", "web"]);
    host.seen();
    host.cnibox(&["add", "net", "web", "--create", "--container-id", "c1"]).run().success();
    let seen = host.seen();
    let calls: Vec<_> =
        seen.iter().map(|call| (call.title(), call.config()["name"].clone())).collect();
    let expected = [("one DEL", "other"), ("one ADD", "net")];
    assert_eq!(calls, expected.map(|(title, name)| (title.to_owned(), json!(name))));
    let kept = host.kept().join(" ");
    assert!(kept.contains("net-c1-eth0") && !kept.contains("other-c1-eth0"), "{kept}");
}

#[test]
fn the_name_works_again_when_run_was_cleared() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.cnibox(&["add", "net", "web", "--create"]).run().success();
    host.world.host(["ip", "netns", "del", "web"]);
    host.world.host(["rm", "-r", "/run/cnibox"]);
    host.cnibox(&["add", "net", "web", "--create"]).run().success();
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn after_a_reboot_an_attachment_has_ended_whatever_has_its_namespace() {
    let host = host_with(&["one"]);
    let container = host.world.container("c1");
    host.recorder(
        "one",
        &printing(&json!({"cniVersion": "1.0.0", "ips": [{"address": "10.9.9.9/24"}]})),
    );
    host.cnibox(&["add", "net", "c1"]).run().success();
    container.exec([
        "sh",
        "-ec",
        "ip link add eth0 type bridge; ip address add 10.9.9.9/24 dev eth0",
    ]);
    let add = || host.cnibox(&["add", "net", "c1"]).run();
    assert_eq!(add().status, 1);
    host.world.boot(1);
    // The address is there, so it lives, whatever the boot is.
    assert_eq!(add().status, 1);
    container.destroy();
    host.world.container("c1");
    host.seen();
    add().success();
    let seen = host.seen();
    // It must not go into a namespace that is not the attachment's any more.
    assert_eq!(seen[0].title(), "one DEL");
    assert_eq!(seen[0].variable("CNI_NETNS"), None);
    assert_eq!(seen[1].title(), "one ADD");
}

#[test]
fn the_hosts_own_namespace_is_refused() {
    let host = host_with(&["one"]);
    let add = host.cnibox(&["add", "net", "/proc/self/ns/net"]).run();
    assert_eq!(add.status, 1);
    assert!(add.stderr.contains("the namespace of the host"), "{}", add.report());
    assert_eq!(host.titles(), [""; 0]);
    // A DEL goes on without a namespace, so that no plugin can find the host's.
    let del = host.cnibox(&["del", "net", "/proc/self/ns/net", "--ignore"]).run();
    assert_eq!(del.status, 0, "{}", del.report());
    assert!(del.stderr.contains("the namespace of the host"), "{}", del.report());
    let seen = host.seen();
    assert_eq!((seen.len(), seen[0].title().as_str()), (1, "one DEL"));
    assert_eq!(seen[0].variable("CNI_NETNS"), None);
}

#[test]
fn operations_of_one_container_exclude_each_other_and_of_others_do_not() {
    let host = Host::new();
    // Fails if another call is under way for the same container. Two containers wait for one another.
    let body = "mkdir /run/busy-$CNI_CONTAINERID; touch /run/was-$CNI_CONTAINERID\n\
        if [ $CNI_CONTAINERID != a ]; then i=0; while [ ! -e /run/was-b ] || [ ! -e /run/was-c ]; do\n\
        i=$((i+1)); [ $i -lt 1200 ]; sleep 0.05; done; fi\n\
        sleep 0.1; rmdir /run/busy-$CNI_CONTAINERID; echo '{}'";
    host.recorder("one", body);
    host.configure("1.conflist", &list("1.0.0", &["one"]));
    host.world.container("c1");
    let add = |id: &str, ifname: &str| {
        host.cnibox(&["add", "net", "c1", "--container-id", id, "-i", ifname])
    };
    let calls = ["eth0", "eth1", "eth2", "eth3"].map(|ifname| add("a", ifname));
    for outcome in all_at_once(calls) {
        outcome.success();
    }
    for outcome in all_at_once([add("b", "eth0"), add("c", "eth0")]) {
        outcome.success();
    }
}

#[test]
fn an_executed_plugin_finds_what_those_before_it_have_done() {
    let host = Host::new();
    let body = "nft list ruleset > /run/at-$CNI_COMMAND; [ $CNI_COMMAND != ADD ] || sed 's/.*\"prevResult\"://; s/}$//' /run/notes/$number.stdin";
    host.recorder("rec", body);
    let mut network = network();
    let plugins = network["plugins"].as_array_mut().unwrap();
    plugins.insert(1, json!({"type": "rec"}));
    plugins.push(json!({"type": "rec"}));
    host.configure("1.conflist", &network);
    host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "-p", "8080:80"]).run().success();
    assert!(host.world.read("/run/at-ADD").contains("tcp . 8080"));
    host.cnibox(&["del", "net", "c1"]).run().silence();
    // The second of the two calls, after portmap and before bridge.
    let rules = host.world.read("/run/at-DEL");
    assert!(!rules.contains("8080") && rules.contains("net cnitool-"), "{rules}");
    assert!(!host.world.host(["nft", "list", "ruleset"]).contains("net cnitool-"));
}

#[test]
fn add_with_options_and_del_work_with_real_plugins() {
    let host = Host::new();
    host.world.host(["sh", "-ec", LAN]);
    host.configure("1.conflist", &network());
    let add = [
        "add",
        "net",
        "web",
        "--create",
        "-p",
        "127.0.0.1:8080:80",
        "-p",
        "9000-9001:7000-7001/udp",
        "--ip",
        "10.1.0.77",
        "--mac",
        "02:00:00:00:00:07",
    ];
    let result = host.cnibox(&add).run().success();
    assert_eq!(result["ips"][0]["address"], "10.1.0.77/24");
    assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:07");
    let rules = host.world.host(["nft", "list", "ruleset"]);
    for text in ["127.0.0.1 . tcp . 8080", "udp . 9000", "udp . 9001"] {
        assert!(rules.contains(text), "{text} is not in {rules}");
    }
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_list_of_our_plugins_runs_in_one_process() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    // The plugins are links to this executable, or nowhere.
    for path in ["/run/plugins", "/run/own"] {
        for verb in ["add", "check", "del"] {
            let call = host.cnibox(&[verb, "net", "c1"]).env("CNI_PATH", path);
            let strace = ["strace", "-f", "-qq", "-o", "/run/trace", "-e", "trace=process"];
            let outcome = call.under(&strace).run();
            assert_eq!(outcome.status, 0, "{}", outcome.report());
            let trace = host.world.read("/run/trace");
            let made = trace.lines().filter(|line| line.contains("exec") || line.contains("clone"));
            assert_eq!(made.count(), 1, "{trace}");
        }
    }
}
