//! The allocator of the shipped build, for a process that runs for a millisecond. Blocks have 16, 32, 64 … bytes and are cut
//! from one piece of the executable's bss, so such a process needs no system call for memory; with musl's allocator it needs
//! 14. Other targets use glibc's allocator and compile this for its tests only.
//!
//! A freed block goes to the free list of its size. For large blocks, and when the piece is used up, the C library
//! allocates; it returns memory to the kernel, so a process that runs longer keeps no more than the piece. The address of
//! a block shows which of the two allocated it. A spin lock protects the state.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The alignment and the smallest length of a block.
const ALIGNMENT: usize = 16;
/// The smallest page of all targets. This program needs no larger alignment, so larger ones are refused.
const ALIGNMENT_MAX: usize = 4096;
/// The length of the longest block.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// The number of block sizes: 16 bytes to 64 KiB.
const SIZES: usize = (BLOCK_BYTES_MAX / ALIGNMENT).ilog2() as usize + 1;
/// The length of the piece. It is enough for the largest inputs: 15,000 names of containers take 100,000 blocks, for which the
/// C library would need 4,000 system calls. Unused pages cost nothing; a usual call uses 6.
const PIECE_BYTES: usize = if cfg!(test) { 128 << 10 } else { 8 << 20 };

/// The number of attempts to get the lock after which a waiting thread sleeps. The lock is held for nanoseconds, so one or two
/// are enough unless the holder was interrupted.
const YIELDS_MAX: u32 = 8;
/// The time that a waiting thread sleeps: much longer than the lock is held, and much shorter than the run of the process.
const SLEEP: Duration = Duration::from_micros(50);

#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: Heap = Heap::new();

/// The allocator. The fields that every call uses come first, so that they share a page with the data before them.
#[repr(C)]
struct Heap {
    is_taken: AtomicBool,
    state: UnsafeCell<FreeBlocks>,
    piece: UnsafeCell<Piece>,
}

#[repr(align(16))]
struct Piece {
    _bytes: [u8; PIECE_BYTES],
}

struct FreeBlocks {
    /// The bytes that are cut off the piece. The rest was never written, so it is all zeros.
    cut_bytes: usize,
    /// The free list of each size; the first bytes of a block point to the next one.
    free: [*mut u8; SIZES],
}

/// A block of the piece, and whether all its bytes are surely zero.
struct Block {
    address: *mut u8,
    is_zero: bool,
}

// SAFETY: only the thread that has set `is_taken` uses `state` and cuts blocks from `piece`.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            state: UnsafeCell::new(FreeBlocks { cut_bytes: 0, free: [null_mut(); SIZES] }),
            piece: UnsafeCell::new(Piece { _bytes: [0; PIECE_BYTES] }),
        }
    }

    /// Takes the lock. False if another thread has it: a wait here would make each call save five registers.
    #[inline(always)]
    fn lock(&self) -> bool {
        !self.is_taken.swap(true, Ordering::Acquire)
    }

    #[inline(always)]
    fn unlock(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Takes a free block, or cuts a new one. Returns `None` if the piece has no room.
    #[inline(always)]
    fn take(&self, state: &mut FreeBlocks, index: usize) -> Option<Block> {
        let list = &mut state.free[index];
        if !list.is_null() {
            let address = *list;
            // SAFETY: the block is free, and `dealloc` wrote the address of the next one there.
            *list = unsafe { address.cast::<*mut u8>().read() };
            return Some(Block { address, is_zero: false });
        }
        let bytes = ALIGNMENT << index;
        if bytes > PIECE_BYTES - state.cut_bytes {
            return None;
        }
        let address = self.piece.get().cast::<u8>().wrapping_add(state.cut_bytes);
        state.cut_bytes += bytes;
        Some(Block { address, is_zero: true })
    }

    /// Waits until the lock is free.
    fn wait(&self) {
        let mut attempts = 0;
        while self.is_taken.load(Ordering::Relaxed) {
            wait(&mut attempts);
        }
    }

    /// `block` after a wait for the lock.
    #[cold]
    #[inline(never)]
    fn block_later(&self, layout: Layout) -> Option<Block> {
        self.wait();
        self.block(layout)
    }

    /// `dealloc` after a wait for the lock.
    ///
    /// # Safety
    ///
    /// As `dealloc`.
    #[cold]
    #[inline(never)]
    unsafe fn dealloc_later(&self, address: *mut u8, layout: Layout) {
        self.wait();
        // SAFETY: the caller meets the requirements.
        unsafe { self.dealloc(address, layout) };
    }

    /// A block of the piece for the layout; `None` if the piece has no such block. Inlined, because every allocation calls it.
    #[inline(always)]
    fn block(&self, layout: Layout) -> Option<Block> {
        if layout.size() > BLOCK_BYTES_MAX || layout.align() > ALIGNMENT {
            return None;
        }
        let index = list_of(layout.size());
        if !self.lock() {
            return self.block_later(layout);
        }
        // SAFETY: only the thread with the lock is here.
        let block = self.take(unsafe { &mut *self.state.get() }, index);
        self.unlock();
        block
    }

    /// Whether the block was cut from the piece. The C library allocated all others.
    fn is_own(&self, address: *mut u8) -> bool {
        address.addr().wrapping_sub(self.piece.get().addr()) < PIECE_BYTES
    }
}

