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

/// The tests that the stub of cargo lists.
const TESTS: &str = "a::one a::two b::five b::four b::six b::three";

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
            "echo cargo \"$@\" >>called; [ \"$1\" = test ] || exit 0
            for last; do :; done; if [ \"$last\" = --list ]; then printf '%s: test\\n' {TESTS}; exit; fi
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
fn repeated_tests_are_a_third_by_the_seed_or_all() {
    let tree = Tree::new();
    let mut seen = Vec::new();
    for (args, count) in [
        (&["--seed", "10"][..], 2),
        (&["--seed", "11"], 2),
        (&["--seed", "12"], 2),
        (&["--full"], 6),
    ] {
        tree.0.write_text("called", "");
        let outcome = tree.run(args);
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let says_seed =
            outcome.stdout.contains(&format!("\nthe seed is {}\n", args.last().unwrap()));
        assert_eq!(says_seed, count == 2, "{}", outcome.report());
        let called = fs::read_to_string(tree.0.file("called")).unwrap();
        let mut repeated = called.lines().filter_map(|line| line.split_once(" --exact "));
        // The shipped executable, and that of the preset edge.
        let [(_, one), (_, other)] = [repeated.next().unwrap(), repeated.next().unwrap()];
        assert_eq!((one, repeated.next()), (other, None));
        let names: Vec<String> = one.split(' ').map(str::to_owned).collect();
        assert_eq!(names.len(), count, "{one}");
        seen.extend(names.into_iter().filter(|_| count == 2));
    }
    seen.sort();
    assert_eq!(seen.join(" "), TESTS);
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
