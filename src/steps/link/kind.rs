//! Kinds of links that a kernel can lack.

use crate::error::{Error, Result};
use crate::names::Mac;
use crate::netlink;
use crate::netlink::rtnl::{NewLink, Rtnl};

/// Adds the kernel option to the error if the kernel lacks the kind of link.
pub fn with_option(error: netlink::Error, option: &str) -> Error {
    let is_unsupported = error.is_unsupported();
    let error = Error::from(error);
    if is_unsupported { error.with_details(format!("the kernel lacks {option}")) } else { error }
}

/// For STATUS: fails if the kernel lacks the kind of link. Requests a link with a null MAC address and without a parent,
/// which the kernel always refuses; the errno shows whether the kind exists.
pub fn require_kind(host: &Rtnl, kind: &str, option: &str) -> Result<()> {
    let probe = NewLink { name: "cnibox-probe", mac: Some(Mac([0; 6])), ..NewLink::default() };
    match host.make_link(&probe, kind, &[]) {
        Err(error) if error.is_unsupported() => Err(with_option(error, option)),
        _ => Ok(()),
    }
}
