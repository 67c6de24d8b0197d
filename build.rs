//! Stamps the commit and its date into the executable; without git it says "unknown" and never fails. Collects the manuals at the heads
//! of the plugins' files for `cnibox help`.

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
        fs::write(directory.join("manuals"), manuals()).expect("OUT_DIR is writable");
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
