//! The plan of an installation: for each name the file that exists, and the file that replaces it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cli::executable::FileKind;
use crate::cli::output::NAME;
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::plugin::VERSION;

use super::existing::ExistingFile;
use super::manifest::{Installed, Manifest};
use super::report::Change;

/// How a name is made from the executable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkMethod {
    /// The executable itself.
    Executable,
    Hard,
    Symbolic,
    Copy,
}

impl LinkMethod {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Executable => "executable",
            Self::Hard => "hard link",
            Self::Symbolic => "symbolic link",
            Self::Copy => "copy",
        }
    }
}

/// A name of the plan.
pub(super) struct Planned {
    pub(super) name: String,
    /// The plugin that the name runs. Empty for the executable.
    plugin: &'static str,
    pub(super) method: LinkMethod,
    /// The file with this name now.
    found: Option<ExistingFile>,
    pub(super) is_changed: bool,
    /// The file is of another program, and gets a backup before it is replaced.
    pub(super) needs_backup: bool,
}

/// All names, the executable first.
pub(super) struct Plan<'a> {
    pub(super) entries: Vec<Planned>,
    path: &'a Path,
    method: LinkMethod,
    /// Whether replaced files of other programs get backups.
    makes_backups: bool,
    /// Whether the manifest in the directory differs from that of the plan.
    pub(super) has_other_manifest: bool,
}

impl<'a> Plan<'a> {
    /// Reads the directory, if it exists, and makes the plan.
    pub(super) fn new(
        path: &'a Path,
        method: LinkMethod,
        makes_backups: bool,
        names: Vec<(String, &'static str)>,
    ) -> Result<Self> {
        // The installation replaces a damaged manifest.
        let old = Manifest::read(path).unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            None
        });
        let old = old.unwrap_or_default();
        let mut plan =
            Self { entries: Vec::new(), path, method, makes_backups, has_other_manifest: false };
        plan.add(NAME.into(), "")?;
        for (name, plugin) in names {
            plan.add(name, plugin)?;
        }
        for Installed { name, .. } in &old.names {
            plan.add_earlier(name)?;
        }
        plan.has_other_manifest = plan.manifest(true) != old.text();
        Ok(plan)
    }

    fn add(&mut self, name: String, plugin: &'static str) -> Result<()> {
        if self.entries.iter().any(|entry| entry.name == name) {
            return Ok(());
        }
        let method = if self.entries.is_empty() { LinkMethod::Executable } else { self.method };
        let found = ExistingFile::examine(&self.path.join(&name))?;
        let is_foreign = found.as_ref().is_some_and(|found| !found.is_ours());
        let is_current = found.as_ref().is_some_and(|found| self.is_current(found, method));
        self.entries.push(Planned {
            name,
            plugin,
            method,
            found,
            is_changed: !is_current,
            needs_backup: self.makes_backups && is_foreign,
        });
        Ok(())
    }

    /// Whether the existing file is what the installation would put there.
    fn is_current(&self, found: &ExistingFile, method: LinkMethod) -> bool {
        let metadata = found.metadata.as_ref();
        let is_own = found.kind == FileKind::Own && found.target.is_none();
        match (method, self.entries.first()) {
            (LinkMethod::Symbolic, _) => {
                found.target.as_ref().is_some_and(|target| target.as_os_str() == NAME)
            }
            (LinkMethod::Copy, _) => is_own && metadata.is_some_and(|file| file.nlink() == 1),
            (LinkMethod::Hard, Some(Planned { found: Some(first), is_changed: false, .. })) => {
                let inode = |file: &Metadata| (file.dev(), file.ino());
                is_own && metadata.map(inode) == first.metadata.as_ref().map(inode)
            }
            (LinkMethod::Hard, _) => false,
            (LinkMethod::Executable, _) => is_own,
        }
    }

    /// Adds a name of an earlier installation that the arguments do not select: it gets this build, too.
    fn add_earlier(&mut self, name: &str) -> Result<()> {
        let found = ExistingFile::examine(&self.path.join(name))?;
        if name == NAME || !found.is_some_and(|found| found.is_ours()) {
            return Ok(());
        }
        match crate::find(name) {
            Some(plugin) => self.add(name.into(), plugin.name),
            None => Err(Error::internal(format_args!(
                "{name} would not work: this build lacks the plugin; remove the name, or use a build that has it"
            ))),
        }
    }

    /// Fails if the changes would replace directories or, unless `is_forced`, files of other programs. The error names all of
    /// them.
    pub(super) fn refuse(&self, is_forced: bool) -> Result<()> {
        let mut refused = Vec::new();
        for Planned { name, found, .. } in &self.entries {
            if let Some(found) = found
                && (found.metadata.as_ref().is_some_and(Metadata::is_dir)
                    || !is_forced && !found.is_ours())
            {
                refused.push(format!("{name} ({})", found.reason()));
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(Error::internal(format_args!(
            "File exists: {}; --force replaces files, and --backup keeps them",
            refused.join(", ")
        )))
    }

    /// Whether a file other than the manifest changes.
    pub(super) fn is_changed(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_changed)
    }

    /// The text of the manifest. It is written with `is_complete` false before the changes, and with true after them.
    pub(super) fn manifest(&self, is_complete: bool) -> String {
        let installed = |entry: &Planned| Installed {
            name: entry.name.clone(),
            plugin: entry.plugin.into(),
            kind: entry.method.text().into(),
        };
        let (version, commit) = (VERSION.into(), env!("CNIBOX_COMMIT").into());
        let names = self.entries.iter().map(installed).collect();
        Manifest { version, commit, is_complete, names }.text()
    }

    /// The changes, for the report.
    pub(super) fn changes(&self) -> Vec<Change> {
        let changed = self.entries.iter().filter(|entry| entry.is_changed);
        let change = |entry: &Planned| {
            Change::to(&entry.name, entry.method.text(), entry.found.as_ref(), entry.needs_backup)
        };
        changed.map(change).collect()
    }
}
