//! Names of containers that `cnibox run`, `add`, the hook and podman's driver hand to `dnsname`.

use serde_json::{Value, json};

use super::netavark::{object, request};
use super::oci_hook::{BUNDLE, RUNTIMES};
use super::{CONFIGURATIONS, Host};
use crate::world::{DNS_ENGINE, parse, with};

/// A host with aardvark-dns where podman has its helpers: the driver looks nowhere else.
fn host() -> Host {
    let host = Host::new();
    let script = format!(
        "mount -t tmpfs none /usr/local/lib; mkdir /usr/local/lib/podman; ln -s {DNS_ENGINE} /usr/local/lib/podman/
        printf 'hosts: dns\n' >/run/nsswitch; mount --bind /run/nsswitch /etc/nsswitch.conf"
    );
    host.world.host(["sh", "-ec", &script]);
    host
}

/// Whether nothing of names is left.
fn assert_no_names(host: &Host) {
    let script = "pgrep -x aardvark-dns; find /run/cnibox/names -mindepth 1 2>/dev/null || true";
    assert_eq!(host.world.host(["sh", "-c", script]), "");
}

#[test]
fn commands_find_each_other_by_name_and_alias() {
    let host = host();
    host.cnibox(&["networks", "create", "shop", "--names"]).run().output();
    let db = host.start(&["-n", "shop", "--name", "db", "--alias", "data"], "true");
    let asked =
        host.run(&["-n", "shop", "--name", "web", "--", "getent", "ahosts", "data"]).output();
    assert_eq!(
        asked,
        "10.89.0.2       STREAM data.dns.podman\n10.89.0.2       DGRAM  \n10.89.0.2       RAW    \n",
        "as docs/networks.md shows it"
    );
    let by_hostname =
        ["-n", "shop", "--hostname", "box", "--", "sh", "-c", "getent hosts box db.dns.podman"];
    assert_eq!(host.run(&by_hostname).output().lines().count(), 2);
    // A container of `add` has the name of its namespace, unless CNI_ARGS has another one.
    host.cnibox(&["add", "shop", "cache", "--create"]).run().output();
    let other = host.cnibox(&["add", "shop", "queue", "--create"]);
    other.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=jobs").run().output();
    let asked = host.cnibox(&[
        "exec",
        "db",
        "--",
        "sh",
        "-c",
        "getent hosts cache jobs; ! getent hosts queue",
    ]);
    assert_eq!(asked.run().output().lines().count(), 2);
    for name in ["cache", "queue"] {
        host.cnibox(&["check", "shop", name]).run().output();
        host.cnibox(&["del", "shop", name, "--delete"]).run().output();
    }
    host.signal("TERM", &db);
    db.finish();
    assert_no_names(&host);
    host.cnibox(&["networks", "rm", "shop"]).run().output();
}

#[test]
fn a_killed_run_leaves_no_name_after_gc() {
    let host = host();
    host.cnibox(&["networks", "create", "shop", "--names", "--domain", "shop.example"])
        .run()
        .output();
    let list = parse(&host.world.read(&format!("{CONFIGURATIONS}/shop.conflist")));
    assert_eq!(
        list["plugins"][4],
        json!({"type": "dnsname", "capabilities": {"aliases": true}, "domainName": "shop.example"})
    );
    let killed = host.start(&["-n", "shop", "--name", "db"], "true");
    host.signal("KILL", &killed);
    killed.finish();
    host.gc_until_nothing_is_kept();
    assert_no_names(&host);
}

#[test]
fn networks_without_names_take_no_alias() {
    let host = host();
    host.cnibox(&["networks", "create", "plain"]).run().output();
    let run = host.run(&["-n", "plain", "--alias", "a", "--", "true"]);
    assert!(
        run.status == 1 && run.stderr.contains("cannot give the container an alias"),
        "{}",
        run.report()
    );
    for (words, text) in [
        (
            &["--names", "--type", "macvlan", "--parent", "lo"][..],
            "this host is no gateway of a macvlan",
        ),
        (&["--domain", "x"], "--domain needs --names"),
    ] {
        let create = host.cnibox(&[&["networks", "create", "other"], words].concat()).run();
        assert!(create.status == 2 && create.stderr.contains(text), "{}", create.report());
    }
}

