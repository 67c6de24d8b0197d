//! Compares the store with a model, for random sequences of calls of cnibox and the Go plugin, changes without the lock,
//! damage, restored backups and reboots.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::{TempDir, attachment};
use crate::cni::json::Json;
use crate::ipam::range::{self, RangeSet};
use crate::ipam::store::*;
use crate::ipam::{AllocationRequest, StaleOnBoot, allocate, check_not_exhausted};

const IDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Small sets, which are exhausted sometimes; with an exclusion, and two ranges in one set.
const SETS: &str = r#"[
    [{"subnet":"10.0.0.0/29","exclude":["10.0.0.4"]},{"subnet":"10.0.1.0/30"}],
    [{"subnet":"fd00::/64","rangeStart":"fd00::fe","rangeEnd":"fd00::103"}]]"#;

/// Texts in place of that of an owner; the empty one removes it.
const TEXTS: [&str; 4] = ["", "no text of ours", "10.0.0.2 1 0", "10.0.0.2 1 0 fd00::100 1"];

#[derive(Clone, Debug)]
enum Op {
    Add {
        id: usize,
        sets: usize,
        requested: Option<u8>,
        stale_on_boot: StaleOnBoot,
    },
    Del(usize),
    Check(usize),
    Gc(u8),
    Status(usize),
    GoAdd(usize),
    GoDel(usize),
    /// Writes a reservation without the lock.
    Write {
        address: u8,
        id: usize,
    },
    WriteIncomplete(u8),
    Remove(u8),
    RemoveOwners,
    /// Removes the text of an owner, or exchanges it.
    Damage {
        id: usize,
        text: &'static str,
    },
    SaveOwners,
    RestoreOwners,
    Save,
    /// Restores the directory of some seconds ago with its times. If `keeps_newer`, newer files stay.
    Restore {
        keeps_newer: bool,
    },
    Reboot,
}

fn op() -> impl Strategy<Value = Op> {
    let id = || 0..IDS.len();
    let stale = prop_oneof![Just(StaleOnBoot::Reclaim), Just(StaleOnBoot::Keep)];
    let requested = prop::option::weighted(0.2, any::<u8>());
    let add =
        (id(), 1..3usize, requested, stale).prop_map(|(id, sets, requested, stale_on_boot)| {
            Op::Add { id, sets, requested, stale_on_boot }
        });
    prop_oneof![
        12 => add,
        8 => id().prop_map(Op::Del),
        4 => id().prop_map(Op::Check),
        2 => any::<u8>().prop_map(Op::Gc),
        2 => (0..2usize).prop_map(Op::Status),
        4 => id().prop_map(Op::GoAdd),
        3 => id().prop_map(Op::GoDel),
        2 => (any::<u8>(), id()).prop_map(|(address, id)| Op::Write { address, id }),
        1 => any::<u8>().prop_map(Op::WriteIncomplete),
        3 => any::<u8>().prop_map(Op::Remove),
        1 => Just(Op::RemoveOwners),
        4 => (id(), prop::sample::select(&TEXTS[..]))
            .prop_map(|(id, text)| Op::Damage { id, text }),
        2 => Just(Op::SaveOwners),
        2 => Just(Op::RestoreOwners),
        2 => Just(Op::Save),
        2 => any::<bool>().prop_map(|keeps_newer| Op::Restore { keeps_newer }),
        1 => Just(Op::Reboot),
    ]
}

/// The reservations: the owner, `None` for an incomplete file, and the boot since which the address may be in use.
type Model = BTreeMap<IpAddr, (Option<String>, u64)>;

