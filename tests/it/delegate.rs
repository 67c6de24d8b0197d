//! Delegation: our own IPAM plugins are called as functions, everything else is executed.

use serde_json::{Value, json};

use crate::world::{Container, PLUGIN_DIR, World, with};

/// A directory of the user's own plugins, and CNI_PATH with that directory first.
const OWN: &str = "/run/own";
const OWN_FIRST: &str = "/run/own:/run/plugins";

fn config() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/16"},
    })
}

/// A plugin of the user's: a shell script that notes how it is called in /run/notes, then does `body`.
fn own_plugin(world: &World, name: &str, body: &str) {
    let script = format!(
        "#!/bin/sh\nset -e\nmkdir -p /run/notes\nenv | sort > /run/notes/$CNI_COMMAND.env\n\
         cat > /run/notes/$CNI_COMMAND.stdin\n{body}\n"
    );
    let path = format!("{OWN}/{name}");
    // Another process writes it: see `Scratch::copy`.
    world.host(["mkdir", "-p", OWN]);
    world.tool(&["tee", &path], None).stdin(script).run().output();
    world.host(["chmod", "755", &path]);
}

const GIVES_AN_ADDRESS: &str = r#"if [ $CNI_COMMAND = ADD ]; then
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]}'; fi"#;

fn was_called(world: &World, verb: &str) -> bool {
    world.path(format!("/run/notes/{verb}.stdin")).exists()
}

/// The processes and programs that a call makes, as strace sees them.
fn processes(container: &Container<'_>, cni_path: &str) -> (usize, usize) {
    let trace =
        ["strace", "-f", "-qq", "-e", "trace=execve,fork,vfork,clone,clone3", "-o", "/run/trace"];
    let call = container.call("bridge", "ADD", &config()).env("CNI_PATH", cni_path);
    call.under(&trace).run().success();
    let trace = container.world.read("/run/trace");
    let count = |word: &str| trace.lines().filter(|line| line.contains(word)).count();
    let forks = count("fork(") + count("clone(") + count("clone3(");
    (count("execve("), forks)
}

#[test]
fn our_own_ipam_needs_no_second_process() {
    let world = World::new();
    assert_eq!(processes(&world.container("c1"), PLUGIN_DIR), (1, 0));
}

#[test]
fn another_copy_of_the_executable_is_another_executable() {
    let world = World::new();
    world.host(["mkdir", OWN]);
    world.host(["cp", "/run/bin/cnibox", "/run/own/host-local"]);
    let (programs, forks) = processes(&world.container("c1"), OWN_FIRST);
    assert_eq!((programs, forks), (2, 1));
}

#[test]
fn our_own_ipam_needs_no_file_at_all() {
    let world = World::new();
    world.host(["mkdir", "/run/empty"]);
    for (number, path) in
        [None, Some(""), Some("/run/none"), Some("/run/empty")].into_iter().enumerate()
    {
        let container = world.container(&format!("c{number}"));
        let call = |verb: &str, config: &Value| {
            let call = container.call("bridge", verb, config);
            match path {
                Some(path) => call.env("CNI_PATH", path),
                None => call.without("CNI_PATH"),
            }
        };
        let result = call("ADD", &config()).run().success();
        call("CHECK", &with(&config(), json!({"prevResult": result}))).run().silence();
        call("DEL", &config()).run().silence();
    }
}

#[test]
fn a_plugin_earlier_on_the_path_is_used() {
    let world = World::new();
    own_plugin(&world, "host-local", GIVES_AN_ADDRESS);
    let (c1, c2) = (world.container("c1"), world.container("c2"));
    let result = c1.call("bridge", "ADD", &config()).env("CNI_PATH", OWN_FIRST).run().success();
    assert_eq!(
        result["ips"][0],
        json!({"address": "10.77.0.5/24", "gateway": "10.77.0.1", "interface": 2})
    );
    assert_eq!(c1.addresses("eth0"), ["10.77.0.5/24"]);
    let last = format!("{PLUGIN_DIR}:{OWN}");
    let result = c2
        .call("bridge", "ADD", &with(&config(), json!({"bridge": "cni1"})))
        .env("CNI_PATH", &last);
    assert_eq!(result.run().success()["ips"][0]["address"], "10.1.0.2/16");
}

