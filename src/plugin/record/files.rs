//! The files of the records, one for each attachment.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cni::json;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Mode};
use crate::kernel::identity::Identity;
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::plugin::owner::{Owner, hash};
use crate::plugin::record::claims;
use crate::plugin::record::{Made, Record, claims_line};

/// It outlasts a boot, as the caches of the runtimes do: then the records tell that their attachments have ended.
pub const DIRECTORY: &str = "/var/lib/cni/attachments";

/// Where releases up to 0.2.0 have theirs, in a directory for each PID namespace.
const OLD_DIRECTORY: &str = "/var/lib/cni/identities";

/// No name of a network, container or interface before it can contain it.
const SEPARATOR: char = '+';

/// NAME_MAX (linux/limits.h), less what a name aside needs.
const NAME_BYTES_MAX: usize = 200;

/// The names and the path have 5 KiB at most, and an attachment has few addresses.
const BYTES_MAX: usize = 64 << 10;

/// A DHCP server can give new addresses without end. A longer record is written anew.
const MADE_MAX: usize = 16;

/// The records of a host.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
}

/// A record of an ADD in progress.
pub struct Begun {
    path: PathBuf,
    file: File,
    /// The ADD in progress that calls this one has written it.
    is_of_caller: bool,
    /// The record of an earlier ADD in its place.
    replaced: Option<Vec<u8>>,
    /// The directories that were missing.
    directories: Vec<PathBuf>,
}

impl Begun {
    fn new(path: &Path, file: File) -> Self {
        Self {
            path: path.into(),
            file,
            is_of_caller: false,
            replaced: None,
            directories: Vec::new(),
        }
    }

    /// Adds what the ADD made.
    pub fn finish(mut self, made: &Made) -> Result<()> {
        let written = fault::file_operation().and_then(|()| self.file.write_all(&made.line()));
        written.map_err(|error| cannot("write", &self.path, error))
    }

    /// Leaves the record as it was before a failed ADD.
    pub fn take_back(self) -> Result<()> {
        if self.is_of_caller {
            return Ok(());
        }
        let restored = match &self.replaced {
            Some(content) => file::replace_private(&self.path, content),
            None => remove_file(&self.path),
        };
        // Another process may use them already.
        self.directories.iter().rev().all(|directory| fs::remove_dir(directory).is_ok());
        restored.map_err(|error| cannot("remove", &self.path, error))
    }
}

impl Records {
    pub fn of_host() -> Self {
        Self::in_directory(DIRECTORY)
    }

    /// Those of a host with another root.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Writes the record of an ADD that begins. That of an ADD in progress stays, which calls this one.
    pub fn begin(&self, record: &Record) -> Result<Begun> {
        let path = self.path(&record.network, &record.at);
        self.create(record, &path).map_err(|error| cannot("write", &path, error))
    }

