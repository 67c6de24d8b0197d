//! Tables that trace some packets, and drop them after all other hooks: the packets are judged by every rule of the host, and
//! arrive nowhere.
//!
//! A packet is selected by its protocol, its addresses and its ports. Translations change them, so the connection is asked, too.
//! An answer that the host itself sends has them reversed, and an ICMP error quotes them: both are dropped as well. The sets have
//! one packet at a time, so no connection of another program is hit.
//!
//! The tables have an owner, the socket: the kernel deletes them when this process ends, however it ends (Linux 5.12).

use std::cell::Cell;
use std::net::IpAddr;

use nix::libc;

use super::chain::{Base, Hook, NewChain};
use super::expr::{Expr, Lookup, OriginalPart, Verdict, in_set};
use super::field::Field;
use super::register::Register;
use super::rule::NewRule;
use super::set::{Element, NewSet};
use super::value::{Transport, Type, Value, pack};
use super::{Batch, Family, Nft, Table};
use crate::kernel::packet::{ETH_P_IP, ETH_P_IPV6};
use crate::names::IpFamily;
use crate::netlink;

/// The name of the tables.
pub const TRAP: &str = "cnibox-probe";

/// A packet, by what it has when it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub transport: Transport,
    pub from: (IpAddr, u16),
    pub to: (IpAddr, u16),
}

/// Open tables. Dropping it deletes them.
pub struct Trap {
    /// The socket that owns the tables.
    nft: Nft,
    bridges: bool,
    /// The packet that the sets have.
    flow: Cell<Option<Flow>>,
}

impl Trap {
    /// Adds the tables. `bridges`: also for frames that a bridge forwards.
    pub fn add(bridges: bool) -> Result<Self, netlink::Error> {
        let nft = Nft::open()?;
        let mut batch = Batch::new();
        IpFamily::ALL.into_iter().for_each(|family| add_ip_table(&mut batch, family));
        if bridges {
            add_bridge_table(&mut batch);
        }
        nft.commit(batch).map_err(|error| match error.errno {
            libc::EINVAL | libc::EOPNOTSUPP => error.with_hint("Linux 5.12 or later is required"),
            libc::EPERM | libc::EEXIST => error.with_hint("root is required, and no other probe"),
            _ => error,
        })?;
        Ok(Self { nft, bridges, flow: Cell::new(None) })
    }

    /// Traces and drops the packets of this flow, and no longer those of the flow before.
    pub fn catch(&self, flow: Flow) -> Result<(), netlink::Error> {
        let mut batch = Batch::new();
        if let Some(before) = self.flow.get() {
            self.change(&mut batch, before, Batch::delete_elements);
        }
        self.change(&mut batch, flow, Batch::add_elements);
        self.nft.commit(batch)?;
        self.flow.set(Some(flow));
        Ok(())
    }

    fn change(&self, batch: &mut Batch, flow: Flow, change: Change) {
        let family = IpFamily::of(flow.from.0);
        let tables = [Table { family: family.into(), name: TRAP }, Table::bridge(TRAP)];
        let [(from, source_port), (to, port)] = [flow.from, flow.to];
        let key = pack(&[
            Value::Transport(flow.transport),
            Value::Address(from),
            Value::Port(source_port),
            Value::Address(to),
            Value::Port(port),
        ]);
        let element = Element { key, data: None, comment: None };
        for table in &tables[..if self.bridges { 2 } else { 1 }] {
            change(batch, *table, set(family), std::slice::from_ref(&element));
        }
    }

