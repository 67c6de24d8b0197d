//! The rules of the structure: imports, the places of calls, names. `tests/run` warns of long files and functions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::world::{Call, executable, linked_names, plugin_names};

mod circles;
mod figures;
mod links;
mod reads;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The table of layers, which is also what people read.
const DESIGN: &str = include_str!("../../ARCHITECTURE.md");
const EVERYONE: [&str; 3] = ["error", "names", "fault"];

/// Each module with those that it may use, by the first part of the path below `src`.
fn layers() -> Vec<(&'static str, Vec<&'static str>)> {
    let table = DESIGN.split("<!-- layers").nth(1).expect("ARCHITECTURE.md has the table");
    let rows = table.lines().skip_while(|line| !line.starts_with("|---"));
    let row = |line: &'static str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (module, uses) = (cells.next()?, cells.next()?);
        Some((module, uses.split(", ").filter(|name| !name.is_empty()).collect()))
    };
    rows.skip(1).take_while(|line| line.starts_with('|')).filter_map(row).collect()
}

/// Code that only files with these paths below `src` may have.
const ONLY_IN: [(&str, &[&str]); 13] = [
    ("neli::", &["netlink/"]),
    ("nix::", &["kernel/", "netlink/"]),
    ("libc::", &["kernel/", "netlink/"]),
    ("fd_lock", &["kernel/flock.rs"]),
    ("parking_lot", &["kernel/flock/turns.rs", "daemon/"]),
    ("argh::", &["cli/"]),
    ("regex_lite::", &["plugins/tuning/pattern.rs"]),
    ("println!(", &["lib.rs", "serve.rs", "cli/"]),
    (
        "stdout()",
        &["kernel/sys.rs", "serve.rs", "cli/output.rs", "cli/attach.rs", "cli/netavark.rs"],
    ),
    ("stderr()", &["kernel/sys.rs", "fault.rs"]),
    ("std::env", &["main.rs", "lib.rs", "serve.rs", "cli/"]),
    (
        "unsafe ",
        &[
            "kernel/sys.rs",
            "kernel/sys/allocator.rs",
            "kernel/sys/socket.rs",
            "kernel/sys/thread.rs",
        ],
    ),
    ("allow(unsafe_code)", &["kernel/sys.rs"]),
];

struct Source {
    /// Relative to the project.
    path: String,
    text: String,
}

impl Source {
    /// The text without comments and without what is in quotes, so that words in them are not taken for code.
    fn code(&self) -> String {
        // Unit tests stand at the end of what they test, and may do as they like.
        let code = self.text.split("#[cfg(test)]\nmod tests").next().unwrap_or(&self.text);
        let is_test = self.path.ends_with("/tests.rs") || self.path.contains("/tests/");
        let code = if is_test { "" } else { code };
        code.lines().map(|line| code_of(line) + "\n").collect()
    }
}

/// A line without its comment and without what is in quotes.
fn code_of(line: &str) -> String {
    without_quotes(line.split("//").next().unwrap_or(line))
}

