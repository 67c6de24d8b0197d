//! Removes an installation, and puts back what it replaced.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::cli::{NAME, executable};
use crate::error::{Error, Result};
use crate::plugin::Entry as Plugin;

use super::directory::{
    BACKUP, Directory, Looks, MANIFEST, State, failed, remove, rename, sha512, sync,
};
use super::manifest::{Installed, Manifest};
use super::{Change, REMOVE, Report};

struct Removal<'a> {
    directory: &'a Directory,
    is_dry_run: bool,
    builds: &'a [String],
    looks: Looks,
    /// Whether a file is one of the builds, by its inode.
    known: Vec<((u64, u64), bool)>,
    report: Report,
}

pub(super) fn uninstall(path: &Path, is_dry_run: bool, plugins: &[Plugin]) -> Result<Report> {
    let Some(directory) = Directory::open(path)? else { return Ok(Report::default()) };
    if !is_dry_run {
        directory.remove_staging()?;
    }
    let Some(manifest) = Manifest::read(path)? else {
        return without_manifest(&directory, plugins);
    };
    if !is_dry_run && fs::symlink_metadata(directory.file(BACKUP)).is_ok() {
        directory.open_backups()?;
    }
    let mut removal = Removal {
        directory: &directory,
        is_dry_run,
        builds: &manifest.builds,
        looks: Looks::default(),
        known: Vec::new(),
        report: Report::default(),
    };
    let mut errors = Vec::new();
    // The executable, to which links lead, is the last.
    for installed in manifest.names.iter().rev() {
        if let Err(error) = removal.remove(installed) {
            errors.push(error);
        }
    }
    Error::joined(errors)?;
    if !is_dry_run {
        removal.finish(manifest.made_directory)?;
    }
    Ok(removal.report)
}

/// A package or a copy of files has no manifest. Nothing is left of a removal that was killed at its end.
fn without_manifest(directory: &Directory, plugins: &[Plugin]) -> Result<Report> {
    let mut looks = Looks::default();
    for name in plugins.iter().map(|plugin| plugin.name).chain([NAME]) {
        if looks.look(&directory.file(name))?.is_ours() {
            return Err(Error::internal(format_args!(
                "{name} is there, but no {MANIFEST}: another program installed it"
            )));
        }
    }
    Ok(Report::default())
}

impl Removal<'_> {
    fn remove(&mut self, installed: &Installed) -> Result<()> {
        let Self { directory, is_dry_run, .. } = *self;
        let name = &installed.name;
        let (place, backup) = (directory.file(name), directory.backup(name));
        let state = self.looks.look(&place)?;
        let has_backup = fs::symlink_metadata(&backup).is_ok();
        if state.kind.is_none() && !has_backup {
            return Ok(());
        }
        if state.kind.is_some() && !self.is_ours(installed, &state)? {
            let is_restored = !installed.backup.is_empty() && !has_backup;
            if has_backup && is_same(&place, &backup) {
                // The installation was killed before it replaced the file.
                return if is_dry_run { Ok(()) } else { remove(&backup) };
            }
            if !is_restored {
                self.report.left.push((name.clone(), state.reason()));
            }
            return Ok(());
        }
        let verb = match has_backup {
            true => ["put back", "put back"],
            false => REMOVE,
        };
        if !is_dry_run {
            if has_backup { rename(&backup, &place)? } else { remove(&place)? }
        }
        self.report.changes.push(Change::of(verb, name));
        Ok(())
    }

    /// Whether the installation has put this file there.
    fn is_ours(&mut self, installed: &Installed, state: &State) -> Result<bool> {
        if let Some(target) = &state.target {
            let is_own = |text: &str| !text.is_empty() && target.as_os_str() == text;
            return Ok(is_own(&installed.target) || is_own(NAME));
        }
        if !state.is_ours() {
            return Ok(false);
        }
        if let Some((_, is_known)) = self.known.iter().find(|(inode, _)| *inode == state.inode) {
            return Ok(*is_known);
        }
        let path = self.directory.file(&installed.name);
        let content = executable::read(&path).map_err(|error| failed("read", &path, &error))?;
        let is_known = self.builds.contains(&sha512(&content));
        self.known.push((state.inode, is_known));
        Ok(is_known)
    }

    /// Removes the files of the installer itself.
    fn finish(&mut self, made_directory: bool) -> Result<()> {
        let directory = self.directory;
        directory.sync()?;
        let backups = directory.file(BACKUP);
        match fs::remove_dir(&backups) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                self.report.left.push((BACKUP.into(), "a file has the place of a backup"));
                sync(&backups)?;
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed("remove", &backups, &error));
            }
            _ => {}
        }
        remove(&directory.file(MANIFEST))?;
        directory.sync()?;
        // Others may have put files there. The directory can also be a mount point.
        if made_directory && fs::remove_dir(&directory.path).is_ok() {
            self.report.changes.push(Change::of(REMOVE, &directory.path.to_string_lossy()));
        }
        Ok(())
    }
}

/// Whether a backup is the file itself, or a copy of it.
fn is_same(place: &Path, backup: &Path) -> bool {
    let inode = |path: &Path| fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())).ok();
    let target = |path: &Path| fs::read_link(path).ok();
    if inode(place) == inode(backup) || target(place).is_some() && target(place) == target(backup) {
        return true;
    }
    matches!((executable::read(place), executable::read(backup)), (Ok(one), Ok(other)) if one == other)
}
