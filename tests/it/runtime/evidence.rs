//! Things out of sight are not gone: nothing removes an attachment that may live, from whatever namespace it looks, and one gc
//! from the host removes all that have ended.

use serde_json::{Value, json};

use super::{Host, list};
use crate::world::{Container, Running, World, parse, with};

/// The runtime that attaches a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Maker {
    /// `cnibox add`.
    Cnibox,
    /// Another runtime with our plugins.
    Libcni,
    /// Another runtime with the reference's plugins, which keep no record of the namespace.
    Go,
}

pub(super) const MAKERS: [Maker; 3] = [Maker::Cnibox, Maker::Libcni, Maker::Go];
const GO_PLUGINS: &str = "/usr/lib/cni";

/// The only plugin of the network, with a gateway, so that a host can be reached.
fn bridge() -> Value {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]});
    json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam})
}

pub(super) fn host() -> Host {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host
}

fn network() -> Value {
    let mut network = list("0.4.0", &[]);
    network["plugins"] = json!([bridge()]);
    network
}

impl Host {
    /// Attaches a namespace as libcni does it: the plugin, then the entry of the cache.
    fn attach_by_libcni(&self, id: &str, netns: &str, directory: &str) {
        let mut config = bridge();
        config["name"] = "net".into();
        config["cniVersion"] = "0.4.0".into();
        let call = self.world.call("bridge", "ADD", &config).of_directory(directory);
        let call = call.env("CNI_CONTAINERID", id).env("CNI_NETNS", netns);
        let result = call.env("CNI_IFNAME", "eth0").run().success();
        self.remember(id, netns, &network(), &result);
    }

    pub(super) fn attach(&self, maker: Maker, id: &str, netns: &str) {
        match maker {
            Maker::Cnibox => {
                let add = ["add", "net", netns, "--container-id", id];
                self.cnibox(&add).run().success();
            }
            Maker::Libcni => self.attach_by_libcni(id, netns, "/run/plugins"),
            Maker::Go => self.attach_by_libcni(id, netns, GO_PLUGINS),
        }
    }

    /// The state of an attachment in `cnibox attachments`.
    pub(super) fn life(&self, id: &str) -> String {
        let document = parse(&self.cnibox(&["attachments", "--json"]).run().output());
        let all = document["attachments"].as_array().unwrap();
        let found = all.iter().find(|entry| entry["containerID"] == id);
        found.map_or("nothing", |entry| entry["state"].as_str().unwrap()).to_owned()
    }

    pub(super) fn ids(&self) -> Vec<String> {
        let files = self.world.host(["ls", "/var/lib/cni/results"]);
        let id = |file: &str| Some(file.strip_prefix("net-")?.strip_suffix("-eth0")?.to_owned());
        files.split_whitespace().filter_map(id).collect()
    }
}

/// A process in a network namespace of its own, which no mount holds.
fn process(world: &World) -> Running {
    let script = "ip link set lo up && echo >/run/ready && exec sleep 1000";
    world.host(["rm", "-f", "/run/ready"]);
    let process = world.tool(&["unshare", "--net", "sh", "-c", script], None).start();
    world.eventually("the process runs", || world.path("/run/ready").exists());
    process
}

