//! Reads the network links of devices from sysfs. sysfs shows the links of the network namespace that it was mounted in: the
//! host's.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::{file, sys};

/// The directory of all devices.
pub const DEVICES: &str = "/sys/devices";

/// The directory of a device on a bus, for example `pci`. `None` if the device does not exist.
pub fn device(bus: &str, id: &str) -> Result<Option<PathBuf>> {
    let dir = Path::new("/sys/bus").join(bus).join("devices").join(id);
    let exists = dir.try_exists().map_err(Error::of_file("read", &dir))?;
    Ok(exists.then_some(dir))
}

/// The name of the driver of a device.
pub fn driver(device: &Path) -> Result<Option<String>> {
    let path = device.join("driver");
    let driver = file::found(fs::read_link(&path)).map_err(Error::of_file("read", &path))?;
    Ok(driver.and_then(|driver| Some(driver.file_name()?.to_string_lossy().into_owned())))
}

/// The name of the first link of a device. The links of a virtio device are one directory deeper.
pub fn link(device: &Path) -> Result<Option<String>> {
    let found = first(&device.join("net"), "")?;
    match (&found, first(device, "virtio")?) {
        (None, Some(virtio)) => first(&device.join(virtio).join("net"), ""),
        _ => Ok(found),
    }
}

/// The first entry of a directory with this prefix, sorted by name. `None` if the directory does not exist.
fn first(dir: &Path, prefix: &str) -> Result<Option<String>> {
    let failed = |error: io::Error| {
        Error::internal(format_args!("cannot list {}: {}", dir.display(), sys::reason(&error)))
    };
    let entries = fault::file_operation().and_then(|()| fs::read_dir(dir));
    let Some(entries) = file::found(entries).map_err(failed)? else { return Ok(None) };
    let name = |entry: io::Result<DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names: Vec<String> = entries.map(name).collect::<io::Result<_>>().map_err(failed)?;
    Ok(names.into_iter().filter(|name| name.starts_with(prefix)).min())
}
