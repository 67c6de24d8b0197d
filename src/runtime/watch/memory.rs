//! What the watcher keeps from one look to the next: the lines that it has logged, and the attachments that it leaves because
//! another program removes the same again and again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::error::Result;
use crate::kernel::sys::warn;
use crate::names::{Attachment, NetworkName};
use crate::runtime::reconcile::{Failed, Reconciled};

/// An attachment is left after this number of equal repairs, or equal errors, within `WINDOW`.
const REPEATS_MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// The time for which an attachment is left. After it, the watcher tries again.
const LEFT: Duration = Duration::from_secs(600);

/// All times are times since boot.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The time of the current look.
    now: Duration,
    /// The lines of the last look about what it could not restore. They are logged when they change.
    lines: HashSet<String>,
    /// The repairs and errors in the last `WINDOW`: time and line.
    recent: Vec<(Duration, String)>,
    /// The attachments that are left, by title, and until when.
    left: HashMap<String, Duration>,
}

impl Memory {
    /// Begins a look.
    pub(super) fn begin(&mut self, now: Duration) {
        self.now = now;
        self.recent.retain(|(time, _)| now.saturating_sub(*time) < WINDOW);
        self.left.retain(|_, until| *until > now);
    }

    /// Whether this look leaves an attachment as it is.
    pub(super) fn leaves(&self, network: &NetworkName, at: &Attachment) -> bool {
        !self.left.is_empty() && self.left.contains_key(&at.title(network))
    }

    /// Logs the result of a look: each repair, and what it could not restore if the look before did not tell the same.
    pub(super) fn log(&mut self, reconciled: Result<Reconciled>) {
        let mut lines = Vec::new();
        match reconciled {
            Err(error) => lines.push(error.to_string()),
            Ok(reconciled) => {
                for restored in &reconciled.restored {
                    let line = restored.line("restored");
                    warn(format_args!("{line}"));
                    let cause = "another program removes it again and again";
                    self.count(restored.at.title(&restored.network), line, cause);
                }
                lines.extend(reconciled.reasons());
                lines.extend(reconciled.errors.iter().map(|error| format!("warning: {error}")));
                for Failed { network, at, error } in &reconciled.failed {
                    self.count(at.title(network), error.to_string(), "it fails again and again");
                    lines.push(error.to_string());
                }
            }
        }
        let is_new = |line: &&String| !self.lines.contains(*line);
        lines.iter().filter(is_new).for_each(|line| warn(format_args!("{line}")));
        self.lines = lines.into_iter().collect();
    }

    /// Notes a repair or an error of an attachment. Leaves the attachment if there were too many.
    fn count(&mut self, title: String, line: String, cause: &str) {
        let count = self.recent.iter().filter(|(_, other)| *other == line).count() + 1;
        if count >= REPEATS_MAX && !self.left.contains_key(&title) {
            let seconds = LEFT.as_secs();
            warn(format_args!("left {title} for {seconds} s, because {cause}: {line}"));
            self.left.insert(title, self.now + LEFT);
        }
        self.recent.push((self.now, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::names::{ContainerId, IfName};
    use crate::runtime::reconcile::Restored;

    fn at(container: &str) -> Attachment {
        Attachment {
            container_id: ContainerId::new(container).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        }
    }

    fn network() -> NetworkName {
        NetworkName::new("net").unwrap()
    }

    /// A look at that second which repairs these attachments.
    fn look(memory: &mut Memory, second: u64, repaired: &[&str]) {
        memory.begin(Duration::from_secs(second));
        let (plugin, difference) = ("bridge".to_owned(), "masquerading is missing".to_owned());
        let restored = repaired.iter().map(|container| Restored {
            network: network(),
            at: at(container),
            plugin: plugin.clone(),
            difference: difference.clone(),
        });
        memory.log(Ok(Reconciled { restored: restored.collect(), ..Reconciled::default() }));
    }

    #[test]
    fn an_attachment_is_left_after_five_equal_repairs_in_a_minute_and_tried_again() {
        let mut memory = Memory::default();
        let leaves = |memory: &Memory, name: &str| memory.leaves(&network(), &at(name));
        for second in 0..4 {
            look(&mut memory, 1000 + second, &["c1"]);
        }
        assert!(!leaves(&memory, "c1"));
        look(&mut memory, 1004, &["c1", "c2"]);
        assert!(leaves(&memory, "c1") && !leaves(&memory, "c2"));
        memory.begin(Duration::from_secs(1603));
        assert!(leaves(&memory, "c1"));
        memory.begin(Duration::from_secs(1604));
        assert!(!leaves(&memory, "c1"));
    }

    #[test]
    fn slow_repairs_are_not_counted_together() {
        let mut memory = Memory::default();
        for count in 0..20 {
            look(&mut memory, 1000 + count * 15, &["c1"]);
        }
        assert!(!memory.leaves(&network(), &at("c1")));
        assert_eq!(memory.recent.len(), 4);
    }

    #[test]
    fn an_attachment_that_fails_again_and_again_is_left() {
        let mut memory = Memory::default();
        for second in 0..5 {
            memory.begin(Duration::from_secs(second));
            let failed =
                Failed { network: network(), at: at("c1"), error: Error::internal("no link") };
            memory.log(Ok(Reconciled { failed: vec![failed], ..Reconciled::default() }));
        }
        assert!(memory.leaves(&network(), &at("c1")));
        assert_eq!(memory.lines.len(), 1);
    }
}
