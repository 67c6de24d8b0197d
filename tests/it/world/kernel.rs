//! Reports of tests that need another kernel.

use std::io::Write;
use std::sync::LazyLock;

use super::World;

/// Options that the kernel of the integration tests can lack, each with a script that succeeds where the kernel has it. tests/vm
/// runs the tests of these with a kernel that has all.
const OPTIONS: [(&str, &str); 5] = [
    ("CONFIG_DUMMY", "ip link add probe type dummy"),
    (
        "CONFIG_VLAN_8021Q",
        "ip link add under type bridge; ip link add probe link under type vlan id 10",
    ),
    ("CONFIG_IPVLAN", "ip link add under type bridge; ip link add probe link under type ipvlan"),
    ("CONFIG_NET_VRF", "ip link add probe type vrf table 10"),
    (
        "CONFIG_BRIDGE_VLAN_FILTERING",
        "ip link add probe type bridge vlan_filtering 1; ip -d link show probe | grep -q 'vlan_filtering 1'",
    ),
];

/// Whether the kernel has an option; always for "".
pub fn kernel_has(option: &str) -> bool {
    static MISSING: LazyLock<Vec<&str>> = LazyLock::new(|| {
        let is_missing = |script: &str| {
            let world = World::with_plugins("");
            world.tool(&["sh", "-ec", script], None).run().status != 0
        };
        OPTIONS.iter().filter(|(_, script)| is_missing(script)).map(|(option, _)| *option).collect()
    });
    assert!(option.is_empty() || OPTIONS.iter().any(|(known, _)| *known == option), "{option}");
    !MISSING.contains(&option)
}

/// The same. Reports the test, or the part of one, that does not run because the kernel lacks the option.
pub fn runs_with(option: &str) -> bool {
    let has = kernel_has(option);
    if !has {
        not_run(&format!("the kernel lacks {option}"));
    }
    has
}

/// Whether the tests of all plugins run only for what needs an option: tests/vm does the rest of its own.
pub fn is_for_options() -> bool {
    std::env::var_os("CNIBOX_TESTS_OF_OPTIONS").is_some()
}

/// Reports a test that does not run, or the half of one, on this kernel. `tests/nextest` counts these lines, and has the
/// reasons that it accepts.
pub fn not_run(reason: &str) {
    let thread = std::thread::current();
    let line = format!("\nnot run: {}: {reason}\n", thread.name().unwrap_or_default());
    // cargo does not show what a test that passes prints. It does not hold this handle back.
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// For a test that has one half for kernels with an option and one for kernels without it: reports the other half. Returns
/// `has`.
pub fn half_for(option: &str, has: bool) -> bool {
    not_run(&format!("the kernel {} {option}", if has { "has" } else { "lacks" }));
    has
}
