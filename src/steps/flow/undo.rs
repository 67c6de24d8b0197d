//! What happens when a call fails half-way: ADD takes back what it did, DEL goes on with the rest.

use crate::error::{Error, Result};
use crate::plugin::Context;

/// Steps to take back unless `keep` is called: first the attachment's own, newest first, then the shared ones, newest
/// first. What attachments share is taken back only when nobody uses it, and our own port is a user.
pub struct Undo<'a> {
    cx: &'a Context<'a>,
    own: Vec<Step<'a>>,
    shared: Vec<Step<'a>>,
}

struct Step<'a> {
    doing: &'static str,
    take_back: Box<dyn FnOnce() -> Result<()> + 'a>,
}

impl<'a> Undo<'a> {
    pub fn new(cx: &'a Context<'a>) -> Self {
        Self { cx, own: Vec::new(), shared: Vec::new() }
    }

    /// `doing` says what cannot be done if `take_back` fails: `give the address back`.
    pub fn push(&mut self, doing: &'static str, take_back: impl FnOnce() -> Result<()> + 'a) {
        self.own.push(Step { doing, take_back: Box::new(take_back) });
    }

    /// The same for what attachments share.
    pub fn push_shared(
        &mut self,
        doing: &'static str,
        take_back: impl FnOnce() -> Result<()> + 'a,
    ) {
        self.shared.push(Step { doing, take_back: Box::new(take_back) });
    }

    pub fn keep(mut self) {
        self.own.clear();
        self.shared.clear();
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        while let Some(Step { doing, take_back }) = self.own.pop().or_else(|| self.shared.pop()) {
            if let Err(error) = take_back() {
                // The caller gets the first error, which led here; the runtime's DEL will try this again.
                self.cx.warn(format_args!("cannot {doing}: {error}"));
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
    use crate::cni::json::Json;
    use crate::cni::request::Request;
    use crate::plugin::Session;

    fn request() -> Request {
        let json = Json::parse(br#"{"cniVersion": "1.1.0", "name": "net", "type": "x"}"#);
        Request::new("STATUS", |_| None, json.unwrap()).unwrap().0
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
    fn what_is_kept_is_not_taken_back() {
        let (request, session) = (request(), Session::without_container());
        let cx = Context { request: &request, session: &session, plugins: &[] };
        let mut undo = Undo::new(&cx);
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
