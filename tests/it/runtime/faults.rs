//! Every request to the kernel, and every operation on a file, fails once, in the runtime as in a plugin.

use super::killed::leave_a_namespace;
use super::{Host, network};
use crate::faults::{Effect, for_every_fault};
use crate::world::{Call, Outcome, State};

const FAULTS: [&str; 2] = ["CNIBOX_FAIL_KERNEL", "CNIBOX_FAIL_FILE"];
const ADD: [&str; 5] = ["add", "net", "c1", "-p", "8080:80"];
const DEL: [&str; 3] = ["del", "net", "c1"];
const CREATE: [&str; 6] = ["add", "net", "web", "--create", "-p", "8080:80"];
const DELETE: [&str; 4] = ["del", "net", "web", "--delete"];

impl Host {
    /// Leaves nothing, if the attachment is whole.
    fn end(&self, netns: &str, del: &[&str]) {
        self.cnibox(&["check", "net", netns]).run().silence();
        self.cnibox(del).run().silence();
    }
}

/// Runs `call` on a host with each fault, once for each number. `after` sees the outcome; then nothing may be left.
fn at_every_fault<'a>(
    host: &'a Host,
    before: &State,
    call: impl Fn() -> Call<'a>,
    after: impl Fn(&Outcome),
) {
    for fault in FAULTS {
        let failures = for_every_fault(|number| {
            let outcome = call().env(fault, &number.to_string()).run();
            let when = format!("{fault}={number}: {}", outcome.report());
            let effect = Effect::on(&outcome);
            assert!(effect != Effect::Failure || outcome.stderr.contains("cannot "), "{when}");
            after(&outcome);
            assert_eq!(host.kept(), [""; 0], "{when}");
            host.world
                .eventually("nothing is left", || before.difference(&host.state()).is_empty());
            before.assert_same(&host.state(), &when);
            effect
        });
        assert!(failures > 3, "{fault}: {failures}");
    }
}

fn host() -> (Host, State) {
    let host = Host::new();
    host.configure("1.conflist", &network());
    host.world.container("c1");
    host.cnibox(&ADD).run().success();
    host.cnibox(&DEL).run().silence();
    let before = host.state();
    (host, before)
}

#[test]
fn a_failing_add_leaves_nothing() {
    let (host, before) = host();
    for (add, netns, del) in [(&ADD[..], "c1", &DEL[..]), (&CREATE, "web", &DELETE)] {
        at_every_fault(
            &host,
            &before,
            || host.cnibox(add),
            |outcome| {
                if outcome.status == 0 {
                    return host.end(netns, del);
                }
                assert_eq!(outcome.status, 1, "{}", outcome.report());
                // After a failed undo, gc removes the rest.
                host.cnibox(&["gc"]).run().output();
                assert!(!host.world.path("/run/netns/web").exists(), "{}", outcome.report());
            },
        );
    }
}

#[test]
fn an_attachment_that_cannot_be_recorded_as_made_is_deleted_at_once() {
    let (host, before) = host();
    // A DEL with the same fault is repeated by gc, so the command tells whether both attachments were made.
    for call in [&ADD[..], &["run", "-n", "net", "-n", "net:eth7", "--", "touch", "/run/attached"]]
    {
        let mut met = 0;
        for_every_fault(|number| {
            let outcome = host.cnibox(call).env("CNIBOX_FAIL_FILE", &number.to_string()).run();
            let is_attached = std::fs::remove_file(host.world.path("/run/attached")).is_ok();
            let said = "cnibox: cannot write /var/lib/cni/attachments/";
            if outcome.stderr.starts_with(said) && !is_attached {
                met += 1;
                assert_eq!(host.kept(), [""; 0], "{}", outcome.report());
                let is_same = || before.difference(&host.state()).is_empty();
                host.world.eventually("nothing is left", is_same);
            }
            host.cnibox(&["gc"]).run().output();
            if outcome.status == 0 && call == ADD {
                host.cnibox(&DEL).run().silence();
            }
            Effect::on(&outcome)
        });
        assert!(met > 0, "{call:?}: the fault was never met");
    }
}

#[test]
fn a_failing_del_is_repeated_by_gc() {
    let (host, before) = host();
    let call = || {
        host.cnibox(&ADD).run().success();
        host.cnibox(&DEL)
    };
    at_every_fault(&host, &before, call, |outcome| {
        if outcome.status == 0 {
            return;
        }
        host.cnibox(&["gc"]).run().output();
        // The DEL had done nothing, so the attachment lives.
        if !host.kept().is_empty() {
            host.end("c1", &DEL);
        }
    });
}

#[test]
fn a_failing_gc_is_repeated_by_the_next_one() {
    let (host, before) = host();
    let call = || {
        leave_a_namespace(&host);
        host.cnibox(&["gc"])
    };
    at_every_fault(&host, &before, call, |_| {
        host.gc_until_nothing_is_kept();
        assert!(!host.world.path("/run/netns/web").exists());
    });
}
