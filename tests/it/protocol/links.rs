//! The name that the executable is called by decides what it is.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::host_local;
use crate::world::{Bare, Call, Scratch, World, executable, plugin_names};

/// The first line that a plugin introduces itself with.
fn introduction(call: Call<'_>) -> String {
    let outcome = call.run();
    assert!(outcome.status == 0 && outcome.stdout.is_empty(), "{}", outcome.report());
    outcome.stderr.lines().next().unwrap_or_default().to_owned()
}

fn is_bridge(call: Call<'_>) {
    let line = introduction(call.clone());
    assert!(line.starts_with("CNI ") && line.contains("bridge plugin v1.9.1+cnibox."), "{line}");
    let versions = call.env("CNI_COMMAND", "VERSION").run().success();
    assert_eq!(versions["cniVersion"], "1.1.0");
}

#[test]
fn any_kind_of_link_will_do() {
    let scratch = Scratch::new();
    // Not everywhere may one link to a file of another user.
    let own = scratch.copy("cnibox");
    for name in ["bridge", "buildkit-cni-bridge", "cnv-bridge"] {
        let file = |kind: &str| {
            fs::create_dir_all(scratch.file(kind)).unwrap();
            scratch.file(kind).join(name)
        };
        let (soft, hard, copy) = (file("soft"), file("hard"), file("copy"));
        symlink(executable(), &soft).unwrap();
        fs::hard_link(&own, &hard).unwrap();
        scratch.copy(&format!("copy/{name}"));
        for path in [soft, hard, copy] {
            is_bridge(Call::program(&path));
        }
    }
}

#[test]
fn a_link_to_a_link_has_the_name_that_was_called() {
    let scratch = Scratch::new();
    scratch.link("loopback");
    let link = scratch.file("bridge");
    symlink("loopback", &link).unwrap();
    is_bridge(Call::program(&link));
}

#[test]
fn the_name_needs_no_path() {
    is_bridge(Call::program(executable().as_ref()).arg0("bridge"));
}

#[test]
fn the_tool_runs_plugins_by_name() {
    let tool = || Call::program(executable().as_ref());
    is_bridge(tool().args(&["bridge"]));
    let bare = Bare::new();
    let call = tool().args(&["host-local"]).env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "abc");
    let call = call.env("CNI_NETNS", "/dev/null").env("CNI_IFNAME", "eth0");
    call.config(&host_local(&bare)).run().success();
    assert_eq!(bare.taken("net"), ["10.1.0.2"]);
}

#[test]
fn the_tool_is_the_tool_by_the_names_of_its_downloads() {
    let scratch = Scratch::new();
    for name in ["cnibox", "cnibox-linux-amd64", "cnibox-linux-arm64", "cnibox-0.1.0"] {
        let text = Call::program(&scratch.link(name)).args(&["--list"]).run().output();
        assert_eq!(text.lines().count(), plugin_names().len(), "{name}: {text}");
    }
}

#[test]
fn an_unknown_name_is_not_found_and_the_known_ones_are_listed() {
    let scratch = Scratch::new();
    for name in ["frobnicate", "bridgex", "xbridge", "Bridge", "host_local", "buildkit-cni-frob"] {
        let link = scratch.link(name);
        let quiet = Call::program(&link).keeping_stdin_open().run();
        assert!(quiet.status == 127 && quiet.stdout.is_empty(), "{}", quiet.report());
        assert!(quiet.stderr.contains(name), "{}", quiet.report());
        for known in plugin_names() {
            assert!(quiet.stderr.contains(&known), "{known}: {}", quiet.report());
        }
        let called = Call::program(&link).env("CNI_COMMAND", "ADD").run();
        assert!(called.status == 127, "{}", called.report());
        let error = called.error_object();
        assert!(error.msg.contains(name), "{error:?}");
    }
}

#[test]
fn an_unknown_word_names_the_nearest_command_or_plugin() {
    for (word, said) in [
        ("brigde", "there is no command or plugin brigde; did you mean bridge?"),
        ("host_local", "there is no command or plugin host_local; did you mean host-local?"),
        ("instal", "there is no command or plugin instal; did you mean install?"),
        ("hepl", "there is no command or plugin hepl; did you mean help?"),
        ("frobnicate", "there is no command or plugin frobnicate; cnibox --help lists them"),
    ] {
        let call = || Call::program(executable().as_ref()).args(&[word]);
        let outcome = call().run();
        let expected = (127, format!("cnibox: {said}\n"));
        assert_eq!((outcome.status, outcome.stderr.clone()), expected, "{}", outcome.report());
        // A runtime gets an error object.
        let called = call().env("CNI_COMMAND", "ADD").run();
        assert!(called.error_object().msg.contains(word), "{}", called.report());
    }
}

#[test]
fn plugins_find_themselves_where_there_is_no_proc() {
    let world = World::new();
    let jail = "/run/jail";
    world.host(["mkdir", "-p", "/run/jail/bin", "/run/jail/dev"]);
    world.host(["cp", "/run/bin/cnibox", "/run/jail/bin/cnibox"]);
    world.host(["ln", "/run/jail/bin/cnibox", "/run/jail/bin/bridge"]);
    world.host(["ln", "-s", "cnibox", "/run/jail/bin/host-local"]);
    is_bridge(world.tool(&["chroot", jail, "/bin/bridge"], None));

    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "/networks"},
    });
    let add = world.tool(&["chroot", jail, "/bin/host-local"], None).config(&config);
    let add = add.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "abc").env("CNI_IFNAME", "eth0");
    let result = add.env("CNI_NETNS", "/none").env("CNI_PATH", "/bin").run().success();
    assert_eq!(result["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(world.read("/run/jail/networks/net/10.1.0.2"), "abc\r\neth0");
}
