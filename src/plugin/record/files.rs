//! The files of the records, one for each attachment.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::cni::json;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Mode};
use crate::kernel::identity::Identity;
use crate::kernel::state_directory::StateDirectory;
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::plugin::owner::{Owner, hash};
use crate::plugin::record::{Made, Note, Record, claims, line};

/// The directory of the records. It persists over a reboot, as the caches of the runtimes do: after a boot, the records prove
/// that their attachments have ended.
pub const DIRECTORY: StateDirectory =
    StateDirectory { usual: "/var/lib/cni/attachments", of_user: "/run/cnibox/lib/attachments" };

/// The records of releases up to 0.2.0, in one directory for each PID namespace.
const OLD_DIRECTORY: &str = "/var/lib/cni/identities";

/// The separator of the names in a file name. A network name or container id cannot contain it.
const SEPARATOR: char = '+';

/// The longest file name of a record: NAME_MAX (255, linux/limits.h) less the bytes that the name of a temporary file adds.
const NAME_BYTES_MAX: usize = 200;

/// The size limit of a record's file. The names and the path have 5 KiB at most, and an attachment has few addresses.
const BYTES_MAX: usize = 64 << 10;

/// The maximum number of `Made` lines: with each renewal a DHCP server can give a new address. A line more replaces the file by
/// a shorter one, see `Record::shortened`.
const MADE_MAX: usize = 16;

/// The records of a host.
#[derive(Clone, Debug)]
pub struct Records {
    directory: PathBuf,
}

/// The longest wait of an ADD or DEL for a reconcile.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// A record whose lock this process has.
pub struct Held {
    pub record: Record,
    _file: File,
}

/// A record of an ADD in progress.
pub struct Begun {
    path: PathBuf,
    file: File,
    /// The plugin that delegates to this one wrote the record, and its ADD is in progress.
    is_of_caller: bool,
    /// The content of the file that this record replaced.
    replaced: Option<Vec<u8>>,
    /// The directories that were missing, and that this ADD made.
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

    /// Appends the `Made` line of the ADD, which has succeeded.
    pub fn finish(mut self, made: &Made) -> Result<()> {
        let written = fault::file_operation().and_then(|()| self.file.write_all(&line(made)));
        written.map_err(|error| cannot("write", &self.path, error))
    }

    /// Restores the file as it was before the ADD, which has failed. A record of the caller stays.
    pub fn undo(self) -> Result<()> {
        if self.is_of_caller {
            return Ok(());
        }
        let restored = match &self.replaced {
            Some(content) => file::replace_private(&self.path, content),
            None => remove_file(&self.path),
        };
        // An error is not reported: rmdir(2) fails if another process has written a file into the directory.
        self.directories.iter().rev().all(|directory| fs::remove_dir(directory).is_ok());
        restored.map_err(|error| cannot("remove", &self.path, error))
    }
}

impl Records {
    /// The records in `DIRECTORY`.
    pub fn of_host() -> Self {
        Self::in_directory(DIRECTORY.path())
    }

    /// The records in another directory, for example below another root.
    pub fn in_directory(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Writes the record of an ADD that begins. If the caller of this plugin has written the record of this ADD, that record
    /// stays.
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
        // The file exists. If it is unreadable, `replaced` or `known` is `None`, and the file is replaced, too.
        let replaced = file::read_within(path, BYTES_MAX).ok();
        let known = replaced.as_deref().and_then(Record::parse);
        if known.as_ref().is_some_and(|known| known.identity.is(&record.identity)) {
            fault::file_operation()?;
            let (file, _) = file::open_regular(file::writing().append(true), path)?;
            // The writer of a record holds the lock until its ADD ends. A reconcile has a shared lock.
            if !matches!(flock::try_lock(&file, Mode::Shared), Ok(true)) {
                return Ok(Begun { is_of_caller: true, ..Begun::new(path, file) });
            }
            flock::lock(&file, Mode::Exclusive, HOLD_MAX)?;
        }
        // Take over the claims of the replaced record, so that DEL removes them, too.
        content.extend(known.iter().flat_map(|known| Note::of_claims(&known.claims).line()));
        remove_file(path)?;
        Ok(Begun { replaced, ..Begun::new(path, create_new(path, &content, &mut directories)?) })
    }