struct World {
    dir: TempDir,
    sets: Vec<RangeSet>,
    model: Model,
    last: [Option<IpAddr>; 2],
    boot: u64,
    saved_owners: Vec<(PathBuf, PathBuf)>,
    saved: Option<(Model, SystemTime)>,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new();
        dir.write("lock", "");
        let sets = Json::parse(SETS.as_bytes()).unwrap().read::<Vec<_>>("ranges").unwrap();
        let sets = range::parse(&sets, &[]).unwrap();
        let (last, saved_owners) = ([None; 2], Vec::new());
        Self { dir, sets, model: Model::new(), last, boot: 1, saved_owners, saved: None }
    }

    fn path(&self, ip: IpAddr) -> PathBuf {
        self.dir.network_dir().join(ip.to_string())
    }

    fn owners(&self) -> PathBuf {
        self.dir.path().join(".cnibox/net~owners")
    }

    fn locked<T>(&self, f: impl FnMut(&mut Locked<'_>) -> Result<T>) -> Result<T> {
        let mut store = self.dir.store();
        store.paths.owners.boot = Some(self.boot);
        store.locked(f)
    }

    /// An address of the sets, in the order of allocation, with the gateways.
    fn address(&self, n: u8) -> IpAddr {
        let all = [
            "10.0.0.1",
            "10.0.0.2",
            "10.0.0.3",
            "10.0.0.4",
            "10.0.0.5",
            "10.0.0.6",
            "10.0.1.2",
            "fd00::fe",
            "fd00::ff",
            "fd00::100",
            "fd00::101",
            "fd00::102",
            "fd00::103",
            "10.9.9.9",
        ];
        all[usize::from(n) % all.len()].parse().unwrap()
    }

    fn is_free(&self, ip: IpAddr) -> bool {
        self.model.get(&ip).is_none_or(|(owner, _)| owner.is_none())
    }

    /// The address of a set that the next ADD gets.
    fn next(&self, set: usize) -> Option<IpAddr> {
        let candidates: Vec<IpAddr> = (0..14)
            .map(|n| self.address(n))
            .filter(|ip| self.sets[set].may_allocate(*ip))
            .collect();
        let behind = |last| candidates.iter().position(|ip| *ip > last);
        let start = self.last[set].and_then(behind).unwrap_or(0);
        let (after, before) = (&candidates[start..], &candidates[..start]);
        after.iter().chain(before).copied().find(|ip| self.is_free(*ip))
    }

    fn held(&self, id: &str) -> Vec<IpAddr> {
        let of = |wanted: &str| -> Vec<IpAddr> {
            let owned =
                self.model.iter().filter(|(_, (owner, _))| owner.as_deref() == Some(wanted));
            owned.map(|(ip, _)| *ip).collect()
        };
        match of(&format!("{id}\r\neth0")) {
            none if none.is_empty() => of(id),
            held => held,
        }
    }

    /// Asserts that the directory matches the model.
    fn compare(&self) {
        let mut found = BTreeMap::new();
        for name in self.dir.names() {
            if let Ok(ip) = name.parse::<IpAddr>() {
                found.insert(ip, self.dir.read(&name));
            } else {
                assert!(name == "lock" || name.starts_with("last_reserved_ip."), "{name}");
            }
        }
        let text = |(ip, (owner, _)): (&IpAddr, &(Option<String>, u64))| {
            (*ip, owner.clone().unwrap_or_default())
        };
        assert_eq!(found, self.model.iter().map(text).collect());
    }

    fn add(&mut self, id: usize, count: usize, requested: Option<u8>, stale_on_boot: StaleOnBoot) {
        let id = IDS[id];
        let sets = &self.sets[..count];
        let requested: Vec<IpAddr> = requested
            .map(|n| self.address(n))
            .filter(|ip| sets.iter().any(|set| set.may_allocate(*ip)))
            .into_iter()
            .collect();
        let request = AllocationRequest {
            sets,
            requested: &requested,
            sticky: None,
            stale_on_boot,
            is_in_use: &|_| false,
        };
        let got = self.locked(|locked| allocate(locked, &request, &attachment(id)));
        let is_of_sets = |ip: &IpAddr| sets.iter().any(|set| set.range_of(*ip).is_some());
        let duplicates: Vec<IpAddr> = self.held(id).into_iter().filter(is_of_sets).collect();
        let may_reclaim = stale_on_boot == StaleOnBoot::Reclaim;
        let before = self.model.clone();
        if may_reclaim {
            // A missing file was of an earlier boot. Other tests decide whether it had to be released.
            let (dir, boot) = (&self.dir, self.boot);
            let exists = |ip: &IpAddr| dir.network_dir().join(ip.to_string()).exists();
            self.model.retain(|ip, (_, since)| *since >= boot || exists(ip));
        }
        let is_reclaimed = self.model.len() < before.len();
        match got {
            Ok(allocated) => {
                let may_go = |ip: &&IpAddr| may_reclaim && before[*ip].1 < self.boot;
                let duplicate = duplicates.iter().find(|ip| !may_go(ip));
                assert_eq!(duplicate, None, "{id} has an address");
                for (set, allocated) in allocated.iter().enumerate() {
                    let ip = allocated.address.addr();
                    let wanted =
                        requested.iter().copied().find(|ip| self.sets[set].may_allocate(*ip));
                    let expected = wanted.or_else(|| self.next(set));
                    if !is_reclaimed && duplicates.is_empty() {
                        assert_eq!(ip, expected.unwrap_or(ip));
                    }
                    let old = before.get(&ip);
                    let was_free = old.is_none_or(|(owner, since)| {
                        owner.is_none() || may_reclaim && *since < self.boot
                    });
                    assert!(was_free, "{ip} was taken by {old:?}");
                    self.model.insert(ip, (Some(format!("{id}\r\neth0")), self.boot));
                    self.last[set] = Some(ip);
                }
                assert_eq!(allocated.len(), count);
            }
            Err(error) => {
                let wanted = |set: usize| {
                    let wanted =
                        requested.iter().copied().find(|ip| self.sets[set].may_allocate(*ip));
                    wanted.map_or_else(
                        || self.next(set),
                        |ip| Some(ip).filter(|ip| self.is_free(*ip)),
                    )
                };
                let wanted: Vec<Option<IpAddr>> = (0..count).map(wanted).collect();
                let lacks = wanted.iter().position(Option::is_none);
                assert!(!duplicates.is_empty() || lacks.is_some(), "{error}");
                if duplicates.is_empty() {
                    // The earlier sets have new positions, and an incomplete file in them was replaced and released.
                    for (set, ip) in wanted.into_iter().take(lacks.unwrap_or_default()).enumerate()
                    {
                        self.last[set] = ip;
                        self.model.remove(&ip.unwrap());
                    }
                } else {
                    self.read_positions(count);
                }
            }
        }
    }

    /// After an ADD that failed: if it reclaimed its own addresses of an earlier boot, sets have new positions, and
    /// incomplete files in them were replaced and released.
    fn read_positions(&mut self, count: usize) {
        for set in 0..count {
            let name = format!("last_reserved_ip.{set}");
            if self.dir.names().contains(&name) {
                self.last[set] = self.dir.read(&name).parse().ok();
            }
        }
        let dir = &self.dir;
        let exists = |ip: &IpAddr| dir.network_dir().join(ip.to_string()).exists();
        self.model.retain(|ip, (owner, _)| owner.is_some() || exists(ip));
    }

    /// The ADD of the Go plugin, for the first set.
    fn go_add(&mut self, id: usize) {
        let lock = File::open(self.dir.network_dir().join("lock")).unwrap();
        lock.lock().unwrap();
        let is_taken = |ip: &IpAddr| self.model.contains_key(ip);
        let mut free = (0..7).map(|n| self.address(n)).filter(|ip| self.sets[0].may_allocate(*ip));
        if let Some(ip) = free.rfind(|ip| !is_taken(ip)) {
            let content = format!("{}\r\neth0", IDS[id]);
            fs::write(self.path(ip), &content).unwrap();
            self.dir.write("last_reserved_ip.0", &ip.to_string());
            self.model.insert(ip, (Some(content), self.boot));
            self.last[0] = Some(ip);
        }
    }

    fn go_del(&mut self, id: usize) {
        let lock = File::open(self.dir.network_dir().join("lock")).unwrap();
        lock.lock().unwrap();
        for ip in self.held(IDS[id]) {
            fs::remove_file(self.path(ip)).unwrap();
            self.model.remove(&ip);
        }
    }

    /// Writes a new file.
    fn write(&mut self, ip: IpAddr, owner: Option<String>) {
        if !self.model.contains_key(&ip) {
            fs::write(self.path(ip), owner.clone().unwrap_or_default()).unwrap();
            self.model.insert(ip, (owner, self.boot));
        }
    }

    fn restore(&mut self, keeps_newer: bool) {
        let Some((saved, modified)) = self.saved.clone() else { return };
        if !keeps_newer {
            for ip in self.model.keys() {
                fs::remove_file(self.path(*ip)).unwrap();
            }
            self.model.clear();
        }
        for (ip, (owner, _)) in saved {
            // A restore replaces the file.
            let aside = self.dir.path().join("restored");
            fs::write(&aside, owner.clone().unwrap_or_default()).unwrap();
            fs::rename(aside, self.path(ip)).unwrap();
            self.model.insert(ip, (owner, self.boot));
        }
        let modified = modified - Duration::from_secs(10);
        File::open(self.dir.network_dir()).unwrap().set_modified(modified).unwrap();
    }

    /// Makes a symbolic link in place of the one of an owner.
    fn exchange(&self, path: &Path, text: &Path) {
        let _ = fs::remove_file(path);
        if !text.as_os_str().is_empty() && self.owners().is_dir() {
            symlink(text, path).unwrap();
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Add { id, sets, requested, stale_on_boot } => {
                self.add(id, sets, requested, stale_on_boot)
            }
            Op::Del(id) => {
                self.locked(|locked| locked.release(&attachment(IDS[id]))).unwrap();
                self.held(IDS[id]).iter().for_each(|ip| drop(self.model.remove(ip)));
            }
            Op::Check(id) => {
                let held = self.locked(|locked| locked.held_by(&attachment(IDS[id])));
                assert_eq!(held.unwrap(), self.held(IDS[id]));
            }
            Op::Gc(mask) => {
                let kept: Vec<&str> =
                    (0..IDS.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| IDS[bit]).collect();
                let keep: Vec<_> = kept.iter().map(|id| attachment(id)).collect();
                self.locked(|locked| locked.keep_only(&keep)).unwrap();
                let is_kept =
                    |owner: &String| kept.iter().any(|id| owner.split("\r\n").next() == Some(id));
                self.model.retain(|_, (owner, _)| owner.as_ref().is_some_and(is_kept));
            }
            Op::Status(set) => {
                let status = self.locked(|locked| {
                    check_not_exhausted(locked, (set, &self.sets[set]), StaleOnBoot::Keep, &|_| {
                        false
                    })
                });
                assert_eq!(status.is_ok(), self.next(set).is_some());
            }
            Op::GoAdd(id) => self.go_add(id),
            Op::GoDel(id) => self.go_del(id),
            Op::Write { address, id } => {
                // Half of the files have the format of an old release of the reference.
                let end = if address % 2 == 0 { "\r\neth0" } else { "" };
                self.write(self.address(address), Some(format!("{}{end}", IDS[id])));
            }
            Op::WriteIncomplete(address) => self.write(self.address(address), None),
            Op::Remove(address) => {
                let ip = self.address(address);
                if self.model.remove(&ip).is_some() {
                    fs::remove_file(self.path(ip)).unwrap();
                }
            }
            Op::RemoveOwners => drop(fs::remove_dir_all(self.owners())),
            Op::Damage { id, text } => {
                let path = self.owners().join(format!("{}+eth0", IDS[id]));
                self.exchange(&path, Path::new(text));
            }
            Op::SaveOwners => {
                let found = fs::read_dir(self.owners()).into_iter().flatten();
                let paths = found.map(|entry| entry.unwrap().path());
                self.saved_owners =
                    paths.map(|path| (fs::read_link(&path).unwrap(), path)).collect();
            }
            Op::RestoreOwners => {
                self.saved_owners.iter().for_each(|(text, path)| self.exchange(path, text));
            }
            Op::Save => {
                let metadata = fs::metadata(self.dir.network_dir()).unwrap();
                self.saved = Some((self.model.clone(), metadata.modified().unwrap()));
            }
            Op::Restore { keeps_newer } => self.restore(keeps_newer),
            Op::Reboot => self.boot += 1,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_matches_the_model(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
            world.compare();
        }
        for id in 0..IDS.len() {
            world.run(Op::Check(id));
        }
    }
}

/// An ADD that fails after it reclaimed its own address of an earlier boot changes the position of the first set.
#[test]
fn a_failing_add_after_a_reclaim_is_modelled() {
    let add =
        |id, sets, requested| Op::Add { id, sets, requested, stale_on_boot: StaleOnBoot::Reclaim };
    let mut world = World::new();
    for op in [
        Op::GoAdd(5),
        add(0, 2, None),
        Op::Status(0),
        Op::Reboot,
        add(0, 1, None),
        add(1, 2, None),
        add(5, 2, Some(190)),
        add(0, 1, None),
        add(2, 1, None),
    ] {
        world.run(op);
        world.compare();
    }
}
