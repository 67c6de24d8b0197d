//! What happens when a call fails half-way: ADD takes back what it did, DEL goes on with the rest.

use crate::error::{Error, Result};

/// Steps to take back, newest first, unless `keep` is called.
#[derive(Default)]
pub struct Undo<'a> {
    steps: Vec<Step<'a>>,
}

struct Step<'a> {
    doing: &'static str,
    take_back: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Undo<'a> {
    /// `doing` says what cannot be done if `take_back` fails: `give the address back`.
    pub fn push(&mut self, doing: &'static str, take_back: impl FnOnce() -> Result<()> + 'a) {
        self.steps.push(Step { doing, take_back: Box::new(take_back) });
    }

    pub fn keep(mut self) {
        self.steps.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(Step { doing, take_back }) = self.steps.pop() {
            if let Err(error) = take_back() {
                // The caller gets the first error, which led here; the runtime's DEL will try this again.
                eprintln!("cannot {doing}: {error}");
            }
        }
    }
}

/// The errors of a call that goes on after each of them.
#[derive(Default)]
pub struct Failures {
    errors: Vec<Error>,
}

impl Failures {
    pub fn note(&mut self, result: Result<()>) {
        self.errors.extend(result.err());
    }

    /// The first error, the others being in its details.
    pub fn into_result(self) -> Result<()> {
        let errors = self.errors.into_iter();
        errors.reduce(|first, error| first.also(&error)).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn undo_runs_newest_first_and_goes_on_past_errors() {
        let log = RefCell::new(Vec::new());
        let mut undo = Undo::default();
        for number in 1..=3 {
            let log = &log;
            undo.push("note it", move || {
                log.borrow_mut().push(number);
                Err(Error::internal("no"))
            });
        }
        drop(undo);
        assert_eq!(*log.borrow(), [3, 2, 1]);
    }

    #[test]
    fn what_is_kept_is_not_taken_back() {
        let mut undo = Undo::default();
        undo.push("stay", || panic!("it was kept"));
        undo.keep();
    }

    #[test]
    fn failures_are_all_reported() {
        let mut failures = Failures::default();
        for result in [Ok(()), Err(Error::config("a")), Ok(()), Err(Error::internal("b"))] {
            failures.note(result);
        }
        assert_eq!(failures.into_result(), Err(Error::config("a").with_details("also: b")));
        assert_eq!(Failures::default().into_result(), Ok(()));
    }
}
