//! `reconcile --pause`: a file with the time until which the watcher does not look.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::sys::warn;
use crate::kernel::{boot, clock, file};
use crate::runtime::Runtime;

/// The longest pause, in seconds: a day. A forgotten pause ends.
pub const PAUSE_MAX_S: u64 = 86_400;

/// The time to the next read of a file that cannot be read.
const UNREADABLE: Duration = Duration::from_secs(10);

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct PauseFile {
    /// The id of the boot in which `until` is valid.
    boot: String,
    /// The end of the pause, in seconds since boot (CLOCK_BOOTTIME).
    until: u64,
}

impl Runtime {
    /// Stops the watcher for some seconds, from its next look on.
    pub fn pause(&self, seconds: u64) -> Result<()> {
        let path = self.pause_path();
        let write = || {
            // Rounded up.
            let until = clock::since_boot().as_secs() + seconds + 1;
            let pause = PauseFile { boot: boot::id()?.to_owned(), until };
            file::replace_private(&path, json::compact(&pause).as_bytes())
        };
        write().map_err(Error::of_file("write", &path))
    }

    /// Ends a pause. Idempotent: succeeds if there is none.
    pub fn end_pause(&self) -> Result<()> {
        let path = self.pause_path();
        let removed = fault::file_operation().and_then(|()| fs::remove_file(&path));
        file::found(removed).map(drop).map_err(Error::of_file("remove", &path))
    }

    /// The end of the pause, as time since boot. A missing or damaged file, or one of another boot, is no pause. A file that
    /// cannot be read may have one, so the watcher waits and reads it again.
    pub(super) fn pause_end(&self) -> Duration {
        let path = self.pause_path();
        let read = || -> io::Result<Option<u64>> {
            let Some(content) = file::found(file::read(&path))? else { return Ok(None) };
            let Ok(pause) = json::read::<PauseFile>(&content) else { return Ok(None) };
            Ok((pause.boot == boot::id()?).then_some(pause.until))
        };
        match read() {
            Ok(until) => Duration::from_secs(until.unwrap_or_default()),
            Err(error) => {
                let error = Error::of_file("read", &path)(error);
                warn(format_args!("warning: {error}; nothing is restored until it can be read"));
                clock::since_boot() + UNREADABLE
            }
        }
    }

    fn pause_path(&self) -> PathBuf {
        self.state.join("pause")
    }
}
