//! Base64 with padding, as Go's encoding/json writes bytes. Source: RFC 4648, section 4.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = vec![b'='; bytes.len().div_ceil(3) * 4];
    for (chunk, digits) in bytes.chunks(3).zip(text.chunks_mut(4)) {
        let mut value = [0; 4];
        value[1..=chunk.len()].copy_from_slice(chunk);
        let value = u32::from_be_bytes(value);
        for (position, digit) in digits.iter_mut().take(chunk.len() + 1).enumerate() {
            *digit = ALPHABET[(value >> (18 - 6 * position) & 63) as usize];
        }
    }
    String::from_utf8(text).expect("the alphabet is ASCII")
}

/// Decodes a text. Returns `None` if the text is not base64. Line breaks are skipped, as Go does.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let count = text.len() / 4;
    for (index, chunk) in text.chunks(4).enumerate() {
        let padding = chunk.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && index + 1 < count) {
            return None;
        }
        let mut value = 0;
        for byte in &chunk[..4 - padding] {
            value = value << 6 | value_of(*byte)?;
        }
        value <<= 6 * padding;
        bytes.extend_from_slice(&value.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
}

/// The value of a digit: its place in the alphabet.
fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode("Zm9v\r\nYmFy").as_deref(), Some(&b"foobar"[..]));
        for broken in ["Z", "Zg=", "Zg==Zg==", "Z===", "====", "Zm9*", "Z=9v"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
