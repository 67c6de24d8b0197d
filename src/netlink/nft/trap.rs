//! Tables that trace some packets, and drop them after all other hooks: the packets are judged by every rule of the host, and
//! arrive nowhere.
//!
//! A packet is selected by its source address and source port. Translations change both, so the connection is asked, too. An
//! ICMP error about such a packet quotes both, and is dropped as well.
//!
//! The tables have an owner, the socket: the kernel deletes them when this process ends, however it ends (Linux 5.12).

use std::net::IpAddr;

use nix::libc;

use super::chain::{Base, Hook, NewChain};
use super::expr::{Expr, Lookup, OriginalPart, Verdict, in_set};
use super::field::Field;
use super::register::Register;
use super::rule::NewRule;
use super::set::{Element, NewSet};
use super::value::{Type, Value, pack};
use super::{Batch, Family, Nft, Table};
use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6};
use crate::names::IpFamily;
use crate::netlink;

/// The name of the tables.
pub const TRAP: &str = "cnibox-probe";

/// Open tables. Dropping it deletes them.
pub struct Trap(#[expect(dead_code, reason = "the socket owns the tables")] Nft);

impl Trap {
    /// Adds the tables for packets with these source addresses and ports. `bridges`: also for frames that a bridge forwards.
    pub fn add(sources: &[(IpAddr, u16)], bridges: bool) -> Result<Self, netlink::Error> {
        let nft = Nft::open()?;
        let mut batch = Batch::new();
        for family in IpFamily::ALL {
            if sources.iter().any(|(address, _)| family.has(*address)) {
                add_ip_table(&mut batch, family, sources);
            }
        }
        if bridges {
            add_bridge_table(&mut batch, sources);
        }
        nft.commit(batch).map_err(|error| match error.errno {
            libc::EINVAL | libc::EOPNOTSUPP => error.with_hint("Linux 5.12 or later is required"),
            libc::EPERM | libc::EEXIST => error.with_hint("root is required, and no other probe"),
            _ => error,
        })?;
        Ok(Self(nft))
    }

    /// Whether the kernel has tables of the family bridge.
    pub fn can_bridge() -> Result<bool, netlink::Error> {
        let mut batch = Batch::new();
        batch.add_table(Table::bridge(TRAP));
        Ok(Nft::open()?.check(batch).is_ok())
    }
}

fn add_ip_table(batch: &mut Batch, family: IpFamily, sources: &[(IpAddr, u16)]) {
    let table = Table { family: family.into(), name: TRAP };
    add_table(batch, table, &[family], sources);
    let set = set(family);
    let direct = in_set(&[Field::addresses(family)[0], Field::Sport], set);
    let trace = NewRule::last("prerouting").with(direct.clone()).with(set_trace());
    batch.add_rule(table, trace);
    let original = by_connection(family);
    for chain in ["input", "postrouting"] {
        for selected in [&original, &direct, &quoted(family)] {
            let rule = NewRule::last(chain).with(selected.clone()).then(Verdict::Drop);
            batch.add_rule(table, rule);
        }
    }
}

fn add_bridge_table(batch: &mut Batch, sources: &[(IpAddr, u16)]) {
    let table = Table::bridge(TRAP);
    add_table(batch, table, &IpFamily::ALL, sources);
    for family in IpFamily::ALL {
        let ethertype = if family == IpFamily::V4 { ETH_P_IP } else { ETH_P_IPV6 };
        let bytes = Field::EtherType.bytes();
        let is_family = [
            Expr::Load { field: Field::EtherType, bytes, to: Register::FIRST },
            Expr::Compare {
                register: Register::FIRST,
                is_equal: true,
                value: ethertype.to_be_bytes().into(),
            },
        ];
        let direct = in_set(&[Field::addresses(family)[0], Field::Sport], set(family));
        let rule = |chain| NewRule::last(chain).with(is_family.clone()).with(direct.clone());
        batch.add_rule(table, rule("prerouting").with(set_trace()));
        batch.add_rule(table, rule("postrouting").then(Verdict::Drop));
    }
}

/// Adds a table with its sets and chains. The empty chain `forward` reports the packets that were routed.
fn add_table(
    batch: &mut Batch,
    table: Table<'_>,
    families: &[IpFamily],
    sources: &[(IpAddr, u16)],
) {
    batch.add_owned_table(table);
    for (name, base) in [
        ("prerouting", Base::filter(Hook::Prerouting, i32::MIN)),
        ("forward", Base::filter(Hook::Forward, i32::MIN)),
        ("input", Base::filter(Hook::Input, LAST)),
        ("postrouting", Base::filter(Hook::Postrouting, LAST)),
    ] {
        batch.add_chain(table, NewChain { name, base: Some(base), comment: None });
    }
    for family in families {
        let address = Type::address(Family::from(*family));
        let name = set(*family);
        batch.add_set(table, &NewSet::set(name, [address, Type::InetService]));
        let of_family = sources.iter().filter(|(address, _)| family.has(*address));
        let elements: Vec<Element> = of_family
            .map(|(address, port)| Element {
                key: pack(&[Value::Address(*address), Value::Port(*port)]),
                data: None,
                comment: None,
            })
            .collect();
        batch.add_elements(table, name, &elements);
    }
}

/// Before the end of the hook: at the end, connection tracking would keep the connection.
const LAST: i32 = i32::MAX - 1;

fn set(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "sources",
        IpFamily::V6 => "sources6",
    }
}

/// `meta nftrace set 1`
fn set_trace() -> [Expr; 2] {
    let register = Register::FIRST;
    [Expr::Immediate { value: vec![1], to: register }, Expr::SetTrace { from: register }]
}

/// `ct original saddr . ct original proto-src @sources`
fn by_connection(family: IpFamily) -> Vec<Expr> {
    let address_bytes = Field::addresses(family)[0].bytes();
    let port_at = Register::FIRST.after(address_bytes);
    vec![
        Expr::LoadOriginal { part: OriginalPart::Source, to: Register::FIRST },
        Expr::LoadOriginal { part: OriginalPart::SourcePort, to: port_at },
        contains(family),
    ]
}

/// The source address and port in the packet that an ICMP error quotes, after the eight bytes of its own header.
fn quoted(family: IpFamily) -> Vec<Expr> {
    let header = libc::NFT_PAYLOAD_TRANSPORT_HEADER;
    let (source_at, port_at) =
        if family == IpFamily::V4 { (8 + 12, 8 + 20) } else { (8 + 8, 8 + 40) };
    let bytes = Field::addresses(family)[0].bytes();
    let source = Field::Payload(header, source_at);
    let port = Field::Payload(header, port_at);
    vec![
        Expr::Load { field: source, bytes, to: Register::FIRST },
        Expr::Load { field: port, bytes: 2, to: Register::FIRST.after(bytes) },
        contains(family),
    ]
}

fn contains(family: IpFamily) -> Expr {
    let set = set(family).into();
    Expr::Lookup { set, key: Register::FIRST, lookup: Lookup::Contains }
}
