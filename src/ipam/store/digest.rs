//! A digest of bytes, for look-ups and checksums. It is written to disk, so it is not the hash of the standard library, which
//! can change with a release. It is not cryptographic: each look-up also compares the data that it finds.

/// An odd number without a pattern in its bits.
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

pub(super) fn digest(seed: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    words.fold(mix(mix(seed) ^ bytes.len() as u64), |state, word| mix(state ^ word))
}

/// Mixes the bits of a value: every bit of the result depends on every bit of the value, and different values have different
/// results.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(FACTOR);
    let value = (value ^ (value >> 32)).wrapping_mul(FACTOR);
    // Without the addition, the result for 0 would be 0.
    (value ^ (value >> 32)).wrapping_add(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_change_the_digest() {
        let texts: [&[u8]; 8] = [
            b"",
            b"\0",
            b"\0\0",
            b"abc\r\neth0",
            b"abc\r\neth1",
            b"abd\r\neth0",
            &[0; 8],
            &[0; 16],
        ];
        let mut digests: Vec<u64> = texts.iter().map(|text| digest(0, text)).collect();
        digests.push(digest(1, b""));
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 9);
    }

    #[test]
    fn the_digest_is_the_same_in_every_release() {
        assert_eq!(digest(0, b"abc\r\neth0"), 3_705_409_484_820_355_279);
    }
}
