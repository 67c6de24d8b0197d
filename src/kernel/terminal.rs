//! Removes the characters that a terminal would execute from text of other programs: names, paths, comments and errors that are
//! printed or logged.

use std::borrow::Cow;

/// Whether a terminal displays a character, at its position. A terminal executes control characters, C1 (such as CSI) included.
/// Directional marks change the order of other characters (CVE-2021-42574), and some log readers end a line at U+2028 and
/// U+2029.
pub fn is_printable(c: char) -> bool {
    let is_mark = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !is_mark
}

/// Converts a text to one line: a tab becomes a space, each other character that is not printable a question mark.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return text.into();
    }
    let shown = |c| match c {
        '\t' => ' ',
        c if is_printable(c) => c,
        _ => '?',
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_execute_is_a_question_mark() {
        for (text, expected) in [
            ("eth0 \\ \"ä\" 世界 🦀", "eth0 \\ \"ä\" 世界 🦀"),
            ("", ""),
            ("\u{1b}[2Ja\r\nb\0", "?[2Ja??b?"),
            ("\u{9b}31m\u{85}\u{7f}", "?31m??"),
            ("a\tb", "a b"),
            ("\u{202e}0hte\u{2066}\u{200f}\u{61c}", "?0hte???"),
            ("a\u{2028}b\u{2029}c", "a?b?c"),
        ] {
            assert_eq!(printable(text), expected, "{text:?}");
        }
    }
}
