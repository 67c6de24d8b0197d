//! The systemd units that call `cnibox gc --confirm`, and the unit of `cnibox reconcile --watch`, which stays disabled.
//!
//! They are the units of the packages, with the plugin directory of this installation. The host can have another root
//! directory: a container that installs cnibox on a node has no systemd and cannot see the host's processes, so it writes the
//! unit files of the host.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf, absolute};

use crate::cli::output::{PLUGIN_DIRECTORY, usage_error};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::sys::warn;

use super::directory::{existing, failed, remove, sync};
use super::report::{Change, Left, Report};

/// The directory for the units of the administrator.
const UNITS: &str = "/etc/systemd/system";
const TIMER: &str = "cnibox-gc.timer";
const WATCHER: &str = "cnibox-reconcile.service";
/// The name and the text of each unit. The timer is the last: it starts the first.
const FILES: [(&str, &str); 3] = [
    ("cnibox-gc.service", include_str!("../../../packaging/systemd/cnibox-gc.service")),
    (WATCHER, include_str!("../../../packaging/systemd/cnibox-reconcile.service")),
    (TIMER, include_str!("../../../packaging/systemd/cnibox-gc.timer")),
];
/// The link that enables the timer.
const LINK: &str = "timers.target.wants/cnibox-gc.timer";
/// The link of an administrator that enables the watcher.
const WATCHER_LINK: &str = "multi-user.target.wants/cnibox-reconcile.service";

/// The units of a host.
pub(super) struct Timer {
    root: PathBuf,
    /// The plugin directory, as the host sees it.
    plugins: String,
}

impl Timer {
    /// `root` is the root directory of the host, `directory` the plugin directory below it.
    pub(super) fn new(root: &str, directory: &Path) -> Result<Self> {
        let root = PathBuf::from(root);
        let path = absolute(directory).map_err(|error| failed("find", directory, &error))?;
        let Ok(inside) = path.strip_prefix(&root) else {
            let (path, root) = (path.display(), root.display());
            return Err(usage_error(format!("--timer {root}: {path} is not below it")));
        };
        let plugins = format!("/{}", inside.display());
        // A unit would need quotes for other characters.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
        if !plugins.chars().all(is_plain) {
            let msg = format!("--timer: no unit can have the path {plugins:?}");
            return Err(usage_error(msg));
        }
        Ok(Self { root, plugins })
    }

    fn unit_path(&self, name: &str) -> PathBuf {
        self.root.join(&UNITS[1..]).join(name)
    }

    /// Writes the units and enables the timer. Adds the changes to the report.
    pub(super) fn enable(&self, is_dry_run: bool, report: &mut Report) -> Result<()> {
        let count = report.changes.len();
        for (name, text) in FILES {
            let path = self.unit_path(name);
            if is_link(&path)? {
                // A masked unit: `systemctl mask` makes a link to /dev/null.
                report.left.push(Left { name: name.into(), reason: "it is a symbolic link" });
                return Ok(());
            }
            let text = text.replace(PLUGIN_DIRECTORY, &self.plugins);
            let old = file::read(&path);
            if old.as_ref().is_ok_and(|old| *old == text.as_bytes()) {
                continue;
            }
            let is_new = old.is_err_and(|error| error.kind() == ErrorKind::NotFound);
            let verb = if is_new { ["create", "created"] } else { ["replace", "replaced"] };
            if !is_dry_run {
                let written = file::replace(&path, text.as_bytes(), 0o644);
                written.map_err(|error| failed("write", &path, &error))?;
            }
            report.changes.push(change(verb, name));
        }
        let link = self.unit_path(LINK);
        if !is_link(&link)? {
            if !is_dry_run {
                enable(&link)?;
            }
            report.changes.push(change(["create", "created"], LINK));
        }
        if report.changes.len() > count && !is_dry_run {
            sync(&self.unit_path(""))?;
            warn(format_args!(
                "note: the timer runs from the next boot on, or after: systemctl daemon-reload && systemctl start {TIMER}"
            ));
        }
        Ok(())
    }

    /// Removes the units. Adds the changes to the report.
    pub(super) fn disable(&self, is_dry_run: bool, report: &mut Report) -> Result<()> {
        let path = self.unit_path(FILES[0].0);
        let service = existing("read", &path, file::read_lossy(&path))?;
        let command = format!("\nExecStart={}/cnibox ", self.plugins);
        if service.is_some_and(|service| !service.is_empty() && !service.contains(&command)) {
            report.left.push(Left { name: TIMER.into(), reason: "it is for another directory" });
            return Ok(());
        }
        // Remove the links first: without them systemd starts none of the units.
        for name in [LINK, WATCHER_LINK, TIMER, WATCHER, FILES[0].0] {
            let path = self.unit_path(name);
            let found = existing("examine", &path, fs::symlink_metadata(&path))?;
            let Some(metadata) = found else { continue };
            if ![LINK, WATCHER_LINK].contains(&name) && metadata.is_symlink() {
                report.left.push(Left { name: name.into(), reason: "it is a symbolic link" });
                continue;
            }
            if !is_dry_run {
                remove(&path)?;
            }
            report.changes.push(change(["remove", "removed"], name));
        }
        Ok(())
    }
}

/// The change of a unit file, for the report.
fn change(verb: [&'static str; 2], name: &str) -> Change {
    Change { kind: "unit", ..Change::of(verb, &format!("{UNITS}/{name}")) }
}

fn is_link(path: &Path) -> Result<bool> {
    let metadata = existing("examine", path, fs::symlink_metadata(path))?;
    Ok(metadata.is_some_and(|metadata| metadata.is_symlink()))
}

/// Makes the link that `systemctl enable` makes.
fn enable(link: &Path) -> Result<()> {
    let directory = link.parent().unwrap_or(link);
    let make = fault::file_operation()
        .and_then(|()| DirBuilder::new().recursive(true).mode(0o755).create(directory));
    make.map_err(|error| failed("make", directory, &error))?;
    let target = format!("{UNITS}/{TIMER}");
    let linked = fault::file_operation().and_then(|()| symlink(target, link));
    linked.map_err(|error| failed("link", link, &error))
}

/// Names the timer in an error. The plugins are already installed or removed at this point.
pub(super) fn context(error: Error, verb: &str) -> Error {
    error.context(format_args!("cannot {verb} {TIMER}"))
}
