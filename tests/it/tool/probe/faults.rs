//! Requests to the kernel that fail.

use super::Host;
use super::honest::admin;

/// An error is not the same as a container without an interface, or a kernel without tables of bridges.
#[test]
fn an_error_of_the_kernel_is_reported() {
    let host = Host::new();
    host.run(&admin("forward priority 0; policy drop", ""));
    let is_complete =
        |stdout: &str| stdout.matches(" → ").count() > 10 && stdout.contains("broken");
    let (mut number, mut reported) = (1, 0);
    loop {
        let failed = number.to_string();
        let call = host.cnibox(&["doctor", "--probe", "one"]).env("CNIBOX_FAIL_KERNEL", &failed);
        let outcome = call.run();
        let has_error = outcome.report().contains("I/O error");
        let ways = outcome.stdout.matches(" over IPv").count();
        assert!(
            has_error || is_complete(&outcome.stdout),
            "{failed}, {ways}: {}",
            outcome.report()
        );
        reported += i32::from(has_error);
        if !has_error && number > 400 {
            break;
        }
        number += 8;
    }
    assert!(reported > 10, "{reported}");
}
