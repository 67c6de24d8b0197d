//! `cnibox reconcile --watch`: what another program removes comes back by itself, and the watcher sleeps otherwise.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::Host;
use super::reattached::{add_by_go, add_chain, bridge, chained, del_chain};
use super::reconciled::{host_with_two, network, routed};
use crate::portmap::udp::{ask_again, connections};
use crate::portmap::{ask, elements, serve};
use crate::world::{Connection, Running, echo, with};

const LOG: &str = "/run/watch.log";
/// The limit for a repair, in seconds. The machine may be busy.
const REPAIR_S: u64 = 90;

/// A watcher that has said that it is ready.
struct Watcher<'h> {
    host: &'h Host,
    running: Running,
}

impl<'h> Watcher<'h> {
    fn start(host: &'h Host) -> Self {
        let path = host.world.path("/run/notify");
        let _ = fs::remove_file(&path); // of an earlier watcher
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(REPAIR_S))).unwrap();
        let call = host.cnibox(&["reconcile", "--watch"]).env("NOTIFY_SOCKET", "/run/notify");
        let running = call.under(&["sh", "-c", &format!("exec \"$0\" \"$@\" 2>>{LOG}")]).start();
        let mut text = [0; 64];
        let length = socket.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1");
        Self { host, running }
    }

    fn log(&self) -> String {
        self.host.world.read(LOG)
    }

    fn signal(&self, signal: Signal) {
        kill(self.running.pid(), signal).unwrap();
    }

    /// Ends it. Returns its log.
    fn end(self, signal: Signal) -> String {
        self.signal(signal);
        let log = self.log();
        self.running.finish().silence();
        log
    }

    /// The number of lines in the log that begin so.
    fn count(&self, start: &str) -> usize {
        self.log().lines().filter(|line| line.starts_with(start)).count()
    }

    /// Waits for a line in the log.
    #[track_caller]
    fn says(&self, start: &str) {
        self.host.world.within_or(REPAIR_S, || self.count(start) > 0, || self.log());
    }

    /// How often the process has begun to wait.
    fn waits(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    /// Waits until nothing wakes the watcher for a second and a half.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "there is no event for a process that sleeps")]
    fn sleeps(&self) {
        self.host.world.within(REPAIR_S, "the watcher sleeps", || {
            let before = self.waits();
            std::thread::sleep(Duration::from_millis(1500));
            self.waits() == before
        });
    }

    #[track_caller]
    fn restores(&self, before: &[String], change: &str) {
        let is_as_before = || self.host.lines() == before;
        self.host.world.within_or(REPAIR_S, is_as_before, || {
            format!("{change}: {}\n{:#?}", self.log(), self.host.lines())
        });
    }
}

#[test]
fn connections_go_on_during_a_flush_of_all_rules() {
    let host = Host::new();
    let [outside, c1, _] = host_with_two(&host);
    serve(&c1, "tcp", 80);
    serve(&c1, "udp", 53);
    echo(&c1, 81);
    let watcher = Watcher::start(&host);
    let open = [("four", "TCP:192.0.2.1:8081"), ("six", "TCP:[fd00:2::1]:8081")]
        .map(|(name, target)| Connection::open(&outside, name, target));
    let datagrams = || {
        for address in ["192.0.2.1", "fd00:2::1"] {
            assert_eq!(ask_again(&host.world, &outside, address, 8053), "c1");
        }
    };
    datagrams();
    let before = host.lines();
    // The watcher does nothing in the gap. Stopped within a look, it would begin with another container.
    watcher.sleeps();
    watcher.signal(Signal::SIGSTOP);
    host.world.host(["nft", "flush", "ruleset"]);
    open.iter().for_each(|connection| connection.carries("second"));
    datagrams();
    watcher.signal(Signal::SIGCONT);
    watcher.restores(&before, "a flush of all rules");
    for address in ["192.0.2.1", "fd00:2::1"] {
        let answer = ask(&host.world, Some(&outside.netns()), "tcp", address, 8080);
        assert!(answer.starts_with("c1 "), "{answer}");
    }
    open.iter().for_each(|connection| connection.carries("third"));
    datagrams();
    let log = watcher.end(Signal::SIGTERM);
    for (container, plugin) in
        ["c1", "c2"].iter().flat_map(|c| ["bridge", "portmap", "firewall"].map(|p| (c, p)))
    {
        let line = format!("restored eth0 of container {container} in network net: {plugin}: ");
        assert!(log.contains(&line), "{line}: {log}");
    }
}

