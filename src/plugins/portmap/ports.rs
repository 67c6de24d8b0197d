//! The published ports of one attachment: what ADD, CHECK and `reconcile` do with them, in both families.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::bindings::PortBindings;
use super::config::{HostIp, Mapping, Settings, Snat};
use super::removal::Removal;
#[cfg(feature = "tool")]
use super::shadowed::{self, HostPorts};
use super::{ENTRY, container_address, delete_flows, noted, remove, return_path, rules};
use crate::attachments::life;
use crate::attachments::owner::{Owner, Owners};
use crate::attachments::record::{Record, Records};
use crate::cni::success::Success;
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::{Attachment, IfName, IpFamily};
use crate::netlink::conntrack::FlowFilter;
use crate::netlink::nft::{Comment, Nft, Transport};
use crate::netlink::rtnl::Link;
use crate::plugin::{Context, Scope};
use crate::rules::compat::rules as rules_of_reference;
use crate::rules::{localnet, shared_rules};

pub struct Ports<'a> {
    cx: &'a Context<'a>,
    at: &'a Attachment,
    settings: Settings,
    /// The comment of the elements: the owner.
    owner: Comment,
    owners: Owners,
    /// The record of the attachment, which lists the ports that it may have published.
    record: Option<Record>,
    /// The container's address in each family that has a port to publish.
    addresses: Vec<IpNet>,
    /// The link of the host's route to the container, if packets from 127.0.0.1 are translated to the container.
    pub loopback_link: Option<Link>,
    /// `publish` found ports of an earlier ADD of the attachment.
    pub had_ports: Cell<bool>,
}

