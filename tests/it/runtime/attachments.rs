//! `cnibox attachments`: what is attached, by whichever runtime, and whether it lives.

use serde_json::{Value, json};

use super::{Host, network};
use crate::world::{Outcome, with, without};

const RESULTS: &str = "/var/lib/cni/results";

impl Host {
    fn attachments(&self, args: &[&str]) -> Outcome {
        self.cnibox(&[&["attachments"], args].concat()).run()
    }

    fn attached(&self) -> Vec<Value> {
        let document: Value =
            serde_json::from_str(&self.attachments(&["--json"]).output()).unwrap();
        document["attachments"].as_array().unwrap().clone()
    }
}

/// A host with the container c1 in the network `net`.
fn host_with_one() -> Host {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    let published = ["-p", "8080:80", "-p", "127.0.0.1:53:5353/udp"];
    let add = [&["add", "net", "c1", "--container-id", "id1"][..], &published].concat();
    host.cnibox(&add).run().success();
    host
}

#[test]
fn an_attachment_is_shown_with_its_addresses_and_ports() {
    let host = host_with_one();
    let expected = "\
NETWORK  CONTAINER  IFNAME  ADDRESSES    PORTS                                STATE  CHECK  NETNS
net      id1        eth0    10.1.0.2/24  8080->80/tcp,127.0.0.1:53->5353/udp  alive  -      /run/netns/c1
";
    assert_eq!(host.attachments(&[]).output(), expected);
    assert_eq!(
        host.attachments(&["--check"]).output(),
        expected.replace("-      /run", "ok     /run")
    );
    let expected = json!({
        "network": "net", "containerID": "id1", "ifname": "eth0", "netns": "/run/netns/c1",
        "addresses": ["10.1.0.2/24"], "state": "alive", "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "127.0.0.1"},
        ],
    });
    assert_eq!(host.attached(), [expected]);
    host.cnibox(&["del", "net", "c1", "--container-id", "id1"]).run().silence();
    assert_eq!(host.attached(), [Value::Null; 0]);
    assert_eq!(host.attachments(&["--check"]).output().lines().count(), 1);
}

#[test]
fn an_attachment_that_is_gone_fails_with_check_only() {
    let host = host_with_one();
    host.world.host(["umount", "/run/netns/c1"]);
    host.world
        .eventually("the namespace has ended", || host.attachments(&[]).stderr.contains("gone"));
    let outcome = host.attachments(&[]);
    assert!(
        outcome.stderr.contains("eth0 of container id1 in network net: gone: "),
        "{}",
        outcome.report()
    );
    assert!(outcome.output().contains("  gone   -      /run/netns/c1"));
    let outcome = host.attachments(&["--check", "--json"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stderr.contains("1 of 1 attachments failed"), "{}", outcome.report());
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let attachment = &document["attachments"][0];
    assert_eq!([&attachment["state"], &attachment["check"]], ["gone", "failed"]);
    assert_eq!(attachment["reason"], "its network namespace has ended");
}

#[test]
fn check_finds_what_is_not_as_it_was_made() {
    let host = host_with_one();
    host.world.container("c2");
    host.cnibox(&["add", "net", "c2", "--container-id", "id2"]).run().success();
    host.world.host(["ip", "-netns", "c2", "route", "del", "default"]);
    let outcome = host.attachments(&["--check"]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let said = |text: &str| outcome.stderr.lines().any(|line| line.contains(text));
    assert!(said("eth0 of container id2 in network net: "), "{}", outcome.report());
    assert!(!said("id1") && said("1 of 2 attachments failed"), "{}", outcome.report());
    let rows: Vec<&str> = outcome.stdout.lines().skip(1).collect();
    assert!(rows[0].contains("alive  ok ") && rows[1].contains("alive  failed "), "{rows:?}");
    // Without --check, the exit code tells nothing of it.
    assert_eq!(host.attachments(&[]).status, 0);
}

#[test]
fn a_network_that_knows_no_check_does_not_fail_it() {
    let host = Host::new();
    for (name, version, disable_check) in [("old", "0.3.1", false), ("quiet", "1.0.0", true)] {
        let plugins = json!([{"type": "loopback"}]);
        let config = json!({
            "cniVersion": version, "name": name, "disableCheck": disable_check, "plugins": plugins,
        });
        host.configure(&format!("{name}.conflist"), &config);
        host.world.container(name);
        host.cnibox(&["add", name, name, "-i", "lo"]).run().success();
    }
    let rows = host.attachments(&["--check"]).output();
    assert_eq!(rows.matches("unsupported").count(), 2, "{rows}");
}

#[test]
fn entries_of_other_runtimes_are_shown_and_damaged_ones_are_no_obstacle() {
    let host = host_with_one();
    let ours = host.cached("net-id1-eth0");
    // containerd writes the names of its capability arguments in its own case, and before libcni 1.2 no namespace.
    let mappings =
        json!([{"HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}]);
    let foreign = with(
        &without(&ours, "netns"),
        json!({
            "containerId": "pod", "capabilityArgs": {"portMappings": mappings}, "cniArgs": [["IgnoreUnknown", "1"]],
        }),
    );
    let write = |name: &str, text: &str| host.world.write(&format!("{RESULTS}/{name}"), text);
    write("net-pod-eth0", &foreign.to_string());
    write("net-half-eth0", &ours.to_string()[..40]);
    write("net-old-eth0", r#"{"cniVersion":"0.4.0"}"#);
    write("net-odd-eth0", &with(&ours, json!({"containerId": "../x"})).to_string());
    let outcome = host.attachments(&[]);
    let warnings = outcome.stderr.lines().filter(|line| line.contains("cannot use cache entry"));
    assert_eq!(warnings.count(), 3, "{}", outcome.report());
    let rows: Vec<String> = outcome.output().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows[1].contains("pod        eth0    10.1.0.2/24  80->8080/tcp"), "{rows:?}");
    assert!(rows[1].contains("  alive  ") && rows[1].ends_with("  /run/netns/c1"), "{rows:?}");
}

#[test]
fn text_from_an_entry_cannot_command_the_terminal() {
    let host = host_with_one();
    let entry = with(&host.cached("net-id1-eth0"), json!({"netns": "/run/\u{1b}[2J\nx"}));
    host.world.write(&format!("{RESULTS}/net-id1-eth0"), entry.to_string());
    let table = host.attachments(&[]).output();
    assert!(table.ends_with("/run/?[2J?x\n") && !table.contains('\u{1b}'), "{table}");
}
