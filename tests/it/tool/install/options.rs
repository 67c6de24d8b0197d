//! Each option, and each file in the way.

use std::fs;
use std::path::Path;

use super::{DIR, NEW, Node, OLD, fails};
use crate::world::{linked_names, parse};

/// The names in the directory after an installation with these options.
fn installed(options: &[&str]) -> (Node, Vec<String>) {
    let node = Node::new();
    node.install(options).output();
    let mut names = node.names();
    names.retain(|name| name != ".cnibox.manifest");
    (node, names)
}

#[test]
fn all_names_are_hard_links_to_one_executable() {
    let (node, names) = installed(&[]);
    let mut expected = linked_names();
    expected.push("cnibox".into());
    expected.sort();
    assert_eq!(names, expected);
    for name in &names {
        assert_eq!(node.inode(name), node.inode("cnibox"), "{name}");
    }
    assert_eq!(node.manifest()["complete"], true);
}

#[test]
fn symbolic_links_lead_to_the_executable_in_the_same_directory() {
    let (node, names) = installed(&["-s", "--only", "bridge,portmap"]);
    assert_eq!(names, ["bridge", "cnibox", "portmap"]);
    assert_eq!(fs::read_link(node.file("bridge")).unwrap(), Path::new("cnibox"));
    node.version("portmap");
}

#[test]
fn copies_are_independent_files() {
    let (node, names) = installed(&["--copy", "--only", "bridge", "--only", "portmap"]);
    assert_eq!(names, ["bridge", "cnibox", "portmap"]);
    assert_ne!(node.inode("bridge"), node.inode("cnibox"));
    assert_ne!(node.inode("bridge"), node.inode("portmap"));
    let sums = node.sh("cksum bridge portmap cnibox | cut -d ' ' -f 1 | sort -u");
    assert_eq!(sums.lines().count(), 1, "{sums}");
    // The second time each copy stays.
    let before = node.inode("bridge");
    assert_eq!(node.install(&["--copy", "--only", "bridge,portmap"]).output(), "");
    assert_eq!(node.inode("bridge"), before);
}

#[test]
fn excluded_plugins_are_not_installed() {
    let (_, names) = installed(&["--exclude", "dhcp,static", "--exclude", "host-local"]);
    assert_eq!(names.len(), linked_names().len() + 1 - 3, "{names:?}");
    assert!(!names.iter().any(|name| ["dhcp", "static", "host-local"].contains(&name.as_str())));
}

#[test]
fn a_plugin_on_request_gets_its_link_when_it_is_named() {
    let (_, names) = installed(&["--with", "dnsname"]);
    assert_eq!(names.len(), linked_names().len() + 2, "{names:?}");
    assert!(names.contains(&"dnsname".to_owned()));
    let (_, names) = installed(&["--only", "bridge,dnsname"]);
    assert_eq!(names, ["bridge", "cnibox", "dnsname"]);
    let (_, names) = installed(&["--only", "bridge", "--with", "dnsname"]);
    assert_eq!(names, ["bridge", "cnibox", "dnsname"]);
    fails(&Node::new().install(&["--with", "dnsnam"]), 2, "--with dnsnam: cnibox has no plugin");
}

#[test]
fn a_prefix_is_before_each_name_and_may_be_on_path() {
    let node = Node::new();
    let install = node.command(NEW, &["install", "--prefix", "buildkit-cni-", "--only", "bridge"]);
    install.env("PATH", &format!("/usr/bin:{DIR}")).run().output();
    assert_eq!(node.names(), [".cnibox.manifest", "buildkit-cni-bridge", "cnibox"]);
    node.version("buildkit-cni-bridge");
    fails(&node.install(&["--prefix", "x-"]), 2, "--prefix x-: not buildkit-cni- or cnv-");
}

#[test]
fn an_alias_runs_its_plugin() {
    let options = ["--only", "bridge,tuning", "--alias", "cnv-bridge=bridge"];
    let (node, names) = installed(&options);
    assert_eq!(names, ["bridge", "cnibox", "cnv-bridge", "tuning"]);
    assert_eq!(node.inode("cnv-bridge"), node.inode("cnibox"));
    node.version("cnv-bridge");
    // The next installation knows the alias.
    node.command(OLD, &["install", "--only", "bridge"]).run().output();
    assert_eq!(node.inode("cnv-bridge"), node.inode("cnibox"));
}

