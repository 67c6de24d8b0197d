//! The links of the documents lead to files that exist, and to headings that these have.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ROOT, report};

const AT_ROOT: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The documents at the root, and all below docs.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = AT_ROOT.iter().map(|name| Path::new(ROOT).join(name)).collect();
    let mut directories = vec![Path::new(ROOT).join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                false => found.extend(
                    Some(path).filter(|path| path.extension().is_some_and(|end| end == "md")),
                ),
            }
        }
    }
    found
}

/// The targets of the links in a text, without those to other hosts.
fn targets(text: &str) -> Vec<&str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(target, _)| target).filter(|target| !target.contains("://")).collect()
}

/// The anchors of the headings, as the sites that show such documents make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let is_kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    let anchor = |line: &str| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        words.chars().filter(is_kept).collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let (mut broken, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in targets(&text) {
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            let has_anchor =
                || anchors(&fs::read_to_string(&path).unwrap()).contains(&anchor.into());
            if !path.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(count > 40, "links are found: {count}");
    report(&broken, "a link leads somewhere");
}

#[test]
fn the_map_names_every_document() {
    let map = fs::read_to_string(Path::new(ROOT).join("docs/README.md")).unwrap();
    let named = targets(&map);
    let entries = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let at_root = AT_ROOT.iter().filter(|name| **name != "README.md");
    let missing: Vec<String> = names
        .filter(|name| name != "README.md")
        .chain(at_root.map(|name| format!("../{name}")))
        .filter(|name| !named.contains(&name.as_str()))
        .collect();
    report(&missing, "docs/README.md names each document");
}

/// `<!-- executed by TEST -->` stands before a block that a test executes as it is written there.
#[test]
fn each_block_that_is_marked_as_executed_has_a_test_that_reads_the_page() {
    let (mut broken, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let page = document.strip_prefix(ROOT).unwrap().display().to_string();
        for mark in text.lines().filter_map(|line| line.strip_prefix("<!-- executed by ")) {
            count += 1;
            let test = mark.split([' ', ',']).next().unwrap_or_default();
            let source = fs::read_to_string(Path::new(ROOT).join(test)).unwrap_or_default();
            // The scripts of tests/clients name a page of docs without directory and end.
            let stem = document.file_stem().unwrap().display();
            let is_read = [page.clone(), format!("recipe_of {stem} ")]
                .iter()
                .any(|name| source.contains(name.as_str()));
            if !is_read {
                broken.push(format!("{page}: {test}"));
            }
        }
    }
    assert!(count > 5, "marks are found: {count}");
    report(&broken, "the test of a marked block reads its page");
}
