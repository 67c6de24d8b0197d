//! Parses the addresses and prefixes of configurations and results.

use std::net::IpAddr;

use ipnet::IpNet;

use super::json::{Json, Read, ReadError, read_list};
use crate::names::{Mac, RouteType};

/// Parses an IP address. A v4-mapped IPv6 address becomes the IPv4 address.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| format!("invalid IP address: {text}"))?;
    Ok(ip.to_canonical())
}

/// Parses `address/length`. The host bits are kept.
pub fn parse_cidr(text: &str) -> Result<IpNet, String> {
    let invalid = || format!("invalid CIDR address: {text}");
    let (ip, length) = text.split_once('/').ok_or_else(invalid)?;
    if !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid());
    }
    let ip: IpAddr = ip.parse().map_err(|_| invalid())?;
    if ip != ip.to_canonical() {
        return Err(format!("{}: a v4-mapped IPv6 address cannot have a prefix length", invalid()));
    }
    let length = length.parse().map_err(|_| invalid())?;
    IpNet::new(ip, length).map_err(|_| invalid())
}

/// Parses an address with or without a prefix length, which is ignored.
pub fn parse_ip_or_cidr(text: &str) -> Result<IpAddr, String> {
    if text.contains('/') { parse_cidr(text).map(|net| net.addr()) } else { parse_ip(text) }
}

/// The expected type in an error, if an address is not a string.
const TEXT: &str = "a string";

/// Parses a string. The empty string is the default.
fn parse<T, E: ToString>(
    value: &mut T,
    json: &Json,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<(), ReadError> {
    let text = json.text(TEXT)?;
    if !text.is_empty() {
        *value = parse(text).map_err(|error| ReadError::new(error.to_string()))?;
    }
    Ok(())
}

impl Read for Option<IpAddr> {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        parse(self, json, |text| parse_ip(text).map(Some))
    }
}

impl Read for Option<Mac> {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        parse(self, json, |text| text.parse().map(Some))
    }
}

impl Read for RouteType {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        parse(self, json, str::parse)
    }
}

/// An address with a prefix length. The host bits are kept.
impl Read for IpNet {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        *self = parse_cidr(json.text(TEXT)?).map_err(ReadError::new)?;
        Ok(())
    }
}

/// Addresses, with or without a prefix length. All are read; the error is that of the first invalid one.
impl Read for Vec<IpAddr> {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        let mut failed = None;
        read_list(json, &mut |value| {
            match parse_ip_or_cidr(value.text(TEXT)?) {
                Ok(ip) => self.push(ip),
                Err(reason) => _ = failed.get_or_insert(reason),
            }
            Ok(())
        })?;
        failed.map_or(Ok(()), |reason| Err(ReadError::new(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_strictly() {
        for (text, expected) in
            [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("FD00:0::1", "fd00::1")]
        {
            assert_eq!(parse_ip(text).unwrap().to_string(), expected);
        }
        for text in ["", "10.0.0", "010.0.0.1", "10.0.0.1 ", "fe80::1%eth0", "0x0a000001"] {
            assert!(parse_ip(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_keep_their_host_bits() {
        assert_eq!(parse_cidr("10.1.2.3/16").unwrap().to_string(), "10.1.2.3/16");
        assert_eq!(parse_cidr("fd00::1/64").unwrap().to_string(), "fd00::1/64");
        for text in [
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.1/+8",
            "10.0.0.1/",
            "fd00::/129",
            "::ffff:10.0.0.1/120",
        ] {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
        assert_eq!(parse_ip_or_cidr("10.0.0.1/99").ok(), None);
        assert_eq!(parse_ip_or_cidr("10.0.0.1/8").unwrap().to_string(), "10.0.0.1");
    }
}
