//! The memory of a process that lives for a millisecond: blocks of the sizes 16, 32, 64 … bytes, cut from one piece that
//! is a part of the executable, so that a plugin call asks the kernel for no memory at all. The C library's asks 14 times.
//!
//! A freed block waits in the list of its size for the next of that size; nothing goes back to the kernel but large
//! pieces, which are mappings of their own. Threads take turns.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

/// Every block begins at a multiple of this, and is at least as long.
const ALIGNMENT: usize = 16;
/// Of the longest block that is cut; what is longer gets a mapping.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// 16 bytes to 64 KiB.
const SIZES: usize = (BLOCK_BYTES_MAX / ALIGNMENT).ilog2() as usize + 1;
/// What a usual call needs, with room to spare; pages that are not touched cost nothing.
const FIRST_BYTES: usize = 128 << 10;
/// What the kernel is asked for when that is used up.
const MORE_BYTES: usize = 256 << 10;

#[global_allocator]
static HEAP: Heap = Heap::new();

/// The allocator of a program.
struct Heap {
    is_taken: AtomicBool,
    state: UnsafeCell<State>,
    first: UnsafeCell<First>,
}

#[repr(align(16))]
struct First {
    _bytes: [u8; FIRST_BYTES],
}

struct State {
    /// The part that nothing has been cut from yet. It has never been written to, so it is all zeros.
    rest: *mut u8,
    rest_bytes: usize,
    is_begun: bool,
    /// Blocks that wait, for each size; the first bytes of each point to the next.
    free: [*mut u8; SIZES],
}

/// A block, and whether it is known to be all zeros.
struct Block {
    address: *mut u8,
    is_zero: bool,
}

// SAFETY: `state` and what is cut from `first` are only touched between `lock` and `unlock`.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                rest: null_mut(),
                rest_bytes: 0,
                is_begun: false,
                free: [null_mut(); SIZES],
            }),
            first: UnsafeCell::new(First { _bytes: [0; FIRST_BYTES] }),
        }
    }

    fn locked<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        while self.is_taken.swap(true, Ordering::Acquire) {
            // It takes nanoseconds, unless whoever has it was interrupted; then it is his turn.
            // SAFETY: it takes nothing and changes nothing.
            unsafe { libc::sched_yield() };
        }
        // SAFETY: whoever set `is_taken` is the only one here, and `f` cannot allocate, so it cannot come here again.
        let state = unsafe { &mut *self.state.get() };
        if !state.is_begun {
            (state.rest, state.rest_bytes) = (self.first.get().cast(), FIRST_BYTES);
            state.is_begun = true;
        }
        let result = f(state);
        self.is_taken.store(false, Ordering::Release);
        result
    }

    fn block(&self, size: usize) -> Block {
        self.locked(|state| {
            let list = &mut state.free[list_of(size)];
            if !list.is_null() {
                let address = *list;
                // SAFETY: the block is in no use, and `dealloc` wrote there where the next one is.
                *list = unsafe { address.cast::<*mut u8>().read() };
                return Block { address, is_zero: false };
            }
            Block { address: state.cut(ALIGNMENT << list_of(size)), is_zero: true }
        })
    }
}

impl State {
    /// Null when the kernel has no more memory.
    fn cut(&mut self, bytes: usize) -> *mut u8 {
        if self.rest_bytes < bytes {
            // What is left of the old piece is lost; that is less than this block.
            let piece = map(MORE_BYTES);
            if piece.is_null() {
                return piece;
            }
            (self.rest, self.rest_bytes) = (piece, MORE_BYTES);
        }
        let block = self.rest;
        self.rest = block.wrapping_add(bytes);
        self.rest_bytes -= bytes;
        block
    }
}

/// Which list blocks for so many bytes are in. Called with every block, so it is worth its few bytes in each place.
#[inline(always)]
const fn list_of(size: usize) -> usize {
    let multiples = (size.saturating_sub(1)) / ALIGNMENT;
    (usize::BITS - multiples.leading_zeros()) as usize
}

fn is_large(layout: Layout) -> bool {
    layout.size() > BLOCK_BYTES_MAX || layout.align() > ALIGNMENT
}

/// Null when the kernel refuses.
fn map(bytes: usize) -> *mut u8 {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping is nobody else's.
    let address = unsafe { libc::mmap(null_mut(), bytes, access, kind, -1, 0) };
    if address == libc::MAP_FAILED { null_mut() } else { address.cast() }
}

