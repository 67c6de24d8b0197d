//! `cnibox doctor`: it finds each fault, names the command that fixes it, and changes nothing.

mod attachments;
mod chains;
mod filters;
mod firewall;
mod iptables;
mod leaks;
mod lives;
mod paths;
mod rulesets;
mod timer;
mod unknown;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::cnibox;
use crate::world::{Outcome, PLUGIN_DIR, World, parse, with};

const CONFIGURATIONS: &str = "/run/net.d";

/// A host with plugins, networks, and the link `wan` to other hosts. No other user can write to its directories.
fn healthy(networks: &[Value]) -> World {
    let world = World::new();
    let script = format!(
        "mkdir -p {CONFIGURATIONS} && ip link add wan type bridge && ip link set wan up &&
         ip address add 198.18.0.1/24 dev wan && ip address add fd03::1/64 dev wan nodad"
    );
    world.host(["sh", "-c", &script]);
    for network in networks {
        configure(&world, network["name"].as_str().unwrap(), network);
    }
    world
}

fn configure(world: &World, file: &str, network: &Value) {
    world.write(&format!("{CONFIGURATIONS}/{file}.conflist"), network.to_string());
}

/// A bridge `cni-NAME` with a gateway, and the subnet 10.`number`.0.0/16.
fn network(name: &str, number: u8) -> Value {
    let bridge = json!({
        "type": "bridge", "bridge": format!("cni-{name}"), "isGateway": true,
        "ipam": {"type": "host-local", "subnet": format!("10.{number}.0.0/16")},
    });
    json!({"cniVersion": "1.0.0", "name": name, "plugins": [bridge]})
}

fn doctor(world: &World, args: &[&str]) -> Outcome {
    let args = [&["doctor"], args].concat();
    let call = cnibox(world, &args).env("CNI_PATH", PLUGIN_DIR);
    call.env("NETCONFPATH", CONFIGURATIONS).run()
}

#[track_caller]
fn assert_no_fault(outcome: &Outcome) {
    let is_one_line = outcome.stdout.starts_with("no fault found in ");
    assert!(outcome.status == 0 && is_one_line, "{}", outcome.report());
    assert_eq!(outcome.stdout.lines().count(), 1, "{}", outcome.report());
}

/// The findings of `--json` that are no notes. The exit code is 1 if there is one.
fn faults(world: &World) -> Vec<Value> {
    let outcome = doctor(world, &["--json"]);
    let findings = parse(&outcome.stdout)["findings"].as_array().unwrap().clone();
    let faults: Vec<Value> =
        findings.into_iter().filter(|finding| finding["kind"] != "note").collect();
    assert_eq!(outcome.status, i32::from(!faults.is_empty()), "{}", outcome.report());
    faults
}

/// The only fault, which has these texts, and the command that fixes it.
#[track_caller]
fn only_fault(world: &World, kind: &str, texts: &[&str]) -> String {
    let faults = faults(world);
    assert_eq!(faults.len(), 1, "{faults:#?}");
    assert_eq!(faults[0]["kind"], kind, "{faults:#?}");
    let what = faults[0]["what"].as_str().unwrap();
    assert!(texts.iter().all(|text| what.contains(text)), "{texts:?}: {what}");
    faults[0]["fix"].as_str().unwrap().to_owned()
}

/// Executes the command of the only fault, and looks again.
#[track_caller]
fn is_mended_by(world: &World, fix: &str) {
    world.host(["sh", "-c", fix]);
    assert_eq!(faults(world), [] as [Value; 0], "after {fix}");
}

/// Attaches a container through the plugins, as a runtime with another cache does.
fn attach(world: &World, network: &Value) {
    let plugin =
        with(&network["plugins"][0], json!({"name": network["name"], "cniVersion": "1.0.0"}));
    world.container("one").add("bridge", &plugin);
}

#[test]
fn a_healthy_host_has_no_faults() {
    let world = healthy(&[network("a", 1), network("b", 2)]);
    let outcome = doctor(&world, &[]);
    assert_no_fault(&outcome);
    // A kernel can lack a feature. Each other attempt succeeds.
    assert!(
        !outcome.stderr.contains("does not work in an empty namespace"),
        "{}",
        outcome.report()
    );
    attach(&world, &network("a", 1));
    let before = world.state();
    let outcome = doctor(&world, &[]);
    assert_no_fault(&outcome);
    before.assert_same(&world.state(), "after doctor");
    assert!(!world.path("/run/cnibox").exists());
}

