//! MAC spoof check: of what comes in from a container, only frames with the container's own MAC address pass its port of
//! the bridge.
//!
//! ```text
//! table bridge cnibox {
//!     set spoof-check-ports { type ifname; elements = { "veth1a2b3c4d" comment "dbnet 3f2a eth0" } }
//!     set spoof-check { type ifname . ether_addr; elements = { "veth1a2b3c4d" . 02:00:00:00:00:01 comment "dbnet 3f2a eth0" } }
//!     chain spoof-check {
//!         type filter hook prerouting priority dstnat; policy accept;
//!         iifname @spoof-check-ports iifname . ether saddr != @spoof-check drop
//!     }
//! }
//! ```
//!
//! Two sets rather than a verdict map, which would need a chain of its own for every port.
//!
//! Who removes it: the elements go with their owner (a failing ADD, DEL, GC). The sets and the chain stay.

use crate::error::{Code, Error, Result};
use crate::kernel::nft::{
    Base, Batch, ChainKind, Element, Family, Feature, Field, Hook, NewChain, NewRule, NewSet, Nft,
    Object, Policy, SetKind, Type, Value, Verdict, in_set, not_in_set, pack,
};
use crate::names::{IfName, Mac};
use crate::steps::netfilter::{self, Stale};
use crate::steps::owner::Owner;

/// The chain, and the set of what may pass.
const NAME: &str = "spoof-check";
const PORTS: &str = "spoof-check-ports";
/// `dstnat` of the family bridge: before anything looks at the frame.
const PRIORITY: i32 = -300;

/// Lets only frames from `mac` in by `port`, from the moment on that it returns.
pub fn add(owner: &Owner, port: &IfName, mac: Mac) -> Result<()> {
    Nft::open()?.transact(|nft, batch| {
        add_skeleton(nft, batch)?;
        let table = netfilter::table(Family::Bridge);
        let comment = Some(netfilter::comment(owner)?);
        // Names are used again by the same owner, and by others after him.
        for (set, name) in [(PORTS, pack(&port_key(port))), (NAME, pack(&pair_key(port, mac)))] {
            let wanted = Element { key: name, data: None, comment: comment.clone() };
            netfilter::put(nft, batch, table, set, wanted)?;
        }
        Ok(())
    })
}

pub fn remove(stale: &Stale) -> Result<()> {
    let Some(nft) = Nft::open_if_supported()? else { return Ok(()) };
    let table = netfilter::table(Family::Bridge);
    nft.transact(|nft, batch| {
        for set in [PORTS, NAME] {
            let elements = nft.elements(table, set)?.into_iter();
            let removed = elements.filter(|element| stale.has(element.comment.as_ref()));
            let keys: Vec<Vec<u8>> = removed.map(|element| element.key).collect();
            batch.delete_elements(table, set, &keys);
        }
        Ok(())
    })
}

/// Fails when what `add` made is not there. Which MAC address it lets pass is not looked at: a later plugin of the chain
/// may have changed the container's.
pub fn check(owner: &Owner) -> Result<()> {
    let nft = Nft::open()?;
    let table = netfilter::table(Family::Bridge);
    let stale = Stale::Of(owner.clone());
    let has_rule = !nft.rules_of(table, NAME)?.is_empty();
    for set in [PORTS, NAME] {
        let mut elements = nft.elements(table, set)?.into_iter();
        if !has_rule || !elements.any(|element| stale.has(element.comment.as_ref())) {
            return Err(Error::internal(format!("the MAC spoof check of {owner} is missing")));
        }
    }
    Ok(())
}

/// Fails with code 50 when the kernel cannot do it.
pub fn status() -> Result<()> {
    let missing = Nft::open()?.missing(&[(Family::Bridge, Feature::Tables)])?;
    if missing.is_empty() {
        return Ok(());
    }
    let msg =
        format!("cannot check for spoofed MAC addresses: the kernel lacks {}", missing.join(", "));
    Err(Error::new(Code::NOT_AVAILABLE, msg))
}

/// `type filter hook prerouting priority dstnat; policy accept;` and
/// `iifname @spoof-check-ports iifname . ether saddr != @spoof-check drop`
fn add_skeleton(nft: &Nft, batch: &mut Batch) -> Result<()> {
    let table = netfilter::table(Family::Bridge);
    let [has_table, has_chain] =
        netfilter::exist(nft, [Object::Table(table), Object::Chain(table, NAME)])?;
    if !has_table {
        batch.add_table(table, None);
    }
    if has_chain {
        return Ok(());
    }
    for (name, key) in [(PORTS, &[Type::IfName][..]), (NAME, &[Type::IfName, Type::EtherAddr])] {
        batch.add_set(table, NewSet { name, key, kind: SetKind::Set, comment: None });
    }
    let base = Base {
        kind: ChainKind::Filter,
        hook: Hook::Prerouting,
        priority: PRIORITY,
        policy: Policy::Accept,
    };
    batch.add_chain(table, NewChain { name: NAME, base: Some(base), comment: None });
    let rule = NewRule::last(NAME)
        .with(in_set(&[Field::Iifname], PORTS))
        .with(not_in_set(&[Field::Iifname, Field::EtherSaddr], NAME))
        .then(Verdict::Drop);
    batch.add_rule(table, rule);
    Ok(())
}

fn port_key(port: &IfName) -> [Value<'_>; 1] {
    [Value::IfName(port)]
}

fn pair_key(port: &IfName, mac: Mac) -> [Value<'_>; 2] {
    [Value::IfName(port), Value::Mac(mac)]
}
