//! The pauses of objects that another program removes again and again.
//!
//! The repairs of each object are counted. The first ones follow at once. After each further repair the watcher leaves the object for
//! a time that doubles, and then tries again. An object that stayed for `STABLE` is forgotten. This is a state machine without
//! input and output. All times are times since boot.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::names::{Attachment, NetworkName};
use crate::runtime::reconcile::{Object, Tried};

/// The number of repairs in a row without a pause between them: an administrator reloads rules several times.
const AT_ONCE: u32 = 5;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The repairs of an object are forgotten if it was there for this time. Without any event for this time, all objects are repaired
/// once, because the other program has probably ended.
pub(super) const STABLE: Duration = Duration::from_secs(10);

/// The pause after the failure with this number, which begins with 0: 1, 2, 4 … 60 seconds.
pub(super) fn pause(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6)).min(PAUSE_MAX)
}

#[derive(Debug, Default)]
pub(super) struct Backoff {
    objects: HashMap<Object, Repairs>,
}

/// The repairs of an object in a row: each followed before the object had stayed for `STABLE`.
#[derive(Debug)]
struct Repairs {
    count: u32,
    /// The time of the last repair.
    last: Duration,
    /// The time of the next repair at the earliest.
    until: Duration,
    /// Whether the last look left the object.
    is_left: bool,
}

/// An object that the watcher leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leave {
    pub(super) object: String,
    /// The number of repairs in a row.
    pub(super) repairs: u32,
    pub(super) until: Duration,
}

impl Backoff {
    /// Begins a look. `is_quiet`: there was no event for `STABLE`, and this look leaves nothing.
    pub(super) fn begin(&mut self, now: Duration, is_quiet: bool) {
        self.objects.retain(|_, repairs| repairs.is_left || now < repairs.last + STABLE);
        for repairs in self.objects.values_mut().filter(|_| is_quiet) {
            repairs.until = repairs.until.min(now);
        }
    }

    /// The names of the objects that a look at this time leaves: those of a plugin of an attachment, and shared ones.
    pub(super) fn leaves(
        &self,
        now: Duration,
        (network, at, plugin): (&NetworkName, &Attachment, &str),
    ) -> BTreeSet<String> {
        let mut left = BTreeSet::new();
        for (object, repairs) in &self.objects {
            let is_of = |(attachment, of): &(String, String)| {
                of == plugin && *attachment == at.title(network)
            };
            if now < repairs.until && object.owner.as_ref().is_none_or(is_of) {
                left.insert(object.name.clone());
            }
        }
        left
    }

    /// A look has ended: it tried to repair some objects, and left others. Returns the objects whose pause has begun with it.
    ///
    /// With a shared object of a plugin, such as a table, its objects of single attachments go, too. They are not counted then.
    pub(super) fn looked(&mut self, now: Duration, tried: &[Tried], left: &[Object]) -> Vec<Leave> {
        let shared = tried.iter().filter(|tried| tried.object.owner.is_none());
        let plugins: HashSet<&str> = shared.map(|tried| tried.plugin.as_str()).collect();
        let counts =
            |tried: &&Tried| tried.object.owner.is_none() || !plugins.contains(&*tried.plugin);
        let counted: HashSet<&Object> =
            tried.iter().filter(counts).map(|tried| &tried.object).collect();
        for object in counted {
            let repairs = self.objects.entry(object.clone()).or_insert(Repairs {
                count: 0,
                last: now,
                until: now,
                is_left: false,
            });
            repairs.count += 1;
            repairs.last = now;
            if let Some(paused) = repairs.count.checked_sub(AT_ONCE) {
                repairs.until = now + pause(paused);
            }
        }
        let left: HashSet<&Object> = left.iter().collect();
        let mut begun = Vec::new();
        for (object, repairs) in &mut self.objects {
            let was_left = std::mem::replace(&mut repairs.is_left, left.contains(object));
            if repairs.is_left && !was_left {
                begun.push(repairs.leave(object));
            }
        }
        begun
    }

    /// The objects that the last look left.
    pub(super) fn left(&self) -> Vec<Leave> {
        let is_left = self.objects.iter().filter(|(_, repairs)| repairs.is_left);
        let mut left: Vec<Leave> = is_left.map(|(object, repairs)| repairs.leave(object)).collect();
        left.sort_unstable_by(|one, other| one.object.cmp(&other.object));
        left
    }

    /// The end of the first pause of an object that the last look left.
    pub(super) fn next(&self) -> Option<Duration> {
        let is_left = self.objects.values().filter(|repairs| repairs.is_left);
        is_left.map(|repairs| repairs.until).min()
    }
}

impl Repairs {
    fn leave(&self, object: &Object) -> Leave {
        Leave { object: object.to_string(), repairs: self.count, until: self.until }
    }
}

impl Leave {
    pub(super) fn reason(&self) -> String {
        format!("{} repairs in a row did not last", self.repairs)
    }

