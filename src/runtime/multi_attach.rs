//! Attaches one container to several networks, all or nothing.

use std::path::Path;

use crate::cni::success::{Dns, Success};
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};
use crate::plugins;
use crate::runtime::Runtime;
use crate::runtime::conf::{self, Network};
use crate::runtime::lifecycle::{AttachmentsOf, Choice, NewAttachment, Target};

impl Runtime {
    /// Attaches a namespace to each network, in order. If one fails, the others are detached.
    pub fn attach(&self, wanted: &[NewAttachment], netns: &Path) -> Result<Vec<Success>> {
        let mut results = Vec::new();
        for (index, attachment) in wanted.iter().enumerate() {
            match self.attach_one(attachment, netns) {
                Ok(success) => results.push(success),
                Err(error) => {
                    sys::forget_interrupt();
                    return Err(
                        error.and(self.detach(&attachment_ids(&wanted[..index]), Some(netns)))
                    );
                }
            }
        }
        Ok(results)
    }

    /// Attaches a namespace to one network. `keep` also releases the lock of the container, which the ADD to the next network
    /// takes.
    pub fn attach_one(&self, wanted: &NewAttachment, netns: &Path) -> Result<Success> {
        let added = self.add(wanted, netns)?;
        let success = added.success.clone();
        added.keep().map(|()| success)
    }

    /// Detaches a container from networks in reverse order, with the configurations of the cache. Continues after an error, and
    /// returns all errors.
    pub fn detach(
        &self,
        attached: &[(NetworkName, Attachment)],
        netns: Option<&Path>,
    ) -> Result<()> {
        let detached = attached
            .iter()
            .rev()
            .map(|(name, at)| self.del(&Choice::Named(name.clone()), &Target::cached(at, netns)));
        Error::joined(detached.filter_map(Result::err).collect())
    }

    /// Detaches a container from all networks of the cache and of requests in records, or one interface of it. Several processes
    /// can do that at once. Continues after an error, and returns all errors.
    pub fn detach_all(
        &self,
        container_id: &ContainerId,
        ifname: Option<&IfName>,
        netns: Option<&Path>,
    ) -> Result<()> {
        let AttachmentsOf { attached, unreadable } =
            self.attachments_of(container_id, None, ifname)?;
        let detached = attached
            .into_iter()
            .rev()
            .map(|(name, at)| self.del_listed(&Choice::Named(name), &Target::cached(&at, netns)));
        Error::joined(detached.filter_map(Result::err).chain(unreadable).collect())
    }
}

/// The type of the first plugin of the network that changes the host. `None` if all plugins change only the container.
pub fn host_plugin(network: &Network) -> Option<&str> {
    let is_in_container =
        |kind: &&str| plugins::named(kind).is_some_and(|entry| entry.is_in_container);
    network.plugins.iter().map(conf::kind).find(|kind| !is_in_container(kind))
}

/// The network name and the attachment of each new attachment.
pub fn attachment_ids(wanted: &[NewAttachment]) -> Vec<(NetworkName, Attachment)> {
    wanted.iter().map(|wanted| (wanted.network.name.clone(), wanted.at.clone())).collect()
}

/// The text of a resolv.conf with the DNS settings of all results. `None` if the results have none.
pub fn resolv_conf<'a>(results: impl IntoIterator<Item = &'a Success>) -> Option<String> {
    let mut all = Dns::default();
    for Success { dns, .. } in results {
        if all.domain.is_empty() {
            all.domain.clone_from(&dns.domain);
        }
        for (all, own) in [
            (&mut all.nameservers, &dns.nameservers),
            (&mut all.search, &dns.search),
            (&mut all.options, &dns.options),
        ] {
            for word in own {
                if !all.contains(word) {
                    all.push(word.clone());
                }
            }
        }
    }
    let mut lines = Vec::new();
    if !all.domain.is_empty() {
        lines.push(format!("domain {}\n", all.domain));
    }
    for (keyword, words) in [("search", &all.search), ("options", &all.options)] {
        if !words.is_empty() {
            lines.push(format!("{keyword} {}\n", words.join(" ")));
        }
    }
    lines.extend(all.nameservers.iter().map(|server| format!("nameserver {server}\n")));
    (!lines.is_empty()).then(|| lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_joins_the_dns_of_all_results() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let with = |dns: Dns| Success { dns, ..Success::default() };
        let one = with(Dns { nameservers: words(&["10.1.0.1"]), ..Dns::default() });
        let two = with(Dns {
            nameservers: words(&["10.1.0.1", "fd00::1"]),
            domain: "example.org".into(),
            search: words(&["a", "b"]),
            options: words(&["ndots:5"]),
        });
        let expected = "domain example.org\nsearch a b\noptions ndots:5\nnameserver 10.1.0.1\nnameserver fd00::1\n";
        assert_eq!(resolv_conf([&one, &two]).as_deref(), Some(expected));
        assert_eq!(resolv_conf([&Success::default()]), None);
    }
}
