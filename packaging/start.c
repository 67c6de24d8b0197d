// SPDX-License-Identifier: Apache-2.0
// The entry point of the shipped executable: relocates it, and goes on with the C library's entry point.
//
// The addresses to relocate take 300 bytes in a list of bits (DT_RELR), and 25 KB in the table that musl before 1.2.4 can
// read (DT_RELA). This code empties the list, so a later musl, which can read it, does not relocate a second time.
//
// Source: Generic ABI, "Relative Relocation Table".

#include <elf.h>
#include <stddef.h>

// The linker defines them.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern Elf64_Dyn _DYNAMIC[] __attribute__((visibility("hidden")));

// The kernel jumps to `start`. The C library needs the stack pointer that the kernel set.
__asm__(".text\n"
        ".globl start\n"
        "start:\n"
        "    call relocate\n"
        "    jmp _start\n");

__attribute__((visibility("hidden"))) void relocate(void)
{
    const size_t base = (size_t)__ehdr_start;
    const size_t *entry = NULL;
    size_t *length = NULL;
    for (Elf64_Dyn *dynamic = _DYNAMIC; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_RELR)
            entry = (const size_t *)(base + dynamic->d_un.d_ptr);
        else if (dynamic->d_tag == DT_RELRSZ)
            length = &dynamic->d_un.d_val;
    }
    if (entry == NULL || length == NULL)
        return;
    const size_t *end = entry + *length / sizeof *entry;
    *length = 0;
    for (size_t *place = NULL; entry < end; entry++) {
        if ((*entry & 1) == 0) {
            place = (size_t *)(base + *entry);
            *place++ += base;
            continue;
        }
        // Bit n, counted from 1, stands for the n-th word after the last place.
        for (size_t bits = *entry >> 1; bits != 0; bits &= bits - 1)
            place[__builtin_ctzl(bits)] += base;
        place += 8 * sizeof *entry - 1;
    }
}
