//! Cases of one test, some at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Runs `work` on each case, on two threads, and returns the results in the order of the cases. More threads would only make
/// load: each case has a world of its own.
pub fn on_two_threads<T: Sync, R: Send>(cases: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { break };
                    sender.send((number, work(case))).unwrap();
                }
            });
        }
    });
    drop(sender);
    let mut results: Vec<(usize, R)> = receiver.into_iter().collect();
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}
