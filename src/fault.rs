//! Makes the n-th kernel request or the n-th file operation fail, in debug builds, so that tests can cover every failure. Tests
//! can also change two timeouts, the longest datagram, the number of threads and the boot id of debug builds.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The numbers of kernel requests and of file operations up to the one that fails. 0 means that none fails.
static KERNEL_LEFT: AtomicU32 = AtomicU32::new(0);
static FILE_LEFT: AtomicU32 = AtomicU32::new(0);
/// The timeouts for `lock_limit` and `bus_limit`, in seconds. 0 means the usual timeout.
static LOCK_LIMIT: AtomicU32 = AtomicU32::new(0);
static BUS_LIMIT: AtomicU32 = AtomicU32::new(0);
/// The largest nf_tables transaction for `send_limit`, in bytes. 0 means the usual size.
static SEND_LIMIT: AtomicU32 = AtomicU32::new(0);
/// The largest number of threads of this process for `thread`. 0 means no limit.
static THREAD_LIMIT: AtomicU32 = AtomicU32::new(0);

/// The file for `boot_file`.
static BOOT_FILE: OnceLock<PathBuf> = OnceLock::new();

/// Reads the numbers from variables of the environment, in debug builds only. Without a variable, no operation fails, or the
/// usual limit holds.
pub fn arm(variable: impl Fn(&str) -> Option<OsString>) {
    if !cfg!(debug_assertions) {
        return;
    }
    for (name, number) in [
        ("CNIBOX_FAIL_KERNEL", &KERNEL_LEFT),
        ("CNIBOX_FAIL_FILE", &FILE_LEFT),
        ("CNIBOX_LIMIT_LOCK", &LOCK_LIMIT),
        ("CNIBOX_LIMIT_BUS", &BUS_LIMIT),
        ("CNIBOX_LIMIT_SEND", &SEND_LIMIT),
        ("CNIBOX_LIMIT_THREADS", &THREAD_LIMIT),
    ] {
        let value = variable(name).and_then(|value| value.to_str()?.parse().ok());
        number.store(value.unwrap_or(0), Relaxed);
    }
    if let Some(path) = variable("CNIBOX_BOOT_FILE") {
        BOOT_FILE.get_or_init(|| path.into());
    }
}

/// A file with the boot id to use in place of the kernel's, if a test has set it: a test cannot boot the machine.
pub fn boot_file() -> Option<&'static Path> {
    BOOT_FILE.get().map(PathBuf::as_path)
}

/// Called before each kernel request. Fails once, with EIO, at the armed number.
pub fn kernel_request() -> io::Result<()> {
    count(&KERNEL_LEFT)
}

/// Called before each operation on a state file. Fails once, with EIO, at the armed number.
pub fn file_operation() -> io::Result<()> {
    count(&FILE_LEFT)
}

/// The timeout of the wait for a lock. A test can shorten it.
pub fn lock_limit(usual: Duration) -> Duration {
    usual.min(timeout(&LOCK_LIMIT, usual))
}

/// The timeout of a D-Bus reply. A test can extend it, since a loaded machine needs more time.
pub fn bus_limit(usual: Duration) -> Duration {
    timeout(&BUS_LIMIT, usual)
}

/// The largest nf_tables transaction in bytes. A test can lower it, since only the host can shrink send buffers.
pub fn send_limit(usual: usize) -> usize {
    limit(&SEND_LIMIT).map_or(usual, |bytes| usual.min(bytes as usize))
}

/// Called before each start of a thread. Fails with EAGAIN, like the kernel, while this process has the number of threads that a
/// test has set: only root on the host can set `pids.max`, and RLIMIT_NPROC does not hold for root.
pub fn thread() -> io::Result<()> {
    /// Try again (asm-generic/errno-base.h).
    const EAGAIN: i32 = 11;

    let Some(limit) = limit(&THREAD_LIMIT) else { return Ok(()) };
    match fs::read_dir("/proc/self/task")?.count() < limit as usize {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(EAGAIN)),
    }
}

fn timeout(seconds: &AtomicU32, usual: Duration) -> Duration {
    limit(seconds).map_or(usual, |seconds| Duration::from_secs(seconds.into()))
}

/// The number, if this is a debug build and a test has set it.
fn limit(number: &AtomicU32) -> Option<u32> {
    let number = if cfg!(debug_assertions) { number.load(Relaxed) } else { 0 };
    (number != 0).then_some(number)
}

fn count(left: &AtomicU32) -> io::Result<()> {
    /// Input/output error (asm-generic/errno-base.h).
    const EIO: i32 = 5;

    if !cfg!(debug_assertions) {
        return Ok(());
    }
    match left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) {
        Ok(1) => {
            // A test raises n until a run does not print this line. If the write fails, the test only runs longer.
            writeln!(io::stderr(), "cnibox: fault injected").ok();
            Err(io::Error::from_raw_os_error(EIO))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_once_at_the_armed_number() {
        let left = AtomicU32::new(2);
        let failed: Vec<bool> = (0..4).map(|_| count(&left).is_err()).collect();
        assert_eq!(failed, [false, true, false, false]);
    }

    #[test]
    fn a_limit_is_the_usual_one_unless_a_test_sets_another() {
        let usual = Duration::from_secs(30);
        assert_eq!(timeout(&AtomicU32::new(0), usual), usual);
        assert_eq!(timeout(&AtomicU32::new(2), usual), Duration::from_secs(2));
    }

    #[test]
    fn without_a_number_no_operation_fails() {
        let left = AtomicU32::new(0);
        assert!((0..4).all(|_| count(&left).is_ok()));
    }
}
