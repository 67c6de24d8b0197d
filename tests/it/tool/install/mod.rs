//! `cnibox install` and `cnibox uninstall`: a plugin directory of a node.

mod faults;
mod file_systems;
mod killed;
mod netavark;
mod options;
mod switch;
mod timer;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::world::{Call, Outcome, World, parse};

/// The plugin directory, and the executable before it is installed.
const DIR: &str = "/run/node/bin";
const NEW: &str = "/run/node/cnibox";
/// Another build: the executable with some more bytes at its end.
const OLD: &str = "/run/node/cnibox-old";

/// A host with the executable, without its symbols, and an empty plugin directory.
struct Node {
    world: World,
}

impl Node {
    fn new() -> Self {
        let world = World::new();
        let script = format!(
            "mkdir -p {DIR} && objcopy --strip-all /run/bin/cnibox {NEW} && cp {NEW} {OLD} && printf old >>{OLD}"
        );
        world.host(["sh", "-c", &script]);
        Self { world }
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        self.world.host(["sh", "-c", &format!("set -eu; cd {DIR}; {script}")])
    }

    /// A command of this executable for the directory.
    fn command<'w>(&'w self, executable: &str, words: &[&str]) -> Call<'w> {
        self.world.tool(&[&[executable], words, &[DIR]].concat(), None)
    }

    fn install(&self, options: &[&str]) -> Outcome {
        self.command(NEW, &[&["install"], options].concat()).run()
    }

    fn uninstall(&self) -> Outcome {
        self.command(NEW, &["uninstall"]).run()
    }

    /// Plugins of another program, each of which tells its name.
    fn foreign(&self, names: &[&str]) {
        for name in names {
            self.sh(&format!(
                r#"{{ echo '#!/bin/sh'; echo 'echo "{{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"],\"of\":\"{name}\"}}"'; }} >{name}; chmod 755 {name}"#
            ));
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.path(DIR).join(name)
    }

    fn exists(&self, name: &str) -> bool {
        fs::symlink_metadata(self.file(name)).is_ok()
    }

    /// Device and inode of the file under a name.
    fn inode(&self, name: &str) -> (u64, u64) {
        let metadata = fs::metadata(self.file(name)).unwrap();
        (metadata.dev(), metadata.ino())
    }

    /// The names of plugins, and the installer's own names.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.world.path(DIR)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Each file, with the text of a symbolic link or the checksum of the content. Without the manifest, which names the
    /// builds of earlier installations, too.
    fn files(&self) -> BTreeMap<String, String> {
        let script = r#"find . -mindepth 1 ! -name .cnibox.manifest | sort | while read -r file; do
            if [ -L "$file" ]; then echo "$file -> $(readlink "$file")"
            elif [ -d "$file" ]; then echo "$file directory"
            else echo "$file $(stat -c %a "$file") $(cksum <"$file")"; fi; done"#;
        let line = |line: &str| {
            let (name, rest) = line.split_once(' ').unwrap();
            (name.trim_start_matches("./").to_owned(), rest.to_owned())
        };
        self.sh(script).lines().map(line).collect()
    }

    /// The answer to VERSION of the file under a name.
    #[track_caller]
    fn version(&self, name: &str) -> Value {
        let path = format!("{DIR}/{name}");
        self.world.tool(&[&path], None).env("CNI_COMMAND", "VERSION").run().success()
    }

    fn manifest(&self) -> Value {
        parse(&fs::read_to_string(self.file(".cnibox.manifest")).unwrap())
    }

    /// The kind of each name in the manifest.
    fn kind(&self, name: &str) -> String {
        let manifest = self.manifest();
        let names = manifest["names"].as_array().unwrap();
        let entry = names
            .iter()
            .find(|entry| entry["name"] == name)
            .unwrap_or_else(|| panic!("{manifest}"));
        entry["kind"].as_str().unwrap().to_owned()
    }
}

/// Fails with this text.
#[track_caller]
fn fails(outcome: &Outcome, status: i32, text: &str) {
    assert!(
        outcome.status == status && outcome.stderr.contains(text) && outcome.stdout.is_empty(),
        "expected {status} and {text:?}: {}",
        outcome.report()
    );
}