#[test]
fn wrong_arguments_are_usage_errors_and_change_nothing() {
    let node = Node::new();
    for (options, text) in [
        (&["--alias", "bridge"][..], "it is not ALIAS=PLUGIN"),
        (&["--alias", "cnv-x=x"], "the alias is not buildkit-cni-PLUGIN or cnv-PLUGIN"),
        (&["--alias", "my-bridge=bridge"], "the alias is not buildkit-cni-PLUGIN or cnv-PLUGIN"),
        (&["--alias", "portmap=bridge"], "a call under this name runs portmap"),
        (&["--alias", "cnv-portmap=bridge"], "a call under this name runs portmap"),
        (&["--alias", "../x=bridge"], "the alias is not"),
        (&["--only", "bridge,brigde"], "--only brigde: cnibox has no plugin of that name"),
        (&["--exclude", ""], "--exclude : cnibox has no plugin of that name"),
        (&["--only", "bridge", "--exclude", "bridge"], "no plugin is chosen"),
        (&["-s", "--copy"], "exclude each other"),
        (&["--backup"], "--backup needs --force"),
    ] {
        fails(&node.install(options), 2, text);
        assert!(node.names().is_empty(), "{options:?}");
    }
}

#[test]
fn a_dry_run_prints_the_changes_and_makes_none() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let before = node.files();
    let options = ["--dry-run", "--force", "--backup", "--only", "bridge,portmap"];
    assert_eq!(
        node.install(&options).output(),
        "would create cnibox: executable\n\
         would replace bridge: hard link, in place of another program, with a backup\n\
         would create portmap: hard link\n"
    );
    assert_eq!(node.files(), before);
    let missing = ["install", "--dry-run", "/run/node/missing"];
    node.world.tool(&[&[NEW], &missing[..]].concat(), None).run().output();
    assert!(!node.world.path("/run/node/missing").exists());
    fails(&node.install(&["--dry-run"]), 1, "File exists: bridge (it is another program)");

    node.install(&options[1..]).output();
    let before = node.files();
    let removed = node.command(NEW, &["uninstall", "--dry-run"]).run().output();
    assert_eq!(removed, "would remove portmap\nwould put back bridge\nwould remove cnibox\n");
    assert_eq!(node.files(), before);
}

#[test]
fn json_documents_have_the_changes() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    let options = ["--json", "--force", "--backup", "--only", "bridge"];
    let document = parse(&node.install(&options).output());
    assert_eq!((&document["directory"], &document["dryRun"]), (&DIR.into(), &false.into()));
    let bridge = &document["changes"][1];
    assert_eq!((&bridge["name"], &bridge["action"]), (&"bridge".into(), &"replace".into()));
    assert_eq!((&bridge["replaced"], &bridge["backup"]), (&"another program".into(), &true.into()));
    node.sh("rm bridge; printf x >bridge");
    let document = parse(&node.command(NEW, &["uninstall", "--json"]).run().output());
    assert_eq!(document["changes"][0]["name"], "cnibox", "{document}");
    assert_eq!(document["left"][0]["name"], "bridge", "{document}");
}

#[test]
fn a_missing_directory_is_made() {
    let node = Node::new();
    let words = [NEW, "install", "--only", "bridge", "/run/node/a/b"];
    node.world.tool(&words, None).run().output();
    assert_eq!(node.world.host(["stat", "-c", "%a", "/run/node/a/b"]), "755\n");
    node.world.tool(&[NEW, "uninstall", "/run/node/a/b"], None).run().output();
    // It stays, and is empty.
    node.world.host(["rmdir", "/run/node/a/b"]);
    // The second time there is no directory, which is no error.
    assert_eq!(node.world.tool(&[NEW, "uninstall", "/run/node/a/b"], None).run().output(), "");
}

