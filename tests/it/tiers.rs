//! `tests/run` counts what did not run, and fails when it must. The commands of its tiers are stubs here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::world::{Call, Outcome, Scratch};

/// `cargo test` prints this, and libtest the rest of the line, if it shows the name of a test before it runs.
const LIMIT: &str = "test one ...
not run: one: the kernel lacks CONFIG_DUMMY
ok
not run: one: the kernel lacks CONFIG_DUMMY
not run: two: the kernel has CONFIG_NET_VRF";

struct Tree(Scratch);

impl Tree {
    /// A copy of tests/run with stubs that succeed.
    fn new() -> Self {
        let tree = Self(Scratch::new());
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        fs::create_dir_all(tree.0.file("tests")).unwrap();
        fs::copy(source.join("tests/run"), tree.0.file("tests/run")).unwrap();
        fs::create_dir_all(tree.0.file("packaging")).unwrap();
        for name in ["Cargo.toml", "packaging/presets"] {
            symlink(source.join(name), tree.0.file(name)).unwrap();
        }
        for name in [
            "tests/install",
            "tests/clients/run",
            "tests/packages/run",
            "tests/vm/run",
            "packaging/release",
            "bin/readelf",
        ] {
            tree.stub(name, "");
        }
        tree.stub("bin/stat", "echo 1000");
        tree.stub("bin/strace", "");
        // The last argument of the ADD under strace is the directory of the trace.
        tree.stub("bin/unshare", "for last; do :; done; echo '1 read' >\"$last/trace\"");
        tree.cargo_prints("");
        tree.0.write_text("called", "");
        tree
    }

    /// Another process writes it: a child of another test could keep a file open that this process wrote, and the kernel
    /// executes no file that is open for writing.
    fn stub(&self, name: &str, script: &str) {
        let path = self.0.text(name);
        let words = ["-c", "mkdir -p \"${1%/*}\" && cat >\"$1\" && chmod 755 \"$1\"", "sh", &path];
        let call = Call::program("/bin/sh".as_ref()).args(&words).env("PATH", "/usr/bin:/bin");
        call.stdin(format!("#!/bin/sh\n{script}\n")).run().silence();
    }

    /// `cargo test` with these lines.
    fn cargo_prints(&self, lines: &str) {
        let script = format!(
            "echo cargo $1 >>called; [ \"$1\" = test ] || exit 0
            echo '{lines}'; echo 'test result: ok. 5 passed; 0 failed; 0 ignored'"
        );
        self.stub("bin/cargo", &script);
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let (script, bin) = (self.0.text("tests/run"), self.0.text("bin"));
        let words = [&[script.as_str()], args].concat();
        let call = Call::program("/bin/bash".as_ref()).args(&words);
        call.env("PATH", &format!("{bin}:/usr/bin:/bin")).run()
    }
}

#[test]
fn a_failed_installation_is_the_end() {
    let tree = Tree::new();
    let last = "E: Unable to acquire the dpkg frontend lock, is another process using it?";
    tree.stub(
        "tests/install",
        &format!("echo 'E: Could not get lock'; echo '{last}' >&2; exit 100"),
    );
    let outcome = tree.run(&[]);
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    assert!(outcome.stderr.trim_end().ends_with(last), "{}", outcome.report());
    assert_eq!(fs::read(tree.0.file("called")).unwrap(), b"", "{}", outcome.report());
}

#[test]
fn tests_that_do_not_run_are_counted_and_strict_accepts_the_limits_of_a_kernel() {
    let tree = Tree::new();
    let other = format!("{LIMIT}\nnot run: three: there is no network");
    for (lines, not_run, strict) in [("", 0, 0), (LIMIT, 2, 0), (&*other, 3, 1)] {
        tree.cargo_prints(lines);
        for (args, status) in [(&[][..], 0), (&["--strict"], strict)] {
            let outcome = tree.run(args);
            assert_eq!(outcome.status, status, "{lines}: {}", outcome.report());
            let said = format!(" 0 failed, {not_run} not run\n");
            assert!(outcome.stdout.ends_with(&said), "{}", outcome.report());
            let reported = outcome.stdout.lines().filter(|line| line.starts_with("not run  "));
            assert_eq!(reported.count(), not_run, "{}", outcome.report());
        }
    }
}

#[test]
fn a_tier_that_does_not_run_fails_with_strict() {
    let tree = Tree::new();
    tree.stub("tests/vm/run", "echo 'qemu is missing'; exit 77");
    for (args, status) in [(&[][..], 0), (&["--strict"], 1)] {
        let outcome = tree.run(args);
        assert_eq!(outcome.status, status, "{}", outcome.report());
        assert!(outcome.stdout.contains(": qemu is missing\n"), "{}", outcome.report());
    }
}
