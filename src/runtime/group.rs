//! The attachments of one container to several networks, all or nothing.

use std::path::Path;

use crate::cni::json::Json;
use crate::cni::success::{Dns, Success};
use crate::cni::version::{self, Version};
use crate::error::{Error, Result};
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::runtime::conf::{self, Network};
use crate::runtime::lifecycle::{Choice, Runtime, Target};

/// Plugins that work in the container only.
const CONTAINER_PLUGINS: [&str; 5] = ["loopback", "dummy", "tuning", "sbr", "vrf"];

/// An attachment to be made.
pub struct Wanted {
    pub network: Network,
    pub at: Attachment,
    /// CNI_ARGS.
    pub args: String,
    /// An object, or `Null`.
    pub capability_args: Json,
}

impl Network {
    /// The type of a plugin that changes the host; None if all of them work in the container only.
    pub fn host_plugin(&self) -> Option<&str> {
        self.plugins.iter().map(conf::kind).find(|kind| !CONTAINER_PLUGINS.contains(kind))
    }
}

impl Runtime {
    /// Attaches a namespace to each network, in order. If one fails, the others are detached.
    pub fn attach(&self, wanted: &[Wanted], netns: &Path) -> Result<Vec<Success>> {
        let mut results = Vec::new();
        for (index, Wanted { network, at, args, capability_args }) in wanted.iter().enumerate() {
            let target = Target { at, netns: Some(netns), args, capability_args };
            // `keep` releases the locks, which the next network needs.
            let added = self.add(network, &target).and_then(|added| {
                match version::parse_result(&added.result, Version::NEWEST) {
                    Ok(success) => added.keep().map(|()| success),
                    Err(error) => Err(added.undo_after(error)),
                }
            });
            match added {
                Ok(success) => results.push(success),
                Err(error) => {
                    sys::forget_interrupt();
                    let attached = wanted[..index].iter().rev();
                    let undone =
                        self.detach(attached.map(|it| (&it.network.name, &it.at)), Some(netns));
                    return Err(error.and(undone));
                }
            }
        }
        Ok(results)
    }

    /// Detaches a container from networks, with the configurations of the cache. Continues after a failure, and reports
    /// all.
    pub fn detach<'a>(
        &self,
        attached: impl Iterator<Item = (&'a NetworkName, &'a Attachment)>,
        netns: Option<&Path>,
    ) -> Result<()> {
        let errors = attached.filter_map(|(name, at)| {
            let target = Target { at, netns, args: "", capability_args: &Json::Null };
            self.del(&Choice::Named(name.clone()), &target).err()
        });
        errors.reduce(|first: Error, error| first.also(&error)).map_or(Ok(()), Err)
    }
}

/// A resolv.conf for several results; None if they have no DNS.
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
    if all.is_empty() {
        return None;
    }
    let mut lines = Vec::new();
    lines.extend(Some(all.domain).filter(|it| !it.is_empty()).map(|it| format!("domain {it}\n")));
    for (keyword, words) in [("search", all.search), ("options", all.options)] {
        lines.extend((!words.is_empty()).then(|| format!("{keyword} {}\n", words.join(" "))));
    }
    lines.extend(all.nameservers.iter().map(|it| format!("nameserver {it}\n")));
    Some(lines.concat())
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
