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
use crate::kernel::sys::{self, warn};
use crate::plugin::execute;

use super::directory::{
    self, BACKUPS, Directory, MANIFEST, STAGING, duplicate, failed, operate, rename, sync,
};
use super::plan::{LinkMethod, Plan, Planned};

/// The timeout of a new plugin's answer to VERSION.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn carry_out(plan: &mut Plan, directory: &Directory) -> Result<()> {
    if plan.is_changed() {
        let staging = Staging::make(directory)?;
        staging.fill(plan, directory)?;
        staging.verify(plan)?;
        write_manifest(plan, directory, false)?;
        back_up(plan, directory, &staging)?;
        for entry in plan.0.iter().filter(|entry| entry.is_changed) {
            rename(&staging.file(&entry.name), &directory.file(&entry.name))?;
        }
        sync(&directory.path)?;
    }
    write_manifest(plan, directory, true)
}

/// Replaces the manifest if it has another text, and writes it to the disk with fsync.
fn write_manifest(plan: &Plan, directory: &Directory, is_complete: bool) -> Result<()> {
    let (path, text) = (directory.file(MANIFEST), plan.manifest(is_complete));
    let is_written = file::read(&path).is_ok_and(|old| old == text.as_bytes());
    let replace = || {
        let aside = file::Aside::write(&path, text.as_bytes(), 0o644)?;
        fault::file_operation()?;
        aside.file().sync_all()?;
        aside.rename(&path)
    };
    if !is_written {
        replace().map_err(|error| failed("write", &path, &error))?;
    }
    sync(&directory.path)
}

/// Gives each file that is to be replaced a second name as its backup. The file keeps its first name until the new file
/// replaces it, so a runtime always finds the old or the new file.
fn back_up(plan: &Plan, directory: &Directory, staging: &Staging) -> Result<()> {
    if !plan.0.iter().any(|entry| entry.needs_backup) {
        return Ok(());
    }
    directory.make_backups()?;
    for entry in plan.0.iter().filter(|entry| entry.needs_backup) {
        let aside = staging.file(&format!("backup-{}", entry.name));
        duplicate(&directory.file(&entry.name), &aside)?;
        rename(&aside, &directory.backup(&entry.name))?;
    }
    sync(&directory.file(BACKUPS))?;
    sync(&directory.path)
}

/// A temporary directory in the plugin directory. It is removed, with its files, when the value is dropped.
struct Staging(PathBuf);

impl Staging {
    fn make(directory: &Directory) -> Result<Self> {
        let staging = Self(directory.file(&format!("{STAGING}{}", std::process::id())));
        operate("make", &staging.0, || DirBuilder::new().mode(0o700).create(&staging.0))?;
        Ok(staging)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes all files of the plan, the executable first. Where no hard link is possible, the entry becomes a copy.
    fn fill(&self, plan: &mut Plan, directory: &Directory) -> Result<()> {
        let mut why_copies = None;
        for entry in &mut plan.0 {
            let path = self.file(&entry.name);
            match entry.method {
                // An executable that does not change is linked, not copied: hard links need its inode.
                LinkMethod::Executable if !entry.is_changed => {
                    duplicate(&directory.file(NAME), &path)?;
                }
                LinkMethod::Executable | LinkMethod::Copy => copy(&path)?,
                LinkMethod::Symbolic => operate("create", &path, || symlink(NAME, &path))?,
                LinkMethod::Hard => {
                    if let Some(why) = duplicate(&self.file(NAME), &path)? {
                        entry.method = LinkMethod::Copy;
                        why_copies = Some(why);
                    }
                }
            }
        }
        if let Some(why) = why_copies {
            warn(format_args!("note: a copy for each hard link: {why}"));
        }
        Ok(())
    }

    /// Executes each new file once with VERSION, so that a file that this host cannot execute replaces nothing.
    fn verify(&self, plan: &Plan) -> Result<()> {
        // A plugin can exit before it reads its input.
        sys::survive_failed_writes();
        for Planned { name, .. } in &plan.0[1..] {
            let versions = execute::supported_versions(&self.file(name), Some(ANSWER_LIMIT));
            let is_usable = versions.and_then(|versions| match versions.is_empty() {
                true => Err(Error::internal("it supports no version")),
                false => Ok(()),
            });
            is_usable.map_err(|error| {
                error.context(format_args!("the new {name} does not work here"))
            })?;
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

/// Copies this executable.
fn copy(to: &Path) -> Result<()> {
    let copy = || {
        directory::copy(sys::own_executable(), to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o755))
    };
    copy().map_err(|error| failed("write", to, &error))
}
