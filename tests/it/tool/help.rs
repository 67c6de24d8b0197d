//! `cnibox help` and `cnibox man`: every manual, in each form.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::cnibox;
use crate::config_keys::{self, NETWORK};
use crate::world::{World, plugin_names};

/// The manuals as people read them on the web.
fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plugins")
}

/// Two names with one manual.
const SAME: (&str, &str) = ("ptp", "veth");

/// The comment at the head of a source file.
fn head(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n").collect()
}

fn subjects() -> Vec<(String, PathBuf)> {
    let plugins = plugin_names().into_iter().map(|name| (name.clone(), config_keys::manual(&name)));
    plugins.chain([("network".to_owned(), config_keys::manual(NETWORK))]).collect()
}

#[test]
fn the_manual_of_each_plugin_is_in_the_executable_and_in_the_documents() {
    let world = World::new();
    let mut expected = BTreeSet::new();
    for (subject, source) in subjects() {
        let printed = cnibox(&world, &["help", "--markdown", &subject]).run().output();
        assert_eq!(printed.trim_end(), head(&source).trim_end(), "{subject}");
        if subject == SAME.0 {
            continue;
        }
        let document = documents().join(format!("{subject}.md"));
        let text = fs::read_to_string(&document).unwrap_or_default();
        let hint = "cnibox help --markdown NAME > docs/plugins/NAME.md";
        assert_eq!(text, printed, "{} is old: {hint}", document.display());
        expected.insert(document);
    }
    let there = fs::read_dir(documents()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(there.collect::<BTreeSet<_>>(), expected);
}

/// The keys of the table in a manual.
fn keys(manual: &str) -> Vec<&str> {
    let rows = manual.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap()).collect()
}

/// The first cells of a row in docs/differences.md: a plugin, its keys of the reference, and those that only cnibox has.
fn compared_keys(row: &str) -> Option<(&str, Vec<&str>)> {
    let mut cells = row.strip_prefix("| `")?.split('|');
    let plugin = cells.next()?.trim().trim_end_matches('`');
    let keys = cells.take(2).flat_map(|cell| cell.split('`').skip(1).step_by(2));
    Some((plugin, keys.collect()))
}

#[test]
fn the_comparison_with_the_reference_has_the_keys_of_the_manuals() {
    let page = documents().join("../differences.md");
    let page = fs::read_to_string(page).unwrap();
    let rows: Vec<_> = page.lines().filter_map(compared_keys).collect();
    let mut named: BTreeSet<String> = rows.iter().map(|(plugin, _)| plugin.to_string()).collect();
    // Another name of `veth`.
    named.insert("ptp".to_owned());
    assert_eq!(named, plugin_names().into_iter().collect());
    for (plugin, compared) in rows {
        let manual = head(&config_keys::manual(plugin));
        let [compared, of_manual] = [compared, keys(&manual)].map(BTreeSet::from_iter);
        let different: Vec<_> = compared.symmetric_difference(&of_manual).collect();
        assert!(different.is_empty(), "{plugin}: {different:?}");
    }
}

#[test]
fn help_shows_each_key_and_fits_a_terminal() {
    let world = World::new();
    let mut count = 0;
    for (subject, source) in subjects() {
        let printed = cnibox(&world, &["help", &subject]).run().output();
        let manual = head(&source);
        for key in keys(&manual) {
            count += 1;
            assert!(printed.contains(&format!("    {key} (")), "{subject}: {key}: {printed}");
        }
        let prose = printed.lines().filter(|line| !line.contains(['{', '}', '"']));
        for line in prose {
            assert!(line.chars().count() <= 80, "{subject}: {line}");
            assert!(!line.contains(['`', '|']) && !line.contains("**"), "{subject}: {line}");
        }
        assert!(printed.starts_with("NAME\n"), "{subject}");
    }
    assert!(count > 150, "{count}");
}

#[test]
fn help_of_a_command_is_its_usage() {
    let world = World::new();
    let printed = cnibox(&world, &["help", "add"]).run().output();
    assert_eq!(printed, cnibox(&world, &["add", "--help"]).run().output());
    assert!(printed.contains("--container-id"), "{printed}");
    assert!(cnibox(&world, &["help"]).run().output().contains("Plugins:"));
    for args in [&["help", "brigde"][..], &["help", "bridge", "more"], &["man", "brigde"]] {
        let outcome = cnibox(&world, args).run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{}", outcome.report());
    }
}

#[test]
fn each_manual_page_is_read_without_a_warning() {
    let world = World::new();
    let names: Vec<String> = plugin_names();
    for name in names.iter().map(|name| vec!["man", name.as_str()]).chain([vec!["man"]]) {
        let page = cnibox(&world, &name).run().output();
        assert!(page.starts_with(".TH CNIBOX"), "{page}");
        let lint =
            world.tool(&["mandoc", "-T", "lint", "-W", "warning"], None).stdin(page.as_str());
        let report = lint.run();
        assert_eq!(
            (report.status, report.stdout.as_str()),
            (0, ""),
            "{name:?}: {}",
            report.report()
        );
        let text = world.tool(&["mandoc", "-T", "ascii"], None).stdin(page).run().output();
        assert!(text.contains("System Manager"), "{name:?}: {text}");
    }
}
