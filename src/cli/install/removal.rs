//! `uninstall`: removes an installation, and restores the files that it replaced.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::cli::executable;
use crate::cli::output::NAME;
use crate::error::{Error, Result};
use crate::plugins::PLUGINS;

use super::directory::{self, Directory, MANIFEST, existing, failed, remove, rename, sync};
use super::existing::ExistingFile;
use super::manifest::{Installed, Manifest, is_plain};
use super::report::{Change, Left, Report};

pub(super) fn uninstall(path: &Path, is_dry_run: bool) -> Result<Report> {
    let mut report = Report::default();
    if !path.exists() {
        return Ok(report);
    }
    let directory = Directory::open(path)?;
    let Some(manifest) = Manifest::read(path)? else {
        refuse_without_manifest(&directory)?;
        return Ok(report);
    };
    let backups = backups(path)?;
    let mut errors = Vec::new();
    for name in names(&manifest, &backups) {
        let (file, backup) = (directory.file(name), directory::backup(path, name));
        let backup = backups.contains(name).then_some(&*backup);
        if let Err(error) = put_back(name, &file, backup, is_dry_run, &mut report) {
            errors.push(error);
        }
    }
    Error::joined(errors)?;
    if !is_dry_run {
        finish(&directory, &mut report)?;
    }
    Ok(report)
}

/// The names with a backup.
fn backups(path: &Path) -> Result<BTreeSet<String>> {
    let backups = directory::backup(path, "");
    let cannot = |error| failed("read", &backups, &error);
    let entries = existing("read", &backups, fs::read_dir(&backups))?;
    let mut names = BTreeSet::new();
    for entry in entries.into_iter().flatten() {
        let name = entry.map_err(cannot)?.file_name();
        names.extend(name.to_str().filter(|name| is_plain(name)).map(str::to_owned));
    }
    Ok(names)
}

/// The names of the manifest and of the backups. The executable is the last: until then, links to it work.
fn names<'a>(manifest: &'a Manifest, backups: &'a BTreeSet<String>) -> Vec<&'a str> {
    let installed = manifest.names.iter().rev().map(|Installed { name, .. }| name.as_str());
    let is_other = |name: &&String| !manifest.names.iter().any(|entry| entry.name == **name);
    let others = backups.iter().filter(is_other).map(String::as_str);
    others.chain(installed).collect()
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

/// Removes the file of cnibox at a path, and renames the backup to this path. A file of another program stays.
fn put_back(
    name: &str,
    file: &Path,
    backup: Option<&Path>,
    is_dry_run: bool,
    report: &mut Report,
) -> Result<()> {
    let verb = match (ExistingFile::examine(file)?, backup) {
        (None, None) => return Ok(()),
        // The installation was killed before it replaced the file: the file stays, and its backup is removed.
        (Some(found), Some(backup)) if !found.is_ours() && is_same(file, backup) => {
            return if is_dry_run { Ok(()) } else { remove(backup) };
        }
        (Some(found), _) if !found.is_ours() => {
            report.left.push(Left { name: name.into(), reason: found.reason() });
            return Ok(());
        }
        (_, Some(_)) => ["put back", "put back"],
        (_, None) => ["remove", "removed"],
    };
    if !is_dry_run {
        backup.map_or_else(|| remove(file), |backup| rename(backup, file))?;
    }
    report.changes.push(Change::of(verb, name));
    Ok(())
}

/// Removes the directory of the backups and the manifest.
fn finish(directory: &Directory, report: &mut Report) -> Result<()> {
    sync(&directory.path)?;
    let backups = directory::backup(&directory.path, "");
    match fs::remove_dir(&backups) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            let name = backups.file_name().unwrap_or_default().to_string_lossy().into();
            report.left.push(Left { name, reason: "it has backups that were not restored" });
            sync(&backups)?;
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(failed("remove", &backups, &error));
        }
        _ => {}
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
