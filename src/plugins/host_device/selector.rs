//! Finds the device of the host that the configuration names.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::names::{IFNAME_BYTES_MAX, Mac};
use crate::netlink::rtnl::{Link, Rtnl};

use super::HostDevice;
use super::records::Records;
use super::saved_state::SavedState;
use super::sysfs;

/// Drivers that let a program in user space drive a PCI device. The device then has no link.
const DPDK_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// The key by which the configuration names a device with a link.
pub enum DeviceId {
    Name(String),
    Mac(Mac),
    /// The directory of the device in sysfs. The text has the key and its value, for errors.
    Device(PathBuf, String),
}

impl HostDevice {
    /// Validates the keys and looks up devices in sysfs. `None`: a program of the container drives the device, so it has no
    /// link.
    pub fn device_id(&self) -> Result<Option<DeviceId>> {
        let device_id = self.runtime_config.device_id.as_str();
        let (pci, auxiliary) = match device_id {
            "" => (self.on_bus("pci", "pciBusID", &self.pci_bus_id)?, None),
            // deviceID overrides pciBusID, also for a device of another bus.
            id => match self.on_bus("pci", "deviceID", id) {
                Err(error) if is_missing(&error) && is_file_name(id) => {
                    (None, self.on_bus("auxiliary", "deviceID", id)?)
                }
                found => (found?, None),
            },
        };
        let is_dpdk = match &pci {
            Some(DeviceId::Device(dir, label)) => match sysfs::driver(dir)? {
                Some(driver) => DPDK_DRIVERS.contains(&driver.as_str()),
                None => {
                    return Err(Error::config(format_args!("{label}: the device has no driver")));
                }
            },
            _ => self.dpdk_mode,
        };
        let by_name = self.name().map(|name| DeviceId::Name(name.into()));
        let wanted = by_name.or(self.by_mac()?).or(self.by_path()?).or(pci).or(auxiliary);
        match wanted {
            None => Err(Error::config(
                r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#,
            )),
            wanted => Ok(wanted.filter(|_| !is_dpdk)),
        }
    }

    /// The name of the device on the host, if the configuration has `device`.
    pub fn name(&self) -> Option<&str> {
        Some(self.device.as_str()).filter(|name| !name.is_empty())
    }

    fn by_mac(&self) -> Result<Option<DeviceId>> {
        if self.hwaddr.is_empty() {
            return Ok(None);
        }
        let mac = self.hwaddr.parse().map_err(|error| {
            let hwaddr = &self.hwaddr;
            not_found(format_args!("failed to parse MAC address {hwaddr:?}: {error}"), "hwaddr")
        })?;
        Ok(Some(DeviceId::Mac(mac)))
    }

    fn by_path(&self) -> Result<Option<DeviceId>> {
        if self.kernelpath.is_empty() {
            return Ok(None);
        }
        let path = Path::new(&self.kernelpath);
        let is_direct = path.components().all(|component| component != Component::ParentDir);
        if !is_direct || !path.starts_with(sysfs::DEVICES) || path == Path::new(sysfs::DEVICES) {
            return Err(not_found(
                format_args!(
                    "kernel device path {:?} must be absolute and begin with {}/",
                    self.kernelpath,
                    sysfs::DEVICES
                ),
                "kernelpath",
            ));
        }
        Ok(Some(DeviceId::Device(path.into(), format!("kernelpath: {}", self.kernelpath))))
    }

    fn on_bus(&self, bus: &str, key: &str, id: &str) -> Result<Option<DeviceId>> {
        if id.is_empty() {
            return Ok(None);
        }
        let label = format!("{key}: {id}");
        if !is_file_name(id) {
            return Err(Error::config(format_args!("{label}: this is not the name of a device")));
        }
        match sysfs::device(bus, id)? {
            Some(dir) => Ok(Some(DeviceId::Device(dir, label))),
            None => Err(Error::config(format_args!("{label}: device not found"))),
        }
    }
}

/// The error for a device that was not found, or for an invalid value of its key. It begins with the error text of the
/// reference.
fn not_found(msg: fmt::Arguments<'_>, details: impl fmt::Display) -> Error {
    Error::config(format_args!("failed to find host device: {msg}")).with_details(details)
}

/// Whether the error says that the device is not on the host. Any other error leaves this open.
pub fn is_missing(error: &Error) -> bool {
    error.code == Code::INVALID_CONFIG
}

impl DeviceId {
    pub fn find(&self, host: &Rtnl, records: &Records) -> Result<Link> {
        let (found, label) = match self {
            Self::Name(name) => (link_named(host, name, records)?, format!("device: {name}")),
            Self::Mac(mac) => {
                let saved_mac = |link: &Link| records.of(link).map_or(link.mac, |saved| saved.mac);
                let has_mac = |link: &Link| saved_mac(link) == Some(*mac);
                (host.links()?.into_iter().find(has_mac), format!("hwaddr: {mac}"))
            }
            Self::Device(dir, label) => match sysfs::link(dir)? {
                Some(name) => (host.link(&name)?, label.clone()),
                None => (None, label.clone()),
            },
        };
        let missing = match self {
            Self::Name(_) => "Link not found",
            _ => "failed to find physical interface",
        };
        found.ok_or_else(|| {
            let label = format_args!("{label}: interface not found on the host");
            not_found(format_args!("{missing}"), label)
        })
    }

    /// Whether a device in a container can be the selected one. For a directory in sysfs this is unknown, so the result is
    /// true.
    pub fn may_be(&self, saved: &SavedState) -> bool {
        match self {
            // The saved state has no alternative names.
            Self::Name(name) => saved.name == *name || name.len() > IFNAME_BYTES_MAX,
            Self::Mac(mac) => saved.mac == Some(*mac),
            Self::Device(..) => true,
        }
    }
}

/// The link with this name, or the link that had this name before the kernel returned it from a container.
fn link_named(host: &Rtnl, name: &str, records: &Records) -> Result<Option<Link>> {
    if let Some(link) = host.link(name)? {
        return Ok(Some(link));
    }
    let had_name = |link: &Link| records.of(link).is_some_and(|saved| saved.name == name);
    Ok(host.links()?.into_iter().find(had_name))
}

/// Whether the text can be the name of a directory in sysfs.
fn is_file_name(id: &str) -> bool {
    !id.contains(['/', '\0']) && id != "." && id != ".."
}
