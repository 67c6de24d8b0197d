//! Finds programs of the host that wait on a published port: their clients reach the container instead.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use super::config::{HostIp, Mapping};
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

impl HostPorts {
    pub fn of(mappings: &[Mapping]) -> Vec<Self> {
        let address = |ip: HostIp| match ip {
            HostIp::Any => None,
            HostIp::AnyOf(IpFamily::V4) => Some(Ipv4Addr::UNSPECIFIED.into()),
            HostIp::AnyOf(IpFamily::V6) => Some(Ipv6Addr::UNSPECIFIED.into()),
            HostIp::One(address) => Some(address),
        };
        let ports = mappings.iter().map(|mapping| Self {
            transport: mapping.transport,
            ports: mapping.host_port..=mapping.host_port,
            address: address(mapping.host_ip),
        });
        ports.collect()
    }
}

/// The first of the ports on which a program waits: see `Sockets::find`.
pub fn find(ports: &[HostPorts], container: Option<&ContainerId>) -> Result<Option<Shadowed>> {
    Ok(Sockets::read(ports)?.find(ports, container))
}

/// The sockets of the host on which programs wait, at one moment.
pub struct Sockets(Vec<(Transport, Waiting)>);

impl Sockets {
    /// Lists those that can wait on one of the ports.
    pub fn read<'a>(ports: impl IntoIterator<Item = &'a HostPorts>) -> Result<Self> {
        let wanted: Vec<Transport> = ports.into_iter().map(|ports| ports.transport).collect();
        let mut all = Vec::new();
        for transport in Transport::ALL.into_iter().filter(|one| wanted.contains(one)) {
            let waiting = sock_diag::waiting(transport)?;
            all.extend(waiting.into_iter().map(|socket| (transport, socket)));
        }
        Ok(Self(all))
    }

    /// The first of the ports on which a program waits. A program that was started with the id of the container among its
    /// arguments keeps the port for it, as conmon of podman does.
    pub fn find(&self, ports: &[HostPorts], container: Option<&ContainerId>) -> Option<Shadowed> {
        self.0.iter().find_map(|(transport, socket)| {
            let is_wanted = |wanted: &HostPorts| {
                wanted.transport == *transport
                    && wanted.ports.contains(&socket.port)
                    && socket.is_on(wanted.address)
            };
            if !ports.iter().any(is_wanted) {
                return None;
            }
            let programs = socket.programs();
            let is_kept = container
                .is_some_and(|id| programs.iter().any(|program| program.arguments.contains(&**id)));
            let program = programs.into_iter().next();
            (!is_kept).then_some(Shadowed { transport: *transport, port: socket.port, program })
        })
    }
}
