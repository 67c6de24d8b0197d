//! The lock of a network: waited for, but not for ever, and then it is said who has it.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use fd_lock::RwLock;

use super::failed;
use crate::error::{Code, Error, Result};
use crate::fault;

/// The longest wait for others. Runtimes give up on a call only after minutes, and try again on code 11.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Half the time for which we have the lock ourselves.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// USER_HZ, in which /proc shows times on every architecture that we build for (asm-generic/param.h).
const TICKS_PER_SECOND: u64 = 100;

/// How long everything together may wait.
pub(super) struct Patience {
    /// When the waiting began. Nobody who need not wait looks at the clock, which takes two page faults the first time.
    since: OnceCell<Instant>,
    limit: Duration,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self { since: OnceCell::new(), limit }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.get_or_init(Instant::now).elapsed())
    }

    /// Fails when the time is over, for who has found another reason than a lock to go on waiting.
    pub(super) fn check(&self, path: &Path) -> Result<()> {
        if self.left() > Duration::ZERO {
            return Ok(());
        }
        let path = path.display();
        let msg = format!("cannot lock {path}: it is removed again and again");
        Err(Error::new(Code::TRY_AGAIN_LATER, msg))
    }
}

/// Waits until nobody else has the lock, which then lasts until the file is closed.
pub(super) fn take(file: File, path: &Path, patience: &Patience) -> Result<File> {
    fault::file_operation().map_err(failed("lock", path))?;
    let file = match try_lock(file).map_err(failed("lock", path))? {
        Ok(file) => return Ok(file),
        Err(file) => file,
    };
    let place = file.metadata().map(|it| (it.dev(), it.ino())).map_err(failed("lock", path))?;
    let locked = wait(file, patience).map_err(failed("lock", path))?;
    locked.ok_or_else(|| {
        let (path, seconds) = (path.display(), patience.limit.as_secs());
        let msg = format!("cannot lock {path} within {seconds} s: {}", holder(place));
        Error::new(Code::TRY_AGAIN_LATER, msg)
    })
}

/// Gives the file back as it was when somebody else has the lock.
fn try_lock(file: File) -> io::Result<Result<File, File>> {
    let mut lock = RwLock::new(file);
    let is_ours = match lock.try_write() {
        Ok(guard) => {
            // It would unlock now, and the closing of the file does that in time.
            mem::forget(guard);
            true
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => return Err(error),
    };
    let file = lock.into_inner();
    Ok(if is_ours { Ok(file) } else { Err(file) })
}

/// None when the time is over.
///
/// flock(2) itself waits without a limit, and to be called back from there would take a signal handler, or a thread and
/// 60 KiB for having threads. So we ask again and again. Those who wait in flock(2), as the Go plugin does, are woken
/// when the lock is free, and until they run it can be had: some 50 us after each holder. Who asks every 5 ms meets one
/// of these gaps soon, and nobody of 64 has to be the last for long.
#[expect(clippy::disallowed_methods, reason = "there is no event; the limits are above")]
fn wait(mut file: File, patience: &Patience) -> io::Result<Option<File>> {
    let mut pause = PAUSE_MIN;
    while patience.left() > Duration::ZERO {
        thread::sleep(pause.min(patience.left()));
        pause = (pause * 2).min(PAUSE_MAX);
        file = match try_lock(file)? {
            Ok(file) => return Ok(Some(file)),
            Err(file) => file,
        };
    }
    Ok(None)
}

/// Who has the lock on a file (device and inode), as far as it can be told.
///
/// How long he has had it nobody knows; he has not had it for longer than he lives.
fn holder((device, inode): (u64, u64)) -> String {
    let Ok(locks) = fs::read_to_string("/proc/locks") else {
        return "without /proc/locks it cannot be told who holds it".into();
    };
    match pid_in(&locks, device, inode) {
        None => "who holds it is not in /proc/locks".into(),
        Some("0") => "a process outside of this pid namespace holds it".into(),
        Some(pid) => {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
            match name_and_age(&stat, &uptime) {
                Some((name, age)) => {
                    format!("process {pid} ({name}), which started {age} s ago, holds it")
                }
                None => format!("process {pid} holds it"),
            }
        }
    }
}

/// Source: proc_locks(5). A line with an arrow is of a process that waits.
fn pid_in(locks: &str, device: u64, inode: u64) -> Option<&str> {
    let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
    let minor = device & 0xff | (device >> 12) & 0xffff_ff00;
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let mut words = words.skip(2);
        let pid = words.next()?;
        (is_flock && words.next() == Some(file.as_str())).then_some(pid)
    })
}

/// Source: proc_pid_stat(5), fields 2 and 22; proc_uptime(5).
fn name_and_age<'a>(stat: &'a str, uptime: &str) -> Option<(&'a str, u64)> {
    // A name can hold anything, also brackets and blanks.
    let (start, rest) = stat.rsplit_once(')')?;
    let started: u64 = rest.split_whitespace().nth(19)?.parse().ok()?;
    let up: u64 = uptime.split('.').next()?.parse().ok()?;
    Some((start.split_once('(')?.1, up.saturating_sub(started / TICKS_PER_SECOND)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::store::tests::TempDir;

    const SHORT: Duration = Duration::from_millis(50);

    fn taken(path: &Path) -> File {
        take(File::create(path).unwrap(), path, &Patience::new(WAIT_MAX)).unwrap()
    }

    #[test]
    fn who_waits_too_long_learns_who_has_it() {
        let dir = TempDir::new();
        let path = dir.path().join("lock");
        let first = taken(&path);
        let error = take(File::open(&path).unwrap(), &path, &Patience::new(SHORT)).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        let expected = format!("lock within 0 s: process {} (", std::process::id());
        assert!(
            error.msg.contains(&expected) && error.msg.ends_with(" s ago, holds it"),
            "{error}"
        );
        drop(first);
        taken(&path);
    }

    #[test]
    fn who_waits_gets_his_turn() {
        let dir = TempDir::new();
        let path = dir.path().join("lock");
        let first = taken(&path);
        let turns = thread::scope(|scope| {
            let wait = || take(File::open(&path).unwrap(), &path, &Patience::new(WAIT_MAX)).is_ok();
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(wait)).collect();
            drop(first);
            threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
        });
        assert_eq!(turns, 64);
    }

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 22 fe:00:1310 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 33 fe:00:131 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 44 fe:00:131 0 EOF\n\
            4: FLOCK  ADVISORY  READ  55 103:fff01:7 0 EOF\n";
        assert_eq!(pid_in(locks, 0xfe00, 131), Some("33"));
        assert_eq!(pid_in(locks, 0xfff1_0301, 7), Some("55"));
        assert_eq!(pid_in(locks, 0xfe00, 13), None);
        let stat = "33 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9000 20 21";
        assert_eq!(name_and_age(stat, "100.25 180.00\n"), Some(("a) b", 10)));
        assert_eq!(name_and_age("", "100.25"), None);
    }
}
