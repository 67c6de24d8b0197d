//! Sources of zones of firewalld, over the system D-Bus.
//!
//! A source lasts until firewalld is reloaded or restarted, as with the Go plugin.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;

use super::dbus::{Bus, Failure, Message, Method, bus_method};
use crate::error::{Error, Result};
use crate::kernel::process;
use crate::plugin::Context;

/// The address of the system bus without DBUS_SYSTEM_BUS_ADDRESS. Systems without systemd have a link there.
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket";

const NAME: &str = "org.fedoraproject.FirewallD1";

pub(super) struct Firewalld {
    bus: RefCell<Bus>,
    /// The unique bus name of firewalld. Replies from another sender are ignored.
    owner: String,
}

/// Whether firewalld is running, and whether it filters the packets of this network namespace.
pub(super) enum FirewalldState {
    Running(Firewalld),
    /// It runs in another network namespace: a container or a rootless runtime can see the bus of the host.
    Elsewhere(Firewalld, Error),
    /// It runs, and its network namespace is unknown: /proc does not show its process.
    Hidden(Firewalld, Error),
    /// The error names the reason.
    NotRunning(Error),
    /// The connection to the bus failed, and the bus may exist: firewalld may run, and have sources.
    Unreachable(Error),
}

impl Firewalld {
    /// Connects to firewalld over the system bus of the request. Fails if the bus does not answer whether firewalld runs, for
    /// example after a timeout.
    pub(super) fn find(cx: &Context<'_>) -> Result<FirewalldState> {
        Self::find_at(cx.request.parameters.bus_address.as_deref())
    }

    /// Connects to firewalld over the bus with this address. `None` means the default address of the system bus.
    pub(super) fn find_at(addresses: Option<&OsStr>) -> Result<FirewalldState> {
        let addresses = addresses.unwrap_or_else(|| SYSTEM_BUS.as_ref());
        let failure = match Self::connect(addresses.as_bytes()) {
            Ok((firewalld, is_here)) => {
                let why = |reason| {
                    Error::internal(format_args!("cannot use firewalld: {reason}"))
                        .with_details(addresses.display().to_string())
                };
                let of_other = "it runs in another network namespace";
                let hidden = "its process is not visible, so its network namespace is unknown";
                return Ok(match is_here {
                    Some(true) => FirewalldState::Running(firewalld),
                    Some(false) => FirewalldState::Elsewhere(firewalld, why(of_other)),
                    None => FirewalldState::Hidden(firewalld, why(hidden)),
                });
            }
            Err(failure) => failure,
        };
        let error = |msg: &'static str| {
            Error::internal(msg).with_details(format_args!("{}: {failure}", addresses.display()))
        };
        let is_refused = matches!(&failure, Failure::Refused { name, .. } if name != NO_OWNER);
        if is_refused || matches!(failure, Failure::Timeout) {
            return Err(error("cannot find out whether firewalld runs"));
        }
        let why = error("cannot use firewalld: it is not running");
        Ok(match &failure {
            Failure::Connection(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                FirewalldState::Unreachable(why)
            }
            _ => FirewalldState::NotRunning(why),
        })
    }

    /// Returns also whether the process of firewalld is in this network namespace; `None` if that is unknown.
    fn connect(addresses: &[u8]) -> Result<(Self, Option<bool>), Failure> {
        let mut bus = Bus::connect(addresses)?;
        let owner = bus.call(&bus_method("GetNameOwner"), &[NAME])?.text;
        let own = bus.name.clone();
        let mut process = |name: &str| {
            let answer = bus.call(&bus_method("GetConnectionUnixProcessID"), &[name]);
            match answer {
                Ok(answer) => Ok(Some(answer.number)),
                Err(Failure::Refused { name, .. }) if name != NO_OWNER => Ok(None),
                Err(failure) => Err(failure),
            }
        };
        let is_here = match (process(&owner)?, process(&own)?) {
            (Some(id), Some(own_id)) => process::shares_network(id, own_id),
            _ => None,
        };
        Ok((Self { bus: bus.into(), owner }, is_here))
    }

    /// Restarts the timeout of the calls.
    pub(super) fn restart_timeout(&self) {
        self.bus.borrow_mut().restart_timeout();
    }

    /// Adds the address as a source of the zone. Returns false if the address already was a source of the zone.
    pub(super) fn add_source(&self, zone: &str, address: IpAddr) -> Result<bool> {
        match self.call("addSource", zone, address) {
            Err(Failure::Refused { name, text })
                if name.contains(ALREADY_SET) || text.contains(ALREADY_SET) =>
            {
                Ok(false)
            }
            result => result.map(|_| true).map_err(|failure| {
                Error::internal(format_args!("cannot add {address} to zone {zone} of firewalld"))
                    .with_details(failure.to_string())
            }),
        }
    }

    /// Removes the address from the zone. Idempotent: succeeds if the source, the zone or firewalld is missing.
    pub(super) fn remove_source(&self, zone: &str, address: IpAddr) -> Result<()> {
        match self.call("removeSource", zone, address) {
            Ok(_) => Ok(()),
            Err(Failure::Refused { name, text }) if is_absent(&name, &text) => Ok(()),
            Err(failure) => Err(Error::internal(format_args!(
                "cannot remove {address} from zone {zone} of firewalld"
            ))
            .with_details(failure.to_string())),
        }
    }

    /// Fails if the address is not in the zone.
    pub(super) fn check_source(&self, zone: &str, address: IpAddr) -> Result<()> {
        let answer = self.call("querySource", zone, address).map_err(|failure| {
            Error::internal(format_args!("cannot look for {address} in zone {zone} of firewalld"))
                .with_details(failure.to_string())
        })?;
        if answer.number != 0 {
            return Ok(());
        }
        Err(Error::difference(format_args!("address {address} is not in zone {zone} of firewalld")))
    }

    fn call(&self, name: &str, zone: &str, address: IpAddr) -> Result<Message, Failure> {
        let source = ipnet::IpNet::from(address).to_string();
        let method = Method {
            destination: &self.owner,
            path: "/org/fedoraproject/FirewallD1",
            interface: "org.fedoraproject.FirewallD1.zone",
            name,
        };
        self.bus.borrow_mut().call(&method, &[zone, &source])
    }
}

