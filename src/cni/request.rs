//! The input of a call: environment and configuration, validated. The plugins read the environment only through this module.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cni::conf::{self, NetConf};
use crate::cni::json::Json;
use crate::cni::success::{Route, Success};
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// The initial size of the buffer for stdin. One read(2) of this size gets a usual configuration.
const STDIN_BYTES: usize = 2048;
/// The longest document that is read from stdin, from a plugin or from a file that the operator names. The largest real
/// configurations have some kilobytes.
pub const INPUT_BYTES_MAX: usize = 4 << 20;
/// The longest document for DEL, CHECK and GC, which must accept each configuration that ADD accepts. DEL and CHECK also get
/// the result of the whole list, and GC all valid attachments: 100,000 with ids of 64 characters have 10 MB.
const LATER_BYTES_MAX: usize = 16 << 20;

/// The operation of a call. Source: CNI specification 1.1.0, section 2, "CNI operations".
#[derive(Clone, Debug)]
pub enum Verb {
    Add(Attachment),
    Del(Attachment),
    Check(Attachment),
    /// The attachments that GC keeps.
    Gc(Vec<Attachment>),
    Status,
}

impl Verb {
    /// The value of CNI_COMMAND.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Add(_) => "ADD",
            Self::Del(_) => "DEL",
            Self::Check(_) => "CHECK",
            Self::Gc(_) => "GC",
            Self::Status => "STATUS",
        }
    }
}

/// A call without its verb. So a plugin can call a delegate with the same request and another verb.
#[derive(Debug)]
pub struct Request {
    pub version: Version,
    pub network: NetworkName,
    pub conf: NetConf,
    pub parameters: Parameters,
    /// The configuration.
    pub json: Json,
    /// The result of the previous plugin, if that plugin ran in this process. Then `json` has no `prevResult`.
    pub previous: Option<Success>,
    /// The errors of the unreadable keys that DEL and GC ignore.
    pub dropped: Vec<Error>,
    /// The bytes of the configuration that was read from stdin; `None` if the configuration was made in this process.
    stdin: Option<Vec<u8>>,
}

/// The parameters of a call that are environment variables, without those that the verb contains.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// CNI_NETNS; None when empty.
    pub netns_path: Option<PathBuf>,
    /// CNI_NETNS_OVERRIDE: CNI_NETNS may be the namespace of this process.
    pub netns_override: bool,
    /// CNI_ARGS.
    pub args: String,
    /// The directories of CNI_PATH.
    pub path: Vec<PathBuf>,
    /// The plugins of cnibox that made the attachment, as far as the runtime of cnibox knows them.
    pub makers: Vec<String>,
    /// The number of nested plugin processes that called this one (CNIBOX_DEPTH).
    pub depth: u32,
    /// DBUS_SYSTEM_BUS_ADDRESS; None when empty.
    pub bus_address: Option<OsString>,
}

/// The error of an invalid call, and the CNI version of the printed error.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub version: Version,
    pub error: Error,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { version: Version::NEWEST, error }
    }
}

impl Request {
    /// Reads and validates the input in the order of the reference, so that the error names the same mistake if there are
    /// several.
    pub fn read(
        command: &str,
        env: impl Fn(&str) -> Option<OsString>,
        stdin: impl Read,
    ) -> Result<(Self, Verb), Refusal> {
        let (at, parameters) = Parameters::read(command, &env)?;
        let mut bytes = Vec::with_capacity(STDIN_BYTES);
        let bytes_max = match command {
            "DEL" | "CHECK" | "GC" => LATER_BYTES_MAX,
            _ => INPUT_BYTES_MAX,
        };
        let cannot = |reason: String| {
            Error::new(Code::IO, "cannot read network configuration from stdin")
                .with_details(reason)
        };
        let mut stdin = stdin.take(bytes_max as u64 + 1);
        stdin.read_to_end(&mut bytes).map_err(|error| cannot(error.to_string()))?;
        if bytes.len() > bytes_max {
            return Err(cannot(format!("it has more than {bytes_max} bytes")).into());
        }
        let mut json = Json::parse(&bytes)
            .map_err(|error| error.in_front("error unmarshall network config"))?;
        json.merge_repeated();
        let request = Self::of(command, json)?;
        let verb = Self::verb(command, at, &request.conf, &request.json)
            .map_err(|error| Refusal { version: request.version, error })?;
        Ok((Self { parameters, stdin: Some(bytes), ..request }, verb))
    }

    /// Makes a request for a caller in this process, which has the configuration: without the parameters that other requests
    /// have from the environment.
    pub fn new(verb: &Verb, json: Json) -> Result<Self> {
        Self::of(verb.name(), json).map_err(|refusal| refusal.error)
    }

