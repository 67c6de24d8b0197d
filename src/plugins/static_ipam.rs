//! `static`: addresses that the configuration lists. The plugin keeps no state.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "mynet", "type": "veth",
//!   "ipam": {
//!     "type": "static",
//!     "addresses": [
//!       { "address": "10.10.0.1/24", "gateway": "10.10.0.254" },
//!       { "address": "3ffe:ffff:0:1ff::1/64", "gateway": "3ffe:ffff::1" }
//!     ],
//!     "routes": [{ "dst": "0.0.0.0/0" }],
//!     "dns": { "nameservers": ["10.10.0.254"] }
//!   }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `ipam.addresses` | list of objects | none | Addresses of the container. |
//! | `ipam.addresses[].address` | string | required | Address with prefix length. |
//! | `ipam.addresses[].gateway` | string | none | Gateway of the address. |
//! | `ipam.routes` | list of objects | none | Routes in the result. `cnibox help network` describes the objects. |
//! | `ipam.dns` | object | none | DNS in the result: `nameservers`, `domain`, `search` and `options`. |
//! | `runtimeConfig.ips` | list of strings | none | Addresses with prefix length (capability `ips`). They replace all others. |
//! | `args.cni.ips` | list of strings | none | Addresses with prefix length. They replace those of `addresses` and CNI_ARGS. |
//! | `CNI_ARGS: IP` | string | none | Further addresses with prefix length, separated by commas. |
//! | `CNI_ARGS: GATEWAY` | string | none | Gateways, separated by commas. Each is the gateway of the addresses of `IP` in the same subnet. |
//!
//! The plugin does not test whether an address is in use elsewhere. ADD warns of an address that no container can use on a link
//! with broadcast: the network's and the broadcast address, the anycast address of the routers in IPv6, an address that the host has on
//! this link.
//!
//! - **ADD** returns the addresses, routes and DNS.
//! - **CHECK** fails if an address or its gateway is missing in `prevResult`.
//! - **DEL** has nothing to do.
//! - **GC** has nothing to do.
//! - **STATUS** fails if a key is wrong.

use std::net::IpAddr;

use crate::cni::args::Args;
use crate::cni::json::keys;
use crate::cni::request::Request;
use crate::cni::success::{Dns, Ip, Route, Success};
use crate::cni::text;
use crate::cni::version::Version;
use crate::error::{Code, Error, Result};
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Expected, Ipam, Scope, assignable};

pub const ENTRY: Entry = Entry::ipam::<Static>("static", "addresses written in the configuration");

impl Ipam for Static {
    fn add(&self, cx: &Context<'_>, _: &Attachment) -> Result<Success> {
        let ips = self.ips(cx.request)?;
        assignable::warn_of_requested(cx, ips.iter().map(|ip| ip.address));
        let IpamKeys { routes, dns, .. } = self.ipam()?;
        Ok(Success { ips, routes: routes.clone(), dns: dns.clone(), ..Success::default() })
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        let ips = self.ips(cx.request)?;
        let prev_result = cx.request.required_prev_result()?;
        for Ip { address, gateway, .. } in ips {
            let mut found = prev_result.ips.iter().filter(|ip| ip.address == address).peekable();
            let what = match found.peek() {
                None => format!("address {address}"),
                Some(_) => match gateway {
                    Some(gateway) if found.all(|ip| ip.gateway != Some(gateway)) => {
                        format!("gateway {gateway} of address {address}")
                    }
                    _ => continue,
                },
            };
            return Err(Error::internal(format_args!(
                "static: Failed to find {what} in the result for interface {}",
                at.ifname
            )));
        }
        Ok(())
    }

    fn clean(&self, _: &Context<'_>, _: Scope<'_>) -> Result<()> {
        Ok(())
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.ips(cx.request).map(drop)
    }

    fn expected(&self, cx: &Context<'_>) -> Result<Expected> {
        let choice = |ip: Ip| vec![ip];
        Ok(Expected::new(self.ips(cx.request)?.into_iter().map(choice).collect()))
    }
}

keys! {
    /// The keys of the configuration, not validated.
    pub struct Static {
        "ipam" => ipam: Option<IpamKeys>,
        "runtimeConfig" => runtime_config: Ips,
        "args" => args: ArgsKey,
    }

    struct IpamKeys {
        "addresses" => addresses: Vec<AddressKeys>,
        "routes" => routes: Vec<Route>,
        "dns" => dns: Dns,
    }

    struct AddressKeys {
        "address" => address: String,
        "gateway" => gateway: Option<IpAddr>,
    }

    struct ArgsKey {
        "cni" => cni: Ips,
    }

    struct Ips {
        "ips" => ips: Vec<String>,
    }
}

