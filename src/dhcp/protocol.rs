//! The messages between the plugin and the daemon: one line of JSON each, one request per connection.
//!
//! The daemon answers a request with two lines: first the timeout of the request in milliseconds, then the result. A request
//! that it refuses gets only the error.
//!
//! ```text
//! {"verb":"acquire","network":"lan","containerID":"c1","ifname":"eth0","netns":"/run/netns/c1",…}
//! {"within":213000}
//! {"ok":{"cniVersion":"1.1.0","ips":[…]}}    or    {"error":{"code":999,"msg":"…","details":"…"}}
//! ```
//!
//! This module opens no socket.

use std::path::PathBuf;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::dhcp::lease::Key;
use crate::dhcp::time::Time;
use crate::error::{Error, Result};
use crate::names::{Attachment, NetworkName};

/// The longest request, in bytes with its newline: a GC with all attachments that the input of a plugin can name.
pub const REQUEST_BYTES_MAX: u64 = 16 << 20;
/// The longest answer, in bytes with its newline: the list of 10,000 leases.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// A request to the daemon. The JSON key `verb` selects the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum Request {
    /// Returns the result of ADD, for the lease that the attachment has, else for a new lease.
    Acquire(LeaseRequest),
    /// Fails if the attachment has no valid lease. Never requests a new lease.
    Check(Key),
    /// Sends a RELEASE if the attachment has a lease.
    Release(Key),
    /// Releases the leases of the network, except those of the attachments in `keep`.
    Gc { network: NetworkName, keep: Vec<Attachment> },
    /// Returns nothing. An answer means that the daemon serves requests.
    Status,
    /// Returns the list of all leases.
    Leases,
}

/// The request for a lease: its owner, the container's namespace and the settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseRequest {
    #[serde(flatten)]
    pub key: Key,
    /// The path of the container's namespace, absolute, without the daemon's prefix.
    #[serde(deserialize_with = "absolute")]
    pub netns: PathBuf,
    #[serde(flatten)]
    pub settings: LeaseSettings,
}

/// The settings of a lease, which a plugin sends to the daemon: the validated keys of `ipam`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseSettings {
    /// Options for the server: code and value, each code once. Code 61 replaces the default client identifier
    /// (`Key::client_id`).
    pub provide: Vec<Provided>,
    /// The complete parameter request list (option 55).
    pub request: Vec<u8>,
    /// Probes a new address before it is used: no other host may have it.
    pub probe: bool,
    /// Sets the BROADCAST flag, so that the server answers by broadcast.
    pub broadcast: bool,
    pub families: Families,
    /// A lease must be in one of these subnets. If there are none: in the subnet of the first lease of its family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<IpNet>,
    /// The metric of every route in the result. 0: the kernel chooses it.
    pub priority: u32,
}

/// An option for the server. The value is text, as in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// The code.
    pub option: u8,
    pub value: String,
}

/// The sources of addresses that `ipam.families` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct Families {
    /// `"4"`: DHCP.
    pub v4: bool,
    /// `"6"`: DHCPv6.
    pub v6: bool,
    /// `"slaac"`: the kernel configures addresses after a router advertisement; the daemon waits for it.
    pub slaac: bool,
}

/// A line that the daemon sends.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    #[serde(rename = "ok")]
    Done(Box<RawValue>),
    #[serde(rename = "error")]
    Failed { code: u32, msg: String, details: String },
    /// The first of two lines: the timeout of the request.
    #[serde(rename = "within")]
    Within(Time),
}

impl Answer {
    /// The last line: the value as JSON, or the error.
    pub fn new(answer: Result<impl Serialize>) -> Self {
        let printed = answer.and_then(|value| {
            let printed = serde_json::value::to_raw_value(&value);
            printed
                .map_err(|error| Error::internal(format_args!("cannot print the answer: {error}")))
        });
        match printed {
            Ok(value) => Self::Done(value),
            Err(error) => Self::Failed {
                code: error.code.0,
                msg: error.msg.clone(),
                details: error.details.clone(),
            },
        }
    }
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(D::Error::custom("netns is not an absolute path"))
    }
}

