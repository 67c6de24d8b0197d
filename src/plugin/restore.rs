//! The parts of an attachment on the host that another program can have removed, and what a `restore` did about them.
//!
//! Each part is compared as by CHECK, and made by the step of ADD.

use crate::error::{Error, Result};

/// The parts of one plugin of one attachment.
#[derive(Debug)]
pub struct Parts {
    is_dry_run: bool,
    /// The differences of the parts that are now as ADD made them; in a dry run, of those that would be.
    pub restored: Vec<String>,
    /// The reasons why something is not restored.
    pub skipped: Vec<String>,
    pub errors: Vec<Error>,
}

impl Parts {
    pub fn new(is_dry_run: bool) -> Self {
        Self { is_dry_run, restored: Vec::new(), skipped: Vec::new(), errors: Vec::new() }
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// A plugin of another executable has no such call.
    pub fn skip_foreign(&mut self, kind: &str) {
        self.skipped.push(format!("plugin {kind} is not one of cnibox"));
    }

    /// Compares a part, and makes it if it differs. An error does not stop the other parts.
    pub fn ensure(
        &mut self,
        compare: &dyn Fn() -> Result<()>,
        make: &mut dyn FnMut() -> Result<()>,
    ) {
        let Err(difference) = compare() else { return };
        if !self.is_dry_run {
            // The second comparison tells whether the step had an effect: another program may remove the part again.
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
