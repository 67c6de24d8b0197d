//! Registers, which pass values between the expressions of a rule.

use nix::libc::{self, c_int};

/// One of sixteen registers of four bytes. A longer value takes several registers, beginning with this register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

impl Register {
    pub const FIRST: Self = Self(0);

    const COUNT: u8 = 16;

    /// The register after a value of this length. The register after the last one is the first; the kernel refuses values of
    /// that length.
    pub fn after(self, value_bytes: u8) -> Self {
        let words = value_bytes.div_ceil(4);
        Self(self.0.wrapping_add(words) % Self::COUNT)
    }

    /// The number of the register in messages. Where one of the older registers of 16 bytes begins, nft uses the number of that
    /// register, and so does this function.
    pub(super) fn number(self) -> c_int {
        let word = c_int::from(self.0);
        if self.0.is_multiple_of(4) {
            libc::NFT_REG_1 + word / 4
        } else {
            libc::NFT_REG32_00 + word
        }
    }

    /// The register with this number; `None` if there is no such register, and for NFT_REG_VERDICT.
    pub(super) fn of(number: c_int) -> Option<Self> {
        let word = match number {
            libc::NFT_REG_VERDICT => return None,
            libc::NFT_REG_1..libc::NFT_REG32_00 => (number - libc::NFT_REG_1).checked_mul(4)?,
            // These share the memory of the older registers.
            _ => number.checked_sub(libc::NFT_REG32_00)?,
        };
        u8::try_from(word).ok().filter(|word| *word < Self::COUNT).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_numbers_are_the_same_registers() {
        for (number, word) in [(1, 0), (2, 4), (4, 12), (8, 0), (9, 1), (23, 15)] {
            assert_eq!(Register::of(number), Some(Register(word)), "{number}");
        }
        for number in [0, 5, 7, 24, c_int::MAX, c_int::MIN, -1] {
            assert_eq!(Register::of(number), None, "{number}");
        }
        for word in 0..Register::COUNT {
            assert_eq!(Register::of(Register(word).number()), Some(Register(word)));
        }
    }
}