/// The namespaces from which gc is called. Each is a shell script that ends with the call.
const VIEWS: [(&str, &str); 14] = [
    ("the host", r#""$@""#),
    ("another mount namespace", r#"exec unshare --mount "$@""#),
    (
        "a mount namespace without the mounts of the namespaces",
        r#"exec unshare --mount sh -c 'umount -a -t nsfs; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace without /proc",
        r#"exec unshare --mount sh -c 'mount -t tmpfs none /proc; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace with the /proc of another PID namespace",
        r#"exec unshare --mount sh -c 'umount -l /proc; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace with an empty /run/netns",
        r#"exec unshare --mount sh -c 'mount -t tmpfs none /run/netns; exec "$@"' sh "$@""#,
    ),
    ("a PID namespace with the /proc of the host", r#"exec unshare --pid --fork "$@""#),
    ("a PID namespace with its own /proc", r#"exec unshare --pid --fork --mount-proc "$@""#),
    ("a network namespace", r#"exec unshare --net "$@""#),
    ("a user namespace", r#"exec unshare --user --map-root-user --mount "$@""#),
    (
        "a PID namespace with the volumes of a pod",
        r#"exec unshare --pid --fork --mount-proc sh -c 'mount --bind /var/lib/cni /var/lib/cni; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace with a file over the boot id",
        r#"exec unshare --mount sh -c 'cat /proc/sys/kernel/random/uuid >/run/id
            mount --bind /run/id /proc/sys/kernel/random/boot_id; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace with another file of proc over the boot id",
        r#"exec unshare --mount sh -c 'cd /proc/sys/kernel/random; mount --bind uuid boot_id; exec "$@"' sh "$@""#,
    ),
    (
        "a mount namespace with a directory above the boot id",
        r#"exec unshare --mount sh -c 'cat /proc/sys/kernel/random/uuid >/run/id; mkdir -p /run/random
            cp /run/id /run/random/boot_id; mount --bind /run/random /proc/sys/kernel/random; exec "$@"' sh "$@""#,
    ),
];

/// Changes that a living container makes to its interface.
const CHANGES: [(&str, &str); 8] = [
    ("plain", "true"),
    ("down", "ip link set eth0 down"),
    ("renamed", "ip link set eth0 down; ip link set eth0 name net7; ip link set net7 up"),
    ("flushed", "ip address flush dev eth0"),
    ("mac", "ip link set eth0 address 02:00:00:00:00:99"),
    ("hidden", "ip address flush dev eth0; ip link set eth0 down; ip link set eth0 name vm0"),
    ("moved", "ip link set eth0 netns elsewhere"),
    ("taken", "ip link del eth0"),
];

#[test]
fn gc_removes_nothing_that_may_live_from_whatever_namespace() {
    let host = host();
    host.world.container("elsewhere");
    let mut living: Vec<String> = Vec::new();
    let mut containers: Vec<Container<'_>> = Vec::new();
    for maker in MAKERS {
        for (change, script) in CHANGES {
            let id = format!("{maker:?}-{change}").to_lowercase();
            let container = host.world.container(&id);
            host.attach(maker, &id, &container.netns());
            // Links with the same name cannot be in one namespace.
            let script = script.replace(
                "eth0 netns elsewhere",
                "eth0 name gone; ip link set gone netns elsewhere name eth-$$",
            );
            container.exec(["sh", "-ec", &script]);
            living.push(id);
            containers.push(container);
        }
        let process = process(&host.world);
        let id = format!("{maker:?}-process").to_lowercase();
        host.attach(maker, &id, &format!("/proc/{}/ns/net", process.pid_in_world()));
        living.push(id);
        // It lives as long as the world.
        std::mem::forget(process);
    }
    living.sort();
    assert_eq!(host.ids(), living);
    for (view, script) in VIEWS {
        for command in ["gc", "gc --confirm", "doctor --fix --yes", "ipam release --leaks"] {
            // Each run with --confirm is far enough after that of the last view.
            host.wait(700);
            let call = format!("set -- /run/bin/cnibox {command}; {script}");
            let call = host.world.tool(&["sh", "-c", &call], None).env("NETCONFPATH", "/run/net.d");
            let outcome = call.env("CNI_PATH", "/run/plugins").run();
            assert_eq!(host.ids(), living, "{view}: {}", outcome.report());
            let reserved = host.world.host(["ls", "/var/lib/cni/networks/net"]);
            let addresses = reserved.split_whitespace().filter(|name| name.starts_with("10."));
            assert_eq!(addresses.count(), living.len(), "{view}: {}", outcome.report());
        }
    }
    for id in &living {
        let expected = match id.split_once('-').unwrap() {
            // The record has the number of the namespace.
            ("cnibox" | "libcni", _) => "alive",
            // The interface was seen.
            (_, "plain" | "down" | "renamed" | "process") => "alive",
            _ => "unknown",
        };
        assert_eq!(host.life(id), expected, "{id}");
    }
}

#[test]
fn all_that_have_ended_go_with_one_gc() {
    let host = host();
    let mut processes: Vec<Running> = Vec::new();
    for maker in MAKERS {
        let name = |what: &str| format!("{maker:?}-{what}").to_lowercase();
        for end in ["destroyed", "unmounted", "replaced"] {
            let container = host.world.container(&name(end));
            host.attach(maker, &name(end), &container.netns());
            match end {
                "destroyed" => container.destroy(),
                "unmounted" => {
                    // An empty file may be the mount of another mount namespace. But it was seen alive, and so it got a record.
                    assert_eq!(host.life(&name(end)), "alive");
                    container.unmount();
                }
                // Without a record nothing tells one namespace from another.
                _ if maker == Maker::Go => container.destroy(),
                _ => {
                    container.destroy();
                    host.world.container(&name(end));
                }
            }
        }
        for end in ["ended", "reused"] {
            let process = process(&host.world);
            let number = process.pid_in_world();
            host.attach(maker, &name(end), &format!("/proc/{number}/ns/net"));
            // In a PID namespace of its own, gc cannot tell that nobody sees such a path: it was seen alive, too.
            assert_eq!(host.life(&name(end)), "alive");
            host.world.host(["kill", "-KILL", &number.to_string()]);
            process.finish();
            // As above: the clock may have been set since.
            if end == "reused" && maker != Maker::Go {
                processes.push(process_of_number(&host.world, number));
            }
        }
    }
    assert_eq!(host.ids().len(), 15);
    let removed = std::cell::Cell::new(0);
    // The kernel ends a namespace a moment after the last process that used it.
    host.world.eventually("all are removed", || {
        let lines = host.cnibox(&["gc"]).run().output().lines().count();
        removed.set(removed.get() + lines);
        host.ids().is_empty()
    });
    assert_eq!(removed.get(), 15);
    assert_eq!(host.kept(), [""; 0]);
    assert!(processes.iter_mut().all(Running::is_running));
}

/// A process of this number in a namespace of its own. The kernel tells when it began in hundredths of a second.
fn process_of_number(world: &World, number: u32) -> Running {
    let script = format!(
        "sleep 0.02; echo {} >/proc/sys/kernel/ns_last_pid; ip link set lo up; echo >/run/ready; exec sleep 1000",
        number - 1
    );
    // The shell sets the last number, and starts the process.
    let script = script
        .replace("ip link", "unshare --net sh -c 'ip link")
        .replace("sleep 1000", "sleep 1000'");
    world.host(["rm", "-f", "/run/ready"]);
    let process = world.tool(&["sh", "-c", &script], None).start();
    world.eventually("the process runs", || world.path("/run/ready").exists());
    assert!(world.path(format!("/proc/{number}/ns/net")).exists(), "the number is in use again");
    process
}

#[test]
fn a_record_of_an_earlier_attachment_proves_nothing() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Cnibox, "c1", &container.netns());
    let record = host.record_of("net", "c1");
    let stale = host.world.read(&record);
    // Plugins that keep no record delete and attach.
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    host.world.write(&record, stale);
    container.destroy();
    let container = host.world.container("c1");
    host.attach(Maker::Go, "c1", &container.netns());
    container.exec([
        "sh",
        "-c",
        "ip address flush dev eth0; ip link set eth0 down; ip link set eth0 name vm0",
    ]);
    assert_eq!(host.life("c1"), "unknown");
    host.cnibox(&["gc"]).run().silence();
    assert_eq!(host.ids(), ["c1"]);
    let add = host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
    assert!(
        add.status == 1 && add.stderr.contains("it may be attached already"),
        "{}",
        add.report()
    );
    assert_eq!(host.ids(), ["c1"]);
}

#[test]
fn a_newer_entry_makes_an_interrupted_operation_void() {
    let host = host();
    for maker in [Maker::Libcni, Maker::Go] {
        let container = host.world.container("c1");
        host.attach(Maker::Cnibox, "c1", &container.netns());
        let record = host.world.read(&host.record_of("net", "c1"));
        host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
        // The record of an ADD that was killed before the other runtime began.
        let is_of_begin = |line: &&str| !line.contains("macs") && !line.contains("added");
        let begin: Vec<&str> = record.lines().filter(is_of_begin).collect();
        host.world.write(&host.record_of("net", "c1"), begin.join("\n") + "\n");
        assert!(host.has_interrupted());
        host.attach(maker, "c1", &container.netns());
        let add = host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
        assert!(add.stderr.contains("attached already"), "{}", add.report());
        host.cnibox(&["gc"]).run().silence();
        assert_eq!((host.ids(), host.life("c1")), (vec!["c1".to_owned()], "alive".to_owned()));
        host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
        assert_eq!(host.kept(), [""; 0]);
        container.destroy();
    }
}

/// A release up to 0.2.0 noted the request in /run/cnibox.
#[test]
fn an_interrupted_add_of_an_earlier_release_is_deleted_by_the_next_one() {
    let host = host();
    let container = host.world.container("c1");
    let add = || host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run();
    add().success();
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    let before = host.state();
    host.attach(Maker::Cnibox, "c1", &container.netns());
    let path = host.record_of("net", "c1");
    host.world.host(["sed", "-i", "/macs/d; /added/d; /^{\"kind\"/d", &path]);
    host.world.host(["rm", "/var/lib/cni/results/net-c1-eth0"]);
    host.cnibox(&["gc"]).run().silence();
    assert!(host.world.path(&path).exists());
    add().success();
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
    before.assert_same(&host.state(), "del");
}

#[test]
fn the_removal_of_one_interface_leaves_the_address_of_another_one() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Cnibox, "c1", &container.netns());
    let address = "/var/lib/cni/networks/net/10.1.0.2";
    // As old releases of the reference wrote it.
    host.world.write(address, "c1");
    let number = r#"s/eth0/eth1/; s/"number":[0-9]*,//; s/ [0-9]*","observer/ 1","observer/; /^{"kind"/d; /macs/d"#;
    let copy = "cd /var/lib/cni/attachments && sed \"$0\" net+c1+eth0 >net+c1+eth1";
    host.world.host(["sh", "-c", copy, number]);
    host.cnibox(&["gc", "--unknown", "net/c1/eth1"]).run().output();
    assert!(!host.world.path("/var/lib/cni/attachments/net+c1+eth1").exists());
    assert!(host.world.path(address).exists());
}

#[test]
fn a_gc_that_is_disabled_releases_no_address() {
    let host = host();
    let network = with(&network(), json!({"disableGC": true}));
    host.configure("1.conflist", &network);
    let containers = ["c1", "c2"].map(|name| host.world.container(name));
    for container in containers {
        host.attach(Maker::Cnibox, &container.name, &container.netns());
        container.destroy();
    }
    // Only the record of this one has the list.
    host.world.host(["rm", "/var/lib/cni/results/net-c2-eth0"]);
    host.world.eventually("their links are gone", || host.world.ports_of("cni0").is_empty());
    let before = host.state();
    host.cnibox(&["gc"]).run().silence();
    host.cnibox(&["gc", "--dry-run"]).run().silence();
    before.assert_same(&host.state(), "gc");
    assert_eq!(host.kept().len(), 5, "{:?}", host.kept());
}

#[test]
fn the_operator_removes_one_attachment_that_may_live() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Go, "c1", &container.netns());
    let remove =
        |more: &[&str]| host.cnibox(&[&["gc", "--unknown", "net/c1/eth0"], more].concat()).run();
    let refused = remove(&[]);
    assert!(refused.status == 1 && refused.stderr.contains("it is alive"), "{}", refused.report());
    host.world.host(["rm", &host.record_of("net", "c1")]);
    container.exec(["ip", "link", "del", "eth0"]);
    host.cnibox(&["gc"]).run().silence();
    let said = remove(&["--dry-run"]).output();
    let why = "forced by the operator, although it has no record, and its interface is not in /run/netns/c1";
    assert!(said.starts_with("would remove") && said.contains(why), "{said}");
    assert_eq!(host.ids(), ["c1"]);
    assert!(remove(&[]).output().starts_with("removed eth0 of container c1 from network net"));
    assert_eq!(host.ids(), [""; 0]);
    assert!(!host.world.path("/var/lib/cni/networks/net/10.1.0.2").exists());
    let missing = remove(&[]);
    assert!(missing.stderr.contains("it is not attached"), "{}", missing.report());
    for wrong in [&["gc", "--unknown", "net/c1"][..], &["gc", "net", "--unknown", "net/c1/eth0"]] {
        assert_eq!(host.cnibox(wrong).run().status, 2);
    }
}

