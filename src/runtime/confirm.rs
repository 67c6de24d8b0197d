//! The file of `gc --confirm`: the objects that earlier runs found. GC removes an object only after two runs, at least 10
//! minutes apart, found it with the same proof, and so did all runs between them. So a proof that is wrong for a short time
//! removes nothing.
//!
//! Times are seconds of CLOCK_BOOTTIME, because the wall clock can be set. They are valid in one boot. A missing, damaged or
//! old file is no error: the run counts as the first one.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::error::{Error, Result};
use crate::kernel::{boot, clock, file};
use crate::runtime::cache;

/// The minimum time between the first run that found an object and the run that removes it, in seconds.
const INTERVAL_MIN_S: u64 = 600;

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct ConfirmFile {
    boot: String,
    /// The time of the last run, in seconds since boot.
    run: i64,
    found: Vec<Candidate>,
}

/// An object that a run would remove.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Candidate {
    /// The name of the object's network. Empty for an object that every run examines, also a run for another network.
    pub(super) network: String,
    /// The object as text. It identifies the object.
    pub(super) object: String,
    /// A text that differs for a later object with the same `object`.
    pub(super) incarnation: String,
    pub(super) proof: String,
    /// The time of the first run since which every run found the object, in seconds since boot.
    since: i64,
}

impl Candidate {
    pub(super) fn new(network: &str, object: String, incarnation: String, proof: &str) -> Self {
        Self { network: network.into(), object, incarnation, proof: proof.into(), since: 0 }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.network, &self.object, &self.incarnation, &self.proof)
            == (&other.network, &other.object, &other.incarnation, &other.proof)
    }
}

/// The objects of earlier runs and of the current run.
#[derive(Debug)]
pub(super) struct Confirmation {
    path: PathBuf,
    boot: String,
    /// The time of the current run, in seconds since boot.
    now: i64,
    /// The objects of earlier runs, sorted by `object`.
    earlier: Vec<Candidate>,
    found: Vec<Candidate>,
}

impl Confirmation {
    pub(super) fn open(path: PathBuf) -> Self {
        // Without /proc there is no boot id. There is no view of the host either, so GC removes nothing.
        let boot = boot::id().unwrap_or_default().to_owned();
        Self::at(path, boot, now())
    }

    fn at(path: PathBuf, boot: String, now: i64) -> Self {
        let saved = ConfirmFile::read(&path, &boot, now);
        let mut earlier = saved.map_or_else(Vec::new, |saved| saved.found);
        earlier.sort_unstable_by(|one, other| one.object.cmp(&other.object));
        Self { path, boot, now, earlier, found: Vec::new() }
    }

    /// Adds an object to the current run. Returns the seconds until a run may remove the object; 0 if this run may.
    pub(super) fn seconds_until_confirmed(&mut self, found: Candidate) -> u64 {
        let start = self.earlier.partition_point(|earlier| earlier.object < found.object);
        let mut of_object =
            self.earlier[start..].iter().take_while(|earlier| earlier.object == found.object);
        let earlier = of_object.find(|earlier| earlier.is_same(&found));
        let since = earlier.map_or(self.now, |earlier| earlier.since);
        self.found.push(Candidate { since, ..found });
        INTERVAL_MIN_S.saturating_sub_signed(self.now.saturating_sub(since))
    }

    /// Drops an object from the current run, because GC removes the object. A later object with its name must be found by two
    /// runs again.
    pub(super) fn remove(&mut self, object: &str) {
        // The last one: the objects of several directories can have one name, and GC removes an object soon after it is found.
        if let Some(at) = self.found.iter().rposition(|found| found.object == object) {
            self.found.remove(at);
        }
    }

    /// Writes the file at the end of a run. A run for one network keeps the earlier objects of other networks.
    pub(super) fn write(mut self, network: Option<&str>) -> Result<()> {
        if let Some(network) = network {
            let is_of_other =
                |found: &Candidate| !found.network.is_empty() && found.network != network;
            self.found.extend(self.earlier.into_iter().filter(is_of_other));
        }
        let saved = ConfirmFile { boot: self.boot, run: self.now, found: self.found };
        cache::replace(&self.path, json::compact(&saved).as_bytes())
    }
}

impl ConfirmFile {
    /// Reads the file. `None` if it is missing, damaged, of another boot, or has a time in the future.
    fn read(path: &Path, boot: &str, now: i64) -> Option<Self> {
        Self::parse(&file::read(path).ok()?, boot, now)
    }

