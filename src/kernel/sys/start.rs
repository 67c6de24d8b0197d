//! The entry point of the shipped executable: relocates it, and goes on with the C library's entry point.
//! `packaging/release` sets `own_start`.
//!
//! The addresses to relocate take 300 bytes in a list of bits (DT_RELR), and 25 KB in the table that musl before 1.2.4 can
//! read (DT_RELA). This code empties the list, so a later musl, which can read it, does not relocate a second time.
//!
//! Source: Generic ABI, "Relative Relocation Table".

use std::arch::naked_asm;
use std::ptr::null_mut;

/// Source: elf.h.
const DT_NULL: usize = 0;
const DT_RELRSZ: usize = 35;
const DT_RELR: usize = 36;

/// The kernel jumps here. The C library needs the stack pointer that the kernel set.
#[cfg(target_arch = "x86_64")]
// SAFETY: no other symbol has this name, and the section has code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start() {
    naked_asm!(
        ".hidden __ehdr_start",
        ".hidden _DYNAMIC",
        "lea rdi, [rip + __ehdr_start]",
        "lea rsi, [rip + _DYNAMIC]",
        "call {relocate}",
        "jmp _start",
        relocate = sym relocate,
    )
}

/// The same.
#[cfg(target_arch = "x86")]
// SAFETY: no other symbol has this name, and the section has code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start() {
    naked_asm!(
        ".hidden __ehdr_start",
        ".hidden _DYNAMIC",
        "call 2f",
        "2: popl %eax",
        "leal _DYNAMIC - 2b(%eax), %ecx",
        "leal __ehdr_start - 2b(%eax), %eax",
        // The stack is aligned to 16 bytes before a call.
        "subl $8, %esp",
        "pushl %ecx",
        "pushl %eax",
        "call {relocate}",
        "addl $16, %esp",
        "jmp _start",
        relocate = sym relocate,
        options(att_syntax),
    )
}

/// The same.
#[cfg(target_arch = "aarch64")]
// SAFETY: no other symbol has this name, and the section has code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start() {
    naked_asm!(
        ".hidden __ehdr_start",
        ".hidden _DYNAMIC",
        "adrp x0, __ehdr_start",
        "add x0, x0, :lo12:__ehdr_start",
        "adrp x1, _DYNAMIC",
        "add x1, x1, :lo12:_DYNAMIC",
        "bl {relocate}",
        "b _start",
        relocate = sym relocate,
    )
}

/// The same. The counter of the program is 8 bytes ahead of an instruction.
#[cfg(target_arch = "arm")]
// SAFETY: no other symbol has this name, and the section has code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start() {
    naked_asm!(
        ".hidden __ehdr_start",
        ".hidden _DYNAMIC",
        "ldr r0, 4f",
        "2: add r0, pc, r0",
        "ldr r1, 5f",
        "3: add r1, pc, r1",
        "bl {relocate}",
        "b _start",
        "4: .long __ehdr_start - (2b + 8)",
        "5: .long _DYNAMIC - (3b + 8)",
        relocate = sym relocate,
    )
}

/// The same.
#[cfg(target_arch = "riscv64")]
// SAFETY: no other symbol has this name, and the section has code only.
#[unsafe(naked)]
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start() {
    naked_asm!(
        ".hidden __ehdr_start",
        ".hidden _DYNAMIC",
        "lla a0, __ehdr_start",
        "lla a1, _DYNAMIC",
        "call {relocate}",
        "tail _start",
        relocate = sym relocate,
    )
}

/// `base` is the address of the first byte of the executable; `dynamic` is a list of tags and values that ends with DT_NULL.
///
/// No address in data is valid before the end of this function, so it calls no other function and uses no constant in memory.
// SAFETY: the section has code only.
#[unsafe(link_section = ".text")]
unsafe extern "C" fn relocate(base: *mut usize, mut dynamic: *mut [usize; 2]) {
    let (mut list, mut length) = (null_mut::<usize>(), null_mut::<usize>());
    // SAFETY: the linker made both lists, and every place in them is an aligned word of the executable that can be written.
    unsafe {
        while (*dynamic)[0] != DT_NULL {
            if (*dynamic)[0] == DT_RELR {
                list = base.wrapping_byte_add((*dynamic)[1]);
            } else if (*dynamic)[0] == DT_RELRSZ {
                length = &raw mut (*dynamic)[1];
            }
            dynamic = dynamic.wrapping_add(1);
        }
        if list.is_null() || length.is_null() {
            return;
        }
        let end = list.wrapping_byte_add(*length);
        *length = 0;
        let mut place = base;
        while list != end {
            let entry = *list;
            list = list.wrapping_add(1);
            if entry & 1 == 0 {
                place = base.wrapping_byte_add(entry);
                *place = (*place).wrapping_add(base.addr());
                place = place.wrapping_add(1);
                continue;
            }
            // Bit n, counted from 1, stands for the n-th word after the last place.
            let mut bits = entry >> 1;
            while bits != 0 {
                let word = place.wrapping_add(bits.trailing_zeros() as usize);
                *word = (*word).wrapping_add(base.addr());
                bits &= bits.wrapping_sub(1);
            }
            place = place.wrapping_add(usize::BITS as usize - 1);
        }
    }
}