#[test]
fn a_command_enters_only_a_container_that_lives() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Cnibox, "pod1", &container.netns());
    let exec = |target: &str| host.cnibox(&["exec", target, "--", "ip", "-o", "address"]).run();
    assert!(exec("pod1").output().contains("10.1.0.2/16"));
    container.exec(["ip", "link", "del", "eth0"]);
    exec("pod1").output();
    host.world.host(["rm", &host.record_of("net", "pod1")]);
    let unknown = exec("pod1");
    assert!(
        unknown.stderr.contains("cannot enter container pod1: it may have ended"),
        "{}",
        unknown.report()
    );
    // A later process has the number of that of the container, and is in the namespace of the host.
    let process = process(&host.world);
    let number = process.pid_in_world();
    for maker in MAKERS {
        let id = format!("pod-{maker:?}").to_lowercase();
        host.attach(maker, &id, &format!("/proc/{number}/ns/net"));
        // Only one interface of a name fits.
        host.world.host([
            "nsenter",
            &format!("--net=/proc/{number}/ns/net"),
            "ip",
            "link",
            "del",
            "eth0",
        ]);
    }
    host.world.host(["kill", "-KILL", &number.to_string()]);
    process.finish();
    let script = format!("echo {} >/proc/sys/kernel/ns_last_pid; sleep 1000", number - 1);
    let _later = host.world.tool(&["sh", "-c", &script], None).start();
    host.world.eventually("the number is in use again", || {
        host.world.path(format!("/proc/{number}/comm")).exists()
    });
    for maker in MAKERS {
        let outcome = exec(&format!("pod-{maker:?}").to_lowercase());
        assert_eq!((outcome.status, &*outcome.stdout), (1, ""), "{}", outcome.report());
        assert!(outcome.stderr.contains("cannot enter container pod-"), "{}", outcome.report());
    }
    let refused = exec("/proc/1/ns/net");
    assert!(refused.stderr.contains("it is the namespace of the host"), "{}", refused.report());
}