    fn parse(content: &[u8], boot: &str, now: i64) -> Option<Self> {
        let saved: Self = json::read(content).ok()?;
        // A time in the future comes from another time namespace.
        let is_past = saved.run <= now && saved.found.iter().all(|found| found.since <= saved.run);
        (!boot.is_empty() && saved.boot == boot && is_past).then_some(saved)
    }
}

/// The seconds since the last run. `None` if there was none in this boot.
pub(super) fn seconds_since_last_run(path: &Path) -> Result<Option<u64>> {
    let (now, boot) = (now(), boot::id().unwrap_or_default());
    let content = file::found(file::read(path)).map_err(Error::of_file("read", path))?;
    let saved = content.and_then(|content| ConfirmFile::parse(&content, boot, now));
    Ok(saved.and_then(|saved| now.checked_sub(saved.run)?.try_into().ok()))
}

/// The current time, in seconds since boot.
fn now() -> i64 {
    i64::try_from(clock::since_boot().as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::cache::tests::Scratch;

    const BOOT: &str = "b";

    fn found(object: &str, incarnation: &str, proof: &str) -> Candidate {
        Candidate::new("net", object.into(), incarnation.into(), proof)
    }

    /// For a run that finds these objects: the result of `seconds_until_confirmed` for each.
    fn run(path: &Path, boot: &str, now: i64, objects: &[Candidate]) -> Vec<u64> {
        let mut run = Confirmation::at(path.into(), boot.into(), now);
        let waits =
            objects.iter().map(|object| run.seconds_until_confirmed(object.clone())).collect();
        run.write(None).unwrap();
        waits
    }

    #[test]
    fn two_runs_far_enough_apart_agree() {
        let dir = Scratch::new();
        let path = dir.path().join("confirm");
        let objects = [found("b", "1", "p"), found("a", "1", "p")];
        assert_eq!(run(&path, BOOT, 1000, &objects), [600, 600]);
        assert_eq!(run(&path, BOOT, 1599, &objects), [1, 1]);
        assert_eq!(run(&path, BOOT, 1600, &objects), [0, 0]);
    }

    #[test]
    fn a_change_of_the_object_or_of_its_proof_starts_again() {
        for changed in [found("a", "2", "p"), found("a", "1", "q"), found("c", "1", "p")] {
            let dir = Scratch::new();
            let path = dir.path().join("confirm");
            run(&path, BOOT, 1000, &[found("a", "1", "p")]);
            assert_eq!(run(&path, BOOT, 2000, std::slice::from_ref(&changed)), [600]);
            assert_eq!(run(&path, BOOT, 2600, &[changed, found("a", "1", "p")])[0], 0);
        }
    }

    #[test]
    fn a_run_that_does_not_find_the_object_starts_again() {
        let dir = Scratch::new();
        let path = dir.path().join("confirm");
        let object = [found("a", "1", "p")];
        run(&path, BOOT, 1000, &object);
        run(&path, BOOT, 1300, &[]);
        assert_eq!(run(&path, BOOT, 1600, &object), [600]);
        // The object is removed, and a later object has its name.
        let mut last = Confirmation::at(path.clone(), BOOT.into(), 2200);
        assert_eq!(last.seconds_until_confirmed(object[0].clone()), 0);
        last.remove("a");
        last.write(None).unwrap();
        assert_eq!(run(&path, BOOT, 2800, &object), [600]);
    }

    #[test]
    fn a_run_of_one_network_keeps_what_others_have_found() {
        let dir = Scratch::new();
        let path = dir.path().join("confirm");
        let other = Candidate { network: "other".into(), ..found("o", "1", "p") };
        let of_all = Candidate { network: String::new(), ..found("n", "1", "p") };
        let objects = [found("a", "1", "p"), other, of_all];
        run(&path, BOOT, 1000, &objects);
        Confirmation::at(path.clone(), BOOT.into(), 1100).write(Some("net")).unwrap();
        assert_eq!(run(&path, BOOT, 1600, &objects), [600, 0, 600]);
    }

    #[test]
    fn a_damaged_file_or_one_of_another_boot_is_ignored() {
        let dir = Scratch::new();
        let path = dir.path().join("confirm");
        let object = [found("a", "1", "p")];
        for (boot, now, text) in [
            ("another", 2000, None),
            ("", 2000, None),
            (BOOT, 999, None),
            (BOOT, 2000, Some("")),
            (BOOT, 2000, Some("{\"boot\":\"b\",\"run\":1000,\"found\":[{}]}")),
            (BOOT, 2000, Some("{\"boot\":\"b\",\"run\":1000,\"found\":null")),
        ] {
            run(&path, if boot.is_empty() { "" } else { BOOT }, 1000, &object);
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            assert_eq!(run(&path, boot, now, &object), [600], "{boot} {now} {text:?}");
        }
    }
}
