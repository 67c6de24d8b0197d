//! The journal: one file per lease, so that the next daemon can adopt the lease.
//!
//! ```text
//! /run/cnibox/dhcp/run-cni-dhcp.sock/      of the daemon at the socket /run/cni/dhcp.sock, which holds a flock(2) on it
//!     lan:c1:eth0.lease                    a lease, and all that its renewal needs
//!     lan:c1:eth0.released                 a mark, empty: the next daemon releases the lease
//! ```
//!
//! Only the daemon writes leases. A DEL or GC writes a mark while no daemon runs; the daemon writes one before it sends a
//! RELEASE. A file is written under a temporary name and renamed, so a crash leaves no incomplete file. Times are since boot,
//! so the files of an earlier boot are stale.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::dhcp::lease::{Key, Leases, v4, v6};
use crate::dhcp::protocol::LeaseRequest;
use crate::error::{Code, Error, Result};
use crate::kernel::flock;
use crate::kernel::sys::{self, warn};
use crate::kernel::{boot, file};
use crate::names::{Attachment, Mac, NetworkName};
use crate::steps::state;

/// The directory with the journals of all daemons.
const DIRECTORY: &str = "/run/cnibox/dhcp";
const LEASE: &str = ".lease";
const RELEASED: &str = ".released";

/// A lease with all that the daemon needs to adopt it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRecord {
    #[serde(flatten)]
    pub request: LeaseRequest,
    /// Device and inode of the container's namespace.
    #[serde(rename = "netnsID")]
    pub netns_id: (u64, u64),
    /// The cookie of the container's namespace: a later namespace can have the same inode. `None` before Linux 5.14, and in the
    /// records of releases up to 0.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_cookie: Option<u64>,
    /// The index of the interface in the namespace.
    pub ifindex: u32,
    pub mac: Mac,
    /// The link of the host that the RELEASE is sent on when the container's link is gone: a bridge or a master.
    #[serde(flatten)]
    pub uplink: Option<Uplink>,
    #[serde(flatten)]
    pub leases: Leases,
    /// The subnets of the first leases, one for each family. `subnets` in the file are those of the network.
    #[serde(rename = "firstSubnets", default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<IpNet>,
    /// Earlier leases whose addresses the interface, the rules of the host or the cache entry can still have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_v4: Vec<v4::Lease>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_v6: Vec<v6::Lease>,
    /// A DEL came while no daemon ran: the daemon sends the RELEASE when it starts. `save` does not write it; `mark` does.
    #[serde(skip)]
    pub is_released: bool,
}

/// The content of a lease file.
#[derive(Serialize, Deserialize)]
struct JournalFile<R> {
    boot: String,
    #[serde(flatten)]
    record: R,
}

/// A record in the list of leases, with its state.
#[derive(Serialize)]
pub struct Listed {
    #[serde(flatten)]
    pub record: LeaseRecord,
    pub state: &'static str,
}

/// The most former leases that are kept for a family. The first one and the newest ones are kept: rules that were never
/// updated have the address of the first one, and the interface has that of the last.
const FORMER_MAX: usize = 8;

impl LeaseRecord {
    /// Whether the namespace with this device and inode, and this cookie, is that of the record. A cookie is compared only if
    /// both are known.
    pub fn is_in(&self, netns_id: (u64, u64), cookie: Option<u64>) -> bool {
        let is_same = |(recorded, found)| recorded == found;
        self.netns_id == netns_id && self.netns_cookie.zip(cookie).is_none_or(is_same)
    }

    /// Whether both records are for the same link.
    pub fn has_link_of(&self, other: &Self) -> bool {
        let link = |record: &Self| (record.ifindex, record.mac);
        link(self) == link(other) && self.is_in(other.netns_id, other.netns_cookie)
    }

    /// The addresses of the former leases, those of IPv6 with the prefix length 128.
    pub fn former_nets(&self) -> impl Iterator<Item = IpNet> {
        let v4 = self.former_v4.iter().map(|lease| IpNet::V4(lease.address));
        v4.chain(self.former_v6.iter().map(|lease| IpNet::V6(lease.address.into())))
    }

