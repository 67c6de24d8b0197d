//! What lives is found alive by the number of its network namespace, whatever else is seen of it.

use serde_json::json;

use super::evidence::{Maker, host};
use super::{CONFIGURATIONS, Host};

impl Host {
    /// Ends the namespace of a container that a program holds besides: its name is gone.
    pub(super) fn unname(&self, id: &str) {
        self.world.host(["umount", &format!("/run/netns/{id}")]);
        self.world.host(["rm", &format!("/run/netns/{id}")]);
    }
}

/// A socket in the namespace of its argument, held by a process that is in that of the host.
pub(super) const SOCKET: &str = "
import ctypes, os, socket, sys, time
host = os.open('/proc/self/ns/net', os.O_RDONLY)
container = os.open(sys.argv[1], os.O_RDONLY)
libc = ctypes.CDLL(None)
assert libc.setns(container, 0) == 0
held = socket.socket()
assert libc.setns(host, 0) == 0
os.close(container)
open('/run/held', 'w').close()
time.sleep(1000)";

#[test]
fn a_socket_alone_keeps_a_container_alive() {
    let host = host();
    for maker in [Maker::Cnibox, Maker::Libcni] {
        let container = host.world.container("c1");
        host.attach(maker, "c1", &container.netns());
        let holder = host.world.tool(&["python3", "-c", SOCKET, &container.netns()], None).start();
        host.world.eventually("the socket is held", || host.world.path("/run/held").exists());
        host.unname("c1");
        assert_eq!(host.life("c1"), "alive");
        host.cnibox(&["gc"]).run().silence();
        let exec = host.cnibox(&["exec", "c1", "--", "true"]).run();
        assert!(
            exec.stderr.contains("its network namespace is not at /run/netns/c1"),
            "{}",
            exec.report()
        );
        host.world.host(["kill", &holder.pid_in_world().to_string()]);
        holder.finish();
        host.world.host(["rm", "/run/held"]);
        host.world.eventually("it has ended", || host.life("c1") == "gone");
        host.gc_until_nothing_is_kept();
    }
}

#[test]
fn an_adopted_attachment_ends_with_its_namespace() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Go, "c1", &container.netns());
    // Nothing has looked at it yet.
    assert!(!host.world.path(host.record_of("net", "c1")).exists());
    assert_eq!(host.life("c1"), "alive");
    let record = host.world.read(&host.record_of("net", "c1"));
    assert!(record.contains(r#""maker":"adopted""#), "{record}");
    // It is out of sight, and the path is another container's. The kernel chose the number, for the reference's bridge.
    let holder = container.tool(["cat"]).keeping_stdin_open().start();
    host.unname("c1");
    let _other = host.world.container("c1");
    assert_eq!(host.life("c1"), "alive", "a process is in its namespace");
    host.cnibox(&["gc"]).run().silence();
    host.world.host(["kill", &holder.pid_in_world().to_string()]);
    holder.finish();
    host.world.eventually("it has ended", || host.life("c1") == "gone");
    assert_eq!(host.world.read(&host.record_of("net", "c1")), record);
    host.gc_until_nothing_is_kept();
}

#[test]
fn a_changed_cache_file_makes_an_adopted_record_void() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Go, "c1", &container.netns());
    assert_eq!(host.life("c1"), "alive");
    // The container was attached again by plugins that write no record.
    host.world.host(["touch", "/var/lib/cni/results/net-c1-eth0"]);
    assert_eq!(host.life("c1"), "alive", "it is at its path");
    container.exec(["ip", "link", "del", "eth0"]);
    assert_eq!(host.life("c1"), "unknown");
    container.destroy();
    assert_eq!(host.life("c1"), "gone", "nothing is at its path");
}

#[test]
fn the_capability_to_enter_namespaces_is_not_needed() {
    let host = host();
    let [living, ended] = ["c1", "c2"].map(|id| {
        let container = host.world.container(id);
        host.attach(Maker::Libcni, id, &container.netns());
        container
    });
    ended.destroy();
    let gc = host.cnibox(&["gc"]).under(&["setpriv", "--bounding-set=-sys_admin,-sys_ptrace"]);
    let said = gc.run().output();
    assert!(said.starts_with("removed eth0 of container c2"), "{said}");
    assert_eq!(host.ids(), ["c1"]);
    assert_eq!(living.addresses("eth0").len(), 1);
}

