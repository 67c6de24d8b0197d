//! The ports of an attachment as its record lists them, so that a DEL finds their elements without a configuration:
//! `ip portmap-published any tcp 80 443` and `ip portmap-published-on 192.0.2.1 tcp 8080`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::bindings::PortBindings;
use super::config::{HostIp, Mapping};
use super::rules;
use crate::names::IpFamily;
use crate::netlink::nft::{Family, Transport};

/// The keys of ports, by the map that has them.
pub type Keys = BTreeMap<String, BTreeSet<Vec<u8>>>;

/// The ports of these bindings.
pub fn of(bindings: &PortBindings<'_>) -> Vec<String> {
    let mut all: BTreeMap<(Option<IpAddr>, &str), String> = BTreeMap::new();
    for Mapping { host_ip, transport, host_port, .. } in bindings.mappings() {
        *all.entry((host_ip.one(), transport.name())).or_default() += &format!(" {host_port}");
    }
    let (family, group) = (Family::from(bindings.family), &bindings.group);
    let text = |((on, transport), ports): ((Option<IpAddr>, &str), String)| match on {
        None => format!("{family} {} any {transport}{ports}", group.published()),
        Some(ip) => format!("{family} {} {ip} {transport}{ports}", group.published_on()),
    };
    all.into_iter().map(text).collect()
}

/// The keys of the ports of a family. `None` if a text has another form.
pub fn keys(noted: &[String], family: IpFamily) -> Option<Keys> {
    let mut keys = Keys::new();
    for text in noted {
        let words: Vec<&str> = text.split(' ').collect();
        let [of, map, host_ip, transport, ports @ ..] = words.as_slice() else { return None };
        if *of != Family::from(family).to_string() {
            continue;
        }
        let transport = Transport::named(transport)?;
        let host_ip = match *host_ip {
            "any" => HostIp::AnyOf(family),
            ip => HostIp::One(ip.parse().ok()?),
        };
        let of_map = keys.entry((*map).to_owned()).or_default();
        for port in ports {
            let (host_port, container_port) = (port.parse().ok()?, 0);
            of_map.insert(rules::key(&Mapping { transport, host_port, host_ip, container_port }));
        }
    }
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_noted_ports_are_those_of_the_mappings() {
        let noted = [
            "ip portmap-published any tcp 80 443",
            "ip6 portmap-published any tcp 1",
            "ip portmap-published-on 192.0.2.1 udp 53",
        ];
        let key = |transport, host_port, host_ip| {
            rules::key(&Mapping { transport, host_port, host_ip, container_port: 0 })
        };
        let tcp = |port| key(Transport::Tcp, port, HostIp::Any);
        let udp = key(Transport::Udp, 53, HostIp::One([192, 0, 2, 1].into()));
        let expected = Keys::from([
            ("portmap-published".into(), [80, 443].map(tcp).into()),
            ("portmap-published-on".into(), [udp].into()),
        ]);
        assert_eq!(keys(&noted.map(str::to_owned), IpFamily::V4), Some(expected));
        for other in ["ip portmap-published", "ip m any tcp x", "ip m x tcp 1", "ip m any x 1"] {
            assert_eq!(keys(&[other.to_owned()], IpFamily::V4), None, "{other}");
        }
    }
}