#[test]
fn a_plugin_that_cannot_be_looked_at_is_not_replaced_by_one_of_ours() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]);
    world.host(["mkdir", OWN]);
    world.host(["ln", "-s", "host-local", "/run/own/host-local"]);
    let reason = "cannot read /run/own/host-local: Too many symbolic links";
    for verb in ["ADD", "DEL"] {
        let call = c1.call("bridge", verb, &config()).env("CNI_PATH", OWN).run();
        let error = call.fails(7, &["failed to find plugin \"host-local\""]);
        assert!(error.details.contains(reason), "{verb}: {error:?}");
    }
    before.assert_same(&world.state_with(&[&c1]), "both verbs");
    // The plugin is in a later directory, where libcni also finds it.
    let call = |verb: &str| c1.call("bridge", verb, &config()).env("CNI_PATH", OWN_FIRST).run();
    call("ADD").success();
    call("DEL").silence();
}

#[test]
fn a_delegate_gets_the_callers_environment_and_the_very_bytes_of_stdin() {
    let world = World::new();
    own_plugin(&world, "host-local", GIVES_AN_ADDRESS);
    let c1 = world.container("c1");
    let stdin = format!("\n  {}  \n\n", config().to_string().replace("\"type\"", "\"type\"  "));
    let result = c1.call("bridge", "ADD", &config()).env("CNI_PATH", OWN_FIRST);
    let add = result
        .env("CNI_ARGS", "IgnoreUnknown=1;A=b")
        .env("HTTP_PROXY", "proxy")
        .stdin(stdin.clone());
    add.run().success();
    assert_eq!(world.read("/run/notes/ADD.stdin"), stdin);
    let environment = world.read("/run/notes/ADD.env");
    for line in [
        "CNI_ARGS=IgnoreUnknown=1;A=b",
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=c1",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/run/netns/c1",
        "CNI_PATH=/run/own:/run/plugins",
        "HTTP_PROXY=proxy",
    ] {
        assert!(environment.lines().any(|known| known == line), "{line} is not in {environment}");
    }
}

#[test]
fn every_verb_is_delegated() {
    let world = World::new();
    own_plugin(&world, "my-ipam", GIVES_AN_ADDRESS);
    let c1 = world.container("c1");
    for plugin in ["bridge", "veth"] {
        let config = with(&config(), json!({"cniVersion": "1.1.0", "ipam": {"type": "my-ipam"}}));
        let call = |verb: &str, config: &Value| {
            c1.call(plugin, verb, config).env("CNI_PATH", OWN_FIRST).run()
        };
        call("STATUS", &config).silence();
        let result = call("ADD", &config).success();
        call("CHECK", &with(&config, json!({"prevResult": result}))).silence();
        call("GC", &with(&config, json!({"cni.dev/valid-attachments": []}))).silence();
        call("DEL", &config).silence();
        for verb in ["STATUS", "ADD", "CHECK", "GC", "DEL"] {
            assert!(was_called(&world, verb), "{plugin} {verb}");
            let environment = world.read(&format!("/run/notes/{verb}.env"));
            assert!(environment.contains(&format!("CNI_COMMAND={verb}\n")), "{environment}");
        }
        world.host(["rm", "-r", "/run/notes"]);
    }
}

#[test]
fn the_error_of_a_delegate_is_passed_on_and_its_del_is_called() {
    let error = r#"if [ $CNI_COMMAND = ADD ]; then
        echo '{"cniVersion": "1.0.0", "code": 123, "msg": "no luck today", "details": "try tomorrow"}'; exit 1; fi"#;
    let world = World::new();
    own_plugin(&world, "my-ipam", error);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("cni0", "net");
    for plugin in ["bridge", "veth"] {
        let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
        let error = c1.call(plugin, "ADD", &config).env("CNI_PATH", OWN_FIRST).run().error();
        assert_eq!(
            (error.code, error.msg.as_str(), error.details.as_str()),
            (123, "no luck today", "try tomorrow")
        );
        assert!(world.read("/run/notes/DEL.env").contains("CNI_COMMAND=DEL\n"), "{plugin}");
        assert_eq!(world.read("/run/notes/DEL.stdin"), config.to_string());
        let after = world.state_with(&[&c1]).apart_from("cni0", "net");
        before.assert_same(&after, "after a failed ADD");
        world.host(["rm", "-r", "/run/notes"]);
    }
}

