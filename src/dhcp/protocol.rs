//! The messages between the plugin and the daemon: one line of JSON each, one request per connection.
//!
//! The daemon answers a request with the time that it may take, and then with the answer itself:
//!
//! ```text
//! {"verb":"acquire","network":"lan","containerID":"c1","ifname":"eth0","netns":"/run/netns/c1",…}
//! {"within":213000}
//! {"ok":{"cniVersion":"1.1.0","ips":[…]}}    or    {"error":{"code":999,"msg":"…","details":"…"}}
//! ```
//!
//! It does not know sockets.

use std::path::PathBuf;

use crate::cni::json::Json;
use crate::dhcp::fields::Fields;
use crate::dhcp::lease::Key;
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// The longest request, in bytes with its newline. Every option of 255 bytes once fits in it.
pub const REQUEST_BYTES_MAX: usize = 256 << 10;
/// The longest answer, in bytes with its newline: the list of 10,000 leases.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A question to the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Answered by a result with a lease: the attachment's own if it has one, else a new one.
    Acquire(Ask),
    /// Fails if the attachment has no valid lease. Takes none.
    Check(Key),
    /// Sends a RELEASE if the attachment has a lease.
    Release(Key),
    /// Releases the leases of the network except these.
    Gc { network: NetworkName, keep: Vec<Attachment> },
    /// Answered if the daemon can serve.
    Status,
    /// Answered by a list.
    Leases,
}

/// The request for a lease: all that the daemon needs of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub key: Key,
    /// The path of the container's namespace, absolute, without the daemon's prefix.
    pub netns: PathBuf,
    pub settings: Settings,
}

/// The keys of the configuration, validated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Options for the server: code and value, each code once. Code 61 replaces the client identifier of the key.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// The complete parameter request list (option 55).
    pub request: Vec<u8>,
    /// Looks for another holder of the address before it is used.
    pub probe: bool,
    /// Asks the server to answer by broadcast.
    pub broadcast: bool,
    pub families: Families,
    /// The metric of every route in the result; 0 leaves it to the kernel.
    pub priority: u32,
}

/// The sources of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// `"4"`: DHCP.
    pub v4: bool,
    /// `"6"`: DHCPv6.
    pub v6: bool,
    /// `"slaac"`: the kernel configures addresses after a router advertisement; the daemon waits for it.
    pub slaac: bool,
}

impl Request {
    pub fn to_json(&self) -> Json {
        let (verb, mut entries) = match self {
            Self::Acquire(ask) => ("acquire", entries_of(ask)),
            Self::Check(key) => ("check", entries_of_key(key)),
            Self::Release(key) => ("release", entries_of_key(key)),
            Self::Gc { network, keep } => {
                let keep = keep.iter().map(|at| Json::Object(entries_of_attachment(at)));
                let keep = Json::Array(keep.collect());
                ("gc", vec![entry("network", network.to_string()), ("keep".into(), keep)])
            }
            Self::Status => ("status", Vec::new()),
            Self::Leases => ("leases", Vec::new()),
        };
        entries.insert(0, entry("verb", verb));
        Json::Object(entries)
    }

    pub fn from_json(json: &Json) -> Result<Self> {
        let fields = Fields(json);
        Ok(match fields.text("verb")? {
            "acquire" => Self::Acquire(ask_of(fields)?),
            "check" => Self::Check(key_of(fields)?),
            "release" => Self::Release(key_of(fields)?),
            "gc" => {
                let keep = fields.list("keep")?.iter().map(|it| attachment_of(Fields(it)));
                let network = NetworkName::new(fields.text("network")?)?;
                Self::Gc { network, keep: keep.collect::<Result<_>>()? }
            }
            "status" => Self::Status,
            "leases" => Self::Leases,
            verb => return Err(Error::config(format!("unknown verb {verb:?}"))),
        })
    }
}

