//! Finds plugin directories that differ from the manifest of their installation. The check `files` examines the files
//! themselves.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::cli::install::{ExistingFile, Installed, Manifest};
use crate::error::Result;

use super::files::options;
use super::finding::{Findings, Harm, quoted};
use super::host::Host;

pub(super) fn installed(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for (at, directory) in host.path().iter().enumerate() {
        let Some(manifest) = Manifest::read(directory)? else { continue };
        let (shown, word) = (directory.display(), quoted(directory.display()));
        if !manifest.is_complete {
            found.add(
                Harm::Broken,
                format_args!("the installation in {shown} was interrupted"),
                "Some plugins are of another build than the others.",
                format_args!("cnibox install {word}"),
            );
        }
        missing(directory, &manifest, found);
        for earlier in &host.path()[..at] {
            let mut shadowed = Vec::new();
            for entry in &manifest.names {
                let path = earlier.join(&entry.name);
                if path.is_file()
                    && ExistingFile::examine(&path)?.is_some_and(|found| !found.is_ours())
                {
                    shadowed.push(entry.name.as_str());
                }
            }
            if !shadowed.is_empty() {
                let (names, only) = (shadowed.join(" "), quoted(shadowed.join(",")));
                let (first, first_word) = (earlier.display(), quoted(earlier.display()));
                found.add(
                    Harm::Note,
                    format_args!("{names} in {shown}: {first} is before it in CNI_PATH"),
                    "A runtime calls the plugins of the first directory.",
                    format_args!("cnibox install --force --backup --only {only} {first_word}"),
                );
            }
        }
    }
    Ok(())
}

/// Adds a finding for the names of the manifest that have no file.
fn missing(directory: &Path, manifest: &Manifest, found: &mut Findings) {
    let is_missing = |entry: &&Installed| {
        let file = fs::symlink_metadata(directory.join(&entry.name));
        file.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let missing: Vec<&Installed> = manifest.names.iter().filter(is_missing).collect();
    if missing.is_empty() {
        return;
    }
    let names: Vec<&str> = missing.iter().map(|entry| entry.name.as_str()).collect();
    let options = options(&missing);
    let (names, shown) = (names.join(" "), directory.display());
    found.add(
        Harm::Broken,
        format_args!("{names} in {shown}: it was installed, and is missing"),
        "A runtime does not find the plugin.",
        format_args!("cnibox install{options} {}", quoted(directory.display())),
    );
}
