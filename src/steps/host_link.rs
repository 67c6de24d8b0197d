//! How a link on the host treats IPv6. Has to be said before the link is up.

use crate::error::Result;
use crate::kernel::sysctl;

/// Makes it deaf to router advertisements, which a container could send to become the host's default gateway
/// (CVE-2020-10749).
pub fn refuse_router_advertisements(name: &str) -> Result<()> {
    sysctl::set_if_possible(&format!("net/ipv6/conf/{name}/accept_ra"), "0")
}

/// Lets it use its link-local address at once. The kernel needs that one to find a container that it forwards packets
/// to; while it looked for duplicates, for a second or two, all of them would be lost.
pub fn skip_duplicate_detection(name: &str) -> Result<()> {
    sysctl::set_if_possible(&format!("net/ipv6/conf/{name}/accept_dad"), "0")
}
