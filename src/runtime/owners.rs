//! The owners that rules and links of a host name, and their removal after the end of their containers.

#[cfg(feature = "tool")]
use std::collections::HashMap;
use std::path::Path;

use crate::cni::json::Json;
use crate::error::Result;
#[cfg(feature = "tool")]
use crate::ipam::store::listed::Holder;
use crate::names::{Attachment, NetworkName};
use crate::netlink::nft::{Family, Nft};
use crate::netlink::rtnl::Rtnl;
#[cfg(feature = "tool")]
use crate::plugin::life::Life;
use crate::plugin::owner::Owner;
use crate::plugin::record::Record;
use crate::runtime::Runtime;
use crate::runtime::chain::{Chain, Parameters};
use crate::runtime::conf::Network;
#[cfg(feature = "tool")]
use crate::runtime::reservations::{OwnedReservation, Survey};
use crate::steps::link::host_link;
use crate::steps::nft::{shared_rules, shared_set};

/// The kinds of links of ours that can be on the host after the end of a namespace: ifbs, and interfaces that were moved there. A
/// pair of veth ends with the namespace of either end.
const KINDS: [&str; 6] = ["ifb", "macvlan", "ipvlan", "vlan", "dummy", "tun"];

/// The owners in the tables of cnibox and in its map of the table of iptables, and those of links.
pub fn on_host() -> Result<Vec<String>> {
    let host = Rtnl::open()?;
    let mut owners = Vec::new();
    for kind in KINDS {
        if !Rtnl::open()?.has_kind(kind)? {
            continue;
        }
        let links = host.links_of_kind(kind)?;
        owners.extend(links.iter().filter_map(host_link::owner_of).map(str::to_owned));
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

/// Whether an object of the host names an owner, also one that ends with its namespace.
pub fn is_on_host(owner: &str) -> Result<bool> {
    let links = Rtnl::open()?.links()?;
    let is_its = |found: &str| found == owner;
    Ok(links.iter().filter_map(host_link::owner_of).any(is_its)
        || on_host()?.iter().any(|found| is_its(found)))
}

/// What rules, links and reservations of a host name.
pub struct OwnersInUse {
    owners: Vec<String>,
    #[cfg(feature = "tool")]
    survey: Survey,
}

impl OwnersInUse {
    pub fn find(_runtime: &Runtime) -> Result<Self> {
        Ok(Self {
            owners: on_host()?,
            #[cfg(feature = "tool")]
            survey: _runtime.survey()?,
        })
    }

    /// Whether one of them names the attachment of a record.
    pub fn has(&self, record: &Record) -> bool {
        let owner = Owner::new(&record.network, &record.at).to_string();
        self.owners.contains(&owner) || self.has_reservation(record)
    }

    #[cfg(feature = "tool")]
    fn has_reservation(&self, Record { network, at, .. }: &Record) -> bool {
        let mut of_network = self.survey.pools.iter().filter(|pool| pool.network == *network);
        let is_its = |owned: &OwnedReservation| match &owned.reservation.holder {
            Holder::Container(id, _) => *id == at.container_id,
            Holder::Operator | Holder::Other(_) => false,
        };
        of_network.any(|pool| pool.reservations.iter().any(is_its))
    }

    #[cfg(not(feature = "tool"))]
    fn has_reservation(&self, _: &Record) -> bool {
        false
    }
}

#[cfg(feature = "tool")]
impl Survey {
    /// The owners with a proof that their containers have ended. Those with a cache entry are not here: their DEL is to come.
    pub fn ended_owners(&self) -> HashMap<String, &str> {
        let mut ended = HashMap::new();
        for (record, life) in &self.records {
            if let Life::Ended(reason) = life {
                let owner = Owner::new(&record.network, &record.at).to_string();
                ended.insert(owner, reason.as_str());
            }
        }
        ended
    }
}

impl Runtime {
    /// Removes the rules and links of attachments of a network, by the plugins of this executable that leave them: these need no
    /// configuration.
    pub fn remove_owned(&self, network: &NetworkName, all: &[Attachment]) -> Result<()> {
        let mut plugins = Vec::new();
        for entry in self.settings.plugins.iter().filter(|entry| entry.facts.leaves_owned) {
            plugins.push(Json::object([("type", Some(entry.name.into()))]));
        }
        let list = Json::object([
            ("cniVersion", Some("1.0.0".into())),
            ("name", Some((&**network).into())),
            ("plugins", Some(Json::Array(plugins))),
        ]);
        let network = Network::from_cache(list.to_compact().as_bytes())?;
        let mut settings = self.settings.clone();
        settings.path.clear();
        let parameters = Parameters {
            at: all.first(),
            netns: Path::new(""),
            args: "",
            capability_args: &Json::Null,
        };
        Chain { settings: &settings, network: &network, parameters }.remove_ended(all)
    }
}
