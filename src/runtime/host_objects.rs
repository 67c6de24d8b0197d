//! Lists the owners in the nf_tables elements and link aliases of a host, and removes the objects of owners that have ended.

use crate::attachments::owner::Owner;
use crate::cni::request::Parameters;
use crate::error::Result;
use crate::names::{Attachment, NetworkName};
use crate::netlink::nft::{Family, Nft};
use crate::netlink::rtnl::Rtnl;
use crate::plugin;
use crate::plugins::PLUGINS;
use crate::rules::{shared_rules, shared_set};
use crate::runtime::Runtime;
use crate::steps::link::host_link;

/// The owners in the comments of elements, in the tables of cnibox and in its map in the table of iptables, and in link
/// aliases. They are sorted.
pub fn on_host() -> Result<Vec<String>> {
    let host = Rtnl::open()?;
    let mut owners = Vec::new();
    for kind in PLUGINS.iter().filter_map(|entry| entry.leaves_links) {
        // A list of all links of a host with thousands of containers changes while it is read.
        if Rtnl::open()?.has_kind(kind)? {
            let links = host.links_of_kind(kind)?;
            owners.extend(links.iter().filter_map(host_link::owner_of).map(str::to_owned));
        }
    }
    if let Some(nft) = Nft::open_if_supported()? {
        add_in_tables(&nft, &mut owners)?;
    }
    owners.sort_unstable();
    owners.dedup();
    Ok(owners)
}

fn add_in_tables(nft: &Nft, owners: &mut Vec<String>) -> Result<()> {
    for family in [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge] {
        let own = shared_rules::table(family);
        let accepted = shared_set::accepted(family);
        for table in [own, accepted.table] {
            for set in nft.sets(table)? {
                if table != own && set.name != accepted.name && set.name != accepted.owners() {
                    continue;
                }
                for element in nft.elements(table, &set.name)? {
                    let Some(comment) = element.comment else { continue };
                    owners.extend(Owner::parts(&comment).map(|_| comment.to_string()));
                }
            }
        }
    }
    Ok(())
}

/// `on_host`, with the owners of veth links.
pub fn with_veths() -> Result<Vec<String>> {
    let mut owners = on_host()?;
    let links = Rtnl::open()?.links()?;
    owners.extend(links.iter().filter_map(host_link::owner_of).map(str::to_owned));
    owners.sort_unstable();
    owners.dedup();
    Ok(owners)
}

impl Runtime {
    /// Removes the rules and links of attachments of a network, see `plugin::remove_owned`.
    pub fn remove_owned(&self, network: &NetworkName, all: &[Attachment]) -> Result<()> {
        let bus_address = self.settings.bus_address.clone();
        let parameters = Parameters { bus_address, ..Parameters::default() };
        plugin::remove_owned(PLUGINS, &parameters, network, all)
    }
}
