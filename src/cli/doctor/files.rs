//! Plugin files and their directories: finds other builds, damaged files, and files that other users than root can change.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::kernel::sys;
use crate::plugin::Entry;
use crate::plugins::PLUGINS;

use super::finding::{Findings, Harm, quoted};
use super::host::Host;
use crate::cli::executable::FileKind;
use crate::cli::install::{Installed, Manifest, failed};
use crate::cli::output::NAME;

pub(super) fn files(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let mut directories: Vec<&Path> = vec![&host.runtime.configurations];
    directories.extend(host.path().iter().map(PathBuf::as_path));
    let root = fs::metadata("/").map_err(|error| failed("examine", Path::new("/"), &error))?;
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for directory in directories {
        // Known limit: a symbolic link in the given path can be replaced, too. Only the real path is checked, whose permissions
        // matter most.
        let Ok(real) = directory.canonicalize() else { continue };
        for path in real.ancestors() {
            if !seen.insert(path.to_owned()) {
                continue;
            }
            let metadata = fs::metadata(path).map_err(|error| failed("examine", path, &error))?;
            // In a sticky directory, such as /tmp, only the owner of a file can replace it.
            let is_sticky = path != real && metadata.mode() & STICKY != 0;
            if !is_sticky {
                report_if_writable(path, &metadata, &root, found);
            }
        }
    }
    for directory in host.path() {
        of_directory(directory, &root, found)?;
    }
    Ok(())
}

/// The sticky bit in the mode of a directory: S_ISVTX of inode(7).
const STICKY: u32 = 0o1000;
const WHY_WRITABLE: &str = "Its writers can become root: runtimes execute its plugins as root.";

/// Adds a finding if others than root can write to a file or directory. The owner of / counts as root: in a user namespace the
/// user id of the host's root is unknown.
fn report_if_writable(path: &Path, metadata: &Metadata, root: &Metadata, found: &mut Findings) {
    let mode = metadata.mode();
    let is_of_group = mode & 0o020 != 0 && metadata.gid() != 0 && metadata.gid() != root.gid();
    let is_of_user = metadata.uid() != 0 && metadata.uid() != root.uid();
    let (who, fix) = if mode & 0o002 != 0 {
        ("all users".to_owned(), "chmod o-w")
    } else if is_of_group {
        (format!("group {}", metadata.gid()), "chmod g-w")
    } else if is_of_user {
        (format!("user {}", metadata.uid()), "chown root")
    } else {
        return;
    };
    let what = format_args!("{who} can write to {}", path.display());
    let fix = format_args!("{fix} {}", quoted(path.display()));
    found.add(Harm::Insecure, what, WHY_WRITABLE, fix);
}

/// Examines the files in a plugin directory that have names of plugins of cnibox.
fn of_directory(directory: &Path, root: &Metadata, found: &mut Findings) -> Result<()> {
    // Many names are links to few files, so the kind of each file is kept by device and inode. `None`: this executable.
    let mut seen: Vec<((u64, u64), Option<FileKind>)> = Vec::new();
    let mut groups: Vec<(FileKind, Vec<&Installed>)> = Vec::new();
    // The check `installed` reports an unreadable manifest.
    let manifest =
        Manifest::read(directory).unwrap_or_default().filter(|_| cfg!(feature = "install"));
    let of_plugin = |entry: &Entry| Installed::of(entry.name, entry.name);
    let mut all: Vec<Installed> = PLUGINS.iter().map(of_plugin).collect();
    all.push(Installed::of(NAME, ""));
    for known in manifest.unwrap_or_default().names {
        match all.iter_mut().find(|entry| entry.name == known.name) {
            Some(entry) => *entry = known,
            None => all.push(known),
        }
    }
    for name in &all {
        let path = directory.join(&name.name);
        let kind = match fs::metadata(&path) {
            Ok(metadata) => {
                let identity = (metadata.dev(), metadata.ino());
                match seen.iter().find(|(other, _)| *other == identity) {
                    Some((_, kind)) => *kind,
                    None => {
                        report_if_writable(&path, &metadata, root, found);
                        let kind = kind(&path, &metadata)?;
                        seen.push((identity, kind));
                        kind
                    }
                }
            }
            Err(_) if path.is_symlink() => Some(FileKind::Damaged("its link leads to no file")),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                continue;
            }
            Err(error) => return Err(failed("examine", &path, &error)),
        };
        let Some(kind) = kind else { continue };
        match groups.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, names)) => names.push(name),
            None => groups.push((kind, vec![name])),
        }
    }
    let has_own = seen.iter().any(|(_, kind)| kind.is_none());
    for (kind, names) in &groups {
        add(directory, *kind, names, has_own, found);
    }
    Ok(())
}

