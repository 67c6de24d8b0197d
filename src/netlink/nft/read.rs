//! Queries. A missing object is an empty result and no error, because other programs add and delete tables.

use nix::libc;

use super::batch::write_elements;
use super::chain::Chain;
use super::consts::{
    NFT_MSG_GETCHAIN, NFT_MSG_GETRULE, NFT_MSG_GETSET, NFT_MSG_GETSETELEM, NFT_MSG_GETTABLE,
    NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_SET,
    NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_NAME, NFTA_SET_TABLE, NFTA_TABLE_NAME,
};
use super::probe::is_without_nf_tables;
use super::rule::Rule;
use super::set::{Element, Set};
use super::wire::{attributes_of, header};
use super::{Family, Nft, Table};
use crate::error::Result;
use crate::netlink::{Attrs, Requests, text};

/// A table, a chain or a set, which can exist or be missing.
#[derive(Clone, Copy, Debug)]
pub enum Object<'a> {
    Table(Table<'a>),
    Chain(Table<'a>, &'a str),
    /// A set or a map.
    Set(Table<'a>, &'a str),
}

impl Nft {
    /// For each of `objects`, in the same order, whether it exists. One datagram has all requests.
    pub fn exist(&self, objects: &[Object<'_>]) -> Result<Vec<bool>> {
        let mut requests = Requests::new();
        for object in objects {
            object.request(&mut requests);
            requests.tolerate(libc::ENOENT);
        }
        let found = self.socket.get_each(requests, |_| Some(()))?;
        Ok(found.iter().map(Option::is_some).collect())
    }

    /// The element of each key, in the order of `keys`; `None` if the element, the set or the table is missing.
    pub fn elements_at(
        &self,
        table: Table<'_>,
        set: &str,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Element>>> {
        if self.lacks(table) {
            return Ok(vec![None; keys.len()]);
        }
        let mut found = Vec::with_capacity(keys.len());
        for part in keys.chunks(REQUESTS_AT_ONCE) {
            let mut requests = Requests::new();
            for key in part {
                let doing = format!("cannot read set {set} of table {table}");
                requests.push(NFT_MSG_GETSETELEM, 0, doing, |attrs| {
                    attrs.raw(&header(table.family));
                    write_elements(attrs, table, set, |attrs| Element::write_key(key, attrs));
                });
                requests.tolerate(libc::ENOENT);
            }
            let read = |message: &[u8]| Element::read_all(message).into_iter().next();
            found.extend(self.socket.get_each(requests, read)?);
        }
        Ok(found)
    }

    /// Whether at least one of these elements exists. An element is a table, a set and a key. One datagram has all requests.
    /// False if the kernel lacks nf_tables.
    pub fn has_any_element(&self, elements: &[(Table<'_>, &str, Vec<u8>)]) -> Result<bool> {
        let mut requests = Requests::new();
        for (table, set, key) in elements {
            // This is called for each container, so the text is constant.
            let doing = "cannot read the sets of table cnibox".into();
            requests.push(NFT_MSG_GETSETELEM, 0, doing, |attrs| {
                attrs.raw(&header(table.family));
                write_elements(attrs, *table, set, |attrs| Element::write_key(key, attrs));
            });
            requests.tolerate(libc::ENOENT);
        }
        match self.socket.get_each(requests, |_| Some(())) {
            Err(error) if is_without_nf_tables(&error) => Ok(false),
            found => Ok(found?.iter().any(Option::is_some)),
        }
    }

    /// The tables of all families in `Family`.
    pub(super) fn tables(&self) -> Result<Vec<(Family, String)>> {
        let request = || {
            let mut request = Requests::new();
            // AF_UNSPEC: all families.
            request.push(NFT_MSG_GETTABLE, 0, "cannot list the tables".into(), |attrs| {
                attrs.raw(&[0; 4]);
            });
            request
        };
        let read = |message: &[u8]| {
            let family = Family::of(*message.first()?)?;
            let (_, name) = attributes_of(message).find(|(kind, _)| *kind == NFTA_TABLE_NAME)?;
            Some((family, text(name).into_owned()))
        };
        Ok(self.socket.dump(request, read)?)
    }

    /// Whether the tables were listed, and the table is not in the list.
    fn lacks(&self, table: Table<'_>) -> bool {
        let tables = self.tables.borrow();
        let is_same =
            |(family, name): &(Family, String)| *family == table.family && name == table.name;
        tables.as_ref().is_some_and(|tables| !tables.iter().any(is_same))
    }

    pub fn chains(&self, table: Table<'_>) -> Result<Vec<Chain>> {
        let doing = format!("cannot list the chains of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_CHAIN_TABLE, table.name);
        let read = |message: &[u8]| Chain::read(table.name, message);
        self.list_of(table, NFT_MSG_GETCHAIN, doing, filter, read)
    }

    /// The chains of all tables of a family, each with the name of its table.
    pub fn all_chains(&self, family: Family) -> Result<Vec<(String, Chain)>> {
        let doing = format!("cannot list the chains of family {family}");
        self.list(NFT_MSG_GETCHAIN, family, doing, |_| {}, Chain::read_with_table)
    }

    pub fn sets(&self, table: Table<'_>) -> Result<Vec<Set>> {
        let doing = format!("cannot list the sets of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_TABLE, table.name);
        let read = |message: &[u8]| Set::read(table.name, message);
        self.list_of(table, NFT_MSG_GETSET, doing, filter, read)
    }

    /// The elements of a set or map, in the order of their keys.
    pub fn elements(&self, table: Table<'_>, set: &str) -> Result<Vec<Element>> {
        let doing = format!("cannot list set {set} of table {table}");
        let filter = |attrs: &mut Attrs| {
            attrs.string(NFTA_SET_ELEM_LIST_TABLE, table.name);
            attrs.string(NFTA_SET_ELEM_LIST_SET, set);
        };
        let read = |message: &[u8]| Some(Element::read_all(message));
        let mut elements = self.list_of(table, NFT_MSG_GETSETELEM, doing, filter, read)?.concat();
        // While the kernel resizes a hash table, some time after a transaction, it lists elements twice. Deleting an
        // element twice is an error.
        elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        elements.dedup();
        Ok(elements)
    }

    /// The rules of all chains of a table, in their order.
    pub fn rules(&self, table: Table<'_>) -> Result<Vec<Rule>> {
        let doing = format!("cannot list the rules of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_RULE_TABLE, table.name);
        let read = |message: &[u8]| Rule::read(table.family, table.name, message);
        self.list_of(table, NFT_MSG_GETRULE, doing, filter, read)
    }

    /// The rules of a chain, in their order.
    pub fn rules_of(&self, table: Table<'_>, chain: &str) -> Result<Vec<Rule>> {
        let doing = format!("cannot list chain {chain} of table {table}");
        let filter = |attrs: &mut Attrs| {
            attrs.string(NFTA_RULE_TABLE, table.name);
            attrs.string(NFTA_RULE_CHAIN, chain);
        };
        let read = |message: &[u8]| {
            Rule::read(table.family, table.name, message).filter(|rule| rule.chain == chain)
        };
        self.list_of(table, NFT_MSG_GETRULE, doing, filter, read)
    }

    /// Lists objects of one table. Sends no request if the kernel's list of tables was read before and lacks the table.
    fn list_of<T>(
        &self,
        table: Table<'_>,
        kind: u16,
        doing: String,
        filter: impl Fn(&mut Attrs),
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        if self.lacks(table) {
            return Ok(Vec::new());
        }
        self.list(kind, table.family, doing, filter, read)
    }

    /// Lists objects. `read` filters again, because old kernels ignore some filters.
    pub(super) fn list<T>(
        &self,
        kind: u16,
        family: Family,
        doing: String,
        filter: impl Fn(&mut Attrs),
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let request = || {
            let mut request = Requests::new();
            request.push(kind, 0, doing.clone(), |attrs| {
                attrs.raw(&header(family));
                filter(attrs);
            });
            request
        };
        match self.socket.dump(request, read) {
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            result => Ok(result?),
        }
    }
}

impl Object<'_> {
    fn request(self, requests: &mut Requests) {
        let (kind, table, names): (_, _, &[(u16, &str)]) = match self {
            Self::Table(table) => (NFT_MSG_GETTABLE, table, &[(NFTA_TABLE_NAME, table.name)]),
            Self::Chain(table, chain) => (
                NFT_MSG_GETCHAIN,
                table,
                &[(NFTA_CHAIN_TABLE, table.name), (NFTA_CHAIN_NAME, chain)],
            ),
            Self::Set(table, set) => {
                (NFT_MSG_GETSET, table, &[(NFTA_SET_TABLE, table.name), (NFTA_SET_NAME, set)])
            }
        };
        let doing = format!("cannot read table {table}");
        requests.push(kind, 0, doing, |attrs| {
            attrs.raw(&header(table.family));
            for (kind, name) in names {
                attrs.string(*kind, name);
            }
        });
    }
}

/// The number of requests in one datagram: the receive buffer of a socket has room for about 256 answers.
const REQUESTS_AT_ONCE: usize = 128;
