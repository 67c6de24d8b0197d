//! The configuration of `dhcp`: reads options by name or code, and makes the settings that the plugin sends to the daemon.

use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::cni::json::keys;
use crate::dhcp::flags::SOCKET;
use crate::dhcp::protocol::{Families, LeaseSettings, Provided as ProvidedOption};
use crate::dhcp::v4::message::request_list;
use crate::error::{Error, Result};

/// The longest value of an option. Source: RFC 2132, section 2.
const VALUE_BYTES_MAX: usize = 255;

/// The options with names, as in the reference. Source: RFC 2132, RFC 3004.
const NAMES: [(&str, u8); 6] = [
    ("subnet-mask", 1),
    ("routers", 3),
    ("host-name", 12),
    ("vendor-class-identifier", 60),
    ("dhcp-client-identifier", 61),
    ("user-class", 77),
];

/// The options that the client itself sets: requested address, overload, message type, server, request list, maximum size.
/// Source: RFC 2132.
const OWN: [u8; 6] = [50, 52, 53, 54, 55, 57];

keys! {
    /// The plugin: the keys of its configuration, not validated.
    pub struct Dhcp {
        "ipam" => ipam: Option<IpamKeys>,
    }

    struct IpamKeys {
        "daemonSocketPath" => daemon_socket_path: String,
        "daemon" => daemon: String,
        "provide" => provide: Vec<Provided>,
        "request" => request: Vec<Requested>,
        "priority" => priority: u32,
        "probe" => probe: bool,
        "broadcast" => broadcast: bool,
        "families" => families: Vec<String>,
        "subnets" => subnets: Vec<String>,
    }

    struct Provided {
        "option" => option: String,
        "value" => value: String,
        "fromArg" => from_arg: String,
    }

    struct Requested {
        "option" => option: String,
        "skipDefault" => skip_default: bool,
    }
}

impl Dhcp {
    /// Validates all keys, and adds the values of CNI_ARGS.
    pub(super) fn settings(&self, args: &str) -> Result<LeaseSettings> {
        let ipam = self.ipam()?;
        self.socket()?;
        if !matches!(ipam.daemon.as_str(), "" | "auto") {
            return Err(Error::config(format_args!("ipam.daemon: {:?} is not auto", ipam.daemon)));
        }
        let mut provide: Vec<ProvidedOption> = Vec::new();
        for Provided { option, value, from_arg } in &ipam.provide {
            let code = code(option)?;
            if OWN.contains(&code) {
                let msg = format!("cannot provide option {option}: the client sets it itself");
                return Err(Error::config(msg));
            }
            let from_arg = (!from_arg.is_empty()).then(|| argument(args, from_arg)).flatten();
            let value = from_arg.unwrap_or(value);
            if value.len() > VALUE_BYTES_MAX {
                let msg = format!("value too long for option {option:?}");
                return Err(Error::config(msg)
                    .with_details(format_args!("it has {} bytes, the limit is 255", value.len())));
            }
            if !value.is_empty() {
                provide.retain(|known| known.option != code);
                provide.push(ProvidedOption { option: code, value: value.to_owned() });
            }
        }
        let requested = ipam.request.iter().filter(|entry| !entry.option.is_empty());
        let requested: Vec<u8> =
            requested.map(|entry| code(&entry.option)).collect::<Result<_>>()?;
        let families = match ipam.families.as_slice() {
            [] => Families { v4: true, ..Families::default() },
            names => Families::try_from(names.to_vec())
                .map_err(|error| error.in_front("ipam.families"))?,
        };
        let subnet = |text: &String| {
            text.parse::<IpNet>().map(|net| net.trunc()).map_err(|_| {
                Error::config(format_args!("ipam.subnets: {text:?} is not a subnet"))
                    .with_details("a subnet has a prefix length: 10.1.0.0/16")
            })
        };
        Ok(LeaseSettings {
            subnets: ipam.subnets.iter().map(subnet).collect::<Result<_>>()?,
            provide,
            request: request_list(&requested, ipam.request.iter().any(|entry| entry.skip_default)),
            probe: ipam.probe,
            broadcast: ipam.broadcast,
            families,
            priority: ipam.priority,
        })
    }