    /// The addresses of the leases and of the former leases: the interface can have any of them.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let nets = [self.leases.v4_net(), self.leases.v6_net()].into_iter().flatten();
        nets.chain(self.former_nets()).map(|net| net.addr()).collect()
    }

    /// Whether the record is enough for the result of ADD: it has a lease of each family, and no SLAAC is configured, whose
    /// addresses are not recorded.
    pub fn is_complete(&self) -> bool {
        let families = &self.request.settings.families;
        let has_v4 = !families.v4 || self.leases.v4.is_some();
        has_v4 && (!families.v6 || self.leases.v6.is_some()) && !families.slaac
    }

    /// Adds the leases of `old` that `new` replaces to the former leases.
    pub fn keep_former(&mut self, old: Leases, new: &Leases) {
        fn keep<L: PartialEq>(
            former: &mut Vec<L>,
            old: Option<L>,
            new: &Option<L>,
            terms: fn(&L) -> L,
        ) {
            let is_kept =
                |old: &L| former.iter().chain(new).any(|lease| terms(lease) == terms(old));
            let Some(old) = old.filter(|old| !is_kept(old)) else { return };
            if former.len() == FORMER_MAX {
                former.remove(1);
            }
            former.push(old);
        }
        keep(&mut self.former_v4, old.v4, &new.v4, v4::Lease::terms);
        keep(&mut self.former_v6, old.v6, &new.v6, v6::Lease::terms);
    }

    /// Removes the former leases: the interface, the rules and the cache entry now have the current leases. Without a lease of
    /// a family, its former leases stay: the rules still have their addresses.
    pub fn forget_former(&mut self) {
        self.former_v4.retain(|_| self.leases.v4.is_none());
        self.former_v6.retain(|_| self.leases.v6.is_none());
    }
}

/// The link of the host that leads to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// A bridge, or the master of the container's link.
    #[serde(rename = "uplink")]
    pub link: String,
    /// The VLAN of the container; 0 for none.
    pub vlan: u16,
}

/// The directory of one daemon's leases.
#[derive(Debug)]
pub struct Journal {
    directory: String,
}

impl Journal {
    /// The journal of the daemon at a socket. `prefix` is put in front of the path of the journal (flag `-hostprefix`).
    /// Creates nothing.
    pub fn of(prefix: &Path, socket: &Path) -> Self {
        let prefix = prefix.to_string_lossy();
        let name = socket.to_string_lossy();
        // /var/run is a link to /run: two spellings of one path have one journal.
        let name =
            name.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(&name);
        // `-` and `/` of the path must stay distinct: they become `--` and `-`.
        let name = name.trim_start_matches('/').replace('-', "--").replace('/', "-");
        Self { directory: format!("{}{DIRECTORY}/{name}", prefix.trim_end_matches('/')) }
    }

    /// The directory of the journal. The daemon also writes its log there.
    pub fn directory(&self) -> &Path {
        Path::new(&self.directory)
    }

    /// Creates the directory and locks it: only the process that holds the lock writes leases. The lock ends with the returned
    /// file. Returns `None` if another process holds the lock until the timeout.
    pub fn lock(&self, timeout: Duration) -> Result<Option<File>> {
        let doing = format_args!("cannot lock {}", self.directory);
        let locked = flock::lock_directory(self.directory(), 0o700, timeout);
        let (file, is_locked) = locked.map_err(sys::failed_with(Code::IO, doing))?;
        Ok(is_locked.then_some(file))
    }

    /// A text for errors that names the process that holds the lock.
    pub fn holder(&self) -> String {
        let file = File::open(&self.directory);
        file.map_or_else(|_| "another process holds it".into(), |file| file::holder(&file))
    }

    /// Writes the file of a lease, and replaces an existing one.
    pub fn save(&self, record: &LeaseRecord) -> Result<()> {
        let content = json::compact(&JournalFile { boot: boot()?.to_owned(), record });
        self.file(&record.request.key, LEASE).write(content.as_bytes())
    }

    /// Removes the file of a lease, and its mark. Idempotent: succeeds if they do not exist.
    pub fn remove(&self, key: &Key) -> Result<()> {
        // Remove the lease first. After a crash, a mark without a lease has no effect, but a lease without a mark is adopted.
        self.file(key, LEASE).remove().and_then(|()| self.file(key, RELEASED).remove())
    }

    /// Reads the lease of an attachment. `None` if it has no file, or if the file is of an earlier boot.
    pub fn read(&self, key: &Key) -> Result<Option<LeaseRecord>> {
        let file = self.file(key, LEASE);
        let Some(content) = file.read()?.transpose()? else { return Ok(None) };
        let record = read_record(&content, boot()?).map_err(|error| file.damaged(error))?;
        let record = record.filter(|record| record.request.key == *key);
        record.map(|record| self.with_mark(record)).transpose()
    }

