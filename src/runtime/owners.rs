//! The owners that rules and links of a host name, and their removal after the end of their containers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::cni::json::Json;
use crate::error::Result;
use crate::ipam::store::listed::Holder;
use crate::kernel::nft::{Family, Nft, Table};
use crate::kernel::rtnl::Rtnl;
use crate::names::{Attachment, ContainerId, IfName};
use crate::plugin::owner::Owner;
use crate::plugins::host_local::DATA_DIR;
use crate::runtime::conf::Network;
use crate::runtime::lifecycle::{Choice, Runtime, Target};
use crate::runtime::reservations::{State, Survey};
use crate::runtime::signs;
use crate::steps::link::host_link;
use crate::steps::nft::shared_rules;

/// The owners in the tables of cnibox and in its map of the table of iptables, and those of ifbs. Other links end with the
/// namespaces of their containers.
pub fn on_host() -> Result<BTreeSet<String>> {
    let links = Rtnl::open()?.links_of_kind("ifb")?;
    let mut owners: BTreeSet<String> =
        links.iter().filter_map(host_link::owner_of).map(str::to_owned).collect();
    let Some(nft) = Nft::open_if_any()? else { return Ok(owners) };
    if !nft.is_supported()? {
        return Ok(owners);
    }
    for family in [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge] {
        let own = shared_rules::table(family);
        let filter = Table { family, name: "filter" };
        let mut sets: Vec<(Table<'_>, String)> =
            nft.sets(own)?.into_iter().map(|set| (own, set.name)).collect();
        sets.extend(nft.sets(filter)?.into_iter().map(|set| (filter, set.name)));
        sets.retain(|(table, set)| *table == own || set == own.name);
        for (table, set) in sets {
            let comments = nft.elements(table, &set)?.into_iter().filter_map(|it| it.comment);
            owners.extend(comments.map(|it| it.to_string()));
        }
    }
    owners.retain(|owner| Owner::parts(owner).is_some());
    Ok(owners)
}

impl Survey {
    /// Whether the container of an owner has provably ended, and no cache entry is left of it. The owner has to be read before
    /// the survey: an ADD makes its rules last, so the survey sees the link of an ADD in progress.
    pub fn is_gone(&self, owner: &str) -> bool {
        let Some([network, id, ifname]) = Owner::parts(owner) else { return false };
        // The names of a hash are unknown.
        let is_hash = network.starts_with('#') || id.starts_with('#');
        let cached = self.attachments.iter().map(|(entry, _)| entry).chain(&self.pending);
        let is_cached =
            cached.into_iter().any(|it| Owner::new(&it.network, &it.at).as_str() == owner);
        let is_its = |holder: &Holder| {
            matches!(holder, Holder::Container(its, its_ifname)
                if **its == *id && its_ifname.as_ref().is_none_or(|it| **it == *ifname))
        };
        let reservations = self.pools.iter().filter(|pool| *pool.network == *network);
        let is_alive = reservations
            .flat_map(|pool| &pool.reservations)
            .any(|it| is_its(&it.reservation.holder) && !matches!(it.state, State::Gone(_)));
        let signs = &self.signs;
        !(is_hash
            || is_cached
            || is_alive
            || signs.hidden.is_some()
            || signs.with_owner(owner).is_some()
            || signs.call(id).is_some()
            || signs.name(id)
            || signs::is_guest(Path::new(DATA_DIR)))
    }
}

impl Runtime {
    /// Removes the rules and links of an owner: DEL of the plugins that leave them, which need no configuration.
    pub fn remove_owner(&self, owner: &str) -> Result<()> {
        let Some([network, id, ifname]) = Owner::parts(owner) else { return Ok(()) };
        let at = Attachment { container_id: ContainerId::new(id)?, ifname: IfName::new(ifname)? };
        let plugins = PLUGINS.map(|kind| Json::object([("type", Some(kind.into()))]));
        let list = Json::object([
            ("cniVersion", Some("1.0.0".into())),
            ("name", Some(network.into())),
            ("plugins", Some(Json::Array(plugins.into()))),
        ]);
        let network = Network::from_cache(list.to_compact().as_bytes())?;
        let target = Target { at: &at, netns: None, args: "", capability_args: &Json::Null };
        self.del(&Choice::Given(network), &target)
    }

    /// The same runtime with the plugins of this executable only.
    pub fn without_path(self) -> Self {
        let means = crate::runtime::chain::Means { path: Vec::<PathBuf>::new(), ..self.means };
        Self { means, ..self }
    }
}

const PLUGINS: [&str; 4] = ["bridge", "bandwidth", "firewall", "portmap"];