    /// Writes the record of an attachment that was found alive. Returns false if the attachment has a record already, which
    /// stays.
    pub fn adopt(&self, record: &Record, made: &Made) -> Result<bool> {
        let path = self.path(&record.network, &record.at);
        let content = [record.content(), line(made)].concat();
        match create_new(&path, &content, &mut Vec::new()) {
            Ok(_) => {
                self.remove_old(&record.network, &record.at)?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(cannot("write", &path, error)),
        }
    }

    /// Appends the present addresses of an attachment to its record, if it has one.
    pub fn amend(&self, network: &NetworkName, at: &Attachment, made: &Made) -> Result<()> {
        let path = self.path(network, at);
        match self.read(network, at) {
            Some(record) if record.made.len() >= MADE_MAX => {
                let content = record.shortened(made);
                fault::file_operation()
                    .and_then(|()| file::replace_private(&path, &content))
                    .map_err(|error| cannot("write", &path, error))
            }
            _ => self.append(&path, &line(made)).map(drop),
        }
    }

    /// Appends the names of claims to a record. Returns false if there is no record.
    pub fn note_claims(&self, file: &Path, claims: &[String]) -> Result<bool> {
        self.append(&self.directory.join(file), &Note::of_claims(claims).line())
    }

    /// Notes that a plugin is one of those of the ADD, and that the attachment has an ADD after a DEL.
    pub(super) fn note_add(&self, record: &Record, plugin: &str) -> Result<()> {
        let mut note = Note { deleting: record.is_deleting.then_some(false), ..Note::default() };
        if record.plugins.iter().all(|known| known != plugin) {
            note.plugins.push(plugin.into());
        }
        if note == Note::default() {
            return Ok(());
        }
        self.append(&self.path(&record.network, &record.at), &note.line()).map(drop)
    }

    /// Notes that the DEL of the attachment has begun. First waits until a reconcile of the attachment has ended, so that it
    /// makes nothing that the DEL has removed. After the timeout the DEL goes on: the lock can be that of an ADD which calls
    /// this DEL to undo itself.
    pub(super) fn mark_deleting(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        let path = self.path(network, at);
        let mark = || -> io::Result<()> {
            fault::file_operation()?;
            let (mut file, _) = file::open_regular(file::writing().append(true), &path)?;
            flock::lock(&file, Mode::Exclusive, HOLD_MAX)?;
            file.write_all(&Note { deleting: Some(true), ..Note::default() }.line())
        };
        file::found(mark()).map(drop).map_err(|error| cannot("write", &path, error))
    }

    /// Locks the record of an attachment, if it has one: its ADD and DEL wait until `Held` is dropped. Fails with code 11 while an
    /// ADD or DEL has the lock. The lock is a shared one, which tells an ADD that its caller is not the holder.
    pub fn hold(&self, network: &NetworkName, at: &Attachment) -> Result<Option<Held>> {
        let path = self.path(network, at);
        let hold = || -> io::Result<(File, bool)> {
            fault::file_operation()?;
            let (file, _) = file::open_regular(&file::reading(), &path)?;
            let is_locked = flock::try_lock(&file, Mode::Shared)?;
            // The previous holder may have removed the file.
            let is_there = fs::metadata(&path)?.ino() == file.metadata()?.ino();
            Ok((file, is_locked && is_there))
        };
        match file::found(hold()).map_err(|error| cannot("lock", &path, error))? {
            None => Ok(None),
            Some((file, true)) => {
                let record = self.read(network, at);
                Ok(record.map(|record| Held { record, _file: file }))
            }
            Some((_, false)) => {
                let msg = format!("cannot lock {}: another operation has it", path.display());
                Err(Error::new(Code::TRY_AGAIN_LATER, msg))
            }
        }
    }

    fn append(&self, path: &Path, line: &[u8]) -> Result<bool> {
        let append = || -> io::Result<()> {
            fault::file_operation()?;
            let (mut file, _) = file::open_regular(file::writing().append(true), path)?;
            fault::file_operation()?;
            file.write_all(line)
        };
        let appended = file::found(append()).map_err(|error| cannot("write", path, error))?;
        Ok(appended.is_some())
    }

    /// The record of an attachment. `None` also for an unreadable record.
    pub fn read(&self, network: &NetworkName, at: &Attachment) -> Option<Record> {
        let record = self.read_file(&self.file_name(network, at))?;
        (record.network == *network && record.at == *at).then_some(record)
    }

    /// The record of the owner of an object. If the text of the owner has only the hash of a long name, all records are read.
    pub fn of_owner(&self, owner: &str) -> Option<Record> {
        let has_owner = |record: &Record| Owner::new(&record.network, &record.at).as_str() == owner;
        match Owner::named(owner) {
            Some((network, at)) => self.read(&network, &at),
            None => self.all().into_iter().find(has_owner),
        }
    }

    pub(super) fn read_file(&self, file: &Path) -> Option<Record> {
        Record::parse(&file::read_within(&self.directory.join(file), BYTES_MAX).ok()?)
    }

    /// The identity that a release up to 0.2.0 recorded for the namespace at a path. These releases recorded no number.
    pub fn old_identity(
        &self,
        network: &NetworkName,
        at: &Attachment,
        netns: &Path,
    ) -> Option<Identity> {
        let read = |path: PathBuf| -> Option<OldRecord> {
            json::read(&file::read_within(&path, BYTES_MAX).ok()?).ok()
        };
        let is_of_attachment =
            |old: &OldRecord| (&old.network, &old.at, &*old.netns) == (network, at, netns);
        let mut found = old_paths(network, at).into_iter().filter_map(read);
        found.find(is_of_attachment).map(|old| old.identity)
    }

    /// Removes the record of an attachment. A missing record is not an error.
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

    /// All readable records.
    pub fn all(&self) -> Vec<Record> {
        self.files().iter().filter_map(|path| self.read_file(path)).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let is_record = |name: &OsStr| !file::is_aside(name) && !claims::is_claim(name);
        entries.filter(|entry| is_record(&entry.file_name())).map(|entry| entry.path()).collect()
    }

    /// Removes incomplete files of killed processes, unreadable records, and invalid claims. A file that cannot be removed
    /// stays: no other function uses it. Returns the readable records.
    pub fn sweep(&self) -> Vec<Record> {
        file::sweep(&self.directory);
        let mut all = Vec::new();
        for path in self.files() {
            let record = match file::read_within(&path, BYTES_MAX) {
                Ok(bytes) => Record::parse(&bytes),
                Err(error) if error.kind() == ErrorKind::FileTooLarge => None,
                Err(_) => continue,
            };
            if record.is_none() {
                let _ = fs::remove_file(&path);
            }
            all.extend(record);
        }
        self.sweep_claims(&all);
        all
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file name of the record of an attachment.
    pub fn file_name(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        file_name(network, at).into()
    }

    /// The path of the record of an attachment.
    pub fn path(&self, network: &NetworkName, at: &Attachment) -> PathBuf {
        self.directory.join(file_name(network, at))
    }
}

/// Writes a new file under a temporary name and links it to its name, so a reader never finds an incomplete file. Fails if the
/// name exists. Puts the directories that it made into `directories`.
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

/// Makes a directory with mode 0700, and its parent with mode 0755 as the reference does. Returns the directories that were
/// missing.
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
        // On a read-only file system, unlink(2) fails with EROFS also for a missing file.
        Err(error) if fs::symlink_metadata(path).is_ok() => Err(cannot("remove", path, error)),
        _ => Ok(()),
    }
}

