//! Makes the new files in a directory of their own, and runs each one, before they get their names.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::NAME;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::sys::{self, reason, warn};
use crate::plugin::execute;

use super::directory::{Directory, copy_file, duplicate, failed, is_unsupported};
use super::manifest::Installed;
use super::plan::{Entry, Manner, Plan};

/// How long a new plugin may take to answer VERSION.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A directory in the plugin directory. It is removed, with its files, when it is dropped.
pub(super) struct Staging(PathBuf);

/// The directory in it for the files that are replaced.
const OLD: &str = "old";

impl Staging {
    pub(super) fn make(directory: &Directory) -> Result<Self> {
        let staging = Self(directory.staging());
        let make = || {
            fault::file_operation()?;
            let mut builder = DirBuilder::new();
            builder.mode(0o700).create(&staging.0)?;
            builder.create(staging.old(""))
        };
        make().map_err(|error| failed("make", &staging.0, &error))?;
        Ok(staging)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn old(&self, name: &str) -> PathBuf {
        self.0.join(OLD).join(name)
    }

    /// Makes a file with this content.
    pub(super) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf> {
        let path = self.file(name);
        let write = || {
            fault::file_operation()?;
            let mut file = File::create_new(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        Ok(path)
    }

    /// Makes all files of the plan. Where the file system lacks a kind of link, it takes the next one.
    pub(super) fn fill(&self, plan: &mut Plan<'_>, directory: &Directory) -> Result<()> {
        let executable = self.file(NAME);
        // The links to an executable that stays have to lead to its inode.
        let stays = !plan.entries[0].is_changed;
        if !stays || !duplicate(&directory.file(NAME), &executable)? {
            copy(&executable)?;
        }
        let mut least = Manner::Hard;
        for Entry { it, manner, .. } in &mut plan.entries[1..] {
            if let Some(manner) = manner {
                if *manner < least && !it.needs_link() {
                    *manner = least;
                }
                self.fill_one(it, manner, &executable, &mut least)?;
            }
        }
        Ok(())
    }

    fn fill_one(
        &self,
        it: &Installed,
        manner: &mut Manner,
        executable: &Path,
        least: &mut Manner,
    ) -> Result<()> {
        let path = self.file(&it.name);
        loop {
            let made = fault::file_operation().and_then(|()| match *manner {
                Manner::Hard => fs::hard_link(executable, &path),
                Manner::Symbolic => symlink(&it.target, &path),
                Manner::Copy => Ok(()),
            });
            let next = match (*manner, &made) {
                (Manner::Copy, Ok(())) => return copy(&path),
                (Manner::Hard, Err(error)) if is_unsupported(error) => Manner::Symbolic,
                (Manner::Symbolic, Err(error)) if is_unsupported(error) && !it.needs_link() => {
                    Manner::Copy
                }
                _ => return made.map_err(|error| failed("create", &path, &error)),
            };
            if let Err(error) = made {
                let (old, new, reason) = (manner.text(), next.text(), reason(&error));
                warn(format_args!("note: a {new} for each {old}: {reason}"));
            }
            (*manner, *least) = (next, next);
        }
    }

    /// Runs each name once, so that an executable that this host cannot execute replaces nothing.
    pub(super) fn verify(&self, plan: &Plan<'_>) -> Result<()> {
        // A plugin need not read its input.
        sys::survive_failed_writes();
        for entry in plan.entries[1..].iter().filter(|entry| entry.manner.is_some()) {
            let name = &entry.it.name;
            let versions = execute::supported_versions(&self.file(name), Some(ANSWER_LIMIT));
            if versions.map_err(|error| unusable(name, error))?.is_empty() {
                return Err(unusable(name, Error::internal("it supports no version")));
            }
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next installation removes what stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unusable(name: &str, error: Error) -> Error {
    error.context(format_args!("the new {name} does not work here"))
}

/// Copies this executable.
fn copy(to: &Path) -> Result<()> {
    let copy = || {
        copy_file(sys::own_executable(), to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))
    };
    copy().map_err(|error| failed("write", to, &error))
}
