//! The program that reads the answer of the driver: netavark, and podman, which executed it and starts the container. If it has
//! ended, nobody would remove what a setup makes.

use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::kernel::process::Process;
use crate::kernel::sys;

/// The processes that executed this one. Each is `None` if another program executed the driver.
pub(super) struct Caller {
    netavark: Option<Process>,
    /// It starts the container in the namespace.
    pub podman: Option<Process>,
}

impl Caller {
    /// Finds the caller of a setup of a namespace. Fails if it has ended.
    pub fn find(netns: &Path) -> Result<Self> {
        let cannot = || sys::failed("cannot find podman");
        let netavark = netavark().map_err(cannot())?;
        let parent = netavark.as_ref().map_or(Ok(None), Process::parent).map_err(cannot())?;
        let mut caller = Self { netavark, podman: None };
        caller.require()?;
        if let Some(parent) = parent {
            match parent.executable().map_err(cannot())?.as_deref() {
                Some("podman") => caller.podman = Some(parent),
                None => return Err(podman_has_ended()),
                // Process 1 took over netavark. podman names its namespaces `netns-UUID`.
                Some(_) if parent.id == 1 && is_of_podman(netns) => return Err(podman_has_ended()),
                Some(_) => {}
            }
        }
        Ok(caller)
    }

    /// Fails if podman has ended, or nobody reads what netavark prints. The second shows the end of podman also if another
    /// process than process 1 took over netavark (systemd --user, conmon), and the end of other programs, as buildah.
    pub fn require(&self) -> Result<()> {
        if self.podman.as_ref().is_some_and(Process::has_ended) {
            return Err(podman_has_ended());
        }
        if self.netavark.as_ref().is_some_and(Process::has_no_reader) {
            let msg = "the program that executed netavark has ended: nobody reads the answer";
            return Err(Error::internal(msg));
        }
        Ok(())
    }
}

/// The netavark that executed this process.
fn netavark() -> io::Result<Option<Process>> {
    let mut process = Process::of(std::process::id())?;
    while let Some(current) = process {
        process = current.parent()?;
        if let Some(parent) = &process
            && matches!(parent.executable(), Ok(Some(name)) if name == "netavark")
        {
            return Ok(process);
        }
    }
    Ok(None)
}

fn is_of_podman(netns: &Path) -> bool {
    netns.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"netns-"))
}

fn podman_has_ended() -> Error {
    Error::internal("podman, which executed netavark, has ended")
}