/// Connection tracking has noted that the first packet was not translated.
#[test]
fn a_connection_of_a_container_that_begins_in_the_gap_is_masqueraded_after_it() {
    let host = Host::new();
    let [outside, c1, _] = host_with_two(&host);
    // No answer comes to the container's own address.
    outside.exec(["ip", "route", "flush", "via", "192.0.2.1"]);
    outside.exec(["ip", "-6", "route", "flush", "via", "fd00:2::1"]);
    echo(&outside, 81);
    let watcher = Watcher::start(&host);
    watcher.signal(Signal::SIGSTOP);
    host.world.host(["nft", "flush", "ruleset"]);
    let begun = [("four", "TCP:192.0.2.2:81"), ("six", "TCP:[fd00:2::2]:81")]
        .map(|(name, target)| Connection::begin(&c1, name, target));
    host.world.eventually("both have sent a packet", || {
        connections(&host.world).matches("dport=81 [UNREPLIED]").count() == 2
    });
    watcher.signal(Signal::SIGCONT);
    begun.iter().for_each(|connection| connection.carries("first"));
}

#[test]
fn each_change_is_restored_and_then_the_watcher_sleeps() {
    let host = Host::new();
    let [_outside, _c1, _c2] = host_with_two(&host);
    host.configure("2.conflist", &routed("veth"));
    host.world.container("c3");
    host.attach_as("routed", "c3", &[]);
    let watcher = Watcher::start(&host);
    watcher.sleeps();
    let end = host.world.ports_of("cni0").remove(0);
    let veth = host.cached("routed-c3-eth0")["result"]["interfaces"][0]["name"].clone();
    let before = host.lines();
    for change in [
        "nft delete table ip cnibox",
        "nft flush chain ip cnibox masquerade-srcnat",
        "iptables-nft -F CNI-FORWARD",
        "echo 0 >/proc/sys/net/ipv4/ip_forward",
        "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding",
        "ip address del 10.1.0.1/24 dev cni0",
        "ip route del 10.2.0.2 dev VETH",
        "ip -6 route del fd00:4::2 dev VETH",
        "tc qdisc del dev END root",
    ] {
        let change = change.replace("END", &end).replace("VETH", veth.as_str().unwrap());
        host.world.host(["sh", "-ec", &change]);
        watcher.restores(&before, &change);
    }
    watcher.sleeps();
    assert!(!watcher.end(Signal::SIGINT).contains("left "));
}

#[test]
fn a_killed_process_that_answers_names_is_started_again_at_once() {
    let host = Host::new();
    host.cnibox(&["networks", "create", "shop", "--names"]).run().output();
    host.cnibox(&["add", "shop", "web", "--create"]).run().output();
    let watcher = Watcher::start(&host);
    let processes = || host.world.host(["sh", "-c", "pgrep -x aardvark-dns || true"]);
    for _ in 0..3 {
        watcher.sleeps();
        let killed = processes();
        host.world.host(["kill", "-9", killed.trim()]);
        let is_another = || !["", &*killed].contains(&&*processes());
        host.world.within_or(REPAIR_S, is_another, || watcher.log());
    }
    let restored = "restored eth0 of container ";
    host.world.within_or(REPAIR_S, || watcher.count(restored) == 3, || watcher.log());
    assert!(watcher.log().contains(": dnsname: aardvark-dns does not run"), "{}", watcher.log());
    host.cnibox(&["del", "shop", "web", "--delete"]).run().output();
    watcher.sleeps();
    watcher.end(Signal::SIGTERM);
    assert_eq!(processes(), "");
}

