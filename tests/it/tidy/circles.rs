//! In a room, modules use one another in one direction. A file and those below it (`table.rs` and `table/step.rs`) are one
//! module for the others, and may know each other.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, below_src, report, sources};

type Path = Vec<String>;

/// The modules of `src` with their code. `[]` is the crate.
fn modules() -> BTreeMap<Path, String> {
    let path = |source: &Source| {
        let path = below_src(source).trim_end_matches(".rs");
        let mut parts: Path = path.split('/').map(str::to_owned).collect();
        if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            parts.pop();
        }
        parts
    };
    sources("src").iter().map(|source| (path(source), source.code())).collect()
}

/// The paths of a `use` with groups: `a::{b, c::{d, e}}` is `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree).trim();
        paths.push(format!("{prefix}{path}"));
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut part) = (0, String::new());
    for c in group.strip_suffix('}').unwrap_or(group).chars().chain([',']) {
        match c {
            ',' if depth == 0 => {
                if !part.trim().is_empty() {
                    expand(part.trim(), &prefix, paths);
                }
                part.clear();
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        part.push(c);
    }
}

/// The paths of imports, and those in the rest of the code that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    let mut rest = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let is_import = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
        let import = is_import.iter().find_map(|word| line.trim_start().strip_prefix(word));
        let Some(import) = import else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        let mut tree = import.to_owned();
        while !tree.ends_with(';') {
            tree.push_str(lines.next().expect("an import ends").trim());
        }
        expand(tree.trim_end_matches(';'), "", &mut paths);
    }
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = rest.split(|c: char| !is_of_path(c));
    let is_path = |word: &&str| {
        ["crate::", "super::", "self::"].iter().any(|prefix| word.starts_with(prefix))
    };
    paths.extend(words.filter(is_path).map(str::to_owned));
    paths
}

/// The module that a path leads to, from a module. `None` for a path of another crate.
fn target(modules: &BTreeMap<Path, String>, from: &[String], path: &str) -> Option<Path> {
    let mut parts = path.split("::").peekable();
    let mut base: Path = match *parts.peek()? {
        "crate" => Vec::new(),
        "super" | "self" => from.to_vec(),
        first => {
            let below = [from, &[first.to_owned()]].concat();
            modules.contains_key(&below).then(|| from.to_vec())?
        }
    };
    while let Some(part) = parts.next_if(|part| ["crate", "super", "self"].contains(part)) {
        if part == "super" {
            base.pop();
        }
    }
    for part in parts {
        base.push(part.to_owned());
        if !modules.contains_key(&base) {
            base.pop();
            break;
        }
    }
    Some(base)
}

/// For each room, which of its modules uses which.
fn uses(modules: &BTreeMap<Path, String>) -> BTreeMap<Path, BTreeSet<(String, String)>> {
    let mut uses: BTreeMap<Path, BTreeSet<(String, String)>> = BTreeMap::new();
    for (from, code) in modules {
        for path in paths(code) {
            let Some(to) = target(modules, from, &path) else { continue };
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(user), Some(used)) = (from.get(common), to.get(common)) {
                let room = uses.entry(from[..common].to_vec()).or_default();
                room.insert((user.clone(), used.clone()));
            }
        }
    }
    uses
}

fn reaches(uses: &BTreeSet<(String, String)>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for (_, used) in uses.iter().filter(|(user, _)| user == module) {
            if used == to {
                return true;
            }
            if seen.insert(used) {
                next.push(used);
            }
        }
    }
    false
}

#[test]
fn sibling_modules_use_one_another_in_one_direction() {
    let mut circles = Vec::new();
    let uses = uses(&modules());
    for (room, uses) in &uses {
        let back = uses.iter().filter(|(user, used)| reaches(uses, used, user));
        circles
            .extend(back.map(|(user, used)| format!("src/{}: {user} uses {used}", room.join("/"))));
    }
    // The rooms with several modules, so that the test cannot pass because it sees nothing.
    assert!(uses.len() > 20, "{}", uses.len());
    report(&circles, "there is a circle in a room");
}