    /// Marks a lease: the next daemon sends its RELEASE. Returns false if there is no such lease. A file that cannot be read can
    /// be a lease, for example of a later release.
    pub fn mark(&self, key: &Key) -> Result<bool> {
        let exists = !matches!(self.read(key), Ok(None));
        if exists {
            self.file(key, RELEASED).write(b"")?;
        }
        Ok(exists)
    }

    /// Marks the leases of a network, except those of the attachments in `keep`. Returns the number of marked leases.
    pub fn mark_all_except(&self, network: &NetworkName, keep: &[Attachment]) -> Result<usize> {
        let mut count = 0;
        for record in self.read_valid(&|_| {})? {
            let key = &record.request.key;
            if key.network == *network && !keep.contains(&key.at) {
                count += usize::from(self.mark(key)?);
            }
        }
        Ok(count)
    }

    /// Reads all leases, for the daemon that holds the lock. Removes unusable files: leases of an earlier boot, with a warning,
    /// and marks without a lease. A lease that cannot be read stays, with a warning.
    pub fn read_all(&self) -> Result<Vec<LeaseRecord>> {
        self.read_valid(&|file| {
            // If the removal fails, the next daemon tries to remove the file again.
            let _ = file.remove();
        })
    }

    fn read_valid(&self, on_unusable: &dyn Fn(&state::StateFile)) -> Result<Vec<LeaseRecord>> {
        let boot = boot()?;
        let mut records = Vec::new();
        for file in state::all(&self.directory)? {
            let name = file.name().unwrap_or_default().to_owned();
            if !name.ends_with(LEASE) {
                let is_orphan = |name: &str| {
                    let lease = self.directory().join(format!("{name}{LEASE}"));
                    matches!(lease.try_exists(), Ok(false))
                };
                if name.strip_suffix(RELEASED).is_some_and(is_orphan) {
                    on_unusable(&file);
                }
                continue;
            }
            let mut read = || {
                let Some(content) = file.read()?.transpose()? else { return Ok(()) };
                match read_record(&content, boot).map_err(|error| file.damaged(error))? {
                    Some(record) if self.file(&record.request.key, LEASE).name() == Some(&name) => {
                        records.push(self.with_mark(record)?);
                    }
                    Some(_) => on_unusable(&file),
                    None => {
                        warn(format_args!("warning: {}", file.damaged("it is of an earlier boot")));
                        on_unusable(&file);
                    }
                }
                Ok(())
            };
            // The lease file stays: the daemon of another release, or at its next start, may be able to read it.
            read().unwrap_or_else(|error: Error| warn(format_args!("warning: {error}")));
        }
        Ok(records)
    }

    /// Fails if the mark cannot be read: a released lease must not be adopted.
    fn with_mark(&self, record: LeaseRecord) -> Result<LeaseRecord> {
        let is_released = self.file(&record.request.key, RELEASED).read()?.is_some();
        Ok(LeaseRecord { is_released, ..record })
    }

    fn file(&self, key: &Key, end: &str) -> state::StateFile {
        let Key { network, at: Attachment { container_id, ifname } } = key;
        state::StateFile::new(&self.directory, &format!("{network}:{container_id}:{ifname}{end}"))
    }
}

/// Locks the start of daemons until the returned file is dropped, so that one process at a time starts a daemon. Fails with
/// code 11 after 10 s.
pub(super) fn lock_starts() -> Result<File> {
    state::lock(DIRECTORY)
}

/// The boot id of the host.
fn boot() -> Result<&'static str> {
    boot::id().map_err(sys::failed_with(Code::IO, "cannot read the boot id"))
}