#[test]
fn a_pause_keeps_what_the_administrator_does_until_its_end() {
    let host = Host::new();
    let [_, _, c2] = host_with_two(&host);
    // What attachments share names the one that was restored first.
    host.cnibox(&["del", "net", &c2.name, "--container-id", &c2.name]).run().silence();
    let watcher = Watcher::start(&host);
    watcher.sleeps();
    let before = host.lines();
    let flush = || host.world.host(["nft", "flush", "ruleset"]);
    host.reconcile(&["--pause", "3600"]).silence();
    flush();
    watcher.sleeps();
    assert_eq!(watcher.log(), "");
    let said = host.reconcile(&["--pause", "0"]).output();
    watcher.restores(&before, "the end of a pause");
    // The watcher sees the end of the pause, too.
    let said = said + &watcher.log();
    assert!(said.contains("restored eth0 of container c1 in network net:"), "{said}");
    flush();
    watcher.restores(&before, "a flush after the pause");
    host.reconcile(&["--pause", "5"]).silence();
    flush();
    watcher.restores(&before, "the end of a short pause");
    // A damaged file, and one of another boot, are no pause.
    for text in ["", "{\"boot\":\"another\",\"until\":99999999999}"] {
        host.world.write("/run/cnibox/pause", text);
        host.world.host(["nft", "delete", "table", "bridge", "cnibox"]);
        watcher.restores(&before, text);
    }
    // A file that cannot be read may have a pause.
    host.world.host(["sh", "-ec", "rm /run/cnibox/pause; mkdir /run/cnibox/pause"]);
    host.world.host(["nft", "delete", "table", "bridge", "cnibox"]);
    watcher.says("warning: cannot read /run/cnibox/pause");
    assert!(host.lines() != before, "{}", watcher.log());
    host.world.host(["rmdir", "/run/cnibox/pause"]);
    watcher.restores(&before, "the end of a pause that could not be read");
    for words in [&["--pause", "86401"][..], &["--pause", "1", "--watch"], &["--watch", "net"]] {
        assert_eq!(host.reconcile(words).status, 2, "{words:?}");
    }
}

/// A program that removes something every 300 ms, until it is dropped.
struct Storm(Running);

impl Storm {
    fn start(host: &Host, command: &str) -> Self {
        let script = format!("while :; do {command} 2>/dev/null; sleep 0.3; done");
        Self(host.world.tool(&["sh", "-c", &script], None).start())
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        kill(self.0.pid(), Signal::SIGKILL).unwrap();
    }
}

#[test]
fn a_program_that_deletes_the_table_delays_only_its_objects_until_it_ends() {
    let host = Host::new();
    host_with_two(&host);
    host.configure("2.conflist", &routed("veth"));
    host.world.container("c3");
    host.attach_as("routed", "c3", &[]);
    let veth = host.cached("routed-c3-eth0")["result"]["interfaces"][0]["name"].clone();
    let watcher = Watcher::start(&host);
    let before = host.lines();
    let storm = Storm::start(&host, "nft delete table ip cnibox");
    watcher.says("left table ip cnibox for ");
    // Meanwhile what others remove comes back.
    let veth = veth.as_str().unwrap();
    let show = ["ip", "-6", "route", "show", "fd00:4::2"];
    host.world.host(["ip", "-6", "route", "del", "fd00:4::2", "dev", veth]);
    host.world.within_or(REPAIR_S, || !host.world.host(show).is_empty(), || watcher.log());
    let sources = ["nft", "list", "map", "ip6", "cnibox", "masquerade-sources"];
    host.world.host(["nft", "flush", "map", "ip6", "cnibox", "masquerade-sources"]);
    let are_there = || host.world.host(sources).matches(" eth0\"").count() == 3;
    host.world.within_or(REPAIR_S, are_there, || watcher.log());
    for words in [&["reconcile", "--dry-run"][..], &["doctor"]] {
        let says = || {
            let said = host.cnibox(words).run();
            let said = said.stdout.clone() + &said.stderr;
            said.contains("the watcher leaves table ip cnibox for ")
                && said.contains(" repairs in a row did not last")
        };
        host.world.within(REPAIR_S, "the command names the table", says);
    }
    assert_eq!(watcher.count("left eth0 of container "), 0, "{}", watcher.log());
    drop(storm);
    watcher.restores(&before, "the end of the storm");
    let log = watcher.end(Signal::SIGTERM);
    assert_eq!(host.reconcile(&[]).output(), "", "{log}");
}

