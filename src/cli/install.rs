//! `cnibox install`: makes the links by which the plugins are called.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use argh::FromArgs;

use crate::error::{Error, Result};
use crate::plugin::Entry;

use super::{NAME, PLUGIN_DIRECTORY};

/// Put this executable and a link for every plugin into a directory. A file of the same name that is not this
/// executable stays as it is, and is reported.
#[derive(FromArgs)]
#[argh(subcommand, name = "install", help_triggers("-h", "--help", "help"))]
pub(super) struct Install {
    /// symbolic links instead of hard links
    #[argh(switch, short = 's')]
    symbolic: bool,
    /// where to; /opt/cni/bin if not given
    #[argh(positional)]
    directory: Option<String>,
}

impl Install {
    pub(super) fn run(&self, plugins: &'static [Entry]) -> Result<u8> {
        let directory = match &self.directory {
            Some(directory) => PathBuf::from(directory),
            None => Path::new("/").join(PLUGIN_DIRECTORY),
        };
        let executable = directory.join(NAME);
        place_executable(&executable)?;
        let mut in_the_way = Vec::new();
        for entry in plugins {
            let name = entry.name;
            let link = directory.join(name);
            let made =
                if self.symbolic { symlink(NAME, &link) } else { hard_link(&executable, &link) };
            match made {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    if !is_same_file(&link, &executable) {
                        in_the_way.push(name);
                    }
                }
                Err(error) => return Err(failed("create", &link, &error)),
            }
        }
        if in_the_way.is_empty() {
            return Ok(0);
        }
        Err(Error::internal(format_args!("cannot create {}: File exists", in_the_way.join(", ")))
            .with_details(format_args!("remove them from {} first", directory.display())))
    }
}

/// A file system without hard links gets symbolic ones.
fn hard_link(executable: &Path, link: &Path) -> io::Result<()> {
    match fs::hard_link(executable, link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => symlink(NAME, link),
        other => other,
    }
}

/// Links name an executable of their own directory, so that they work in every mount namespace that sees it. A copy is
/// written to a temporary file, which is then renamed, so that no process can start an incomplete one.
fn place_executable(target: &Path) -> Result<()> {
    let own = std::env::current_exe().map_err(|error| failed("find", Path::new(NAME), &error))?;
    if is_same_file(&own, target) || fs::hard_link(&own, target).is_ok() {
        return Ok(());
    }
    let aside = target.with_extension(format!("tmp.{}", std::process::id()));
    let placed = fs::copy(&own, &aside).and_then(|_| fs::rename(&aside, target));
    placed.map_err(|error| {
        // The copy may not even have been begun.
        let _ = fs::remove_file(&aside);
        failed("create", target, &error)
    })
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::internal(format_args!("cannot {verb} {}: {error}", path.display()))
}
