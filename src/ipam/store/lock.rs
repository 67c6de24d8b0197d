//! The lock of a network: first the threads of this process queue, then the first of them locks the file `lock` with
//! flock(2). One timeout covers both waits, and the error names the holder.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::failed;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Limit, Turn, Turns};

/// The longest wait for other holders. It is shorter than the timeout of runtimes for a call, which is minutes; they retry
/// after code 11.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Waits until no other thread that shares `turns` holds the lock at this path. Fails with code 11 at the timeout.
pub(super) fn take_turn<'a>(turns: &'a Turns, path: &Path, limit: &Limit) -> Result<Turn<'a>> {
    let turn = turns.take(path, limit);
    turn.ok_or_else(|| timeout(path, limit, "another thread of this process holds it"))
}

/// Runs the closure while the file is locked. Fails with code 11 at the timeout.
pub(super) fn locked<T>(
    file: &File,
    path: &Path,
    limit: &Limit,
    f: impl FnOnce() -> Result<T>,
) -> Result<T> {
    fault::file_operation().map_err(failed("lock", path))?;
    let done = flock::while_locked(file, limit, f).map_err(failed("lock", path))?;
    done.unwrap_or_else(|| Err(timeout(path, limit, &file::holder(file))))
}

/// Fails with code 11 if the timeout has passed. For a loop that waits although no process holds the lock.
pub(super) fn check(path: &Path, limit: &Limit) -> Result<()> {
    if !limit.left().is_zero() {
        return Ok(());
    }
    Err(timeout(path, limit, "other processes keep removing the file"))
}

fn timeout(path: &Path, limit: &Limit, reason: &str) -> Error {
    let (path, seconds) = (path.display(), limit.duration.as_secs());
    let msg = format!("cannot lock {path} within {seconds} s: {reason}");
    Error::new(Code::TRY_AGAIN_LATER, msg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::store::tests::TempDir;

    #[test]
    fn the_error_of_a_timeout_names_the_holder() {
        let dir = TempDir::new();
        let path = dir.path().join("lock");
        let (first, second) = (File::create(&path).unwrap(), File::open(&path).unwrap());
        let limit = Limit::new(Duration::from_millis(50));
        let wait = || locked(&second, &path, &limit, || Ok(()));
        let error = locked(&first, &path, &Limit::new(WAIT_MAX), wait).unwrap_err();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        let expected = format!("lock within 0 s: process {} (", std::process::id());
        assert!(
            error.msg.contains(&expected) && error.msg.ends_with(" s ago, holds it"),
            "{error}"
        );
        let error = check(&path, &limit).unwrap_err();
        assert!(error.msg.ends_with("lock within 0 s: other processes keep removing the file"));
        locked(&second, &path, &Limit::new(WAIT_MAX), || Ok(())).unwrap();
    }

    #[test]
    fn the_error_names_a_thread_as_the_holder_and_the_limit_covers_turn_and_lock() {
        let (turns, path) = (Turns::default(), Path::new("/net/lock"));
        let _first = take_turn(&turns, path, &Limit::new(WAIT_MAX)).unwrap();
        let limit = Limit::new(Duration::from_millis(20));
        let error = take_turn(&turns, path, &limit).err().unwrap();
        assert_eq!(error.code, Code::TRY_AGAIN_LATER);
        let expected = "cannot lock /net/lock within 0 s: another thread of this process holds it";
        assert_eq!(error.msg, expected);
        assert!(limit.left().is_zero());
    }
}
