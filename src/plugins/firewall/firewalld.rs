//! firewalld, asked over the system bus to take addresses into a zone.
//!
//! What is asked for lasts until firewalld is reloaded or restarted, as with the reference.

use std::net::IpAddr;
use std::path::Path;

use super::dbus::{Bus, Failure, Method, bus_method};
use crate::error::{Error, Result};

/// The one place for it on every system with systemd; others link it there.
const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

const NAME: &str = "org.fedoraproject.FirewallD1";

pub(super) struct Firewalld {
    bus: Bus,
}

impl Firewalld {
    /// firewalld if it is running; the error says why it counts as not running.
    pub(super) fn running() -> Result<Self> {
        let not_running = |why: String| {
            Error::internal("cannot use firewalld: it is not running").with_details(why)
        };
        let mut bus = Bus::connect(Path::new(SYSTEM_BUS))
            .map_err(|error| not_running(format!("{SYSTEM_BUS}: {error}")))?;
        bus.call(&bus_method("GetNameOwner"), &[NAME])
            .map_err(|failure| not_running(failure.to_string()))?;
        Ok(Self { bus })
    }

    /// Takes what comes from the address into the zone. That it is there already is fine.
    pub(super) fn add_source(&mut self, zone: &str, address: IpAddr) -> Result<()> {
        match self.call("addSource", zone, address) {
            Err(Failure::Refused { name, text })
                if name.contains(ALREADY_SET) || text.contains(ALREADY_SET) =>
            {
                Ok(())
            }
            result => result.map(drop).map_err(|failure| {
                Error::internal(format!("cannot add {address} to zone {zone} of firewalld"))
                    .with_details(failure.to_string())
            }),
        }
    }

    /// That it is not there, or that there is no such zone, is fine.
    pub(super) fn remove_source(&mut self, zone: &str, address: IpAddr) -> Result<()> {
        match self.call("removeSource", zone, address) {
            Ok(_) | Err(Failure::Refused { .. }) => Ok(()),
            Err(failure) => Err(Error::internal(format!(
                "cannot remove {address} from zone {zone} of firewalld"
            ))
            .with_details(failure.to_string())),
        }
    }

    /// The same, from whatever zone it is in.
    pub(super) fn remove_from_any_zone(&mut self, address: IpAddr) -> Result<()> {
        let source = ipnet::IpNet::from(address).to_string();
        match self.bus.call(&zone_method("getZoneOfSource"), &[&source]) {
            Ok(answer) => match answer.text.filter(|zone| !zone.is_empty()) {
                Some(zone) => self.remove_source(&zone, address),
                None => Ok(()),
            },
            Err(Failure::Refused { .. }) => Ok(()),
            Err(failure) => {
                Err(Error::internal(format!("cannot look for {address} in the zones of firewalld"))
                    .with_details(failure.to_string()))
            }
        }
    }

    pub(super) fn has_source(&mut self, zone: &str, address: IpAddr) -> Result<bool> {
        let answer = self.call("querySource", zone, address).map_err(|failure| {
            Error::internal(format!("cannot look for {address} in zone {zone} of firewalld"))
                .with_details(failure.to_string())
        })?;
        Ok(answer.truth == Some(true))
    }

    fn call(
        &mut self,
        name: &str,
        zone: &str,
        address: IpAddr,
    ) -> Result<super::dbus::Answer, Failure> {
        let source = ipnet::IpNet::from(address).to_string();
        self.bus.call(&zone_method(name), &[zone, &source])
    }
}

fn zone_method(name: &str) -> Method<'_> {
    Method {
        destination: NAME,
        path: "/org/fedoraproject/FirewallD1",
        interface: "org.fedoraproject.FirewallD1.zone",
        name,
    }
}

/// What firewalld's error begins with when the source is in the zone already.
const ALREADY_SET: &str = "ZONE_ALREADY_SET";
