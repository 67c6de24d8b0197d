//! The memory of a process that lives for a millisecond: blocks of the sizes 16, 32, 64 … bytes, cut from one piece that
//! is a part of the executable, so that a plugin call asks the kernel for no memory at all. musl's allocator asks 14
//! times. glibc's is good enough for what is not shipped, so other targets compile this for its tests only.
//!
//! A freed block waits in the list of its size for the next request of that size. When the piece is used up, and for
//! large blocks, the C library's allocator takes over, which returns memory to the kernel: a process that lives longer
//! keeps no more than the piece. The address tells whose block it is. Threads take turns.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Every block begins at a multiple of this, and is at least as long.
const ALIGNMENT: usize = 16;
/// The smallest page of all targets. Nothing in this program asks for a larger alignment, so larger ones are refused.
const ALIGNMENT_MAX: usize = 4096;
/// The length of the longest block that is cut.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// 16 bytes to 64 KiB.
const SIZES: usize = (BLOCK_BYTES_MAX / ALIGNMENT).ilog2() as usize + 1;
/// What the largest calls need: a GC that keeps 15,000 attachments has 100,000 blocks, for which the C library would ask the
/// kernel 4,000 times. Pages that are not touched cost nothing, and a usual call touches 20.
const PIECE_BYTES: usize = if cfg!(test) { 128 << 10 } else { 8 << 20 };

/// The attempts after which a waiting thread sleeps. The state is taken for nanoseconds, so one or two are enough unless
/// the holder was interrupted.
const YIELDS_MAX: u32 = 8;
/// Much longer than the state is taken for, and much shorter than a plugin call.
const SLEEP: Duration = Duration::from_micros(50);

#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: Heap = Heap::new();

/// The allocator of a program. What every call touches comes first, so that it shares a page with what lies before it.
#[repr(C)]
struct Heap {
    is_taken: AtomicBool,
    state: UnsafeCell<State>,
    piece: UnsafeCell<Piece>,
}

#[repr(align(16))]
struct Piece {
    _bytes: [u8; PIECE_BYTES],
}

struct State {
    /// The bytes that have been cut off the piece. The rest has never been written to, so it is all zeros.
    cut_bytes: usize,
    /// Blocks that wait, for each size; the first bytes of each point to the next.
    free: [*mut u8; SIZES],
}

/// A block of the piece, and whether it is known to be all zeros.
struct Block {
    address: *mut u8,
    is_zero: bool,
}

// SAFETY: `state` and what is cut from `piece` are only touched by the thread that has set `is_taken`.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            state: UnsafeCell::new(State { cut_bytes: 0, free: [null_mut(); SIZES] }),
            piece: UnsafeCell::new(Piece { _bytes: [0; PIECE_BYTES] }),
        }
    }

    /// Runs `f` while no other thread has the state. `f` must not allocate from this heap.
    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut attempts = 0;
        while self.is_taken.swap(true, Ordering::Acquire) {
            wait(&mut attempts);
        }
        // SAFETY: the thread that set `is_taken` is the only one here, and `f` cannot come here again.
        let result = f(unsafe { &mut *self.state.get() });
        self.is_taken.store(false, Ordering::Release);
        result
    }

    /// None when the piece has no block of this kind.
    fn block(&self, layout: Layout) -> Option<Block> {
        if layout.size() > BLOCK_BYTES_MAX || layout.align() > ALIGNMENT {
            return None;
        }
        let index = list_of(layout.size());
        self.locked(|state| {
            let list = &mut state.free[index];
            if !list.is_null() {
                let address = *list;
                // SAFETY: the block is in no use, and `dealloc` wrote there where the next one is.
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
        })
    }

    /// Whether the block was cut from the piece. All others are the C library's.
    fn is_own(&self, address: *mut u8) -> bool {
        address.addr().wrapping_sub(self.piece.get().addr()) < PIECE_BYTES
    }
}

/// Lets other threads run. sched_yield(2) does not let a thread of a lower real-time priority run, and that thread may be
/// the holder; so after some attempts the waiter sleeps.
#[cold]
#[expect(
    clippy::disallowed_methods,
    reason = "the holder sends no event, or it would pay for it each time"
)]
fn wait(attempts: &mut u32) {
    if *attempts < YIELDS_MAX {
        *attempts += 1;
        thread::yield_now();
    } else {
        thread::sleep(SLEEP);
    }
}

/// The index of the list for blocks of so many bytes; `SIZES` or more for a block that is too large. Called with every
/// block, so it is worth its few bytes in each place.
#[inline(always)]
const fn list_of(size: usize) -> usize {
    let multiples = (size.saturating_sub(1)) / ALIGNMENT;
    (usize::BITS - multiples.leading_zeros()) as usize
}

// SAFETY: blocks of one list are of one size, do not overlap, and are either in that list or in use. Every other block is
// the system allocator's from its allocation to its end, always with the caller's layout.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.block(layout) {
            Some(block) => block.address,
            None if layout.align() > ALIGNMENT_MAX => null_mut(),
            // SAFETY: the caller keeps to what `GlobalAlloc` demands.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.block(layout) {
            Some(Block { address, is_zero }) => {
                if !is_zero {
                    // SAFETY: the block has at least so many bytes.
                    unsafe { address.write_bytes(0, layout.size()) };
                }
                address
            }
            None if layout.align() > ALIGNMENT_MAX => null_mut(),
            // SAFETY: the caller keeps to what `GlobalAlloc` demands.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if !self.is_own(address) {
            // SAFETY: the block is the system allocator's, with this layout.
            return unsafe { System.dealloc(address, layout) };
        }
        self.locked(|state| {
            let list = &mut state.free[list_of(layout.size())];
            // SAFETY: the block is in no use any more, and has room for a pointer.
            unsafe { address.cast::<*mut u8>().write(*list) };
            *list = address;
        });
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.is_own(address) {
            // SAFETY: the block is the system allocator's, with this layout.
            return unsafe { System.realloc(address, layout, size) };
        }
        if list_of(layout.size()) == list_of(size) {
            return address;
        }
        // SAFETY: the caller keeps to what `Layout` demands of sizes. Both blocks have room for what is copied, and do not
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
