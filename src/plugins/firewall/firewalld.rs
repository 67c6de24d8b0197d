//! firewalld, asked over the system bus to take addresses into a zone.
//!
//! What is asked for lasts until firewalld is reloaded or restarted, as with the reference.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;

use super::dbus::{Bus, Failure, Method, bus_method};
use crate::error::{Error, Result};
use crate::plugin::Context;

/// The address of the system bus, if DBUS_SYSTEM_BUS_ADDRESS says nothing else: the place on every system with systemd;
/// others link it there.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

const NAME: &str = "org.fedoraproject.FirewallD1";

pub(super) struct Firewalld {
    bus: Bus,
}

/// Whether firewalld is running.
pub(super) enum Found {
    Running(Firewalld),
    /// The error says why it counts as not running.
    NotRunning(Error),
}

impl Firewalld {
    /// Fails if the bus is there but does not answer.
    pub(super) fn find(cx: &Context<'_>) -> Result<Found> {
        let addresses = cx.request.bus_address.as_deref().unwrap_or_else(|| SYSTEM_BUS.as_ref());
        let failure = match Self::connect(addresses.as_bytes()) {
            Ok(firewalld) => return Ok(Found::Running(firewalld)),
            Err(failure) => failure,
        };
        let why = format!("{}: {failure}", addresses.display());
        if failure.is_silence() {
            let error = Error::internal("cannot ask D-Bus whether firewalld is running");
            return Err(error.with_details(why));
        }
        let error = Error::internal("cannot use firewalld: it is not running").with_details(why);
        Ok(Found::NotRunning(error))
    }

    fn connect(addresses: &[u8]) -> Result<Self, Failure> {
        let mut bus = Bus::connect(addresses)?;
        bus.call(&bus_method("GetNameOwner"), &[NAME])?;
        Ok(Self { bus })
    }

    /// Gives the next calls the time anew that all calls have together.
    pub(super) fn restart_time(&mut self) {
        self.bus.restart_time();
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
