//! A plugin directory: its lock, its files, and the operations that change it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hmac_sha512::Hash;

use crate::cli::executable::Kind;
use crate::cli::{NAME, PLUGIN_DIRECTORY};
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Mode};
use crate::kernel::sys::process::variable;
use crate::kernel::sys::{reason, warn};
use crate::names::hex;

/// The installer's own files begin with a dot, so no runtime takes them for plugins. They have no right of execution:
/// Nomad runs each file that has it.
pub(in crate::cli) const MANIFEST: &str = ".cnibox.manifest";
pub(super) const BACKUP: &str = ".cnibox.backup";
const STAGING: &str = ".cnibox.tmp.";

/// An installer holds the lock while it copies and starts executables.
const LOCK_LIMIT: Duration = Duration::from_secs(60);
/// How often another process may replace the directory between the open and the lock.
const ATTEMPTS_MAX: u32 = 10;

/// The directory of the argument.
pub(super) fn path(argument: &Option<String>) -> &Path {
    Path::new(argument.as_deref().unwrap_or(PLUGIN_DIRECTORY))
}

/// A locked directory.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// This process has made it.
    pub(super) is_made: bool,
    /// Keeps the lock.
    _file: File,
}

impl Directory {
    /// Locks a directory. `None` if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        for _ in 0..ATTEMPTS_MAX {
            let open = || file::reading().open(path); // a FIFO does not block it
            let file = match fault::file_operation().and_then(|()| open()) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file.map_err(|error| failed("open", path, &error))?,
            };
            match flock::lock(&file, Mode::Exclusive, LOCK_LIMIT) {
                Ok(true) => {}
                Ok(false) => {
                    let msg = format!("cannot lock {}", path.display());
                    let holder = flock::holder(&file);
                    return Err(Error::new(Code::TRY_AGAIN_LATER, msg).with_details(holder));
                }
                // Some network file systems have no locks for directories.
                Err(error) => {
                    let reason = reason(&error);
                    warn(format_args!("warning: cannot lock {}: {reason}", path.display()));
                }
            }
            // Before the lock was free, its holder may have removed the directory.
            let is_there = match (file.metadata(), fs::metadata(path)) {
                (Ok(locked), Ok(found)) => inode(&locked) == inode(&found),
                _ => false,
            };
            if is_there {
                return Ok(Some(Self { path: path.to_owned(), is_made: false, _file: file }));
            }
        }
        Err(Error::internal(format_args!("cannot lock {}: others replace it", path.display())))
    }

    /// Locks a directory, and makes it if it does not exist.
    pub(super) fn make(path: &Path) -> Result<Self> {
        let mut is_made = false;
        for _ in 0..ATTEMPTS_MAX {
            if let Some(directory) = Self::open(path)? {
                return Ok(Self { is_made, ..directory });
            }
            let make = || {
                fault::file_operation()?;
                let mut builder = DirBuilder::new();
                builder.mode(0o755);
                match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => {
                        builder.recursive(true).create(parent)?;
                    }
                    _ => {}
                }
                builder.recursive(false).create(path)
            };
            match make() {
                Ok(()) => is_made = true,
                // Another installer was faster.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("make", path, &error)),
            }
        }
        Err(Error::internal(format_args!("cannot make {}: others remove it", path.display())))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of a backup.
    pub(super) fn backup(&self, name: &str) -> PathBuf {
        self.path.join(BACKUP).join(name)
    }

    /// The directory for the files of this process before they get their names.
    pub(super) fn staging(&self) -> PathBuf {
        self.file(&format!("{STAGING}{}", std::process::id()))
    }

    /// Removes what killed installers left. The lock excludes living ones.
    pub(super) fn remove_staging(&self) -> Result<()> {
        let cannot = |error: io::Error| failed("read", &self.path, &error);
        for entry in fs::read_dir(&self.path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            if entry.file_name().as_encoded_bytes().starts_with(STAGING.as_bytes()) {
                let path = entry.path();
                let removed = fault::file_operation().and_then(|()| fs::remove_dir_all(&path));
                removed.map_err(|error| failed("remove", &path, &error))?;
            }
        }
        Ok(())
    }

    /// Makes the directory of the backups, or makes it usable. A user who is not root needs the right to search it.
    pub(super) fn open_backups(&self) -> Result<()> {
        let path = self.file(BACKUP);
        let open = || {
            fault::file_operation()?;
            match DirBuilder::new().mode(0o600).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match fs::symlink_metadata(path.join(NAME)) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
                }
                _ => Ok(()),
            }
        };
        open().map_err(|error| failed("make", &path, &error))
    }

    /// Writes the names to the disk.
    pub(super) fn sync(&self) -> Result<()> {
        sync(&self.path)
    }
}

/// A process that runs plugins by their names from PATH would run ours, and ours have the names of other programs.
pub(super) fn refuse_path(directory: &Path) -> Result<()> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = variable("PATH").unwrap_or_default();
    match std::env::split_paths(&path).any(|it| real(&it) == real(directory)) {
        true => Err(Error::internal(
            "it is on PATH, where plugins hide programs of the same name, as bridge: --force allows that",
        )),
        false => Ok(()),
    }
}

