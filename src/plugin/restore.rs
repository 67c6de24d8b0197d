//! Restores the parts of an attachment on the host that another program removed or changed, and collects the results.
//!
//! `Parts::ensure` compares a part as CHECK does. If the part is missing or different, it calls the step of ADD that makes it.

use crate::error::{Error, Result};

/// The results of restoring the parts of one plugin for one attachment.
#[derive(Debug)]
pub struct Parts {
    is_dry_run: bool,
    /// One difference for each part that was restored; in a dry run, for each part that would be restored.
    pub restored: Vec<String>,
    /// The reasons why parts are not restored.
    pub skipped: Vec<String>,
    /// The errors of parts that could not be restored.
    pub errors: Vec<Error>,
}

impl Parts {
    pub fn new(is_dry_run: bool) -> Self {
        Self { is_dry_run, restored: Vec::new(), skipped: Vec::new(), errors: Vec::new() }
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// Notes that a plugin of another executable is skipped: CNI has no call for a restore.
    pub fn skip_foreign(&mut self, kind: &str) {
        self.skipped.push(format!("plugin {kind} is not one of cnibox"));
    }

    /// Compares a part; if it is missing or different, makes it (not in a dry run). An error is kept for the report, so the
    /// other parts are restored nevertheless.
    pub fn ensure(
        &mut self,
        compare: &dyn Fn() -> Result<()>,
        make: &mut dyn FnMut() -> Result<()>,
    ) {
        let Err(difference) = compare() else { return };
        if !self.is_dry_run {
            // Compare again: `make` may have had no effect, or another program may have removed the part again.
            if let Err(error) = make().and_then(|()| compare()) {
                self.errors.push(error);
                return;
            }
        }
        self.restored.push(difference.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn difference() -> Result<()> {
        Err(Error::internal("forwarding is off"))
    }

    #[test]
    fn only_a_part_that_differs_is_made() {
        let is_there = Cell::new(false);
        let compare = || if is_there.get() { Ok(()) } else { difference() };
        let mut parts = Parts::new(false);
        for _ in 0..2 {
            parts.ensure(&compare, &mut || {
                assert!(!is_there.replace(true), "it is made twice");
                Ok(())
            });
        }
        assert_eq!(parts.restored, ["forwarding is off"]);
        assert_eq!(parts.errors, []);
    }

    #[test]
    fn a_dry_run_makes_nothing() {
        let mut parts = Parts::new(true);
        parts.ensure(&difference, &mut || panic!("it is made"));
        assert_eq!(parts.restored, ["forwarding is off"]);
    }

    #[test]
    fn a_part_that_fails_or_stays_different_is_an_error_and_the_next_one_is_made() {
        let mut parts = Parts::new(false);
        parts.ensure(&difference, &mut || Err(Error::internal("cannot make it")));
        parts.ensure(&difference, &mut || Ok(()));
        let is_there = Cell::new(false);
        let compare = || if is_there.get() { Ok(()) } else { difference() };
        parts.ensure(&compare, &mut || {
            is_there.set(true);
            Ok(())
        });
        assert_eq!(parts.restored, ["forwarding is off"]);
        let errors: Vec<String> = parts.errors.iter().map(Error::to_string).collect();
        assert_eq!(errors, ["cannot make it", "forwarding is off"]);
    }
}