    /// The absolute path of the daemon's socket.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        let path = &self.ipam()?.daemon_socket_path;
        if path.is_empty() {
            return Ok(SOCKET.into());
        }
        if !Path::new(path).is_absolute() {
            let msg = format!("ipam.daemonSocketPath: {path:?} is not an absolute path");
            return Err(Error::config(msg));
        }
        Ok(path.into())
    }

    pub(super) fn is_auto(&self) -> bool {
        self.ipam.as_ref().is_some_and(|ipam| ipam.daemon == "auto")
    }

    fn ipam(&self) -> Result<&IpamKeys> {
        self.ipam.as_ref().ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))
    }
}

/// The code of an option that is given by name or as a number.
fn code(option: &str) -> Result<u8> {
    let named = NAMES.iter().find(|(name, _)| *name == option).map(|(_, code)| *code);
    let is_number = option.bytes().all(|byte| byte.is_ascii_digit());
    let number = option.parse().ok().filter(|code| is_number && (1..=254).contains(code));
    named.or(number).ok_or_else(|| {
        Error::config(format_args!("Can not parse option: {option:?}"))
            .with_details("it is neither a number from 1 to 254 nor a name of an option")
    })
}

/// The value of a key of CNI_ARGS. Parts without `=` are ignored, as in the reference.
fn argument<'a>(args: &'a str, wanted: &str) -> Option<&'a str> {
    let pairs = args.split(';').filter_map(|pair| pair.split_once('='));
    pairs.rev().find(|(key, _)| *key == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Json;

    fn settings(ipam: &str, args: &str) -> Result<LeaseSettings> {
        let json = Json::parse(format!(r#"{{"ipam":{{{ipam}}}}}"#).as_bytes()).unwrap();
        json.read::<Dhcp>("it")?.settings(args)
    }

    #[test]
    fn options_have_names_or_codes_and_values_from_arguments() {
        let ipam = r#""provide":[
            {"option":"host-name","value":"a","fromArg":"NAME"}, {"option":"60","value":"b"},
            {"option":"user-class","fromArg":"CLASS"}, {"option":"dhcp-client-identifier","value":"x","fromArg":"NO"}],
            "request":[{"option":"routers"},{"option":"","skipDefault":true},{"option":"subnet-mask"},{"option":"042"}]"#;
        let found = settings(ipam, "odd;NAME=one;NAME=c1=2;CLASS=;=x").unwrap();
        let provided = found.provide.iter().map(|option| (option.option, option.value.as_str()));
        assert_eq!(provided.collect::<Vec<_>>(), [(12, "c1=2"), (60, "b"), (61, "x")]);
        assert_eq!(found.request, [3, 1, 42]);
        assert_eq!(settings("", "").unwrap().request[..3], [121, 3, 1]);
    }

    #[test]
    fn families_are_a_list_and_the_default_is_version_4() {
        let names =
            |ipam: &str| settings(ipam, "").map(|settings| Vec::from(settings.families).join(" "));
        assert_eq!(names("").unwrap(), "4");
        assert_eq!(names(r#""families":["slaac","6"]"#).unwrap(), "6 slaac");
        assert_eq!(
            names(r#""families":["ipv4"]"#).unwrap_err().msg,
            r#"ipam.families: unknown family "ipv4""#
        );
    }

    #[test]
    fn wrong_keys_are_errors_that_name_them() {
        let long = format!(r#""provide":[{{"option":"12","value":"{}"}}]"#, "x".repeat(256));
        for (ipam, expected) in [
            (r#""provide":[{"option":"speed"}]"#, r#"Can not parse option: "speed""#),
            (r#""request":[{"option":"256"}]"#, r#"Can not parse option: "256""#),
            (r#""request":[{"option":"+1"}]"#, r#"Can not parse option: "+1""#),
            (r#""provide":[{"option":"0"}]"#, r#"Can not parse option: "0""#),
            (
                r#""provide":[{"option":"53","value":"x"}]"#,
                "cannot provide option 53: the client sets it itself",
            ),
            (long.as_str(), r#"value too long for option "12""#),
            (r#""daemon":"yes""#, r#"ipam.daemon: "yes" is not auto"#),
            (r#""daemonSocketPath":"x""#, r#"ipam.daemonSocketPath: "x" is not an absolute path"#),
        ] {
            assert_eq!(settings(ipam, "").unwrap_err().msg, expected, "{ipam}");
        }
        let none = Json::parse(b"{}").unwrap().read::<Dhcp>("it").unwrap();
        assert_eq!(none.settings("").unwrap_err().msg, "IPAM config missing 'ipam' key");
    }
}
