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

/// The commands of `cnibox --help`, and the actions that `--help` of a command lists, as words.
fn commands(world: &World) -> Vec<Vec<String>> {
    let listed = |text: &str, from: &str, until: &str| -> Vec<String> {
        let part = text.split_once(from).map_or("", |(_, part)| part);
        let part = part.split(until).next().unwrap();
        let named = part.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        named.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    let overview = cnibox(world, &["--help"]).run().output();
    let mut all = Vec::new();
    for command in listed(&overview, "Networks of containers:\n", "\nPlugins:") {
        let help = cnibox(world, &["help", &command]).run().output();
        all.push(vec![command.clone()]);
        let actions = listed(&help, "\nCommands:\n", "\nExamples:");
        all.extend(actions.into_iter().map(|action| vec![command.clone(), action]));
    }
    assert!(all.len() > 20 && all.contains(&vec!["networks".into(), "create".into()]), "{all:?}");
    all
}

/// The words of each page: none for the page of `cnibox`.
fn pages(world: &World) -> Vec<Vec<String>> {
    let plugins = subjects().into_iter().map(|(subject, _)| vec![subject]);
    [vec![]].into_iter().chain(plugins).chain(commands(world)).collect()
}

fn page(world: &World, words: &[String]) -> String {
    let args = ["man"].into_iter().chain(words.iter().map(String::as_str));
    cnibox(world, &args.collect::<Vec<_>>()).run().output()
}

/// A page as mandoc prints it on a terminal of any width: each paragraph is one line.
fn rendered(world: &World, page: &str) -> String {
    let mandoc = &["mandoc", "-T", "ascii", "-O", "width=1000"];
    let text = world.tool(mandoc, None).stdin(page).run().output();
    // Bold type is a letter, a backspace, and the letter again.
    let mut plain = String::new();
    for letter in text.chars() {
        match letter {
            '\x08' => _ = plain.pop(),
            _ => plain.push(letter),
        }
    }
    plain
}

#[test]
fn each_manual_page_is_read_without_a_warning() {
    let world = World::new();
    for words in pages(&world) {
        let page = page(&world, &words);
        let lint =
            world.tool(&["mandoc", "-T", "lint", "-W", "warning"], None).stdin(page.as_str());
        let report = lint.run();
        assert_eq!(
            (report.status, report.stdout.as_str()),
            (0, ""),
            "{words:?}: {}",
            report.report()
        );
        let text = rendered(&world, &page);
        let title = [vec!["CNIBOX".into()], words.clone()].concat().join("-").to_uppercase();
        assert!(text.starts_with(&format!("{title}(8)")), "{words:?}: {text}");
        assert!(text.contains("System Manager"), "{words:?}: {text}");
        assert!(!text.contains("{command_name}"), "{words:?}: {text}");
    }
}

/// The names and texts of a help, without its titles. A text can take several lines; a line without a name is a name.
fn entries(help: &str) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    let is_title = |line: &str| line.ends_with(':') && !line.starts_with(' ');
    for line in help.lines().filter(|line| !line.is_empty() && !is_title(line)) {
        match entries.last_mut() {
            Some((_, about)) if line.starts_with("   ") => *about += line,
            _ => {
                let (name, about) = line.trim_start().split_once("  ").unwrap_or((line, ""));
                entries.push((name.into(), about.into()));
            }
        }
    }
    entries
}

#[test]
fn the_page_of_a_command_has_all_that_its_help_has() {
    let world = World::new();
    for words in commands(&world) {
        let text = rendered(&world, &page(&world, &words));
        let name = words.join("-");
        assert!(text.contains(&format!("  cnibox-{name} - ")), "{name}: {text}");
        let args: Vec<&str> =
            ["help"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let help = cnibox(&world, &args).run().output();
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = flat(&text);
        let (usage, rest) = help.strip_prefix("Usage: ").unwrap().split_once('\n').unwrap();
        assert!(text.contains(&flat(usage)), "{name}: {usage}: {text}");
        for (names, about) in entries(rest) {
            assert!(text.contains(&flat(&about)), "{name}: {about}: {text}");
            for part in names.split(", ").filter(|part| *part != "help") {
                assert!(text.contains(&flat(part)), "{name}: {part}: {text}");
            }
        }
        assert!(text.contains("SEE ALSO cnibox"), "{name}: {text}");
    }
}

#[test]
fn the_page_of_cnibox_names_each_command_and_each_page() {
    let world = World::new();
    let page = page(&world, &[]);
    let text = rendered(&world, &page);
    let (_, see_also) = text.split_once("SEE ALSO\n").unwrap();
    for words in pages(&world).into_iter().filter(|words| !words.is_empty()) {
        let name = words.join(" ");
        let item = page.contains(&format!("\n.B {}\n", name.replace('-', "\\-")));
        assert!(item || name == "network", "{name}: {text}");
        assert!(see_also.contains(&format!("cnibox-{}(8)", words.join("-"))), "{name}: {text}");
    }
}

#[test]
fn man_writes_all_pages_into_a_directory() {
    let world = World::new();
    assert_eq!(cnibox(&world, &["man", "--to", "/run/new/man8"]).run().output(), "");
    let mut expected = BTreeSet::new();
    for words in pages(&world) {
        let name = [vec!["cnibox".into()], words.clone()].concat().join("-") + ".8";
        let written = fs::read_to_string(world.path(format!("/run/new/man8/{name}")));
        assert_eq!(written.ok(), Some(page(&world, &words)), "{name}");
        expected.insert(name);
    }
    let there = fs::read_dir(world.path("/run/new/man8")).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), expected);
    // Again, over an old page.
    world.write("/run/new/man8/cnibox.8", "old");
    cnibox(&world, &["man", "--to=/run/new/man8"]).run().silence();
    let written = fs::read_to_string(world.path("/run/new/man8/cnibox.8")).unwrap();
    assert_eq!(written, page(&world, &[]));
    for (args, status, reason) in [
        (&["man", "--to", "/run/new/man8/cnibox.8"][..], 1, "/run/new/man8/cnibox.8"),
        (&["man", "--to", "/run/other", "run"], 2, "--to writes all pages"),
    ] {
        let outcome = cnibox(&world, args).run();
        assert_eq!(outcome.status, status, "{}", outcome.report());
        assert!(outcome.stderr.contains(reason), "{}", outcome.report());
    }
    assert!(!world.path("/run/other").exists());
}

#[test]
fn an_unknown_subject_gets_the_names_that_exist() {
    let world = World::new();
    for command in ["help", "man"] {
        for (words, reason) in [
            ("brigde", "there is no command or plugin brigde; did you mean bridge?"),
            ("recncile", "; did you mean reconcile?"),
            ("nosuchthing", "; cnibox --help lists them"),
            ("networks crate", "Unrecognized argument: crate; did you mean create?"),
            ("networks nosuch", "; there is create, rm, inspect, export"),
            ("run nosuch", "Unrecognized argument: nosuch\n"),
            ("bridge more", "Unrecognized argument: more\n"),
            ("networks create more", "Unrecognized argument: more\n"),
        ] {
            let args: Vec<&str> = [command].into_iter().chain(words.split(' ')).collect();
            let outcome = cnibox(&world, &args).run();
            assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{}", outcome.report());
            assert!(outcome.stderr.contains(reason), "{}", outcome.report());
        }
    }
}
