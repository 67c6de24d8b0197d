//! Every request to the kernel, and every operation on a file, fails once, in the runtime as in a plugin.

use super::{Host, network};
use crate::faults::for_every_fault;

const FAULTS: [&str; 2] = ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"];
const ADD: [&str; 5] = ["add", "net", "c1", "-p", "8080:80"];

fn host() -> Host {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    host.cnibox(&ADD).run().success();
    host.cnibox(&["del", "net", "c1"]).run().silence();
    host
}

#[test]
fn a_failing_add_leaves_nothing() {
    for fault in FAULTS {
        let host = host();
        let before = host.state();
        let failures = for_every_fault(|number| {
            let outcome = host.cnibox(&ADD).env(fault, &number.to_string()).run();
            let failed = outcome.status != 0;
            let when = format!("{fault}={number}: {}", outcome.report());
            if failed {
                assert!(outcome.status == 1 && outcome.stderr.contains("cannot "), "{when}");
                // After a failed undo, gc removes the rest.
                host.cnibox(&["gc"]).run().output();
            } else {
                host.cnibox(&["check", "net", "c1"]).run().silence();
                host.cnibox(&["del", "net", "c1"]).run().silence();
            }
            assert_eq!(host.kept(), [""; 0], "{when}");
            before.assert_same(&host.state(), &when);
            failed
        });
        assert!(failures > 5, "{fault}: {failures}");
    }
}

#[test]
fn a_failing_del_is_repeated_by_gc() {
    for fault in FAULTS {
        let host = host();
        let before = host.state();
        let failures = for_every_fault(|number| {
            host.cnibox(&ADD).run().success();
            let del = host.cnibox(&["del", "net", "c1"]).env(fault, &number.to_string());
            let outcome = del.run();
            let failed = outcome.status != 0;
            let when = format!("{fault}={number}: {}", outcome.report());
            if failed {
                assert!(outcome.stderr.contains("cannot "), "{when}");
                let gc = host.cnibox(&["gc"]).run();
                assert_eq!(gc.status, 0, "{when}, then {}", gc.report());
                // Nothing was done yet, so it lives.
                if !host.kept().is_empty() {
                    host.cnibox(&["check", "net", "c1"]).run().silence();
                    host.cnibox(&["del", "net", "c1"]).run().silence();
                }
            }
            assert_eq!(host.kept(), [""; 0], "{when}");
            before.assert_same(&host.state(), &when);
            failed
        });
        assert!(failures > 5, "{fault}: {failures}");
    }
}
