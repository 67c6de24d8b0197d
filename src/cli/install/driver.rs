//! The link to the installed executable in a directory of netavark's drivers.
//!
//! Podman takes each file of that directory for a driver, so the installer puts the link there and nothing else: no manifest, no
//! backup, no temporary file. A symbolic link needs none of them: it shows which installation it belongs to, and an upgrade of
//! the installation upgrades the driver.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use crate::cli::output::{NAME, usage_error};
use crate::error::Result;
use crate::fault;

use super::directory::{self, Directory, duplicate, existing, failed, make, real, remove, sync};
use super::existing::ExistingFile;
use super::plan::LinkMethod;
use super::report::{Change, Report};

pub(super) struct Driver {
    pub(super) directory: PathBuf,
    pub(super) link: PathBuf,
    /// The executable of the plugin directory.
    executable: PathBuf,
    /// The backup of the file that the link replaced. It is in the plugin directory. The dot separates it from the plugins.
    pub(super) backup: PathBuf,
}

impl Driver {
    pub(super) fn new(directory: &str, plugins: &Path) -> Result<Self> {
        let directory = PathBuf::from(directory);
        if real(&directory) == real(plugins) {
            let path = directory.display();
            return Err(usage_error(format!("--netavark {path}: it is the plugin directory")));
        }
        let link = directory.join(NAME);
        let executable = plugins.join(NAME);
        let backup = directory::backup(plugins, ".cnibox.driver");
        Ok(Self { directory, link, executable, backup })
    }

    /// The name and the reason for an error, if the installation must not replace the file.
    pub(super) fn refusal(&self, is_forced: bool) -> Result<Option<String>> {
        let found = ExistingFile::examine(&self.link)?;
        Ok(found.and_then(|found| found.refusal(&self.name(), is_forced)))
    }

    /// Makes the link to the executable, in place of an existing file. Without a locked plugin directory it changes nothing. Adds the
    /// change to the report.
    pub(super) fn place(
        &self,
        directory: Option<&Directory>,
        makes_backup: bool,
        report: &mut Report,
    ) -> Result<()> {
        let found = ExistingFile::examine(&self.link)?;
        let is_link = found.as_ref().is_some_and(|found| found.target.is_some());
        if is_link && self.is_of_this_installation() {
            return Ok(());
        }
        let needs_backup = makes_backup && found.as_ref().is_some_and(|found| !found.is_ours());
        if let Some(directory) = directory {
            make(&self.directory)?;
            if needs_backup {
                directory.make_backups()?;
                existing("remove", &self.backup, fs::remove_file(&self.backup))?;
                duplicate(&self.link, &self.backup)?;
                sync(&directory.path)?;
            }
            // Not by a temporary link and a rename: after a kill podman would show the temporary link as a driver.
            if found.is_some() {
                remove(&self.link)?;
            }
            self.make_link()?;
        }
        let change =
            Change::to(&self.name(), LinkMethod::Symbolic.text(), found.as_ref(), needs_backup);
        report.changes.push(change);
        Ok(())
    }

    /// The target is relative, so the link is also right if both directories are below the root directory of an image or a host.
    fn make_link(&self) -> Result<()> {
        let target = relative(&real(&self.executable), &real(&self.directory));
        let made = fault::file_operation().and_then(|()| symlink(target, &self.link));
        made.map_err(|error| failed("create", &self.link, &error))?;
        sync(&self.directory)
    }

    /// Whether the link leads to the executable of another directory.
    pub(super) fn is_of_another_installation(&self) -> Result<bool> {
        let found = ExistingFile::examine(&self.link)?;
        let is_ours = found.is_some_and(|found| found.is_ours() && found.metadata.is_some());
        Ok(is_ours && !self.is_of_this_installation())
    }

    /// Whether the link leads to the executable of the plugin directory.
    fn is_of_this_installation(&self) -> bool {
        self.link.canonicalize().is_ok_and(|path| path == real(&self.executable))
    }

    pub(super) fn name(&self) -> String {
        self.link.to_string_lossy().into()
    }
}

/// The path of a file relative to a directory. Neither path has symbolic links.
fn relative(file: &Path, directory: &Path) -> PathBuf {
    let pairs = file.components().zip(directory.components());
    let common = pairs.take_while(|(one, other)| one == other).count();
    let up = directory.components().skip(common).map(|_| Component::ParentDir);
    up.chain(file.components().skip(common)).collect()
}