/// Calls gc as long as so many namespaces that no network knows end, and once more. It says nothing.
fn collect_while_others_end(host: &Host, count: usize) {
    let script = format!(
        "for n in $(seq {count}); do ip netns add o$n; ip link add v$n type veth peer name eth0 netns o$n; done
        while [ -e /run/ending ]; do sleep 0.01; done
        for n in $(seq {count}); do ip netns del o$n; done; echo >/run/ended"
    );
    host.world.write("/run/ending", "");
    let others = host.world.tool(&["sh", "-c", &script], None).start();
    let last = format!("v{count}");
    host.world.within(300, "they are there", || {
        host.world.tool(&["ip", "link", "show", &last], None).run().status == 0
    });
    host.world.host(["rm", "/run/ending"]);
    while !host.world.path("/run/ended").exists() {
        host.cnibox(&["gc"]).run().silence();
    }
    others.finish();
    host.cnibox(&["gc"]).run().silence();
}

#[test]
fn the_end_of_many_others_ends_nothing() {
    let host = host();
    let names: Vec<String> = (0..10).map(|number| format!("c{number}")).collect();
    let attach = |name: &String| {
        let container = host.world.container(name);
        host.attach(Maker::Libcni, name, &container.netns());
        container
    };
    let living: Vec<_> = names.iter().map(attach).collect();
    collect_while_others_end(&host, 300);
    assert_eq!(host.ids(), names);
    assert!(living.iter().all(|container| container.addresses("eth0").len() == 1));
}

/// More than a bridge has ports, and more than one datagram of a dump has links.
#[test]
fn of_1500_living_containers_none_ends_while_2000_others_do() {
    let host = Host::new();
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]]});
    let plugins = json!([{"type": "ptp", "ipam": ipam}]);
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}),
    );
    let attach = "for n in $(seq 1500); do
        ip netns add c$n && /run/bin/cnibox add net c$n --container-id c$n >/dev/null || exit 1; done";
    let environment = format!("NETCONFPATH={CONFIGURATIONS}");
    host.world.host(["env", &environment, "CNI_PATH=/run/plugins", "sh", "-c", attach]);
    let counts = || {
        let links = host.world.host(["ip", "-o", "link", "show", "type", "veth"]);
        (host.ids().len(), links.lines().count())
    };
    assert_eq!(counts(), (1500, 1500));
    host.cnibox(&["gc"]).run().silence();
    collect_while_others_end(&host, 2000);
    assert_eq!(counts(), (1500, 1500));
}

#[test]
fn a_node_that_is_a_container_is_an_observer_of_its_own() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Cnibox, "c1", &container.netns());
    // Its next life: another network namespace, with the same directories.
    let gc = |more: &[&str]| {
        let words = [&["gc"], more].concat();
        host.cnibox(&words).under(&["unshare", "--net"]).run()
    };
    gc(&[]).silence();
    let refused = gc(&["--none-alive"]);
    let why = "cannot remove all attachments: eth0 of container c1 in network net is alive";
    assert!(refused.status == 1 && refused.stderr.contains(why), "{}", refused.report());
    host.unname("c1");
    gc(&[]).silence();
    assert_eq!(host.ids(), ["c1"]);
    let said = gc(&["--none-alive"]).output();
    assert!(
        said.starts_with("removed eth0 of container c1 from network net: forced by the operator"),
        "{said}"
    );
    assert_eq!(host.kept(), [""; 0]);
    assert!(!host.world.path("/var/lib/cni/networks/net/10.1.0.2").exists());
}

#[test]
fn an_add_that_was_killed_and_lost_its_record_is_removed_by_the_operator() {
    let host = host();
    let container = host.world.container("c1");
    host.attach(Maker::Cnibox, "c1", &container.netns());
    host.cnibox(&["del", "net", "c1", "--container-id", "c1"]).run().silence();
    let before = host.state();
    let inject = "inject=rename:signal=KILL:when=1";
    for remove in [&["gc", "--unknown", "net/c1/eth0"][..], &["gc", "--none-alive"]] {
        let add = host.cnibox(&["add", "net", "c1", "--container-id", "c1"]);
        add.under(&["strace", "-qq", "-o", "/run/trace", "-e", inject]).run();
        assert!(host.has_interrupted());
        let reserved = || host.world.host(["ls", "/var/lib/cni/networks/net"]).contains("10.1.");
        assert!(reserved());
        // Without a record, a path at which there is a plain file proves no end.
        host.world.host(["rm", "/var/lib/cni/attachments/net+c1+eth0"]);
        host.world.host(["umount", "/run/netns/c1"]);
        host.cnibox(&["gc"]).run().silence();
        assert!(reserved());
        host.cnibox(remove).run().output();
        assert_eq!(host.kept(), [""; 0]);
        assert!(!reserved());
        host.world.host(["rm", "/run/netns/c1"]);
        host.world.container("c1");
        before.assert_same(&host.state(), &remove.join(" "));
    }
}
