//! nf_tables: tables, chains, rules, sets and maps as plain values, and transactions that change them. This module does not
//! depend on the purpose of a rule.
//!
//! Costs: after a transaction that deletes an object, or adds a chain that exists, the close of the socket waits 4 to 18 ms
//! for the kernel. A refused transaction takes as long, except with ERESTART. So callers read first and add only missing
//! objects, and delete in one transaction at the end. Adding an element with a jump to a verdict map takes 40 ns for each
//! element of the map, because the kernel looks for loops. Adding other elements takes constant time.

mod batch;
mod chain;
mod codec;
mod comment;
mod condition;
mod consts;
mod expr;
mod feature;
mod field;
mod probe;
mod read;
mod register;
mod rule;
mod set;
mod trace;
mod trap;
mod value;
mod wire;
mod xt;

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use nix::libc;

use crate::error::{Code, Error, Result};
use crate::names::IpFamily;
use crate::netlink::{self, Requests, Socket, found};

pub use batch::Batch;
pub use chain::{Base, Chain, ChainKind, Hook, NewChain, Policy};
pub use comment::{COMMENT_BYTES_MAX_IN_NFT, Comment};
pub use condition::{Condition, CtState};
pub use expr::{
    Expr, Lookup, Nat, Verdict, XtExtension, change_mark, dnat_to_map, in_range, in_set,
    not_in_range, not_in_set, verdict_map,
};
pub use feature::Feature;
pub use field::Field;
pub use read::{Interval, Object};
pub use register::Register;
pub use rule::{NewRule, Rule};
pub use set::{Datum, Element, NewSet};
pub use trace::{Ended, Trace, Traces};
pub use trap::{Flow, TRAP, Trap};
pub use value::{Transport, Type, Value, pack};
pub use xt::{XT_CT_STATE_DNAT, xt_dport, xt_mark};

use consts::NFTA_GEN_ID;
use probe::{NF_TABLES, is_without_nf_tables};
use wire::{attribute, attributes_of, be32_of, message_type};

/// The family of a table: it determines which packets the chains of the table get.
///
/// Source: linux/netfilter.h, `NFPROTO_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// IPv4 and IPv6. It has NAT since Linux 5.2.
    Inet = 1,
    Ip = 2,
    /// The chains get the packets of one link.
    Netdev = 5,
    Bridge = 7,
    Ip6 = 10,
}

/// The family and the name of a table. Each family has its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table<'a> {
    pub family: Family,
    pub name: &'a str,
}

/// The generation of the rules of a namespace: a number that changes with every transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

/// A netlink socket for the tables of one network namespace.
pub struct Nft {
    socket: Socket,
    /// The tables of the namespace, which `transact_on_tables` lists. `None`: not listed.
    tables: RefCell<Option<Vec<(Family, String)>>>,
    /// Whether only a part of the last batch was committed.
    is_partial: Cell<bool>,
}

impl Nft {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> Result<Self, netlink::Error> {
        let socket = Socket::open(NlFamily::Netfilter).map_err(|error| match error.errno {
            libc::EPROTONOSUPPORT => error.with_hint("the kernel lacks CONFIG_NETFILTER_NETLINK"),
            _ => error,
        })?;
        Ok(Self { socket, tables: RefCell::new(None), is_partial: Cell::new(false) })
    }

    /// Opens a socket. `None` if the kernel lacks netlink for netfilter. A kernel with it can still lack nf_tables.
    pub fn open_if_any() -> Result<Option<Self>, netlink::Error> {
        found(Self::open(), |error| error.errno == libc::EPROTONOSUPPORT)
    }

    /// Opens a socket. `None` if the kernel lacks nf_tables: there can be no rules.
    pub fn open_if_supported() -> Result<Option<Self>, netlink::Error> {
        let Some(nft) = Self::open_if_any()? else { return Ok(None) };
        Ok(nft.is_supported()?.then_some(nft))
    }

    /// Whether the kernel has nf_tables.
    pub fn is_supported(&self) -> Result<bool, netlink::Error> {
        Ok(found(self.generation(), is_without_nf_tables)?.is_some())
    }