impl Static {
    fn ipam(&self) -> Result<&IpamKeys> {
        self.ipam.as_ref().ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))
    }

    /// Validates the keys. Returns the addresses, with the values of the runtime and of CNI_ARGS.
    fn ips(&self, request: &Request) -> Result<Vec<Ip>> {
        let IpamKeys { addresses, .. } = self.ipam()?;
        let from_env = Args::parse(&request.parameters.args)?;
        let env_ips: Vec<&str> = from_env.ip.map_or_else(Vec::new, |ips| ips.split(',').collect());
        let wanted = "the 'ip' field is expected to be";
        let mut env_ips = parse_all(&env_ips, Code::INVALID_ENVIRONMENT, wanted)?;
        set_gateways(&mut env_ips, from_env.gateway.unwrap_or_default())?;
        let wanted = "an entry in the 'ips' field is NOT";
        let args_ips = parse_all(&self.args.cni.ips, Code::INVALID_CONFIG, wanted)?;
        let runtime_ips = parse_all(&self.runtime_config.ips, Code::INVALID_CONFIG, wanted)?;
        let mut replacing = [runtime_ips, args_ips].into_iter().filter(|ips| !ips.is_empty());
        let ips = match replacing.next() {
            Some(ips) => ips,
            None => configured(addresses, env_ips)?,
        };
        let v4_count = ips.iter().filter(|ip| ip.address.addr().is_ipv4()).count();
        if request.version < Version::V0_3_0 && (v4_count > 1 || ips.len() - v4_count > 1) {
            return Err(Error::config(format_args!(
                "CNI version {} does not support more than 1 address per family",
                request.version
            )));
        }
        Ok(ips)
    }
}

/// Parses the addresses of the configuration and adds those of CNI_ARGS. Called only if neither
/// `runtimeConfig.ips` nor `args.cni.ips` replaces them.
fn configured(keys: &[AddressKeys], env_ips: Vec<Ip>) -> Result<Vec<Ip>> {
    let mut ips = Vec::new();
    for AddressKeys { address, gateway } in keys {
        let wanted = "the 'address' field is expected to be";
        ips.push(Ip { gateway: *gateway, ..parse(address, Code::INVALID_CONFIG, wanted)? });
    }
    ips.extend(env_ips);
    Ok(ips)
}

fn parse_all(texts: &[impl AsRef<str>], code: Code, wanted: &str) -> Result<Vec<Ip>> {
    texts.iter().map(|text| parse(text.as_ref().trim(), code, wanted)).collect()
}

/// The address without a gateway.
fn parse(text: &str, code: Code, wanted: &str) -> Result<Ip> {
    let address = text::parse_cidr(text)
        .map_err(|_| Error::new(code, format_args!("{wanted} in CIDR notation, got: '{text}'")))?;
    Ok(Ip { address, gateway: None, interface: None })
}