/// The line with the answer to a request.
pub fn answer_to_json(answer: Result<Json>) -> Json {
    match answer {
        Ok(value) => Json::Object(vec![("ok".into(), value)]),
        Err(error) => {
            let error = Json::object([
                ("code", Some(error.code.0.into())),
                ("msg", Some(error.msg.as_str().into())),
                ("details", Some(error.details.as_str().into())),
            ]);
            Json::Object(vec![("error".into(), error)])
        }
    }
}

/// The answer in a line: the value, or the daemon's error. The outer error means that the line is no answer.
pub fn answer_from_json(json: &Json) -> Result<Result<Json>> {
    let Some(error) = json.get("error") else {
        return Fields(json).object("ok").map(|found| Ok(found.cloned().unwrap_or_default()));
    };
    let fields = Fields(error);
    let code = Code(u32::try_from(fields.number("code")?).unwrap_or(Code::INTERNAL.0));
    let details = fields.text("details")?;
    Ok(Err(Error::new(code, fields.text("msg")?).with_details(details)))
}

/// The entries of an `Ask` in an object.
pub(super) fn entries_of(ask: &Ask) -> Vec<(String, Json)> {
    let Ask { key, netns, settings } = ask;
    let provide = settings.provide.iter().map(|(code, value)| {
        // The values are from JSON, so they are UTF-8.
        let value = String::from_utf8_lossy(value).into_owned();
        Json::object([("option", Some(u32::from(*code).into())), ("value", Some(value.into()))])
    });
    let request = settings.request.iter().map(|code| u32::from(*code).into());
    let mut entries = entries_of_key(key);
    entries.extend([
        entry("netns", netns.to_string_lossy().into_owned()),
        ("provide".into(), Json::Array(provide.collect())),
        ("request".into(), Json::Array(request.collect())),
        ("probe".into(), Json::Bool(settings.probe)),
        ("broadcast".into(), Json::Bool(settings.broadcast)),
        ("families".into(), Json::Array(settings.families.names().map(Json::from).collect())),
        entry("priority", settings.priority),
    ]);
    entries
}

/// Reads the entries of an `Ask`.
pub(super) fn ask_of(fields: Fields<'_>) -> Result<Ask> {
    let provide = fields.list("provide")?.iter().map(|it| {
        let it = Fields(it);
        Ok((it.small("option")?, it.text("value")?.as_bytes().to_vec()))
    });
    let request = fields.list("request")?.iter();
    let request = request.map(|code| Fields::small_of(code, "request"));
    let mut families = Families::default();
    for family in fields.texts("families")? {
        families.add(&family)?;
    }
    let netns = PathBuf::from(fields.text("netns")?);
    if !netns.is_absolute() {
        return Err(Error::config("netns is not an absolute path"));
    }
    Ok(Ask {
        key: key_of(fields)?,
        netns,
        settings: Settings {
            provide: provide.collect::<Result<_>>()?,
            request: request.collect::<Result<_>>()?,
            probe: fields.switch("probe")?,
            broadcast: fields.switch("broadcast")?,
            families,
            priority: fields.small("priority")?,
        },
    })
}

impl Families {
    /// Adds the family of a name in the configuration.
    pub fn add(&mut self, name: &str) -> Result<()> {
        match name {
            "4" => self.v4 = true,
            "6" => self.v6 = true,
            "slaac" => self.slaac = true,
            _ => return Err(Error::config(format!("unknown family {name:?}"))),
        }
        Ok(())
    }

    /// The names in the configuration.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = [(self.v4, "4"), (self.v6, "6"), (self.slaac, "slaac")];
        named.into_iter().filter_map(|(is_there, name)| is_there.then_some(name))
    }
}

pub(super) fn entry(key: &str, value: impl Into<Json>) -> (String, Json) {
    (key.into(), value.into())
}

fn entries_of_key(key: &Key) -> Vec<(String, Json)> {
    vec![
        entry("network", key.network.to_string()),
        entry("containerID", key.container_id.to_string()),
        entry("ifname", key.ifname.to_string()),
    ]
}

