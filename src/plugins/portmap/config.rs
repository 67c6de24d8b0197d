//! The keys of `portmap`, and their validation.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::conditions::{self, Conditions};
use crate::cni::json::keys;
use crate::cni::text::parse_ip;
use crate::error::{Error, Result};
use crate::names::IpFamily;
use crate::netlink::nft::Transport;
use crate::rules::hairpin::MARK_BIT;

keys! {
    /// The keys of the configuration, not validated.
    pub struct Portmap {
        "backend" => backend: String,
        "snat" => snat: Option<bool>,
        "masqAll" => masq_all: bool,
        "markMasqBit" => mark_masq_bit: Option<i64>,
        "externalSetMarkChain" => external_set_mark_chain: String,
        "conditionsV4" => conditions_v4: Vec<String>,
        "conditionsV6" => conditions_v6: Vec<String>,
        "runtimeConfig" => runtime_config: RuntimeConfig,
    }

    struct RuntimeConfig {
        "portMappings" => port_mappings: Vec<PortMapping>,
    }

    struct PortMapping {
        "hostPort" => host_port: i64,
        "containerPort" => container_port: i64,
        "protocol" => protocol: String,
        "hostIP" => host_ip: String,
    }
}

/// The validated configuration.
pub struct Settings {
    pub mappings: Vec<Mapping>,
    pub snat: Snat,
    /// The number of the bit, 0 to 31, that marks packets whose source is to be masqueraded.
    pub mark_bit: u8,
    conditions_v4: Conditions,
    conditions_v6: Conditions,
}

/// The packets to published ports that get the address of the host as source, so that replies return through the host,
/// which translates them back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Snat {
    /// No packets.
    Off,
    /// Packets from the subnet of the container, and from 127.0.0.1.
    Local,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub transport: Transport,
    pub host_port: u16,
    pub host_ip: HostIp,
    pub container_port: u16,
}

/// The addresses of the host that a port is published on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIp {
    /// All addresses of both families.
    Any,
    /// All addresses of one family: `0.0.0.0` or `::`.
    AnyOf(IpFamily),
    One(IpAddr),
}

impl HostIp {
    /// Whether the port is published on addresses of the family.
    pub fn is_in(self, family: IpFamily) -> bool {
        match self {
            Self::Any => true,
            Self::AnyOf(own) => own == family,
            Self::One(ip) => family.has(ip),
        }
    }

    /// The address of the host, if the port is published on a single address.
    pub fn one(self) -> Option<IpAddr> {
        match self {
            Self::One(ip) => Some(ip),
            Self::Any | Self::AnyOf(_) => None,
        }
    }

    fn overlaps(self, other: Self) -> bool {
        IpFamily::ALL.into_iter().any(|family| self.overlaps_in(family, other))
    }

    fn overlaps_in(self, family: IpFamily, other: Self) -> bool {
        self.is_in(family) && other.is_in(family) && self.one() == other.one()
    }

    /// The addresses without those of the others: `0.0.0.0` and `::` are each a part of all addresses. `None` if none are left.
    fn without(self, others: &[Self]) -> Option<Self> {
        let is_left = |family: &IpFamily| {
            self.is_in(*family) && !others.iter().any(|other| other.overlaps_in(*family, self))
        };
        let mut left = IpFamily::ALL.into_iter().filter(is_left);
        match (left.next(), left.next(), self) {
            (Some(family), None, Self::Any) => Some(Self::AnyOf(family)),
            (Some(_), ..) => Some(self),
            (None, ..) => None,
        }
    }
}

impl Settings {
    /// The mappings that apply to a family.
    pub fn mappings_in(&self, family: IpFamily) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(move |mapping| mapping.host_ip.is_in(family))
    }

    pub fn conditions(&self, family: IpFamily) -> &Conditions {
        match family {
            IpFamily::V4 => &self.conditions_v4,
            IpFamily::V6 => &self.conditions_v6,
        }
    }
}

impl Portmap {
    pub fn settings(&self) -> Result<Settings> {
        let mark_bit = self.mark_bit()?;
        self.check_backend()?;
        let snat = match (self.snat.unwrap_or(true), self.masq_all) {
            (false, _) => Snat::Off,
            (true, false) => Snat::Local,
            (true, true) => Snat::All,
        };
        Ok(Settings {
            mappings: self.mappings(snat)?,
            snat,
            mark_bit,
            conditions_v4: Conditions::parse("conditionsV4", IpFamily::V4, &self.conditions_v4)?,
            conditions_v6: Conditions::parse("conditionsV6", IpFamily::V6, &self.conditions_v6)?,
        })
    }

    fn mark_bit(&self) -> Result<u8> {
        let Some(bit) = self.mark_masq_bit else { return Ok(MARK_BIT) };
        if !self.external_set_mark_chain.is_empty() {
            return Err(Error::config("Cannot specify externalSetMarkChain and markMasqBit"));
        }
        u8::try_from(bit).ok().filter(|bit| *bit < 32).ok_or_else(|| {
            // The reference calls the key MasqMarkBit in this error.
            Error::config(format_args!(
                "MasqMarkBit must be between 0 and 31: markMasqBit is {bit}"
            ))
        })
    }

