//! A plugin directory: its lock, its files, and the operations that change it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::output::PLUGIN_DIRECTORY;
use crate::error::{Code, Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::flock::{self, Mode};
use crate::kernel::sys::{reason, warn};

/// The names of the installer's own files begin with a dot, so no runtime takes them for plugins. They are not executable:
/// Nomad runs every executable file of the directory.
pub(in crate::cli) const MANIFEST: &str = ".cnibox.manifest";
pub(super) const BACKUPS: &str = ".cnibox.backup";
/// The prefix of the temporary directory of a process, in which files are made before they are renamed.
pub(super) const STAGING: &str = ".cnibox.tmp.";

/// The timeout of the lock. Another installer holds it while it copies and starts executables.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// The plugin directory that the argument names, or the usual one.
pub(super) fn path(argument: &Option<String>) -> &Path {
    Path::new(argument.as_deref().unwrap_or(PLUGIN_DIRECTORY))
}

/// A locked directory.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl Directory {
    /// Locks a directory, and makes it if it does not exist.
    pub(super) fn make(path: &Path) -> Result<Self> {
        make(path)?;
        Self::open(path)
    }

    pub(super) fn open(path: &Path) -> Result<Self> {
        // `READ` has O_NONBLOCK, so the open does not wait for the writer of a FIFO.
        let file = operate("open", path, || file::open_any(path, file::READ, 0))?;
        match flock::lock(&file, Mode::Exclusive, LOCK_LIMIT) {
            Ok(true) => {}
            Ok(false) => {
                let msg = format!("cannot lock {}", path.display());
                let holder = file::holder(&file);
                return Err(Error::new(Code::TRY_AGAIN_LATER, msg).with_details(holder));
            }
            // Some network file systems have no locks on directories: go on without one.
            Err(error) => {
                let reason = reason(&error);
                warn(format_args!("warning: cannot lock {}: {reason}", path.display()));
            }
        }
        let directory = Self { path: path.to_owned(), _file: file };
        directory.remove_staging()?;
        Ok(directory)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The path of the backup of a name.
    pub(super) fn backup(&self, name: &str) -> PathBuf {
        self.file(BACKUPS).join(name)
    }

    /// Removes temporary files of killed installers. The lock excludes running ones.
    fn remove_staging(&self) -> Result<()> {
        file::sweep_of(&self.file(MANIFEST));
        for name in names(&self.path)?.iter().filter(|name| name.starts_with(STAGING)) {
            let path = self.file(name);
            operate("remove", &path, || fs::remove_dir_all(&path))?;
        }
        Ok(())
    }

    /// Makes the directory of the backups. It has mode 0600, since Nomad runs each file that has an x bit. A process without
    /// CAP_DAC_OVERRIDE needs that bit to use the directory: then the mode is 0700.
    pub(super) fn make_backups(&self) -> Result<()> {
        let path = self.file(BACKUPS);
        operate("make", &path, || {
            match DirBuilder::new().mode(0o600).create(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match fs::symlink_metadata(path.join("cnibox")) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
                }
                _ => Ok(()),
            }
        })
    }
}

/// Makes a directory if it does not exist.
pub(super) fn make(path: &Path) -> Result<()> {
    match file::make_directory(path, 0o755) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed("make", path, &error)),
        _ => Ok(()),
    }
}

/// The names in a directory, if it exists. All names of cnibox are UTF-8.
pub(super) fn names(path: &Path) -> Result<BTreeSet<String>> {
    let read = || {
        let mut names = BTreeSet::new();
        for entry in file::found(fs::read_dir(path))?.into_iter().flatten() {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    };
    read().map_err(|error| failed("read", path, &error))
}

/// The path without symbolic links. A path that does not exist stays as it is.
pub(super) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Fails if the directory is on PATH, before the directory of a program with one of the names, such as `bridge` of iproute2: a
/// shell would run the plugin.
pub(super) fn refuse_path<'a>(
    directory: &Path,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = real(directory);
    let is_own = |entry: &PathBuf| real(entry) == own;
    let behind = std::env::split_paths(&path).skip_while(|entry| !is_own(entry));
    for entry in behind.filter(|entry| !is_own(entry)) {
        if let Some(name) = names.clone().find(|name| entry.join(name).is_file()) {
            return Err(Error::internal(format_args!(
                "it is on PATH, where the plugin {name} would hide {}; --force allows that",
                entry.join(name).display()
            )));
        }
    }
    Ok(())
}

/// Performs an operation on a file. The error names the verb and the path.
pub(super) fn operate<T>(
    verb: &str,
    path: &Path,
    operation: impl FnOnce() -> io::Result<T>,
) -> Result<T> {
    let done = fault::file_operation().and_then(|()| operation());
    done.map_err(|error| failed(verb, path, &error))
}

/// Renames a file. An existing file with the new name is replaced.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    operate("replace", to, || fs::rename(from, to))
}

pub(super) fn remove(path: &Path) -> Result<()> {
    operate("remove", path, || fs::remove_file(path))
}

/// Makes a hard link to a file or symbolic link, or a copy if no hard link is possible. Returns the reason for a copy.
pub(super) fn duplicate(from: &Path, to: &Path) -> Result<Option<String>> {
    let why = match fault::file_operation().and_then(|()| fs::hard_link(from, to)) {
        Err(error) if has_no_links(&error) => reason(&error),
        done => return done.map(|()| None).map_err(|error| failed("link", from, &error)),
    };
    let copied = match fs::read_link(from) {
        Ok(target) => symlink(target, to),
        Err(_) => copy(from, to),
    };
    copied.map(|()| Some(why)).map_err(|error| failed("copy", from, &error))
}

/// Copies a file with its permissions, and writes it to the disk with fsync. File systems with reflinks share the blocks.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fault::file_operation()?;
    fs::copy(from, to)?;
    fault::file_operation()?;
    File::open(to)?.sync_all()
}

/// Whether an error of link(2) means that no hard link is possible here: the file system has none, or a rule of the kernel such
/// as fs.protected_hardlinks forbids it.
fn has_no_links(error: &io::Error) -> bool {
    let kinds = [ErrorKind::Unsupported, ErrorKind::TooManyLinks, ErrorKind::CrossesDevices];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(EPERM)
}

/// Operation not permitted (asm-generic/errno-base.h). `ErrorKind::PermissionDenied` would not do: it also stands for EACCES.
const EPERM: i32 = 1;

/// Writes the entries of a directory to the disk with fsync. Some file systems answer EINVAL: they have no fsync for
/// directories.
pub(super) fn sync(path: &Path) -> Result<()> {
    operate("write", path, || match File::open(path)?.sync_all() {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        done => done,
    })
}

pub(in crate::cli) fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}: {}", path.display(), reason(error)))
}
