//! The words that prose and names may not use: comments, texts of the program, names of tests, manuals and documents are in
//! plain technical English.

use std::fs;
use std::path::{Path, PathBuf};

use super::{ROOT, Source, code_of, report, sources, without_quotes};

/// Words and phrases, in lower case. `^` is the begin of a sentence. docs/contributing.md says what to write instead.
const BANNED: &[&str] = &[
    // Sentences without a concrete subject.
    "^what",
    "^whatever",
    "^one that",
    "^one who",
    "^none",
    "^that it is",
    "^who",
    "there is none",
    "there are none",
    // Persons, in place of a process, a plugin, a link or an operator.
    "he",
    "she",
    "him",
    "his",
    "her",
    "himself",
    "whose",
    "whoever",
    "whom",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "someone",
    "mute",
    "deaf",
    // Idioms of persons for objects of the kernel.
    "gets to know",
    "get to know",
    "got to know",
    "comes home",
    "come home",
    "came home",
    "brought home",
    "brings home",
    "bring home",
    "lets go",
    "let go",
    "is minded",
    "minds",
    "minded",
    "is asked",
    "are asked",
    "was asked",
    "is told",
    "are told",
    "lives its life",
    "life of its own",
    "comes and goes",
    "come and go",
    "drawn by lot",
    "by lot",
    "takes its turn",
    "is none of",
    "in its own time",
    "knows nothing of",
    "know nothing of",
    "knows of",
    "sees to it",
    "see to it",
    "wishes",
    // Words with a plainer one: also, again.
    "besides",
    "anew",
];

/// Names of types, functions and variables that are no words of the field.
const BANNED_NAMES: [&str; 20] = [
    "Given", "Judged", "Lack", "Looks", "Manner", "Means", "News", "Passed", "Said", "Trouble",
    "Wishes", "converse", "farewell", "leash", "news", "said", "surround", "told", "trouble",
    "wishes",
];

/// Declarations of a variable with the name `it`, without `&` and `mut`. The word alone can be in a text of several lines.
const DECLARATIONS_OF_IT: [&str; 12] = [
    "|it|",
    "|it,",
    "|it:",
    "(it)",
    "(it,",
    "(it:",
    ", it)",
    ", it,",
    ", it:",
    "    it: ",
    "let it ",
    "for it in",
];

/// The directories with prose or comments.
const DIRECTORIES: [&str; 6] = ["src", "tests", "packaging", "docs", "symlinks", ".ci"];
const FILES: [&str; 3] = ["README.md", "build.rs", ".cargo/rustc-static"];

/// Files whose text is data, and the list of words itself.
const DATA: [&str; 4] =
    ["tests/bench/results", "tests/it/spec/", "tests/it/tidy/prose.rs", "symlinks/"];

/// A line of prose.
struct Line {
    file: String,
    number: usize,
    text: String,
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The prose of a source: its comments, and the names of its tests.
fn prose_of_source(line: &str, mark: &str) -> Option<String> {
    let code = without_quotes(line);
    let of_shell = ["test_", "machine_", "cut_"].iter().find_map(|start| line.strip_prefix(start));
    if let Some(name) = line.trim_start().strip_prefix("fn ").or(of_shell) {
        // The name of a test is a sentence; that of another function can be one word.
        let (first, rest) = name.split('(').next()?.split_at_checked(1)?;
        return rest.contains('_').then(|| first.to_uppercase() + &rest.replace('_', " "));
    }
    // The mark has to be outside of quotes, and not part of a URL or of an expansion.
    let is_comment = line.trim_start().starts_with(mark) || code.contains(&format!(" {mark} "));
    let comment = line.split_once(mark).filter(|_| is_comment)?.1;
    Some(comment.trim_start_matches(['/', '!', '#']).to_owned())
}

/// The texts of a line of Rust code: quoted, and with several words.
fn texts(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split(" // ").next().unwrap_or(line);
    let is_comment = line.trim_start().starts_with("//");
    let quoted = code.split('"').skip(1).step_by(2);
    quoted.filter(move |text| !is_comment && text.trim().contains(' '))
}

/// Without what is in backquotes or, as a value of a text, in braces: it is code.
fn without_code(line: &str) -> String {
    let plain = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let parts = plain.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    parts.collect::<Vec<_>>().join("x")
}

fn prose(path: &Path, name: &str) -> Vec<Line> {
    let Ok(text) = fs::read_to_string(path) else { return Vec::new() };
    let mark = if [".rs", ".c"].iter().any(|end| name.ends_with(end)) { "//" } else { "#" };
    let is_document = name.ends_with(".md");
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let of_line = |text: &str| Line {
            file: name.to_owned(),
            number: number + 1,
            text: without_code(text),
        };
        if name.starts_with("src/") {
            lines.extend(texts(line).map(of_line));
        }
        let found = if is_document { Some(line.to_owned()) } else { prose_of_source(line, mark) };
        // A fenced block is code also within a comment.
        if found.as_ref().is_some_and(|text| text.trim_start().starts_with("```")) {
            is_code = !is_code;
        } else if let Some(text) = found.filter(|_| !is_code) {
            lines.push(of_line(&text));
        }
    }
    lines
}

