//! Which namespace has a number that the kernel chose: the recorded one, or a later one. The kernel gives such a number to a later
//! namespace when the recorded one has ended.
//!
//! A namespace keeps its number until its end, and no two namespaces have the same number at the same time. So a namespace that
//! has the number and another cookie proves that the recorded one has ended. Number and cookie are read through one descriptor,
//! after the record: what a survey found before that is a hint only, because the number can have gone to another namespace.
//!
//! A namespace that no process and no mount shows, or that this process cannot enter, proves nothing.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::attachments::life::Witness;
use crate::attachments::record::Record;
use crate::error::Result;
use crate::kernel::host_view;
use crate::kernel::netns::NetNs;
use crate::kernel::process;
use crate::netlink::rtnl::Nsid;

/// The namespace that has the number of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Holder {
    /// The recorded namespace.
    Recorded,
    /// A later namespace.
    Later,
    /// The recorded namespace or a later one.
    Unknown,
}

/// Where each namespace with a number was found.
pub(super) type Numbered = HashMap<Nsid, PathBuf>;

impl Witness {
    /// The namespace that has the number of a record, which was written in the namespace of this process.
    pub(super) fn holder(&self, record: &Record) -> Holder {
        let Some(number) = record.number else { return Holder::Unknown };
        let numbered = self.numbered.get_or_init(|| self.survey());
        let found = numbered.get(&number).map(|path| self.open(path));
        match found {
            Some(Ok(Some(netns))) => {
                self.compare(&netns, record, number).unwrap_or(Holder::Unknown)
            }
            _ => Holder::Unknown,
        }
    }

    /// Compares a namespace with the recorded one. The record is of this boot, in which cookies are unique, because it was written
    /// in the namespace of this process.
    fn compare(&self, netns: &NetNs, record: &Record, number: Nsid) -> Result<Holder> {
        if self.host().nsid_of(netns)? != Some(number) {
            return Ok(Holder::Unknown);
        }
        Ok(match (record.identity.cookie, netns.rtnl()?.netns_cookie()) {
            (Some(recorded), Some(cookie)) if recorded == cookie => Holder::Recorded,
            (Some(_), Some(_)) => Holder::Later,
            // A kernel before 5.14 has no cookies.
            _ => Holder::Unknown,
        })
    }

    /// The namespaces with a number that processes and mounts show. What cannot be read is missing.
    fn survey(&self) -> Numbered {
        let mounted = host_view::mounted_namespaces(self.view().ok()).unwrap_or_default();
        let mut numbered = Numbered::new();
        // A mount stays longer than a process, so its path replaces that of a process.
        for path in process::network_namespaces().into_iter().chain(mounted) {
            let Ok(Some(netns)) = self.open(&path) else { continue };
            let Ok(Some(number)) = self.host().nsid_of(&netns) else { continue };
            numbered.insert(number, path);
        }
        numbered
    }
}
