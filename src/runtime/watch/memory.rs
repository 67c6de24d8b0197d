//! What the watcher keeps from one look to the next: the lines that it has logged, and the repairs of objects.

use std::collections::HashSet;
use std::time::Duration;

use super::backoff::{Backoff, Leave};
use crate::error::Result;
use crate::kernel::sys::warn;
use crate::runtime::reconcile::{Failed, Reconciled};

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) backoff: Backoff,
    /// The content of the file of objects that are left. `None` if the last write failed.
    written: Option<Vec<Leave>>,
    /// The lines of the last look about what it could not restore. They are logged when they change.
    lines: HashSet<String>,
}

impl Memory {
    /// Ends a look at this time, and logs its result: each repair, the begin of each pause, and what it could not restore if
    /// the look before did not tell the same. `write` writes the objects that are left.
    pub(super) fn end(
        &mut self,
        now: Duration,
        reconciled: Result<Reconciled>,
        write: impl FnOnce(&[Leave]) -> Result<()>,
    ) {
        let mut lines = Vec::new();
        match reconciled {
            Err(error) => {
                self.backoff.looked(now, &[], &[]);
                lines.push(error.to_string());
            }
            Ok(reconciled) => {
                for restored in &reconciled.restored {
                    warn(format_args!("{}", restored.line("restored")));
                }
                for begun in self.backoff.looked(now, &reconciled.tried, &reconciled.left) {
                    let (seconds, reason) = (begun.seconds(now), begun.reason());
                    warn(format_args!("left {} for {seconds} s: {reason}", begun.object));
                }
                lines.extend(reconciled.reasons());
                lines.extend(reconciled.errors.iter().map(|error| format!("warning: {error}")));
                let failed = reconciled.failed.iter();
                lines.extend(failed.map(|Failed { error, .. }| error.to_string()));
            }
        }
        let left = self.backoff.left();
        if self.written.as_ref() != Some(&left) {
            match write(&left) {
                Ok(()) => self.written = Some(left),
                Err(error) => {
                    self.written = None;
                    lines.push(format!("warning: {error}"));
                }
            }
        }
        let is_new = |line: &&String| !self.lines.contains(*line);
        lines.iter().filter(is_new).for_each(|line| warn(format_args!("{line}")));
        self.lines = lines.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_objects_that_are_left_are_written_when_they_change_or_could_not_be_written() {
        let mut memory = Memory::default();
        let mut writes = 0;
        for is_written in [false, true, true] {
            let failed = Error::internal("no space");
            memory.end(Duration::ZERO, Ok(Reconciled::default()), |left| {
                assert_eq!(left, []);
                writes += 1;
                if is_written { Ok(()) } else { Err(failed) }
            });
        }
        assert_eq!(writes, 2);
        assert_eq!(memory.lines, HashSet::new());
    }
}
