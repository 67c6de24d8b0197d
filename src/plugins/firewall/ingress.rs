//! `ingressPolicy`: which bridge it is about, and which port of it.

use super::ruleset;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::nft::{
    Base, Batch, ChainKind, Comment, Element, Family, Field, Hook, NewChain, NewRule, NewSet, Nft,
    Object, Policy as ChainPolicy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::kernel::rtnl::Rtnl;
use crate::names::{Attachment, IfName};
use crate::steps::netfilter::{self, Stale};
use crate::steps::veth;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Open,
    SameBridge,
    Isolated,
}

/// What a policy other than `open` is to be kept for.
pub(super) struct Guard {
    pub(super) is_isolated: bool,
    /// Where the host sees what comes from the container: its bridge, or else its own end of the pair.
    pub(super) bridge: IfName,
    /// The container's port of the bridge, if there is a bridge.
    port: Option<IfName>,
}

impl Policy {
    pub(super) fn parse(text: &str) -> Result<Self> {
        match text {
            "" | "open" => Ok(Self::Open),
            "same-bridge" => Ok(Self::SameBridge),
            "isolated" => Ok(Self::Isolated),
            other => Err(Error::config(format!("ingressPolicy: unknown ingress policy {other:?}"))
                .with_details("there are open, same-bridge and isolated")),
        }
    }
}

impl Guard {
    /// Asks the kernel, since results name interfaces in any order and need not name a bridge. `None` if there is nothing
    /// to keep.
    pub(super) fn of(policy: Policy, netns: &NetNs, at: &Attachment) -> Result<Option<Self>> {
        if policy == Policy::Open {
            return Ok(None);
        }
        let ifname = &at.ifname;
        let link = netns.rtnl()?.link(ifname)?.ok_or_else(|| {
            Error::internal(format!("interface {ifname} not found in the container"))
        })?;
        let host = Rtnl::open()?;
        let end = veth::host_end(&host, &link, ifname)
            .map_err(|error| error.context("ingressPolicy: cannot find the container's bridge"))?;
        let master = match end.master {
            Some(index) => host.link_at(index)?,
            None => None,
        };
        let end = IfName::new(end.name)?;
        let (bridge, port) = match master {
            Some(bridge) => (IfName::new(bridge.name)?, Some(end)),
            None => (end, None),
        };
        Ok(Some(Self { is_isolated: policy == Policy::Isolated, bridge, port }))
    }

    /// Isolates the port, if there is one to isolate.
    pub(super) fn add_port(&self, nft: &Nft, batch: &mut Batch, owner: &Comment) -> Result<()> {
        let Some(port) = self.port.as_ref().filter(|_| self.is_isolated) else { return Ok(()) };
        make_room(nft, batch)?;
        let key = pack(&[Value::IfName(port)]);
        let wanted = Element { key, data: None, comment: Some(owner.clone()) };
        netfilter::put(nft, batch, TABLE, PORTS, wanted)
    }

    pub(super) fn check_port(&self, nft: &Nft, owner: &Comment) -> Result<()> {
        let Some(port) = self.port.as_ref().filter(|_| self.is_isolated) else { return Ok(()) };
        let known = nft.elements_at(TABLE, PORTS, &[pack(&[Value::IfName(port)])])?;
        let is_there = |element: &Element| element.comment.as_ref() == Some(owner);
        if !known.iter().flatten().any(is_there) {
            return Err(Error::internal(format!(
                "port {port} is not isolated: it is missing from set {PORTS} of table {TABLE}"
            )));
        }
        if nft.rules_of(TABLE, CHAIN)?.len() < RULES {
            return Err(Error::internal(format!(
                "port {port} is not isolated: rules of chain {CHAIN} of table {TABLE} are missing"
            )));
        }
        Ok(())
    }
}

pub(super) fn remove_ports(nft: &Nft, batch: &mut Batch, stale: &Stale) -> Result<()> {
    let keys = ruleset::keys_of(nft.elements(TABLE, PORTS)?, stale);
    batch.delete_elements(TABLE, PORTS, &keys);
    Ok(())
}

/// What has no bridge between its ports:
///
/// ```nft
/// table bridge cnibox {
///     set firewall-isolated-ports { type ifname; }
///     chain firewall {
///         type filter hook forward priority -200; policy accept;
///         iifname @firewall-isolated-ports drop
///         oifname @firewall-isolated-ports drop
///     }
/// }
/// ```
///
/// The host itself, and whatever it routes to, is not reached by forwarding.
fn make_room(nft: &Nft, batch: &mut Batch) -> Result<()> {
    let objects = [Object::Table(TABLE), Object::Set(TABLE, PORTS), Object::Chain(TABLE, CHAIN)];
    let [has_table, has_set, has_chain] = netfilter::exist(nft, objects)?;
    if !has_table {
        batch.add_table(TABLE, None);
    }
    if !has_set {
        let set = NewSet { name: PORTS, key: &[Type::IfName], kind: SetKind::Set, comment: None };
        batch.add_set(TABLE, set);
    }
    if has_chain && nft.rules_of(TABLE, CHAIN)?.len() >= RULES {
        return Ok(());
    }
    if has_chain {
        batch.flush_chain(TABLE, CHAIN);
    } else {
        let base = Base {
            kind: ChainKind::Filter,
            hook: Hook::Forward,
            priority: PRIORITY,
            policy: ChainPolicy::Accept,
        };
        batch.add_chain(TABLE, NewChain { name: CHAIN, base: Some(base), comment: None });
    }
    for field in [Field::Iifname, Field::Oifname] {
        let rule = NewRule::last(CHAIN).with(in_set(&[field], PORTS)).then(Verdict::Drop);
        batch.add_rule(TABLE, rule);
    }
    Ok(())
}

const TABLE: Table<'static> = netfilter::table(Family::Bridge);
const PORTS: &str = "firewall-isolated-ports";
const CHAIN: &str = "firewall";
/// How many rules the chain has.
const RULES: usize = 2;

/// NF_BR_PRI_FILTER_BRIDGED (linux/netfilter_bridge.h); nft calls it `filter`.
const PRIORITY: i32 = -200;