    pub fn generation(&self) -> Result<Generation, netlink::Error> {
        let kind = message_type(libc::NFT_MSG_GETGEN);
        let doing = "cannot use nf_tables";
        let request = Requests::bare(kind, NlmF::empty(), doing, &[0; 4]);
        let read = |message: &[u8]| {
            be32_of(attribute(attributes_of(message), NFTA_GEN_ID)?)
                .map(|number| Generation(number.cast_unsigned()))
        };
        match self.socket.get(request, read) {
            // A transaction that expects generation 0 is accepted in every generation.
            Ok(generation) => Ok(generation.unwrap_or(Generation(0))),
            Err(error) if is_without_nf_tables(&error) => {
                Err(error.with_hint(format!("the kernel lacks {NF_TABLES}")))
            }
            Err(error) => Err(error),
        }
    }

    /// Makes all changes or none. Returns the error of the first refused change.
    ///
    /// A batch can be longer than the send buffer of the socket, which root of a user namespace can extend to 2 x
    /// net.core.wmem_max only. Then it is committed in parts: each change refers to earlier changes only, so the rules are
    /// valid after each part. If a part fails, the earlier parts stay, and `is_partial` is true until the next commit that
    /// succeeds.
    pub fn commit(&self, mut batch: Batch) -> Result<(), netlink::Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let bytes_max = self.socket.room_for(batch.byte_count());
        let features = std::mem::take(&mut batch.features);
        for transaction in batch.transactions(bytes_max) {
            let committed = self.socket.commit(transaction, |_| {});
            committed.map_err(|error| self.explained(error, &features))?;
            self.is_partial.set(true);
        }
        self.is_partial.set(false);
        Ok(())
    }

    /// Whether only a part of the last batch was committed: it was split, and a later part failed.
    pub fn is_partial(&self) -> bool {
        self.is_partial.get()
    }

    /// Validates the changes in the kernel without making them.
    pub fn check(&self, batch: Batch) -> Result<(), netlink::Error> {
        if batch.is_empty() {
            return Ok(());
        }
        self.socket.commit(batch.validation(), |_| {})
    }

    /// Reads and changes as one atomic step: `build` reads the present state and adds changes to the batch. If another
    /// program commits in between, `build` is called again with a new batch.
    pub fn transact(&self, mut build: impl FnMut(&Self, &mut Batch) -> Result<()>) -> Result<()> {
        for _ in 0..TRANSACT_ATTEMPTS_MAX {
            let mut batch = Batch::expecting(self.generation()?);
            build(self, &mut batch)?;
            match self.commit(batch) {
                Err(error) if error.errno == libc::ERESTART => {}
                result => return Ok(result?),
            }
        }
        Err(Error::new(
            Code::TRY_AGAIN_LATER,
            format_args!(
                "cannot change the rules of nf_tables: other programs changed them during \
                 {TRANSACT_ATTEMPTS_MAX} attempts in a row"
            ),
        ))
    }

    /// `transact` for a `build` that reads many objects, most of which are missing. The tables are listed once for each
    /// attempt, and no request is sent for a table that is not in the list.
    pub fn transact_on_tables(
        &self,
        mut build: impl FnMut(&Self, &mut Batch) -> Result<()>,
    ) -> Result<()> {
        let done = self.transact(|nft, batch| {
            // The generation was read before: if a table is added now, the transaction begins again.
            self.tables.replace(Some(nft.tables()?));
            build(nft, batch)
        });
        self.tables.replace(None);
        done
    }
}

impl Generation {
    /// The generation after one more transaction. The kernel skips 0.
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1).max(1))
    }
}

impl<'a> Table<'a> {
    pub const fn inet(name: &'a str) -> Self {
        Self { family: Family::Inet, name }
    }

    pub const fn bridge(name: &'a str) -> Self {
        Self { family: Family::Bridge, name }
    }
}

impl Family {
    /// The families of tables for one version of IP.
    pub const IP: [Self; 2] = [Self::Ip, Self::Ip6];

    fn number(self) -> u8 {
        self as u8
    }

    fn of(number: u8) -> Option<Self> {
        let all = [Self::Inet, Self::Ip, Self::Netdev, Self::Bridge, Self::Ip6];
        all.into_iter().find(|family| family.number() == number)
    }
}

impl From<IpFamily> for Family {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ip,
            IpFamily::V6 => Self::Ip6,
        }
    }
}

impl Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
            Self::Ip6 => "ip6",
        })
    }
}

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// The most attempts of `transact`. Each retry means that another writer succeeded, so N writers that make one transaction each
/// need at most N attempts. Writers without a pause can starve another writer: with 32 threads that add and delete without a
/// pause, 32 attempts were not enough in at least one of 6,400 calls.
const TRANSACT_ATTEMPTS_MAX: u32 = 1000;
