//! `cnibox completion`: the words that a shell offers.

use serde_json::json;

use super::cnibox;
use crate::world::World;

/// A host with the network `dbnet` and the namespace `web`.
fn world() -> World {
    let world = World::new();
    world.host(["mkdir", "-p", "/run/net.d"]);
    let network =
        json!({"cniVersion": "1.0.0", "name": "dbnet", "plugins": [{"type": "loopback"}]});
    world.write("/run/net.d/10-dbnet.conflist", network.to_string());
    world.host(["ip", "netns", "add", "web"]);
    world.write("/var/lib/cni/networks/dbnet/10.1.0.7", "one\r\neth0");
    world
}

#[test]
fn words_are_those_that_the_command_line_can_go_on_with() {
    let world = world();
    let cases: [(&[&str], &[&str], &str); 17] = [
        (&[""], &["add", "lint", "networks"], "bridge"),
        (&["add", ""], &["dbnet"], "web"),
        (&["add", "dbnet", ""], &["web"], "dbnet"),
        (&["del", "-"], &["--container-id"], "dbnet"),
        (&["exec", ""], &["web"], "dbnet"),
        (&["run", "-n", ""], &["dbnet"], "web"),
        (&["help", ""], &["bridge", "host-local", "add"], "dbnet"),
        (&["help", "-"], &["--markdown", "-h"], "dbnet"),
        (&["help", "networks", ""], &["create", "inspect"], "bridge"),
        (&["man", ""], &["bridge", "run", "help", "network"], "dbnet"),
        (&["man", "networks", ""], &["create", "inspect"], "bridge"),
        (&["man", "-"], &["--to"], "bridge"),
        (&["networks", "rm", ""], &["dbnet"], "web"),
        (&["ipam", ""], &["list", "leaks", "release", "reserve"], "dbnet"),
        (&["ipam", "list", "--network", ""], &["dbnet"], "web"),
        (&["ipam", "release", ""], &["10.1.0.7"], "dbnet"),
        (&["completion", ""], &["bash", "zsh", "fish"], "dbnet"),
    ];
    for (words, offered, other) in cases {
        let args = [&["completion", "words", "--"], words].concat();
        let printed = cnibox(&world, &args).env("NETCONFPATH", "/run/net.d").run().output();
        let lines: Vec<&str> = printed.lines().collect();
        assert!(offered.iter().all(|word| lines.contains(word)), "{words:?}: {printed}");
        assert!(!lines.contains(&other), "{words:?}: {printed}");
    }
}

/// Runs a script of a shell with `cnibox` on PATH.
fn in_shell(shell: &str, script: &str) -> String {
    let world = world();
    let call = world.tool(&[shell, "-c", script], None).env("NETCONFPATH", "/run/net.d");
    call.env("PATH", "/run/bin:/usr/bin:/bin").run().output()
}

#[test]
fn bash_completes_networks() {
    let script = ". <(cnibox completion bash)
        COMP_WORDS=(cnibox add db) COMP_CWORD=2
        _cnibox
        echo \"${COMPREPLY[@]}\"";
    assert_eq!(in_shell("bash", script), "dbnet\n");
}

#[test]
fn zsh_completes_networks() {
    let script = "compdef() { }
        compadd() { shift; print -l -- \"$@\" }
        . <(cnibox completion zsh)
        words=(cnibox add '') CURRENT=3
        _cnibox";
    assert_eq!(in_shell("zsh", script), "dbnet\n");
}

#[test]
fn fish_completes_networks() {
    let script = "cnibox completion fish | source; complete -C 'cnibox add db'";
    assert_eq!(in_shell("fish", script), "dbnet\n");
}

#[test]
fn an_unknown_shell_is_an_error() {
    let outcome = cnibox(&World::new(), &["completion", "tcsh"]).run();
    assert_eq!(outcome.status, 2, "{}", outcome.report());
    assert!(outcome.stderr.contains("bash, zsh, fish"), "{}", outcome.report());
}