#[test]
fn a_file_or_a_fifo_is_no_directory() {
    let node = Node::new();
    node.world.host(["sh", "-c", "mkfifo /run/node/fifo; echo text >/run/node/file"]);
    for path in ["/run/node/fifo", "/run/node/file"] {
        for command in ["install", "uninstall"] {
            let outcome = node.world.tool(&[NEW, command, path], None).run();
            fails(&outcome, 1, "Not a directory");
        }
    }
    assert_eq!(node.world.read("/run/node/file"), "text\n");
}

#[test]
fn the_usual_directory_is_the_default() {
    let node = Node::new();
    let words = [NEW, "install", "--dry-run", "--json"];
    let document = parse(&node.world.tool(&words, None).run().output());
    assert_eq!(document["directory"], "/opt/cni/bin");
}

#[test]
fn a_directory_on_path_that_hides_a_program_needs_force() {
    let node = Node::new();
    node.world.host(["sh", "-c", "mkdir /run/node/sbin; echo >/run/node/sbin/bridge"]);
    node.world.host(["ln", "-s", DIR, "/run/node/link"]);
    for entry in [DIR, "/run/node/link", "/run/node/../node/bin/"] {
        let call = |path: &str, options: &[&str]| {
            let call = node.command(NEW, &[&["install", "--only", "bridge"], options].concat());
            call.env("PATH", path).run()
        };
        let (before, behind) =
            (format!("{entry}:/run/node/sbin"), format!("/run/node/sbin:{entry}"));
        let outcome = call(&before, &[]);
        fails(&outcome, 1, "the plugin bridge would hide /run/node/sbin/bridge");
        assert!(node.names().is_empty(), "{entry}");
        call(&before, &["--force", "--dry-run"]).output();
        call(&behind, &["--dry-run"]).output();
    }
}

#[test]
fn foreign_plugins_stay_without_force_and_nothing_changes() {
    let node = Node::new();
    node.foreign(&["bridge", "portmap"]);
    node.sh("printf text >tuning; ln -s nothing vrf");
    let before = node.files();
    let outcome = node.install(&[]);
    fails(&outcome, 1, "cannot install into /run/node/bin: File exists: bridge (it is another");
    for text in
        ["portmap (it is another program)", "tuning (it is not executable)", "vrf (its link"]
    {
        assert!(outcome.stderr.contains(text), "{}", outcome.report());
    }
    assert_eq!(node.files(), before);
    assert!(!node.exists(".cnibox.manifest"));
    node.sh("mkdir sbr");
    fails(&node.install(&["--force"]), 1, "sbr (it is not a file)");
    assert!(!node.exists("cnibox"));
}

#[test]
fn the_last_replaced_file_is_the_one_that_is_put_back() {
    let node = Node::new();
    let force = ["--force", "--backup", "--only", "bridge"];
    node.foreign(&["bridge"]);
    node.install(&force).output();
    // An upgrade keeps the backup.
    node.command(OLD, &[&["install"], &force[..]].concat()).run().output();
    node.sh("rm bridge");
    node.sh("printf '#!/bin/sh\nsecond' >bridge; chmod 700 bridge");
    node.install(&force).output();
    node.uninstall().output();
    assert_eq!(node.names(), ["bridge"]);
    assert_eq!(node.sh("cat bridge; stat -c %a bridge"), "#!/bin/sh\nsecond700\n");
}

#[test]
fn another_installation_with_fewer_names_keeps_the_others_at_the_same_build() {
    let node = Node::new();
    node.command(OLD, &["install", "--only", "bridge,portmap,tuning"]).run().output();
    node.sh("rm tuning");
    node.install(&["--only", "bridge"]).output();
    assert_eq!(node.inode("portmap"), node.inode("cnibox"));
    assert!(!node.exists("tuning"));
    node.uninstall().output();
    assert!(node.names().is_empty());
}