/// The words of a line in lower case, with a space on both sides of each, and `^` before the first of a sentence.
fn words(line: &str) -> String {
    let mut words = String::from(" ");
    let mut is_begin = true;
    for part in line.split_whitespace() {
        let word: String = part
            .chars()
            .filter(|c| c.is_alphanumeric() || *c == '\'')
            .flat_map(char::to_lowercase)
            .collect();
        // Only what has a capital letter begins a sentence: a line may begin within one.
        if is_begin && part.chars().find(|c| c.is_alphabetic()).is_some_and(char::is_uppercase) {
            words.push('^');
        }
        words.push_str(&word);
        words.push(' ');
        is_begin = part.ends_with(['.', ':', '!', '?']);
    }
    words
}

/// The banned words of a line.
fn banned(line: &str) -> Vec<&'static str> {
    let words = words(line);
    let plain = words.replace('^', "");
    let has = |phrase: &str| {
        let text = if phrase.starts_with('^') { &words } else { &plain };
        text.contains(&format!(" {phrase} "))
    };
    BANNED.iter().copied().filter(|phrase| has(phrase)).collect()
}

fn offenders_of(lines: impl IntoIterator<Item = Line>) -> Vec<String> {
    let mut found = Vec::new();
    for Line { file, number, text } in lines {
        let text = text.trim();
        found.extend(
            banned(text).iter().map(|phrase| format!("{file}:{number}: {phrase:?} in: {text}")),
        );
    }
    found
}

fn offenders(name: &str) -> Vec<String> {
    let root = Path::new(ROOT).join(name);
    let mut paths = Vec::new();
    if root.is_dir() {
        files(&root, &mut paths)
    } else {
        paths.push(root)
    }
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned();
        if !DATA.iter().any(|data| name.starts_with(data)) {
            found.extend(offenders_of(prose(&path, &name)));
        }
    }
    found
}

#[test]
fn prose_is_in_plain_words() {
    let all: Vec<String> =
        DIRECTORIES.iter().chain(&FILES).flat_map(|name| offenders(name)).collect();
    report(&all, "docs/contributing.md, \"Language\"");
}

#[test]
fn names_are_words_of_the_field() {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let of = |source: &Source| {
        let code = source.code();
        let found = code.split(|c: char| !is_of_name(c)).filter(|name| BANNED_NAMES.contains(name));
        found.map(|name| format!("{}: {name}", source.path)).collect::<Vec<_>>()
    };
    let all: Vec<String> = sources("src").iter().flat_map(of).collect();
    report(&all, "docs/contributing.md, \"Language\"");
}

fn declares_it(line: &str) -> bool {
    let code = code_of(line).replace("mut ", "").replace('&', "");
    DECLARATIONS_OF_IT.iter().any(|declaration| code.contains(declaration))
}

#[test]
fn the_name_of_a_variable_is_a_noun() {
    let of = |source: &Source| {
        let lines = source.text.lines().enumerate().filter(|(_, line)| declares_it(line));
        lines.map(|(at, _)| format!("{}:{}: it", source.path, at + 1)).collect::<Vec<_>>()
    };
    let all: Vec<String> = sources("src").iter().chain(&sources("tests")).flat_map(of).collect();
    report(&all, "docs/contributing.md, \"Language\"");
}

#[test]
fn declarations_of_it_are_found_in_code_only() {
    let cases = [
        ("links.iter().find(|it| it.index == 1)", true),
        ("let is_up = move |it: &&Link| it.up;", true),
        ("pairs.map(|(key, it)| key)", true),
        ("pairs.map(|&(it, _)| it)", true),
        ("for (pool, it, reason) in reservations {", true),
        ("Some(it) => it,", true),
        ("for it in &mut links {", true),
        ("fn add(table: &mut Table, it: &Link) {", true),
        ("    it: &Link,", true),
        ("links.map(|link| link.index); // The argument is |it|.", false),
        ("Error::internal(\"cannot use (it)\")", false),
        ("the owner has it, and uses it: a text of several lines\\n\\", false),
    ];
    for (line, is_found) in cases {
        assert_eq!(declares_it(line), is_found, "{line}");
    }
}

#[test]
fn banned_words_are_found_in_prose_only() {
    let cases = [
        ("// What is left is removed.", 1),
        ("/// This is what is left.", 0),
        ("let url = \"http://whose\";", 0),
        ("fn a_link_whose_owner_is_unknown() {", 1),
        ("    fn a_link_whose_owner_is_unknown() {", 1),
        ("fn what_is_left_is_removed() {", 1),
        ("// `whose` is code.", 0),
        ("    run(); // Nobody reads it.", 1),
        ("//! One fact. One that is odd. This one that is even.", 1),
    ];
    for (line, count) in cases {
        let found = prose_of_source(line, "//").map(|text| banned(&without_code(&text)));
        assert_eq!(found.unwrap_or_default().len(), count, "{line}");
    }
    assert_eq!(
        texts(r#"fail("a socket whose owner", "x"); // "a comment""#).collect::<Vec<_>>(),
        ["a socket whose owner"]
    );
    assert!(DIRECTORIES.iter().all(|name| Path::new(ROOT).join(name).is_dir()));
}
