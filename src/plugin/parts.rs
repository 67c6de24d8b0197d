//! The parts of an attachment. Each part is a comparison, and the step of ADD that makes the part. CHECK compares,
//! `reconcile` also makes what another program removed, and a lease with another address what the new address needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::error::{Error, Result};

/// What is done with the parts of one plugin for one attachment, and the results.
#[derive(Debug, Default)]
pub struct Parts {
    purpose: Purpose,
    inside: InContainer,
    /// The addresses that the attachment no longer has. A part removes what it made for them.
    pub former: Vec<IpAddr>,
    /// The addresses of which the masquerading was missing, and was made.
    pub masqueraded: Vec<IpAddr>,
    /// The names of objects that are not made, by `object_of`.
    leaves: BTreeSet<String>,
    /// One difference for each part that was made; in a dry run, for each part that would be made.
    pub restored: Vec<Error>,
    /// The differences of parts that could not be made.
    pub failed: Vec<Error>,
    /// The differences of parts that were left, because of `leaves`.
    pub left: Vec<Error>,
    /// The differences of parts in the container that were listed only, and the errors of their comparison.
    pub left_inside: Vec<Error>,
    /// The reasons why parts are not made.
    pub skipped: Vec<String>,
    /// The errors of parts that could not be made.
    pub errors: Vec<Error>,
}

/// What is done with the parts in the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InContainer {
    /// Nothing: the namespace of the container is not opened.
    #[default]
    Skip,
    /// They are compared, and what differs stays.
    List,
    /// The same as with those on the host.
    Ensure,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Purpose {
    /// CHECK: the first difference is an error.
    #[default]
    Check,
    /// `reconcile --dry-run`: notes the differences.
    List,
    /// `reconcile`: makes the parts that are missing or different.
    Restore,
    /// A repeated ADD, and a lease with another address: the same, but the record of the attachment stays.
    Put,
}

impl Parts {
    /// For CHECK.
    pub fn to_check() -> Self {
        Self { inside: InContainer::Ensure, ..Self::default() }
    }

    /// For `reconcile`. A container may have changed what is inside on purpose.
    pub fn to_restore(is_dry_run: bool, inside: InContainer) -> Self {
        let purpose = if is_dry_run { Purpose::List } else { Purpose::Restore };
        Self { purpose, inside, ..Self::default() }
    }

    /// For an ADD of an attachment that exists, and for a lease with another address. `former` are the addresses of before.
    pub fn to_put(former: Vec<IpAddr>) -> Self {
        Self { purpose: Purpose::Put, former, ..Self::default() }
    }

    /// Does not make parts of which one of these objects is missing or different.
    pub fn leaving(self, leaves: BTreeSet<String>) -> Self {
        Self { leaves, ..self }
    }

    pub fn is_check(&self) -> bool {
        self.purpose == Purpose::Check
    }

    /// Compares, and makes, the parts in the container with `ensure_all`.
    pub fn in_container(&mut self, ensure_all: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        match self.inside {
            InContainer::Skip => Ok(()),
            InContainer::Ensure => ensure_all(self),
            InContainer::List => {
                let mut listed = Self::to_restore(true, InContainer::Ensure);
                let failed = ensure_all(&mut listed).err();
                let all = listed.restored.into_iter().chain(listed.errors).chain(failed);
                self.left_inside.extend(all);
                Ok(())
            }
        }
    }

    /// Whether the parts are made for `reconcile`.
    pub fn is_restore(&self) -> bool {
        self.purpose == Purpose::Restore
    }

    /// Notes that a plugin is skipped because another executable did its ADD: CNI has no call for a restore.
    pub fn skip_foreign(&mut self, kind: &str) {
        self.skipped.push(format!("plugin {kind} is of another executable"));
    }