#[test]
fn errors_of_other_verbs_are_passed_on_too() {
    let body = format!(
        "{GIVES_AN_ADDRESS}\nif [ $CNI_COMMAND != ADD ]; then echo '{{\"code\": 124, \"msg\": \"not now\"}}'; exit 1; fi"
    );
    let world = World::new();
    own_plugin(&world, "my-ipam", &body);
    let c1 = world.container("c1");
    let config = with(&config(), json!({"cniVersion": "1.1.0", "ipam": {"type": "my-ipam"}}));
    let call = |verb: &str, config: &Value| {
        c1.call("bridge", verb, config).env("CNI_PATH", OWN_FIRST).run()
    };
    let result = call("ADD", &config).success();
    call("CHECK", &with(&config, json!({"prevResult": result}))).fails(124, &["not now"]);
    call("STATUS", &config).fails(124, &["not now"]);
    call("GC", &with(&config, json!({"cni.dev/valid-attachments": []}))).fails(124, &["not now"]);
    call("DEL", &config).fails(124, &["not now"]);
    assert_eq!(world.ports_of("cni0"), [""; 0], "DEL goes on past a failure");
}

#[test]
fn a_delegate_that_talks_nonsense_fails_the_add_and_gets_its_del() {
    let cases = [
        ("echo hello; exit 0", "my-ipam"),
        ("echo hello; exit 1", "my-ipam"),
        ("echo 'it hurts here' >&2; exit 3", "it hurts here"),
        ("exit 1", "my-ipam"),
        ("exit 0", "my-ipam"),
        ("echo '[]'", "my-ipam"),
        (r#"echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5"}]}'"#, "my-ipam"),
        (r#"echo '{"cniVersion": "7.0.0", "ips": [{"address": "10.77.0.5/24"}]}'"#, "7.0.0"),
        ("kill -9 $$", "my-ipam"),
    ];
    for (what, says) in cases {
        let world = World::new();
        own_plugin(&world, "my-ipam", &format!("[ $CNI_COMMAND != ADD ] || {{ {what}; }}"));
        let c1 = world.container("c1");
        let before = world.state_with(&[&c1]).apart_from("cni0", "net");
        let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
        let error = c1.call("bridge", "ADD", &config).env("CNI_PATH", OWN_FIRST).run().error();
        assert!(format!("{}: {}", error.msg, error.details).contains(says), "{what}: {error:?}");
        assert!(was_called(&world, "DEL"), "{what}");
        let after = world.state_with(&[&c1]).apart_from("cni0", "net");
        before.assert_same(&after, what);
    }
}

#[test]
fn stderr_of_a_delegate_is_passed_on() {
    let world = World::new();
    own_plugin(&world, "my-ipam", &format!("echo 'lease renewed' >&2\n{GIVES_AN_ADDRESS}"));
    let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
    let c1 = world.container("c1");
    let outcome = c1.call("bridge", "ADD", &config).env("CNI_PATH", OWN_FIRST).run();
    assert!(outcome.stderr.contains("lease renewed"), "{}", outcome.report());
    outcome.success();
}

#[test]
fn a_result_of_any_version_is_understood() {
    let cases = [
        r#"{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.77.0.5/24", "gateway": "10.77.0.1"}], "dns": {}}"#,
        r#"{"cniVersion": "0.2.0", "ip4": {"ip": "10.77.0.5/24", "gateway": "10.77.0.1"}}"#,
        r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]}"#,
        r#"{"ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]}"#,
        r#"{"cniVersion": "", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}], "routes": null}"#,
    ];
    for result in cases {
        let world = World::new();
        own_plugin(
            &world,
            "my-ipam",
            &format!("if [ $CNI_COMMAND = ADD ]; then echo '{result}'; fi"),
        );
        let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
        let add = world.container("c1").call("bridge", "ADD", &config).env("CNI_PATH", OWN_FIRST);
        let ips = add.run().success()["ips"].clone();
        assert_eq!(
            ips,
            json!([{"address": "10.77.0.5/24", "gateway": "10.77.0.1", "interface": 2}]),
            "{result}"
        );
    }
}

#[test]
fn a_step_after_ipam_that_fails_gives_the_address_back() {
    let unreachable = r#"if [ $CNI_COMMAND = ADD ]; then echo '{"cniVersion": "1.0.0", "ips": [{"address":
        "10.77.0.5/24"}], "routes": [{"dst": "10.99.0.0/16", "gw": "192.168.77.1", "scope": 254}]}'; fi"#;
    let world = World::new();
    own_plugin(&world, "my-ipam", unreachable);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("cni0", "net");
    let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
    c1.call("bridge", "ADD", &config)
        .env("CNI_PATH", OWN_FIRST)
        .run()
        .fails(999, &["10.99.0.0/16"]);
    assert!(world.read("/run/notes/DEL.env").contains("CNI_COMMAND=DEL\n"));
    before.assert_same(&world.state_with(&[&c1]).apart_from("cni0", "net"), "after a failed ADD");
}

