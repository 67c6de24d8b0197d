//! The figures of the documents are those of tests/bench/results, and these are of the present minor version.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::ROOT;

/// Writes them all.
const WRITER: &str = "run tests/bench/figures";

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn results() -> Value {
    serde_json::from_str(&text("tests/bench/results/bench.json")).unwrap()
}

/// The version in the banner of the executable that was measured: `…+cnibox.0.2.0`.
fn measured_version(results: &Value) -> String {
    let label = results["contestants"]["cnibox"]["label"].as_str().unwrap();
    let version = label.split("cnibox.").last().unwrap();
    version.trim_end_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

fn major_and_minor(version: &str) -> Vec<u32> {
    version.split('.').take(2).map(|number| number.parse().unwrap()).collect()
}

#[test]
fn the_results_are_of_the_present_minor_version() {
    let results = results();
    let (measured, present) = (measured_version(&results), env!("CARGO_PKG_VERSION"));
    assert_eq!(major_and_minor(&measured), major_and_minor(present), "{WRITER}");
    assert_eq!(results["quick"], false, "{WRITER}");
    let commit = results["commit"].as_str().unwrap();
    assert!(!commit.ends_with("-dirty") && commit != "unknown", "{commit}: {WRITER}");
}

#[test]
fn the_documents_have_the_figures_of_the_results() {
    let results = results();
    let readme = text("README.md");
    let commit = results["commit"].as_str().unwrap();
    let title = format!("cnibox {}", measured_version(&results));
    assert!(readme.contains(&format!("commit {commit}")) && readme.contains(&title), "{WRITER}");
    let bytes = results["contestants"]["cnibox"]["bytes"]["all"].as_f64().unwrap();
    let size = format!("{:.1} MB", bytes / 1e6);
    for (page, words) in [("README.md", "CNI plugin, in "), ("docs/build.md", "for x86-64, ")] {
        assert!(text(page).contains(&format!("{words}{size}")), "{page}: {size}: {WRITER}");
    }
    let others = results["contestants"].as_object().unwrap();
    let go: Vec<_> = others.keys().filter(|name| name.starts_with("go")).collect();
    assert_eq!(go.len(), 2, "two releases of the Go plugins: {WRITER}");
}
