//! Finds programs of the host that wait on a published port: their clients reach the container instead.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::config::{HostIp, Mapping, Portmap};
use crate::cni::json::Json;
use crate::error::Result;
use crate::kernel::sockets::{Program, Waiting};
use crate::names::{ContainerId, IpFamily};
use crate::netlink::nft::Transport;
use crate::netlink::sock_diag;

/// Ports of the host to publish.
pub struct HostPorts {
    pub transport: Transport,
    pub ports: RangeInclusive<u16>,
    /// `None` is each address, `0.0.0.0` and `::` each of one family.
    pub address: Option<IpAddr>,
}

/// A port of the host on which a program waits.
pub struct Shadowed {
    transport: Transport,
    port: u16,
    /// `None` if the process is hidden.
    program: Option<Program>,
}

impl Display for Shadowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}: ", self.transport.name(), self.port)?;
        match &self.program {
            Some(Program { id, name, .. }) => {
                write!(f, "the program {name}, process {id}, uses it")
            }
            None => write!(f, "a program of the host uses it"),
        }
    }
}

impl From<&Mapping> for HostPorts {
    fn from(mapping: &Mapping) -> Self {
        let address = match mapping.host_ip {
            HostIp::Any => None,
            HostIp::AnyOf(IpFamily::V4) => Some(Ipv4Addr::UNSPECIFIED.into()),
            HostIp::AnyOf(IpFamily::V6) => Some(Ipv6Addr::UNSPECIFIED.into()),
            HostIp::One(address) => Some(address),
        };
        Self { transport: mapping.transport, ports: mapping.host_port..=mapping.host_port, address }
    }
}

/// The first of the ports on which a program waits. A program that was started with the id of the container among its arguments
/// keeps the port for it, as conmon of podman does.
pub fn find(ports: &[HostPorts], container: Option<&ContainerId>) -> Result<Option<Shadowed>> {
    for transport in Transport::ALL {
        let is_wanted = |socket: &Waiting, wanted: &HostPorts| {
            wanted.transport == transport
                && wanted.ports.contains(&socket.port)
                && socket.is_on(wanted.address)
        };
        if !ports.iter().any(|wanted| wanted.transport == transport) {
            continue;
        }
        for socket in sock_diag::waiting(transport)? {
            if !ports.iter().any(|wanted| is_wanted(&socket, wanted)) {
                continue;
            }
            let programs = socket.programs();
            let is_kept = container
                .is_some_and(|id| programs.iter().any(|program| program.arguments.contains(&**id)));
            if !is_kept {
                let program = programs.into_iter().next();
                return Ok(Some(Shadowed { transport, port: socket.port, program }));
            }
        }
    }
    Ok(None)
}

/// The first published port of a configuration on which a program waits.
pub fn of_config(config: &Json, container: &ContainerId) -> Result<Option<Shadowed>> {
    let settings = config.read::<Portmap>("the plugin portmap")?.settings()?;
    let ports: Vec<HostPorts> = settings.mappings.iter().map(HostPorts::from).collect();
    find(&ports, Some(container))
}
