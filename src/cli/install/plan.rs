//! The changes that an installation has to make: what each name is now, and what it is to be.

use std::fs;
use std::path::Path;

use crate::cli::NAME;
use crate::cli::executable::{self, Kind};
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::sys::warn;
use crate::plugin::Entry as Plugin;

use super::choice::{Name, leads_to};
use super::directory::{BACKUP, Directory, Looks, State, failed, sha512};
use super::manifest::{Installed, Manifest};
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
    pub(super) name: Name,
    /// The executable itself is a copy.
    pub(super) manner: Manner,
    pub(super) state: State,
    pub(super) is_changed: bool,
    /// The file is another's, and will be replaced. It gets a backup.
    pub(super) needs_backup: bool,
    /// There is a backup from before.
    has_backup: bool,
    /// The replaced file of another, in words.
    replaced: String,
}

/// All names, the executable first.
pub(super) struct Plan {
    pub(super) entries: Vec<Entry>,
    pub(super) own: Vec<u8>,
    pub(super) old: Option<Manifest>,
    made_directory: bool,
    /// Names of the old manifest that this installation does not change.
    kept: Vec<Installed>,
    kept_builds: Vec<String>,
    /// Links of an earlier installation that would lead to a plugin that this build lacks.
    broken: Vec<String>,
}

/// The directory before the changes.
struct Before<'a> {
    path: &'a Path,
    exists: bool,
    looks: Looks,
    old: Vec<Installed>,
}

impl Plan {
    /// Looks at the directory, which does not exist in a dry run that would make it.
    pub(super) fn new(
        install: &Install,
        names: Vec<Name>,
        path: &Path,
        directory: Option<&Directory>,
        plugins: &[Plugin],
    ) -> Result<Self> {
        let own = executable::own_content()
            .map_err(|error| failed("read", Path::new("/proc/self/exe"), &error))?;
        // The installation replaces a damaged manifest.
        let old = Manifest::read(path).unwrap_or_else(|error| {
            warn(format_args!("warning: {error}"));
            None
        });
        let mut before = Before {
            path,
            exists: directory.is_some(),
            looks: Looks::default(),
            old: old.as_ref().map(|it| it.names.clone()).unwrap_or_default(),
        };
        let manner = match () {
            () if install.symbolic => Manner::Symbolic,
            () if install.copy => Manner::Copy,
            () => Manner::Hard,
        };
        let name = Name { name: NAME.into(), plugin: String::new(), target: String::new() };
        let mut plan = Self {
            entries: vec![before.entry(name, Manner::Copy, install.backup, None)?],
            own,
            made_directory: directory.is_some_and(|it| it.is_made)
                || old.as_ref().is_some_and(|it| it.made_directory),
            old,
            kept: Vec::new(),
            kept_builds: Vec::new(),
            broken: Vec::new(),
        };
        for name in names {
            plan.add(&mut before, name, manner, install.backup)?;
        }
        for it in before.old.clone() {
            plan.add_earlier(&mut before, it, manner, plugins, install.backup)?;
        }
        Ok(plan)
    }

    fn add(
        &mut self,
        before: &mut Before<'_>,
        name: Name,
        manner: Manner,
        backup: bool,
    ) -> Result<()> {
        let manner = if name.needs_link() { Manner::Symbolic } else { manner };
        let entry = before.entry(name, manner, backup, self.entries.first())?;
        self.entries.push(entry);
        Ok(())
    }

    /// A name of an earlier installation that the arguments do not choose. It gets this build, too.
    fn add_earlier(
        &mut self,
        before: &mut Before<'_>,
        it: Installed,
        manner: Manner,
        plugins: &[Plugin],
        backup: bool,
    ) -> Result<()> {
        if self.entries.iter().any(|entry| entry.name.name == it.name) {
            return Ok(());
        }
        let path = before.path.join(&it.name);
        let state = before.looks.look(&path)?;
        let has_plugin = plugins.iter().any(|plugin| plugin.name == it.plugin);
        if !state.is_ours() {
            if before.has_backup(&it.name) {
                self.kept.push(it);
            }
        } else if has_plugin {
            let target = if leads_to(&it.name, &it.plugin) { NAME } else { &it.target };
            let name = Name { target: target.into(), name: it.name, plugin: it.plugin };
            self.add(before, name, manner, backup)?;
        } else if state.target.is_some() {
            self.broken.push(it.name);
        } else {
            let content = file::read(&path).map_err(|error| failed("read", &path, &error))?;
            self.kept_builds.push(sha512(&content));
            self.kept.push(it);
        }
        Ok(())
    }

