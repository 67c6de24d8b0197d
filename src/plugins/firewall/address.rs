//! Parses the sockets of a D-Bus address.
//!
//! Source: D-Bus specification, "Server Addresses".

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::kernel::unix::Endpoint;

/// The sockets of a list of addresses, in the order of the list. An address with another transport or a wrong escape is
/// ignored.
pub(super) fn endpoints(list: &[u8]) -> Vec<Endpoint> {
    list.split(|byte| *byte == b';').filter_map(endpoint).collect()
}

fn endpoint(address: &[u8]) -> Option<Endpoint> {
    let pairs = address.strip_prefix(b"unix:")?;
    pairs.split(|byte| *byte == b',').find_map(|pair| {
        if let Some(path) = pair.strip_prefix(b"path=") {
            return Some(Endpoint::Path(OsString::from_vec(unescaped(path)?).into()));
        }
        Some(Endpoint::Abstract(unescaped(pair.strip_prefix(b"abstract=")?)?))
    })
}

/// Replaces each `%` and its two hexadecimal digits by the byte. `None` if the value is empty or an escape is wrong.
fn unescaped(value: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).ok()?);
    }
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_the_sockets_that_the_specification_says() {
        let path = |text: &str| Endpoint::Path(text.into());
        let name = |text: &str| Endpoint::Abstract(text.into());
        for (list, expected) in [
            ("unix:path=/run/bus", vec![path("/run/bus")]),
            ("unix:abstract=bus", vec![name("bus")]),
            ("unix:guid=1f,path=/run/bus", vec![path("/run/bus")]),
            ("unix:path=/a%20b%2Fc%2c,guid=1f", vec![path("/a b/c,")]),
            ("unix:path=/a;unix:abstract=b", vec![path("/a"), name("b")]),
            (";tcp:host=a,port=1;nonce-tcp:;unix:path=/a;", vec![path("/a")]),
            ("unixexec:path=/bin/true;autolaunch:;x;unix:abstract=%62", vec![name("b")]),
            // Addresses for servers only.
            ("unix:tmpdir=/tmp;unix:dir=/tmp;unix:runtime=yes", vec![]),
            ("unix:path=/a%;unix:path=/a%2;unix:path=/a%+1;unix:path=/a%gg", vec![]),
            ("unix:;unix:path=;unix:abstract=;/run/bus;", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(endpoints(list.as_bytes()), expected, "{list}");
        }
    }
}
