//! `firewall`: accepts the forwarded traffic of a container where the host drops forwarded traffic, and isolates
//! bridges.
//!
//! ```json
//! { "type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge" }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `backend` | string | firewalld if it runs, else iptables | `iptables` or `firewalld`. |
//! | `iptablesAdminChainName` | string | `CNI-ADMIN` | Chain of the administrator, evaluated before the rules of the plugin. |
//! | `firewalldZone` | string | `trusted` | Zone of firewalld that gets the addresses as sources. |
//! | `ingressPolicy` | string | `open` | `open`, `same-bridge`, `strict` or `isolated`, see below. |
//! | `acceptPublished` | boolean | false | Also accepts packets to the ports that `portmap` published for the container. With the backend iptables. |
//! | `markAcceptBit` | integer | 12 | The bit (0 to 31) of the packet mark that marks packets to be accepted. With the backend iptables. |
//!
//! The plugin follows a plugin that created an interface. It handles every address of `prevResult`, warns if it has none,
//! and runs no other program.
//!
//! **Backend iptables.** The chain FORWARD in the table `filter` of iptables-nft begins with a jump to CNI-FORWARD. An
//! existing jump stays where it is. ADD makes the table and the chain if they are missing, so that the rules are there
//! when another program starts to drop packets later. CNI-FORWARD begins with a jump to the chain of the
//! administrator. Then one rule accepts the packets that have the bit of `markAcceptBit` in their mark. The table `cnibox`
//! sets this bit right before the chains of iptables, for packets from the addresses and for established packets to them, and
//! clears it for all other packets and after these chains. It looks the address up in a set, so the cost does not depend on the
//! number of containers; the reference has two rules per address. `nft list set ip cnibox firewall-addresses` lists the
//! addresses. `iptables-save` and `iptables-restore` keep the rules. Inside FORWARD, a rule for the whole mark (`--mark 1` without
//! a mask) does not match these packets. ADD and STATUS refuse a bit that another rule in nf_tables uses, and name that rule.
//! The rules do not overrule a `drop` in another table, such as a hand-written ruleset or that of iptables-legacy; the rules
//! of the reference do not either. ADD and STATUS warn if the policy of FORWARD in iptables-legacy is DROP.
//!
//! **Published ports.** Where FORWARD drops, connections from outside to a published port are dropped, too, as with the
//! reference. With `acceptPublished` they are accepted, after the chain of the administrator; a policy still applies. Networks of
//! `cnibox networks create` and of podman's driver have this key. firewalld itself accepts translated packets.
//!
//! **Backend firewalld.** The addresses become sources of the zone, over the system D-Bus (DBUS_SYSTEM_BUS_ADDRESS).
//! A firewalld of another network namespace is not used, for example that of the host by a rootless runtime.
//! They last until firewalld is reloaded, as with the reference. A bus that does not answer within 3 seconds is an
//! error. DEL removes an address only from the zone that ADD put it into.
//!
//! **Ingress policy**, in tables of cnibox for every backend. `same-bridge`: forwarded packets from one bridge with this policy
//! to another one are dropped. `strict`: packets between this bridge and any other bridge of the host, or any other container
//! behind the plugin, are dropped, too; a bridge with a default route, or with a port that is no veth, tap or dummy, is an
//! uplink and no such bridge. ADD and `cnibox reconcile` note the uplinks. `isolated`: packets within the bridge from or to the port of this container are dropped, too,
//! except those of its gateway on this host. A pair without a bridge counts as a separate bridge, and so does the gateway link
//! of a VLAN: the bridge is the link of the host's route to the container. A policy applies to a bridge while one of its
//! containers has this policy, for IPv4 and IPv6, also if its containers have addresses of one of them only.
//!
//! A port that `portmap` published answers other networks also with a policy, in any order of the plugins. Packets that
//! another program translates are accepted to a published port of a container, and to no other port. Neighbours of an isolated
//! container do not reach its published ports. A packet to a published port from a bridge with a policy is dropped if the
//! host's route to its source is not on that bridge, or on a macvlan of the host on that bridge. With `strict`, one from any other
//! link is dropped, too, if that route is on the bridge; if the bridge is an uplink, only with the address of a container. An ADD,
//! or `cnibox reconcile`, takes a new macvlan into account.
//!
//! - **ADD** adds the elements of the attachment, and all shared chains and rules that are missing. So an ADD of any
//!   container restores rules that another program flushed. Elements of an earlier ADD that the configuration no longer
//!   needs are removed.
//! - **CHECK** fails with the name of the first element, rule or source that is missing.
//! - **DEL** removes the elements and sources of the attachment. It needs neither namespace nor `prevResult`; with
//!   `prevResult` it also removes the two rules per address of the reference. Chains, rules and sets stay.
//! - **GC** does the same for all attachments that are not valid.
//! - **STATUS** fails if the kernel lacks an nf_tables feature, or if firewalld is configured and does not run.