    /// Whether the kernel has tables of the family bridge. Another probe can own one with the name of the trap.
    pub fn can_bridge() -> Result<bool, netlink::Error> {
        let mut batch = Batch::new();
        batch.add_table(Table::bridge("cnibox-checked"));
        match Nft::open()?.check(batch) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.errno, libc::EAFNOSUPPORT | libc::EOPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// `Batch::add_elements` or `Batch::delete_elements`
type Change = for<'a> fn(&'a mut Batch, Table<'_>, &str, &[Element]) -> &'a mut Batch;

fn add_ip_table(batch: &mut Batch, family: IpFamily) {
    let table = Table { family: family.into(), name: TRAP };
    add_table(batch, table, &[family]);
    let [direct, reversed] = direct_and_reversed(family);
    for chain in ["prerouting", "forward"] {
        batch.add_rule(table, NewRule::last(chain).with(direct.clone()).with(set_trace()));
    }
    let all = [by_connection(family), direct, reversed, quoted(family)];
    for chain in ["input", "postrouting"] {
        for selected in &all {
            let rule = NewRule::last(chain).with(selected.clone()).with(set_trace());
            batch.add_rule(table, rule.then(Verdict::Drop));
        }
    }
}

fn add_bridge_table(batch: &mut Batch) {
    let table = Table::bridge(TRAP);
    add_table(batch, table, &IpFamily::ALL);
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
        let rule = |chain| NewRule::last(chain).with(is_family.clone());
        let [direct, reversed] = direct_and_reversed(family);
        for chain in ["prerouting", "forward"] {
            batch.add_rule(table, rule(chain).with(direct.clone()).with(set_trace()));
        }
        for selected in [direct, reversed, quoted(family)] {
            let rule = rule("postrouting").with(selected).with(set_trace());
            batch.add_rule(table, rule.then(Verdict::Drop));
        }
    }
}

/// Adds a table with its sets and chains. The chain `forward` reports the packets that were routed.
fn add_table(batch: &mut Batch, table: Table<'_>, families: &[IpFamily]) {
    // One without an owner was stored by another program, and loaded again.
    batch.add_table(table).delete_table(table);
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
        let (address, port) = (Type::address(Family::from(*family)), Type::InetService);
        batch.add_set(
            table,
            &NewSet::set(set(*family), [Type::InetProto, address, port, address, port]),
        );
    }
}

/// Before the end of the hook: connection tracking keeps the connection at `i32::MAX`, and at `i32::MAX - 1` in the hook input of IPv6.
/// Of two hooks with the same priority the kernel calls that first which was registered last.
const LAST: i32 = i32::MAX - 2;

fn set(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "packets",
        IpFamily::V6 => "packets6",
    }
}

/// `meta nftrace set 1`. In each chain: a rule of the host can have set it to 0.
fn set_trace() -> [Expr; 2] {
    let register = Register::FIRST;
    [Expr::Immediate { value: vec![1], to: register }, Expr::SetTrace { from: register }]
}

/// The packet, and an answer to it.
fn direct_and_reversed(family: IpFamily) -> [Vec<Expr>; 2] {
    let [saddr, daddr] = Field::addresses(family);
    let (sport, dport) = (Field::Sport, Field::Dport);
    [[saddr, sport, daddr, dport], [daddr, dport, saddr, sport]]
        .map(|[from, port, to, at]| in_set(&[Field::Protocol, from, port, to, at], set(family)))
}

/// The offsets of the parts of a key in registers, with the length of each.
fn parts(family: IpFamily) -> [(Register, u8); 5] {
    let address = Field::addresses(family)[0].bytes();
    let mut at = Register::FIRST;
    [1, address, 2, address, 2].map(|bytes| {
        let part = (at, bytes);
        at = at.after(bytes);
        part
    })
}

/// `ct original protocol . ct original saddr . ct original proto-src . …`: also an error about a packet of the connection.
fn by_connection(family: IpFamily) -> Vec<Expr> {
    let originals = [
        OriginalPart::Protocol,
        OriginalPart::Source(family),
        OriginalPart::SourcePort,
        OriginalPart::Destination(family),
        OriginalPart::DestinationPort,
    ];
    let load = |(part, (to, _))| Expr::LoadOriginal { part, to };
    originals.into_iter().zip(parts(family)).map(load).chain([contains(family)]).collect()
}

/// The packet that an ICMP error quotes, after the eight bytes of its own header.
fn quoted(family: IpFamily) -> Vec<Expr> {
    let offsets = match family {
        IpFamily::V4 => [8 + 9, 8 + 12, 8 + 20, 8 + 16, 8 + 22],
        IpFamily::V6 => [8 + 6, 8 + 8, 8 + 40, 8 + 24, 8 + 42],
    };
    let load = |(offset, (to, bytes))| Expr::Load {
        field: Field::Payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset),
        bytes,
        to,
    };
    offsets.into_iter().zip(parts(family)).map(load).chain([contains(family)]).collect()
}

fn contains(family: IpFamily) -> Expr {
    let set = set(family).into();
    Expr::Lookup { set, key: Register::FIRST, lookup: Lookup::Contains }
}
