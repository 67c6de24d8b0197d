//! The guarantees of the allocator, on heaps other than the program's.

use std::fs;
use std::sync::atomic::AtomicI32;
use std::time::Instant;

use nix::unistd::gettid;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A block of a caller, and the byte that it is filled with.
struct Held {
    address: *mut u8,
    layout: Layout,
    filling: u8,
}

impl Held {
    fn is_untouched(&self) -> bool {
        // SAFETY: the block is allocated, and all of it was filled.
        let bytes = unsafe { std::slice::from_raw_parts(self.address, self.layout.size()) };
        bytes.iter().all(|byte| *byte == self.filling)
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Alloc { size: usize, zeroed: bool },
    Dealloc(usize),
    Realloc(usize, usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..200_usize, 2 => 1..10_000_usize, 1 => 60_000..300_000_usize]
}

fn steps() -> impl Strategy<Value = Vec<Operation>> {
    let step = prop_oneof![
        3 => (sizes(), any::<bool>()).prop_map(|(size, zeroed)| Operation::Alloc { size, zeroed }),
        2 => any::<usize>().prop_map(Operation::Dealloc),
        2 => (any::<usize>(), sizes()).prop_map(|(which, size)| Operation::Realloc(which, size)),
    ];
    vec(step, 1..60)
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGNMENT).unwrap()
}

fn fill(address: *mut u8, size: usize, filling: u8) {
    // SAFETY: the block is allocated and has this size.
    unsafe { address.write_bytes(filling, size) };
}

/// Executes the operations. Each block has to keep its bytes, so blocks cannot overlap.
fn check(heap: &Heap, steps: &[Operation]) {
    let mut held: Vec<Held> = Vec::new();
    for (filling, step) in (1..=u8::MAX).cycle().zip(steps) {
        match *step {
            Operation::Alloc { size, zeroed } => {
                let layout = layout(size);
                // SAFETY: the layout has a size.
                let address =
                    unsafe { if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
                assert!(!address.is_null() && address.addr() % ALIGNMENT == 0);
                let block = Held { address, layout, filling: 0 };
                assert!(!zeroed || block.is_untouched(), "{size} bytes are not zero");
                fill(address, size, filling);
                held.push(Held { filling, ..block });
            }
            Operation::Dealloc(which) if !held.is_empty() => {
                let block = held.swap_remove(which % held.len());
                assert!(block.is_untouched());
                // SAFETY: the block is allocated, and not used again.
                unsafe { heap.dealloc(block.address, block.layout) };
            }
            Operation::Realloc(which, size) if !held.is_empty() => {
                let block = held.swap_remove(which % held.len());
                // SAFETY: the block is allocated, and its old address is not used again.
                let address = unsafe { heap.realloc(block.address, block.layout, size) };
                let kept = size.min(block.layout.size());
                assert!(Held { address, layout: layout(kept), ..block }.is_untouched());
                fill(address, size, filling);
                held.push(Held { address, layout: layout(size), filling });
            }
            Operation::Dealloc(_) | Operation::Realloc(..) => {}
        }
        assert!(held.iter().all(Held::is_untouched));
    }
    for block in held {
        // SAFETY: the block is allocated, and not used again.
        unsafe { heap.dealloc(block.address, block.layout) };
    }
}

proptest! {
    #[test]
    fn blocks_never_overlap_and_keep_their_bytes(steps in steps()) {
        static HEAP: Heap = Heap::new();
        check(&HEAP, &steps);
    }
}

#[test]
fn threads_share_a_heap() {
    static HEAP: Heap = Heap::new();
    let steps: Vec<Operation> = (0..400)
        .map(|number| match number % 3 {
            2 => Operation::Dealloc(number),
            _ => Operation::Alloc { size: number % 700 + 1, zeroed: number % 2 == 0 },
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&HEAP, &steps));
        }
    });
}

#[test]
fn a_freed_block_is_reused() {
    let heap = Heap::new();
    // SAFETY: the layouts have sizes, and freed blocks are not used again.
    unsafe {
        let first = heap.alloc(layout(100));
        heap.dealloc(first, layout(100));
        assert_eq!(heap.alloc(layout(65)), first);
        assert_ne!(heap.alloc(layout(65)), first);
    }
}

