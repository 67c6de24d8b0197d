//! MAC spoof check: a port of a bridge accepts only frames with the MAC address of its container as source.
//!
//! ```text
//! table bridge cnibox {
//!     set spoof-check-ports { type ifname; elements = { "veth1a2b3c4d" comment "dbnet 3f2a eth0" } }
//!     set spoof-check-allowed {
//!         type ifname . ether_addr
//!         elements = { "veth1a2b3c4d" . 02:00:00:00:00:01 comment "dbnet 3f2a eth0" }
//!     }
//!     chain spoof-check-prerouting {
//!         type filter hook prerouting priority dstnat; policy accept;
//!         iifname @spoof-check-ports iifname . ether saddr != @spoof-check-allowed drop
//!     }
//! }
//! ```
//!
//! A verdict map would replace the two sets, but need one chain for each port.
//!
//! A failing ADD, DEL and GC remove the elements of the owner. The sets and the chain stay.

use crate::attachments::owner::{Owner, Owners};
use crate::error::{Error, Result};
use crate::names::{Attachment, IfName, Mac, NetworkName};
use crate::netlink::nft::{
    Base, Batch, Element, Family, Feature, Field, Hook, NewSet, Nft, Table, Type, Value, Verdict,
    in_set, not_in_set, pack,
};
use crate::rules::compat::rules;
use crate::rules::shared_rules::{self, Chain, SharedRules, rule};

/// The set of pairs of a port and the source MAC address that the port accepts.
const ALLOWED: &str = "spoof-check-allowed";
const CHAIN: &str = "spoof-check-prerouting";
const PORTS: &str = "spoof-check-ports";
const TABLE: Table<'static> = Table::bridge(shared_rules::TABLE);
/// The priority of the chain: `dstnat` of the family bridge, before other rules see the frame.
const PRIORITY: i32 = -300;

/// Allows only frames with the source address `mac` on `port`. Adds shared rules that are missing.
pub fn add(nft: &Nft, batch: &mut Batch, owner: &Owner, port: &IfName, mac: Mac) -> Result<()> {
    shared().ensure(nft, batch)?;
    // Remove the elements of an earlier port with this name, which belonged to this or another owner.
    clear(nft, batch, port, Some(mac))?;
    let comment = Some(shared_rules::comment(owner)?);
    for (set, key) in [(PORTS, pack(&port_key(port))), (ALLOWED, pack(&pair_key(port, mac)))] {
        let wanted = Element { key, data: None, comment: comment.clone() };
        shared_rules::put(nft, batch, TABLE, set, wanted)?;
    }
    Ok(())
}

/// The element that lists a port in the set of checked ports: its table, set and key.
pub fn port_element(port: &IfName) -> (Table<'static>, &'static str, Vec<u8>) {
    (TABLE, PORTS, pack(&port_key(port)))
}

/// Removes the elements of a port with this name. With `kept` the port stays checked, and the element that allows this MAC address
/// stays, too: the others are of an earlier port, which ended without a DEL.
pub fn clear(nft: &Nft, batch: &mut Batch, port: &IfName, kept: Option<Mac>) -> Result<()> {
    let key = pack(&port_key(port));
    if kept.is_none() {
        let found = nft.elements_at(TABLE, PORTS, std::slice::from_ref(&key))?.pop().flatten();
        // Without this element the kernel checks no frame of the port, and the others have no effect.
        let Some(found) = found else { return Ok(()) };
        batch.delete_elements(TABLE, PORTS, &[found]);
    }
    // Another program can have flushed the set of ports only.
    let kept = kept.map(|mac| pack(&pair_key(port, mac)));
    let is_other =
        |element: &Element| element.key.starts_with(&key) && kept.as_ref() != Some(&element.key);
    let mut others = nft.elements(TABLE, ALLOWED)?;
    others.retain(is_other);
    batch.delete_elements(TABLE, ALLOWED, &others);
    Ok(())
}

/// Removes the elements of the owners.
pub fn remove(nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<()> {
    shared_rules::delete(nft, batch, (TABLE, &[PORTS, ALLOWED]), owners)
}

/// Fails if an element or rule of `add` is missing. The MAC address is not compared, because a later plugin of the chain can
/// have changed it. Rules of the reference are accepted, too.
pub fn check(nft: &Nft, network: &NetworkName, at: &Attachment) -> Result<()> {
    let own = check_own(nft, &Owner::new(network, at));
    if own.is_err() && rules::has_spoof_check(nft, at)? {
        return Ok(());
    }
    own
}

fn check_own(nft: &Nft, owner: &Owner) -> Result<()> {
    let missing = format!("the MAC spoof check of {owner} is missing");
    for set in [PORTS, ALLOWED] {
        let elements = nft.elements(TABLE, set)?;
        let is_own = |element: &Element| element.comment.as_deref() == Some(owner.as_str());
        if !elements.iter().any(is_own) {
            let missing = Error::difference(missing);
            return Err(shared_rules::missing_in_set(nft, TABLE, set, missing)?);
        }
    }
    shared().check(nft).map_err(|error| error.context(missing))
}

/// For STATUS: fails with code 50 if the kernel lacks nf_tables for bridges.
pub fn status(nft: &Nft) -> Result<()> {
    let needed = [(Family::Bridge, Feature::Tables)];
    shared_rules::require(nft, &needed, "check for spoofed MAC addresses")
}

/// The two sets, and the chain `type filter hook prerouting priority dstnat; policy accept;` with the rule
/// `iifname @spoof-check-ports iifname . ether saddr != @spoof-check-allowed drop`
fn shared() -> SharedRules {
    let is_checked = in_set(&[Field::Iifname], PORTS);
    let is_foreign = not_in_set(&[Field::Iifname, Field::EtherSaddr], ALLOWED);
    let drop = rule(is_checked.into_iter().chain(is_foreign), Verdict::Drop);
    SharedRules {
        table: TABLE,
        sets: vec![
            NewSet::set(PORTS, [Type::IfName]),
            NewSet::set(ALLOWED, [Type::IfName, Type::EtherAddr]),
        ],
        chains: vec![Chain::base(CHAIN, Base::filter(Hook::Prerouting, PRIORITY), vec![drop])],
    }
}

fn port_key(port: &IfName) -> [Value<'_>; 1] {
    [Value::IfName(port)]
}

fn pair_key(port: &IfName, mac: Mac) -> [Value<'_>; 2] {
    [Value::IfName(port), Value::Mac(mac)]
}
