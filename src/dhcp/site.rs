//! The place of a lease: a link in a container's namespace. It is found by the path of the namespace whenever it is needed,
//! because an open file would keep the namespace alive.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::dhcp::journal::LeaseRecord;
use crate::error::{Error, Result};
use crate::kernel::file::reason;
use crate::kernel::netns::NetNs;
use crate::netlink::rtnl::{Link, Rtnl};

/// A reason why a site cannot be used.
#[derive(Clone, Debug)]
pub enum SiteError {
    /// The namespace or the link does not exist any more.
    Gone(&'static str),
    /// Another attempt can succeed.
    Failed(Error),
}

impl From<Error> for SiteError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub const NO_NAMESPACE: &str = "its network namespace is gone";
pub const NO_LINK: &str = "its link is gone";

/// The site of a record, as a daemon in the namespace `own_netns` sees it.
pub struct Site<'a> {
    pub own_netns: &'a NetNs,
    /// Stands in front of the path of the namespace.
    pub prefix: &'a Path,
    pub record: &'a LeaseRecord,
}

impl Site<'_> {
    /// Opens the namespace, if it still is the one that the lease was made in.
    pub fn open(&self) -> Result<NetNs, SiteError> {
        let path = prefixed(self.prefix, &self.record.request.netns);
        let netns = self.own_netns.open_if_exists(&path).map_err(|error| {
            let path = path.display();
            Error::internal(format_args!(
                "cannot open network namespace {path}: {}",
                reason(&error)
            ))
        })?;
        let netns = netns.ok_or(SiteError::Gone(NO_NAMESPACE))?;
        match netns.identity()? == self.record.netns_id {
            true => Ok(netns),
            false => Err(SiteError::Gone(NO_NAMESPACE)),
        }
    }

    /// Runs a closure in the namespace, for example to open a socket there.
    pub fn run<T>(&self, f: impl FnOnce() -> io::Result<T>) -> Result<T, SiteError> {
        // The outer result is that of the entry.
        self.open()?.run(|| Ok(f()))?.map_err(not_opened)
    }

    /// The namespace, if the link of the record is in it.
    pub fn verify(&self) -> Result<NetNs, SiteError> {
        self.link(&self.record.addresses()).map(|(netns, _, _)| netns)
    }

    /// The namespace with a netlink socket in it, and the link. The link has the recorded MAC address, or one of these
    /// addresses: a later plugin of the chain can change the MAC address.
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

/// A path of the host, for a daemon that sees the host's files below `prefix`.
pub fn prefixed(prefix: &Path, path: &Path) -> PathBuf {
    if prefix.as_os_str().is_empty() {
        return path.to_owned();
    }
    prefix.join(path.strip_prefix("/").unwrap_or(path))
}

fn not_opened(error: io::Error) -> SiteError {
    // Of a packet socket, and of SO_BINDTODEVICE.
    if error.raw_os_error() == Some(ENODEV) {
        return SiteError::Gone(NO_LINK);
    }
    Error::internal(reason(&error)).into()
}

/// Source: asm-generic/errno-base.h.
const ENODEV: i32 = 19;
