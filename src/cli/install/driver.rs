//! The link to the installed executable in a directory of netavark's drivers.
//!
//! Podman takes each file of that directory for a driver, so the installer puts the link there and nothing else: no manifest, no
//! backup, no temporary file. A symbolic link needs none of them: it shows which installation it belongs to, and an upgrade of
//! the installation upgrades the driver.

use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use crate::cli::output::{NAME, usage_error};
use crate::error::{Error, Result};

use super::Outside;
use super::directory::{make, operate, real, remove, sync};
use super::existing::ExistingFile;
use super::plan::LinkMethod;
use super::report::{Change, Report};

pub(super) struct Driver {
    directory: PathBuf,
    link: PathBuf,
    /// The plugin directory, in which the executable is.
    plugins: PathBuf,
    /// The link leads to the executable.
    is_of_this_installation: bool,
}

impl Driver {
    pub(super) fn of(directory: &str, plugins: &Path) -> Result<Box<dyn Outside>> {
        let (directory, plugins) = (PathBuf::from(directory), plugins.to_owned());
        let link = directory.join(NAME);
        let leads_to = link.canonicalize();
        let is_of_this_installation = leads_to.is_ok_and(|path| path == real(&plugins.join(NAME)));
        let driver = Self { directory, link, plugins, is_of_this_installation };
        driver.refuse_plugin_directory()?;
        Ok(Box::new(driver))
    }

    fn refuse_plugin_directory(&self) -> Result<()> {
        let path = self.directory.display();
        match real(&self.plugins) == real(&self.directory) {
            true => Err(usage_error(format!("--netavark {path}: it is the plugin directory"))),
            false => Ok(()),
        }
    }

    fn make_link(&self, exists: bool) -> Result<()> {
        make(&self.directory)?;
        // Now that both directories exist, their symbolic links are known.
        self.refuse_plugin_directory()?;
        // Not by a temporary link and a rename: after a kill podman would show the temporary link as a driver.
        if exists {
            remove(&self.link)?;
        }
        // The target is relative, so the link is also right if both directories are below the root directory of an image or a
        // host.
        let target = relative(&real(&self.plugins).join(NAME), &real(&self.directory));
        operate("create", &self.link, || symlink(target, &self.link))?;
        sync(&self.directory)
    }

    fn name(&self) -> String {
        self.link.to_string_lossy().into()
    }
}

impl Outside for Driver {
    /// Makes the link to the executable, in place of an existing one of cnibox. No option replaces a file of another program:
    /// its backup would be a driver, too.
    fn place(&self, report: &mut Report) -> Result<()> {
        let found = ExistingFile::examine(&self.link)?;
        if let Some(found) = &found {
            if !found.is_ours() {
                let (link, reason) = (self.link.display(), found.reason());
                return Err(Error::internal(format_args!("cannot replace {link}: {reason}")));
            }
            if found.target.is_some() && self.is_of_this_installation {
                return Ok(());
            }
        }
        let change = Change::to(&self.name(), LinkMethod::Symbolic.text(), found.as_ref());
        let made = report.make(change, || self.make_link(found.is_some()));
        made.map_err(|error| error.context("cannot place the driver"))
    }

    /// Removes the link. A file of another program, and the link of another installation stay.
    fn remove(&self, report: &mut Report) -> Result<()> {
        let Some(found) = ExistingFile::examine(&self.link)? else { return Ok(()) };
        if !found.is_ours() {
            report.leave(&self.name(), found.reason());
        } else if found.metadata.is_some() && !self.is_of_this_installation {
            report.leave(&self.name(), "it is of another installation");
        } else {
            let removed = report.make(Change::remove(&self.name()), || {
                remove(&self.link)?;
                sync(&self.directory)
            });
            removed.map_err(|error| error.context("cannot remove the driver"))?;
        }
        Ok(())
    }
}

/// The path of a file relative to a directory. Neither path has symbolic links.
fn relative(file: &Path, directory: &Path) -> PathBuf {
    let pairs = file.components().zip(directory.components());
    let common = pairs.take_while(|(one, other)| one == other).count();
    let up = directory.components().skip(common).map(|_| Component::ParentDir);
    up.chain(file.components().skip(common)).collect()
}
