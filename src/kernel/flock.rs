//! flock(2) with a timeout, and a queue for the threads of one process.

mod turns;

use std::cell::OnceCell;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fd_lock::RwLock;

use crate::fault;
use crate::kernel::sys;

pub use turns::{Turn, Turns};

/// The first pause between two attempts: half of the time for which the most frequent holders keep their lock.
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// The longest pause between two attempts: each pause is twice as long as the pause before, up to this length.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The kind of a lock.
#[derive(Clone, Copy, Debug)]
pub enum Mode {
    /// Other shared locks may exist at the same time.
    Shared,
    /// No other lock exists at the same time.
    Exclusive,
}

/// The timeout for all waits of one caller together. It starts with the first wait: without contention the clock is not read,
/// since the first reading costs two page faults.
pub struct Limit {
    pub duration: Duration,
    since: OnceCell<Instant>,
}

impl Limit {
    pub const fn new(duration: Duration) -> Self {
        Self { duration, since: OnceCell::new() }
    }

    /// The remaining time; zero after the timeout. The first call starts the clock.
    pub fn left(&self) -> Duration {
        fault::lock_limit(self.duration)
            .saturating_sub(self.since.get_or_init(Instant::now).elapsed())
    }
}

/// Locks the file, or changes the mode of its lock; false when another open file holds a conflicting lock. The lock lasts
/// until `unlock`, or until every descriptor of this open file is closed.
///
/// A change of mode is not atomic: the kernel removes the old lock first, and does not restore it on failure.
/// Source: flock(2).
pub fn try_lock(file: &File, mode: Mode) -> io::Result<bool> {
    // A guard of fd-lock borrows its lock, so one struct cannot own both. Here the lock belongs to the open file.
    let locked = match mode {
        Mode::Shared => file.try_lock_shared(),
        Mode::Exclusive => file.try_lock(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Repeats `try_lock` until it succeeds; false after the timeout. A timeout of zero means one attempt.
pub fn lock(file: &File, mode: Mode, timeout: Duration) -> io::Result<bool> {
    lock_within(file, mode, &Limit::new(timeout))
}

/// `lock` with a timeout that also covers other waits of the caller.
///
/// flock(2) itself has no timeout; a timeout would take a signal handler, or a thread and 60 KiB. So this polls.
/// A process that waits in flock(2) is woken when the lock is free, and until the process runs the
/// lock is available: about 50 us after each holder. A poll every 5 ms soon hits such a gap.
pub fn lock_within(file: &File, mode: Mode, limit: &Limit) -> io::Result<bool> {
    let mut pause = PAUSE_MIN;
    while !try_lock(file, mode)? {
        if !wait(&mut pause, limit)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs the closure with an exclusive lock of the file. `None` after the timeout: the closure did not run.
pub fn while_locked<T>(file: &File, limit: &Limit, f: impl FnOnce() -> T) -> io::Result<Option<T>> {
    let (mut lock, mut pause) = (RwLock::new(file), PAUSE_MIN);
    loop {
        match lock.try_write() {
            Ok(_guard) => return Ok(Some(f())),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if wait(&mut pause, limit)? => {}
            Err(_) => return Ok(None),
        }
    }
}

/// Waits before the next attempt; false after the timeout. Fails after an interrupt.
#[expect(clippy::disallowed_methods, reason = "flock(2) has no event; the limit bounds the loop")]
fn wait(pause: &mut Duration, limit: &Limit) -> io::Result<bool> {
    let left = limit.left();
    if left.is_zero() {
        return Ok(false);
    }
    sys::fail_if_interrupted()?;
    thread::sleep(left.min(*pause));
    *pause = (*pause * 2).min(PAUSE_MAX);
    Ok(true)
}

/// Creates a directory with these permissions if it is missing, and locks it until the file is closed. False after the timeout:
/// another process has the lock.
pub fn lock_directory(path: &Path, mode: u32, timeout: Duration) -> io::Result<(File, bool)> {
    fault::file_operation()?;
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let file = File::open(path)?;
    let is_locked = lock(&file, Mode::Exclusive, timeout)?;
    Ok((file, is_locked))
}

/// Removes the lock of the file, if there is one.
pub fn unlock(file: &File) -> io::Result<()> {
    file.unlock()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    /// A file for one test.
    struct TempFile(std::path::PathBuf);

    impl TempFile {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
            let path = std::env::temp_dir().join(format!("cnibox-flock-{pid}-{count}"));
            File::create(&path).unwrap();
            Self(path)
        }

        fn open(&self) -> File {
            File::open(&self.0).unwrap()
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).unwrap();
        }
    }

    #[test]
    fn an_exclusive_flock_excludes_all_others() {
        use Mode::{Exclusive, Shared};

        let cases = [
            (Shared, Shared, true),
            (Shared, Exclusive, false),
            (Exclusive, Shared, false),
            (Exclusive, Exclusive, false),
        ];
        for (first, second, expected) in cases {
            let file = TempFile::new();
            let (one, two) = (file.open(), file.open());
            assert!(try_lock(&one, first).unwrap());
            assert_eq!(try_lock(&two, second).unwrap(), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn a_flock_lasts_until_unlock_or_close() {
        let file = TempFile::new();
        let (one, two) = (file.open(), file.open());
        assert!(try_lock(&one, Mode::Exclusive).unwrap());
        assert!(!try_lock(&two, Mode::Exclusive).unwrap());
        unlock(&one).unwrap();
        assert!(try_lock(&two, Mode::Exclusive).unwrap());
        drop(two);
        assert!(try_lock(&one, Mode::Exclusive).unwrap());
        unlock(&one).unwrap();
        unlock(&one).unwrap();
    }

    #[test]
    fn a_flock_of_a_closure_ends_with_it() {
        let file = TempFile::new();
        let (one, two) = (file.open(), file.open());
        let limit = Limit::new(Duration::ZERO);
        let is_free = || try_lock(&two, Mode::Shared).unwrap();
        assert_eq!(while_locked(&one, &limit, is_free).unwrap(), Some(false));
        assert!(is_free());
        assert_eq!(while_locked(&one, &limit, is_free).unwrap(), None);
    }

    #[test]
    fn a_shared_flock_becomes_exclusive_when_it_is_the_only_one() {
        let file = TempFile::new();
        let (one, two) = (file.open(), file.open());
        assert!(try_lock(&one, Mode::Shared).unwrap() && try_lock(&two, Mode::Shared).unwrap());
        assert!(!lock(&one, Mode::Exclusive, Duration::ZERO).unwrap());
        drop(two);
        assert!(lock(&one, Mode::Exclusive, Duration::ZERO).unwrap());
        assert!(!try_lock(&file.open(), Mode::Shared).unwrap());
    }

    #[test]
    fn a_flock_without_contention_does_not_read_the_clock() {
        let file = TempFile::new();
        let (limit, one) = (Limit::new(SHORT), file.open());
        assert!(lock_within(&one, Mode::Exclusive, &limit).unwrap());
        assert!(limit.since.get().is_none());
        assert!(!lock_within(&file.open(), Mode::Exclusive, &limit).unwrap());
        assert_eq!(limit.left(), Duration::ZERO);
        let start = limit.since.get().unwrap();
        assert!(start.elapsed() >= SHORT);
    }

    #[test]
    fn every_waiter_gets_the_flock() {
        let file = TempFile::new();
        let first = file.open();
        assert!(try_lock(&first, Mode::Exclusive).unwrap());
        let count = thread::scope(|scope| {
            let wait = || lock(&file.open(), Mode::Exclusive, LONG).unwrap();
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(wait)).collect();
            drop(first);
            threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
        });
        assert_eq!(count, 64);
    }
}
