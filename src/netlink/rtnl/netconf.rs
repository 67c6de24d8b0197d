//! Parameters of IP for the whole namespace. Below /proc/sys/net each of them takes the kernel longer with each network
//! namespace of the host, because it compares the entries of all namespaces.

use neli::consts::nl::NlmF;
use nix::libc;

use super::Rtnl;
use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::{Error, Requests, attribute, found, u32_of};

/// Attributes of RTM_NEWNETCONF, and the index of `net.*.conf.all` (linux/netconf.h).
const NETCONFA_IFINDEX: u16 = 1;
const NETCONFA_FORWARDING: u16 = 2;
const NETCONFA_IFINDEX_ALL: u32 = u32::MAX;

/// The bytes of struct netconfmsg, padded.
const HEADER_BYTES: usize = 4;

impl Rtnl {
    /// Whether forwarding is enabled: `net.ipv4.ip_forward` or `net.ipv6.conf.all.forwarding`. `None` if the host lacks the
    /// family.
    pub fn forwarding(&self, family: IpFamily) -> Result<Option<bool>> {
        let doing = "cannot read whether IP forwarding is enabled";
        let request = Requests::one(libc::RTM_GETNETCONF, NlmF::empty(), doing, |attrs| {
            attrs.raw(&[family.number(), 0, 0, 0]);
            attrs.u32(NETCONFA_IFINDEX, NETCONFA_IFINDEX_ALL);
        });
        let value =
            |answer: &[u8]| u32_of(attribute(answer.get(HEADER_BYTES..)?, NETCONFA_FORWARDING)?);
        let value = found(self.socket.get(request, value), Error::is_unsupported)?;
        Ok(value.flatten().map(|value| value != 0))
    }
}
