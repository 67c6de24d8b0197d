//! Reports of tests that need another kernel.

use std::io::Write;

/// Reports a test that does not run, or the half of one, on this kernel. `tests/run` counts these lines, and has the list of the
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
