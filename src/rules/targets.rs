//! The targets of published ports: a policy of `firewall` that separates networks accepts connections to them:
//!
//! ```nft
//! set portmap-targets {
//!     type ipv4_addr . inet_proto . inet_service
//!     elements = { 10.1.0.5 . tcp . 80 comment "net c1 eth0" }
//! }
//! ```
//!
//! `firewall` adds the set and its rule, and fills the set from the maps of `portmap`. So the order of the plugins has no
//! effect, and ports that an earlier release published have targets, too. If the set exists, `portmap` adds and removes
//! elements. Without a policy there is no set.

use crate::error::Result;
use crate::names::IpFamily;
use crate::netlink::nft::{
    Batch, Condition, Datum, Element, Expr, Field, NewSet, Nft, Type, Verdict, in_set,
};
use crate::rules::shared_rules::{self, rule};
use crate::rules::shared_set::SharedSet;

pub const SET: &str = "portmap-targets";
/// The prefix of the maps of published ports: `… inet_proto . inet_service : ipv4_addr . inet_service`.
const PUBLISHED: &str = "portmap-published";

/// Converts an element of a map of published ports to the element of `portmap-targets` for the port of the container. `None` if
/// the element has no address and port. Protocol and port have four bytes each.
pub fn of(published: &Element) -> Option<Element> {
    let Some(Datum::Value(target)) = &published.data else { return None };
    let (address, port) = target.split_at_checked(target.len().checked_sub(4)?)?;
    let [protocol, _] = published.key.last_chunk::<8>()?.as_chunks::<4>().0 else { return None };
    let key = [address, protocol, port].concat();
    Some(Element { key, data: None, comment: published.comment.clone() })
}

/// The set `portmap-targets`.
pub fn set(family: IpFamily) -> NewSet {
    NewSet::set(SET, [Type::address(family.into()), Type::InetProto, Type::InetService])
}

/// Adds the targets of all published ports to the new set.
pub fn fill(nft: &Nft, batch: &mut Batch, family: IpFamily) -> Result<()> {
    let table = shared_rules::table(family);
    let mut all = Vec::new();
    for map in nft.sets(table)?.iter().filter(|set| set.is_map() && set.name.starts_with(PUBLISHED))
    {
        all.extend(nft.elements(table, &map.name)?.iter().filter_map(of));
    }
    SharedSet::new(family, SET).change(nft, batch, &|_| false, &all).map(drop)
}

/// The rules that accept replies of translated connections, and connections that were translated to a target:
/// `ct status dnat ct direction reply accept` and
/// `ct status dnat ip daddr . meta l4proto . th dport @portmap-targets accept`
pub fn accept(family: IpFamily) -> [Vec<Expr>; 2] {
    let [_, daddr] = Field::addresses(family);
    let replies = Condition::ct_direction_reply().into_iter().collect();
    let to_target = in_set(&[daddr, Field::Protocol, Field::Dport], SET);
    [replies, to_target].map(|condition: Vec<Expr>| {
        rule(Condition::ct_status_dnat().into_iter().chain(condition), Verdict::Accept)
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::netlink::nft::{Transport, Value, pack};

    #[test]
    fn the_target_of_a_published_port_has_the_key_of_its_container() {
        for address in ["10.1.0.5", "fd00:1::5"] {
            let address: IpAddr = address.parse().unwrap();
            let port = [Value::Transport(Transport::Udp), Value::Port(8080)];
            let on = [Value::Address(address), port[0], port[1]];
            let data = Some(Datum::Value(pack(&[Value::Address(address), Value::Port(80)])));
            for published in [pack(&port), pack(&on)] {
                let published = Element { key: published, data: data.clone(), comment: None };
                let target = of(&published).map(|target| target.key);
                let port = [Value::Transport(Transport::Udp), Value::Port(80)];
                assert_eq!(target, Some(pack(&[Value::Address(address), port[0], port[1]])));
            }
        }
        assert_eq!(of(&Element { key: vec![0; 8], data: None, comment: None }), None);
    }
}