mod address;
mod dbus;
mod firewalld;
mod forward;
mod ingress;
mod mark;
#[cfg(feature = "tool")]
pub mod passage;
mod ruleset;
mod source_links;
mod sources;
mod strict;

#[cfg(feature = "tool")]
use std::ffi::OsStr;
use std::net::IpAddr;

use crate::attachments::owner::{Owner, Owners};
#[cfg(feature = "tool")]
use crate::cni::json::Json;
use crate::cni::json::keys;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IpFamily};
use crate::netlink::nft::{Batch, Comment, Family, Feature, Nft};
use crate::netlink::xtables;
use crate::plugin::parts::Parts;
use crate::plugin::records;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::rules::compat::forward_rules;
use crate::rules::shared_rules;
use crate::rules::shared_set::SharedSet;
use crate::steps::link::chained;
use crate::steps::undo::Undo;
use firewalld::{Firewalld, FirewalldState};
use forward::Accept;
use ingress::{Policy, PolicyLinks};
use mark::{Mark, PUBLISHED};
use ruleset::Listing;
use sources::ZoneSource;

pub const ENTRY: Entry = Entry {
    leaves_owned: true,
    leaves_rules: true,
    probes: &[("", r#""backend":"iptables""#)],
    ..Entry::chained::<Firewall>(
        "firewall",
        "accepts packets of containers on a host that drops others, and separates bridges",
    )
};

keys! {
    pub struct Firewall {
        "backend" => backend: String,
        "iptablesAdminChainName" => iptables_admin_chain_name: String,
        "firewalldZone" => firewalld_zone: String,
        "ingressPolicy" => ingress_policy: String,
        "acceptPublished" => accept_published: bool,
        "markAcceptBit" => mark_accept_bit: Option<i64>,
    }
}

/// The validated configuration.
struct Settings<'a> {
    backend: Backend,
    accept: Accept<'a>,
    policy: Policy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// firewalld if it runs, else iptables.
    Any,
    Iptables,
    Firewalld,
}

/// The error text of the reference for a call without `prevResult`.
const WITHOUT_RESULT: &str = "missing prevResult from earlier plugin";

impl Plugin for Firewall {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.settings()?;
        chained::prev_result(cx, WITHOUT_RESULT).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<Success> {
        let mut wanted = self.wanted(cx, at)?;
        wanted.former = records::former_addresses(cx, at, &wanted.result);
        if wanted.addresses.is_empty() {
            cx.warn("prevResult has no addresses: no rule is added");
        }
        let mut undo = Undo::new(cx);
        match &wanted.firewalld {
            Some(firewalld) => {
                wanted.add_sources(firewalld, &mut undo)?;
                wanted.remove_former_sources(cx, at, firewalld)?;
            }
            None => by_family(&wanted.addresses)
                .iter()
                .for_each(|(family, _)| warn_of_legacy_rules(cx, *family)),
        }
        wanted.put_rules(cx.session.nft()?)?;
        undo.keep();
        Ok(wanted.result)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _: &NetNs) -> Result<()> {
        self.reconcile(cx, at, &mut Parts::to_check())
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let mut wanted = self.wanted(cx, at)?;
        wanted.former.clone_from(&parts.former);
        let nft = cx.session.nft()?;
        if let Some(firewalld) = &wanted.firewalld {
            for address in &wanted.addresses {
                parts.ensure(&|| firewalld.check_source(wanted.zone, *address), &mut || {
                    firewalld.add_source(wanted.zone, *address).map(drop)
                })?;
            }
            wanted.remove_former_sources(cx, at, firewalld)?;
        }
        let put = &mut || wanted.put_rules(nft);
        let needs_rules = |listing: &&Listing<'_>| {
            !listing.addresses.is_empty() || wanted.closed.contains(&listing.family)
        };
        for listing in wanted.listings().iter().filter(needs_rules) {
            parts.ensure(&|| wanted.check_listing(nft, listing), put)?;
        }
        match &wanted.policy_links {
            Some(links) => parts.ensure(&|| links.check_port(nft, &wanted.owner), put),
            None => Ok(()),
        }
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        let reference_addresses: Vec<IpAddr> =
            scope.one().map_or_else(Vec::new, |_| addresses(&cx.prev_result_of_del()));
        let owners = cx.owners(scope);
        let (remaining, removed) = match cx.session.nft_if_supported()? {
            Some(nft) => {
                let others = self.sources_of_reference(nft, &reference_addresses)?;
                // If the records cannot be read, all of them must remain.
                let recorded = sources::recorded(nft, &owners)?;
                sources::remove(cx, scope, recorded, others)
            }
            None => (Vec::new(), Ok(())),
        };
        let build = move |nft: &Nft, batch: &mut Batch| {
            sources::delete_records(nft, batch, &owners, &remaining)?;
            remove_rules(nft, batch, &reference_addresses, &owners)
        };
        cx.defer(build, || Ok(()));
        removed
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let settings = self.settings()?;
        settings.check_possible(cx).map_err(Error::into_not_available)
    }
}

