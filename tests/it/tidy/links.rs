//! The links of the documents lead to files that exist, and to headings that these have.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ROOT, report};

/// README.md, and all documents below docs.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![Path::new(ROOT).join("README.md")];
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
    let missing: Vec<String> =
        names.filter(|name| name != "README.md" && !named.contains(&name.as_str())).collect();
    report(&missing, "docs/README.md names each document");
}
