//! Finds hosts without a timer that calls `cnibox gc`. containerd and podman never call GC.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cli::output::{NAME, PLUGIN_DIRECTORY};
use crate::error::{Error, Result};
use crate::kernel::file;

use super::finding::{Findings, Harm, quoted};
use super::host::{Host, has_unit, runs_systemd};

/// The units that remove the remains of ended containers, or that restore the rules of living ones.
const SERVICES: [&str; 2] = ["cnibox-gc", "cnibox-reconcile"];

/// The directories in which systemd has a link to each enabled unit.
const WANTS: [&str; 2] = ["timers.target.wants", "multi-user.target.wants"];

/// If `gc --confirm` ran in the last hour, some timer calls it.
const RECENT_S: u64 = 3600;

/// Adds a note if no timer is enabled and other runtimes have attachments here. It is no fault: such a runtime may call GC
/// itself.
pub(super) fn timer(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(()) };
    let mut count = 0;
    for (entry, _) in &survey.attachments {
        match host.runtime.is_of_another_runtime(entry) {
            // The check `leaks` reports a record that cannot be read.
            Err(error) if survey.unreadable.iter().any(|known| known.error == error) => {}
            is_of_another => count += usize::from(is_of_another?),
        }
    }
    let has_run = host.runtime.seconds_since_confirmed_gc()?.is_some_and(|age| age <= RECENT_S);
    if count > 0 && !has_run && !is_enabled()? {
        found.add(
            Harm::Note,
            format_args!("no timer calls gc, and other runtimes have attachments here: {count}"),
            "containerd and podman never call GC: a container that is killed keeps its address and ports.",
            fix(host),
        );
    }
    Ok(())
}

fn is_enabled() -> Result<bool> {
    Ok(by_systemd()? || by_openrc()? || by_busybox()?)
}

/// Whether there is a file, or a link to no file. Fails if that cannot be known.
fn is_there(path: &Path) -> Result<bool> {
    let found = file::found(fs::symlink_metadata(path)).map_err(Error::of_file("examine", path))?;
    Ok(found.is_some())
}

/// The files of a directory that may be missing.
fn files(path: &str) -> Result<Vec<fs::DirEntry>> {
    let cannot = Error::of_file("read directory", Path::new(path));
    let files = file::found(fs::read_dir(path)).map_err(&cannot)?;
    files.into_iter().flatten().map(|file| file.map_err(&cannot)).collect()
}

fn by_systemd() -> Result<bool> {
    let units = SERVICES.map(|name| [format!("{name}.timer"), format!("{name}.service")]).concat();
    let links = WANTS.iter().flat_map(|directory| {
        units.iter().map(move |unit| format!("/etc/systemd/system/{directory}/{unit}"))
    });
    any_is_there(links.map(PathBuf::from))
}

fn any_is_there(paths: impl Iterator<Item = PathBuf>) -> Result<bool> {
    for path in paths {
        if is_there(&path)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn by_openrc() -> Result<bool> {
    let runlevels = files("/etc/runlevels")?;
    any_is_there(runlevels.iter().flat_map(|level| SERVICES.map(|name| level.path().join(name))))
}

/// Whether /etc/init.d has an S script for rcS (S, two digits, the name), or /etc/inittab a line that runs the loop.
fn by_busybox() -> Result<bool> {
    let mut names = files("/etc/init.d")?.into_iter().map(|entry| entry.file_name());
    let is_started = |name: &str| {
        let name = name.strip_prefix('S').and_then(|name| name.get(2..));
        name.is_some_and(|name| SERVICES.contains(&name))
    };
    if names.any(|name| name.to_str().is_some_and(is_started)) {
        return Ok(true);
    }
    // A file that is no text, such as a FIFO, is not that of init.
    Ok(file::read_lossy("/etc/inittab").is_ok_and(|text| {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.any(|line| line.contains("/gc-loop") || line.contains("cnibox reconcile"))
    }))
}

/// The command that enables the timer on this host.
fn fix(host: &Host<'_>) -> String {
    const START: &str = "systemctl enable --now cnibox-gc.timer";
    let exists = |path: &str| Path::new(path).exists();
    if runs_systemd() {
        if has_unit("cnibox-gc.timer") || !cfg!(feature = "install") {
            return START.into();
        }
        let mut directories = host.path().iter();
        let directory = directories.find(|directory| directory.join(NAME).exists());
        let usual = || Path::new(PLUGIN_DIRECTORY).to_owned();
        let directory = quoted(directory.cloned().unwrap_or_else(usual).display());
        return format!(
            "{NAME} install --timer / {directory} && systemctl daemon-reload && {START}"
        );
    }
    if exists("/etc/init.d/cnibox-gc") && exists("/etc/runlevels") {
        return "rc-update add cnibox-gc default && rc-service cnibox-gc start".into();
    }
    "call cnibox gc --confirm every 15 minutes, by init or crond".into()
}
