//! The global allocator of the shipped executable: dlmalloc behind a lock of the standard library.
//!
//! The allocator of musl returns most freed blocks to the kernel at once. Each block is then mapped and faulted in again, which is
//! a fifth of the CPU time of an ADD. The crate's own global allocator calls `pthread_mutex_lock`; this lock is one instruction
//! where nobody waits.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dlmalloc::Dlmalloc;

pub struct Allocator(Mutex<Dlmalloc>);

impl Allocator {
    pub const fn new() -> Self {
        Self(Mutex::new(Dlmalloc::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Dlmalloc> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: Dlmalloc returns blocks of the size and alignment that were asked for, or null, and does not panic.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller asks for more than 0 bytes.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller has the block from this allocator, with this layout.
        unsafe { self.lock().free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above, and the new size is more than 0 bytes.
        unsafe { self.lock().realloc(block, layout.size(), layout.align(), size) }
    }
}