/// The error of the bus for a service that is not running.
const NO_OWNER: &str = "org.freedesktop.DBus.Error.NameHasNoOwner";

/// The beginning of firewalld's error for an existing source.
const ALREADY_SET: &str = "ZONE_ALREADY_SET";

/// The beginnings of firewalld's errors for a source that the zone does not have: no zone has it, another zone has it, or there
/// is no such zone.
const NOT_IN_ZONE: [&str; 4] = ["UNKNOWN_SOURCE", "NOT_ENABLED", "ZONE_CONFLICT", "INVALID_ZONE"];

/// The other errors of the bus for a service that ended. firewalld loses its sources when it ends.
const ENDED: [&str; 2] =
    ["org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NoReply"];

/// Whether an error reply to `removeSource` means that the zone does not have the source.
fn is_absent(name: &str, text: &str) -> bool {
    name == NO_OWNER
        || ENDED.contains(&name)
        || NOT_IN_ZONE.iter().any(|error| name.contains(error) || text.contains(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_errors_say_that_a_source_is_not_there() {
        let exception = "org.fedoraproject.FirewallD1.Exception";
        for (name, text, expected) in [
            (exception, "UNKNOWN_SOURCE: '10.1.0.2/32' is not in any zone", true),
            (exception, "ZONE_CONFLICT: remove_source(trusted, 10.1.0.2/32): zoso='home'", true),
            (exception, "INVALID_ZONE: nowhere", true),
            (exception, "COMMAND_FAILED: 'python-nftables' failed", false),
            ("org.fedoraproject.FirewallD1.NotAuthorizedException", "zone", false),
            (NO_OWNER, "Could not get owner of name ':1.5': no such name", true),
            ("org.freedesktop.DBus.Error.NoReply", "Message recipient disconnected", true),
            ("org.freedesktop.DBus.Error.AccessDenied", "Rejected send message", false),
        ] {
            assert_eq!(is_absent(name, text), expected, "{name}: {text}");
        }
    }
}
