//! Which device of the host is meant.

use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::kernel::rtnl::{Link, Rtnl};
use crate::kernel::sysfs::{self, Bus};
use crate::names::Mac;

use super::journal::Journal;
use super::passport::Passport;

/// Drivers that hand a PCI device to a program, so that it has no link.
const DPDK_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// The keys that say it, in the order in which they count.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    /// For a device that `pciBusID` does not name.
    #[serde(rename = "DPDKMode")]
    dpdk_mode: bool,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "deviceID")]
    device_id: String,
}

/// What a selector comes to.
pub enum Target {
    /// A program of the container drives it; there is no link to move.
    Dpdk,
    Link(Wanted),
}

pub enum Wanted {
    Name(String),
    Mac(Mac),
    /// Its directory in sysfs, and the key and value that say so.
    Device(PathBuf, String),
}

impl Selector {
    /// Checks the keys, and what they say of sysfs.
    pub fn target(&self) -> Result<Target> {
        let device_id = self.runtime_config.device_id.as_str();
        let (pci, auxiliary) = match device_id {
            "" => (self.on_bus(Bus::Pci, "pciBusID", &self.pci_bus_id)?, None),
            // It takes the place of pciBusID, also where it is on another bus.
            id => match self.on_bus(Bus::Pci, "deviceID", id) {
                Err(_) if is_plain(id) => (None, self.on_bus(Bus::Auxiliary, "deviceID", id)?),
                found => (found?, None),
            },
        };
        let is_dpdk = match &pci {
            Some(Wanted::Device(dir, said)) => match sysfs::driver(dir) {
                Some(driver) => DPDK_DRIVERS.contains(&driver.as_str()),
                None => return Err(Error::config(format!("{said}: the device has no driver"))),
            },
            _ => self.dpdk_mode,
        };
        let wanted = self.by_name()?.or(self.by_mac()?).or(self.by_path()?).or(pci).or(auxiliary);
        match wanted {
            None => Err(Error::config(
                r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#,
            )),
            Some(_) if is_dpdk => Ok(Target::Dpdk),
            Some(wanted) => Ok(Target::Link(wanted)),
        }
    }

    /// The name on the host, where the configuration says it.
    pub fn name(&self) -> Option<&str> {
        Some(self.device.as_str()).filter(|name| !name.is_empty())
    }

    fn by_name(&self) -> Result<Option<Wanted>> {
        Ok(Some(&self.device).filter(|name| !name.is_empty()).map(|it| Wanted::Name(it.clone())))
    }

    fn by_mac(&self) -> Result<Option<Wanted>> {
        if self.hwaddr.is_empty() {
            return Ok(None);
        }
        let mac = self.hwaddr.parse().map_err(|error| Error::config(format!("hwaddr: {error}")))?;
        Ok(Some(Wanted::Mac(mac)))
    }

    fn by_path(&self) -> Result<Option<Wanted>> {
        if self.kernelpath.is_empty() {
            return Ok(None);
        }
        let path = Path::new(&self.kernelpath);
        let is_direct = path.components().all(|it| it != Component::ParentDir);
        if !is_direct || !path.starts_with(sysfs::DEVICES) || path == Path::new(sysfs::DEVICES) {
            return Err(Error::config(format!(
                "kernelpath: {:?} is not an absolute path below {}",
                self.kernelpath,
                sysfs::DEVICES
            )));
        }
        Ok(Some(Wanted::Device(path.into(), format!("kernelpath: {}", self.kernelpath))))
    }

    fn on_bus(&self, bus: Bus, key: &str, id: &str) -> Result<Option<Wanted>> {
        if id.is_empty() {
            return Ok(None);
        }
        let said = format!("{key}: {id}");
        if !is_plain(id) {
            return Err(Error::config(format!("{said}: this is not the name of a device")));
        }
        match sysfs::device(bus, id) {
            Some(dir) => Ok(Some(Wanted::Device(dir, said))),
            None => Err(Error::config(format!("{said}: device not found"))),
        }
    }
}

impl Wanted {
    /// Finds the link on the host.
    pub fn find(&self, host: &Rtnl, journal: &Journal) -> Result<Link> {
        let (found, said) = match self {
            Self::Name(name) => (named(host, name, journal)?, format!("device: {name}")),
            Self::Mac(mac) => {
                let original = |link: &Link| journal.of(link).map_or(link.mac, |it| it.mac);
                let has_it = |link: &Link| original(link) == Some(*mac);
                (host.links()?.into_iter().find(has_it), format!("hwaddr: {mac}"))
            }
            Self::Device(dir, said) => match sysfs::link(dir)? {
                Some(name) => (host.link(&name)?, said.clone()),
                None => (None, said.clone()),
            },
        };
        found.ok_or_else(|| Error::config(format!("{said}: interface not found on the host")))
    }

    /// Whether this device, which is in a container, may be the one. Of a directory in sysfs it is not known.
    pub fn may_be(&self, away: &Passport) -> bool {
        match self {
            Self::Name(name) => away.name == *name,
            Self::Mac(mac) => away.mac == Some(*mac),
            Self::Device(..) => true,
        }
    }
}

/// A device that came back by itself may have another name now.
fn named(host: &Rtnl, name: &str, journal: &Journal) -> Result<Option<Link>> {
    if let Some(link) = host.link(name)? {
        return Ok(Some(link));
    }
    let was = |link: &Link| journal.of(link).is_some_and(|passport| passport.name == name);
    Ok(host.links()?.into_iter().find(was))
}

fn is_plain(id: &str) -> bool {
    !id.contains(['/', '\0']) && id != "." && id != ".."
}