#[test]
fn without_capabilities_it_is_a_fault_that_the_kernel_cannot_be_examined() {
    let world = healthy(&[]);
    let words = ["setpriv", "--bounding-set=-all", "/run/bin/cnibox", "doctor", "--json"];
    let outcome = world.tool(&words, None).env("CNI_PATH", PLUGIN_DIR).run();
    let document = parse(&outcome.stdout);
    let has = |start: &str| {
        let mut findings = document["findings"].as_array().unwrap().iter();
        findings.any(|finding| {
            finding["kind"] == "broken" && finding["what"].as_str().unwrap().starts_with(start)
        })
    };
    assert!(outcome.status == 1 && has("cannot examine the kernel: "), "{}", outcome.report());
}

#[test]
fn a_host_without_networks_has_no_faults() {
    let world = World::new();
    let outcome = doctor(&world, &[]);
    assert_no_fault(&outcome);
}

#[test]
fn forwarding_that_is_off_is_found_if_a_network_is_used() {
    let both = json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]);
    let mut network = network("a", 1);
    network["plugins"][0]["ipam"] = json!({"type": "host-local", "ranges": both});
    let world = healthy(std::slice::from_ref(&network));
    let note = doctor(&world, &[]);
    assert_no_fault(&note);
    assert!(note.stderr.contains("net.ipv4.ip_forward is 0"), "{}", note.report());
    attach(&world, &network);
    assert_eq!(faults(&world), [] as [Value; 0]);
    for (key, path) in [
        ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
        ("net.ipv6.conf.all.forwarding", "net/ipv6/conf/all/forwarding"),
    ] {
        world.host(["sh", "-c", &format!("echo 0 >/proc/sys/{path}")]);
        let fix = only_fault(&world, "broken", &[key, "must be 1 for a"]);
        assert_eq!(fix, format!("sysctl -w {key}=1"));
        is_mended_by(&world, &fix);
    }
}

/// Loads a table with these chains in place of the one before.
fn nft(world: &World, chains: &str) {
    let table =
        format!("table inet mine\ndelete table inet mine\ntable inet mine {{ {chains}; }}\n");
    world.tool(&["nft", "-f", "-"], None).stdin(table).output_of_success();
}

#[test]
fn the_rules_of_kube_proxy_have_to_see_the_frames_of_bridges() {
    let world = healthy(&[network("a", 1)]);
    let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    world.host(["sh", "-c", &format!("test ! -e {path} || echo 0 >{path}")]);
    assert_eq!(faults(&world), [] as [Value; 0]);
    world.host(["iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES"]);
    let fix = only_fault(&world, "broken", &["bridge-nf-call-iptables is not 1"]);
    assert!(fix.starts_with("modprobe br_netfilter && sysctl -w "), "{fix}");
    if world.host(["sh", "-c", &format!("test ! -e {path} || {{ echo 1 >{path}; cat {path}; }}")])
        == "1\n"
    {
        assert_eq!(faults(&world), [] as [Value; 0]);
    }
}

#[test]
fn a_damaged_or_foreign_plugin_file_is_found() {
    let world = healthy(&[]);
    let damage = |command: &str| {
        let command = format!("cd {PLUGIN_DIR} && rm -f bridge && {command}");
        world.host(["sh", "-c", &command]);
    };
    for (command, expected) in [
        (": >bridge && chmod 755 bridge", "bridge in /run/plugins: it is empty"),
        ("cp /run/bin/cnibox bridge && chmod 644 bridge", "it is not executable"),
        ("head -c 20000 /run/bin/cnibox >bridge && chmod 755 bridge", "it is truncated"),
        ("echo text >bridge && chmod 755 bridge", "it is neither an ELF file nor a script"),
        ("ln -s nothing bridge", "its link leads to no file"),
        ("mkdir bridge", "it is not a file"),
        ("cp /run/bin/cnibox bridge && printf x >>bridge", "it is another build of cnibox"),
        ("printf '#!/bin/sh\n' >bridge && chmod 755 bridge", "it is another program"),
        ("cp /bin/true bridge && printf '\\377 Go buildinf:' >>bridge", "it is a program in Go"),
    ] {
        damage(command);
        let fix = only_fault(&world, "broken", &[expected]);
        let install = "cnibox install --force --backup --only bridge /run/plugins";
        let moves = "mv -nT /run/plugins/bridge /run/plugins/bridge.moved && ";
        let moves = if command == "mkdir bridge" { moves } else { "" };
        assert_eq!(fix, format!("{moves}{install}"));
        is_mended_by(&world, &format!("PATH=$PATH:/run/bin; {fix}"));
    }
    // The last program is kept.
    assert!(world.path("/run/plugins/.cnibox.backup/bridge").exists());
}

