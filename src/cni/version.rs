//! The protocol versions, and the format of a result in each version. Other files use the format of the newest version only.

use std::fmt::{self, Display};

use crate::cni::json::Json;
use crate::cni::success::{Dns, Interface, Ip, LegacyIp, LegacyResult, Route, Success};
use crate::error::{Code, Error, Result};
use crate::names::IpFamily;

/// A version of the CNI specification, as text. An older version compares less than a newer one: each number has one digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(&'static str);

impl Version {
    pub const V0_1_0: Self = Self("0.1.0");
    pub const V0_2_0: Self = Self("0.2.0");
    pub const V0_3_0: Self = Self("0.3.0");
    pub const V0_3_1: Self = Self("0.3.1");
    pub const V0_4_0: Self = Self("0.4.0");
    pub const V1_0_0: Self = Self("1.0.0");
    pub const V1_1_0: Self = Self("1.1.0");
    /// The versions that every plugin supports, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];
    pub const NEWEST: Self = Self::V1_1_0;

    pub fn text(self) -> &'static str {
        self.0
    }

    /// Parses the version of a configuration. An empty text is the oldest version. An unsupported version is an error (code 1).
    pub fn negotiate(asked: &str) -> Result<Self> {
        let asked = if asked.is_empty() { Self::V0_1_0.text() } else { asked };
        Self::ALL.into_iter().find(|version| version.text() == asked).ok_or_else(|| {
            let known = Self::ALL.map(|version| format!("{:?}", version.text())).join(" ");
            Error::new(Code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
                .with_details(format_args!("config is {asked:?}, plugin supports [{known}]"))
        })
    }

    /// The highest supported version of those that a network lists. Unsupported versions are ignored. It is an error (code 1)
    /// if all are unsupported. A text that is not a version is an error (code 6).
    pub fn highest(asked: &[&str]) -> Result<Self> {
        for text in asked {
            numbers(text)?;
        }
        let known = asked.iter().filter_map(|text| Self::negotiate(text).ok());
        known.max().map_or_else(|| Self::negotiate(asked.last().unwrap_or(&"")), Ok)
    }

    /// Like `negotiate`, for CHECK, GC and STATUS: also an error (code 1) if the version is older than `since`, the first
    /// version with the verb.
    pub fn negotiate_for(asked: &str, verb: &str, since: Self) -> Result<Self> {
        let asked_numbers = numbers(asked)?;
        if asked_numbers < numbers(since.text())? {
            return Err(Error::new(
                Code::INCOMPATIBLE_VERSION,
                format_args!("config version does not allow {verb}"),
            ));
        }
        if asked_numbers > numbers(Self::NEWEST.text())? {
            return Err(Error::new(
                Code::INCOMPATIBLE_VERSION,
                format_args!("plugin version does not allow {verb}"),
            ));
        }
        Self::negotiate(asked)
    }

    /// The versions whose results have the same format as those of this version, oldest first.
    fn family(self) -> &'static [Self] {
        match self {
            Self::V0_1_0 | Self::V0_2_0 => &[Self::V0_1_0, Self::V0_2_0],
            Self::V0_3_0 | Self::V0_3_1 | Self::V0_4_0 => {
                &[Self::V0_3_0, Self::V0_3_1, Self::V0_4_0]
            }
            _ => &[Self::V1_0_0, Self::V1_1_0],
        }
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Parses a version of one to three numbers, separated by dots, for comparisons. Another text is an error (code 6).
fn numbers(text: &str) -> Result<[u32; 3]> {
    let text = if text.is_empty() { Version::V0_1_0.text() } else { text };
    let invalid = || Error::new(Code::DECODE, format_args!("cannot read version {text:?}"));
    let mut numbers = [0; 3];
    for (index, part) in text.split('.').enumerate() {
        *numbers.get_mut(index).ok_or_else(invalid)? = part.parse().map_err(|_| invalid())?;
    }
    Ok(numbers)
}

/// The output of VERSION. A constant, because runtimes call VERSION more often than all other verbs.
///
/// Source: CNI specification 1.1.0, section 5, "Version".
pub const SUPPORTED: &str = concat!(
    r#"{"cniVersion":"1.1.0","#,
    r#""supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
    "\n",
);

/// Parses a result in the format of its version, or of `assumed` if it has no version.
pub fn parse_result(json: &Json, assumed: Version) -> Result<Success> {
    let version = match own_version(json)? {
        None | Some("") => assumed,
        Some(own) => Version::negotiate(own)?,
    };
    parse_format(json, version)
}

/// Parses a previous result. Its version must be `version`, or another version with the same format of results.
pub fn parse_prev_result(json: &Json, version: Version) -> Result<Success> {
    let own = own_version(json)?.unwrap_or_else(|| version.text());
    let family = version.family();
    let known = family.iter().any(|version| version.text() == own)
        || (own.is_empty() && family[0] == Version::V0_1_0);
    if !known {
        let supported = family.iter().map(|version| version.text()).collect::<Vec<_>>().join(" ");
        return Err(Error::internal(format_args!(
            "result type supports [{supported}] but unmarshalled CNIVersion is {own:?}"
        )));
    }
    parse_format(json, version)
}

fn own_version(json: &Json) -> Result<Option<&str>> {
    match json.get("cniVersion") {
        None => Ok(None),
        Some(Json::String(own)) => Ok(Some(own)),
        Some(_) => Err(Error::new(Code::DECODE, "cannot read result: cniVersion is not a string")),
    }
}

fn parse_format(json: &Json, version: Version) -> Result<Success> {
    if version >= Version::V0_3_0 {
        return json.read("result");
    }
    let LegacyResult { ip4, ip6, dns } = json.read("result")?;
    let mut success = Success { dns, ..Success::default() };
    for LegacyIp { ip, gateway, routes } in [ip4, ip6].into_iter().flatten() {
        success.ips.push(Ip { address: ip, gateway, interface: None });
        success.routes.extend(routes);
    }
    Ok(success)
}

/// Writes a result in the format of `version`, without the fields that the format lacks.
///
/// Fails if the format requires an address (0.1.0 and 0.2.0) and the result has none.
pub fn print_result(success: &Success, version: Version) -> Result<Json> {
    if version < Version::V0_3_0 {
        return legacy_result(success, version);
    }
    let is_old = version < Version::V1_0_0;
    let has_dns = is_old || !success.dns.is_empty();
    let result = Json::object([
        ("cniVersion", Some(version.text().into())),
        ("interfaces", list(&success.interfaces, |interface| self::interface(interface, is_old))),
        ("ips", list(&success.ips, |ip| self::ip(ip, is_old))),
        ("routes", list(&success.routes, route)),
        ("dns", has_dns.then(|| dns(&success.dns))),
    ]);
    // As in the reference, the keys of the newer results are sorted.
    Ok(if is_old { result } else { result.sorted() })
}

/// A result as a plugin of `version` would read it: without the fields that its format lacks.
pub fn lowered(success: Success, version: Version) -> Result<Success> {
    if version >= Version::V1_0_0 {
        return Ok(success);
    }
    parse_format(&print_result(&success, version)?, version)
}

fn legacy_result(success: &Success, version: Version) -> Result<Json> {
    let of_family = |family: IpFamily| {
        let ip = success.ips.iter().find(|ip| family.has(ip.address.addr()))?;
        let routes = success.routes.iter().filter(|route| family.has(route.dst.addr()));
        let route = |route: &&Route| {
            Json::object([
                ("dst", Some(text(route.dst))),
                ("gw", route.gw.map(text)),
                ("type", rejecting(route)),
            ])
        };
        Some(Json::object([
            ("ip", Some(text(ip.address))),
            ("gateway", ip.gateway.map(text)),
            ("routes", list(&routes.collect::<Vec<_>>(), route)),
        ]))
    };
    let (ip4, ip6) = (of_family(IpFamily::V4), of_family(IpFamily::V6));
    if ip4.is_none() && ip6.is_none() {
        return Err(Error::internal("cannot convert: no valid IP addresses")
            .with_details(format_args!("a result of version {version} must have one")));
    }
    Ok(Json::object([
        ("cniVersion", Some(version.text().into())),
        ("ip4", ip4),
        ("ip6", ip6),
        ("dns", Some(dns(&success.dns))),
    ]))
}

/// An interface. The versions before 1.0.0 have three of its keys.
fn interface(interface: &Interface, is_old: bool) -> Json {
    let if_new = |value: Option<Json>| value.filter(|_| !is_old);
    Json::object([
        ("name", Some(interface.name.as_str().into())),
        ("mac", non_empty(&interface.mac)),
        ("sandbox", non_empty(&interface.sandbox)),
        ("mtu", if_new(non_zero(interface.mtu))),
        ("pciID", if_new(non_empty(&interface.pci_id))),
        ("socketPath", if_new(non_empty(&interface.socket_path))),
    ])
}

/// An address. The versions before 1.0.0 have its family in `version`.
fn ip(ip: &Ip, is_old: bool) -> Json {
    let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
    Json::object([
        ("version", is_old.then(|| family.into())),
        ("interface", ip.interface.map(Json::from)),
        ("address", Some(text(ip.address))),
        ("gateway", ip.gateway.map(text)),
    ])
}

/// A route as in a result and in the configuration of an IPAM plugin.
pub fn route(route: &Route) -> Json {
    Json::object([
        ("dst", Some(text(route.dst))),
        ("gw", route.gw.map(text)),
        ("mtu", non_zero(route.mtu)),
        ("advmss", non_zero(route.advmss)),
        ("priority", non_zero(route.priority)),
        ("table", route.table.map(Json::from)),
        ("scope", route.scope.map(|scope| u32::from(scope).into())),
        ("type", rejecting(route)),
    ])
}

fn rejecting(route: &Route) -> Option<Json> {
    route.kind.rejects().then(|| route.kind.text().into())
}

fn dns(dns: &Dns) -> Json {
    Json::object([
        ("nameservers", texts(&dns.nameservers)),
        ("domain", non_empty(&dns.domain)),
        ("search", texts(&dns.search)),
        ("options", texts(&dns.options)),
    ])
}

fn list<T>(values: &[T], print: impl Fn(&T) -> Json) -> Option<Json> {
    (!values.is_empty()).then(|| Json::Array(values.iter().map(print).collect()))
}

fn texts(values: &[String]) -> Option<Json> {
    list(values, |value| value.as_str().into())
}

fn text(value: impl Display) -> Json {
    value.to_string().into()
}

fn non_empty(value: &str) -> Option<Json> {
    (!value.is_empty()).then(|| value.into())
}

fn non_zero(value: u32) -> Option<Json> {
    (value != 0).then(|| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_names_all_versions() {
        let answer = Json::parse(SUPPORTED.as_bytes()).unwrap();
        assert_eq!(answer.get("cniVersion"), Some(&Version::NEWEST.text().into()));
        let versions = Version::ALL.map(|version| version.text().into());
        assert_eq!(answer.get("supportedVersions"), Some(&Json::Array(versions.into())));
    }
}