/// Removes the file of a record. If the file has a second name, its writer was killed between link(2) and the removal of the
/// temporary name: removes the temporary name, too.
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
    // A hash of the names is sufficient as file name, because the file contains the names.
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

/// The content of a record of a release up to 0.2.0.
#[derive(Deserialize)]
struct OldRecord {
    network: NetworkName,
    #[serde(flatten)]
    at: Attachment,
    netns: PathBuf,
    identity: Identity,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName, Mac};
    use crate::netlink::rtnl::Nsid;
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
            number: Nsid::parse("1073741831"),
            generation: "0123456789abcdef".into(),
            maker: Maker::Plugin,
            made: Vec::new(),
            claims: Vec::new(),
            plugins: vec!["bridge".into()],
            starter: None,
            is_deleting: false,
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
    fn a_record_has_the_addresses_of_the_add_and_the_later_ones() {
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
        // The incomplete line of a writer that was killed.
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
    fn the_file_of_a_record_has_one_document_per_line() {
        let (_dir, records) = Scratch::records("format");
        let begun = records.begin(&record("b 7")).unwrap();
        let path = begun.path.clone();
        records.note_claims(&path, &["@10.1.0.2@cni0".into()]).unwrap();
        begun.finish(&made("10.1.0.2")).unwrap();
        let header = r#"{"network":"net","containerID":"c1","ifname":"eth0","netns":"/run/netns/c1","identity":"b 7","observer":1,"number":1073741831,"generation":"0123456789abcdef","maker":"plugin"}"#;
        let claims = r#"{"claims":["@10.1.0.2@cni0"]}"#;
        let made = r#"{"macs":["02:00:00:00:00:07"],"addresses":["10.1.0.2"]}"#;
        let plugins = r#"{"plugins":["bridge"]}"#;
        let all = format!("{header}\n{plugins}\n{claims}\n{made}\n");
        assert_eq!(fs::read_to_string(path).unwrap(), all);
    }

    #[test]
    fn a_record_that_is_amended_often_stays_short() {
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
    fn a_failed_add_leaves_the_earlier_record() {
        let (dir, records) = Scratch::records("failed");
        fs::create_dir(&dir.0).unwrap();
        records.begin(&record("b 7")).unwrap().undo().unwrap();
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
        records.begin(&record("b 7")).unwrap().finish(&made("10.1.0.2")).unwrap();
        let before = read(&records);
        // Another namespace, and the same one again.
        for identity in ["b 8", "b 7"] {
            let begun = records.begin(&record(identity)).unwrap();
            assert_eq!(read(&records), Some(record(identity)));
            begun.undo().unwrap();
            assert_eq!(read(&records), before);
        }
    }

    #[test]
    fn the_record_of_a_caller_stays() {
        let (_dir, records) = Scratch::records("caller");
        let outer = records.begin(&record("b 7")).unwrap();
        let other = Record { maker: Maker::Ipam, ..record("b 7") };
        let inner = records.begin(&other).unwrap();
        inner.undo().unwrap();
        assert_eq!(read(&records), Some(record("b 7")));
        records.begin(&other).unwrap().finish(&made("10.1.0.2")).unwrap();
        outer.finish(&made("10.1.0.2")).unwrap();
        assert_eq!(read(&records).unwrap().maker, Maker::Plugin);
    }

    #[test]
    fn an_adopted_record_replaces_no_record() {
        let (_dir, records) = Scratch::records("adopted");
        let adopted = Record { maker: Maker::Adopted, ..record("b 7") };
        assert_eq!(records.adopt(&adopted, &made("10.1.0.2")), Ok(true));
        assert_eq!(records.adopt(&record("b 8"), &made("10.1.0.2")), Ok(false));
        assert_eq!(read(&records).unwrap().maker, Maker::Adopted);
    }
}
