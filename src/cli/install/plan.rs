//! The plan of an installation: for each name the file that exists, and the file that replaces it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cli::executable::FileKind;
use crate::cli::output::NAME;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::sys::warn;
use crate::plugin::VERSION;
use crate::plugins;

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

/// The names of an installation, the executable first.
pub(super) struct Plan(pub(super) Vec<Planned>);

impl Plan {
    /// Reads the directory, if it exists, and makes the plan. With `makes_backups`, replaced files of other programs get backups.
    pub(super) fn new(
        path: &Path,
        method: LinkMethod,
        makes_backups: bool,
        mut names: Vec<(String, &'static str)>,
    ) -> Result<Self> {
        names.extend(earlier(path)?);
        names.insert(0, (NAME.into(), ""));
        let mut entries: Vec<Planned> = Vec::new();
        for (name, plugin) in names {
            if entries.iter().any(|entry| entry.name == name) {
                continue;
            }
            let method = if entries.is_empty() { LinkMethod::Executable } else { method };
            let file = path.join(&name);
            let found = ExistingFile::examine(&file)?;
            let is_current = found.as_ref().is_some_and(|found| {
                let is_own = found.kind == FileKind::Own && found.target.is_none();
                let is_only = |file: &Metadata| file.nlink() == 1;
                match method {
                    LinkMethod::Executable => is_own,
                    LinkMethod::Hard if entries[0].is_changed => false,
                    LinkMethod::Hard => is_own && file::is_same(&file, &path.join(NAME)),
                    LinkMethod::Symbolic => {
                        found.target.as_ref().is_some_and(|target| target.as_os_str() == NAME)
                    }
                    LinkMethod::Copy => is_own && found.metadata.as_ref().is_some_and(is_only),
                }
            });
            let needs_backup = makes_backups && found.as_ref().is_some_and(|file| !file.is_ours());
            let is_changed = !is_current;
            entries.push(Planned { name, plugin, method, found, is_changed, needs_backup });
        }
        Ok(Self(entries))
    }

    /// Fails if the changes would replace directories or, unless `is_forced`, files of other programs. The error names all of
    /// them.
    pub(super) fn refuse(&self, is_forced: bool) -> Result<()> {
        let refused = self.0.iter().filter_map(|Planned { name, found, .. }| {
            let found = found.as_ref()?;
            let is_directory = found.metadata.as_ref().is_some_and(Metadata::is_dir);
            let is_refused = is_directory || !is_forced && !found.is_ours();
            is_refused.then(|| format!("{name} ({})", found.reason()))
        });
        let refused: Vec<String> = refused.collect();
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
        self.0.iter().any(|entry| entry.is_changed)
    }

    /// The text of the manifest. It is written with `is_complete` false before the changes, and with true after them.
    pub(super) fn manifest(&self, is_complete: bool) -> String {
        let installed = |entry: &Planned| Installed {
            name: entry.name.clone(),
            plugin: entry.plugin.into(),
            kind: entry.method.text().into(),
        };
        let (version, commit) = (VERSION.into(), env!("CNIBOX_COMMIT").into());
        let names = self.0.iter().map(installed).collect();
        Manifest { version, commit, is_complete, names }.text()
    }

    /// The changes, for the report.
    pub(super) fn changes(&self) -> impl Iterator<Item = Change> {
        let changed = self.0.iter().filter(|entry| entry.is_changed);
        changed.map(|Planned { name, method, found, needs_backup, .. }| Change {
            has_backup: *needs_backup,
            ..Change::to(name, method.text(), found.as_ref())
        })
    }
}

/// The names of an earlier installation that still have its files, and their plugins: they get this build, too.
fn earlier(path: &Path) -> Result<Vec<(String, &'static str)>> {
    // The installation replaces a damaged manifest.
    let old = Manifest::read(path).unwrap_or_else(|error| {
        warn(format_args!("warning: {error}"));
        None
    });
    let mut names = Vec::new();
    for Installed { name, .. } in old.unwrap_or_default().names {
        let found = ExistingFile::examine(&path.join(&name))?;
        if name == NAME || !found.is_some_and(|found| found.is_ours()) {
            continue;
        }
        let plugin = plugins::called(&name).ok_or_else(|| {
            Error::internal(format_args!(
                "{name} would not work: this build lacks the plugin; remove the name, or use a build that has it"
            ))
        })?;
        names.push((name, plugin.name));
    }
    Ok(names)
}
