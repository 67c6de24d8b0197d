//! The file with the objects that the watcher leaves, for `reconcile` and `doctor`.

use std::fmt::{self, Display};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::backoff::Leave;
use crate::cni::json;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::{boot, clock, file};
use crate::runtime::Runtime;

/// An object that the watcher leaves at the moment. This is also in the output of `cnibox reconcile --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    pub object: String,
    /// The time until the watcher repairs the object again.
    pub seconds: u64,
    pub reason: String,
}

/// The content of the file. A watcher that was killed leaves the file: each entry ends with its pause.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeftFile {
    /// The id of the boot in which the times are valid.
    boot: String,
    left: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    object: String,
    repairs: u32,
    /// The end of the pause, in seconds since boot (CLOCK_BOOTTIME).
    until: u64,
}

impl Runtime {
    /// The objects that the watcher leaves at the moment.
    pub fn left_by_watcher(&self) -> Result<Vec<Left>> {
        let path = self.left_path();
        let cannot_read = |reason| {
            Error::internal(format_args!("cannot read {}", path.display())).with_details(reason)
        };
        let text = file::found(file::read(&path)).map_err(Error::of_file("read", &path))?;
        let Some(text) = text else { return Ok(Vec::new()) };
        let LeftFile { boot, left } = json::read(&text).map_err(cannot_read)?;
        if boot != boot::id().map_err(Error::of_file("read", &path))? {
            return Ok(Vec::new());
        }
        let now = clock::since_boot();
        let left = left.into_iter().map(|Entry { object, repairs, until }| {
            let leave = Leave { object, repairs, until: Duration::from_secs(until) };
            let reason = leave.reason();
            Left { seconds: leave.seconds(now), object: leave.object, reason }
        });
        Ok(left.filter(|left| left.seconds > 0).collect())
    }

    /// Writes the objects that the watcher leaves.
    pub(super) fn write_left(&self, left: &[Leave]) -> Result<()> {
        let path = self.left_path();
        if left.is_empty() {
            let removed = fault::file_operation().and_then(|()| fs::remove_file(&path));
            return file::found(removed).map(drop).map_err(Error::of_file("remove", &path));
        }
        let entry = |Leave { object, repairs, until }: &Leave| Entry {
            object: object.clone(),
            repairs: *repairs,
            // Rounded up.
            until: until.as_secs() + 1,
        };
        let write = || {
            let left = left.iter().map(entry).collect();
            let content = LeftFile { boot: boot::id()?.to_owned(), left };
            file::replace_private(&path, json::compact(&content).as_bytes())
        };
        write().map_err(Error::of_file("write", &path))
    }

    fn left_path(&self) -> PathBuf {
        self.state.join("left")
    }
}

impl Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, seconds, reason } = self;
        write!(f, "the watcher leaves {object} for {seconds} s: {reason}")
    }
}