#[test]
fn an_oci_runtime_gives_names_by_an_annotation() {
    let host = host();
    host.cnibox(&["networks", "create", "shop", "--names"]).run().output();
    let runtime = RUNTIMES[0];
    let hook = json!({
        "path": "/run/bin/cnibox", "args": ["cnibox", "oci-hook"],
        "env": [format!("NETCONFPATH={CONFIGURATIONS}"), "CNI_PATH=/run/plugins"],
    });
    let annotations = json!({"cnibox.networks": "shop", "cnibox.names": "web, www"});
    host.bundle_with(&json!({"hooks": {"createRuntime": [hook], "poststop": [hook]}, "annotations": annotations}));
    // The container has the output of the runtime.
    let oci = |args: &str| {
        host.world.host([
            "sh",
            "-c",
            &format!("{runtime} --root /run/oci {args} </dev/null >/dev/null 2>&1"),
        ])
    };
    oci(&format!("run --detach --bundle {BUNDLE} web1"));
    let asked = host.run(&["-n", "shop", "--", "getent", "hosts", "web", "www", "web1"]);
    oci("delete --force web1");
    assert_eq!(asked.output().lines().count(), 3, "the id is a name, too");
    assert_no_names(&host);
}

#[test]
fn lost_names_are_made_again_and_their_servers_are_told_of() {
    let host = host();
    let dns = json!({"nameservers": ["9.9.9.9"]});
    let plugins = json!([
        {"type": "bridge", "isGateway": true, "dns": dns, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
        {"type": "dnsname"},
    ]);
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.0.0", "name": "shop", "plugins": plugins}),
    );
    host.cnibox(&["add", "shop", "web", "--create"]).run().output();
    let rendered = || host.world.read("/run/cnibox/names/aardvark/n-shop");
    assert!(rendered().starts_with("10.1.0.1 9.9.9.9\n"), "{}", rendered());
    host.world.host(["rm", "-r", "/run/cnibox/names"]);
    let said = host.reconcile(&[]);
    assert!(
        said.stderr.contains("had for other names are lost: those of the host are asked")
            && said.stdout.contains("the names of container "),
        "{}",
        said.report()
    );
    assert!(rendered().starts_with("10.1.0.1\n"), "{}", rendered());
    assert_eq!(host.reconcile(&[]).output(), "");
    // A damaged file is one that is lost.
    host.world.host(["sh", "-ec", "echo x >$(echo /run/cnibox/names/networks/shop/*)"]);
    let said = host.reconcile(&[]);
    assert!(said.stdout.contains("the names of container "), "{}", said.report());
    assert_eq!(host.reconcile(&[]).output(), "");
    host.world.host(["pkill", "-9", "-x", "aardvark-dns"]);
    let broken = host.cnibox(&["doctor"]).run();
    for text in [
        "broken: dnsname: what it made for 1 attachment of shop is missing or different: aardvark-dns does not run",
        "Containers do not find each other by name.",
    ] {
        assert!(broken.stdout.contains(text), "{}", broken.report());
    }
    let restored = host.reconcile(&[]).output();
    assert!(restored.contains("dnsname: aardvark-dns does not run"), "{restored}");
    host.cnibox(&["del", "shop", "web", "--delete"]).run().output();
    assert_no_names(&host);
}

#[test]
fn a_network_whose_names_nothing_can_answer_is_told_of() {
    let host = host();
    host.world.host([
        "sh",
        "-ec",
        "rm /run/plugins/aardvark-dns /usr/local/lib/podman/aardvark-dns",
    ]);
    let create = host.cnibox(&["networks", "create", "shop", "--names"]).run();
    assert!(
        create.status == 0
            && create.stderr.contains("cannot find aardvark-dns")
            && create.stderr.contains("an ADD fails until it is there"),
        "{}",
        create.report()
    );
}

#[test]
fn explain_shows_the_rules_for_queries() {
    let host = host();
    host.cnibox(&["networks", "create", "shop", "--names"]).run().output();
    let explain = || host.cnibox(&["explain", "shop"]).run().output();
    let rule = |transport: &str| {
        format!(
            "rule ip filter INPUT {{ ip saddr 10.89.0.0/24 ip daddr 10.89.0.1 {transport} dport 53 accept }}"
        )
    };
    assert!(!explain().contains("dport 53"), "{}", explain());
    host.world.host(["iptables-nft", "-P", "INPUT", "DROP"]);
    for transport in ["udp", "tcp"] {
        assert!(explain().contains(&rule(transport)), "{}", explain());
    }
}