/// Sets the gateway of each address to the gateway of the list that is in its subnet. If several are, the last one is used.
fn set_gateways(ips: &mut [Ip], gateways: &str) -> Result<()> {
    for text in gateways.split(',').map(str::trim).filter(|_| !gateways.is_empty()) {
        let gateway = text::parse_ip(text).map_err(|_| {
            Error::new(Code::INVALID_ENVIRONMENT, format_args!("invalid gateway address: {text}"))
        })?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::plugin::Session;

    use super::*;

    /// Makes a request. `ipam` is the value of the key `ipam`, `more` the text after it, and `args` is CNI_ARGS.
    fn request(command: &str, ipam: &str, more: &str, args: &str) -> Request {
        let stdin =
            format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{ipam}{more}}}"#);
        let env = |name: &str| match name {
            "CNI_CONTAINERID" => Some(OsString::from("abc")),
            "CNI_NETNS" => Some("/run/netns/abc".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            "CNI_ARGS" => Some(args.into()),
            _ => None,
        };
        Request::read(command, env, stdin.as_bytes()).unwrap().0
    }

    fn addresses(ipam: &str, more: &str, args: &str) -> Result<String> {
        let request = request("ADD", ipam, more, args);
        let ips = request.json.read::<Static>("it")?.ips(&request)?;
        let show = |ip: &Ip| match ip.gateway {
            Some(gateway) => format!("{} via {gateway}", ip.address),
            None => ip.address.to_string(),
        };
        Ok(ips.iter().map(show).collect::<Vec<_>>().join(", "))
    }

    const TWO: &str = r#"{"addresses":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"address":"fd00::5/64"}]}"#;

    #[test]
    fn addresses_have_four_sources() {
        let args_ips = r#","args":{"cni":{"ips":["10.2.0.1/16"]}}"#;
        let both_ips =
            r#","args":{"cni":{"ips":["10.2.0.1/16"]}},"runtimeConfig":{"ips":["10.3.0.1/16"]}"#;
        let cases = [
            ("{}", "", "", ""),
            (TWO, "", "", "10.0.0.5/24 via 10.0.0.1, fd00::5/64"),
            (
                TWO,
                "",
                "IP=10.1.0.1/8, 10.1.0.2/8",
                "10.0.0.5/24 via 10.0.0.1, fd00::5/64, 10.1.0.1/8, 10.1.0.2/8",
            ),
            (TWO, "", "GATEWAY=10.0.0.9,fd00::1", "10.0.0.5/24 via 10.0.0.1, fd00::5/64"),
            (
                TWO,
                "",
                "IP=fd00::6/64;GATEWAY=fd00::1",
                "10.0.0.5/24 via 10.0.0.1, fd00::5/64, fd00::6/64 via fd00::1",
            ),
            (
                "{}",
                "",
                "IP=10.1.0.1/24;GATEWAY=10.1.0.7,10.1.0.8,10.2.0.1",
                "10.1.0.1/24 via 10.1.0.8",
            ),
            (TWO, args_ips, "IP=10.1.0.1/8", "10.2.0.1/16"),
            (TWO, both_ips, "GATEWAY=10.3.0.9", "10.3.0.1/16"),
            (TWO, args_ips, "IP=10.2.0.9/16;GATEWAY=10.2.0.9", "10.2.0.1/16"),
            (r#"{"addresses":[{"address":"replaced"}]}"#, both_ips, "", "10.3.0.1/16"),
        ];
        for (ipam, more, args, expected) in cases {
            assert_eq!(addresses(ipam, more, args).unwrap(), expected, "{ipam} {more} {args}");
        }
    }

    #[test]
    fn a_wrong_address_is_an_error_with_its_text() {
        let cases = [
            ("null", "", "", 7, "IPAM config missing 'ipam' key"),
            (
                r#"{"addresses":[{"address":"10.0.0.5"}]}"#,
                "",
                "",
                7,
                "the 'address' field is expected to be in CIDR notation, got: '10.0.0.5'",
            ),
            (
                TWO,
                "",
                "IP=10.0.0.5",
                4,
                "the 'ip' field is expected to be in CIDR notation, got: '10.0.0.5'",
            ),
            (TWO, "", "GATEWAY=x", 4, "invalid gateway address: x"),
            (
                TWO,
                r#","runtimeConfig":{"ips":["10.0.0.5"]}"#,
                "",
                7,
                "an entry in the 'ips' field is NOT in CIDR notation, got: '10.0.0.5'",
            ),
            (
                r#"{"addresses":[{"address":"10.0.0.5/8"},{"address":"10.0.0.6/8"}]}"#,
                r#","cniVersion":"0.2.0""#,
                "",
                7,
                "CNI version 0.2.0 does not support more than 1 address per family",
            ),
        ];
        for (ipam, more, args, code, expected) in cases {
            let error = addresses(ipam, more, args).unwrap_err();
            assert_eq!(
                (error.code, error.msg.as_str()),
                (Code(code), expected),
                "{ipam} {more} {args}"
            );
        }
    }

    #[test]
    fn check_fails_for_a_missing_address_or_gateway() {
        let at = Attachment {
            container_id: crate::names::ContainerId::new("abc").unwrap(),
            ifname: crate::names::IfName::new("eth0").unwrap(),
        };
        let v4 = r#"{"address":"10.0.0.5/24","gateway":"10.0.0.1"}"#;
        let other_gateway = r#"{"address":"10.0.0.5/24","gateway":"10.0.0.2"}"#;
        let v6 = r#"{"address":"fd00::5/64","gateway":"fd00::1"}"#;
        let cases = [
            (format!("{v4},{v6}"), None),
            (v4.to_owned(), Some("address fd00::5/64")),
            (v6.to_owned(), Some("address 10.0.0.5/24")),
            (format!("{other_gateway},{v6}"), Some("gateway 10.0.0.1 of address 10.0.0.5/24")),
        ];
        for (ips, missing) in cases {
            let more = format!(r#","prevResult":{{"cniVersion":"1.1.0","ips":[{ips}]}}"#);
            let request = request("CHECK", TWO, &more, "");
            let session = Session::without_container();
            let cx = Context { request: &request, session: &session, plugins: &[] };
            let expected = missing.map(|what| {
                format!("static: Failed to find {what} in the result for interface eth0")
            });
            let error = request
                .json
                .read::<Static>("it")
                .unwrap()
                .check(&cx, &at)
                .err()
                .map(|error| error.msg.clone());
            assert_eq!(error, expected, "{ips}");
        }
    }
}