fn without_quotes(line: &str) -> String {
    // Every second part of a line that is split at quotes was in quotes.
    let line = line.replace("\\\"", "");
    line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

fn sources(dir: &str) -> Vec<Source> {
    let mut files = Vec::new();
    collect(&Path::new(ROOT).join(dir), &mut files);
    assert!(!files.is_empty(), "no sources in {dir}");
    let relative = |path: &Path| path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
    let read =
        |path: PathBuf| Source { path: relative(&path), text: fs::read_to_string(&path).unwrap() };
    files.into_iter().map(read).collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn below_src(source: &Source) -> &str {
    source.path.strip_prefix("src/").unwrap()
}

fn module(source: &Source) -> &str {
    let first = below_src(source).split('/').next().unwrap();
    first.strip_suffix(".rs").unwrap_or(first)
}

/// The first names after `crate::`, also in `use crate::{…}`.
fn used_modules(code: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let group = after.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for path in group.unwrap_or(after).split(',') {
            let name: String =
                path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            used.insert(name);
            if group.is_none() {
                break;
            }
        }
    }
    used
}

fn report(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

#[test]
fn modules_use_only_what_they_may() {
    let mut broken = Vec::new();
    let layers = layers();
    assert!(layers.len() > 10, "{layers:?}");
    for source in sources("src") {
        let module = module(&source);
        let Some((_, may)) = layers.iter().find(|(name, _)| *name == module) else {
            broken.push(format!("{}: {module} is not in the table of modules", source.path));
            continue;
        };
        let known = |name: &str| layers.iter().any(|(known, _)| *known == name);
        for used in used_modules(&source.code()).iter().filter(|used| known(used)) {
            let used = used.as_str();
            if used != module && !may.contains(&used) && !EVERYONE.contains(&used) {
                broken.push(format!("{} uses {used}", source.path));
            }
        }
    }
    report(&broken, "ARCHITECTURE.md says which module uses which");
}

/// What strangers decide: it is neither opened nor believed.
const OF_STRANGERS: [&str; 4] = ["environ", "cmdline", "cgroup", "mountinfo"];

#[test]
fn nothing_is_read_of_other_processes_but_their_namespaces() {
    let mut broken = Vec::new();
    for source in sources("src") {
        let text = source.text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for (number, line) in text.lines().enumerate() {
            let mut code = line.split("// ").next().unwrap().to_owned();
            // Process 1 of the host is no stranger.
            for own in ["/proc/self/mountinfo", "/proc/1/mountinfo"] {
                code = code.replace(own, "");
            }
            let is_comment = line.trim_start().starts_with("//");
            if !is_comment && OF_STRANGERS.iter().any(|name| code.contains(&format!("/{name}"))) {
                broken.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    report(&broken, "src/attachments/life.rs asks the kernel");
}

#[test]
fn ipam_uses_nothing_of_the_kernel_but_files_locks_and_the_boot_id() {
    let mut broken = Vec::new();
    for source in sources("src").iter().filter(|source| module(source) == "ipam") {
        for (number, line) in source.code().lines().enumerate() {
            let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
            let uses_more = line.match_indices("kernel").any(|(at, word)| {
                let after = &line[at + word.len()..];
                let is_word = !line[..at].ends_with(is_in_word) && !after.starts_with(is_in_word);
                is_word
                    && !["::boot", "::file", "::flock"]
                        .iter()
                        .any(|module| after.starts_with(module))
            });
            if uses_more {
                broken.push(format!("{}:{}", source.path, number + 1));
            }
        }
    }
    report(&broken, "ipam uses kernel::boot, kernel::file and kernel::flock only");
}

#[test]
fn plugins_do_not_use_one_another() {
    let plugins = Path::new(ROOT).join("src/plugins");
    let entries = fs::read_dir(plugins).unwrap().map(|entry| entry.unwrap().path());
    let names: BTreeSet<String> = entries
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "mod")
        .collect();
    let mut broken = Vec::new();
    for source in sources("src/plugins").iter().filter(|source| source.path != "src/plugins/mod.rs")
    {
        let own = source.path.strip_prefix("src/plugins/").unwrap();
        let own = own.split(['/', '.']).next().unwrap();
        for other in names.iter().filter(|name| *name != own) {
            let uses = |path: &str| source.code().contains(&format!("{path}{other}::"));
            if uses("plugins::")
                || (source.path == format!("src/plugins/{own}.rs") && uses("super::"))
            {
                broken.push(format!("{} uses {other}", source.path));
            }
        }
    }
    report(&broken, "what two plugins need belongs to steps");
}

#[test]
fn some_things_are_done_in_one_place_only() {
    let mut broken = Vec::new();
    for source in sources("src") {
        for (number, line) in source.code().lines().enumerate() {
            for (word, places) in ONLY_IN {
                let is_word = line.match_indices(word).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                });
                let allowed = places.iter().any(|place| below_src(&source).starts_with(place));
                if is_word && !allowed {
                    broken.push(format!(
                        "{}:{}: {word} belongs to {places:?}",
                        source.path,
                        number + 1
                    ));
                }
            }
        }
    }
    report(&broken, "ARCHITECTURE.md");
}

/// The packages of the design.
const PACKAGES: [&str; 8] =
    ["argh", "fd-lock", "ipnet", "neli", "nix", "parking_lot", "serde", "serde_json"];
/// The other packages, each with its reason.
const OTHER_PACKAGES: [(&str, &str); 4] = [
    ("base64", "libcni's cache has the configuration in base64"),
    ("dlmalloc", "the allocator of musl takes a fifth of the CPU time of an ADD"),
    ("hmac-sha512", "the container ids of cnitool, and names that are hashes, are SHA-512"),
    ("regex-lite", "the allowlist of tuning has regular expressions"),
];

/// The packages of the design do real work in this program, and each other package has a reason.
#[test]
fn the_packages_of_the_design_are_dependencies_that_the_code_uses() {
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    // With those of a target, and without those of the tests.
    let sections = manifest.split("\n[").filter(|section| {
        let title = section.split("]\n").next().unwrap();
        title.ends_with("dependencies") && title != "dev-dependencies"
    });
    let lines = sections.flat_map(str::lines);
    let listed: BTreeSet<&str> = lines
        .filter(|line| !line.starts_with('#') && !line.ends_with("dependencies]"))
        .filter_map(|line| Some(line.split_once(" = ")?.0))
        .collect();
    let known: BTreeSet<&str> =
        PACKAGES.into_iter().chain(OTHER_PACKAGES.map(|(name, _)| name)).collect();
    assert_eq!(listed, known);
    let sources: Vec<String> = sources("src").iter().map(Source::code).collect();
    for name in listed {
        let used = format!("{}::", name.replace('-', "_"));
        // `nix::` is also a part of `unix::`.
        let is_used = |source: &String| {
            let mut places = source.match_indices(&used);
            places.any(|(at, _)| !source[..at].ends_with(char::is_alphanumeric))
        };
        assert!(sources.iter().any(is_used), "src does not use {name}");
    }
}

#[test]
fn links_and_readme_name_the_plugins_of_the_table() {
    let list = Call::program(executable().as_ref()).args(&["--list"]).run().output();
    let table: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    for name in &linked_names() {
        let link = Path::new(ROOT).join("symlinks").join(name);
        let target =
            fs::read_link(&link).unwrap_or_else(|_| panic!("ln -s cnibox symlinks/{name}"));
        assert_eq!(target, Path::new("cnibox"), "symlinks/{name} is relative");
    }
    assert_eq!(
        plugin_names().into_iter().collect::<BTreeSet<_>>(),
        table,
        "symlinks, and ON_REQUEST"
    );

    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let section = readme.split("\n## ").find(|section| section.starts_with("Plugins")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), table, "the table in README.md");
}
