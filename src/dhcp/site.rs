//! A site is the container's link that a lease is for. Each use opens the network namespace again by its path, because an
//! open file would keep the namespace alive.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::dhcp::journal::LeaseRecord;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::netlink::rtnl::{Link, Rtnl};

/// A reason why a site cannot be used.
#[derive(Clone, Debug)]
pub enum SiteError {
    /// The namespace or the link does not exist any more.
    Gone(&'static str),
    /// The site cannot be used now; another attempt can succeed.
    Failed(Error),
}

impl From<Error> for SiteError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

const NO_NAMESPACE: &str = "its network namespace is gone";
const WITHOUT_PATH: &str = "the path does not lead to it any more";
const NO_LINK: &str = "its link is gone";

/// The link of a lease record, in its network namespace.
pub struct Site<'a> {
    /// The network namespace of this process.
    pub own_netns: &'a NetNs,
    /// The prefix of the path of the container's namespace (flag `-hostprefix`).
    pub prefix: &'a Path,
    pub record: &'a LeaseRecord,
}

impl Site<'_> {
    /// Opens the namespace. If its path does not exist any more, or leads to another namespace than when the lease was made:
    /// `Failed` if the kernel has the number of the namespace, so that it exists without the path, otherwise `Gone`.
    pub fn open(&self) -> Result<NetNs, SiteError> {
        let path = file::below(self.prefix, &self.record.request.netns);
        let doing = format_args!("cannot open network namespace {}", path.display());
        if let Some(netns) = self.own_netns.open_if_exists(&path).map_err(sys::failed(doing))?
            && self.record.is_in(netns.identity()?, netns.rtnl()?.netns_cookie())
        {
            return Ok(netns);
        }
        let Some(cookie) = self.record.netns_cookie else {
            return Err(SiteError::Gone(NO_NAMESPACE));
        };
        match self.own_netns.rtnl()?.has_nsid_of_cookie(cookie)? {
            true => Err(Error::internal(format_args!("{doing}: {WITHOUT_PATH}")).into()),
            false => Err(SiteError::Gone(NO_NAMESPACE)),
        }
    }

    /// Runs a closure in the namespace, for example to open a socket there.
    pub fn run<T>(&self, f: impl FnOnce() -> io::Result<T>) -> Result<T, SiteError> {
        // The outer result is that of setns(2), the inner one that of `f`.
        self.open()?.run(|| Ok(f()))?.map_err(not_opened)
    }

    /// Returns the namespace. `Gone` if the link of the record is not in it any more.
    pub fn verify(&self) -> Result<NetNs, SiteError> {
        self.link(&self.record.addresses()).map(|(netns, _, _)| netns)
    }

    /// Returns the namespace, a netlink socket in it, and the link with the recorded index. `Gone` unless this link has the
    /// recorded MAC address or one of `addresses`: a later plugin of the chain can change the MAC address.
    pub fn link(&self, addresses: &[IpAddr]) -> Result<(NetNs, Rtnl, Link), SiteError> {
        let netns = self.open()?;
        let rtnl = netns.rtnl()?;
        let link = rtnl.link_at(self.record.ifindex)?.ok_or(SiteError::Gone(NO_LINK))?;
        if link.mac != Some(self.record.mac) {
            let present = rtnl.addresses(link.index)?;
            let has_one = present.iter().any(|address| addresses.contains(&address.net.addr()));
            if !has_one {
                return Err(SiteError::Gone(NO_LINK));
            }
        }
        Ok((netns, rtnl, link))
    }
}

fn not_opened(error: io::Error) -> SiteError {
    // The bind of a packet socket and SO_BINDTODEVICE fail with ENODEV if the link does not exist.
    if error.raw_os_error() == Some(ENODEV) {
        return SiteError::Gone(NO_LINK);
    }
    Error::internal(sys::reason(&error)).into()
}

/// No such device (asm-generic/errno-base.h).
const ENODEV: i32 = 19;