#[test]
fn two_attachments_with_one_cache_file_do_not_replace_each_other() {
    let host = Host::new();
    for (file, name, bridge_name) in [("1.conflist", "a-b", "cni0"), ("2.conflist", "a", "cni1")] {
        let mut network = network();
        network["name"] = name.into();
        network["plugins"][0]["bridge"] = bridge_name.into();
        host.configure(file, &network);
    }
    let (one, two) = (host.world.container("one"), host.world.container("two"));
    let add = |network: &str, id: &str, of: &Container<'_>| {
        host.cnibox(&["add", network, &of.netns(), "--container-id", id]).run()
    };
    add("a-b", "c", &one).success();
    let refused = add("a", "b-c", &two);
    let why = "cannot add eth0 of container b-c in network a: eth0 of container c in network a-b has its cache file";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}", refused.report());
    host.cnibox(&["check", "a-b", "one", "--container-id", "c"]).run().silence();
    // DEL of what is not there leaves the other's file and records.
    host.cnibox(&["del", "a", "two", "--container-id", "b-c"]).run().output();
    host.cnibox(&["check", "a-b", "one", "--container-id", "c"]).run().silence();
    assert!(host.world.path(host.record_of("a-b", "c")).exists());
    one.destroy();
    add("a", "b-c", &two).success();
    host.cnibox(&["del", "a", "two", "--container-id", "b-c"]).run().silence();
}

