//! Patterns match as in RE2: hand-written cases, and generated ones that are compared with regex-lite.

use proptest::prelude::*;
use regex_lite::Regex;

use super::*;

fn matches(pattern: &str, text: &str) -> bool {
    Pattern::parse(pattern)
        .unwrap_or_else(|error| panic!("{pattern}: {error}"))
        .matches_part_of(text)
}

#[test]
fn patterns_match_as_in_re2() {
    for (pattern, yes, no) in [
        ("", &["", "a"][..], &[][..]),
        ("abc", &["abc", "xabcx"], &["ab", "ABC", ""]),
        ("a.c", &["abc", "aéc"], &["ac", "a\nc"]),
        (
            r"^net\.core\.somaxconn$",
            &["net.core.somaxconn"],
            &["net.core.somaxconn1", "netxcorexsomaxconn"],
        ),
        ("^$", &[""], &["a"]),
        ("a*", &["", "b"], &[]),
        ("^a*$", &["", "aaa"], &["ab"]),
        ("^a+$", &["a", "aaa"], &["", "b"]),
        ("^ab?c$", &["ac", "abc"], &["abbc"]),
        ("^(ab)*$", &["", "abab"], &["aba"]),
        ("^(a|bc)+d$", &["ad", "abcad", "bcd"], &["d", "bd"]),
        ("^(a|b|)$", &["a", "b", ""], &["c", "ab"]),
        ("a|b", &["xa", "bx"], &["c"]),
        ("^a|b$", &["ax", "xb"], &["xax"]),
        ("^(?:a|b)(c|d)$", &["ac", "bd"], &["ab"]),
        ("^[a-c]$", &["a", "b", "c"], &["d", "-"]),
        ("^[^a-c.]$", &["d", "\n"], &["a", "."]),
        ("^[]a-]$", &["]", "a", "-"], &["b"]),
        ("^[^]]$", &["a"], &["]"]),
        (r"^[\d_\]-]+$", &["1_]-"], &["a"]),
        (r"^[a\-z]+$", &["a-z"], &["b"]),
        (r"^[+-9]$", &["+", ".", "9"], &["*"]),
        (r"^\d\D\w\W\s\S$", &["1a_- x"], &["aa_- x"]),
        (r"\A[.]\z", &["."], &["a", ".."]),
        ("^a*?b+?c??$", &["b", "aabbc"], &["ac"]),
        ("^((a*)*)*$", &["", "aaaa"], &["b"]),
        ("^(a?)(a+)$", &["a", "aa"], &[""]),
        ("(^a|^b)c", &["ac", "bc"], &["xac"]),
        ("x*^", &["", "abc"], &[]),
        (r"^\^\$\.\*\+\?\(\)\[\]\{\}\|\\$", &[r"^$.*+?()[]{}|\"], &["a"]),
        ("}]", &["a}]"], &["}"]),
    ] {
        for text in yes {
            assert!(matches(pattern, text), "{pattern} in {text:?}");
        }
        for text in no {
            assert!(!matches(pattern, text), "{pattern} not in {text:?}");
        }
    }
}

#[test]
fn a_wrong_pattern_is_refused() {
    let deep = "(".repeat(5000);
    let long = "a".repeat(5000);
    for pattern in [
        "*",
        "+a",
        "a**",
        "a+*",
        "a|*",
        "(a",
        "a)",
        "[a",
        "[",
        "[]",
        "[^]",
        "a\\",
        "[a\\",
        "(*)",
        "[z-a]",
        "a{2}",
        "{2}",
        "(?i)a",
        "(?P<x>a)",
        "(?",
        "[[:alpha:]]",
        "\\b",
        "\\pL",
        "\\Qa\\E",
        "\\1",
        "\\n",
        "[\\D]",
        "[a-\\d]",
        "^*{2}",
        &deep,
        &long,
    ] {
        assert!(Pattern::parse(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn no_pattern_takes_long() {
    let text = "a".repeat(1000);
    let stars = "(a*)*".repeat(100) + "b";
    let nested = "(".repeat(90) + "a*" + &")*".repeat(90) + "b";
    let options = "a?".repeat(500) + &"a".repeat(500) + "b";
    for pattern in [stars, nested, options] {
        assert!(!matches(&pattern, &text));
    }
}

/// A character class. `[`, `&&`, `~~` and `--` are left out: in a class they are operators for regex-lite, but not for RE2.
fn class() -> impl Strategy<Value = String> {
    let member = prop_oneof![
        "[abcx0_é]".boxed(),
        "[a-c]-[d-z]".boxed(),
        Just(r"\d".to_owned()).boxed(),
        Just(r"\w".to_owned()).boxed(),
        Just(r"\s".to_owned()).boxed(),
        Just(r"\]".to_owned()).boxed(),
        Just(r"\.".to_owned()).boxed(),
    ];
    (any::<bool>(), proptest::collection::vec(member, 1..4)).prop_map(|(is_negated, members)| {
        format!("[{}{}]", if is_negated { "^" } else { "" }, members.concat())
    })
}

fn pattern() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        "[abcx.é_0^$]".boxed(),
        r"\\[dDwWsS.*+?|()^$]".boxed(),
        r"\\[Az]".boxed(),
        class().boxed(),
    ];
    atom.prop_recursive(4, 24, 4, |inner| {
        let repeated =
            (inner.clone(), "[*+?][?]?").prop_map(|(inner, sign)| format!("(?:{inner}){sign}"));
        let sequence =
            proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat());
        let choice = proptest::collection::vec(inner, 1..4)
            .prop_map(|parts| format!("({})", parts.join("|")));
        prop_oneof![repeated, sequence, choice]
    })
}

fn same_as_regex_lite(pattern: &str, text: &str) -> Result<(), TestCaseError> {
    let regex =
        Regex::new(pattern).map_err(|error| TestCaseError::fail(format!("{pattern}: {error}")))?;
    prop_assert_eq!(matches(pattern, text), regex.is_match(text), "{} in {:?}", pattern, text);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generated_patterns_match_as_in_regex_lite(pattern in pattern(), texts in proptest::collection::vec("[abcx.é_0 \\n^$*]{0,6}", 8)) {
        for text in texts {
            same_as_regex_lite(&pattern, &text)?;
        }
    }

    #[test]
    fn accepted_random_text_matches_as_in_regex_lite(pattern in r"[ab0^$.*+?|()\\dwA-]{0,8}", text in "[ab0.d]{0,5}") {
        if Pattern::parse(&pattern).is_ok() {
            same_as_regex_lite(&pattern, &text)?;
        }
    }
}