    /// The remaining time in seconds, rounded up.
    pub(super) fn seconds(&self, now: Duration) -> u64 {
        self.until.saturating_sub(now).as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName};

    const MAP: &str = "masquerading is missing";
    const CHAIN: &str = "chain masquerade-srcnat of table ip cnibox";

    fn network() -> NetworkName {
        NetworkName::new("net").unwrap()
    }

    fn at(container: &str) -> Attachment {
        let ifname = IfName::new("eth0").unwrap();
        Attachment { container_id: ContainerId::new(container).unwrap(), ifname }
    }

    fn own(container: &str) -> Object {
        let owner = (at(container).title(&network()), "bridge".to_owned());
        Object { owner: Some(owner), name: MAP.into() }
    }

    fn shared() -> Object {
        Object { owner: None, name: CHAIN.into() }
    }

    /// A look at this time, at which these objects are missing. Returns those that it repairs.
    fn look(backoff: &mut Backoff, ms: u64, missing: &[Object], is_quiet: bool) -> Vec<Object> {
        let now = Duration::from_millis(ms);
        backoff.begin(now, is_quiet);
        let is_left = |object: &&Object| {
            let container = if **object == own("c2") { "c2" } else { "c1" };
            backoff.leaves(now, (&network(), &at(container), "bridge")).contains(&object.name)
        };
        let (left, tried): (Vec<_>, Vec<_>) = missing.iter().partition(is_left);
        let tried: Vec<Object> = tried.into_iter().cloned().collect();
        let left: Vec<Object> = left.into_iter().cloned().collect();
        let of_bridge = |object: &Object| Tried { object: object.clone(), plugin: "bridge".into() };
        backoff.looked(now, &tried.iter().map(of_bridge).collect::<Vec<_>>(), &left);
        tried
    }

    #[test]
    fn the_pause_doubles_and_ends_at_a_minute() {
        let mut backoff = Backoff::default();
        let mut repairs = Vec::new();
        for ms in (0..200_000).step_by(100) {
            if !look(&mut backoff, ms, &[shared()], false).is_empty() {
                repairs.push(ms / 100);
            }
        }
        assert_eq!(repairs, [0, 1, 2, 3, 4, 14, 34, 74, 154, 314, 634, 1234, 1834]);
    }

    #[test]
    fn an_object_that_stayed_is_forgotten() {
        let mut backoff = Backoff::default();
        for count in 0..50 {
            let repaired = look(&mut backoff, count * 10_000, &[shared()], false);
            assert_eq!(repaired, [shared()]);
        }
        assert_eq!(backoff.left(), []);
    }

    #[test]
    fn an_object_of_one_attachment_pauses_alone() {
        let mut backoff = Backoff::default();
        for ms in 0..5 {
            assert_eq!(look(&mut backoff, ms, &[own("c1")], false), [own("c1")]);
        }
        assert_eq!(look(&mut backoff, 5, &[own("c1"), own("c2")], false), [own("c2")]);
        assert_eq!(look(&mut backoff, 6, &[own("c1"), shared()], false), [shared()]);
    }

    #[test]
    fn a_shared_object_counts_once_for_all_attachments() {
        let mut backoff = Backoff::default();
        let all = [shared(), own("c1"), own("c2"), shared()];
        for ms in 0..5 {
            assert_eq!(look(&mut backoff, ms, &all, false), all);
        }
        let repaired = look(&mut backoff, 5, &all, false);
        assert_eq!(repaired, [own("c1"), own("c2")], "they were not counted before");
        let left = backoff.left();
        assert_eq!(left.len(), 1);
        assert_eq!((&*left[0].object, left[0].repairs), (CHAIN, 5));
    }

    #[test]
    fn all_is_repaired_once_when_it_is_quiet() {
        let mut backoff = Backoff::default();
        for ms in (0..40_000).step_by(100) {
            look(&mut backoff, ms, &[shared(), own("c1")], false);
        }
        assert!(backoff.next().is_some_and(|next| next > Duration::from_secs(50)));
        let all = [shared(), own("c1")];
        assert_eq!(look(&mut backoff, 50_000, &all, true), all);
        assert_eq!(look(&mut backoff, 50_100, &[shared()], false), []);
        assert_eq!(look(&mut backoff, 50_200, &[], false), []);
        assert_eq!(backoff.next(), None, "another program has repaired it");
        assert_eq!(look(&mut backoff, 60_200, &[shared()], false), [shared()]);
    }

    #[test]
    fn the_begin_of_a_pause_is_noted_once() {
        let mut backoff = Backoff::default();
        let now = Duration::from_secs(1);
        let tried = [Tried { object: shared(), plugin: "bridge".into() }];
        for _ in 0..5 {
            assert_eq!(backoff.looked(now, &tried, &[]), []);
        }
        let begun = backoff.looked(now, &[], &[shared()]);
        assert_eq!(begun.len(), 1);
        assert_eq!(begun[0].seconds(now + Duration::from_millis(1)), 1);
        assert_eq!(backoff.looked(now, &[], &[shared()]), []);
    }
}
