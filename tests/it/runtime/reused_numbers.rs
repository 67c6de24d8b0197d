//! Numbers that the kernel chose for the namespaces of containers. It gives the number of an ended namespace to a later one.

use super::Host;
use super::evidence::{Maker, host};
use super::liveness::SOCKET;
use crate::world::{Container, Running};

impl Host {
    /// A container with a number of the kernel, attached by another runtime.
    fn numbered(&self, id: &str) -> (Container<'_>, String) {
        let container = self.world.container(id);
        let number = container.number();
        self.attach(Maker::Libcni, id, &container.netns());
        (container, number)
    }

    /// Ends a container. Returns a later namespace, which has its number.
    fn succeeded(&self, (ended, number): (Container<'_>, String), later: &str) -> Container<'_> {
        ended.destroy();
        self.world.eventually("the number is free", || {
            !self.world.host(["ip", "netns", "list-id"]).contains(&format!("nsid {number} "))
        });
        let later = self.world.container(later);
        assert_eq!(later.number(), number, "the kernel uses the number again");
        later
    }

    fn stop(&self, process: Running) {
        self.world.host(["kill", &process.pid_in_world().to_string()]);
        process.finish();
    }

    /// gc removes c1 and keeps c0.
    #[track_caller]
    fn collects_only_c1(&self) {
        assert_eq!((self.life("c0"), self.life("c1")), ("alive".into(), "gone".into()));
        let said = self.cnibox(&["gc"]).run().output();
        let expected =
            "removed eth0 of container c1 from network net: its network namespace has ended\n";
        assert_eq!(said, expected);
        assert_eq!(self.life("c0"), "alive");
        assert_eq!(self.life("c1"), "nothing");
        assert!(!self.world.path(self.record_of("net", "c1")).exists());
    }
}

#[test]
fn the_cookie_of_a_later_namespace_with_the_number_proves_the_end() {
    for (name, has_process, has_mount) in [
        ("c2", false, true),
        ("c2", true, false),
        // It is also at the path of the first one.
        ("c1", false, true),
    ] {
        let host = host();
        let (living, _) = host.numbered("c0");
        let later = host.succeeded(host.numbered("c1"), name);
        let process = has_process.then(|| later.tool(["cat"]).keeping_stdin_open().start());
        if !has_mount {
            host.unname(name);
        }
        host.collects_only_c1();
        living.ping("10.1.0.1");
        process.into_iter().for_each(|process| host.stop(process));
    }
}

#[test]
fn a_living_container_has_its_number_and_its_cookie() {
    let host = host();
    let (container, _) = host.numbered("c1");
    let process = container.tool(["cat"]).keeping_stdin_open().start();
    let mount =
        "mkdir -p /run/other && touch /run/other/ns && mount --bind /run/netns/c1 /run/other/ns";
    host.world.host(["sh", "-c", mount]);
    host.unname("c1");
    let _another_at_its_path = host.world.container("c1");
    assert_eq!(host.life("c1"), "alive");
    host.stop(process);
    assert_eq!(host.life("c1"), "alive", "it is mounted elsewhere");
    host.cnibox(&["gc"]).run().silence();
    host.world.host(["umount", "/run/other/ns"]);
    host.world.eventually("it has ended", || host.life("c1") == "gone");
    host.gc_until_nothing_is_kept();
}

#[test]
fn a_namespace_that_nothing_shows_is_unknown() {
    let host = host();
    // A socket alone holds the namespace of c1, and the later one with the number of c2.
    let (first, number) = host.numbered("c1");
    let hold = |container: &Container<'_>| {
        let call = host.world.tool(&["python3", "-c", SOCKET, &container.netns()], None);
        let holder = call.start();
        host.world.eventually("the socket is held", || host.world.path("/run/held").exists());
        host.world.host(["rm", "/run/held"]);
        holder
    };
    let of_first = hold(&first);
    host.unname("c1");
    let second = host.numbered("c2");
    assert_ne!(number, second.1);
    let later = host.succeeded(second, "c3");
    let of_later = hold(&later);
    host.unname("c3");
    for _ in 0..2 {
        assert_eq!((host.life("c1"), host.life("c2")), ("unknown".into(), "unknown".into()));
        host.cnibox(&["gc"]).run().silence();
    }
    host.stop(of_first);
    host.stop(of_later);
    host.world.eventually("both have ended", || {
        (host.life("c1"), host.life("c2")) == ("gone".into(), "gone".into())
    });
    host.gc_until_nothing_is_kept();
}

#[test]
fn a_namespace_that_cannot_be_read_proves_nothing() {
    let host = host();
    let (_living, _) = host.numbered("c0");
    let later = host.succeeded(host.numbered("c1"), "c2");
    let process = later.tool(["cat"]).keeping_stdin_open().start();
    let without = |capabilities: &str| {
        let limit = format!("--bounding-set={capabilities}");
        host.cnibox(&["gc"]).under(&["setpriv", &limit]).run()
    };
    // gc cannot enter the later namespace.
    without("-sys_admin").silence();
    host.unname("c2");
    // gc cannot open the later namespace: EACCES.
    without("-sys_ptrace").silence();
    assert_eq!(host.ids(), ["c0", "c1"]);
    host.collects_only_c1();
    host.stop(process);
}

#[test]
fn a_namespace_that_cannot_be_read_hides_no_proof() {
    let host = host();
    let (_living, _) = host.numbered("c0");
    let _later = host.succeeded(host.numbered("c1"), "c2");
    let hidden = host.world.container("c3");
    let process = hidden.tool(["cat"]).keeping_stdin_open().start();
    let gc = host.cnibox(&["gc"]).under(&["setpriv", "--bounding-set=-sys_ptrace"]).run();
    let said = gc.output();
    assert!(said.starts_with("removed eth0 of container c1"), "{said}");
    assert_eq!(host.ids(), ["c0"]);
    host.stop(process);
}
