//! Named namespaces of killed processes: GC removes those that the runtime made and that nothing uses.

use super::{Host, list, network};

const PATH: &str = "/run/netns/web";
const GC: [&str; 1] = ["gc"];

/// A host with a namespace `web` that a killed `cnibox add --create` made.
fn host() -> Host {
    let host = Host::new();
    host.recorder("hangs", "touch /run/hangs; exec sleep 300");
    host.configure("1.conflist", &list("1.1.0", &["hangs"]));
    let running = host.cnibox(&["add", "net", "web", "--create"]).start();
    let hangs = host.world.path("/run/hangs");
    host.world.eventually("the plugin runs", || hangs.exists());
    host.world.host(["kill", "-KILL", &running.pid_in_world().to_string()]);
    assert_eq!(running.finish().status, -9);
    host.recorder("hangs", "");
    host.configure("1.conflist", &network());
    assert!(is_namespace(&host));
    host
}

fn is_namespace(host: &Host) -> bool {
    let call = host.world.tool(&["nsenter", &format!("--net={PATH}"), "true"], None);
    call.run().status == 0
}

#[test]
fn a_dry_run_tells_of_the_attachment_and_keeps_the_namespace() {
    let host = host();
    let text = host.cnibox(&["gc", "--dry-run"]).run().output();
    assert!(text.starts_with("would remove eth0 of container "), "{text}");
    assert!(is_namespace(&host));
    let text = host.cnibox(&GC).run().output();
    assert!(text.starts_with("removed eth0 of container "), "{text}");
    assert!(!host.world.path(PATH).exists());
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_next_add_with_create_replaces_it() {
    let host = host();
    host.cnibox(&["add", "net", "web", "--create"]).run().success();
    host.cnibox(&GC).run().silence();
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn gc_keeps_it_while_a_process_is_in_it() {
    let host = host();
    let process = host.world.tool(&["cat"], Some(PATH)).keeping_stdin_open().start();
    host.cnibox(&GC).run().silence();
    assert!(is_namespace(&host));
    let create = host.cnibox(&["add", "net", "web", "--create"]).run();
    assert!(create.status == 1 && create.stderr.contains("exists already"), "{}", create.report());
    host.world.host(["kill", &process.pid_in_world().to_string()]);
    process.finish();
    let gc = host.cnibox(&GC).run().output();
    assert!(gc.starts_with("removed eth0 of container "), "{gc}");
    assert!(!host.world.path(PATH).exists());
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn gc_keeps_it_while_an_attachment_is_in_it() {
    let host = host();
    host.cnibox(&["add", "net", "web"]).run().success();
    host.cnibox(&GC).run().silence();
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.cnibox(&["del", "net", "web"]).run().silence();
    host.cnibox(&GC).run().silence();
    assert!(!host.world.path(PATH).exists());
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn gc_keeps_a_namespace_that_another_program_made_with_its_name() {
    let host = host();
    // The kernel gives the new namespace the number of the old one.
    host.world.host(["ip", "netns", "del", "web"]);
    host.world.host(["ip", "netns", "add", "web"]);
    host.gc_until_nothing_is_kept();
    assert!(is_namespace(&host));
}

#[test]
fn gc_keeps_the_namespace_of_a_complete_add() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.cnibox(&["add", "net", "web", "--create"]).run().success();
    host.cnibox(&["del", "net", "web"]).run().silence();
    host.cnibox(&GC).run().silence();
    assert!(is_namespace(&host));
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_namespace_is_made_where_proc_has_other_process_ids() {
    let host = Host::new();
    host.configure("1.conflist", &network());
    let add = host.cnibox(&["add", "net", "web", "--create"]);
    add.under(&["unshare", "--pid", "--fork"]).run().success();
    host.cnibox(&["check", "net", "web"]).run().silence();
    host.cnibox(&["del", "net", "web", "--delete"]).run().silence();
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn the_namespace_of_a_huge_lock_is_kept_and_so_is_the_lock() {
    const LOCK: &str = "/run/cnibox/locks/namespace-web";
    let host = host();
    assert!(host.world.read(LOCK).starts_with("attachment "), "{}", host.world.read(LOCK));
    host.world.host(["truncate", "-s", "100G", LOCK]);
    let outcome = host.cnibox(&GC).under(&["prlimit", "--as=268435456"]).run();
    let warning = format!("warning: cannot read {LOCK}: it has more than 4096 bytes\n");
    assert!(outcome.stderr.contains(&warning), "{}", outcome.report());
    assert!(is_namespace(&host) && host.world.path(LOCK).exists());
}

#[test]
fn gc_keeps_it_while_a_link_in_it_leads_to_a_third_namespace() {
    let host = host();
    // The process of the container is in a namespace of its own, as that of a VPN is.
    host.world.container("inner");
    let veth = ["ip", "-netns", "web", "link", "add", "v0", "type", "veth", "peer", "name", "v1"];
    host.world.tool(&[&veth[..], &["netns", "inner"]].concat(), None).output_of_success();
    host.cnibox(&GC).run().silence();
    assert!(is_namespace(&host));
    host.world.host(["ip", "-netns", "web", "link", "del", "v0"]);
    let gc = host.cnibox(&GC).run().output();
    assert!(gc.starts_with("removed eth0 of container "), "{gc}");
    assert!(!host.world.path(PATH).exists());
}

#[test]
fn gc_removes_a_namespace_that_is_mounted_more_than_once() {
    let host = host();
    host.world.host(["mount", "--bind", PATH, PATH]);
    host.world.host(["mount", "--bind", PATH, PATH]);
    let gc = host.cnibox(&GC).run().output();
    assert!(gc.starts_with("removed eth0 of container "), "{gc}");
    assert!(!host.world.path(PATH).exists());
    assert_eq!(host.kept(), [""; 0]);
}

#[test]
fn a_namespace_that_covers_another_stays_mounted() {
    let host = host();
    host.world.write("/run/aside", "");
    for [from, to] in [[PATH, "/run/aside"], ["/run/netns/other", PATH], ["/run/aside", PATH]] {
        if from == "/run/netns/other" {
            host.world.host(["umount", PATH]);
            host.world.host(["ip", "netns", "add", "other"]);
        }
        host.world.host(["mount", "--bind", from, to]);
    }
    host.world.host(["umount", "/run/aside"]);
    let mounts = || {
        let mounts = host.world.host(["cat", "/proc/self/mountinfo"]);
        mounts.lines().filter(|line| line.contains(PATH)).count()
    };
    let before = mounts();
    let gc = host.cnibox(&GC).run();
    let warning = format!("cannot remove {PATH}: another file is mounted there, too\n");
    assert!(gc.stderr.contains(&warning), "{}", gc.report());
    assert!(is_namespace(&host));
    assert_eq!(mounts(), before);
}

/// Starts a process of `cnibox run --name web` in a namespace of its own, which uses that of the command through a macvlan. Then
/// kills the run, and so its command.
fn descendant_of_a_killed_run(host: &Host, keeps_files: bool) -> String {
    host.configure("1.conflist", &network());
    let close = if keeps_files { "" } else { "os.closerange(3, 1024); " };
    let inner = format!(
        r#"import os; open("/run/inner", "w").write(str(os.getpid())); {close}os.execlp("sleep", "sleep", "1000")"#
    );
    let script = format!(
        "setsid unshare --net python3 -c '{inner}' </dev/null >/dev/null 2>&1 & while ! [ -s /run/inner ]; do sleep 0.05; done
        until [ \"$(readlink /proc/$(cat /run/inner)/exe)\" = \"$(readlink -f $(command -v sleep))\" ]; do sleep 0.05; done
        ip link add link eth0 name m0 type macvlan mode bridge; ip link set m0 netns $(cat /run/inner)"
    );
    let running = host.start(&["-n", "net", "--name", "web"], &script);
    let inner = host.world.read("/run/inner").trim().to_owned();
    let enter = ["nsenter", "--net", "--target", &inner, "sh", "-c"];
    let up = "ip address add 10.1.0.77/24 dev m0 && ip link set m0 up";
    host.world.tool(&[&enter[..], &[up]].concat(), None).output_of_success();
    host.signal("KILL", &running);
    running.finish();
    host.world.eventually("no process is in the namespace of the command", || {
        host.world.tool(&["ip", "netns", "pids", "web"], None).run().output().is_empty()
    });
    inner
}

#[test]
fn gc_keeps_it_while_a_descendant_of_the_command_lives_elsewhere() {
    let host = Host::new();
    let inner = descendant_of_a_killed_run(&host, true);
    let ping = "ping -c 1 -W 60 10.1.0.1";
    let enter = ["nsenter", "--net", "--target", &inner, "sh", "-c", ping];
    for _ in 0..2 {
        host.cnibox(&GC).run().silence();
        host.world.tool(&enter, None).output_of_success();
    }
    assert!(is_namespace(&host));
    // The descendant cannot write the note of the lock.
    let files = format!(
        "grep -h flags: /proc/{inner}/fdinfo/$(basename $(find /proc/{inner}/fd -lname '*/namespace-web'))"
    );
    let flags = host.world.host(["sh", "-c", &files]);
    assert!(flags.trim().ends_with('0'), "{flags}");
    host.world.host(["kill", &inner]);
    host.world.eventually("gc removes it", || {
        host.cnibox(&GC).run().output().starts_with("removed eth0 of container ")
    });
    assert!(!host.world.path(PATH).exists());
    host.gc_until_nothing_is_kept();
}

#[test]
fn gc_does_not_see_a_descendant_that_closed_its_files() {
    let host = Host::new();
    let inner = descendant_of_a_killed_run(&host, false);
    host.world.eventually("gc removes it", || {
        host.cnibox(&GC).run().output().starts_with("removed eth0 of container ")
    });
    host.world.host(["kill", &inner]);
    host.gc_until_nothing_is_kept();
}