pub(super) fn key_of(fields: Fields<'_>) -> Result<Key> {
    let Attachment { container_id, ifname } = attachment_of(fields)?;
    Ok(Key { network: NetworkName::new(fields.text("network")?)?, container_id, ifname })
}

fn entries_of_attachment(at: &Attachment) -> Vec<(String, Json)> {
    vec![entry("containerID", at.container_id.to_string()), entry("ifname", at.ifname.to_string())]
}

fn attachment_of(fields: Fields<'_>) -> Result<Attachment> {
    Ok(Attachment {
        container_id: ContainerId::new(fields.text("containerID")?)?,
        ifname: IfName::new(fields.text("ifname")?)?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn key(id: &str) -> Key {
        Key {
            network: NetworkName::new("lan").unwrap(),
            container_id: ContainerId::new(id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        }
    }

    pub(crate) fn ask(id: &str) -> Ask {
        Ask {
            key: key(id),
            netns: "/run/netns/c1".into(),
            settings: Settings {
                provide: vec![(12, b"host \"name\"".to_vec()), (60, Vec::new())],
                request: vec![121, 3, 1, 255],
                probe: true,
                broadcast: false,
                families: Families { v4: true, v6: false, slaac: true },
                priority: u32::MAX,
            },
        }
    }

    #[test]
    fn every_request_is_one_line_and_is_read_as_it_was_written() {
        let at = Attachment { container_id: key("c2").container_id, ifname: key("c2").ifname };
        for request in [
            Request::Acquire(ask("c1")),
            Request::Check(key("c1")),
            Request::Release(key("c1")),
            Request::Gc { network: key("c1").network, keep: vec![at] },
            Request::Gc { network: key("c1").network, keep: Vec::new() },
            Request::Status,
            Request::Leases,
        ] {
            let line = request.to_json().to_compact();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Request::from_json(&Json::parse(line.as_bytes()).unwrap()), Ok(request));
        }
    }

    #[test]
    fn wrong_requests_are_refused_with_the_name_of_the_key() {
        let line = Request::Acquire(ask("c1")).to_json().to_compact();
        for (from, to, expected) in [
            ("\"acquire\"", "\"take\"", "unknown verb \"take\""),
            ("\"verb\":\"acquire\",", "", "cannot read verb: it is not a string"),
            ("\"lan\"", "\"../lan\"", "invalid characters found in network name"),
            ("\"c1\"", "5", "cannot read containerID: it is not a string"),
            ("\"eth0\"", "\"a/b\"", "interface name \"a/b\" is invalid"),
            ("/run/netns/c1", "netns", "netns is not an absolute path"),
            ("255]", "256]", "cannot read request: it is out of range"),
            ("[121,", "[-1,", "cannot read request: it is not a number"),
            ("\"probe\":true", "\"probe\":1", "cannot read probe: it is not true or false"),
            ("\"slaac\"", "\"7\"", "unknown family \"7\""),
            ("4294967295", "4294967296", "cannot read priority: it is out of range"),
            ("[{\"option\":12", "[{\"option\":\"12\"", "cannot read option: it is not a number"),
        ] {
            let wrong = line.replace(from, to);
            assert_ne!(wrong, line);
            let error = Request::from_json(&Json::parse(wrong.as_bytes()).unwrap()).unwrap_err();
            assert_eq!(error.msg, expected, "{wrong}");
        }
    }

    #[test]
    fn answers_are_values_or_errors() {
        let error = Error::new(Code::NOT_AVAILABLE, "no").with_details("reason");
        for answer in [Ok(Json::Null), Ok(Json::Array(vec![5_u32.into()])), Err(error)] {
            let line = answer_to_json(answer.clone()).to_compact();
            let read = answer_from_json(&Json::parse(line.as_bytes()).unwrap());
            assert_eq!(read, Ok(answer), "{line}");
        }
        assert!(answer_from_json(&Json::Null).is_err());
    }
}
