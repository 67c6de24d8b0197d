//! The link to the installed executable in a directory of netavark's drivers.
//!
//! Podman takes each file of that directory for a driver, so the installer puts the link there and nothing else: no manifest, no
//! backup, no temporary file. A symbolic link needs none of them: it shows which installation it belongs to, and an upgrade of
//! the installation upgrades the driver.

use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use crate::cli::output::{NAME, usage_error};
use crate::error::{Error, Result};
use crate::fault;

use super::directory::{failed, make, real, remove, sync};
use super::existing::ExistingFile;
use super::plan::LinkMethod;
use super::report::{Change, Left, Report};

pub(super) struct Driver {
    directory: PathBuf,
    link: PathBuf,
    /// The executable of the plugin directory.
    executable: PathBuf,
    /// The link leads to the executable.
    is_of_this_installation: bool,
}

impl Driver {
    pub(super) fn new(directory: &str, plugins: &Path) -> Result<Self> {
        let (directory, executable) = (PathBuf::from(directory), plugins.join(NAME));
        let link = directory.join(NAME);
        let leads_to = link.canonicalize();
        let is_of_this_installation = leads_to.is_ok_and(|path| path == real(&executable));
        let driver = Self { directory, link, executable, is_of_this_installation };
        driver.refuse_plugin_directory()?;
        Ok(driver)
    }

    fn refuse_plugin_directory(&self) -> Result<()> {
        if self.executable.parent().map(real) != Some(real(&self.directory)) {
            return Ok(());
        }
        let path = self.directory.display();
        Err(usage_error(format!("--netavark {path}: it is the plugin directory")))
    }

    /// Fails if the file is of another program. No option replaces that: its backup would be a driver, too.
    pub(super) fn refuse(&self) -> Result<()> {
        match ExistingFile::examine(&self.link)? {
            Some(found) if !found.is_ours() => Err(Error::internal(format_args!(
                "cannot replace {}: {}",
                self.link.display(),
                found.reason()
            ))),
            _ => Ok(()),
        }
    }

    /// Makes the link to the executable, in place of an existing one of cnibox. A dry run changes nothing. Adds the change to the
    /// report.
    pub(super) fn place(&self, is_dry_run: bool, report: &mut Report) -> Result<()> {
        let found = ExistingFile::examine(&self.link)?;
        let is_link = found.as_ref().is_some_and(|found| found.target.is_some());
        if is_link && self.is_of_this_installation {
            return Ok(());
        }
        if !is_dry_run {
            make(&self.directory)?;
            // Now that both directories exist, their symbolic links are known.
            self.refuse_plugin_directory()?;
            // Not by a temporary link and a rename: after a kill podman would show the temporary link as a driver.
            if found.is_some() {
                remove(&self.link)?;
            }
            self.make_link()?;
        }
        let change = Change::to(&self.name(), LinkMethod::Symbolic.text(), found.as_ref(), false);
        report.changes.push(change);
        Ok(())
    }

    /// Removes the link. A file of another program, and the link of another installation stay.
    pub(super) fn remove(&self, is_dry_run: bool, report: &mut Report) -> Result<()> {
        let Some(found) = ExistingFile::examine(&self.link)? else { return Ok(()) };
        let is_of_another = found.metadata.is_some() && !self.is_of_this_installation;
        if !found.is_ours() || is_of_another {
            let reason =
                if found.is_ours() { "it is of another installation" } else { found.reason() };
            report.left.push(Left { name: self.name(), reason });
            return Ok(());
        }
        if !is_dry_run {
            remove(&self.link)?;
            sync(&self.directory)?;
        }
        report.changes.push(Change::of(["remove", "removed"], &self.name()));
        Ok(())
    }

    /// The target is relative, so the link is also right if both directories are below the root directory of an image or a host.
    fn make_link(&self) -> Result<()> {
        let target = relative(&real(&self.executable), &real(&self.directory));
        let made = fault::file_operation().and_then(|()| symlink(target, &self.link));
        made.map_err(|error| failed("create", &self.link, &error))?;
        sync(&self.directory)
    }

    fn name(&self) -> String {
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