    /// Compares a part. If it is missing or different: for CHECK, returns the difference as error. Else makes the part, but not in
    /// a dry run. An error of `make` is kept for the report, so the other parts are made nevertheless. So is an error of `compare`
    /// that is not a difference: the part may be there, and is not made.
    pub fn ensure(
        &mut self,
        compare: &dyn Fn() -> Result<()>,
        make: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Err(difference) = compare() else { return Ok(()) };
        match self.purpose {
            Purpose::Check => return Err(difference),
            _ if !difference.is_difference => {
                self.errors.push(difference);
                return Ok(());
            }
            _ if self.leaves.contains(&object_of(&difference)) => {
                self.left.push(difference);
                return Ok(());
            }
            Purpose::List => {}
            Purpose::Restore | Purpose::Put => {
                // Compare again: `make` may have had no effect, or another program may have removed the part again.
                if let Err(error) = make().and_then(|()| compare()) {
                    self.errors.push(error);
                    self.failed.push(difference);
                    return Ok(());
                }
            }
        }
        self.restored.push(difference);
        Ok(())
    }
}

/// The name of the object that is missing or different: of a shared one its own name, else the text of the difference.
pub fn object_of(difference: &Error) -> String {
    difference.shared.clone().unwrap_or_else(|| difference.to_string())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn difference() -> Result<()> {
        Err(Error::difference("forwarding is off"))
    }

    #[test]
    fn a_part_that_cannot_be_compared_is_not_made() {
        let mut parts = Parts::to_restore(false, InContainer::Skip);
        let unknown = || Err(Error::internal("cannot read it"));
        assert_eq!(parts.ensure(&unknown, &mut || panic!("it is made")), Ok(()));
        assert_eq!(parts.errors, [Error::internal("cannot read it")]);
    }

    #[test]
    fn only_a_part_that_differs_is_made() {
        let is_there = Cell::new(false);
        let compare = || if is_there.get() { Ok(()) } else { difference() };
        let mut parts = Parts::to_restore(false, InContainer::Skip);
        for _ in 0..2 {
            let make = &mut || {
                assert!(!is_there.replace(true), "it is made twice");
                Ok(())
            };
            assert_eq!(parts.ensure(&compare, make), Ok(()));
        }
        assert_eq!(parts.restored, [difference().unwrap_err()]);
        assert_eq!(parts.errors, []);
    }

    #[test]
    fn an_object_that_is_left_is_not_made_and_the_others_are() {
        let shared = || difference().map_err(|error| error.of_shared("ip_forward"));
        let in_its_text = || shared().map_err(|error| error.context("no gateway"));
        let leaves = ["ip_forward".to_owned(), "own".to_owned()];
        let mut parts = Parts::to_restore(false, InContainer::Skip).leaving(leaves.into());
        for compare in [&shared as &dyn Fn() -> _, &in_its_text, &|| Err(Error::difference("own"))]
        {
            assert_eq!(parts.ensure(compare, &mut || panic!("it is made")), Ok(()));
        }
        assert_eq!(parts.left.len(), 3);
        assert_eq!(parts.ensure(&difference, &mut || Err(Error::internal("no"))), Ok(()));
        assert_eq!(parts.failed, [difference().unwrap_err()]);
    }

    #[test]
    fn a_dry_run_and_a_check_make_nothing() {
        let mut parts = Parts::to_restore(true, InContainer::Skip);
        assert_eq!(parts.ensure(&difference, &mut || panic!("it is made")), Ok(()));
        assert_eq!(parts.restored, [difference().unwrap_err()]);
        let found = Parts::to_check().ensure(&difference, &mut || panic!("it is made"));
        assert_eq!(found, difference());
    }

    #[test]
    fn a_part_that_fails_or_stays_different_is_an_error_and_the_next_one_is_made() {
        let mut parts = Parts::to_put(Vec::new());
        let is_there = Cell::new(false);
        let compare = || if is_there.get() { Ok(()) } else { difference() };
        let ensured = [
            parts.ensure(&difference, &mut || Err(Error::internal("cannot make it"))),
            parts.ensure(&difference, &mut || Ok(())),
            parts.ensure(&compare, &mut || {
                is_there.set(true);
                Ok(())
            }),
        ];
        assert_eq!(ensured, [const { Ok(()) }; 3]);
        assert_eq!(parts.restored, [difference().unwrap_err()]);
        let errors: Vec<String> = parts.errors.iter().map(Error::to_string).collect();
        assert_eq!(errors, ["cannot make it", "forwarding is off"]);
    }
}
