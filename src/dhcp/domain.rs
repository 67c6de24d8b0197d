//! Domain names from servers. A name becomes part of a resolv.conf, so it has only letters, digits, `-`, `_` and dots.

/// The longest name in text form, in bytes (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// The most domains that are read from a list. glibc before 2.26 searches only six, and many domains make each look-up slow.
const NAMES_MAX: usize = 32;

/// Reads a name in text form. Cuts NUL bytes and a final dot, which some servers add. `None`: the text is not a name.
pub fn of_text(text: &[u8]) -> Option<String> {
    let text = text.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?.trim();
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
    };
    (name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)).then(|| name.to_owned())
}

/// Reads names in text form that are separated by white space. Leaves out words that are not names.
pub fn words(text: &[u8]) -> Vec<String> {
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.take(NAMES_MAX).filter_map(of_text).collect()
}

/// Reads a list of names in the encoding of DNS, which may have compression pointers (RFC 1035, section 4.1.4). Leaves out
/// names with other characters. `None`: the bytes are not such a list.
pub fn list(bytes: &[u8]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < bytes.len() && names.len() < NAMES_MAX {
        let (name, next) = name_at(bytes, at)?;
        names.extend(of_text(name.as_bytes()));
        at = next;
    }
    Some(names)
}

/// Returns the name at an offset, and the offset after it. A loop of pointers ends, because each label makes the name
/// longer, up to its limit.
fn name_at(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut at, mut next) = (start, None);
    loop {
        let size = usize::from(*bytes.get(at)?);
        at += 1;
        match size {
            0 => return Some((name, next.unwrap_or(at))),
            1..=LABEL_BYTES_MAX => {
                let label = bytes.get(at..at + size)?;
                // A dot within a label would become a separator, and other characters are refused later.
                if label.contains(&b'.') {
                    return None;
                }
                name.push_str(std::str::from_utf8(label).ok()?);
                name.push('.');
                at += size;
            }
            0xc0.. => {
                let target = (size & 0x3f) << 8 | usize::from(*bytes.get(at)?);
                next = next.or(Some(at + 1));
                // A pointer must lead to a lower offset.
                at = Some(target).filter(|target| *target + 1 < at)?;
            }
            _ => return None,
        }
        if name.len() > NAME_BYTES_MAX + 1 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_text_form() {
        for (text, name) in [("a", "a"), ("lan.example.", "lan.example"), ("x-_1\0\0", "x-_1")] {
            assert_eq!(of_text(text.as_bytes()).as_deref(), Some(name));
        }
        let long = "a.".repeat(127) + "a";
        for text in ["", ".", "a..b", "a b", "a\nb", "../x", "$(x)", "ä", &long, &"a".repeat(64)] {
            assert_eq!(of_text(text.as_bytes()), None, "{text}");
        }
        assert_eq!(of_text(&[0xff]), None);
    }

    #[test]
    fn names_with_spaces_in_between() {
        assert_eq!(words(b"a.example b.example.\tc\0"), ["a.example", "b.example", "c"]);
        assert_eq!(words(b" a..b  b "), ["b"]);
        assert_eq!(words(b"\0 "), Vec::<String>::new());
    }

    #[test]
    fn lists_of_names() {
        // The example of RFC 3397, section 2.
        let bytes = b"\x03eng\x05apple\x03com\0\x09marketing\xc0\x04";
        assert_eq!(list(bytes).unwrap(), ["eng.apple.com", "marketing.apple.com"]);
        assert_eq!(list(b"").unwrap(), Vec::<String>::new());
        for bytes in
            [&b"\xc0\x00"[..], b"\x01a\xc0\x00", b"\x01a\xc0\x02", b"\x01a", b"\x40", b"\x02a."]
        {
            assert_eq!(list(bytes), None, "{bytes:?}");
        }
    }
}