#[test]
fn a_shared_rule_counts_for_no_attachment() {
    let host = Host::new();
    host_with_two(&host);
    let watcher = Watcher::start(&host);
    let before = host.lines();
    let flush = ["nft", "flush", "chain", "ip", "cnibox", "masquerade-srcnat"];
    let storm = Storm::start(&host, &flush.join(" "));
    let left = "left chain masquerade-srcnat of table ip cnibox for ";
    // The first pauses are too short for a look beside a busy processor.
    let is_last = |line: &str| line.starts_with(left) && line.contains(": 7 repairs in a row");
    host.world.within_or(REPAIR_S, || watcher.log().lines().any(is_last), || watcher.log());
    // An element of one attachment in the same table comes back.
    let map = ["nft", "list", "map", "ip", "cnibox", "portmap-published"];
    host.world.host(["nft", "flush", "map", "ip", "cnibox", "portmap-published"]);
    let are_there = || host.world.host(map).matches(" eth0\"").count() == 4;
    host.world.within_or(REPAIR_S, are_there, || watcher.log());
    drop(storm);
    watcher.restores(&before, "the end of the storm");
    assert_eq!(watcher.count("left "), watcher.count(left), "{}", watcher.log());
    watcher.end(Signal::SIGTERM);
}

#[test]
fn an_administrator_who_reloads_six_times_has_all_rules_back_at_the_end() {
    let host = Host::new();
    host_with_two(&host);
    let watcher = Watcher::start(&host);
    let before = host.lines();
    let restored = "restored eth0 of container c2 in network net: firewall: ";
    for reload in 0..6 {
        host.world.host(["nft", "flush", "ruleset"]);
        if reload < 5 {
            let count = watcher.count(restored);
            host.world.within_or(REPAIR_S, || watcher.count(restored) > count, || watcher.log());
        }
    }
    watcher.restores(&before, "the last reload");
    watcher.sleeps();
    watcher.end(Signal::SIGTERM);
}

/// containerd calls each plugin, and removes the entry of the cache at the end.
#[test]
fn a_del_by_single_calls_during_repairs_leaves_nothing() {
    let host = Host::new();
    let [_, c1, c2] = host_with_two(&host);
    let watcher = Watcher::start(&host);
    let head = json!({"cniVersion": "1.1.0", "name": "net"});
    let repairs = || watcher.log().matches("container c2 in network net: bridge: ").count();
    for (count, plugin) in network()["plugins"].as_array().unwrap().iter().rev().enumerate() {
        c1.call(plugin["type"].as_str().unwrap(), "DEL", &with(plugin, head.clone()))
            .run()
            .silence();
        host.world.host(["nft", "flush", "ruleset"]);
        host.world.within(REPAIR_S, "c2 is restored", || repairs() > count);
        watcher.sleeps();
    }
    host.world.host(["rm", "/var/lib/cni/results/net-c1-eth0"]);
    let left = elements(&host.world);
    assert!(left.iter().all(|line| !line.ends_with("net c1 eth0")), "{left:#?}");
    assert!(left.iter().any(|line| line.ends_with("net c2 eth0")), "{left:#?}");
    assert!(!watcher.log().contains("restored eth0 of container c1"), "{}", watcher.log());
    c2.destroy();
}

