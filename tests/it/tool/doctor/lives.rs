//! Attachments that begin or end while `doctor` reads, that may have ended, or that the cache lacks.

use super::attachments::{call, host, on_this_host};
use super::doctor;

#[test]
fn an_attachment_that_is_added_or_removed_meanwhile_is_no_fault() {
    let world = host();
    let again = "while test ! -e /run/stop; do
        cnibox add a c3 --create && cnibox del a c3 --delete || touch /run/failed; done";
    let adds = world.tool(&["sh", "-c", &on_this_host(again)], None).start();
    for _ in 0..12 {
        let outcome = doctor(&world, &[]);
        assert_eq!(outcome.status, 0, "{}", outcome.report());
    }
    world.host(["touch", "/run/stop"]);
    world.eventually("the last DEL has ended", || {
        world.host(["ip", "netns", "list"]).lines().count() == 2
    });
    drop(adds);
    assert!(!world.path("/run/failed").exists());
}

#[test]
fn attachments_that_may_have_ended_are_listed_and_counted() {
    let world = host();
    // The result of the one names the addresses of the other.
    let change = "sed -i 's/10.1.0.2/10.1.0.3/g; s/fd00:1::2/fd00:1::3/g' /var/lib/cni/results/a-*";
    world.host(["sh", "-c", change]);
    let listed = call(&world, &["attachments"]);
    assert!(listed.stdout.contains("unknown"), "{}", listed.report());
    let outcome = doctor(&world, &[]);
    let expected = "no fault found in 1 network and 1 attachment; 1 attachment may have ended\n";
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, expected), "{}", outcome.report());
    for text in ["note: eth0 of container ", "fix: cnibox gc --unknown a/"] {
        assert!(outcome.stderr.contains(text), "{}", outcome.report());
    }
}

#[test]
fn an_attachment_that_the_cache_lacks_is_a_note_and_counts() {
    let world = host();
    world.host(["sh", "-c", "rm $(ls -d /var/lib/cni/results/a-* | head -n 1)"]);
    let outcome = doctor(&world, &[]);
    let expected = "no fault found in 1 network and 2 attachments\n";
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, expected), "{}", outcome.report());
    let text = "lives, and the cache has no entry of it";
    assert!(outcome.stderr.contains(text), "{}", outcome.report());
}

/// The DEL of an attachment ends after its entry was read, and before the kernel is asked whether it lives.
#[test]
fn an_attachment_that_is_removed_since_it_was_read_is_no_fault() {
    let world = host();
    let doctor = "entry=$(grep -l /run/netns/c1 /var/lib/cni/results/a-*)
        strace -f -o /run/trace -P $entry -e trace=close -e inject=close:delay_exit=1s:when=2 cnibox doctor >/run/doctor 2>&1";
    let running = world.tool(&["sh", "-c", &on_this_host(doctor)], None).start();
    world.eventually("doctor has read the entry", || {
        world.host(["sh", "-c", "cat /run/trace 2>/dev/null || true"]).matches("close(").count()
            == 2
    });
    let removed = call(&world, &["del", "a", "c1", "--delete"]);
    assert_eq!(removed.status, 0, "{}", removed.report());
    let outcome = running.finish();
    let report = world.read("/run/doctor");
    assert_eq!(outcome.status, 0, "{report}");
    assert!(report.starts_with("no fault found in 1 network and 1 attachment\n"), "{report}");
}