#[test]
fn a_type_never_leaves_the_path() {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/own/sub"]);
    own_plugin(&world, "sub/evil", GIVES_AN_ADDRESS);
    own_plugin(&world, "../evil", GIVES_AN_ADDRESS);
    let c1 = world.container("c1");
    let before = world.state_with(&[&c1]).apart_from("cni0", "net");
    for kind in ["../evil", "sub/evil", "/run/own/sub/evil", "./sub/evil", "..", ".", "sub"] {
        for verb in ["ADD", "DEL", "STATUS"] {
            let config = with(&config(), json!({"cniVersion": "1.1.0", "ipam": {"type": kind}}));
            let error = c1.call("bridge", verb, &config).env("CNI_PATH", OWN_FIRST).run().error();
            assert!(
                format!("{}: {}", error.msg, error.details).contains(kind),
                "{verb} {kind}: {error:?}"
            );
        }
    }
    assert!(!world.path("/run/notes").exists(), "CVE-2021-20206");
    before.assert_same(&world.state_with(&[&c1]).apart_from("cni0", "net"), "after refused calls");
}

#[test]
fn a_type_without_an_executable_is_not_found() {
    let world = World::new();
    let c1 = world.container("c1");
    for path in [Some(OWN_FIRST), Some(""), None] {
        let config = with(&config(), json!({"ipam": {"type": "nobody-has-it"}}));
        let call = c1.call("bridge", "ADD", &config);
        let call = match path {
            Some(path) => call.env("CNI_PATH", path),
            None => call.without("CNI_PATH"),
        };
        let error = call.run().fails(7, &["failed to find plugin \"nobody-has-it\""]);
        let has_paths = path == Some(OWN_FIRST);
        assert_eq!(error.msg == "no paths provided", !has_paths, "{error:?}");
    }
}

#[test]
fn only_regular_files_are_plugins_and_a_file_that_cannot_run_is_named() {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/own/host-local"]);
    let c1 = world.container("c1");
    let result = c1.call("bridge", "ADD", &config()).env("CNI_PATH", OWN_FIRST).run().success();
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/16", "a directory is passed over");
    world.write("/run/own/my-ipam", "no program");
    let config = with(&config(), json!({"ipam": {"type": "my-ipam"}}));
    let c2 = world.container("c2");
    c2.call("bridge", "ADD", &config)
        .env("CNI_PATH", OWN_FIRST)
        .run()
        .fails(999, &["/run/own/my-ipam"]);
}

#[test]
fn names_of_our_own_that_are_prefixed_are_our_own() {
    let world = World::new();
    world.host(["ln", "-s", "/run/bin/cnibox", "/run/plugins/buildkit-cni-host-local"]);
    world.host(["ln", "-s", "/run/bin/cnibox", "/run/plugins/buildkit-cni-bridge"]);
    let config = with(
        &config(),
        json!({"type": "buildkit-cni-bridge", "ipam": {"type": "buildkit-cni-host-local"}}),
    );
    let result = world.container("c1").add("buildkit-cni-bridge", &config);
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/16");
}

#[test]
fn an_interface_plugin_is_no_ipam_plugin() {
    let world = World::new();
    let c1 = world.container("c1");
    let before = world.state();
    for kind in ["bridge", "veth", "macvlan", "flannel", "portmap"] {
        for plugin in ["bridge", "veth"] {
            let keys = json!({"type": plugin, "ipam": {"type": kind}});
            let config = with(&config(), keys);
            for verb in ["ADD", "DEL"] {
                c1.call(plugin, verb, &config).run().fails(7, &[kind, "is not an IPAM plugin"]);
            }
        }
    }
    before.assert_same(&world.state(), "nothing is left");
}

/// By such a name it is executed, not called as a function.
#[test]
fn an_interface_plugin_with_a_prefix_is_stopped_as_its_own_ipam_plugin() {
    let world = World::new();
    let c1 = world.container("c1");
    for prefix in ["buildkit-cni-", "cnv-"] {
        let name = format!("{prefix}bridge");
        world.host(["ln", "-s", "/run/bin/cnibox", &format!("/run/plugins/{name}")]);
        let config = with(&config(), json!({"cniVersion": "1.1.0", "ipam": {"type": name}}));
        c1.call("bridge", "ADD", &config).run().fails(7, &["too many plugins call one another"]);
        c1.call("bridge", "DEL", &config).run().fails(7, &["too many plugins call one another"]);
        let links = world.links();
        assert!(!links.iter().any(|link| link.starts_with("veth")), "{links:?}");
    }
}