    /// Reads the keys of the configuration that all plugins read.
    fn of(command: &str, json: Json) -> Result<Self, Refusal> {
        let (conf, dropped): (NetConf, _) = match command {
            "DEL" | "GC" => json.read_or_drop("network configuration"),
            _ => json.read("network configuration").map(|conf| (conf, Vec::new())),
        }
        .map_err(|error: Error| error.in_front("error unmarshall network config"))?;
        let version = Version::negotiate(&conf.cni_version).unwrap_or(Version::NEWEST);
        let network = NetworkName::new(conf.name.as_str());
        Ok(Self {
            version,
            network: network.map_err(|error| Refusal { version, error })?,
            conf,
            parameters: Parameters::default(),
            json,
            previous: None,
            dropped,
            stdin: None,
        })
    }

    fn verb(command: &str, at: Option<Attachment>, conf: &NetConf, json: &Json) -> Result<Verb> {
        let asked = conf.cni_version.as_str();
        let negotiate = |since| Version::negotiate_for(asked, command, since);
        let verb = match (command, at) {
            ("ADD", Some(at)) => Version::negotiate(asked).map(|_| Verb::Add(at))?,
            ("DEL", Some(at)) => return Version::negotiate(asked).map(|_| Verb::Del(at)),
            ("CHECK", Some(at)) => negotiate(Version::V0_4_0).map(|_| Verb::Check(at))?,
            ("GC", _) => {
                negotiate(Version::V1_1_0)?;
                return conf::valid_attachments(json).map(Verb::Gc);
            }
            ("STATUS", _) => negotiate(Version::V1_1_0).map(|_| Verb::Status)?,
            _ => {
                let msg = format!("unknown CNI_COMMAND: {command}");
                return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
            }
        };
        prev_result_in(json).map(|_| verb)
    }

    /// Returns the request with another configuration, for a delegate.
    pub fn with_config(&self, json: Json) -> Result<Self> {
        let conf: NetConf = json.read("configuration of the delegate")?;
        Ok(Self {
            version: Version::negotiate(&conf.cni_version).unwrap_or(self.version),
            network: NetworkName::new(conf.name.as_str())?,
            conf,
            parameters: self.parameters.clone(),
            json,
            previous: self.previous.clone(),
            stdin: None,
            dropped: Vec::new(),
        })
    }

    /// The stdin of an executed plugin: the configuration with the result of the previous plugin.
    pub fn stdin(&self) -> Result<Cow<'_, [u8]>> {
        if let Some(bytes) = &self.stdin {
            return Ok(bytes.into());
        }
        let mut json = self.json.clone();
        if let (Some(previous), Json::Object(entries)) = (&self.previous, &mut json) {
            let printed = version::print_result(previous, self.version)?;
            entries.push(("prevResult".to_owned(), printed));
        }
        Ok(json.to_compact().into_bytes().into())
    }

    /// The environment variables of the protocol for an executed plugin, with this CNI_NETNS. `None`: the variable is not set.
    ///
    /// Source: CNI specification 1.1.0, section 2, "Parameters".
    pub fn environment(
        &self,
        verb: &Verb,
        netns: Option<&Path>,
    ) -> [(&'static str, Option<OsString>); 8] {
        let at = match verb {
            Verb::Add(at) | Verb::Del(at) | Verb::Check(at) => Some(at),
            Verb::Gc(_) | Verb::Status => None,
        };
        let Parameters { netns_override, args, path, depth, .. } = &self.parameters;
        let path: Vec<&OsStr> = path.iter().map(|path| path.as_os_str()).collect();
        let given = |text: &OsStr| Some(text.to_owned()).filter(|text| !text.is_empty());
        [
            ("CNI_COMMAND", Some(verb.name().into())),
            ("CNI_CONTAINERID", at.map(|at| at.container_id.to_string().into())),
            ("CNI_IFNAME", at.map(|at| at.ifname.to_string().into())),
            ("CNI_NETNS", netns.map(OsString::from)),
            ("CNI_NETNS_OVERRIDE", netns_override.then(|| "1".into())),
            ("CNI_ARGS", given(args.as_ref())),
            ("CNI_PATH", given(&path.join(OsStr::new(":")))),
            (DEPTH, Some((depth + 1).to_string().into())),
        ]
    }

    /// The previous result. For CHECK and DEL it is the result of the whole chain.
    pub fn prev_result(&self) -> Result<Option<Success>> {
        let mut previous = match &self.previous {
            Some(previous) => previous.clone(),
            None => {
                let Some(json) = prev_result_in(&self.json)? else { return Ok(None) };
                version::parse_prev_result(json, self.version)
                    .map_err(|error| error.context("could not parse prevResult"))?
            }
        };
        self.restore_types(&mut previous.routes);
        Ok(Some(previous))
    }

    /// Sets the types of routes that the IPAM configuration has: libcni passes only those keys of a result that it knows.
    fn restore_types(&self, routes: &mut [Route]) {
        let configured = self.json.get("ipam").and_then(|ipam| ipam.get("routes"));
        let Some(Json::Array(configured)) = configured else { return };
        let key = |route: &Route| (route.dst.trunc(), route.priority, route.table);
        for json in configured.iter().filter(|json| json.get("type").is_some()) {
            let Ok(typed) = json.read::<Route>("route") else { continue };
            for route in routes.iter_mut().filter(|route| key(route) == key(&typed)) {
                route.kind = typed.kind;
            }
        }
    }

    /// The previous result. Fails if there is none. For CHECK, which requires it.
    pub fn required_prev_result(&self) -> Result<Success> {
        self.prev_result()?.ok_or_else(|| Error::config("required prevResult missing"))
    }

    /// CNI_NETNS as the `sandbox` of a result.
    pub fn sandbox(&self) -> String {
        let path = &self.parameters.netns_path;
        path.as_ref().map_or_else(String::new, |path| path.to_string_lossy().into_owned())
    }
}

