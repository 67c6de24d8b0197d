//! Sizes that others choose: a huge file, or output without an end, costs a call no memory. It is damaged, so it is named or
//! passed over; nothing is taken for gone because of it. Large input within the limits works.

use serde_json::{Value, json};

use super::ipam::host::{DATA, Host};
use crate::world::{Call, Outcome, RECORDS};

/// The address space of the call, and its time in seconds. An allocation above the limit aborts the process (SIGABRT), and
/// timeout(1) ends with 124.
const LIMITED: [&str; 4] = ["prlimit", "--as=268435456", "timeout", "60"];
const ENTRY: &str = "/var/lib/cni/results/net-c1-eth0";

fn run(call: Call<'_>) -> Outcome {
    call.under(&LIMITED).run()
}

/// Makes a file of 100 GiB that takes no space.
fn plant(host: &Host, path: &str) {
    let script = "mkdir -p \"$(dirname \"$0\")\"; rm -rf \"$0\"; truncate -s 100G \"$0\"";
    host.world.host(["sh", "-ec", script, path]);
}

fn is_huge(host: &Host, path: &str) -> bool {
    host.world.path(path).metadata().is_ok_and(|file| file.len() == 100 << 30)
}

/// What a living attachment has, without its files.
#[track_caller]
fn assert_attached(host: &Host, after: &str) {
    let links = host.world.host(["ip", "-o", "link", "show", "master", "cni0"]);
    assert_eq!(links.lines().count(), 1, "{after}: {links}");
    let address = host.world.host(["ip", "-n", "c1", "-o", "-4", "address", "show", "eth0"]);
    assert!(address.contains(" 10.1.0.2/24 "), "{after}: {address}");
}

#[test]
fn an_attachment_with_a_huge_file_is_kept_and_so_is_the_file() {
    let record = format!("{RECORDS}/net+c1+eth0");
    let reservation = format!("{DATA}/net/10.1.0.2");
    for (path, stays) in [
        (ENTRY, true),
        // A damaged record proves nothing, and gc removes the file of it.
        (record.as_str(), false),
        (reservation.as_str(), true),
        ("/run/net.d/10-net.conflist", true),
    ] {
        let host = Host::new();
        let _c1 = host.attached("c1");
        plant(&host, path);
        for command in ["gc", "gc --confirm", "doctor --fix --yes", "attachments", "ipam list"] {
            let words: Vec<&str> = command.split(' ').collect();
            let outcome = run(host.cnibox(&words));
            assert!([0, 1].contains(&outcome.status), "{path}, {command}: {}", outcome.report());
            assert!(
                !outcome.stdout.contains("removed "),
                "{path}, {command}: {}",
                outcome.report()
            );
            assert_attached(&host, &format!("{path}, {command}"));
            assert!(is_huge(&host, path) || !stays, "{path}, {command}");
        }
    }
}

#[test]
fn an_address_with_a_huge_reservation_is_given_to_nobody() {
    let host = Host::new();
    let path = format!("{DATA}/net/10.1.0.2");
    plant(&host, &path);
    let _c1 = host.world.container("c1");
    let add = run(host.plugin_call("/run/plugins/bridge", "ADD", "c1"));
    assert_eq!(add.success()["ips"][0]["address"], "10.1.0.3/24");
    // The file may be of the attachment, so DEL reports it.
    let del = run(host.plugin_call("/run/plugins/bridge", "DEL", "c1"));
    del.fails(5, &["cannot read ", "/10.1.0.2: it has more than "]);
    assert_eq!(host.addresses(), ["10.1.0.2"]);
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local"}, "cni.dev/valid-attachments": [],
    });
    let gc = run(host.world.call("host-local", "GC", &config));
    gc.fails(5, &["/10.1.0.2: it has more than "]);
    assert!(is_huge(&host, &path));
}

#[test]
fn a_resolv_conf_has_a_limit_that_no_real_one_reaches() {
    let host = Host::new();
    let add = || {
        let ipam = json!({"type": "host-local", "subnet": "10.7.0.0/24", "resolvConf": "/run/resolv.conf"});
        let config =
            json!({"cniVersion": "1.0.0", "name": "n", "type": "host-local", "ipam": ipam});
        let call = host.world.call("host-local", "ADD", &config).env("CNI_CONTAINERID", "c1");
        run(call.env("CNI_IFNAME", "eth0").env("CNI_NETNS", "/run/netns/c1"))
    };
    plant(&host, "/run/resolv.conf");
    let limit = "cannot read resolvConf /run/resolv.conf: it has more than 16777216 bytes";
    add().fails(5, &[limit]);
    assert!(!host.world.path(format!("{DATA}/n/10.7.0.2")).exists());
    let long = format!("nameserver 10.7.0.53\n{}", "# a comment\n".repeat(9000));
    assert!(long.len() > 100 << 10);
    host.world.write("/run/resolv.conf", long);
    assert_eq!(add().success()["dns"], json!({"nameservers": ["10.7.0.53"]}));
}