/// Lets other threads run. The holder can have a lower real-time priority, and sched_yield(2) does not let it run
/// then, so the waiter sleeps after some attempts.
#[cold]
#[expect(
    clippy::disallowed_methods,
    reason = "an event from the holder would cost more than the wait"
)]
fn wait(attempts: &mut u32) {
    if *attempts < YIELDS_MAX {
        *attempts += 1;
        thread::yield_now();
    } else {
        thread::sleep(SLEEP);
    }
}

/// The index of the free list for a size; `SIZES` or more for a block that is too large. Inlined, because every
/// allocation calls it.
#[inline(always)]
const fn list_of(size: usize) -> usize {
    // The logarithm of the next power of two; 0 for ALIGNMENT.
    let below = size.saturating_sub(1) | (ALIGNMENT - 1);
    (below.ilog2() - (ALIGNMENT - 1).ilog2()) as usize
}

// SAFETY: the blocks of a free list have one size and do not overlap, and a block is either in the list or in use. The
// system allocator allocates and frees all other blocks, with the caller's layout.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.block(layout) {
            Some(block) => block.address,
            None if layout.align() > ALIGNMENT_MAX => null_mut(),
            // SAFETY: the caller meets the requirements of `GlobalAlloc`.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.block(layout) {
            Some(Block { address, is_zero }) => {
                if !is_zero {
                    // SAFETY: the block has at least `layout.size()` bytes.
                    unsafe { address.write_bytes(0, layout.size()) };
                }
                address
            }
            None if layout.align() > ALIGNMENT_MAX => null_mut(),
            // SAFETY: the caller meets the requirements of `GlobalAlloc`.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if !self.is_own(address) {
            // SAFETY: the system allocator allocated the block with this layout.
            return unsafe { System.dealloc(address, layout) };
        }
        if !self.lock() {
            // SAFETY: the caller meets the requirements of `dealloc`.
            return unsafe { self.dealloc_later(address, layout) };
        }
        // SAFETY: only the thread with the lock is here. The block is free now, and has room for a pointer.
        unsafe {
            let list = &mut (*self.state.get()).free[list_of(layout.size())];
            address.cast::<*mut u8>().write(*list);
            *list = address;
        }
        self.unlock();
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.is_own(address) {
            // SAFETY: the system allocator allocated the block with this layout.
            return unsafe { System.realloc(address, layout, size) };
        }
        if list_of(layout.size()) == list_of(size) {
            return address;
        }
        // SAFETY: the caller meets the requirements of `Layout`. Both blocks have room for the copied bytes and do not
        // overlap; the old one is not used again.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(address, moved, layout.size().min(size));
                self.dealloc(address, layout);
            }
            moved
        }
    }
}