/// Counts nested plugin processes. Not part of the CNI protocol.
const DEPTH: &str = "CNIBOX_DEPTH";

/// `prevResult` of a configuration. Fails if it is not an object.
fn prev_result_in(json: &Json) -> Result<Option<&Json>> {
    match json.get("prevResult") {
        found @ (None | Some(Json::Object(_))) => Ok(found),
        Some(_) => Err(Error::new(Code::DECODE, "could not parse prevResult: it is not an object")),
    }
}

/// Whether the value of an environment variable such as CNI_NETNS_OVERRIDE is true.
pub fn is_true(value: &OsStr) -> bool {
    value == "1" || value.eq_ignore_ascii_case("true")
}

/// The error of a call without these required variables.
pub fn missing_variables(names: &[&str]) -> Error {
    Error::new(
        Code::INVALID_ENVIRONMENT,
        format_args!("required env variables [{}] missing", names.join(",")),
    )
}

impl Parameters {
    /// Reads the environment variables of a call, checked as the command requires. Also returns the attachment that they name.
    fn read(
        command: &str,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<(Option<Attachment>, Self)> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |name: &str| match env(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(Error::new(
                Code::INVALID_ENVIRONMENT,
                format_args!("cannot read environment variable {name}: it is not UTF-8"),
            )),
        };
        let is_about_an_attachment = matches!(command, "ADD" | "DEL" | "CHECK");
        let of_attachment = |name: &str| if is_about_an_attachment { text(name) } else { Ok(None) };
        // The order of the reference: the error of an invalid value precedes that of a missing variable.
        let container_id = of_attachment("CNI_CONTAINERID")?.map(ContainerId::new).transpose()?;
        let ifname = of_attachment("CNI_IFNAME")?.map(IfName::new).transpose()?;
        let netns_path = env("CNI_NETNS").map(PathBuf::from);
        let path = env("CNI_PATH");
        let required = [
            ("CNI_CONTAINERID", is_about_an_attachment && container_id.is_none()),
            ("CNI_NETNS", matches!(command, "ADD" | "CHECK") && netns_path.is_none()),
            ("CNI_IFNAME", is_about_an_attachment && ifname.is_none()),
            ("CNI_PATH", command == "GC" && path.is_none()),
        ];
        let missing = required.into_iter().filter(|(_, is_missing)| *is_missing);
        let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
        if !missing.is_empty() {
            return Err(missing_variables(&missing));
        }
        let attachment = container_id
            .zip(ifname)
            .map(|(container_id, ifname)| Attachment { container_id, ifname });
        let path = path.as_ref().map_or(&[][..], |path| path.as_bytes());
        let directories =
            path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty());
        let parameters = Self {
            netns_path,
            netns_override: text("CNI_NETNS_OVERRIDE")?
                .is_some_and(|value| is_true(value.as_ref())),
            makers: Vec::new(),
            depth: text(DEPTH)?.and_then(|depth| depth.parse().ok()).unwrap_or_default(),
            args: text("CNI_ARGS")?.unwrap_or_default(),
            bus_address: env("DBUS_SYSTEM_BUS_ADDRESS"),
            path: directories.map(|directory| OsStr::from_bytes(directory).into()).collect(),
        };
        Ok((attachment, parameters))
    }
}