#[test]
fn an_upgrade_replaces_the_executable_of_a_running_plugin() {
    let node = Node::new();
    node.command(OLD, &["install", "--only", "bridge"]).run().output();
    let container = node.world.container("one");
    let call = container.call("bridge", "ADD", &serde_json::Value::Null).of_directory(DIR);
    let running = call.stdin("").keeping_stdin_open().start();
    node.world.within(60, "the plugin waits for its input", || {
        let path = format!("/proc/{}/exe", running.pid());
        fs::read_link(path).is_ok_and(|target| target.ends_with("bin/bridge"))
    });
    let said = node.install(&["--only", "bridge"]).output();
    assert!(said.contains("replaced bridge: hard link, in place of another build"), "{said}");
    assert_eq!(node.sh("cksum <bridge"), node.world.host(["sh", "-c", &format!("cksum <{NEW}")]));
    // It still runs, and its end is that of the old build.
    node.world.host(["kill", &running.pid_in_world().to_string()]);
    assert_eq!(running.finish().status, -15);
}

#[test]
fn an_installation_without_a_manifest_is_upgraded() {
    let node = Node::new();
    node.sh(&format!("cp {OLD} cnibox; ln cnibox bridge; ln -s cnibox portmap"));
    fails(&node.uninstall(), 1, "another program installed it");
    node.install(&["--only", "bridge,portmap"]).output();
    node.uninstall().output();
    assert!(node.names().is_empty());
}

#[test]
fn uninstall_leaves_files_of_others_and_names_them() {
    let node = Node::new();
    node.foreign(&["bridge"]);
    node.install(&["--force", "--backup", "--only", "bridge,portmap,tuning"]).output();
    node.sh(&format!(
        "rm bridge portmap tuning; printf '#!/bin/sh\n' >bridge; chmod 755 bridge; cp {OLD} portmap; printf x >tuning"
    ));
    let outcome = node.uninstall();
    for text in [
        "note: bridge stays: it is another program",
        "note: tuning stays: it is not executable",
        "note: .cnibox.backup stays",
    ] {
        assert!(outcome.stderr.contains(text), "{}", outcome.report());
    }
    assert_eq!(outcome.output(), "removed portmap\nremoved cnibox\n");
    assert_eq!(node.names(), [".cnibox.backup", "bridge", "tuning"]);
    assert!(node.file(".cnibox.backup/bridge").exists());
}

#[test]
fn a_damaged_manifest_is_an_error_of_uninstall_and_is_replaced_by_install() {
    let node = Node::new();
    node.install(&["--only", "bridge"]).output();
    for (text, error) in [("{", "cannot use"), ("[]", "expected struct Manifest")] {
        node.sh(&format!("printf '{text}' >.cnibox.manifest"));
        fails(&node.uninstall(), 1, error);
    }
    // No name in it leads out of the directory.
    node.sh("printf x >../victim");
    node.sh(
        r#"sed -i 's/.*/{"names":[{"name":"..\/victim"},{"name":"cnibox"}]}/' .cnibox.manifest"#,
    );
    node.uninstall();
    assert!(node.world.path("/run/node/victim").exists());
    let outcome = node.install(&["--only", "bridge"]);
    assert_eq!(outcome.status, 0, "{}", outcome.report());
    node.uninstall().output();
    assert!(node.names().is_empty());
}

#[test]
fn wait_ends_with_a_signal_and_exit_code_0() {
    for signal in ["TERM", "INT"] {
        let node = Node::new();
        let running = node.command(NEW, &["install", "--only", "bridge", "--wait"]).start();
        node.world.eventually("the installation is complete", || {
            node.exists(".cnibox.manifest") && node.manifest()["complete"] == true
        });
        node.world.host(["sh", "-c", &format!("kill -{signal} {}", running.pid_in_world())]);
        let outcome = running.finish();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
}

#[test]
fn each_executable_file_runs_without_arguments() {
    // As Nomad does. A directory is no program, so it has no right of execution either.
    let node = Node::new();
    node.foreign(&["bridge"]);
    node.install(&["--force", "--backup", "-s", "--alias", "cnv-bridge=bridge"]).output();
    let mut count = 0;
    for line in node.sh("find . -mindepth 1 -maxdepth 1 -perm /111").lines() {
        let path = format!("{DIR}/{line}");
        let outcome = node.world.tool(&[&path], None).run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        count += 1;
    }
    assert_eq!(count, linked_names().len() + 2);
}
