//! Deleting many links as one group.

use std::time::Duration;

use super::consts::IFLA_GROUP;
use super::{Batch, Link, LinkChange, Rtnl};
use crate::error::{Error, Result};
use crate::kernel::sys;

/// The timeout of the wait for another process that chooses a group. After it the links are deleted one by one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of attempts to find an unused number for a group. One attempt is nearly always enough.
const ATTEMPTS_MAX: u32 = 8;

impl Rtnl {
    /// Deletes links. A missing link is no error. The namespace of the socket has to be that of the calling thread.
    ///
    /// The kernel waits about 20 ms for each request, so several links are deleted as one group. If that fails, each link gets
    /// its own request, and the first error of these requests is returned.
    pub fn del_links(&self, links: &[Link]) -> Result<()> {
        if links.len() > 1 && self.del_as_group(links).is_ok() {
            return Ok(());
        }
        let deleted = links.iter().map(|link| self.del_link(link.index));
        deleted.fold(Ok(()), Result::and)
    }

    /// The kernel deletes every link of the group, so no other link may have its number. The lock of the namespace makes
    /// another process of cnibox wait until the number is in the list of links, so that process chooses another number. Another
    /// program would have to choose the same of 2^31 numbers between the list and the deletion.
    ///
    /// After SIGKILL links can stay in the group. Their aliases still name their owners.
    fn del_as_group(&self, links: &[Link]) -> Result<()> {
        let netns = self.netns()?;
        let Some(lock) = netns.lock_exclusive(LOCK_TIMEOUT)? else {
            return Err(Error::internal(
                "cannot lock the namespace: another process has locked it",
            ));
        };
        let group = unused_group(&self.links()?)?;
        let mut batch = Batch::new();
        let change = LinkChange { group: Some(group), ..LinkChange::default() };
        links.iter().for_each(|link| batch.change_if_exists(link.index, &link.name, &change));
        self.commit(batch)?;
        drop(lock);
        self.del_group(group)
    }

    fn del_group(&self, group: u32) -> Result<()> {
        let doing = format!("cannot delete the links of group {group}");
        // It is no error if all links were deleted before.
        self.delete(doing, 0, |attrs| attrs.u32(IFLA_GROUP, group)).map(drop)
    }
}

/// A number of a group that none of the links is in. By default a link is in the group 0.
fn unused_group(links: &[Link]) -> Result<u32> {
    for _ in 0..ATTEMPTS_MAX {
        let group = u32::from_ne_bytes(sys::random_bytes()?) >> 1;
        if group != 0 && links.iter().all(|link| link.group != group) {
            return Ok(group);
        }
    }
    Err(Error::internal("cannot find an unused group of links"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::rows;

    #[test]
    fn group_of_a_link() {
        let mut batch = Batch::new();
        let change = LinkChange { group: Some(9), ..LinkChange::default() };
        batch.change_if_exists(7, "x", &change);
        assert_eq!(
            rows(&batch.requests.bytes()),
            "28000000 10000100 00000000 00000000 \
             00000000 07000000 00000000 00000000 08001b00 09000000"
        );
    }
}
