//! The changes that an installation has to make: the file that each name has, and the one that it gets.

use std::fs;
use std::path::Path;

use crate::cli::NAME;
use crate::cli::executable::{self, Kind};
use crate::error::{Error, Result};
use crate::kernel::sys::warn;
use crate::plugin::Entry as Plugin;

use super::choice::leads_to;
use super::directory::{BACKUP, Looks, State, failed, sha512};
use super::manifest::{self, Installed, Manifest};
use super::{Change, Install};

/// How a name leads to the executable. Where a file system refuses one, the next replaces it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    Hard,
    Symbolic,
    Copy,
}

impl Manner {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Hard => "hard link",
            Self::Symbolic => "symbolic link",
            Self::Copy => "copy",
        }
    }
}

/// A name in the directory.
pub(super) struct Entry {
    pub(super) it: Installed,
    /// The executable itself is a copy. A name that only stays in the manifest has none.
    pub(super) manner: Option<Manner>,
    state: State,
    pub(super) is_changed: bool,
    /// The file is another's, and will be replaced. It gets a backup.
    pub(super) needs_backup: bool,
}

/// All names, the executable first.
pub(super) struct Plan<'a> {
    pub(super) entries: Vec<Entry>,
    path: &'a Path,
    manner: Manner,
    /// Replaced files of others get backups.
    backup: bool,
    looks: Looks,
    made_directory: bool,
    /// SHA-512 of the builds after the changes, and of those that they replace.
    builds: Vec<String>,
    replaced_builds: Vec<String>,
    /// Links of an earlier installation that would lead to a plugin that this build lacks.
    broken: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Looks at the directory, which does not exist in a dry run that would make it.
    pub(super) fn new(
        install: &Install,
        names: Vec<Installed>,
        path: &'a Path,
        is_made: bool,
        plugins: &[Plugin],
    ) -> Result<Self> {
        let own = executable::own_content()
            .map_err(|error| failed("read", Path::new("the executable"), &error))?;
        // The installation replaces a damaged manifest.
        let old = Manifest::read(path).unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            None
        });
        let old = old.unwrap_or_default();
        let mut plan = Self {
            entries: Vec::new(),
            path,
            manner: match () {
                () if install.symbolic => Manner::Symbolic,
                () if install.copy => Manner::Copy,
                () => Manner::Hard,
            },
            backup: install.backup,
            looks: Looks::default(),
            made_directory: is_made || old.made_directory,
            builds: vec![sha512(&own)],
            replaced_builds: old.builds,
            broken: Vec::new(),
        };
        plan.add(Installed::new(NAME.into(), "", ""))?;
        for name in names {
            plan.add(name)?;
        }
        for mut it in old.names {
            match plan.entries.iter_mut().find(|entry| entry.it.name == it.name) {
                None => plan.add_earlier(it, plugins)?,
                Some(entry) if entry.it.replaced.is_empty() => {
                    entry.it.replaced = std::mem::take(&mut it.replaced);
                }
                Some(_) => {}
            }
        }
        Ok(plan)
    }

    fn add(&mut self, it: Installed) -> Result<()> {
        let path = self.path.join(&it.name);
        let state = self.looks.look(&path)?;
        self.add_looked(it, state, &path)
    }

    fn add_looked(&mut self, mut it: Installed, state: State, path: &Path) -> Result<()> {
        let is_own_file = state.kind == Some(Kind::Own) && state.target.is_none();
        let (manner, is_current) = match (self.manner, self.entries.first()) {
            (_, None) => (Manner::Copy, is_own_file),
            (manner, Some(_)) if manner == Manner::Symbolic || it.needs_link() => {
                let target = state.target.as_ref();
                let is_it = target.is_some_and(|text| text.as_os_str() == it.target.as_str());
                (Manner::Symbolic, is_it)
            }
            (Manner::Copy, _) => (Manner::Copy, is_own_file && state.is_alone),
            (manner, Some(first)) => {
                let is_same = state.inode == first.state.inode;
                (manner, is_own_file && is_same && !first.is_changed)
            }
        };
        let foreign = state.kind.filter(|_| !state.is_ours());
        if let Some(kind) = foreign {
            it.replaced = noun(kind).into();
        }
        let needs_backup = self.backup && foreign.is_some();
        it.backup.clear();
        if needs_backup || self.has_backup(&it.name) {
            it.backup = [BACKUP, "/", &it.name].concat();
        }
        let is_seen = |inode| self.entries.iter().any(|entry| entry.state.inode == inode);
        let is_file = state.inode != State::MISSING.inode;
        if state.kind == Some(Kind::Cnibox) && is_file && !is_seen(state.inode) {
            let build = build(path)?;
            self.replaced_builds.push(build);
        }
        let manner = Some(manner);
        self.entries.push(Entry { it, manner, state, is_changed: !is_current, needs_backup });
        Ok(())
    }

    /// A name of an earlier installation that the arguments do not choose. It gets this build, too.
    fn add_earlier(&mut self, mut it: Installed, plugins: &[Plugin]) -> Result<()> {
        let path = self.path.join(&it.name);
        let state = self.looks.look(&path)?;
        if !state.is_ours() {
            if self.has_backup(&it.name) {
                self.keep(it);
            }
        } else if plugins.iter().any(|plugin| plugin.name == it.plugin) {
            if leads_to(&it.name, &it.plugin) {
                it.target = NAME.into();
            }
            return self.add_looked(it, state, &path);
        } else if state.target.is_some() {
            self.broken.push(it.name);
        } else {
            let build = build(&path)?;
            self.builds.push(build);
            self.keep(it);
        }
        Ok(())
    }

    /// A name that only stays in the manifest.
    fn keep(&mut self, it: Installed) {
        let state = State::MISSING;
        let entry = Entry { it, manner: None, state, is_changed: false, needs_backup: false };
        self.entries.push(entry);
    }

    fn has_backup(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(BACKUP).join(name)).is_ok()
    }

    /// Fails if the changes would destroy something, and names all of it. `is_forced` allows to replace plugins of others.
    pub(super) fn refuse(&self, is_forced: bool) -> Result<()> {
        let mut foreign = Vec::new();
        for Entry { it, state, .. } in &self.entries {
            if state.is_directory || !is_forced && state.kind.is_some() && !state.is_ours() {
                foreign.push(format!("{} ({})", it.name, state.reason()));
            }
        }
        if !self.broken.is_empty() {
            let names = self.broken.join(", ");
            return Err(Error::internal(format_args!(
                "{names} would not work: this build lacks the plugin; remove the name, or use a build that has it"
            )));
        }
        if foreign.is_empty() {
            return Ok(());
        }
        let names = foreign.join(", ");
        Err(Error::internal(format_args!(
            "File exists: {names}; --force replaces files, and --backup keeps them"
        )))
    }

    /// Whether a file has to change, apart from the manifest.
    pub(super) fn is_changed(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_changed)
    }

    /// The text of the manifest: before the changes, with all builds that a name may be, or after them.
    pub(super) fn manifest(&self, is_complete: bool) -> String {
        let builds = [&self.builds[..], &self.replaced_builds];
        let builds = if is_complete { &builds[..1] } else { &builds };
        manifest::text(is_complete, self.made_directory, builds, &self.entries)
    }

    /// The report.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.is_changed) {
            let replaced = entry.state.kind.map_or("", noun);
            let is_new = replaced.is_empty();
            let verb = if is_new { ["create", "created"] } else { ["replace", "replaced"] };
            let mut change = Change::of(verb, &entry.it.name);
            change.kind = entry.manner_text();
            change.replaced = replaced;
            change.has_backup = entry.needs_backup;
            changes.push(change);
        }
        changes
    }
}

/// The identity of an executable.
fn build(path: &Path) -> Result<String> {
    executable::read(path).map(|it| sha512(&it)).map_err(|error| failed("read", path, &error))
}

/// A file in words.
fn noun(kind: Kind) -> &'static str {
    match kind {
        Kind::Damaged(_) => "a damaged file",
        Kind::Own => "another link or copy of cnibox",
        Kind::Cnibox => "another build of cnibox",
        Kind::Go => "a program in Go",
        Kind::Other => "another program",
    }
}

impl Entry {
    /// The new file in words.
    pub(super) fn kind(&self) -> &str {
        if self.manner.is_some() { self.manner_text() } else { &self.it.kind }
    }

    fn manner_text(&self) -> &'static str {
        match self.manner {
            Some(manner) if !self.it.plugin.is_empty() => manner.text(),
            _ => "executable",
        }
    }

    /// The text of the symbolic link, if it is one.
    pub(super) fn link(&self) -> &str {
        let is_link = self.manner.is_none_or(|manner| manner == Manner::Symbolic);
        if is_link { &self.it.target } else { "" }
    }
}