// SAFETY: blocks of one list are of one size, do not overlap, and are either in that list or in use. Mappings are aligned to
// pages, which is more than anything asks for.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) { map(layout.size()) } else { self.block(layout.size()).address }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        let Block { address, is_zero } = self.block(layout.size());
        if !is_zero {
            // SAFETY: the block has at least so many bytes.
            unsafe { address.write_bytes(0, layout.size()) };
        }
        address
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: such a block is a mapping of its own, of this size. That it is not unmapped costs memory only.
            unsafe { libc::munmap(address.cast(), layout.size()) };
            return;
        }
        self.locked(|state| {
            let list = &mut state.free[list_of(layout.size())];
            // SAFETY: the block is in no use any more, and has room for a pointer.
            unsafe { address.cast::<*mut u8>().write(*list) };
            *list = address;
        });
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps to what `Layout` demands of sizes.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            (false, false) if list_of(layout.size()) == list_of(size) => return address,
            (true, true) => {
                // SAFETY: such a block is a mapping of its own, of the old size.
                let moved = unsafe {
                    libc::mremap(address.cast(), layout.size(), size, libc::MREMAP_MAYMOVE)
                };
                return if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() };
            }
            _ => {}
        }
        // SAFETY: both blocks have room for what is copied, and do not overlap; the old one is not used again.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(address, moved, layout.size().min(size));
                self.dealloc(address, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// What a caller has: a block, and the byte that it is filled with.
    struct Held {
        address: *mut u8,
        layout: Layout,
        filling: u8,
    }

    impl Held {
        fn is_untouched(&self) -> bool {
            // SAFETY: the block is ours, and was filled from end to end.
            let bytes = unsafe { std::slice::from_raw_parts(self.address, self.layout.size()) };
            bytes.iter().all(|byte| *byte == self.filling)
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Alloc { size: usize, zeroed: bool },
        Dealloc(usize),
        Realloc(usize, usize),
    }

    fn sizes() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 1..200_usize, 2 => 1..10_000_usize, 1 => 60_000..300_000_usize]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (sizes(), any::<bool>()).prop_map(|(size, zeroed)| Step::Alloc { size, zeroed }),
            2 => any::<usize>().prop_map(Step::Dealloc),
            2 => (any::<usize>(), sizes()).prop_map(|(which, size)| Step::Realloc(which, size)),
        ];
        vec(step, 1..60)
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, ALIGNMENT).unwrap()
    }

    fn fill(address: *mut u8, size: usize, filling: u8) {
        // SAFETY: the block is ours and has this size.
        unsafe { address.write_bytes(filling, size) };
    }

    /// Takes the steps; whatever is held must stay as it was filled, so nothing may overlap.
    fn check(heap: &Heap, steps: &[Step]) {
        let mut held: Vec<Held> = Vec::new();
        for (filling, step) in (1..=u8::MAX).cycle().zip(steps) {
            match *step {
                Step::Alloc { size, zeroed } => {
                    let layout = layout(size);
                    // SAFETY: the layout has a size.
                    let address = unsafe {
                        if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) }
                    };
                    assert!(!address.is_null() && address.addr() % ALIGNMENT == 0);
                    let block = Held { address, layout, filling: 0 };
                    assert!(!zeroed || block.is_untouched(), "{size} bytes are not zero");
                    fill(address, size, filling);
                    held.push(Held { filling, ..block });
                }
                Step::Dealloc(which) if !held.is_empty() => {
                    let block = held.swap_remove(which % held.len());
                    assert!(block.is_untouched());
                    // SAFETY: it is held, and no more.
                    unsafe { heap.dealloc(block.address, block.layout) };
                }
                Step::Realloc(which, size) if !held.is_empty() => {
                    let block = held.swap_remove(which % held.len());
                    // SAFETY: it is held, and from now on where the heap says.
                    let address = unsafe { heap.realloc(block.address, block.layout, size) };
                    let kept = size.min(block.layout.size());
                    assert!(Held { address, layout: layout(kept), ..block }.is_untouched());
                    fill(address, size, filling);
                    held.push(Held { address, layout: layout(size), filling });
                }
                Step::Dealloc(_) | Step::Realloc(..) => {}
            }
            assert!(held.iter().all(Held::is_untouched));
        }
        for block in held {
            // SAFETY: it is held, and no more.
            unsafe { heap.dealloc(block.address, block.layout) };
        }
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_keep_what_is_in_them(steps in steps()) {
            static HEAP: Heap = Heap::new();
            check(&HEAP, &steps);
        }
    }

    #[test]
    fn threads_take_turns() {
        static HEAP: Heap = Heap::new();
        let steps: Vec<Step> = (0..400)
            .map(|number| match number % 3 {
                2 => Step::Dealloc(number),
                _ => Step::Alloc { size: number % 700 + 1, zeroed: number % 2 == 0 },
            })
            .collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| check(&HEAP, &steps));
            }
        });
    }

    #[test]
    fn what_was_freed_is_used_again() {
        let heap = Heap::new();
        // SAFETY: the layouts have sizes, and what is freed is not used again.
        unsafe {
            let first = heap.alloc(layout(100));
            heap.dealloc(first, layout(100));
            assert_eq!(heap.alloc(layout(65)), first);
            assert_ne!(heap.alloc(layout(65)), first);
        }
    }
}
