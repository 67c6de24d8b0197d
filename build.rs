//! Stamps the commit into the executable. Without git it says "unknown" and never fails.

use std::path::Path;
use std::process::Command;

/// Git appends to it with every commit.
const GIT_LOG: &str = ".git/logs/HEAD";

fn main() {
    let described = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = described
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo::rustc-env=CNIBOX_COMMIT={}", commit.as_deref().unwrap_or("unknown").trim());
    println!("cargo::rerun-if-changed=build.rs");
    // The linker script of packaging/release: cargo links again when it changes.
    println!("cargo::rerun-if-changed=packaging/order.ld");
    if Path::new(GIT_LOG).exists() {
        println!("cargo::rerun-if-changed={GIT_LOG}");
    }
}