#[test]
fn gc_removes_the_record_of_an_attachment_that_the_reference_has_deleted() {
    let host = host();
    let [living, ended] = ["c1", "c2"].map(|id| {
        let container = host.world.container(id);
        host.attach(Maker::Libcni, id, &container.netns());
        (container, host.record_of("net", id))
    });
    let mut config = bridge();
    config["name"] = "net".into();
    config["cniVersion"] = "0.4.0".into();
    ended.0.call("bridge", "DEL", &config).of_directory(GO_PLUGINS).run().silence();
    host.world.host(["rm", "/var/lib/cni/results/net-c2-eth0"]);
    let is_there = |path: &str| host.world.path(path).exists();
    assert!(is_there(&living.1) && is_there(&ended.1));
    let damaged = host.record_of("net", "damaged");
    host.world.write(&damaged, "{");
    let outcome = host.cnibox(&["gc"]).run();
    assert!(outcome.status == 0 && outcome.stderr.contains(&damaged), "{}", outcome.report());
    assert!(is_there(&damaged));
    let command = "cnibox gc --unknown net/damaged/eth0 removes it";
    assert!(outcome.stderr.contains(command), "{}", outcome.report());
    host.cnibox(&["gc", "--unknown", "net/damaged/eth0"]).run().output();
    assert!(!is_there(&damaged));
    // Its namespace is still there.
    assert!(is_there(&ended.1));
    ended.0.destroy();
    for _ in 0..2 {
        host.wait(700);
        host.cnibox(&["gc", "--confirm"]).run().output();
    }
    assert!(is_there(&living.1) && !is_there(&ended.1));
}
