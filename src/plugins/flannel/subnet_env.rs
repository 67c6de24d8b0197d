//! Reads `subnet.env`, the file in which flannel's daemon writes the subnet of this host.

use std::path::Path;

use ipnet::IpNet;

use crate::cni::text::parse_cidr;
use crate::error::{Code, Error, Result};
use crate::kernel::file;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct SubnetEnv {
    /// The networks of all pods of the cluster: IPv4, then IPv6.
    pub networks: Vec<IpNet>,
    /// The subnets of the pods of this host: one of IPv4, one of IPv6, or both in this order.
    pub subnets: Vec<IpNet>,
    /// The MTU for the interfaces of pods, in bytes.
    pub mtu: u32,
    /// Whether the daemon masquerades packets of the pods. Then the delegate does not.
    pub ip_masq: bool,
}

impl SubnetEnv {
    /// Fails with code 11 if the file cannot be read: the daemon has not written it yet.
    pub fn read(path: &Path) -> Result<Self> {
        let text = file::read_text(path).map_err(|error| {
            let msg = format!("cannot read {}: {}", path.display(), file::reason(&error));
            Error::new(Code::TRY_AGAIN_LATER, msg)
                .with_details("flannel's daemon writes it: check the flannel pod log for this node")
        })?;
        Self::parse(&text).map_err(|why| {
            Error::internal(format_args!("{} {why}", path.display()))
                .with_details("check the flannel pod log for this node")
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut networks = [Vec::new(), Vec::new()];
        let mut subnets = [None, None];
        let (mut mtu, mut ip_masq) = (None, None);
        for (number, line) in (1..).zip(text.lines()) {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            let wrong = |why: String| format!("has a wrong line {number}: {key}: {why}");
            match key {
                "FLANNEL_NETWORK" => networks[0] = nets(value).map_err(wrong)?,
                "FLANNEL_IPV6_NETWORK" => networks[1] = nets(value).map_err(wrong)?,
                "FLANNEL_SUBNET" => subnets[0] = Some(net(value).map_err(wrong)?),
                "FLANNEL_IPV6_SUBNET" => subnets[1] = Some(net(value).map_err(wrong)?),
                "FLANNEL_MTU" => {
                    let number =
                        value.parse().map_err(|_| wrong(format!("{value:?} is not a number")));
                    mtu = Some(number?);
                }
                "FLANNEL_IPMASQ" => ip_masq = Some(value == "true"),
                _ => {}
            }
        }
        let (networks, subnets) =
            (networks.concat(), subnets.into_iter().flatten().collect::<Vec<_>>());
        match (mtu, ip_masq) {
            (Some(mtu), Some(ip_masq)) if !networks.is_empty() && !subnets.is_empty() => {
                Ok(Self { networks, subnets, mtu, ip_masq })
            }
            _ => {
                let missing = [
                    (networks.is_empty(), "FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
                    (subnets.is_empty(), "FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
                    (mtu.is_none(), "FLANNEL_MTU"),
                    (ip_masq.is_none(), "FLANNEL_IPMASQ"),
                ];
                let missing = missing.iter().filter(|(is_missing, _)| *is_missing);
                let names: Vec<&str> = missing.map(|(_, names)| *names).collect();
                Err(format!("is missing {}", names.join(", ")))
            }
        }
    }
}

/// A subnet, without its host bits.
fn net(text: &str) -> Result<IpNet, String> {
    parse_cidr(text).map(|net| net.trunc())
}

/// A list of networks, separated by commas, without duplicates.
fn nets(text: &str) -> Result<Vec<IpNet>, String> {
    let mut all: Vec<IpNet> = Vec::new();
    for text in text.split(',') {
        let net = net(text)?;
        if !all.contains(&net) {
            all.push(net);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_both_families_and_several_networks() {
        let text = "FLANNEL_NETWORK=10.42.0.0/16,10.43.0.0/16,10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\n\
                    FLANNEL_IPV6_NETWORK=fd00:42::/56\nFLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64\n\
                    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\nSOMETHING\n\n# x\nFLANNEL_X=1\n";
        let list = |texts: &[&str]| texts.iter().map(|net| net.parse().unwrap()).collect();
        let expected = SubnetEnv {
            networks: list(&["10.42.0.0/16", "10.43.0.0/16", "fd00:42::/56"]),
            subnets: list(&["10.42.1.0/24", "fd00:42:0:1::/64"]),
            mtu: 1450,
            ip_masq: true,
        };
        assert_eq!(SubnetEnv::parse(text), Ok(expected));
        let without_masq = SubnetEnv::parse(&text.replace("true", "True")).unwrap();
        assert!(!without_masq.ip_masq);
    }

    #[test]
    fn errors_name_the_wrong_line_or_the_missing_key() {
        let whole = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false";
        for (from, to, expected) in [
            ("FLANNEL_MTU", "X", "is missing FLANNEL_MTU"),
            ("FLANNEL_IPMASQ", "X", "is missing FLANNEL_IPMASQ"),
            ("FLANNEL_SUBNET", "X", "is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
            ("FLANNEL_NETWORK", "X", "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
            ("=1450", "=-1", "has a wrong line 3: FLANNEL_MTU: \"-1\" is not a number"),
            ("=1450", "", "has a wrong line 3: FLANNEL_MTU: \"\" is not a number"),
            ("10.42.1.1/24", "10.42.1.1", "has a wrong line 2: FLANNEL_SUBNET: "),
            ("0.0/16", "0.0/16,", "has a wrong line 1: FLANNEL_NETWORK: "),
        ] {
            let error = SubnetEnv::parse(&whole.replace(from, to)).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
