//! The ports of an attachment as its record lists them, so that a DEL finds their elements without a configuration:
//! `ip portmap-published any tcp 80 443` and `ip portmap-published-on 192.0.2.1 tcp 8080`.

use std::collections::{BTreeMap, BTreeSet};

use super::bindings::PortBindings;
use super::config::{HostIp, Mapping};
use super::rules;
use crate::names::IpFamily;
use crate::netlink::nft::{Family, Transport};

/// The keys of ports, by the map that has them.
pub type Keys = BTreeMap<String, BTreeSet<Vec<u8>>>;

/// The ports of these bindings.
pub fn of(bindings: &PortBindings<'_>) -> Vec<String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for mapping in bindings.mappings() {
        let map = bindings.group.map_of(&rules::key(mapping));
        let on = mapping.host_ip.one().map_or_else(|| "any".to_owned(), |ip| ip.to_string());
        let (family, transport) = (Family::from(bindings.family), mapping.transport.name());
        let ports = all.entry(format!("{family} {map} {on} {transport}")).or_default();
        *ports += &format!(" {}", mapping.host_port);
    }
    all.into_iter().map(|(place, ports)| place + &ports).collect()
}

/// The keys of the ports of a family. A text of another form has none.
pub fn keys(noted: &[String], family: IpFamily) -> Keys {
    let mut keys = Keys::new();
    for text in noted {
        let words: Vec<&str> = text.split(' ').collect();
        let [of, map, host_ip, transport, ports @ ..] = words.as_slice() else { continue };
        let Some(transport) = Transport::named(transport) else { continue };
        if *of == Family::from(family).to_string() {
            let host_ip = host_ip.parse().map_or(HostIp::AnyOf(family), HostIp::One);
            let ports = ports.iter().filter_map(|port| port.parse().ok());
            let mapping = |host_port| Mapping { transport, host_port, host_ip, container_port: 0 };
            let of_map = keys.entry((*map).to_owned()).or_default();
            of_map.extend(ports.map(|port| rules::key(&mapping(port))));
        }
    }
    keys
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
        assert_eq!(keys(&noted.map(str::to_owned), IpFamily::V4), expected);
    }
}