    /// Fails if a key belongs to the backend that was not chosen. Otherwise `backend` has no effect: the rules are the same.
    fn check_backend(&self) -> Result<()> {
        let is_iptables = match self.backend.as_str() {
            "" => return Ok(()),
            "iptables" => true,
            "nftables" => false,
            other => return Err(Error::config(format_args!("unrecognized backend {other:?}"))),
        };
        let is_of_other = |list: &[String]| {
            list.first().is_some_and(|first| conditions::is_iptables_style(first) != is_iptables)
        };
        let keys = [
            ("externalSetMarkChain", !is_iptables && !self.external_set_mark_chain.is_empty()),
            ("conditionsV4", is_of_other(&self.conditions_v4)),
            ("conditionsV6", is_of_other(&self.conditions_v6)),
        ];
        let keys: Vec<&str> =
            keys.into_iter().filter(|(_, is_wrong)| *is_wrong).map(|(key, _)| key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        Err(Error::config(format_args!(
            "backend: {} was requested, but {} of the other backend",
            self.backend,
            match keys.as_slice() {
                [one] => format!("{one} is"),
                several => format!("{} are", several.join(" and ")),
            }
        )))
    }

    fn mappings(&self, snat: Snat) -> Result<Vec<Mapping>> {
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut of_port: BTreeMap<(Transport, u16), Vec<Mapping>> = BTreeMap::new();
        for (index, written) in self.runtime_config.port_mappings.iter().enumerate() {
            let at = format!("runtimeConfig.portMappings[{index}]");
            let mapping = written.parse(&at)?;
            if let Some(ip) = mapping.host_ip.one()
                && let Some(reason) = undeliverable(ip, snat)
            {
                let msg = format!("{at}.hostIP: {ip} leads to no container: {reason}");
                return Err(Error::config(msg));
            }
            let others = of_port.entry((mapping.transport, mapping.host_port)).or_default();
            let (same, different): (Vec<Mapping>, Vec<Mapping>) = others
                .iter()
                .filter(|other| other.host_ip.overlaps(mapping.host_ip))
                .partition(|other| other.container_port == mapping.container_port);
            if !different.is_empty() {
                return Err(Error::config(format_args!(
                    "{at}: host port {} {} is mapped twice",
                    mapping.transport.name(),
                    mapping.host_port
                )));
            }
            // A repeated mapping has no effect.
            let same: Vec<HostIp> = same.iter().map(|mapping| mapping.host_ip).collect();
            if let Some(host_ip) = mapping.host_ip.without(&same) {
                let mapping = Mapping { host_ip, ..mapping };
                others.push(mapping);
                mappings.push(mapping);
            }
        }
        Ok(mappings)
    }
}

impl PortMapping {
    /// Validates a port mapping. `at` is its position in the configuration, for errors.
    fn parse(&self, at: &str) -> Result<Mapping> {
        let port = |what: &str, key: &str, number: i64| {
            u16::try_from(number).ok().filter(|port| *port != 0).ok_or_else(|| {
                Error::config(format_args!("Invalid {what} port number: {number}: {at}.{key}"))
            })
        };
        let host_ip = match self.host_ip.as_str() {
            "" => HostIp::Any,
            text => match parse_ip(text) {
                Ok(ip) if ip.is_unspecified() => HostIp::AnyOf(IpFamily::of(ip)),
                Ok(ip) => HostIp::One(ip),
                Err(reason) => return Err(Error::config(format_args!("{at}.hostIP: {reason}"))),
            },
        };
        // Some runtimes leave out the protocol if it is tcp.
        let transport = match self.protocol.as_str() {
            "" => Some(Transport::Tcp),
            name => Transport::named(name),
        };
        Ok(Mapping {
            transport: transport.ok_or_else(|| {
                Error::config(format_args!(
                    "{at}.protocol: {:?} is not tcp, udp or sctp",
                    self.protocol
                ))
            })?,
            host_port: port("host", "hostPort", self.host_port)?,
            host_ip,
            container_port: port("container", "containerPort", self.container_port)?,
        })
    }
}

/// The reason why the kernel forwards no packet with this destination. `None` if it can forward packets.
fn undeliverable(ip: IpAddr, snat: Snat) -> Option<&'static str> {
    match ip {
        _ if ip.is_multicast() => Some("it is a multicast address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("it is the broadcast address"),
        IpAddr::V4(ip) if ip.is_loopback() && snat == Snat::Off => {
            Some("packets from 127.0.0.1 need snat")
        }
        IpAddr::V6(ip) if ip.is_loopback() => Some("the kernel does not forward packets from ::1"),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some("it is a link-local address"),
        _ => None,
    }
}
