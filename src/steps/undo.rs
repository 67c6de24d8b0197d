//! Errors in the middle of a call: ADD undoes its steps, DEL continues and collects the errors.

use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::plugin::Context;

/// The undo steps of an ADD. They run on drop, unless `keep` is called: first those of the attachment, newest first, then
/// those of shared objects, newest first. A shared object is removed only if it is unused, so the port of the attachment
/// must be removed before.
pub struct Undo<'a> {
    cx: &'a Context<'a>,
    own: Vec<UndoAction<'a>>,
    shared: Vec<UndoAction<'a>>,
}

struct UndoAction<'a> {
    action: &'static str,
    run: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Undo<'a> {
    pub fn new(cx: &'a Context<'a>) -> Self {
        Self { cx, own: Vec::new(), shared: Vec::new() }
    }

    /// Adds an undo step. `action` completes the warning `cannot <action>`, for example `release the addresses`.
    pub fn push(&mut self, action: &'static str, run: impl FnOnce() -> Result<()> + 'a) {
        self.own.push(UndoAction { action, run: Box::new(run) });
    }

    /// Adds an undo step for an object that several attachments share.
    pub fn push_shared(&mut self, action: &'static str, run: impl FnOnce() -> Result<()> + 'a) {
        self.shared.push(UndoAction { action, run: Box::new(run) });
    }

    /// Discards the steps after a successful ADD.
    pub fn keep(mut self) {
        self.own.clear();
        self.shared.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(UndoAction { action, run }) = self.own.pop().or_else(|| self.shared.pop()) {
            if let Err(error) = sys::despite_interrupt(run) {
                // ADD returns its own error. The DEL of the runtime retries the removal.
                self.cx.warn(format_args!("cannot {action}: {error}"));
            }
        }
    }
}

/// The errors of a call that continues after an error.
#[derive(Default)]
pub struct Failures {
    errors: Vec<Error>,
}

impl Failures {
    /// The value of the result. Notes an error, and returns the default in place of the value.
    pub fn note<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.errors.push(error);
            T::default()
        })
    }

    /// The first error, with the others in its details.
    pub fn into_result(self) -> Result<()> {
        Error::joined(self.errors)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::cni::json::Json;
    use crate::cni::request::{Request, Verb};
    use crate::plugin::Session;

    fn request() -> Request {
        let json = Json::parse(br#"{"cniVersion": "1.1.0", "name": "net", "type": "x"}"#);
        Request::new(&Verb::Status, json.unwrap()).unwrap()
    }

    #[test]
    fn undo_runs_newest_first_and_goes_on_past_errors() {
        let log = RefCell::new(Vec::new());
        let (request, session) = (request(), Session::without_container());
        let cx = Context { request: &request, session: &session, plugins: &[] };
        let mut undo = Undo::new(&cx);
        for number in 1..=3 {
            let log = &log;
            undo.push("note it", move || {
                log.borrow_mut().push(number);
                Err(Error::internal("no"))
            });
        }
        undo.push_shared("note it", || {
            log.borrow_mut().push(9);
            Ok(())
        });
        undo.push("note it", || {
            log.borrow_mut().push(4);
            Ok(())
        });
        drop(undo);
        assert_eq!(*log.borrow(), [4, 3, 2, 1, 9]);
    }

    #[test]
    fn no_step_runs_after_keep() {
        let (request, session) = (request(), Session::without_container());
        let cx = Context { request: &request, session: &session, plugins: &[] };
        let mut undo = Undo::new(&cx);
        undo.push("stay", || panic!("the step runs after keep"));
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
