//! Pseudorandom numbers for transaction ids and jitter. The same seed gives the same numbers, so tests are reproducible.

use crate::dhcp::time::Time;

/// The generator splitmix64. It is not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.u64().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// A time from zero up to the limit.
    pub fn up_to(&mut self, limit: Time) -> Time {
        // 16 random bits are precise enough, and the product does not overflow for limits below 8000 years.
        limit * (self.u32() >> 16) / 0x1_0000
    }

    /// A time that differs from the base by at most the spread.
    pub fn around(&mut self, base: Time, spread: Time) -> Time {
        base - spread + self.up_to(spread * 2)
    }
}
