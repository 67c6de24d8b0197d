//! Replacements for the functions of the unwinding library. The shipped executable aborts at a panic and does not link that
//! library, but the optimizer leaves some calls. These functions report the end of the stack. `packaging/release` sets
//! `no_unwind`.
//!
//! Source: Itanium C++ ABI, level 1.
#![allow(non_snake_case)]

use std::ffi::{c_int, c_void};

const URC_END_OF_STACK: c_int = 5;
#[cfg(target_arch = "arm")]
const NOT_IMPLEMENTED: c_int = 1;

// SAFETY: the executable has no other function of this name.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_trace: *const c_void, _argument: *mut c_void) -> c_int {
    URC_END_OF_STACK
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetIP(_context: *mut c_void) -> usize {
    0
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetCFA(_context: *mut c_void) -> usize {
    0
}

/// The function is not implemented. ARM has this in place of `_Unwind_GetIP` and `_Unwind_GetCFA`.
///
/// Source: Exception Handling ABI for the Arm Architecture.
#[cfg(target_arch = "arm")]
// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_VRS_Get(
    _context: *mut c_void,
    _class: c_int,
    _register: u32,
    _representation: c_int,
    _value: *mut c_void,
) -> c_int {
    NOT_IMPLEMENTED
}