#[test]
fn a_configuration_of_a_hundred_kibibytes_works() {
    let host = Host::new();
    let routes: Vec<Value> =
        (0..4000).map(|n| json!({"dst": format!("10.200.{}.{}/32", n / 250, n % 250)})).collect();
    host.configure("net", &json!([[{"subnet": "10.1.0.0/24"}]]), json!({"routes": routes}));
    let path = host.world.path("/run/net.d/10-net.conflist");
    assert!(path.metadata().unwrap().len() > 100 << 10);
    let _c1 = host.world.container("c1");
    for verb in ["add", "check", "del"] {
        let outcome = run(host.cnibox(&[verb, "net", "c1"]));
        assert_eq!(outcome.status, 0, "{verb}: {}", outcome.report());
    }
    assert_eq!(host.addresses(), [""; 0]);
}

#[test]
fn gc_takes_a_hundred_thousand_valid_attachments() {
    const OTHERS: u32 = 100_000;
    let host = Host::new();
    host.reserve_file("10.1.0.2", &format!("{:064x}\r\neth0", OTHERS - 1));
    host.reserve_file("10.1.0.3", &format!("{OTHERS:064x}\r\neth0"));
    let valid: Vec<Value> = (0..OTHERS)
        .map(|n| json!({"containerID": format!("{n:064x}"), "ifname": "eth0"}))
        .collect();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local"}, "cni.dev/valid-attachments": valid,
    });
    assert!(config.to_string().len() > 9_000_000);
    run(host.world.call("host-local", "GC", &config)).silence();
    assert_eq!(host.addresses(), ["10.1.0.2"]);
}

#[test]
fn a_huge_log_or_a_line_without_an_end_takes_no_memory() {
    const LOG: &str = "/run/calls.log";
    let host = Host::new();
    let metrics = || run(host.cnibox(&["metrics"]).env("CNIBOX_LOG", &format!("info,file:{LOG}")));
    let line = "verb=DEL plugin=dhcp network=n ms=0.900 code=0";
    // A line of 512 MiB between two calls.
    let script =
        format!("echo '{line}' >{LOG}; truncate -s 512M {LOG}; printf '\\n{line}' >>{LOG}");
    host.world.host(["sh", "-ec", &script]);
    let text = metrics().output();
    let count = "cnibox_call_seconds_count{plugin=\"dhcp\",verb=\"DEL\"} 2\n";
    assert!(text.contains(count), "{text}");
    plant(&host, LOG);
    let outcome = metrics();
    let reason = "cannot read /run/calls.log: it has more than 1073741824 bytes";
    assert!(outcome.stderr.contains(reason), "{}", outcome.report());
}

#[test]
fn a_plugin_that_prints_without_an_end_is_killed() {
    let host = Host::new();
    let _c1 = host.world.container("c1");
    host.write_network("net", &json!({"type": "endless"}));
    host.world.host(["mkdir", "-p", "/run/own"]);
    for (pipe, reason) in [
        ("", "plugin /run/own/endless was killed: its output has more than 4194304 bytes"),
        (">&2", "plugin /run/own/endless was killed: it did not end within 5 s"),
    ] {
        let version = r#"{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}"#;
        let script = format!(
            "#!/bin/sh\n[ $CNI_COMMAND = ADD ] && exec yes {pipe}\n\
             if [ $CNI_COMMAND = VERSION ]; then echo '{version}'; fi\n"
        );
        // Another process writes it: see `Scratch::copy`.
        host.world.tool(&["tee", "/run/own/endless"], None).stdin(script).run().output();
        host.world.host(["chmod", "755", "/run/own/endless"]);
        let add = host.cnibox(&["add", "net", "c1", "--timeout", "5"]);
        let outcome = run(add.env("CNI_PATH", "/run/own"));
        assert_eq!(outcome.status, 1, "{pipe}");
        // The text of the plugin comes before it, up to 4 MiB.
        assert!(outcome.stderr.len() < 5 << 20, "{pipe}");
        let end = &outcome.stderr[outcome.stderr.len().saturating_sub(1000)..];
        assert!(end.contains(reason), "{pipe}: {end}");
    }
}