    fn create(&self, record: &Record, path: &Path) -> io::Result<Begun> {
        let mut content = record.content();
        let mut directories = Vec::new();
        match create_new(path, &content, &mut directories) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|file| Begun { directories, ..Begun::new(path, file) }),
        }
        // What is no record is in the way.
        let replaced = file::read_within(path, BYTES_MAX).ok();
        let known = replaced.as_deref().and_then(Record::parse);
        if known.as_ref().is_some_and(|known| known.identity.is(&record.identity)) {
            fault::file_operation()?;
            let (file, _) = file::open_regular(file::writing().append(true), path)?;
            // The writer holds the lock until its end.
            if !matches!(flock::try_lock(&file, Mode::Exclusive), Ok(true)) {
                return Ok(Begun { is_of_caller: true, ..Begun::new(path, file) });
            }
        }
        // Its DEL releases them, too.
        content.extend(known.iter().flat_map(|known| claims_line(&known.claims)));
        remove_file(path)?;
        Ok(Begun { replaced, ..Begun::new(path, create_new(path, &content, &mut directories)?) })
    }

    /// Writes the record of an attachment that was found alive. Never replaces one; false if one is there.
    pub fn adopt(&self, record: &Record, made: &Made) -> Result<bool> {
        let path = self.path(&record.network, &record.at);
        let content = [record.content(), made.line()].concat();
        match create_new(&path, &content, &mut Vec::new()) {
            Ok(_) => {
                self.remove_old(&record.network, &record.at)?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot("write", &path, error)),
        }
    }

    /// Adds what an attachment has now to its record, if it has one.
    pub fn amend(&self, network: &NetworkName, at: &Attachment, made: &Made) -> Result<()> {
        let path = self.path(network, at);
        match self.read(network, at) {
            Some(record) if record.made.len() >= MADE_MAX => {
                let content = record.shortened(made);
                fault::file_operation()
                    .and_then(|()| file::replace_private(&path, &content))
                    .map_err(|error| cannot("write", &path, error))
            }
            _ => self.append(&path, &made.line()).map(drop),
        }
    }

    /// Adds claims to a record. False if there is none.
    pub fn note_claims(&self, file: &Path, claims: &[String]) -> Result<bool> {
        self.append(&self.directory.join(file), &claims_line(claims))
    }

    fn append(&self, path: &Path, line: &[u8]) -> Result<bool> {
        let append = || -> io::Result<()> {
            fault::file_operation()?;
            let (mut file, _) = file::open_regular(file::writing().append(true), path)?;
            fault::file_operation()?;
            file.write_all(line)
        };
        match append() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(cannot("write", path, error)),
        }
    }

    /// `None` also for a record that cannot be read.
    pub fn read(&self, network: &NetworkName, at: &Attachment) -> Option<Record> {
        let record = self.read_file(&self.file_name(network, at))?;
        (record.network == *network && record.at == *at).then_some(record)
    }

    /// The record of the owner of an object. A long name is not in the text of an owner, only its hash.
    pub fn of_owner(&self, owner: &str) -> Option<Record> {
        let is_its = |record: &Record| Owner::new(&record.network, &record.at).as_str() == owner;
        match Owner::named(owner) {
            Some((network, at)) => self.read(&network, &at),
            None => self.all().into_iter().find(is_its),
        }
    }

    pub(super) fn read_file(&self, file: &Path) -> Option<Record> {
        Record::parse(&file::read_within(&self.directory.join(file), BYTES_MAX).ok()?)
    }

    /// The identity that a release up to 0.2.0 has recorded for the namespace at a path. It has no number.
    pub fn old_identity(
        &self,
        network: &NetworkName,
        at: &Attachment,
        netns: &Path,
    ) -> Option<Identity> {
        let old = |path: PathBuf| OldKept::parse(&file::read_within(&path, BYTES_MAX).ok()?);
        let of_it = |old: &OldKept| {
            (&*old.network, &*old.container_id, &*old.ifname)
                == (&**network, &*at.container_id, &*at.ifname)
                && Path::new(&old.netns) == netns
        };
        let found = old_paths(network, at).into_iter().filter_map(old).find(of_it)?;
        Identity::parse(&found.identity)
    }

    /// A missing record is not an error.
    pub fn remove(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        remove(&self.path(network, at))?;
        self.remove_old(network, at)
    }

    fn remove_old(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        old_paths(network, at).iter().try_for_each(|path| remove(path))
    }

    /// Removes a record and its claims.
    pub fn discard(&self, record: &Record) -> Result<()> {
        let path = self.path(&record.network, &record.at);
        self.release_all(record).map_err(|error| cannot("remove", &path, error))?;
        self.remove(&record.network, &record.at)
    }

    /// All records that can be read.
    pub fn all(&self) -> Vec<Record> {
        self.files().iter().filter_map(|path| self.read_file(path)).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_record = |name: &OsStr| !file::is_aside(name) && !claims::is_claim(name);
        entries.filter(|entry| is_record(&entry.file_name())).map(|entry| entry.path()).collect()
    }

    /// Removes the incomplete files that killed processes have left, and damaged records, which prove nothing. A file that
    /// cannot be removed does no harm. Returns the others.
    pub fn sweep(&self) -> Vec<Record> {
        file::sweep(&self.directory);
        let mut all = Vec::new();
        for path in self.files() {
            let is_damaged = match file::read_within(&path, BYTES_MAX) {
                Ok(bytes) => {
                    let record = Record::parse(&bytes);
                    let is_damaged = record.is_none();
                    all.extend(record);
                    is_damaged
                }
                Err(error) => error.kind() == ErrorKind::FileTooLarge,
            };
            if is_damaged {
                let _ = fs::remove_file(&path);
            }
        }
        self.sweep_claims(&all);
        all
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The name of the file of an attachment.
    pub fn file_name(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        file_name(network, at).into()
    }

    /// The file of an attachment.
    pub fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        self.directory.join(file_name(network, at))
    }
}

