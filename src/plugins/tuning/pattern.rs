//! Regular expressions of the allowlist: those of regex-lite that Go's regexp reads in the same way. Any other expression is an
//! error, so a line of the allowlist never allows something else than with the reference.

use regex_lite::Regex;

/// The highest number in a repetition that Go's regexp reads.
const REPETITIONS_MAX: u32 = 1000;

pub fn parse(pattern: &str) -> Result<Regex, String> {
    let regex = Regex::new(pattern).map_err(|error| error.to_string())?;
    check_meaning(pattern)?;
    Ok(regex)
}

/// Fails if Go's regexp refuses the pattern or reads it in another way. The pattern is valid for regex-lite.
fn check_meaning(pattern: &str) -> Result<(), String> {
    let mut rest = pattern;
    let (mut before, mut is_repeated) = (None, false);
    while let Some(c) = rest.chars().next() {
        let is_repetition = matches!(c, '*' | '+' | '?' | '{');
        if is_repetition && is_repeated {
            return Err(format!("{c} repeats a repetition"));
        }
        is_repeated = is_repetition;
        let before = before.replace(c);
        rest = match c {
            '\\' => after_escape(rest)?,
            '[' => after_class(rest)?,
            // Go's regexp limits the product of nested numbers.
            '{' if before.is_some_and(|c| c == ')') => return Err("){ is not supported".into()),
            '{' => after_repetition(rest)?,
            '(' if rest.starts_with("(?") => {
                rest.strip_prefix("(?:").ok_or("the group (? is not supported; (?: is")?
            }
            _ => &rest[c.len_utf8()..],
        };
        // A lazy repetition matches the same texts as a greedy one.
        rest = rest.strip_prefix('?').filter(|_| is_repetition).unwrap_or(rest);
    }
    Ok(())
}

/// The text after the escape that `text` begins with.
fn after_escape(text: &str) -> Result<&str, String> {
    let rest = &text[1..];
    match rest.chars().next() {
        Some('b') if rest.starts_with("b{") => Err("\\b{ is not supported".into()),
        Some(c @ ('<' | '>' | 'u' | 'U')) => Err(format!("\\{c} is not supported")),
        Some('x') if rest.starts_with("x{") => Ok(after(rest, "}")),
        c => Ok(&rest[c.map_or(0, char::len_utf8)..]),
    }
}

/// The text after the class `[…]` that `text` begins with.
fn after_class(text: &str) -> Result<&str, String> {
    let rest = &text[1..];
    let rest = rest.strip_prefix('^').unwrap_or(rest);
    // regex-lite never reads a range that begins with the first - or ] of a class.
    if let [b'-' | b']', b'-', end, ..] = rest.as_bytes()
        && *end != b']'
    {
        return Err("a class that begins with a range from - or ] is not supported".into());
    }
    let mut rest = rest.strip_prefix(']').unwrap_or(rest);
    loop {
        rest = match rest.chars().next() {
            None => return Ok(rest),
            Some(']') => return Ok(&rest[1..]),
            Some('\\') => after_escape(rest)?,
            // This can be a range or the beginning of a class with a name.
            Some('-') if rest.starts_with("-[") => return Err("-[ is not supported".into()),
            // A class with a name.
            Some('[') => after(rest, ":]"),
            Some(c) => &rest[c.len_utf8()..],
        };
    }
}

/// The text after the repetition `{n}`, `{n,}` or `{n,m}` that `text` begins with. With blanks or leading zeros, Go's regexp
/// reads it as a literal.
fn after_repetition(text: &str) -> Result<&str, String> {
    let (numbers, rest) = text[1..].split_once('}').unwrap_or_default();
    let is_number = |text: &str| {
        text.parse()
            .is_ok_and(|number: u32| number <= REPETITIONS_MAX && number.to_string() == text)
    };
    let (min, max) = numbers.split_once(',').unwrap_or((numbers, ""));
    if is_number(min) && (max.is_empty() || is_number(max)) {
        Ok(rest)
    } else {
        Err(format!("the repetition {{{numbers}}} is not supported"))
    }
}

fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")).is_match(text)
    }

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, yes, no) in [
            ("", &["", "a"][..], &[][..]),
            ("abc", &["abc", "xabcx"], &["ab", "ABC", ""]),
            ("a.c", &["abc", "aéc"], &["ac", "a\nc"]),
            (
                r"^net\.core\.somaxconn$",
                &["net.core.somaxconn"],
                &["net.core.somaxconn1", "netxcorexsomaxconn", "net.core.somaxconn\n"],
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
            ("^[]-]$", &["]", "-"], &["a"]),
            ("^[--]$", &["-"], &["a"]),
            ("^[-a-c-e]$", &["-", "b", "e"], &["d"]),
            (r"^[\d_\]-]+$", &["1_]-"], &["a"]),
            (r"^[a\-z]+$", &["a-z"], &["b"]),
            (r"^[+-9]$", &["+", ".", "9"], &["*"]),
            (r"^[\D]$", &["a", "\n"], &["1"]),
            (r"^[\x{61}-\x63]$", &["a", "c"], &["d"]),
            ("^[[:alpha:]_]$", &["a", "Z", "_"], &["1", "é", ":"]),
            ("^[[:^alpha:]]$", &["1", "é"], &["a"]),
            ("^[:alpha:]$", &["a", ":"], &["b"]),
            (r"^\d\D\w\W\s\S$", &["1a_- x", "1aaé\tx"], &["aa_- x", "1éa x", "٣a_- x"]),
            (r"\A[.]\z", &["."], &["a", ".."]),
            (r"\bcore\b", &["net.core", "écore"], &["xcore", "core1"]),
            (r"^\n\x41\x{42}$", &["\nAB"], &["nAB"]),
            ("^a*?b+?c??$", &["b", "aabbc"], &["ac"]),
            ("^a{2}b{1,}?c{0,1}$", &["aab", "aabbc"], &["ab", "aaabc", "aabcc"]),
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
        let (deep, large) = ("(".repeat(5000), &*"[ab]{1000}".repeat(1000));
        for pattern in [
            "*",
            "+a",
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
            "{2}",
            "a**",
            "a+*",
            "a*??",
            "a{2}*",
            "(?:a{32}){32}",
            "(ab){2}",
            "a{2}{3}",
            "^*{2}",
            "a{2,1}",
            "a{1001}",
            "(?",
            "[a-\\d]",
            "\\1",
            "\\Z",
            "\\é",
            r"\u0061",
            r"[\u0061]",
            r"\U00000061",
            "(?x)a",
            "(?R)a",
            "(?=a)",
            &deep,
            large,
        ] {
            assert!(parse(pattern).is_err(), "{pattern}");
        }
    }

    /// Go reads these patterns, regex-lite does not or reads another meaning.
    #[test]
    fn a_pattern_that_only_go_reads_is_refused() {
        for pattern in [
            "\\pL",
            r"\p{Greek}",
            r"\Qa\E",
            r"\123",
            r"\0",
            "a{,2}",
            "a{ 2}",
            "a{02}",
            "a{2",
            "a{",
            "(?i)a",
            "(?i:a)",
            "(?s).",
            "(?P<x>a)",
            "(?<x>a)",
            r"a\<",
            r"a\>",
            r"[\<]",
            r"\b{start}",
            r"\b{2}",
            "[a[b]]",
            "[a&&b]",
            "[!--]",
            "[a~~b]",
            "[--a]",
            "[]-a]",
            "[^--a]",
            "[A-[]",
            r"[\d-a]",
            "[[:alpha]]",
            r"\x{D800}",
        ] {
            assert!(parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let text = "a".repeat(1000);
        let stars = "(a*)*".repeat(100) + "b";
        let nested = "(".repeat(20) + "a*" + &")*".repeat(20) + "b";
        let options = "a?".repeat(500) + &"a".repeat(500) + "b";
        for pattern in [stars, nested, options] {
            assert!(!matches(&pattern, &text));
        }
    }
}