/// `None` if the file is of an earlier boot.
fn read_record(content: &[u8], boot: &str) -> Result<Option<LeaseRecord>> {
    #[derive(Deserialize)]
    struct BootField {
        boot: String,
    }

    let unreadable = |error: serde_json::Error| Error::new(Code::DECODE, error.to_string());
    // A file of an earlier boot can be of another version.
    let BootField { boot: of } = json::read(content).map_err(unreadable)?;
    if boot::are_different(&of, boot) {
        return Ok(None);
    }
    // Its times can be those of another boot, so the lease is not used, and nothing proves that it is stale.
    if of != boot {
        return Err(Error::internal("it can be of an earlier boot"));
    }
    let JournalFile { record, .. } = json::read(content).map_err(unreadable)?;
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;
    use crate::dhcp::protocol::tests::{key, lease_request};
    use crate::dhcp::time::Time;

    /// A journal below a directory for one test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("cnibox-journal-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn journal(&self) -> Journal {
            Journal::of(&self.0, Path::new("/run/cni/dhcp.sock"))
        }

        fn names(&self) -> Vec<String> {
            let files = fs::read_dir(self.journal().directory()).unwrap();
            let mut names: Vec<String> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn record(id: &str) -> LeaseRecord {
        let seconds = Time::from_secs;
        LeaseRecord {
            request: lease_request(id),
            netns_id: (4, u64::MAX),
            netns_cookie: Some(4242),
            ifindex: 7,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            uplink: Some(Uplink { link: "br0".into(), vlan: 5 }),
            leases: Leases {
                v4: Some(v4::Lease {
                    address: "10.1.0.5/24".parse().unwrap(),
                    server: "10.1.0.1".parse().unwrap(),
                    gateway: Some("10.1.0.254".parse().unwrap()),
                    routes: vec![v4::Route {
                        dst: "10.2.0.0/16".parse().unwrap(),
                        router: "0.0.0.0".parse().unwrap(),
                    }],
                    mtu: Some(1400),
                    dns: vec!["10.1.0.53".parse().unwrap()],
                    domain: "example.org".into(),
                    search: vec!["a.example".into(), "b".into()],
                    since: Time::from_millis(1_500),
                    renew_at: seconds(60),
                    rebind_at: seconds(90),
                    ends_at: Some(seconds(u64::from(u32::MAX) * 2)),
                }),
                v6: Some(v6::Lease {
                    address: "fd00::5".parse().unwrap(),
                    server: vec![0, 255, 7],
                    dns: vec!["fd00::53".parse().unwrap()],
                    search: Vec::new(),
                    since: seconds(1),
                    renew_at: seconds(2),
                    rebind_at: seconds(3),
                    preferred_until: None,
                    ends_at: None,
                }),
            },
            subnets: Vec::new(),
            former_v4: Vec::new(),
            former_v6: Vec::new(),
            is_released: false,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let scratch = Scratch::new("read");
        let journal = scratch.journal();
        let former = record("c2");
        let bare = LeaseRecord {
            uplink: None,
            leases: Leases::default(),
            former_v4: former.leases.v4.clone().into_iter().collect(),
            former_v6: former.leases.v6.clone().into_iter().collect(),
            ..former
        };
        for record in [&record("c1"), &bare, &record("c1")] {
            journal.save(record).unwrap();
        }
        assert_eq!(journal.read(&key("c1")), Ok(Some(record("c1"))));
        assert_eq!(journal.read_all(), Ok(vec![record("c1"), bare.clone()]));
        assert_eq!(scratch.names(), ["lan:c1:eth0.lease", "lan:c2:eth0.lease"]);
        journal.remove(&key("c1")).unwrap();
        journal.remove(&key("c1")).unwrap();
        assert_eq!(journal.read(&key("c1")), Ok(None));
        assert_eq!(journal.read_all(), Ok(vec![bare]));
    }

    #[test]
    fn the_subnets_of_the_network_and_those_of_the_first_leases_are_kept_apart() {
        let scratch = Scratch::new("subnets");
        let journal = scratch.journal();
        let subnets = |text: &str| vec![text.parse().unwrap()];
        for (listed, first) in [
            (subnets("10.0.0.0/8"), subnets("10.1.0.0/24")),
            (Vec::new(), subnets("10.1.0.0/24")),
            (subnets("10.0.0.0/8"), Vec::new()),
        ] {
            let mut record = LeaseRecord { subnets: first, ..record("c1") };
            record.request.settings.subnets = listed;
            journal.save(&record).unwrap();
            assert_eq!(journal.read(&key("c1")), Ok(Some(record)));
        }
    }

    #[test]
    fn a_mark_belongs_to_a_lease_and_goes_with_it() {
        let scratch = Scratch::new("mark");
        let journal = scratch.journal();
        assert_eq!(journal.mark(&key("c1")), Ok(false));
        for id in ["c1", "c2", "c3"] {
            journal.save(&record(id)).unwrap();
        }
        assert_eq!(journal.mark(&key("c1")), Ok(true));
        let keep = [key("c2").at];
        let other = NetworkName::new("other").unwrap();
        assert_eq!(journal.mark_all_except(&other, &[]), Ok(0));
        assert_eq!(journal.mark_all_except(&key("c1").network, &keep), Ok(2));
        let marked = |journal: &Journal| -> Vec<bool> {
            journal.read_all().unwrap().iter().map(|record| record.is_released).collect()
        };
        assert_eq!(marked(&journal), [true, false, true]);
        journal.remove(&key("c1")).unwrap();
        journal.save(&record("c1")).unwrap();
        assert_eq!(marked(&journal), [false, false, true]);
    }

    #[test]
    fn files_of_an_earlier_boot_are_removed_and_unreadable_ones_stay() {
        let scratch = Scratch::new("unusable");
        let journal = scratch.journal();
        journal.save(&record("c1")).unwrap();
        let whole = fs::read_to_string(journal.directory().join("lan:c1:eth0.lease")).unwrap();
        let write = |name: &str, content: &str| {
            fs::write(journal.directory().join(name), content).unwrap();
        };
        for length in (0..whole.len()).step_by(7) {
            write("lan:cut:eth0.lease", &whole[..length]);
            assert!(journal.read(&key("cut")).is_err());
            assert_eq!(journal.read_all(), Ok(vec![record("c1")]));
        }
        write("lan:c3:eth0.lease", &whole);
        write("lan:c4:eth0.lease", &whole.replace("\"boot\":\"", "\"boot\":\"earlier"));
        // A mount covered the boot id of the daemon: nothing proves an earlier boot.
        write("lan:c0:eth0.lease", &whole.replace("\"boot\":\"", "\"boot\":\"covered-"));
        write("lan:c5:eth0.lease", &whole.replace("10.1.0.5/24", "10.1.0.5/99"));
        write("lan:c6:eth0.released", "");
        write(".lan:c7:eth0.lease.0123456789abcdef~", &whole);
        write(".log", "a line");
        fs::create_dir(journal.directory().join("lan:c8:eth0.lease")).unwrap();
        assert_eq!(journal.read(&key("c3")), Ok(None));
        assert_eq!(journal.read(&key("c4")), Ok(None));
        assert_eq!(journal.mark(&key("c4")), Ok(false));
        assert_eq!(journal.read_all(), Ok(vec![record("c1")]));
        let kept = ["c0", "c1", "c5", "c8", "cut"].map(|id| format!("lan:{id}:eth0.lease"));
        assert_eq!(scratch.names(), [&[".log".to_owned()], &kept[..]].concat());
    }

    /// Such a file can be of a later release, whose daemon sends the RELEASE.
    #[test]
    fn a_lease_that_cannot_be_read_is_marked() {
        let scratch = Scratch::new("marked");
        let journal = scratch.journal();
        journal.save(&record("c1")).unwrap();
        let path = |name: &str| journal.directory().join(name);
        fs::write(path("lan:c2:eth0.lease"), "{\"boot\":1}").unwrap();
        symlink("lan:c3:eth0.lease", path("lan:c3:eth0.lease")).unwrap();
        for id in ["c2", "c3"] {
            assert_eq!(journal.mark(&key(id)), Ok(true));
            assert_eq!(journal.read_all(), Ok(vec![record("c1")]));
            assert!(path(&format!("lan:{id}:eth0.lease")).symlink_metadata().is_ok());
            assert!(path(&format!("lan:{id}:eth0.released")).exists());
        }
    }

    #[test]
    fn a_lease_whose_mark_cannot_be_read_is_not_adopted() {
        let scratch = Scratch::new("unread-mark");
        let journal = scratch.journal();
        journal.save(&record("c1")).unwrap();
        let mark = journal.directory().join("lan:c1:eth0.released");
        fs::create_dir(&mark).unwrap();
        assert_eq!(journal.read_all(), Ok(vec![]));
        assert!(journal.read(&key("c1")).is_err());
        fs::remove_dir(&mark).unwrap();
        assert_eq!(journal.read_all(), Ok(vec![record("c1")]));
    }

    #[test]
    fn a_journal_has_one_daemon_at_a_time_and_each_socket_has_a_journal() {
        let scratch = Scratch::new("lock");
        let (one, two) = (scratch.journal(), scratch.journal());
        let lock = one.lock(Duration::ZERO).unwrap();
        assert!(lock.is_some() && two.lock(Duration::ZERO).unwrap().is_none());
        assert!(two.holder().contains(&format!("process {} (", std::process::id())));
        let paths = ["/run/a-b.sock", "/run/a/b.sock", "/run-a/b.sock"];
        let journals = paths.map(|path| Journal::of(&scratch.0, Path::new(path)));
        for (index, journal) in journals.iter().enumerate() {
            assert!(journals[..index].iter().all(|other| other.directory() != journal.directory()));
        }
        let linked = Journal::of(&scratch.0, Path::new("/var/run/cni/dhcp.sock"));
        assert_eq!(linked.directory(), one.directory());
        assert!(journals[0].lock(Duration::ZERO).unwrap().is_some());
        drop(lock);
        assert!(two.lock(Duration::ZERO).unwrap().is_some());
    }
}
