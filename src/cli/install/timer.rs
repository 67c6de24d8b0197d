//! The systemd units that call `cnibox gc --confirm`, and the unit of `cnibox reconcile --watch`, which stays disabled.
//!
//! They are the units of the packages, with the plugin directory of this installation. The host can have another root
//! directory: a container that installs cnibox on a node has no systemd and cannot see the host's processes, so it writes the
//! unit files of the host.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf, absolute};

use crate::cli::output::{PLUGIN_DIRECTORY, usage_error};
use crate::error::Result;
use crate::kernel::file;
use crate::kernel::sys::warn;

use super::Outside;
use super::directory::{failed, make, operate, remove, sync};
use super::existing::ExistingFile;
use super::report::{Change, Report};

/// The directory for the units of the administrator.
const UNITS: &str = "/etc/systemd/system";
const SERVICE: &str = "cnibox-gc.service";
const TIMER: &str = "cnibox-gc.timer";
const WATCHER: &str = "cnibox-reconcile.service";
/// The name and the text of each unit. The timer is the last: it starts the first.
const FILES: [(&str, &str); 3] = [
    (SERVICE, include_str!("../../../packaging/systemd/cnibox-gc.service")),
    (WATCHER, include_str!("../../../packaging/systemd/cnibox-reconcile.service")),
    (TIMER, include_str!("../../../packaging/systemd/cnibox-gc.timer")),
];
/// The link that enables the timer.
const LINK: &str = "timers.target.wants/cnibox-gc.timer";
/// The link of an administrator that enables the watcher.
const WATCHER_LINK: &str = "multi-user.target.wants/cnibox-reconcile.service";

/// The reason why a unit stays: `systemctl mask` makes a link to /dev/null.
const MASKED: &str = "it is a symbolic link";

/// The kind of the files in the report.
const KIND: &str = "unit";

/// The units of a host.
pub(super) struct Timer {
    root: PathBuf,
    /// The plugin directory, as the host sees it.
    plugins: String,
}

impl Timer {
    /// `root` is the root directory of the host, `directory` the plugin directory below it.
    pub(super) fn of(root: &str, directory: &Path) -> Result<Box<dyn Outside>> {
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
        Ok(Box::new(Self { root, plugins }))
    }

    fn unit_path(&self, name: &str) -> PathBuf {
        self.root.join(&UNITS[1..]).join(name)
    }

    /// Makes the link that `systemctl enable` makes.
    fn make_link(&self) -> Result<()> {
        let link = self.unit_path(LINK);
        make(link.parent().unwrap_or(&link))?;
        operate("link", &link, || symlink(shown(TIMER), &link))
    }

    /// Writes the units and enables the timer.
    fn enable(&self, report: &mut Report) -> Result<()> {
        let count = report.changes.len();
        for (name, text) in FILES {
            let path = self.unit_path(name);
            let found = ExistingFile::examine(&path)?;
            if found.as_ref().is_some_and(|found| found.target.is_some()) {
                report.leave(name, MASKED);
                return Ok(());
            }
            let text = text.replace(PLUGIN_DIRECTORY, &self.plugins);
            if file::read(&path).is_ok_and(|old| old == text.as_bytes()) {
                continue;
            }
            let change = Change { replaced: "", ..Change::to(&shown(name), KIND, found.as_ref()) };
            report.make(change, || {
                let written = file::replace(&path, text.as_bytes(), 0o644);
                written.map_err(|error| failed("write", &path, &error))
            })?;
        }
        let link = ExistingFile::examine(&self.unit_path(LINK))?;
        if link.is_none_or(|link| link.target.is_none()) {
            report.make(Change::to(&shown(LINK), KIND, None), || self.make_link())?;
        }
        if report.changes.len() > count && !report.is_dry_run {
            sync(&self.unit_path(""))?;
            warn(format_args!(
                "note: the timer runs from the next boot on, or after: systemctl daemon-reload && systemctl start {TIMER}"
            ));
        }
        Ok(())
    }

    /// Removes the units, and the links that enable them.
    fn disable(&self, report: &mut Report) -> Result<()> {
        let path = self.unit_path(SERVICE);
        let service = file::found(file::read_lossy(&path));
        let service = service.map_err(|error| failed("read", &path, &error))?;
        let command = format!("\nExecStart={}/cnibox ", self.plugins);
        if service.is_some_and(|service| !service.is_empty() && !service.contains(&command)) {
            report.leave(TIMER, "it is for another directory");
            return Ok(());
        }
        // Remove the links first: without them systemd starts none of the units.
        for name in [LINK, WATCHER_LINK, TIMER, WATCHER, SERVICE] {
            let path = self.unit_path(name);
            let Some(found) = ExistingFile::examine(&path)? else { continue };
            if found.target.is_some() && ![LINK, WATCHER_LINK].contains(&name) {
                report.leave(name, MASKED);
                continue;
            }
            let change = Change { kind: KIND, ..Change::remove(&shown(name)) };
            report.make(change, || remove(&path))?;
        }
        Ok(())
    }
}

impl Outside for Timer {
    fn place(&self, report: &mut Report) -> Result<()> {
        self.enable(report).map_err(|error| error.context(format_args!("cannot enable {TIMER}")))
    }

    fn remove(&self, report: &mut Report) -> Result<()> {
        self.disable(report).map_err(|error| error.context(format_args!("cannot disable {TIMER}")))
    }
}

/// The path of a unit for the host.
fn shown(name: &str) -> String {
    format!("{UNITS}/{name}")
}