#[test]
fn plugins_that_call_one_another_without_end_are_stopped() {
    let world = World::new();
    own_plugin(&world, "endless", "exec /run/plugins/bridge < /run/notes/$CNI_COMMAND.stdin");
    let c1 = world.container("c1");
    let config = with(&config(), json!({"ipam": {"type": "endless"}}));
    for verb in ["ADD", "DEL"] {
        let call = c1.call("bridge", verb, &config).env("CNI_PATH", OWN_FIRST);
        call.env("PATH", "/usr/bin:/bin").run().fails(7, &["too many plugins call one another"]);
    }
}

/// We survive writes that fail; what an executed plugin does then is its own business.
#[test]
fn a_delegate_has_the_default_signals() {
    let world = World::new();
    let signals = "grep -E '^Sig(Ign|Cgt)' /proc/self/status > /run/notes/signals";
    own_plugin(&world, "host-local", &format!("{signals}\n{GIVES_AN_ADDRESS}"));
    let c1 = world.container("c1");
    c1.call("bridge", "ADD", &config()).env("CNI_PATH", OWN_FIRST).run().success();
    let found = world.read("/run/notes/signals");
    let masks = found.lines().filter_map(|line| line.split_once(":\t"));
    let masks: Vec<u64> = masks.map(|(_, mask)| u64::from_str_radix(mask, 16).unwrap()).collect();
    // SIGPIPE is 13, SIGXFSZ is 25.
    let ours = 1 << 12 | 1 << 24;
    assert_eq!(masks.iter().map(|mask| mask & ours).collect::<Vec<u64>>(), [0, 0], "{found}");
}

/// A failing ADD of a living container calls no DEL of the IPAM plugin: it would release what the first ADD has got.
#[test]
fn a_repeated_add_that_fails_leaves_the_addresses_of_the_first() {
    let result = r#"{"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}]}"#;
    // Like the Go host-local, and like whereabouts.
    for repeated in ["exit 1", "true"] {
        let world = World::new();
        let body = format!(
            "f=/run/notes/reserved\ncase $CNI_COMMAND in\n\
             ADD) [ ! -e $f ] || {repeated}; touch $f; echo '{result}';;\nDEL) rm -f $f;;\nesac"
        );
        own_plugin(&world, "other", &body);
        let network = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br1",
            "ipam": {"type": "other"}});
        let c1 = world.container("c1");
        let call = |verb: &str| c1.call("bridge", verb, &network).env("CNI_PATH", OWN).run();
        let is_reserved = || world.path("/run/notes/reserved").exists();
        call("ADD").success();
        assert_ne!(call("ADD").status, 0);
        assert!(is_reserved(), "{repeated}");
        // Also if it cannot be known that it is a repeated ADD, or if an earlier repeated ADD was killed.
        let failing = |variable: &str, number: u32| {
            let call = c1.call("bridge", "ADD", &network).env("CNI_PATH", OWN);
            call.env(variable, &number.to_string()).run()
        };
        for (variable, numbers) in [("CNIBOX_FAIL_FILE", 1..=20), ("CNIBOX_FAIL_KERNEL", 1..=6)] {
            for number in numbers {
                assert_ne!(failing(variable, number).status, 0);
                assert!(is_reserved(), "{repeated}: {variable}={number}");
            }
        }
        let killed = ["strace", "-qqo", "/dev/null", "-e", "inject=rename:signal=KILL:when=2"];
        let killed = c1.call("bridge", "ADD", &network).env("CNI_PATH", OWN).under(&killed).run();
        assert_ne!(killed.status, 0);
        assert_ne!(call("ADD").status, 0);
        assert!(is_reserved(), "{repeated}, after a kill");
        world.write("/var/lib/cni/attachments/net+c1+eth0", "damaged");
        assert_ne!(call("ADD").status, 0);
        assert!(is_reserved(), "{repeated}, with a damaged record");
        call("DEL").silence();
        assert!(!is_reserved());
        // The first ADD of a container that fails undoes everything.
        c1.exec(["ip", "link", "add", "eth0", "type", "bridge"]);
        assert_ne!(call("ADD").status, 0);
        assert!(!is_reserved(), "{repeated}");
    }
}
