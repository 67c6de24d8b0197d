//! The executable under its own name, as users of busybox expect it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::world::{Call, Scratch, World, executable, linked_names, plugin_names};

fn tool(args: &[&str]) -> Call<'static> {
    Call::program(executable().as_ref()).args(args).keeping_stdin_open()
}

#[test]
fn without_arguments_it_says_what_it_is() {
    for args in [&[][..], &["--help"]] {
        let text = tool(args).run().output();
        for name in plugin_names() {
            assert!(text.contains(&name), "{name} in {text}");
        }
    }
    // Nomad runs every file of the plugin directory and takes the first word that is a version.
    let text = tool(&[]).run().output();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains(env!("CARGO_PKG_VERSION")), "{first}");
}

#[test]
fn the_commands_are_in_groups_with_a_line_each_before_the_plugins() {
    let text = tool(&["--help"]).run().output();
    let titles: Vec<&str> =
        text.lines().filter(|line| !line.starts_with(' ') && line.ends_with(':')).collect();
    let expected =
        ["Networks of containers:", "Operation of the host:", "Information:", "Plugins:"];
    assert_eq!(titles, expected, "{text}");
    for row in ["  add          ", "  install      ", "  help         ", "  host-local   "] {
        assert_eq!(text.matches(&format!("\n{row}")).count(), 1, "{row}: {text}");
    }
    let (commands, _) = text.split_once("\nPlugins:\n").unwrap();
    let (_, commands) = commands.split_once("\nNetworks of containers:\n").unwrap();
    for row in commands.lines() {
        assert!(row.len() <= 80 && !row.ends_with('.'), "{row}");
    }
}

#[test]
fn version_prints_the_version() {
    let text = tool(&["--version"]).run().output();
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

#[test]
fn list_prints_the_plugins() {
    for argument in ["--list", "--list-full"] {
        let text = tool(&[argument]).run().output();
        // Full names are those of paths.
        let mut names: Vec<_> = text.lines().filter_map(|line| line.rsplit('/').next()).collect();
        names.sort_unstable();
        assert_eq!(names, plugin_names(), "{argument}");
    }
}

#[test]
fn unknown_arguments_are_refused() {
    for args in [&["--frobnicate"][..], &["--install", "--frobnicate", "x"]] {
        let outcome = tool(args).run();
        assert!(outcome.status != 0 && !outcome.stderr.is_empty(), "{}", outcome.report());
    }
}

#[test]
fn install_makes_hard_links() {
    let scratch = Scratch::new();
    let own = scratch.copy("cnibox");
    let dir = scratch.text("bin");
    fs::create_dir(&dir).unwrap();
    // The second time finds its own links, which is fine.
    for _ in 0..2 {
        Call::program(&own).args(&["--install", &dir]).run().output();
    }
    // The file that was executed can be overwritten later, so the installed one is another file.
    let executable = fs::metadata(Path::new(&dir).join("cnibox")).unwrap();
    assert_ne!(executable.ino(), fs::metadata(&own).unwrap().ino());
    for name in linked_names() {
        let link = fs::symlink_metadata(Path::new(&dir).join(&name)).unwrap();
        assert_eq!((link.dev(), link.ino()), (executable.dev(), executable.ino()), "{name}");
    }
}

#[test]
fn install_makes_relative_symbolic_links_on_demand() {
    let scratch = Scratch::new();
    let own = scratch.copy("cnibox");
    let below = scratch.file("below");
    fs::create_dir(&below).unwrap();
    for dir in [scratch.path(), &below] {
        let program = Call::program(&own);
        program.args(&["--install", "-s", dir.to_str().unwrap()]).run().output();
        for name in linked_names() {
            let link = dir.join(&name);
            let target = fs::read_link(&link).unwrap();
            assert!(target.is_relative(), "{name} -> {}", target.display());
            let introduction = Call::program(&link).run().stderr;
            assert!(introduction.starts_with(&format!("CNI {name} plugin")), "{introduction}");
        }
    }
}

#[test]
fn install_leaves_other_peoples_files_alone() {
    for args in [&["--install"][..], &["--install", "-s"]] {
        let scratch = Scratch::new();
        scratch.write_text("host-local", "mine");
        let dir = scratch.path().to_str().unwrap();
        let outcome = tool(args).args(&[dir]).run();
        assert!(
            outcome.status != 0 && outcome.stderr.contains("host-local"),
            "{}",
            outcome.report()
        );
        assert_eq!(fs::read_to_string(scratch.file("host-local")).unwrap(), "mine");
    }
}

#[test]
fn the_demo_succeeds_and_leaves_nothing() {
    let world = World::new();
    let before = world.state();
    let text = world.tool(&["/run/bin/cnibox", "demo"], None).run().output();
    for word in ["10.1.0.2", "10.1.0.3", "10.1.0.1:8080", "ADD", "CHECK", "DEL"] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    before.assert_same(&world.state(), "after the demo");
}

#[test]
fn the_demo_succeeds_for_an_unprivileged_user() {
    let text = Call::unprivileged(&["demo"]).run().output();
    assert!(text.contains("CHECK"), "{text}");
}