/// Writes a file that is not there yet. A reader never finds an incomplete one. Adds the directories that were missing.
fn create_new(path: &Path, content: &[u8], directories: &mut Vec<PathBuf>) -> io::Result<File> {
    match file::Aside::write(path, content, 0o600) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            *directories = make_directories(path.parent().unwrap_or(path))?;
            file::Aside::write(path, content, 0o600)
        }
        written => written,
    }?
    .link(path)
}

/// Makes a directory that only its owner may use, in one that all may, as the reference makes it. Returns those that were missing.
fn make_directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for (path, mode) in
        directory.parent().map(|above| (above, 0o755)).into_iter().chain([(directory, 0o700)])
    {
        fault::file_operation()?;
        match DirBuilder::new().mode(mode).create(path) {
            Ok(()) => made.push(path.into()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(mode).create(path)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

fn remove(path: &Path) -> Result<()> {
    match remove_file(path) {
        // A read-only file system has this error for missing files, too.
        Err(error) if fs::symlink_metadata(path).is_ok() => Err(cannot("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes a record, and what the process that wrote it has left if it was killed before the file had its name, and no other.
fn remove_file(path: &Path) -> io::Result<()> {
    fault::file_operation()?;
    let has_one_name = fs::symlink_metadata(path).is_ok_and(|file| file.nlink() == 1);
    let removed = fs::remove_file(path);
    if !has_one_name {
        file::sweep_of(path);
    }
    removed
}

fn file_name(network: &NetworkName, at: &Attachment) -> String {
    let name = [&**network, &*at.container_id, &*at.ifname].join(&SEPARATOR.to_string());
    // The content has the names, too.
    if name.len() > NAME_BYTES_MAX { format!("{SEPARATOR}{:016x}", hash(&name)) } else { name }
}

/// The files that releases up to 0.2.0 may have written for an attachment.
fn old_paths(network: &NetworkName, at: &Attachment) -> Vec<PathBuf> {
    let nodes = fs::read_dir(OLD_DIRECTORY).into_iter().flatten().flatten();
    nodes.map(|node| node.path().join(file_name(network, at))).collect()
}

fn cannot(verb: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}", path.display()))
        .with_details(sys::reason(&error))
}

/// A file of a release up to 0.2.0.
#[derive(Deserialize)]
struct OldKept {
    network: String,
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
    netns: String,
    identity: String,
}

impl OldKept {
    fn parse(bytes: &[u8]) -> Option<Self> {
        json::read(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName, Mac};
    use crate::netlink::rtnl::Number;
    use crate::plugin::record::Maker;

    struct Scratch(PathBuf);

    impl Scratch {
        fn records(name: &str) -> (Self, Records) {
            let dir =
                std::env::temp_dir().join(format!("cnibox-record-{name}-{}", std::process::id()));
            (Self(dir.clone()), Records::in_directory(dir.join("cni/attachments")))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn record(boot_and_cookie: &str) -> Record {
        Record {
            network: NetworkName::new("net").unwrap(),
            at: Attachment {
                container_id: ContainerId::new("c1").unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
            netns: "/run/netns/c1".into(),
            identity: Identity::parse(boot_and_cookie).unwrap(),
            observer: Some(1),
            number: Number::parse("1073741831"),
            generation: "0123456789abcdef".into(),
            maker: Maker::Plugin,
            made: Vec::new(),
            claims: Vec::new(),
        }
    }

    fn made(address: &str) -> Made {
        let macs = vec![Mac([2, 0, 0, 0, 0, 7])];
        Made { macs, addresses: vec![address.parse().unwrap()], cache: None }
    }

    fn read(records: &Records) -> Option<Record> {
        let Record { network, at, .. } = record("b 7");
        records.read(&network, &at)
    }

    #[test]
    fn what_the_add_made_follows_and_what_it_became() {
        let (dir, records) = Scratch::records("lines");
        let begun = records.begin(&record("b 7")).unwrap();
        assert_eq!(read(&records), Some(record("b 7")));
        begun.finish(&made("10.1.0.2")).unwrap();
        let whole = |addresses: &[&str]| {
            let made = addresses.iter().copied().map(made).collect();
            Some(Record { made, ..record("b 7") })
        };
        assert_eq!(read(&records), whole(&["10.1.0.2"]));
        let Record { network, at, .. } = record("b 7");
        records.amend(&network, &at, &made("10.1.0.3")).unwrap();
        assert_eq!(read(&records), whole(&["10.1.0.2", "10.1.0.3"]));
        // Killed while it wrote.
        let path = records.path(&network, &at);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str(r#"{"macs":["#);
        fs::write(&path, text).unwrap();
        assert_eq!(read(&records), whole(&["10.1.0.2", "10.1.0.3"]));
        records.remove(&network, &at).unwrap();
        assert_eq!((read(&records), records.all()), (None, vec![]));
        records.amend(&network, &at, &made("10.1.0.3")).unwrap();
        drop(dir);
    }

    #[test]
    fn a_record_that_is_amended_without_end_stays_short() {
        let (_dir, records) = Scratch::records("short");
        let Record { network, at, .. } = record("b 7");
        records.begin(&record("b 7")).unwrap().finish(&made("10.1.0.1")).unwrap();
        let file = records.file_name(&network, &at);
        for number in 2..250 {
            let address = format!("10.1.0.{number}");
            let claim = claims::name(address.parse().unwrap(), "cni0");
            records.note_claims(&file, &[claim]).unwrap();
            records.amend(&network, &at, &made(&address)).unwrap();
        }
        let read = read(&records).unwrap();
        assert!(fs::metadata(records.path(&network, &at)).unwrap().len() < 4096);
        let last = read.made.iter().rev().take(2).cloned().collect::<Vec<_>>();
        assert_eq!(last, [made("10.1.0.249"), made("10.1.0.248")]);
        assert_eq!(read.claims.last().unwrap(), "@10.1.0.249@cni0");
        assert_eq!(read.identity, record("b 7").identity);
    }

    #[test]
    fn a_failed_add_leaves_what_was_there() {
        let (dir, records) = Scratch::records("failed");
        fs::create_dir(&dir.0).unwrap();
        records.begin(&record("b 7")).unwrap().take_back().unwrap();
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
        records.begin(&record("b 7")).unwrap().finish(&made("10.1.0.2")).unwrap();
        let before = read(&records);
        // Another namespace, and the same one again.
        for identity in ["b 8", "b 7"] {
            let begun = records.begin(&record(identity)).unwrap();
            assert_eq!(read(&records), Some(record(identity)));
            begun.take_back().unwrap();
            assert_eq!(read(&records), before);
        }
    }

    #[test]
    fn the_record_of_a_caller_stays() {
        let (_dir, records) = Scratch::records("caller");
        let outer = records.begin(&record("b 7")).unwrap();
        let other = Record { maker: Maker::Ipam, ..record("b 7") };
        let inner = records.begin(&other).unwrap();
        inner.take_back().unwrap();
        assert_eq!(read(&records), Some(record("b 7")));
        records.begin(&other).unwrap().finish(&made("10.1.0.2")).unwrap();
        outer.finish(&made("10.1.0.2")).unwrap();
        assert_eq!(read(&records).unwrap().maker, Maker::Plugin);
    }

    #[test]
    fn an_adopted_one_replaces_nothing() {
        let (_dir, records) = Scratch::records("adopted");
        let adopted = Record { maker: Maker::Adopted, ..record("b 7") };
        assert_eq!(records.adopt(&adopted, &made("10.1.0.2")), Ok(true));
        assert_eq!(records.adopt(&record("b 8"), &made("10.1.0.2")), Ok(false));
        assert_eq!(read(&records).unwrap().maker, Maker::Adopted);
    }
}
