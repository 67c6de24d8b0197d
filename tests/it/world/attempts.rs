//! Measurements that a loaded machine spoils at times.

use std::fmt::Debug;

/// Measures until a measurement is good, `attempts` times at most. A loaded machine spoils some of them, a fault of the product
/// all.
#[track_caller]
pub fn one_attempt_is<T: Debug>(
    attempts: usize,
    what: &str,
    is_good: impl Fn(&T) -> bool,
    mut measure: impl FnMut() -> T,
) {
    let mut measured = Vec::new();
    for _ in 0..attempts {
        let attempt = measure();
        if is_good(&attempt) {
            return;
        }
        measured.push(attempt);
    }
    panic!("{what}: {measured:?}");
}