impl Firewall {
    fn settings(&self) -> Result<Settings<'_>> {
        let backend = match self.backend.as_str() {
            "" => Backend::Any,
            "iptables" => Backend::Iptables,
            "firewalld" => Backend::Firewalld,
            other => {
                return Err(Error::config(format_args!("backend: unknown backend {other:?}"))
                    .with_details("backend can be iptables or firewalld"));
            }
        };
        let policy = Policy::parse(&self.ingress_policy)?;
        let admin_chain = forward::admin_chain(&self.iptables_admin_chain_name)?;
        let mark = Mark::parse(self.mark_accept_bit, self.accept_published)?;
        Ok(Settings { backend, accept: Accept { admin_chain, mark }, policy })
    }

    fn zone(&self) -> &str {
        if self.firewalld_zone.is_empty() { "trusted" } else { &self.firewalld_zone }
    }

    /// The sources that the Go plugin would have added for these addresses. Addresses with an element of cnibox, of any
    /// network, are left out: cnibox recorded their source, or added none.
    fn sources_of_reference(&self, nft: &Nft, addresses: &[IpAddr]) -> Result<Vec<ZoneSource>> {
        let mut sources = Vec::new();
        if self.backend == "iptables" {
            return Ok(sources);
        }
        for (family, addresses) in by_family(addresses) {
            let have_elements = ruleset::have_elements(nft, family, &addresses)?;
            let others =
                addresses.into_iter().zip(have_elements).filter(|(_, has_element)| !has_element);
            let source = |(address, _)| ZoneSource { zone: self.zone().into(), address };
            sources.extend(others.map(source));
        }
        Ok(sources)
    }

    /// What the attachment needs, from the configuration and the previous result.
    fn wanted(&self, cx: &Context<'_>, at: &Attachment) -> Result<Wanted<'_>> {
        let settings = self.settings()?;
        let result = chained::prev_result(cx, WITHOUT_RESULT)?;
        let addresses = addresses(&result);
        let closed = match settings.policy {
            Policy::Open => Vec::new(),
            _ => closed_families(cx.session.nft()?, &addresses)?,
        };
        Ok(Wanted {
            firewalld: settings.firewalld(cx)?,
            zone: self.zone(),
            accept: settings.accept,
            policy_links: PolicyLinks::of(cx, settings.policy, at, &addresses)?,
            owner: shared_rules::comment(&Owner::new(&cx.request.network, at))?,
            addresses,
            closed,
            former: Vec::new(),
            result,
        })
    }
}

impl Settings<'_> {
    /// For STATUS: fails if the kernel or firewalld lacks what an ADD needs.
    fn check_possible(&self, cx: &Context<'_>) -> Result<()> {
        let uses_firewalld = self.firewalld(cx)?.is_some();
        let nft = cx.session.nft()?;
        let mut needed = vec![(Family::Ip, Feature::Tables)];
        if self.policy != Policy::Open {
            needed.extend([Feature::Conntrack, Feature::Fib].map(|feature| (Family::Ip, feature)));
        }
        if self.policy == Policy::Isolated {
            needed.push((Family::Bridge, Feature::Tables));
        }
        let missing = nft.missing(&needed)?;
        if !missing.is_empty() {
            let msg = format!("the kernel lacks {}", missing.join(", "));
            return Err(Error::internal(msg));
        }
        for family in IpFamily::ALL.into_iter().filter(|_| !uses_firewalld) {
            // A kernel without tables for IPv6 is accepted, because an ADD for IPv4 does not need them.
            if nft.missing(&[(family.into(), Feature::Tables)])?.is_empty() {
                forward::is_possible(nft, family, &self.accept)?;
                warn_of_legacy_rules(cx, family);
            }
        }
        Ok(())
    }

    /// The connection to firewalld. `None` if the backend is iptables, by configuration or because firewalld does not run.
    fn firewalld(&self, cx: &Context<'_>) -> Result<Option<Firewalld>> {
        if self.backend == Backend::Iptables {
            return Ok(None);
        }
        let state = Firewalld::find(cx)?;
        if let (Backend::Any, FirewalldState::Hidden(_, why)) = (self.backend, &state) {
            cx.warn(why);
        }
        self.backend.choose(state)
    }
}