/// Reads the names, as in the configuration.
impl TryFrom<Vec<String>> for Families {
    type Error = Error;

    fn try_from(names: Vec<String>) -> Result<Self> {
        let mut families = Self::default();
        for name in names {
            match name.as_str() {
                "4" => families.v4 = true,
                "6" => families.v6 = true,
                "slaac" => families.slaac = true,
                _ => return Err(Error::config(format_args!("unknown family {name:?}"))),
            }
        }
        Ok(families)
    }
}

impl From<Families> for Vec<&'static str> {
    fn from(Families { v4, v6, slaac }: Families) -> Self {
        let named = [(v4, "4"), (v6, "6"), (slaac, "slaac")];
        named.into_iter().filter_map(|(is_listed, name)| is_listed.then_some(name)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::Code;
    use crate::names::{ContainerId, IfName};

    pub(crate) fn key(id: &str) -> Key {
        Key {
            network: NetworkName::new("lan").unwrap(),
            at: Attachment {
                container_id: ContainerId::new(id).unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
        }
    }

    pub(crate) fn lease_request(id: &str) -> LeaseRequest {
        LeaseRequest {
            key: key(id),
            netns: "/run/netns/c1".into(),
            settings: LeaseSettings {
                provide: vec![
                    Provided { option: 12, value: "host \"name\"".into() },
                    Provided { option: 60, value: String::new() },
                ],
                request: vec![121, 3, 1, 255],
                probe: true,
                broadcast: false,
                families: Families { v4: true, v6: false, slaac: true },
                subnets: Vec::new(),
                priority: u32::MAX,
            },
        }
    }

    #[test]
    fn every_request_is_one_line_and_is_read_as_it_was_written() {
        for request in [
            Request::Acquire(lease_request("c1")),
            Request::Check(key("c1")),
            Request::Release(key("c1")),
            Request::Gc { network: key("c1").network, keep: vec![key("c2").at] },
            Request::Gc { network: key("c1").network, keep: Vec::new() },
            Request::Status,
            Request::Leases,
        ] {
            let line = serde_json::to_string(&request).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
        }
    }

    #[test]
    fn wrong_requests_are_refused() {
        let line = serde_json::to_string(&Request::Acquire(lease_request("c1"))).unwrap();
        for (from, to, expected) in [
            ("\"acquire\"", "\"take\"", "unknown variant `take`"),
            ("\"verb\":\"acquire\",", "", "missing field `verb`"),
            ("\"lan\"", "\"../lan\"", "invalid characters found in network name"),
            ("\"c1\"", "5", "invalid type: integer `5`"),
            ("\"eth0\"", "\"a/b\"", "interface name \"a/b\" is invalid"),
            ("/run/netns/c1", "netns", "netns is not an absolute path"),
            ("255]", "256]", "invalid value: integer `256`"),
            ("[121,", "[-1,", "invalid value: integer `-1`"),
            ("\"probe\":true", "\"probe\":1", "invalid type: integer `1`"),
            ("\"slaac\"", "\"7\"", "unknown family \"7\""),
            ("4294967295", "4294967296", "invalid value: integer `4294967296`"),
            ("[{\"option\":12", "[{\"option\":\"12\"", "invalid type: string \"12\""),
        ] {
            let wrong = line.replace(from, to);
            assert_ne!(wrong, line);
            let error = serde_json::from_str::<Request>(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{wrong}: {error}");
        }
    }

    #[test]
    fn answers_are_values_or_errors() {
        let error = Error::new(Code::NOT_AVAILABLE, "no").with_details("reason");
        for (answer, expected) in [
            (Answer::new(Ok(())), r#"{"ok":null}"#),
            (Answer::new(Ok([5])), r#"{"ok":[5]}"#),
            (
                Answer::new(Err::<(), _>(error)),
                r#"{"error":{"code":50,"msg":"no","details":"reason"}}"#,
            ),
            (Answer::Within(Time::from_millis(5)), r#"{"within":5}"#),
        ] {
            assert_eq!(serde_json::to_string(&answer).unwrap(), expected);
            let read = serde_json::from_str::<Answer>(expected).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), expected);
        }
        assert!(serde_json::from_str::<Answer>("null").is_err());
    }
}
