//! Makes the changes of an installation, all or none.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::kernel::file;

use super::directory::{BACKUP, Directory, MANIFEST, duplicate, remove, rename, sync};
use super::plan::Plan;
use super::stage::Staging;

/// The files that were replaced, newest last.
struct Undo<'a> {
    staging: &'a Staging,
    /// Each place, and the file that it had.
    done: Vec<(PathBuf, Option<PathBuf>)>,
}

/// Makes the new files aside, runs them, and gives them their names. After an error the directory is as it was.
pub(super) fn carry_out(plan: &mut Plan<'_>, directory: &Directory) -> Result<()> {
    if !plan.is_changed() {
        let old = file::read(&directory.file(MANIFEST));
        if old.is_ok_and(|old| old == plan.manifest(true).as_bytes()) {
            return Ok(());
        }
    }
    let staging = Staging::make(directory)?;
    if plan.is_changed() {
        staging.fill(plan, directory)?;
        staging.verify(plan)?;
    }
    let mut undo = Undo { staging: &staging, done: Vec::new() };
    change(&mut undo, plan, directory).map_err(|error| {
        let undone = undo.roll_back();
        // It stays if it has earlier backups.
        let _ = fs::remove_dir(directory.file(BACKUP));
        error.and(undone)
    })
}

fn change(undo: &mut Undo<'_>, plan: &Plan<'_>, directory: &Directory) -> Result<()> {
    let place = directory.file(MANIFEST);
    undo.put(&undo.staging.write("first", plan.manifest(false).as_bytes())?, &place)?;
    directory.sync()?;
    let mut has_backups = false;
    for entry in plan.entries.iter().filter(|entry| entry.needs_backup) {
        if !has_backups {
            directory.open_backups()?;
            has_backups = true;
        }
        let name = &entry.it.name;
        let copy = undo.staging.file(&format!("backup-{name}"));
        duplicate(&directory.file(name), &copy)?;
        undo.put(&copy, &directory.backup(name))?;
    }
    if has_backups {
        sync(&directory.file(BACKUP))?;
        directory.sync()?;
    }
    for entry in plan.entries.iter().filter(|entry| entry.is_changed) {
        let name = &entry.it.name;
        undo.put(&undo.staging.file(name), &directory.file(name))?;
    }
    directory.sync()?;
    undo.put(&undo.staging.write("last", plan.manifest(true).as_bytes())?, &place)?;
    directory.sync()
}

impl Undo<'_> {
    /// Renames a file to its place, and keeps the file that is there.
    fn put(&mut self, new: &Path, place: &Path) -> Result<()> {
        let old = self.staging.old(&self.done.len().to_string());
        let old = duplicate(place, &old)?.then_some(old);
        rename(new, place)?;
        self.done.push((place.to_owned(), old));
        Ok(())
    }

    fn roll_back(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some((place, old)) = self.done.pop() {
            let undone = match old {
                Some(old) => rename(&old, &place),
                None => remove(&place),
            };
            if let Err(error) = undone {
                result = Err(error.and(result));
            }
        }
        result
    }
}