impl Backend {
    /// The firewalld that this backend uses. `None` means iptables. A firewalld whose network namespace is unknown is used only
    /// if the configuration names it, one of another network namespace never.
    fn choose(self, state: FirewalldState) -> Result<Option<Firewalld>> {
        match (self, state) {
            (Self::Iptables, _) => Ok(None),
            (_, FirewalldState::Running(firewalld))
            | (Self::Firewalld, FirewalldState::Hidden(firewalld, _)) => Ok(Some(firewalld)),
            (Self::Any, _) => Ok(None),
            (
                Self::Firewalld,
                FirewalldState::Elsewhere(_, why)
                | FirewalldState::NotRunning(why)
                | FirewalldState::Unreachable(why),
            ) => Err(Error::config("backend").with_details(format_args!("{why}"))),
        }
    }
}

/// Whether an ADD with this configuration of the plugin adds sources to firewalld, over the bus with this address.
#[cfg(feature = "tool")]
pub fn uses_firewalld(conf: &Json, bus_address: Option<&OsStr>) -> Result<bool> {
    let backend = match conf.text_at("backend") {
        Some("iptables") => return Ok(false),
        Some("firewalld") => Backend::Firewalld,
        _ => Backend::Any,
    };
    Ok(matches!(backend.choose(Firewalld::find_at(bus_address)?), Ok(Some(_))))
}

/// The sources, rules and elements that an attachment needs.
struct Wanted<'a> {
    result: Success,
    addresses: Vec<IpAddr>,
    /// The addresses that the container no longer has.
    former: Vec<IpAddr>,
    /// The connection to firewalld, if the backend is firewalld.
    firewalld: Option<Firewalld>,
    /// The zone of firewalld.
    zone: &'a str,
    accept: Accept<'a>,
    policy_links: Option<PolicyLinks>,
    /// The families that have no addresses, and in which the policy applies.
    closed: Vec<IpFamily>,
    owner: Comment,
}

impl Wanted<'_> {
    /// The addresses of each family that has addresses, had some, or in which a policy applies.
    fn listings(&self) -> Vec<Listing<'_>> {
        let has_any = |family: IpFamily| {
            self.addresses.iter().chain(&self.former).any(|address| family.has(*address))
        };
        let accepts = |family| self.firewalld.is_none() && has_any(family);
        let listing = |family| Listing {
            family,
            addresses: self.addresses.iter().copied().filter(|ip| family.has(*ip)).collect(),
            former: self.former.iter().copied().filter(|ip| family.has(*ip)).collect(),
            policy_links: self.policy_links.as_ref(),
            mark: accepts(family).then_some(self.accept.mark),
            owner: &self.owner,
        };
        let is_listed = |family: &IpFamily| self.closed.contains(family) || has_any(*family);
        IpFamily::ALL.into_iter().filter(is_listed).map(listing).collect()
    }

    fn add_sources<'a>(&'a self, firewalld: &'a Firewalld, undo: &mut Undo<'a>) -> Result<()> {
        for address in &self.addresses {
            // A source that existed before stays: it belongs to another attachment or to the administrator.
            if firewalld.add_source(self.zone, *address)? {
                undo.push("remove a source from firewalld", || {
                    firewalld.remove_source(self.zone, *address)
                });
            }
        }
        Ok(())
    }

    /// Removes the recorded sources of former addresses. The records follow with the rules, so that a retry finds them.
    fn remove_former_sources(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        firewalld: &Firewalld,
    ) -> Result<()> {
        if self.former.is_empty() {
            return Ok(());
        }
        let owners = cx.owners(Scope::One(at));
        let mut recorded = sources::recorded(cx.session.nft()?, &owners)?;
        recorded.retain(|source| self.former.contains(&source.address));
        let mut recorded = recorded.iter();
        recorded.try_for_each(|source| firewalld.remove_source(&source.zone, source.address))
    }

    /// Adds the missing rules and elements.
    fn put_rules(&self, nft: &Nft) -> Result<()> {
        nft.transact(|nft, batch| {
            for listing in &self.listings() {
                ruleset::add(nft, batch, listing)?;
                if listing.addresses.is_empty() && listing.former.is_empty() {
                    continue;
                }
                match self.firewalld {
                    Some(_) => sources::record(nft, batch, listing, self.zone)?,
                    None => forward::add(nft, batch, listing, &self.accept)?,
                }
            }
            ingress::set_port(nft, batch, self.policy_links.as_ref(), &self.owner)
        })
    }

    /// Fails if a rule or element of a family is missing. Also accepts the rules of the Go plugin in place of those of cnibox.
    fn check_listing(&self, nft: &Nft, listing: &Listing<'_>) -> Result<()> {
        let uses_firewalld = self.firewalld.is_some();
        let Listing { family, addresses, policy_links, .. } = listing;
        let has_element = ruleset::have_elements(nft, *family, addresses)?.contains(&true);
        // The Go plugin did the ADD: its rules accept the addresses, or firewalld has them as sources.
        if !has_element
            && policy_links.is_none()
            && (uses_firewalld || forward_rules::has(nft, (*family).into(), addresses)?)
        {
            return Ok(());
        }
        ruleset::check(nft, listing)?;
        match uses_firewalld || addresses.is_empty() {
            true => Ok(()),
            false => forward::check(nft, listing, &self.accept),
        }
    }
}

