//! A read that fails is reported. It does not count as absence.

use serde_json::{Value, json};

use super::{Host, list, printing};
use crate::world::{Outcome, parse};

const TRACE: &str = "/run/trace";
const ERRORS: [&str; 3] = ["EACCES", "EIO", "EMFILE"];

impl Host {
    /// Runs cnibox while these system calls with the path fail.
    fn failing(&self, words: &[&str], (path, calls, error): (&str, &str, &str)) -> Outcome {
        let inject = format!("inject={calls}:error={error}:when=1+");
        let strace = ["strace", "-f", "-qq", "-o", TRACE, "-P", path, "-e", &inject];
        let outcome = self.cnibox(words).under(&strace).run();
        assert!(self.world.read(TRACE).contains("INJECTED"), "{path}: {}", outcome.report());
        outcome
    }

    /// A network with an address of `host-local` for each container.
    fn of_addresses(name: &str) -> Value {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}]]});
        let mut network = list("1.1.0", &[]);
        network["name"] = name.into();
        network["plugins"] = json!([{"type": "bridge", "bridge": "cni0", "ipam": ipam}]);
        network
    }
}

fn says(outcome: &Outcome, status: i32, text: &str) {
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    let is_right = outcome.status == status && said.contains(text);
    assert!(is_right, "expected {status}, {text}: {}", outcome.report());
}

/// The path can lead to the host's namespace when the plugin opens it.
#[test]
fn no_plugin_is_executed_for_a_del_whose_namespace_cannot_be_opened() {
    for error in ERRORS {
        let host = Host::new();
        host.recorder("rec", &printing(&json!({"cniVersion": "1.1.0"})));
        host.configure("1.conflist", &list("1.1.0", &["rec"]));
        let c1 = host.world.container("c1");
        host.cnibox(&["add", "net", "c1"]).run().success();
        host.seen();
        let fault = (&*c1.netns(), "openat,open", error);
        let outcome = host.failing(&["del", "net", "c1"], fault);
        assert_eq!(host.titles(), [""; 0], "{error}: {}", outcome.report());
        says(&outcome, 1, &format!("cannot open {}", c1.netns()));
        host.cnibox(&["del", "net", "c1"]).run().silence();
        assert_eq!(host.titles(), ["rec DEL"]);
        assert_eq!(host.kept(), [""; 0]);
    }
}

/// A reservation without a cache entry, whose network has no configuration: its record is the proof of its end.
fn leaked() -> (Host, String) {
    let host = Host::new();
    host.configure("1.conflist", &Host::of_addresses("gone"));
    let c1 = host.world.container("c1");
    host.cnibox(&["add", "gone", "c1", "--container-id", "c1"]).run().success();
    c1.destroy();
    host.world.host(["sh", "-ec", "rm /run/net.d/1.conflist /var/lib/cni/results/gone-*"]);
    host.forget_requests();
    host.world.eventually("the container has ended", || {
        let survey = host.cnibox(&["ipam", "list", "--json"]).run().output();
        parse(&survey).to_string().contains("gone")
    });
    let record = host.record_of("gone", "c1");
    (host, record)
}

#[test]
fn a_pool_that_cannot_be_read_is_not_an_empty_one() {
    const POOL: &str = "/var/lib/cni/networks/gone";
    let cases = [("stat,statx,newfstatat", &ERRORS[..2]), ("open,openat,getdents64", &ERRORS[..])];
    for (calls, errors) in cases {
        for error in errors {
            let (host, record) = leaked();
            let outcome = host.failing(&["gc"], (POOL, calls, error));
            says(&outcome, 1, POOL);
            let left = [record.as_str(), "/var/lib/cni/networks/gone/10.2.0.2"];
            for path in left {
                assert!(
                    host.world.path(path).exists(),
                    "{calls} {error}, {path}: {}",
                    outcome.report()
                );
            }
            says(&host.failing(&["doctor"], (POOL, calls, error)), 1, POOL);
            host.cnibox(&["gc"]).run();
            for path in left {
                assert!(!host.world.path(path).exists(), "{path}");
            }
        }
    }
}

/// Network `a-b` with container `c` has the same file as network `a` with container `b-c`.
#[test]
fn a_cache_entry_that_cannot_be_read_can_be_of_another_attachment() {
    const ENTRY: &str = "/var/lib/cni/results/a-b-c-eth0";
    for error in ERRORS {
        let host = Host::new();
        host.recorder("rec", &printing(&json!({"cniVersion": "1.1.0"})));
        for name in ["a", "a-b"] {
            let mut network = list("1.1.0", &["rec"]);
            network["name"] = name.into();
            host.configure(&format!("{name}.conflist"), &network);
        }
        let [_one, _other] = ["c1", "c2"].map(|name| host.world.container(name));
        host.cnibox(&["add", "a-b", "c1", "--container-id", "c"]).run().success();
        let whole = host.world.read(ENTRY);
        let other = ["a", "c2", "--container-id", "b-c"];
        for verb in ["add", "del"] {
            let outcome =
                host.failing(&[&[verb][..], &other].concat(), (ENTRY, "open,openat", error));
            says(&outcome, 1, ENTRY);
            assert!(host.world.path(ENTRY).exists(), "{verb} {error}: {}", outcome.report());
            assert_eq!(host.world.read(ENTRY), whole);
        }
        host.cnibox(&[&["del"][..], &other].concat()).run().silence();
        assert_eq!(host.world.read(ENTRY), whole);
        host.cnibox(&["check", "a-b", "c1", "--container-id", "c"]).run().silence();
    }
}

/// Without the configuration of the ADD, that of the directory decides, as it does for the DEL.
#[test]
fn disable_gc_counts_although_the_cached_configuration_cannot_be_read() {
    let host = Host::new();
    host.recorder("rec", &printing(&json!({"cniVersion": "1.1.0"})));
    let mut network = list("1.1.0", &["rec"]);
    network["disableGC"] = true.into();
    host.configure("1.conflist", &network);
    let c1 = host.world.container("c1");
    host.cnibox(&["add", "net", "c1", "--container-id", "c1"]).run().success();
    c1.destroy();
    let entry = "/var/lib/cni/results/net-c1-eth0";
    host.world.host(["sed", "-i", "s/\"config\":\"[^\"]*\"/\"config\":\"e30=\"/", entry]);
    host.seen();
    for _ in 0..3 {
        let outcome = host.cnibox(&["gc"]).run();
        assert_eq!((outcome.status, host.titles()), (0, vec![]), "{}", outcome.report());
    }
    assert!(host.world.path(entry).exists());
}