/// A container with the resolv.conf of an answer of the driver.
fn asks(host: &Host, netns: &str, answer: &Value, name: &str) -> String {
    let words = |key: &str| {
        let words =
            answer[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    let servers: String =
        words("dns_server_ips").iter().map(|server| format!("nameserver {server}\n")).collect();
    let script = format!(
        "printf '{servers}search {}\n' >/run/resolv; mount --bind /run/resolv /etc/resolv.conf
        getent hosts {name} || true",
        words("dns_search_domains").join(" ")
    );
    host.world.host([
        "unshare",
        "--mount",
        "nsenter",
        &format!("--net={netns}"),
        "sh",
        "-ec",
        &script,
    ])
}

#[test]
fn networks_of_podmans_driver_have_names() {
    let host = host();
    let created = host.created(&with(
        &object("web"),
        json!({"ipv6_enabled": true, "network_dns_servers": ["9.9.9.9"]}),
    ));
    assert_eq!(
        (&created["dns_enabled"], &created["network_dns_servers"]),
        (&json!(true), &json!(["9.9.9.9"]))
    );
    assert_eq!(host.created(&created), created, "it is a fixed point");
    let (one, two) = (host.world.container("c1"), host.world.container("c2"));
    let named =
        |id: &str, name: &str| with(&request(id, &created), json!({"container_name": name}));
    let first = host.set_up(&one, &named(&"ab".repeat(32), "db"));
    let second = host.set_up(&two, &named(&"2".repeat(64), "web"));
    assert_eq!(first["dns_server_ips"].as_array().unwrap().len(), 2, "only ours: {first}");
    assert_eq!(first["dns_search_domains"], json!(["dns.podman"]));
    for name in ["db", "db.dns.podman", "abababababab"] {
        assert!(asks(&host, &two.netns(), &second, name).contains(&name[..2]), "{name}");
    }
    let of_both = asks(&host, &two.netns(), &second, "alias");
    assert_eq!(of_both.lines().count(), 2, "both have the alias: {of_both}");
    let rendered = host.world.read("/run/cnibox/names/aardvark/n-web");
    assert!(
        rendered.starts_with("10.89.0.1,")
            && rendered.lines().next().unwrap().ends_with(" 9.9.9.9"),
        "{rendered}"
    );
    host.tear_down(&one.netns(), &named(&"ab".repeat(32), "db"));
    assert_eq!(asks(&host, &two.netns(), &second, "db"), "");
    host.tear_down(&two.netns(), &named(&"2".repeat(64), "web"));
    assert_no_names(&host);
}

#[test]
fn an_internal_network_of_podmans_driver_has_names() {
    let host = host();
    let created = host.created(&with(&object("inside"), json!({"internal": true})));
    assert_eq!(created["dns_enabled"], json!(true));
    let c1 = host.world.container("c1");
    let named = with(&request("c1", &created), json!({"container_name": "db"}));
    let answer = host.set_up(&c1, &named);
    assert_eq!(asks(&host, &c1.netns(), &answer, "db").lines().count(), 1);
    assert!(host.world.path("/run/cnibox/names/aardvark/n-inside%int").exists());
    host.tear_down(&c1.netns(), &named);
    assert_no_names(&host);
}

#[test]
fn the_driver_says_why_a_network_has_no_names() {
    let host = Host::new();
    let note = |object: &Value| {
        let outcome = host.driver(&["create"], object);
        assert_eq!(parse(&outcome.stdout)["dns_enabled"], false, "{}", outcome.report());
        outcome.stderr
    };
    let text = note(&object("web"));
    let missing =
        "note: containers of network web do not find each other by name: cannot find aardvark-dns";
    assert!(text.contains(missing) && text.contains("1.13"), "{text}");
    let lan = with(
        &object("lan"),
        json!({"options": {"type": "macvlan", "parent": "lo"}, "subnets": [{"subnet": "10.5.0.0/24"}]}),
    );
    assert!(note(&lan).contains("this host is no gateway of a macvlan"));
    assert_eq!(note(&with(&object("web"), json!({"dns_enabled": false}))), "");
    // A file decides for itself.
    let plugins = json!([{"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}, {"type": "dnsname"}]);
    host.configure(
        "1.conflist",
        &json!({"cniVersion": "1.0.0", "name": "mynet", "plugins": plugins}),
    );
    let of_file =
        with(&object("mynet"), json!({"dns_enabled": false, "options": {"network": "mynet"}}));
    let outcome = host.driver(&["create"], &of_file);
    assert_eq!(parse(&outcome.stdout)["dns_enabled"], true, "{}", outcome.report());
    assert!(
        outcome.stderr.contains("the file of the network decides that"),
        "{}",
        outcome.report()
    );
}