fn remove_rules(
    nft: &Nft,
    batch: &mut Batch,
    reference_addresses: &[IpAddr],
    owners: &Owners,
) -> Result<()> {
    for family in IpFamily::ALL {
        ruleset::remove(nft, batch, family, owners)?;
        SharedSet::new(family, PUBLISHED).remove_owners(nft, batch, owners)?;
        forward::map(family).remove_owners(nft, batch, owners)?;
    }
    ingress::remove_ports(nft, batch, owners)?;
    for (family, addresses) in by_family(reference_addresses) {
        forward_rules::remove(nft, batch, family.into(), &addresses)?;
    }
    Ok(())
}

/// The addresses of all interfaces of the result, sorted.
fn addresses(result: &Success) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// The families in which a policy applies although the container has no address of them, because it can give itself addresses. A
/// kernel without the features for the policy in such a family is accepted.
fn closed_families(nft: &Nft, addresses: &[IpAddr]) -> Result<Vec<IpFamily>> {
    let mut closed = Vec::new();
    for family in IpFamily::ALL {
        let is_other = !addresses.is_empty() && !addresses.iter().any(|ip| family.has(*ip));
        let needed = [Feature::Conntrack, Feature::Fib].map(|feature| (family.into(), feature));
        if is_other && nft.missing(&needed)?.is_empty() {
            closed.push(family);
        }
    }
    Ok(closed)
}

fn by_family(addresses: &[IpAddr]) -> Vec<(IpFamily, Vec<IpAddr>)> {
    let in_family = |family: IpFamily| {
        let own = addresses.iter().copied().filter(|address| family.has(*address));
        (family, own.collect::<Vec<_>>())
    };
    IpFamily::ALL.map(in_family).into_iter().filter(|(_, own)| !own.is_empty()).collect()
}

/// Warns if iptables-legacy drops forwarded packets. This is not an error, because not every container needs forwarded traffic.
fn warn_of_legacy_rules(cx: &Context<'_>, family: IpFamily) {
    let is_v6 = family == IpFamily::V6;
    if xtables::drops_forwarded(is_v6) {
        let program = if is_v6 { "ip6tables-legacy" } else { "iptables-legacy" };
        cx.warn(format_args!(
            "the policy of FORWARD in {program} is DROP: \
             the kernel evaluates its rules in addition to nf_tables, which cannot overrule them"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(backend: &str, chain: &str, policy: &str) -> Result<()> {
        let firewall = Firewall {
            backend: backend.into(),
            iptables_admin_chain_name: chain.into(),
            ingress_policy: policy.into(),
            ..Firewall::default()
        };
        firewall.settings().map(drop)
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_key() {
        for (backend, chain, policy) in [
            ("", "", ""),
            ("iptables", "NOMAD-ADMIN", "open"),
            ("firewalld", "", "same-bridge"),
            ("", "", "strict"),
            ("", "", "isolated"),
        ] {
            assert_eq!(settings(backend, chain, policy), Ok(()));
        }
        for (key, backend, chain, policy) in [
            ("backend", "nftables", "", ""),
            ("backend", "IPTABLES", "", ""),
            ("ingressPolicy", "", "", "Isolated"),
            ("ingressPolicy", "", "", "closed"),
            ("iptablesAdminChainName", "", "a b", ""),
            ("iptablesAdminChainName", "", "CNI-FORWARD", ""),
        ] {
            let error = settings(backend, chain, policy).unwrap_err();
            assert_eq!(error.code, crate::error::Code::INVALID_CONFIG);
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
