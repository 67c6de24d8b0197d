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
use crate::dhcp::fields::{self, Fields};
use crate::dhcp::lease::Key;
use crate::error::{Error, Result};
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
        let verb = match self {
            Self::Acquire(_) => "acquire",
            Self::Check(_) => "check",
            Self::Release(_) => "release",
            Self::Gc { .. } => "gc",
            Self::Status => "status",
            Self::Leases => "leases",
        };
        Fields::written(&mut |fields| {
            fields.string("verb", &mut verb.to_owned());
            match self {
                Self::Acquire(ask) => write_ask(fields, ask),
                Self::Check(key) | Self::Release(key) => write_key(fields, key),
                Self::Gc { network, keep } => {
                    fields.string(NETWORK, &mut network.to_string());
                    fields.objects("keep", keep.len(), &mut |fields, at| {
                        if let Some(Attachment { container_id, ifname }) = keep.get(at) {
                            write_attachment(fields, container_id, ifname);
                        }
                    });
                }
                Self::Status | Self::Leases => {}
            }
        })
    }

    pub fn from_json(json: &Json) -> Result<Self> {
        Ok(match &*text_of(json, "verb")? {
            "acquire" => Self::Acquire(ask_of(json)?),
            "check" => Self::Check(key_of(json)?),
            "release" => Self::Release(key_of(json)?),
            "gc" => {
                let Some(Json::Array(items)) = json.get("keep") else {
                    return Err(fields::cannot("keep", "it is not a list"));
                };
                let mut keep = Vec::new();
                for item in items {
                    keep.push(attachment_of(item)?);
                }
                Self::Gc { network: NetworkName::new(text_of(json, NETWORK)?)?, keep }
            }
            "status" => Self::Status,
            "leases" => Self::Leases,
            verb => return Err(Error::config(format_args!("unknown verb {verb:?}"))),
        })
    }
}

/// The line with the answer to a request.
pub fn answer_to_json(answer: Result<Json>) -> Json {
    let (key, value) = match answer {
        Ok(value) => ("ok", value),
        Err(mut error) => ("error", Fields::written(&mut |fields| pass_error(fields, &mut error))),
    };
    Json::Object(vec![(key.into(), value)])
}

/// The answer in a line: the value, or the daemon's error. The outer error means that the line is no answer.
pub fn answer_from_json(json: &Json) -> Result<Result<Json>> {
    if let Some(found) = json.get("error") {
        let mut error = Error::internal("");
        let mut fields = Fields::of(found);
        pass_error(&mut fields, &mut error);
        return fields.end().map(|()| Err(error));
    }
    match json {
        Json::Object(entries) if entries.iter().any(|(key, _)| key == "ok") => {
            Ok(Ok(json.get("ok").cloned().unwrap_or_default()))
        }
        _ => Err(fields::cannot("ok", "it is missing")),
    }
}

fn pass_error(fields: &mut Fields<'_>, error: &mut Error) {
    fields.number("code", &mut error.code.0);
    fields.string("msg", &mut error.msg);
    fields.string("details", &mut error.details);
}

/// Writes the fields of an `Ask`.
pub(super) fn write_ask(fields: &mut Fields<'_>, ask: &Ask) {
    write_key(fields, &ask.key);
    pass_ask(fields, &mut ask.clone());
}

/// Reads the fields of an `Ask`.
pub(super) fn ask_of(json: &Json) -> Result<Ask> {
    let settings = Settings::default();
    let mut ask = Ask { key: key_of(json)?, netns: PathBuf::new(), settings };
    let mut fields = Fields::of(json);
    pass_ask(&mut fields, &mut ask);
    fields.end().map(|()| ask)
}

/// All fields except those of the key.
fn pass_ask(fields: &mut Fields<'_>, ask: &mut Ask) {
    let Ask { netns, settings, .. } = ask;
    let mut path = netns.to_string_lossy().into_owned();
    fields.string("netns", &mut path);
    *netns = path.into();
    if !netns.is_absolute() {
        fields.fail(Error::config("netns is not an absolute path"));
    }
    let provide = &mut settings.provide;
    fields.objects("provide", provide.len(), &mut |fields, at| {
        if at == provide.len() {
            provide.push((0, Vec::new()));
        }
        let Some((code, value)) = provide.get_mut(at) else { return };
        fields.number("option", code);
        // The values are from JSON, so they are UTF-8.
        let mut text = String::from_utf8_lossy(value).into_owned();
        fields.string("value", &mut text);
        *value = text.into_bytes();
    });
    fields.bytes("request", &mut settings.request);
    fields.switch("probe", &mut settings.probe);
    fields.switch("broadcast", &mut settings.broadcast);
    let mut names = settings.families.names().map(str::to_owned).collect();
    fields.strings("families", &mut names);
    for name in names {
        settings.families.add(&name).unwrap_or_else(|error| fields.fail(error));
    }
    fields.number("priority", &mut settings.priority);
}

impl Families {
    /// Adds the family of a name in the configuration.
    pub fn add(&mut self, name: &str) -> Result<()> {
        match name {
            "4" => self.v4 = true,
            "6" => self.v6 = true,
            "slaac" => self.slaac = true,
            _ => return Err(Error::config(format_args!("unknown family {name:?}"))),
        }
        Ok(())
    }

    /// The names in the configuration.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = [(self.v4, "4"), (self.v6, "6"), (self.slaac, "slaac")];
        named.into_iter().filter_map(|(is_there, name)| is_there.then_some(name))
    }
}

const NETWORK: &str = "network";
const CONTAINER_ID: &str = "containerID";
const IFNAME: &str = "ifname";

fn write_key(fields: &mut Fields<'_>, key: &Key) {
    fields.string(NETWORK, &mut key.network.to_string());
    write_attachment(fields, &key.container_id, &key.ifname);
}

fn write_attachment(fields: &mut Fields<'_>, container_id: &ContainerId, ifname: &IfName) {
    fields.string(CONTAINER_ID, &mut container_id.to_string());
    fields.string(IFNAME, &mut ifname.to_string());
}

fn key_of(json: &Json) -> Result<Key> {
    let Attachment { container_id, ifname } = attachment_of(json)?;
    Ok(Key { network: NetworkName::new(text_of(json, NETWORK)?)?, container_id, ifname })
}

fn attachment_of(json: &Json) -> Result<Attachment> {
    Ok(Attachment {
        container_id: ContainerId::new(text_of(json, CONTAINER_ID)?)?,
        ifname: IfName::new(text_of(json, IFNAME)?)?,
    })
}

fn text_of(json: &Json, key: &str) -> Result<String> {
    let mut text = String::new();
    let mut fields = Fields::of(json);
    fields.string(key, &mut text);
    fields.end().map(|()| text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::error::Code;

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