impl<'a> Ports<'a> {
    /// The ports of the settings, with the container's addresses in a result.
    pub fn new(
        cx: &'a Context<'a>,
        at: &'a Attachment,
        result: &Success,
        settings: Settings,
    ) -> Result<Self> {
        let has_port = |family: &IpFamily| settings.mappings_in(*family).next().is_some();
        let families = IpFamily::ALL.into_iter().filter(has_port);
        let addresses = families.filter_map(|family| container_address(family, at, result));
        let record = match cx.session.record(&cx.request.network, at) {
            // A DEL cannot read a damaged record either, and reads the maps.
            Err(error) if error.code != Code::IO => {
                cx.warn(error);
                None
            }
            read => read?,
        };
        let mut ports = Self {
            cx,
            at,
            owner: shared_rules::comment(&Owner::new(&cx.request.network, at))?,
            owners: cx.owners(Scope::One(at)),
            record,
            addresses: addresses.collect(),
            settings,
            loopback_link: None,
            had_ports: Cell::new(false),
        };
        if let Some(address) = ports.address_with_loopback() {
            let host = cx.session.host()?;
            let index = host.link_towards(address, None)?;
            ports.loopback_link = index.map_or(Ok(None), |index| host.link_at(index))?;
        }
        Ok(ports)
    }

    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The port bindings of each family that has a port to publish.
    pub fn all(&self) -> impl Iterator<Item = PortBindings<'_>> {
        let bindings = |address: &IpNet| PortBindings::new(&self.owner, *address, &self.settings);
        self.addresses.iter().map(bindings)
    }

    fn of(&self, family: IpFamily) -> Option<PortBindings<'_>> {
        self.all().find(|bindings| bindings.family == family)
    }

    /// The address of the container to which packets from 127.0.0.1 are translated: with `snat`, in IPv4.
    fn address_with_loopback(&self) -> Option<IpAddr> {
        let addresses = self.addresses.iter().map(IpNet::addr);
        addresses.filter(|_| self.settings.snat != Snat::Off).find(IpAddr::is_ipv4)
    }

    /// The ports that earlier ADDs of the attachment may have published. `None` if they are unknown.
    pub fn noted(&self) -> Option<&[String]> {
        self.record.as_ref()?.ports.as_deref()
    }

    /// Lists the ports in the record, before the kernel has them.
    fn note(&self) -> Result<()> {
        let (Some(record), Some(noted)) = (&self.record, self.noted()) else { return Ok(()) };
        let mut own: Vec<String> = self.all().flat_map(|bindings| noted::of(&bindings)).collect();
        own.retain(|ports| !noted.contains(ports));
        if own.is_empty() { Ok(()) } else { Records::of_host().note_add(record, ENTRY.name, own) }
    }

    /// Publishes the ports. On an error, removes the ports of containers that have ended, and tries once more.
    pub fn publish(&self, nft: &Nft) -> Result<()> {
        let covered = self.links_to_cover(nft)?;
        self.note()?;
        match self.publish_once(nft, &covered) {
            Err(_) if self.remove_ended(nft)? => self.publish_once(nft, &covered),
            published => published,
        }
    }

    /// Publishes the ports of both families in one transaction, and replaces the port bindings of an earlier ADD.
    fn publish_once(&self, nft: &Nft, covered: &[IfName]) -> Result<()> {
        let (noted, owners) = (self.noted(), &self.owners);
        let is_noted = noted.is_none_or(|noted| !noted.is_empty());
        nft.transact(|nft, batch| {
            for family in IpFamily::ALL {
                let mut removal = Removal { nft, family, owners, noted, kept_group: None };
                let Some(bindings) = self.of(family) else {
                    removal.remove(batch)?;
                    continue;
                };
                let mut existing = bindings.read_existing(nft)?;
                let is_secondary = existing.needs_secondary;
                let bindings = if is_secondary { bindings.secondary() } else { bindings };
                if is_noted || existing.is_published {
                    removal.noted = noted.filter(|_| is_noted);
                    removal.kept_group = Some(&bindings.group);
                    self.had_ports.set(self.had_ports.get() | !removal.remove(batch)?.is_empty());
                    existing.is_published = true;
                }
                bindings.publish(nft, batch, &existing)?;
            }
            localnet::add_links(batch, covered);
            Ok(())
        })
    }

    /// Removes all ports of each container that has ended without a DEL and that publishes a host port of this attachment.
    /// Returns whether there was such a container.
    fn remove_ended(&self, nft: &Nft) -> Result<bool> {
        let mut owners = BTreeSet::new();
        for bindings in self.all() {
            owners.extend(bindings.conflicting_owners(nft)?);
        }
        owners.retain(|owner| life::has_ended(owner));
        for owner in &owners {
            let mut flows = Vec::new();
            nft.transact(|nft, batch| {
                // A new container can have the same owner name by now. Its ADD writes the record before the rules; if the rules
                // follow during this transaction, the transaction runs again.
                let Some(record) = life::ended(owner) else { return Ok(()) };
                let owners = Owners::of(&record.network, Scope::One(&record.at));
                flows = remove(nft, batch, &owners, record.ports.as_deref())?;
                Ok(())
            })?;
            self.cx.or_warn(delete_flows(&flows));
        }
        Ok(!owners.is_empty())
    }

    /// Removes the port bindings, for an ADD that fails or has no ports to publish. `noted` as in `Removal`.
    pub fn remove(&self, noted: Option<&[String]>) -> Result<()> {
        let Some(nft) = self.cx.session.nft_if_supported()? else { return Ok(()) };
        nft.transact(|nft, batch| remove(nft, batch, &self.owners, noted).map(drop))
    }

    /// Removes the rules of the Go plugin for this attachment. Fails if the Go plugin has published one of the ports for another
    /// container.
    pub fn replace_reference_rules(&self, nft: &Nft) -> Result<()> {
        let network = &self.cx.request.network;
        let mut has_own = false;
        for bindings in self.all() {
            has_own |= bindings.refuse_of_reference(nft, network, self.at)?;
        }
        if has_own {
            nft.transact(|nft, batch| {
                rules_of_reference::remove_portmap(nft, batch, &self.owners, &[])
            })?;
        }
        Ok(())
    }

    /// Fails if an element or rule of cnibox is missing, unless the Go plugin published the ports.
    pub fn check(&self, nft: &Nft, bindings: &PortBindings<'_>) -> Result<()> {
        let Err(error) = bindings.check(nft) else { return Ok(()) };
        let table = rules::table(bindings.family);
        let (network, address) = (&self.cx.request.network, bindings.address.addr());
        match rules_of_reference::has_portmap(nft, table.family, network, self.at, address)? {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// The links on which packets to 127.0.0.0/8 must be dropped: the link to the container, which gets `route_localnet`, and
    /// other links with `route_localnet` that no rule protects yet.
    fn links_to_cover(&self, nft: &Nft) -> Result<Vec<IfName>> {
        if self.address_with_loopback().is_none() {
            return Ok(Vec::new());
        }
        let mut links = localnet::links_to_add(nft, self.cx.session.host()?)?;
        if let Some(link) = &self.loopback_link {
            links.push(IfName::new(link.name.as_str())?);
        }
        links.sort_unstable();
        links.dedup();
        Ok(links)
    }

    /// Enables `route_localnet` on the link to the container, for packets from 127.0.0.1. The rule that drops packets to
    /// 127.0.0.0/8 from this link must exist before.
    pub fn allow_loopback(&self) -> Result<()> {
        match &self.loopback_link {
            Some(link) => sysctl::set(&localnet::route_localnet(&link.name), "1").map(drop),
            None => Ok(()),
        }
    }

    /// Fails if `route_localnet` of the link to the container is 0, or if no rule of cnibox drops packets to 127.0.0.0/8 from
    /// this link. If `route_localnet` of `all` is 1, the kernel enables it on every link.
    pub fn check_loopback(&self, nft: &Nft) -> Result<()> {
        let Some(link) = &self.loopback_link else { return Ok(()) };
        let name = &link.name;
        // The Go plugin has no such rule.
        let v4 = self.of(IpFamily::V4);
        if v4.map_or(Ok(false), |bindings| bindings.is_published(nft))?
            && !localnet::covers(nft, &IfName::new(name.as_str())?)?
        {
            let msg = format!("127.0.0.0/8 is open to the neighbours on {name}");
            return Err(
                Error::difference(msg).of_shared(format_args!("rule for 127.0.0.0/8 on {name}"))
            );
        }
        let link = self.cx.session.host()?.link(name)?;
        if link.is_some_and(|link| !link.route_localnet)
            && sysctl::get(&localnet::route_localnet("all"))?.as_deref() == Some("0")
        {
            let msg =
                format!("127.0.0.1 does not lead to the container: route_localnet of {name} is 0");
            return Err(Error::difference(msg).of_shared(format_args!("route_localnet of {name}")));
        }
        Ok(())
    }

    /// Warns if other hosts will get no reply from the published ports. It is not an error, because `sbr` can follow in the
    /// chain.
    pub fn warn_of_return_path(&self, netns: &NetNs) {
        let (cx, network) = (self.cx, &self.cx.request.network);
        let v4 = self.of(IpFamily::V4).filter(|_| self.settings.snat != Snat::All);
        let Some(address) = v4.map(|bindings| bindings.address.addr()) else { return };
        let fault = cx
            .session
            .host()
            .and_then(|host| return_path::fault_of_address(host, netns, self.at, address));
        if let Some(fault) = cx.or_warn(fault) {
            cx.warn(format!("{fault}; add the plugin sbr to network {network} if it has none"));
        }
    }

    /// Warns if a program of the host waits on a port.
    #[cfg(feature = "tool")]
    pub fn warn_of_shadowed(&self) {
        let ports = HostPorts::of(&self.settings.mappings);
        let found = shadowed::find(&ports, Some(&self.at.container_id));
        if let Some(found) = self.cx.or_warn(found) {
            self.cx.warn(format_args!("{found}; its clients reach {} instead", self.at));
        }
    }

    /// Deletes the UDP connections to the published ports from conntrack that do not lead to the container. The kernel does not
    /// translate a connection that is older than the rules while its packets keep coming.
    pub fn delete_untranslated(&self) -> Result<()> {
        self.delete_udp(|to_port, _, container| to_port.not_answered_by(container))
    }

    /// Deletes the UDP connections that began while the rules were missing: the host itself answers them. Connections to the
    /// container stay.
    pub fn delete_answered_by_host(&self) -> Result<()> {
        self.delete_udp(|to_port, host, _| to_port.answered_by(host))
    }

    /// Deletes the connections to the published ports that lead to a former address of the container.
    pub fn delete_answered_by(&self, former: &[IpAddr]) -> Result<()> {
        let mut flows = Vec::new();
        for bindings in self.all() {
            let family = bindings.family;
            for Mapping { transport, host_port, .. } in bindings.mappings() {
                let to_port = FlowFilter::to_port(family, *transport, *host_port);
                let former = former.iter().filter(|address| family.has(**address));
                flows.extend(former.map(|address| to_port.answered_by(*address)));
            }
        }
        delete_flows(&flows)
    }

    /// Deletes UDP connections to each published port at each address of the host. `filter` gets the filter for the port at this
    /// address, the address, and the address of the container.
    fn delete_udp(&self, filter: impl Fn(FlowFilter, IpAddr, IpAddr) -> FlowFilter) -> Result<()> {
        let mut flows = Vec::new();
        let mut addresses: Option<Vec<IpAddr>> = None;
        for bindings in self.all() {
            let (family, container) = (bindings.family, bindings.address.addr());
            for mapping in bindings.mappings().filter(|mapping| mapping.transport == Transport::Udp)
            {
                let to_port = FlowFilter::to_port(family, Transport::Udp, mapping.host_port);
                let at = |ip: IpAddr| filter(to_port.at(ip), ip, container);
                match mapping.host_ip {
                    HostIp::One(ip) => flows.push(at(ip)),
                    // One filter for each address of the host: connections that it forwards to this port of other hosts stay.
                    HostIp::Any | HostIp::AnyOf(_) => {
                        if addresses.is_none() {
                            let mut all = self.cx.session.host()?.all_addresses()?;
                            all.sort_unstable();
                            all.dedup();
                            addresses = Some(all);
                        }
                        let of_family = addresses.iter().flatten().filter(|ip| family.has(**ip));
                        flows.extend(of_family.map(|ip| at(*ip)));
                    }
                }
            }
        }
        delete_flows(&flows)
    }
}