/// The kind of a plugin file. `None`: this executable, or a copy of it.
fn kind(path: &Path, metadata: &Metadata) -> Result<Option<FileKind>> {
    if sys::is_own_executable(metadata) {
        return Ok(None);
    }
    let kind = FileKind::of(path, metadata).map_err(|error| failed("examine", path, &error))?;
    Ok(Some(kind).filter(|kind| *kind != FileKind::Own))
}

/// The options with which `install` makes these names. A name in a manifest can contain any character, so names are quoted.
pub(super) fn options(names: &[&Installed]) -> String {
    let (mut only, mut options) = (Vec::<&str>::new(), String::new());
    for Installed { name, plugin, kind } in names.iter().copied() {
        if plugin.is_empty() {
            continue;
        }
        if !only.contains(&plugin.as_str()) {
            only.push(plugin);
        }
        if name != plugin {
            options.push_str(&format!(" --alias {}", quoted(format_args!("{name}={plugin}"))));
        }
        match kind.as_str() {
            "symbolic link" if !options.starts_with(" -s") => options.insert_str(0, " -s"),
            "copy" if !options.starts_with(" --copy") => options.insert_str(0, " --copy"),
            _ => {}
        }
    }
    if !only.is_empty() {
        options.push_str(&format!(" --only {}", quoted(only.join(","))));
    }
    options
}

/// Adds the finding for the names whose files are of one kind. `has_own`: the directory also has links to this executable.
fn add(
    directory: &Path,
    kind: FileKind,
    names: &[&Installed],
    has_own: bool,
    found: &mut Findings,
) {
    let (what, why) = match kind {
        FileKind::Damaged(why) => (why, "Each call of the plugin fails."),
        FileKind::Own => return,
        FileKind::Cnibox => ("it is another build of cnibox", "A runtime calls that build."),
        FileKind::Go => {
            ("it is a program in Go, as the reference plugins are", "A runtime calls that program.")
        }
        FileKind::Other => ("it is another program", "A runtime calls that program."),
    };
    // A directory with links to this executable and with other files is broken: another program has replaced some links.
    let is_wrong = has_own || matches!(kind, FileKind::Damaged(_));
    let word = quoted(directory.display());
    // `install` replaces no directory, so the command moves it first. Files get backups: they can belong to a package.
    let mut moves = String::new();
    for Installed { name, .. } in names.iter().copied() {
        if fs::symlink_metadata(directory.join(name)).is_ok_and(|file| file.is_dir()) {
            let (from, to) = (directory.join(name), directory.join(format!("{name}.moved")));
            let (from, to) = (quoted(from.display()), quoted(to.display()));
            moves.push_str(&format!("mv -nT {from} {to} && "));
        }
    }
    let options = options(names);
    let names: Vec<&str> = names.iter().map(|name| name.name.as_str()).collect();
    let names = names.join(" ");
    found.add(
        if is_wrong { Harm::Broken } else { Harm::Note },
        format_args!("{names} in {}: {what}", directory.display()),
        why,
        format_args!("{moves}cnibox install --force --backup{options} {word}"),
    );
}