    /// Fails if the changes would destroy something, and names all of it. `is_forced` allows to replace plugins of others.
    pub(super) fn refuse(&self, is_forced: bool) -> Result<()> {
        let (mut foreign, mut directories) = (Vec::new(), Vec::new());
        for Entry { name, state, .. } in &self.entries {
            if state.is_directory {
                directories.push(name.name.as_str());
            } else if state.kind.is_some() && !state.is_ours() {
                foreign.push(format!("{} ({})", name.name, state.reason()));
            }
        }
        if !directories.is_empty() {
            let names = directories.join(", ");
            return Err(Error::internal(format_args!("{names}: Is a directory")));
        }
        if !self.broken.is_empty() {
            let names = self.broken.join(", ");
            return Err(Error::internal(format_args!(
                "{names} would not work: this build lacks the plugin; remove the name, or use a build that has it"
            )));
        }
        if foreign.is_empty() || is_forced {
            return Ok(());
        }
        let names = foreign.join(", ");
        Err(Error::internal(format_args!(
            "File exists: {names}; --force replaces it, and --backup keeps it"
        )))
    }

    /// Whether a file has to change, apart from the manifest.
    pub(super) fn is_changed(&self) -> bool {
        self.entries.iter().any(|entry| entry.is_changed)
    }

    /// The manifest before the changes, with all builds that a name may be, or after them.
    pub(super) fn manifest(&self, directory: &Directory, is_complete: bool) -> Result<Manifest> {
        let mut builds = vec![sha512(&self.own)];
        let mut add = |build: &str| {
            if !builds.iter().any(|it| it == build) {
                builds.push(build.to_owned());
            }
        };
        self.kept_builds.iter().for_each(|it| add(it));
        if !is_complete {
            self.old.iter().flat_map(|it| &it.builds).for_each(|it| add(it));
            let mut seen = Vec::new();
            for Entry { name, state, .. } in &self.entries {
                let is_older = state.kind == Some(Kind::Cnibox) && state.inode.1 != 0;
                if is_older && !seen.contains(&state.inode) {
                    seen.push(state.inode);
                    let path = directory.file(&name.name);
                    let content = file::read(&path).map_err(|it| failed("read", &path, &it))?;
                    add(&sha512(&content));
                }
            }
        }
        let mut names: Vec<Installed> = self.entries.iter().map(Entry::installed).collect();
        names.extend(self.kept.iter().cloned());
        let made_directory = self.made_directory;
        Ok(Manifest { is_complete, made_directory, builds, names })
    }

    /// The report.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for entry in &self.entries {
            if entry.is_changed {
                let replaced = match entry.state.kind {
                    None => "",
                    Some(kind) => noun(kind),
                };
                let is_new = replaced.is_empty();
                let verb = if is_new { ["create", "created"] } else { ["replace", "replaced"] };
                let mut change = Change::of(verb, &entry.name.name);
                change.kind = entry.kind();
                change.replaced = replaced.into();
                change.has_backup = entry.needs_backup;
                changes.push(change);
            }
        }
        changes
    }
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

impl Before<'_> {
    fn has_backup(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(BACKUP).join(name)).is_ok()
    }

    /// `executable` is the entry of the executable, for the other names.
    fn entry(
        &mut self,
        name: Name,
        manner: Manner,
        backup: bool,
        executable: Option<&Entry>,
    ) -> Result<Entry> {
        let state = match self.exists {
            true => self.looks.look(&self.path.join(&name.name))?,
            false => State::MISSING,
        };
        let is_own_file = state.kind == Some(Kind::Own) && state.target.is_none();
        let is_current = match (manner, executable) {
            (_, None) => is_own_file,
            (Manner::Hard, Some(it)) => {
                is_own_file && !it.is_changed && state.inode == it.state.inode
            }
            (Manner::Copy, Some(_)) => is_own_file && state.is_alone,
            (Manner::Symbolic, Some(_)) => {
                state.target.as_ref().is_some_and(|it| it.as_os_str() == name.target.as_str())
            }
        };
        let is_foreign = state.kind.is_some() && !state.is_ours();
        let replaced = match (is_foreign, state.kind) {
            (true, Some(kind)) => noun(kind).into(),
            _ => {
                let earlier = self.old.iter().find(|it| it.name == name.name);
                earlier.map(|it| it.replaced.clone()).unwrap_or_default()
            }
        };
        Ok(Entry {
            is_changed: !is_current,
            needs_backup: backup && is_foreign,
            has_backup: self.has_backup(&name.name),
            replaced,
            name,
            manner,
            state,
        })
    }
}

impl Entry {
    /// The new file in words.
    fn kind(&self) -> &'static str {
        if self.name.plugin.is_empty() { "executable" } else { self.manner.text() }
    }

    fn installed(&self) -> Installed {
        let mut installed = Installed {
            name: self.name.name.clone(),
            plugin: self.name.plugin.clone(),
            kind: self.kind().into(),
            replaced: self.replaced.clone(),
            ..Installed::default()
        };
        if self.manner == Manner::Symbolic {
            installed.target.clone_from(&self.name.target);
        }
        if self.needs_backup || self.has_backup {
            installed.keep_backup();
        }
        installed
    }
}