/// The last DEL of ours removes the record, and the reference's main plugin still has to delete the link.
#[test]
fn an_attachment_whose_last_plugin_of_ours_is_deleted_is_left() {
    let host = Host::new();
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [bridge(2), chained("portmap", 8080)]});
    let c1 = host.world.container("c1");
    let result = add_by_go(&c1, 2);
    host.remember("c1", &c1.netns(), &list, &result);
    let watcher = Watcher::start(&host);
    let is_published = || elements(&host.world).iter().any(|line| line.ends_with("net c1 eth0"));
    // Nor is it published beside the plugins of others.
    assert!(!is_published());
    let line = "left eth0 of container c1 in network net: it has no record: its DEL may have begun";
    assert_eq!(watcher.log().matches(line).count(), 1, "{}", watcher.log());
    add_chain(&c1, &["portmap"], 8080, &result);
    host.world.host(["nft", "flush", "ruleset"]);
    host.world.within(REPAIR_S, "it is restored", || watcher.log().contains("restored eth0"));
    watcher.sleeps();
    assert!(is_published());
    del_chain(&c1, &["portmap"], &result);
    for _ in 0..3 {
        host.world.host(["nft", "flush", "ruleset"]);
        watcher.sleeps();
        assert!(!is_published(), "{}", watcher.log());
    }
    host.cnibox(&["reconcile"]).run().output();
    assert!(is_published());
}

#[test]
fn the_tables_that_keep_connections_end_with_the_watcher() {
    let host = Host::new();
    host_with_two(&host);
    let tables = || host.world.host(["nft", "list", "tables"]).matches("cnibox-guard").count();
    host.world.host(["nft", "flush", "ruleset"]);
    let first = Watcher::start(&host);
    assert_eq!(tables(), 2);
    let rules = host.world.host(["nft", "list", "table", "ip", "cnibox-guard"]);
    assert!(rules.contains("flags owner") && rules.contains("ct state new"), "{rules}");
    let second = Watcher::start(&host);
    let note = "note: connections may end with the rules: ip cnibox-guard: ";
    assert!(second.log().contains(note), "{}", second.log());
    // The second one tries again.
    first.signal(Signal::SIGKILL);
    let killed = first.running.finish();
    assert_eq!(killed.status, -9, "{}", killed.report());
    host.world.within_or(REPAIR_S, || tables() == 2, || second.log());
    second.end(Signal::SIGHUP);
    host.world.eventually("the kernel deletes them", || tables() == 0);
}

#[test]
fn each_failed_request_of_the_first_look_leaves_a_watcher_with_its_table() {
    let host = Host::new();
    host.world.host(["nft", "add", "table", "ip", "cnibox"]);
    let tables = || host.world.host(["nft", "list", "tables"]).matches("cnibox-guard").count();
    let mut has_retried = false;
    for number in 1.. {
        let call = host.cnibox(&["reconcile", "--watch"]);
        let running = call.env("CNIBOX_FAIL_KERNEL", &number.to_string()).start();
        let what = || format!("no table after a failure of request {number}");
        host.world.within_or(REPAIR_S, || tables() == 1, what);
        kill(running.pid(), Signal::SIGTERM).unwrap();
        let outcome = running.finish();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        has_retried |= outcome.stderr.contains("note: connections may end with the rules: ");
        if !outcome.is_faulty {
            // A release build has no fault points.
            assert!(has_retried || number == 1);
            break;
        }
        host.world.eventually("the kernel deletes it", || tables() == 0);
    }
}

#[test]
fn a_reason_and_an_error_are_logged_once() {
    let host = Host::new();
    let [_, c1, _] = host_with_two(&host);
    let end = host.cached("net-c2-eth0")["result"]["interfaces"][1]["name"].clone();
    let watcher = Watcher::start(&host);
    c1.destroy();
    host.world.host(["ip", "link", "set", end.as_str().unwrap(), "down"]);
    for table in ["ip", "ip6", "bridge"] {
        host.world.host(["nft", "delete", "table", table, "cnibox"]);
        watcher.sleeps();
    }
    let log = watcher.log();
    let mut lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("restored ")).collect();
    let count = lines.len();
    assert!(log.contains("left eth0 of container c1 in network net: it has ended"), "{log}");
    assert!(log.contains("cannot restore eth0 of container c2 in network net: "), "{log}");
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count, "{log}");
}
