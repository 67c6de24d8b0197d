//! CNI_ARGS: `KEY=value` pairs, separated by `;`.

use crate::error::{Code, Error, Result};

/// The keys that need no `IgnoreUnknown`. All plugins of a chain and the IPAM plugin get the same CNI_ARGS, so each plugin must
/// accept the keys that the other plugins read.
const KNOWN: [&str; 3] = ["IP", "GATEWAY", "MAC"];

/// The values of the known keys. If a key is repeated, the last value counts.
///
/// An unknown key is an error (code 4) unless `IgnoreUnknown` is true, as in the reference.
#[derive(Debug, Default, PartialEq)]
pub struct Args<'a> {
    pub ip: Option<&'a str>,
    pub gateway: Option<&'a str>,
    pub mac: Option<&'a str>,
    /// The pod of the container: `K8S_POD_NAMESPACE` and `K8S_POD_NAME`. Runtimes send them with `IgnoreUnknown`.
    pub pod_namespace: Option<&'a str>,
    pub pod_name: Option<&'a str>,
    /// The name of the container, by nerdctl: `NERDCTL_CNI_DHCP_HOSTNAME`.
    pub hostname: Option<&'a str>,
}

impl<'a> Args<'a> {
    pub fn parse(text: &'a str) -> Result<Self> {
        let invalid = |msg: String| Error::new(Code::INVALID_ENVIRONMENT, msg);
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut pairs = Vec::new();
        for pair in text.split(';') {
            let split = pair.split_once('=').filter(|(key, _)| !key.is_empty());
            pairs.push(split.ok_or_else(|| invalid(format!("ARGS: invalid pair {pair:?}")))?);
        }
        let last =
            |wanted: &str| pairs.iter().rfind(|(key, _)| *key == wanted).map(|(_, value)| *value);
        let ignore_unknown = match last("IgnoreUnknown").map(str::to_ascii_lowercase).as_deref() {
            None | Some("0" | "false") => false,
            Some("1" | "true") => true,
            Some(other) => {
                return Err(invalid(format!(
                    "ARGS: IgnoreUnknown must be true or false, not {other:?}"
                )));
            }
        };
        let is_unknown = |key: &&str| *key != "IgnoreUnknown" && !KNOWN.contains(key);
        let unknown: Vec<&str> = pairs.iter().map(|(key, _)| *key).filter(is_unknown).collect();
        if !ignore_unknown && !unknown.is_empty() {
            return Err(invalid(format!("ARGS: unknown args {unknown:?}")));
        }
        let given = |key| last(key).filter(|value| !value.is_empty());
        Ok(Self {
            ip: given("IP"),
            gateway: given("GATEWAY"),
            mac: given("MAC"),
            pod_namespace: given("K8S_POD_NAMESPACE"),
            pod_name: given("K8S_POD_NAME"),
            hostname: given("NERDCTL_CNI_DHCP_HOSTNAME"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_counts() {
        let args = Args::parse("IP=10.0.0.1;IP=10.0.0.2;MAC=").unwrap();
        assert_eq!(args, Args { ip: Some("10.0.0.2"), ..Args::default() });
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }

    #[test]
    fn the_pod_has_a_namespace_and_a_name() {
        let args = Args::parse("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0").unwrap();
        assert_eq!((args.pod_namespace, args.pod_name), (Some("shop"), Some("db-0")));
    }

    #[test]
    fn unknown_keys_need_ignore_unknown() {
        for text in ["K8S_POD_NAME=a;IgnoreUnknown=1", "IgnoreUnknown=TRUE;X=a=b"] {
            assert!(Args::parse(text).is_ok(), "{text}");
        }
        for text in
            ["X=1", "X=1;IgnoreUnknown=0", "ip=10.0.0.1", "IP", "IP=1;", "=1", "IgnoreUnknown=yes"]
        {
            assert_eq!(Args::parse(text).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{text}");
        }
    }
}