#[test]
fn a_block_that_does_not_fit_into_the_piece_comes_from_the_system() {
    static HEAP: Heap = Heap::new();
    let [large, half] = [BLOCK_BYTES_MAX, BLOCK_BYTES_MAX / 2].map(layout);
    // SAFETY: the layouts have sizes, and freed blocks are not used again.
    unsafe {
        let own = [large, half].map(|layout| (HEAP.alloc(layout), layout));
        let others =
            [large, layout(BLOCK_BYTES_MAX + 1), large].map(|layout| (HEAP.alloc(layout), layout));
        let rest = HEAP.alloc(half);
        let overflow = HEAP.alloc(layout(1));
        assert!(own.iter().all(|(address, _)| HEAP.is_own(*address)) && HEAP.is_own(rest));
        assert!(others.iter().all(|(address, _)| !HEAP.is_own(*address)));
        assert!(!HEAP.is_own(overflow));
        HEAP.dealloc(overflow, layout(1));
        own.into_iter().chain(others).for_each(|(address, layout)| HEAP.dealloc(address, layout));
        assert_eq!(HEAP.alloc(large), own[0].0);
    }
}

#[test]
fn blocks_keep_their_bytes_between_the_piece_and_the_system() {
    static HEAP: Heap = Heap::new();
    // SAFETY: the block is used with the size that it has at the time.
    unsafe {
        let small = HEAP.alloc(layout(100));
        fill(small, 100, 7);
        let large = HEAP.realloc(small, layout(100), BLOCK_BYTES_MAX * 2);
        assert!(HEAP.is_own(small) && !HEAP.is_own(large));
        assert!(Held { address: large, layout: layout(100), filling: 7 }.is_untouched());
        let shrunk = HEAP.realloc(large, layout(BLOCK_BYTES_MAX * 2), 100);
        assert!(!HEAP.is_own(shrunk));
        assert!(Held { address: shrunk, layout: layout(100), filling: 7 }.is_untouched());
        HEAP.dealloc(shrunk, layout(100));
        assert_eq!(HEAP.alloc(layout(100)), small);
    }
}

#[test]
fn alignments_up_to_a_page_are_kept_and_larger_ones_refused() {
    static HEAP: Heap = Heap::new();
    for align in (0..16).map(|bits| 1 << bits) {
        for size in [1, 100, 5000] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: the layout has a size, and freed blocks are not used again.
            unsafe {
                for address in [HEAP.alloc(layout), HEAP.alloc_zeroed(layout)] {
                    assert_eq!(address.is_null(), align > ALIGNMENT_MAX, "{layout:?}");
                    if !address.is_null() {
                        assert_eq!(address.addr() % align, 0, "{layout:?}");
                        HEAP.dealloc(address, layout);
                    }
                }
            }
        }
    }
}

/// The resident pages of this process. Source: proc_pid_statm(5), field 2.
fn resident_pages() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_outside_of_the_piece_is_returned() {
    const ROUNDS: usize = 500;
    static HEAP: Heap = Heap::new();

    let before = resident_pages();
    let sizes: Vec<usize> = [1 << 20].into_iter().chain([1000; 1000]).collect();
    for _ in 0..ROUNDS {
        // SAFETY: the layouts have sizes, and freed blocks are not used again.
        unsafe {
            let blocks: Vec<_> = sizes.iter().map(|size| HEAP.alloc(layout(*size))).collect();
            for (address, size) in blocks.iter().zip(&sizes) {
                fill(*address, *size, 1);
                HEAP.dealloc(*address, layout(*size));
            }
        }
    }
    // All rounds together used 1 GB. Tests in other threads use far less than half of it.
    let more = resident_pages().saturating_sub(before);
    assert!(more < ROUNDS * (1 << 20) / 4096, "{more} pages more");
}

/// The number of times that a thread slept. Source: proc_pid_status(5).
fn sleeps(thread: i32) -> u32 {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let count = status.split("\nvoluntary_ctxt_switches:").nth(1).unwrap();
    count.lines().next().unwrap().trim().parse().unwrap()
}

#[test]
fn a_thread_that_waits_long_sleeps() {
    static HEAP: Heap = Heap::new();
    static WAITER: AtomicI32 = AtomicI32::new(0);
    thread::scope(|scope| {
        assert!(HEAP.lock());
        scope.spawn(|| {
            WAITER.store(gettid().as_raw(), Ordering::Relaxed);
            assert!(!HEAP.lock());
            HEAP.wait();
        });
        let start = Instant::now();
        let thread = || WAITER.load(Ordering::Relaxed);
        // With sched_yield(2) alone the thread would never sleep.
        while thread() == 0 || sleeps(thread()) < 100 {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        HEAP.unlock();
    });
}
