//! Texts that build.rs has packed.

pub(super) const MATCH_MIN: usize = 4;

/// Unpacks what `packed` in build.rs has packed.
pub(super) fn unpacked(mut packed: &[u8]) -> String {
    let mut text = Vec::new();
    while let Some((flags, rest)) = packed.split_first() {
        packed = rest;
        for bit in 0..8 {
            match packed {
                [low, high, length, rest @ ..] if flags & (1 << bit) != 0 => {
                    let distance = usize::from(u16::from_le_bytes([*low, *high]));
                    let start = text.len().saturating_sub(distance);
                    for at in start..start + usize::from(*length) + MATCH_MIN {
                        text.extend(text.get(at).copied());
                    }
                    packed = rest;
                }
                [byte, rest @ ..] => {
                    text.push(*byte);
                    packed = rest;
                }
                [] => break,
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
