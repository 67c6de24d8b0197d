//! Stamps the commit and its date into the executable; without git it says "unknown" and never fails. Packs the manuals at the heads of
//! the plugins' files for `cnibox help`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Git appends to it with every commit.
const GIT_LOG: &str = ".git/logs/HEAD";
const PLUGINS: &str = "src/plugins";
/// Its manual has the keys that all plugins share.
const NETWORK: &str = "src/cni/conf.rs";
/// Ends each manual.
const END: char = '\0';

fn main() {
    println!("cargo::rustc-env=CNIBOX_COMMIT={}", git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo::rustc-env=CNIBOX_DATE={}", git(&["log", "-1", "--format=%cs"]));
    println!("cargo::rerun-if-changed=build.rs");
    if Path::new(GIT_LOG).exists() {
        println!("cargo::rerun-if-changed={GIT_LOG}");
    }
    if env::var_os("CARGO_FEATURE_TOOL").is_some() {
        println!("cargo::rerun-if-changed={PLUGINS}");
        println!("cargo::rerun-if-changed={NETWORK}");
        let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        fs::write(directory.join("manuals"), packed(manuals().as_bytes()))
            .expect("OUT_DIR is writable");
    }
}

fn git(args: &[&str]) -> String {
    let described = Command::new("git").args(args).output();
    let text = described
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    text.as_deref().unwrap_or("unknown").trim().to_owned()
}

/// The manual of the network, then those of the plugins that the executable contains.
fn manuals() -> String {
    let entries = fs::read_dir(PLUGINS).expect("the plugins are there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let head = |file: &Path| head(&fs::read_to_string(file).expect("readable"));
    let plugins = files.iter().map(|file| head(file)).filter(|head| is_contained(head));
    let all = [head(Path::new(NETWORK))].into_iter().chain(plugins);
    all.fold(String::new(), |all, head| all + &head + &END.to_string())
}

/// Whether a manual begins with the name of a plugin, or with its names, and the feature of a name is on. Other files do not
/// begin with a name.
fn is_contained(head: &str) -> bool {
    let title = head.split(':').next().unwrap_or_default();
    let mut names = title.split('`').skip(1).step_by(2);
    names.any(|name| {
        let feature = name.to_uppercase().replace('-', "_");
        env::var_os(format!("CARGO_FEATURE_{feature}")).is_some()
    })
}

/// The comment at the head of a file.
fn head(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n").collect()
}

/// A match has at least this length, and at most 255 bytes more.
const MATCH_MIN: usize = 4;
const DISTANCE_MAX: usize = u16::MAX as usize;
const CANDIDATES: usize = 64;

/// LZSS: a byte of eight flags, then eight items, the first at the lowest bit. A 0 is a literal byte. A 1 is a match: its
/// distance in two bytes, the low one first, and its length less `MATCH_MIN`. `src/cli/manual.rs` unpacks it.
fn packed(text: &[u8]) -> Vec<u8> {
    let matches = longest_matches(text);
    // The fewest bits from each place to the end, and the length of the item that gives them.
    let mut best = vec![(0, 1); text.len() + 1];
    for at in (0..text.len()).rev() {
        let literal = (best[at + 1].0 + 9, 1);
        let of_match = |length: usize| (best[at + length].0 + 25, length);
        let lengths = MATCH_MIN..=matches[at].1;
        best[at] = lengths.map(of_match).chain([literal]).min().expect("a literal is possible");
    }
    let (mut packed, mut flags_at, mut items, mut at) = (Vec::new(), 0, 0, 0);
    while at < text.len() {
        if items % 8 == 0 {
            flags_at = packed.len();
            packed.push(0);
        }
        let length = best[at].1;
        if length == 1 {
            packed.push(text[at]);
        } else {
            packed[flags_at] |= 1 << (items % 8);
            let distance = u16::try_from(at - matches[at].0).expect("within DISTANCE_MAX");
            packed.extend(distance.to_le_bytes());
            packed.push(u8::try_from(length - MATCH_MIN).expect("within 255"));
        }
        items += 1;
        at += length;
    }
    packed
}

/// For each place, where the longest match begins and its length; 0 without a match.
fn longest_matches(text: &[u8]) -> Vec<(usize, usize)> {
    let mut seen: HashMap<&[u8], Vec<usize>> = HashMap::new();
    let mut matches = Vec::with_capacity(text.len());
    for at in 0..text.len() {
        let Some(start) = text.get(at..at + MATCH_MIN) else {
            matches.push((0, 0));
            continue;
        };
        let places = seen.entry(start).or_default();
        let near =
            places.iter().rev().take(CANDIDATES).filter(|place| at - **place <= DISTANCE_MAX);
        let length = |from: usize| {
            let same = text[from..].iter().zip(&text[at..]).take_while(|(a, b)| a == b);
            same.take(MATCH_MIN + 255).count()
        };
        let longest = near.map(|from| (*from, length(*from))).max_by_key(|(_, length)| *length);
        matches.push(longest.unwrap_or_default());
        places.push(at);
    }
    matches
}
