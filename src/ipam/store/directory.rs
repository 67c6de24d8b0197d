//! Detects changes of the directory of a network: added, removed and renamed files.

use std::fs::{File, FileTimes, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::digest::digest;
use super::files;
use crate::fault;

const MICROSECONDS: u64 = 1_000_000;

/// The state of a directory. It changes when an entry is added, removed or renamed.
///
/// cnibox sets the modification time itself: the kernel's clock for file times has ticks of some milliseconds, so two changes
/// in one tick would have the same time. No program can set the inode's change time, so a directory that is restored from a
/// backup with its times has another state, too. Times are compared for equality only, so a wrong clock does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DirState(pub(super) [u64; 6]);

pub(super) struct Directory(File);

impl Directory {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        files::open(path).map(Self)
    }

    pub(super) fn state(&self) -> io::Result<DirState> {
        fault::file_operation()?;
        Ok(DirState::of(&self.0.metadata()?))
    }

    /// Sets a modification time that the directory never had, and returns the new state. `last` is the state at the last
    /// stamp.
    pub(super) fn stamp(&self, last: &DirState) -> io::Result<DirState> {
        fault::file_operation()?;
        let modified = new_time(&self.state()?, last);
        self.0.set_times(FileTimes::new().set_modified(modified))?;
        let metadata = self.0.metadata()?;
        // A file system that stores whole seconds cannot distinguish two states.
        if metadata.modified()? == modified {
            Ok(DirState::of(&metadata))
        } else {
            Err(ErrorKind::Unsupported.into())
        }
    }
}

impl DirState {
    fn of(metadata: &Metadata) -> Self {
        Self([
            metadata.dev(),
            metadata.ino(),
            metadata.mtime().cast_unsigned(),
            metadata.mtime_nsec().cast_unsigned(),
            metadata.ctime().cast_unsigned(),
            metadata.ctime_nsec().cast_unsigned(),
        ])
    }

    /// The modification time in seconds since 1970; 0 for earlier times.
    fn modified_seconds(&self) -> u64 {
        u64::try_from(self.0[2].cast_signed()).unwrap_or_default()
    }

    fn modified_nanoseconds(&self) -> u64 {
        self.0[3]
    }
}

/// A pseudorandom time in the past, so that the kernel cannot produce it again. It is a whole number of microseconds, because
/// some file systems store no smaller unit. It is computed from the directory's present time, which is cheaper than a read of
/// the clock.
fn new_time(present: &DirState, last: &DirState) -> SystemTime {
    let process = u64::from(std::process::id());
    let words = [last.0, present.0].concat();
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let mut micros = digest(process, &bytes) % MICROSECONDS;
    if micros * 1000 == last.modified_nanoseconds() {
        micros = (micros + 1) % MICROSECONDS;
    }
    UNIX_EPOCH
        + Duration::from_secs(present.modified_seconds().saturating_sub(1))
        + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ipam::store::tests::TempDir;

    #[test]
    fn every_change_and_every_stamp_changes_the_state() {
        let dir = TempDir::new();
        let directory = Directory::open(dir.path()).unwrap();
        let mut states = vec![directory.state().unwrap()];
        let file = dir.path().join("10.1.0.2");
        for _ in 0..100 {
            states.push(directory.stamp(states.last().unwrap()).unwrap());
            fs::write(&file, "").unwrap();
            states.push(directory.state().unwrap());
            states.push(directory.stamp(states.last().unwrap()).unwrap());
            fs::remove_file(&file).unwrap();
            states.push(directory.state().unwrap());
        }
        for pair in states.windows(2) {
            assert_ne!(pair[0].0[2..4], pair[1].0[2..4]);
        }
    }

    #[test]
    fn a_directory_of_any_time_can_be_stamped() {
        let century = Duration::from_secs(100 * 365 * 86400);
        for modified in [UNIX_EPOCH - century, UNIX_EPOCH, UNIX_EPOCH + 3 * century] {
            let dir = TempDir::new();
            let directory = Directory::open(dir.path()).unwrap();
            directory.0.set_times(FileTimes::new().set_modified(modified)).unwrap();
            let before = directory.state().unwrap();
            assert_ne!(directory.stamp(&before).unwrap(), before);
        }
    }

    #[test]
    fn restored_times_change_the_state() {
        let dir = TempDir::new();
        let directory = Directory::open(dir.path()).unwrap();
        let before = directory.stamp(&DirState::default()).unwrap();
        let modified = fs::metadata(dir.path()).unwrap().modified().unwrap();
        let restore = || {
            fs::write(dir.path().join("10.1.0.2"), "").unwrap();
            File::open(dir.path()).unwrap().set_modified(modified).unwrap();
            directory.state().unwrap()
        };
        // In the same tick of the kernel's clock the inode's change time is the same.
        let after = std::iter::repeat_with(restore).take(100_000).find(|after| *after != before);
        assert_eq!(before.0[..4], after.unwrap().0[..4]);
    }
}