/// Other programs can write a manifest.
#[test]
fn no_text_of_a_manifest_is_executed() {
    let names = ["x$(touch pwned)", "y; touch pwned", "z`touch pwned`", "it's"];
    for (kind, is_there) in [("hard link", true), ("symbolic link", true), ("copy", false)] {
        for plugin in ["bridge", "$(touch pwned)", "b; touch pwned #"] {
            let world = healthy(&[]);
            let entry = |name: &&str| json!({"name": name, "plugin": plugin, "kind": kind});
            let entries: Vec<Value> = names.iter().map(entry).collect();
            let manifest = json!({"complete": true, "sha512": [], "names": entries});
            world.write("/run/plugins/.cnibox.manifest", manifest.to_string());
            for name in names {
                if is_there {
                    world.write(&format!("/run/plugins/{name}"), "");
                }
            }
            let fix = only_fault(&world, "broken", &[names[0], names[3]]);
            let command = format!("cd /run; PATH=$PATH:/run/bin; {fix}");
            world.tool(&["sh", "-c", &command], None).run();
            assert!(!world.path("/run/pwned").exists(), "{fix}");
            assert!(!fix.contains("rm "), "{fix}");
        }
    }
}

#[test]
fn a_directory_that_differs_from_its_installation_is_found() {
    let world = healthy(&[]);
    let options = "--only bridge,portmap,tuning --alias cnv-bridge=bridge";
    let install =
        format!("cd /run && rm -rf {PLUGIN_DIR} && bin/cnibox install {options} {PLUGIN_DIR}");
    let change = |command: &str| {
        world.host(["sh", "-c", &format!("{install} && cd {PLUGIN_DIR} && {command}")]);
    };
    let is_mended = |text: &str, options: &str| {
        let fix = only_fault(&world, "broken", &[text]);
        assert_eq!(fix, format!("cnibox install {options}/run/plugins"));
        is_mended_by(&world, &format!("PATH=$PATH:/run/bin; {fix}"));
    };
    change("rm tuning cnv-bridge");
    let missing = "tuning cnv-bridge in /run/plugins: it was installed, and is missing";
    is_mended(missing, "--alias cnv-bridge=bridge --only tuning,bridge ");
    change("rm cnibox");
    is_mended("cnibox in /run/plugins", "");
    change("/run/bin/cnibox install --only bridge -s /run/plugins && rm portmap");
    is_mended("portmap in /run/plugins", "-s --only portmap ");
    change("sed -i 's/\\(complete.*\\)true/\\1false/' .cnibox.manifest");
    is_mended("the installation in /run/plugins was interrupted", "");
    change("rm cnv-bridge && ln -s nothing cnv-bridge");
    only_fault(&world, "broken", &["cnv-bridge in /run/plugins: its link leads to no file"]);
    change("echo '{' >.cnibox.manifest");
    only_fault(&world, "broken", &["cannot examine the installed plugins: cannot use"]);
}

#[test]
fn an_earlier_directory_with_other_plugins_is_a_note() {
    let world = healthy(&[]);
    let script = "rm -rf /run/plugins; /run/bin/cnibox install --only bridge,tuning /run/plugins;
        mkdir /run/first; cp /bin/true /run/first/tuning; cp /run/bin/cnibox /run/first/bridge";
    world.host(["sh", "-c", script]);
    let call = cnibox(&world, &["doctor"]).env("CNI_PATH", "/run/first:/run/plugins");
    let outcome = call.env("NETCONFPATH", CONFIGURATIONS).run();
    let note = "note: tuning in /run/plugins: /run/first is before it in CNI_PATH";
    assert!(outcome.stderr.contains(note), "{}", outcome.report());
    let fix = "fix: cnibox install --force --backup --only tuning /run/first";
    assert!(outcome.stderr.contains(fix), "{}", outcome.report());
}

