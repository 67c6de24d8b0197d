//! Base64 with padding, as Go's encoding/json writes bytes. Source: RFC 4648, section 4.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let value = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let digit = ALPHABET[(value >> (18 - 6 * position) & 63) as usize];
            text.push(if position > chunk.len() { '=' } else { digit.into() });
        }
    }
    text
}

/// Returns `None` if the text is not base64. Line breaks are skipped, as Go does.
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
            let digit = ALPHABET.iter().position(|known| known == byte)?;
            value = value << 6 | u32::try_from(digit).ok()?;
        }
        value <<= 6 * padding;
        bytes.extend(&value.to_be_bytes()[1..4 - padding]);
    }
    Some(bytes)
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
