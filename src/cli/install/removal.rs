//! `uninstall`: removes an installation, and restores the files that it replaced.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::cli::executable;
use crate::cli::output::NAME;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::plugins::PLUGINS;

use super::directory::{self, BACKUPS, Directory, MANIFEST, failed, remove, rename, sync};
use super::existing::ExistingFile;
use super::manifest::{Manifest, is_plain};
use super::report::{Change, Report};

pub(super) fn uninstall(path: &Path, report: &mut Report) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let directory = Directory::open(path)?;
    let Some(manifest) = Manifest::read(path)? else { return refuse_without_manifest(&directory) };
    let mut backups = directory::names(&directory.file(BACKUPS))?;
    backups.retain(|name| is_plain(name));
    // An installation drops a name from the manifest when another program has replaced the file, but keeps its backup.
    let is_dropped = |name: &&String| !manifest.names.iter().any(|entry| entry.name == **name);
    // The executable is the last: until then, links to it work.
    let installed = manifest.names.iter().rev().map(|entry| &entry.name);
    let mut errors = Vec::new();
    for name in backups.iter().filter(is_dropped).chain(installed) {
        errors.extend(put_back(&directory, name, backups.contains(name), report).err());
    }
    Error::joined(errors)?;
    if report.is_dry_run { Ok(()) } else { finish(&directory, report) }
}

/// Fails if the directory has files of cnibox but no manifest: a package or another program installed them. Without such files
/// there is nothing to do, for example after a removal that was killed at its end.
fn refuse_without_manifest(directory: &Directory) -> Result<()> {
    for name in PLUGINS.iter().map(|plugin| plugin.name).chain([NAME]) {
        if ExistingFile::examine(&directory.file(name))?.is_some_and(|found| found.is_ours()) {
            return Err(Error::internal(format_args!(
                "{name} exists, but {MANIFEST} does not: another program installed it"
            )));
        }
    }
    Ok(())
}

/// Removes the file of cnibox with a name, and renames the backup to this name. A file of another program stays.
fn put_back(
    directory: &Directory,
    name: &str,
    has_backup: bool,
    report: &mut Report,
) -> Result<()> {
    let (path, backup) = (directory.file(name), directory.backup(name));
    match ExistingFile::examine(&path)? {
        // The installation was killed before it replaced the file: the file stays, and its backup is removed.
        Some(found) if !found.is_ours() && has_backup && is_same(&path, &backup) => {
            if report.is_dry_run { Ok(()) } else { remove(&backup) }
        }
        Some(found) if !found.is_ours() => {
            report.leave(name, found.reason());
            Ok(())
        }
        _ if has_backup => {
            report.make(Change::of(["put back"; 2], name), || rename(&backup, &path))
        }
        Some(_) => report.make(Change::remove(name), || remove(&path)),
        None => Ok(()),
    }
}

/// Removes the directory of the backups and the manifest.
fn finish(directory: &Directory, report: &mut Report) -> Result<()> {
    sync(&directory.path)?;
    let backups = directory.file(BACKUPS);
    match file::found(fs::remove_dir(&backups)) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            report.leave(BACKUPS, "it has backups that were not restored");
            sync(&backups)?;
        }
        removed => drop(removed.map_err(|error| failed("remove", &backups, &error))?),
    }
    remove(&directory.file(MANIFEST))?;
    sync(&directory.path)
}

/// Whether a backup is a hard link or a copy of the file.
fn is_same(file: &Path, backup: &Path) -> bool {
    let target = |path: &Path| fs::read_link(path).ok();
    if target(file).is_some() {
        return target(file) == target(backup);
    }
    matches!((executable::read(file), executable::read(backup)), (Ok(one), Ok(other)) if one == other)
}