#[test]
fn foreign_plugins_in_a_directory_of_their_own_are_no_faults() {
    let world = healthy(&[]);
    world.host(["mkdir", "/run/other"]);
    for name in ["bridge", "portmap"] {
        world.host(["cp", "/bin/true", &format!("/run/other/{name}")]);
    }
    let call = cnibox(&world, &["doctor"]).env("CNI_PATH", "/run/other");
    let outcome = call.env("NETCONFPATH", CONFIGURATIONS).run();
    assert_no_fault(&outcome);
    let note = "note: bridge portmap in /run/other: it is another program";
    assert!(outcome.stderr.contains(note), "{}", outcome.report());
}

#[test]
fn directories_and_files_that_others_can_write_to_are_found() {
    let world = healthy(&[]);
    let set = |path: &str, mode: u32| {
        fs::set_permissions(world.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, mode) in [(PLUGIN_DIR, 0o777), (PLUGIN_DIR, 0o1777), (CONFIGURATIONS, 0o757)] {
        set(path, mode);
        let fix = only_fault(&world, "insecure", &["all users can write to", path]);
        assert_eq!(fix, format!("chmod o-w {path}"));
        is_mended_by(&world, &fix);
    }
    set("/run", 0o777);
    only_fault(&world, "insecure", &["all users can write to /run"]);
    set("/run", 0o1777);
    assert_eq!(faults(&world), [] as [Value; 0]);
    set("/run", 0o755);
    world.host(["sh", "-c", "rm /run/plugins/dhcp /run/plugins/tap; cp /bin/true /run/plugins/tap && chmod 757 /run/plugins/tap"]);
    let faults = faults(&world);
    assert_eq!(faults[0]["what"], "all users can write to /run/plugins/tap", "{faults:#?}");
    assert_eq!(faults[0]["kind"], "insecure", "{faults:#?}");
}

#[test]
fn networks_that_exclude_each_other_are_found() {
    let world = healthy(&[network("a", 1), network("b", 1)]);
    let fix = only_fault(
        &world,
        "broken",
        &["b.conflist: 10.1.0.0/16 overlaps the range 10.1.0.0/16 of network a"],
    );
    assert!(fix.contains("/run/net.d/b.conflist"), "{fix}");
    let mut b = network("b", 2);
    b["plugins"][0]["bridge"] = "cni-a".into();
    configure(&world, "b", &b);
    only_fault(
        &world,
        "broken",
        &["b.conflist: network a in a.conflist has the same bridge, cni-a"],
    );
    b["plugins"][0]["vlan"] = 5.into();
    configure(&world, "b", &b);
    // A kernel can lack VLANs.
    assert!(
        faults(&world).iter().all(|finding| finding["what"].as_str().unwrap().contains("CONFIG_"))
    );
    configure(&world, "b", &with(&network("b", 2), json!({"name": "a"})));
    only_fault(&world, "broken", &["b.conflist: the network in a.conflist has the same name, a"]);
    world.write("/run/net.d/b.conflist", "{");
    let fix =
        only_fault(&world, "broken", &["b.conflist: lint finds mistakes: 1: cannot read JSON"]);
    assert_eq!(fix, "cnibox lint /run/net.d/b.conflist");
}

#[test]
fn a_network_with_dhcp_needs_the_daemon() {
    let mut network = network("a", 1);
    network["plugins"][0]["ipam"] = json!({"type": "dhcp", "daemonSocketPath": "/run/dhcp.sock"});
    let mut alone = network.clone();
    alone["plugins"][0]["ipam"]["daemon"] = "auto".into();
    assert!(
        faults(&healthy(&[alone]))
            .iter()
            .all(|finding| !finding["what"].to_string().contains("no dhcp daemon"))
    );
    let world = healthy(&[network]);
    let faults = faults(&world);
    let what = "no dhcp daemon listens at /run/dhcp.sock, for a";
    assert!(faults.iter().any(|finding| finding["what"] == what), "{faults:#?}");
    // Any user can have a socket with a name that is not text.
    let script = "import socket, time\n\
        names = [b'/run/dhcp.sock', b'/run/\\xff.sock']\n\
        sockets = [socket.socket(socket.AF_UNIX) for _ in names]\n\
        for one, name in zip(sockets, names):\n one.bind(name)\n one.listen()\n\
        open('/run/listens', 'w')\n\
        time.sleep(1000)";
    let _sockets = world.tool(&["python3", "-c", script], None).start();
    world.eventually("the sockets are there", || world.path("/run/listens").exists());
    let faults = self::faults(&world);
    assert!(faults.iter().all(|finding| finding["what"] != what), "{faults:#?}");
}

#[test]
fn the_daemon_of_dhcp_starts_by_the_printed_command() {
    let mut network = network("a", 1);
    network["plugins"][0]["ipam"] = json!({"type": "dhcp", "daemonSocketPath": "/run/dhcp.sock"});
    let world = healthy(&[network]);
    let is_about = |fault: &Value| fault["what"].as_str().unwrap().starts_with("no dhcp daemon");
    let faults = self::faults(&world);
    let fix = faults.iter().find(|fault| is_about(fault)).unwrap()["fix"].as_str().unwrap();
    assert_eq!(fix, "/run/plugins/dhcp daemon -socketpath /run/dhcp.sock &");
    let _daemon =
        world.tool(&["sh", "-c", &format!("exec {}", &fix[..fix.len() - 2])], None).start();
    world.eventually("it listens", || !self::faults(&world).iter().any(is_about));
}

#[test]
fn the_state_that_is_no_directory_is_a_fault_that_root_has_to_mend() {
    let world = healthy(&[]);
    world.host(["sh", "-c", "mkdir -p /var/lib/cni && : >/var/lib/cni/results"]);
    let faults = faults(&world);
    assert!(!faults.is_empty());
    for fault in &faults {
        assert_eq!(fault["fix"], "mend what the error names, then: cnibox doctor", "{faults:#?}");
    }
}

#[test]
fn several_default_routes_and_a_strict_filter_are_a_note() {
    let world = healthy(&[]);
    for (link, address, via) in
        [("up0", "192.0.2.1/24", "192.0.2.9"), ("up1", "198.51.100.1/24", "198.51.100.9")]
    {
        world.host([
            "ip",
            "link",
            "add",
            link,
            "up",
            "type",
            "veth",
            "peer",
            "name",
            &format!("{link}p"),
        ]);
        world.host(["ip", "link", "set", &format!("{link}p"), "up"]);
        world.host(["ip", "address", "add", address, "dev", link]);
        world.host(["ip", "route", "add", "default", "via", via, "metric", &via.len().to_string()]);
    }
    world.host(["sh", "-c", "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/up1/rp_filter"]);
    let outcome = doctor(&world, &[]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    assert!(outcome.stderr.contains("rp_filter of up1 is 1 (strict)"), "{}", outcome.report());
}

#[test]
fn findings_are_in_the_order_of_their_harm() {
    let world = healthy(&[network("a", 1), network("b", 1)]);
    world.host(["chmod", "777", PLUGIN_DIR]);
    let document = parse(&doctor(&world, &["--json"]).stdout);
    let kinds: Vec<&str> = document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..2], ["insecure", "broken"], "{document}");
    assert!(kinds[2..].iter().all(|kind| *kind == "note"), "{document}");
    let text = doctor(&world, &[]).stdout;
    assert!(text.starts_with("insecure: all users can write to /run/plugins\n    "), "{text}");
    assert!(text.contains("\n    fix: chmod o-w /run/plugins\n"), "{text}");
}

#[test]
fn a_missing_parent_is_named() {
    let ipam = json!({"type": "host-local", "subnet": "10.7.0.0/16"});
    let plugin = json!({"type": "macvlan", "master": "nosuch0", "ipam": ipam});
    let world = healthy(&[json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [plugin]})]);
    let outcome = doctor(&world, &[]);
    let text = "broken: the host has no link nosuch0, the parent of network lan";
    assert!(outcome.status == 1 && outcome.stdout.contains(text), "{}", outcome.report());
    world.host(["sh", "-c", "ip link add nosuch0 type veth peer name nosuch1"]);
    assert_no_fault(&doctor(&world, &[]));
}
