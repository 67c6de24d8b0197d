//! The owners that rules and links of a host name, and their removal after the end of their containers.

use std::collections::HashMap;

use crate::cni::json::Json;
use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::names::{Attachment, NetworkName};
use crate::netlink::nft::{Family, Nft};
use crate::netlink::rtnl::Rtnl;
use crate::plugin::life::Life;
use crate::plugin::owner::Owner;
use crate::plugin::record::Record;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::lifecycle::{Choice, Target};
use crate::runtime::reservations::{OwnedReservation, Survey};
use crate::steps::link::host_link;
use crate::steps::nft::{shared_rules, shared_set};

/// The owners in the tables of cnibox and in its map of the table of iptables, and those of ifbs. Other links end with the
/// namespaces of their containers.
pub fn on_host() -> Result<Vec<String>> {
    let mut owners = Vec::new();
    for link in Rtnl::open()?.links_of_kind("ifb")? {
        if let Some(owner) = host_link::owner_of(&link) {
            owners.push(owner.to_owned());
        }
    }
    let Some(nft) = Nft::open_if_any()? else { return Ok(owners) };
    if !nft.is_supported()? {
        return Ok(owners);
    }
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
    owners.sort_unstable();
    owners.dedup();
    Ok(owners)
}

/// What reservations, rules and links of a host name.
pub struct Named {
    owners: Vec<String>,
    survey: Survey,
}

impl Named {
    pub fn find(runtime: &Runtime) -> Result<Self> {
        Ok(Self { owners: on_host()?, survey: runtime.survey()? })
    }

    /// Whether one of them names the attachment of a record.
    pub fn has(&self, Record { network, at, .. }: &Record) -> bool {
        let owner = Owner::new(network, at).to_string();
        let mut of_network = self.survey.pools.iter().filter(|pool| pool.network == *network);
        let is_its = |owned: &OwnedReservation| match &owned.reservation.holder {
            Holder::Container(id, _) => *id == at.container_id,
            Holder::Operator | Holder::Other(_) => false,
        };
        self.owners.contains(&owner) || of_network.any(|pool| pool.reservations.iter().any(is_its))
    }
}

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
    /// Removes the rules and links of an owner: DEL of the plugins that leave them, which need no configuration.
    pub fn remove_owner(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
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
        let target = Target { at, netns: None, args: "", capability_args: &Json::Null };
        self.del(&Choice::Configuration(network), &target)
    }

    /// The same runtime with the plugins of this executable only.
    pub(super) fn without_path(&self) -> Self {
        let mut settings = self.settings.clone();
        settings.path.clear();
        Self::new(settings, self.configurations.clone())
    }
}
