//! The policies of IPsec.

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use nix::libc;

use super::{Error, Requests, Socket, found};

/// Whether the namespace of the calling thread has a policy: the kernel can encrypt packets, or ask a program for keys.
pub(crate) fn has_policy() -> Result<bool, Error> {
    let is_missing = |error: &Error| error.errno == libc::EPROTONOSUPPORT;
    let Some(socket) = found(Socket::open(NlFamily::Xfrm), is_missing)? else { return Ok(false) };
    let doing = "cannot list the policies of IPsec";
    let request = Requests::bare(GET_POLICY, NlmF::empty(), doing, &[0; POLICY_ID_BYTES]);
    Ok(socket.first(&request, |_| Some(()))?.is_some())
}

/// XFRM_MSG_GETPOLICY and the size of `struct xfrm_userpolicy_id` (linux/xfrm.h).
const GET_POLICY: u16 = 0x15;
const POLICY_ID_BYTES: usize = 64;
