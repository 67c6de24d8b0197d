//! `memcpy` and `memmove` of the shipped executable on x86-64. musl's use `rep movsq`, also for a few bytes, and take 30 ns
//! for each of the thousands of copies in a run of the program.
//!
//! Source: C standard, "Copying functions"; System V ABI, AMD64 supplement, for the registers.

use std::arch::naked_asm;
use std::ffi::c_void;

/// Up to 15 bytes are read before the first one is written, so `memmove` can call it. From 256 bytes on, it uses the
/// loop of the processor.
// SAFETY: the executable has no other function of this name.
#[unsafe(naked)]
#[cfg_attr(own_start, unsafe(no_mangle))]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb 3f",
        "cmp rdx, 256",
        "jae 7f",
        // The last 16 bytes overlap those of the loop.
        "movups xmm0, [rsi + rdx - 16]",
        "lea rcx, [rdi + rdx - 16]",
        "2:",
        "movups xmm1, [rsi]",
        "movups [rdi], xmm1",
        "add rsi, 16",
        "add rdi, 16",
        "cmp rdi, rcx",
        "jb 2b",
        "movups [rcx], xmm0",
        "ret",
        // Two words that overlap.
        "3:",
        "cmp edx, 8",
        "jb 4f",
        "mov rcx, [rsi]",
        "mov rsi, [rsi + rdx - 8]",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], rsi",
        "ret",
        "4:",
        "cmp edx, 4",
        "jb 5f",
        "mov ecx, [rsi]",
        "mov esi, [rsi + rdx - 4]",
        "mov [rdi], ecx",
        "mov [rdi + rdx - 4], esi",
        "ret",
        "5:",
        "test edx, edx",
        "jz 6f",
        // The first, the middle and the last byte; with one or two bytes, some are the same.
        "movzx ecx, byte ptr [rsi]",
        "movzx r8d, byte ptr [rsi + rdx - 1]",
        "mov r9d, edx",
        "shr r9d, 1",
        "movzx esi, byte ptr [rsi + r9]",
        "mov [rdi], cl",
        "mov [rdi + r9], sil",
        "mov [rdi + rdx - 1], r8b",
        "6:",
        "ret",
        "7:",
        "mov rcx, rdx",
        "rep movsb",
        "ret",
    )
}

/// A destination that begins inside of the source is written from its end.
// SAFETY: as above.
#[unsafe(naked)]
#[cfg_attr(own_start, unsafe(no_mangle))]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void {
    naked_asm!(
        "mov rcx, rdi",
        "sub rcx, rsi",
        "cmp rcx, rdx",
        "jae {copy}",
        "cmp rdx, 16",
        "jb {copy}",
        "mov rax, rdi",
        // The first 16 bytes overlap those of the loop.
        "movups xmm0, [rsi]",
        "2:",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi + rdx - 16], xmm1",
        "sub rdx, 16",
        "cmp rdx, 16",
        "ja 2b",
        "movups [rdi], xmm0",
        "ret",
        copy = sym memcpy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long enough for each way through both functions.
    const LENGTH_MAX: usize = 300;
    const DISTANCES: [usize; 12] = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 100, LENGTH_MAX];

    fn bytes() -> Vec<u8> {
        (0..=250).cycle().take(3 * LENGTH_MAX).collect()
    }

    fn at(buffer: &mut [u8], offset: usize) -> *mut c_void {
        buffer[offset..].as_mut_ptr().cast()
    }

    #[test]
    fn copies_each_length_and_nothing_else() {
        for length in 0..=LENGTH_MAX {
            for offset in [0, 1, 5] {
                let (source, mut target) = (bytes(), vec![255; 3 * LENGTH_MAX]);
                let to = at(&mut target, offset);
                let from = source[offset + 3..].as_ptr().cast();
                // SAFETY: both have room for the length at these offsets, and do not overlap.
                assert_eq!(unsafe { memcpy(to, from, length) }, to);
                let mut expected = vec![255; 3 * LENGTH_MAX];
                expected[offset..offset + length]
                    .copy_from_slice(&source[offset + 3..offset + 3 + length]);
                assert_eq!(target, expected, "{length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn moves_in_both_directions() {
        for length in 0..=LENGTH_MAX {
            for distance in DISTANCES {
                for (to, from) in
                    [(LENGTH_MAX, LENGTH_MAX - distance), (LENGTH_MAX - distance, LENGTH_MAX)]
                {
                    let (mut moved, mut expected) = (bytes(), bytes());
                    let target = at(&mut moved, to);
                    // SAFETY: the buffer has room for the length at both places.
                    assert_eq!(unsafe { memmove(target, at(&mut moved, from), length) }, target);
                    expected.copy_within(from..from + length, to);
                    assert_eq!(moved, expected, "{length} bytes from {from} to {to}");
                }
            }
        }
    }
}