/// The file under a name.
pub(in crate::cli) struct State {
    /// `None` if there is no file.
    pub(super) kind: Option<Kind>,
    /// The text of a symbolic link.
    pub(super) target: Option<PathBuf>,
    /// Device and inode of the file, not of a link to it.
    pub(super) inode: (u64, u64),
    /// It has no other hard link.
    pub(super) is_alone: bool,
    pub(super) is_directory: bool,
}

impl State {
    pub(super) const MISSING: Self =
        Self { kind: None, target: None, inode: (0, 0), is_alone: false, is_directory: false };

    /// A build of cnibox, or a link to one.
    pub(in crate::cli) fn is_ours(&self) -> bool {
        matches!(self.kind, Some(Kind::Own | Kind::Cnibox))
    }

    /// Why the file is not ours.
    pub(super) fn reason(&self) -> &'static str {
        match self.kind {
            Some(Kind::Damaged(why)) => why,
            Some(Kind::Cnibox | Kind::Own) => "it is another build of cnibox",
            Some(Kind::Go) => "it is a program in Go",
            Some(Kind::Other) | None => "it is another program",
        }
    }
}

/// Looks at files. Hard links and symbolic links lead to few executables, and each is read once.
#[derive(Default)]
pub(in crate::cli) struct Looks(Vec<((u64, u64), Kind)>);

impl Looks {
    pub(in crate::cli) fn look(&mut self, path: &Path) -> Result<State> {
        self.state(path).map_err(|error| failed("examine", path, &error))
    }

    fn state(&mut self, path: &Path) -> io::Result<State> {
        let (mut state, mut metadata) = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::MISSING),
            found => (State::MISSING, found?),
        };
        if metadata.is_symlink() {
            let target = fs::read_link(path)?;
            metadata = match fs::metadata(path) {
                Ok(metadata) => metadata,
                Err(_) => {
                    // The executable is gone, but the link is one of ours.
                    let is_ours = target.as_os_str() == NAME;
                    let why = "its link leads to no file";
                    state.kind = Some(if is_ours { Kind::Cnibox } else { Kind::Damaged(why) });
                    state.target = Some(target);
                    return Ok(state);
                }
            };
            state.target = Some(target);
        }
        state.is_directory = metadata.is_dir();
        state.is_alone = metadata.nlink() == 1;
        state.inode = inode(&metadata);
        state.kind = match self.0.iter().find(|(it, _)| *it == state.inode) {
            Some((_, kind)) => Some(*kind),
            None => {
                let kind = Kind::of(path, &metadata)?;
                self.0.push((state.inode, kind));
                Some(kind)
            }
        };
        Ok(state)
    }
}

/// Device and inode.
fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// SHA-512 of a file, as sha512sum prints it.
pub(super) fn sha512(content: &[u8]) -> String {
    hex(&Hash::hash(content))
}

/// Renames a file over another one, or over none.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    let done = fault::file_operation().and_then(|()| fs::rename(from, to));
    done.map_err(|error| failed("replace", to, &error))
}

pub(super) fn remove(path: &Path) -> Result<()> {
    let done = fault::file_operation().and_then(|()| fs::remove_file(path));
    done.map_err(|error| failed("remove", path, &error))
}

/// Makes another name for a file or symbolic link, or a copy if the file system has no hard links. False if there is no file.
pub(super) fn duplicate(from: &Path, to: &Path) -> Result<bool> {
    match fault::file_operation().and_then(|()| fs::hard_link(from, to)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) if is_unsupported(&error) => {}
        done => return done.map(|()| true).map_err(|error| failed("link", from, &error)),
    }
    let copy = || match fs::read_link(from) {
        Ok(target) => symlink(target, to),
        Err(_) => copy_file(from, to),
    };
    match copy() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        done => done.map(|()| true).map_err(|error| failed("copy", from, &error)),
    }
}

/// Copies a file with its permissions, and writes it to the disk. The kernel shares the blocks where the file system can.
#[inline(never)]
pub(super) fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fault::file_operation()?;
    fs::copy(from, to)?;
    fault::file_operation()?;
    File::open(to)?.sync_all()
}

/// Whether an error of link(2) or symlink(2) means that the file system, or a rule of the kernel, refuses every such link.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let kinds = [ErrorKind::Unsupported, ErrorKind::TooManyLinks, ErrorKind::CrossesDevices];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(EPERM)
}

/// Operation not permitted (asm-generic/errno-base.h). EACCES, which is about rights, has the same kind in std.
const EPERM: i32 = 1;

/// Writes the names in a directory to the disk. Some file systems cannot, and need not.
pub(super) fn sync(path: &Path) -> Result<()> {
    let sync = || {
        fault::file_operation()?;
        match File::open(path)?.sync_all() {
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    };
    sync().map_err(|error| failed("write", path, &error))
}

pub(super) fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}: {}", path.display(), reason(error)))
}
