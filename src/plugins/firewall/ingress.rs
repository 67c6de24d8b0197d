//! `ingressPolicy`: the bridge and the port of a container, and the isolation of ports within a bridge.

use crate::error::{Error, Result};
use crate::names::{Attachment, IfName};
use crate::netlink::nft::{
    Base, Batch, ChainKind, Comment, Element, Family, Field, Hook, NewSet, Nft,
    Policy as ChainPolicy, SetKind, Table, Type, Value, Verdict, in_set, pack,
};
use crate::plugin::Context;
use crate::plugin::owner::Owners;
use crate::steps::link::veth;
use crate::steps::nft::shared_rules::{self, Chain, SharedRules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Open,
    SameBridge,
    Isolated,
}

/// The bridge and port that a policy other than `open` applies to.
pub(super) struct Guard {
    pub(super) is_isolated: bool,
    /// The interface on the host that receives the container's packets: the bridge, or the end of the pair on the host.
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
            other => Err(Error::config(format_args!("unknown ingress policy: {other:?}"))
                .with_details("ingressPolicy can be open, same-bridge or isolated")),
        }
    }
}

impl Guard {
    /// Asks the kernel, since results name interfaces in any order and need not name a bridge. `None` if there is nothing
    /// to keep.
    pub(super) fn of(cx: &Context<'_>, policy: Policy, at: &Attachment) -> Result<Option<Self>> {
        if policy == Policy::Open {
            return Ok(None);
        }
        let ifname = &at.ifname;
        let link = cx.session.container()?.link(ifname)?.ok_or_else(|| {
            Error::internal(format_args!("interface {ifname} not found in the container"))
        })?;
        let host = cx.session.host()?;
        let end = veth::host_end(host, &link, ifname)
            .map_err(|error| error.context("ingressPolicy: cannot find the container's bridge"))?;
        let master = match end.master {
            Some(index) => host.link_at(index)?,
            None => None,
        };
        let end = IfName::new(end.0.name)?;
        let (bridge, port) = match master {
            Some(bridge) => (IfName::new(bridge.0.name)?, Some(end)),
            None => (end, None),
        };
        Ok(Some(Self { is_isolated: policy == Policy::Isolated, bridge, port }))
    }

    /// The key of the port, if there is one to isolate.
    fn isolated_port(&self) -> Option<Vec<u8>> {
        let port = self.port.as_ref().filter(|_| self.is_isolated)?;
        Some(pack(&[Value::IfName(port)]))
    }

    pub(super) fn check_port(&self, nft: &Nft, owner: &Comment) -> Result<()> {
        let Some(port) = self.port.as_ref().filter(|_| self.is_isolated) else { return Ok(()) };
        let known = nft.elements_at(TABLE, PORTS, &[pack(&[Value::IfName(port)])])?;
        let is_there = |element: &Element| element.comment.as_ref() == Some(owner);
        if !known.iter().flatten().any(is_there) {
            return Err(Error::internal(format_args!(
                "port {port} is not isolated: it is missing from set {PORTS} of table {TABLE}"
            )));
        }
        shared().check(nft).map_err(|error| error.context(format!("port {port} is not isolated")))
    }
}

/// Isolates the port, if there is one to isolate, and ends what an earlier ADD of the owner isolated.
pub(super) fn set_port(
    nft: &Nft,
    batch: &mut Batch,
    guard: Option<&Guard>,
    owner: &Comment,
) -> Result<()> {
    let wanted = guard.and_then(Guard::isolated_port);
    let mut earlier = nft.elements(TABLE, PORTS)?;
    earlier.retain(|element| {
        element.comment.as_ref() == Some(owner) && Some(&element.key) != wanted.as_ref()
    });
    let keys: Vec<Vec<u8>> = earlier.into_iter().map(|element| element.key).collect();
    batch.delete_elements(TABLE, PORTS, &keys);
    let Some(key) = wanted else { return Ok(()) };
    shared().ensure(nft, batch, declare)?;
    let wanted = Element { key, data: None, comment: Some(owner.clone()) };
    shared_rules::put(nft, batch, TABLE, PORTS, wanted)
}

pub(super) fn remove_ports(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    shared_rules::delete(nft, batch, TABLE, PORTS, owners).map(drop)
}

/// The rules that isolate ports within a bridge:
///
/// ```nft
/// table bridge cnibox {
///     set firewall-isolated-ports { type ifname; }
///     chain firewall-forward {
///         type filter hook forward priority -200; policy accept;
///         iifname @firewall-isolated-ports drop
///         oifname @firewall-isolated-ports drop
///     }
/// }
/// ```
///
/// Packets to the host, and those that it routes, do not pass the forward hook of the bridge.
fn shared() -> SharedRules<'static> {
    let drops = |field: Field| {
        let mut rule = in_set(&[field], PORTS);
        rule.push(Verdict::Drop.into());
        rule
    };
    let base = Base {
        kind: ChainKind::Filter,
        hook: Hook::Forward,
        priority: PRIORITY,
        policy: ChainPolicy::Accept,
    };
    let rules = [Field::Iifname, Field::Oifname].map(drops).into();
    let chains = vec![Chain::base(CHAIN, base, rules)];
    SharedRules { table: TABLE, sets: vec![PORTS.into()], chains }
}

fn declare(batch: &mut Batch, name: &str) {
    let set = NewSet { name, key: &[Type::IfName], kind: SetKind::Set, comment: None };
    batch.add_set(TABLE, set);
}

const TABLE: Table<'static> = shared_rules::table(Family::Bridge);
const PORTS: &str = "firewall-isolated-ports";
const CHAIN: &str = "firewall-forward";

/// NF_BR_PRI_FILTER_BRIDGED (linux/netfilter_bridge.h); nft calls it `filter`.
const PRIORITY: i32 = -200;
