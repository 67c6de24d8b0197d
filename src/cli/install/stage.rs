//! Makes the changes of an installation.
//!
//! The new files are made in a temporary directory, and each one is executed once, so most errors change nothing. Then each
//! file is renamed to its name. After an error or a kill between two renames, each name is the old or the new file: the same
//! command completes the installation, and `uninstall` reverts it by the manifest, which is written before the first rename.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::output::NAME;
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::sys::{self, reason, warn};
use crate::plugin::execute;

use super::directory::{
    self, Directory, MANIFEST, STAGING, duplicate, failed, has_no_links, rename, sync,
};
use super::plan::{LinkMethod, Plan};

/// The timeout of a new plugin's answer to VERSION.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn carry_out(plan: &mut Plan<'_>, directory: &Directory) -> Result<()> {
    if plan.is_changed() {
        let staging = Staging::make(directory)?;
        staging.fill(plan, directory)?;
        staging.verify(plan)?;
        write_manifest(plan, directory, false)?;
        back_up(plan, directory, &staging)?;
        for entry in plan.entries.iter().filter(|entry| entry.is_changed) {
            rename(&staging.file(&entry.name), &directory.file(&entry.name))?;
        }
        sync(&directory.path)?;
    }
    match plan.is_changed() || plan.has_other_manifest {
        true => write_manifest(plan, directory, true),
        false => Ok(()),
    }
}

/// Replaces the manifest, and writes it to the disk with fsync.
fn write_manifest(plan: &Plan<'_>, directory: &Directory, is_complete: bool) -> Result<()> {
    let path = directory.file(MANIFEST);
    let replace = || {
        let aside = file::Aside::write(&path, plan.manifest(is_complete).as_bytes(), 0o644)?;
        fault::file_operation()?;
        aside.file().sync_all()?;
        aside.rename(&path)
    };
    replace().map_err(|error| failed("write", &path, &error))?;
    sync(&directory.path)
}

/// Gives each file that is to be replaced a second name as its backup. The file keeps its first name until the new file
/// replaces it, so a runtime always finds the old or the new file.
fn back_up(plan: &Plan<'_>, directory: &Directory, staging: &Staging) -> Result<()> {
    let mut entries = plan.entries.iter().filter(|entry| entry.needs_backup).peekable();
    if entries.peek().is_none() {
        return Ok(());
    }
    directory.make_backups()?;
    for entry in entries {
        let aside = staging.file(&format!("backup-{}", entry.name));
        duplicate(&directory.file(&entry.name), &aside)?;
        rename(&aside, &directory::backup(&directory.path, &entry.name))?;
    }
    sync(&directory::backup(&directory.path, ""))?;
    sync(&directory.path)
}

/// A temporary directory in the plugin directory. It is removed, with its files, when the value is dropped.
struct Staging(PathBuf);

impl Staging {
    fn make(directory: &Directory) -> Result<Self> {
        let staging = Self(directory.file(&format!("{STAGING}{}", std::process::id())));
        let make = || {
            fault::file_operation()?;
            DirBuilder::new().mode(0o700).create(&staging.0)
        };
        make().map_err(|error| failed("make", &staging.0, &error))?;
        Ok(staging)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes all files of the plan. Switches to copies where the file system has no hard links.
    fn fill(&self, plan: &mut Plan<'_>, directory: &Directory) -> Result<()> {
        let executable = self.file(NAME);
        // An executable that does not change is linked, not copied: hard links need its inode.
        match plan.entries[0].is_changed {
            true => copy(&executable)?,
            false => duplicate(&directory.file(NAME), &executable)?,
        }
        let mut has_links = true;
        for entry in &mut plan.entries[1..] {
            let path = self.file(&entry.name);
            if entry.method == LinkMethod::Hard && !has_links {
                entry.method = LinkMethod::Copy;
            }
            let made = fault::file_operation().and_then(|()| match entry.method {
                LinkMethod::Hard => fs::hard_link(&executable, &path),
                LinkMethod::Symbolic => symlink(NAME, &path),
                LinkMethod::Copy | LinkMethod::Executable => Ok(()),
            });
            match made {
                Err(error) if entry.method == LinkMethod::Hard && has_no_links(&error) => {
                    let reason = reason(&error);
                    warn(format_args!("note: a copy for each hard link: {reason}"));
                    (entry.method, has_links) = (LinkMethod::Copy, false);
                }
                made => made.map_err(|error| failed("create", &path, &error))?,
            }
            if entry.method == LinkMethod::Copy {
                copy(&path)?;
            }
        }
        Ok(())
    }

    /// Executes each new file once with VERSION, so that a file that this host cannot execute replaces nothing.
    fn verify(&self, plan: &Plan<'_>) -> Result<()> {
        // A plugin can exit before it reads its input.
        sys::survive_failed_writes();
        for entry in &plan.entries[1..] {
            let name = &entry.name;
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
        // The next installation removes a directory that stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unusable(name: &str, error: Error) -> Error {
    error.context(format_args!("the new {name} does not work here"))
}

/// Copies this executable.
fn copy(to: &Path) -> Result<()> {
    let copy = || {
        directory::copy(sys::own_executable(), to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))
    };
    copy().map_err(|error| failed("write", to, &error))
}
