//! Queries. A missing object is an empty result and no error, because other programs add and delete tables.

use neli::consts::nl::NlmF;
use nix::libc::{self, c_int};

use super::batch::write_elements;
use super::chain::Chain;
use super::consts::{
    NFT_TABLE_F_DORMANT, NFTA_CHAIN_NAME, NFTA_RULE_CHAIN, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY,
    NFTA_SET_ELEM_LIST_SET, NFTA_SET_NAME, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME,
};
use super::probe::is_without_nf_tables;
use super::rule::Rule;
use super::set::{Element, Set};
use super::wire::{
    self, attribute, attributes_about, attributes_of, be32_of, data_of, header, message_type,
    set_elements,
};
use super::{Family, Nft, Table};
use crate::error::Result;
use crate::netlink::{Attrs, Error, REQUESTS_AT_ONCE, Requests, found, text};

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
        let mut requests = Requests::default();
        for object in objects {
            object.request(&mut requests);
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
            let mut requests = Requests::default();
            for key in part {
                let doing = format!("cannot read set {set} of table {table}");
                push_element(&mut requests, table, set, key, doing);
            }
            let read =
                |message: &[u8]| Element::read_all(attributes_of(message)).into_iter().next();
            found.extend(self.socket.get_each(requests, read)?);
        }
        Ok(found)
    }

    /// Whether at least one of these elements exists. An element is a table, a set and a key. One datagram has all requests.
    /// False if the kernel lacks nf_tables.
    pub fn has_any_element(&self, elements: &[(Table<'_>, &str, Vec<u8>)]) -> Result<bool> {
        let mut requests = Requests::default();
        for (table, set, key) in elements {
            // This is called for each container, so the text is constant.
            let doing = "cannot read the sets of table cnibox".into();
            push_element(&mut requests, *table, set, key, doing);
        }
        let elements = found(self.socket.get_each(requests, |_| Some(())), is_without_nf_tables)?;
        Ok(elements.is_some_and(|elements| elements.iter().any(Option::is_some)))
    }

    /// The tables of all families in `Family`.
    pub fn tables(&self) -> Result<Vec<(Family, String)>> {
        let doing = "cannot list the tables";
        let kind = message_type(libc::NFT_MSG_GETTABLE);
        // AF_UNSPEC: all families.
        let request = Requests::bare(kind, NlmF::empty(), doing, &[0; 4]);
        let read = |message: &[u8]| {
            let family = Family::of(*message.first()?)?;
            let name = attribute(attributes_of(message), NFTA_TABLE_NAME)?;
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
        self.list(table, libc::NFT_MSG_GETCHAIN, doing, |_| {}, Chain::read)
    }

    /// The chains of all tables of a family, each with the name of its table.
    pub fn all_chains(&self, family: Family) -> Result<Vec<(String, Chain)>> {
        let doing = format!("cannot list the chains of family {family}");
        let kind = message_type(libc::NFT_MSG_GETCHAIN);
        let request = Requests::bare(kind, NlmF::empty(), doing, &header(family));
        let read = |message: &[u8]| {
            let list = attributes_of(message);
            let table = text(attribute(list, NFTA_TABLE_NAME)?).into_owned();
            Some((table, Chain::read(list)?))
        };
        Ok(found(self.socket.dump(request, read), Error::is_not_found)?.unwrap_or_default())
    }

    /// Whether the chains of a table get no packets (`flags dormant`).
    pub fn is_dormant(&self, table: Table<'_>) -> Result<bool> {
        let doing = format!("cannot read table {table}");
        let read = |list: &[u8]| attribute(list, NFTA_TABLE_FLAGS).and_then(be32_of);
        let flags = self.list(table, libc::NFT_MSG_GETTABLE, doing, |_| {}, read)?;
        Ok(flags.first().is_some_and(|flags| flags & NFT_TABLE_F_DORMANT != 0))
    }

    pub fn sets(&self, table: Table<'_>) -> Result<Vec<Set>> {
        let doing = format!("cannot list the sets of table {table}");
        self.list(table, libc::NFT_MSG_GETSET, doing, |_| {}, Set::read)
    }

    /// The elements of a set or map, in the order of their keys.
    pub fn elements(&self, table: Table<'_>, set: &str) -> Result<Vec<Element>> {
        let doing = format!("cannot list set {set} of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_ELEM_LIST_SET, set);
        let read = |list: &[u8]| Some(Element::read_all(list));
        let mut elements =
            self.list(table, libc::NFT_MSG_GETSETELEM, doing, filter, read)?.concat();
        // While the kernel resizes a hash table, some time after a transaction, it lists elements twice. Deleting an
        // element twice is an error.
        elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        elements.dedup();
        Ok(elements)
    }

    /// The intervals of a set whose keys have one part: the first key, and the key after the last one, `None` if that is the last
    /// of all.
    pub fn intervals(&self, table: Table<'_>, set: &str) -> Result<Vec<Interval>> {
        let doing = format!("cannot list set {set} of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_SET_ELEM_LIST_SET, set);
        let read = |list: &[u8]| Some(set_elements(list).filter_map(end_of_interval).collect());
        let ends: Vec<Vec<(Vec<u8>, bool)>> =
            self.list(table, libc::NFT_MSG_GETSETELEM, doing, filter, read)?;
        let mut ends = ends.concat();
        // Two intervals can meet at a key.
        ends.sort_unstable_by(|(a, a_ends), (b, b_ends)| (a, !a_ends).cmp(&(b, !b_ends)));
        let begins = ends.iter().enumerate().filter(|(_, (_, ends))| !ends);
        let interval = |(at, (first, _)): (usize, &(Vec<u8>, bool))| {
            (first.clone(), ends.get(at + 1).map(|(end, _)| end.clone()))
        };
        Ok(begins.map(interval).collect())
    }

    /// The rules of all chains of a table, in their order.
    pub fn rules(&self, table: Table<'_>) -> Result<Vec<Rule>> {
        let doing = format!("cannot list the rules of table {table}");
        let read = |list: &[u8]| Rule::read(table.family, list);
        self.list(table, libc::NFT_MSG_GETRULE, doing, |_| {}, read)
    }

    /// The rules of a chain, in their order.
    pub fn rules_of(&self, table: Table<'_>, chain: &str) -> Result<Vec<Rule>> {
        let doing = format!("cannot list chain {chain} of table {table}");
        let filter = |attrs: &mut Attrs| attrs.string(NFTA_RULE_CHAIN, chain);
        let read = |list: &[u8]| Rule::read(table.family, list).filter(|rule| rule.chain == chain);
        self.list(table, libc::NFT_MSG_GETRULE, doing, filter, read)
    }

    /// Lists objects of a table. `read` gets the attributes of each; it filters again, because old kernels ignore some filters.
    /// Sends no request if the kernel's list of tables was read before and lacks the table.
    pub(super) fn list<T>(
        &self,
        table: Table<'_>,
        message: c_int,
        doing: String,
        filter: impl FnOnce(&mut Attrs),
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        if self.lacks(table) {
            return Ok(Vec::new());
        }
        let mut request = Requests::default();
        wire::push(&mut request, message, NlmF::empty(), table, doing, filter);
        let read = |message: &[u8]| read(attributes_about(table.name, message)?);
        Ok(found(self.socket.dump(request, read), Error::is_not_found)?.unwrap_or_default())
    }
}

/// The first key of an interval, and the key after the last one.
pub type Interval = (Vec<u8>, Option<Vec<u8>>);

/// The key of an element, and whether it ends an interval.
fn end_of_interval(element: &[u8]) -> Option<(Vec<u8>, bool)> {
    let key = data_of(attribute(element, NFTA_SET_ELEM_KEY)?)?;
    let flags = attribute(element, NFTA_SET_ELEM_FLAGS).and_then(be32_of).unwrap_or_default();
    Some((key, flags & libc::NFT_SET_ELEM_INTERVAL_END != 0))
}

/// Appends a request for the element with a key. A missing element is no error.
fn push_element(requests: &mut Requests, table: Table<'_>, set: &str, key: &[u8], doing: String) {
    wire::push(requests, libc::NFT_MSG_GETSETELEM, NlmF::empty(), table, doing, |attrs| {
        write_elements(attrs, set, |attrs| Element::write_key(key, attrs));
    });
    requests.tolerate(libc::ENOENT);
}

impl Object<'_> {
    fn request(self, requests: &mut Requests) {
        let (message, table, name) = match self {
            Self::Table(table) => (libc::NFT_MSG_GETTABLE, table, None),
            Self::Chain(table, chain) => {
                (libc::NFT_MSG_GETCHAIN, table, Some((NFTA_CHAIN_NAME, chain)))
            }
            Self::Set(table, set) => (libc::NFT_MSG_GETSET, table, Some((NFTA_SET_NAME, set))),
        };
        let doing = format!("cannot read table {table}");
        wire::push(requests, message, NlmF::empty(), table, doing, |attrs| {
            if let Some((kind, name)) = name {
                attrs.string(kind, name);
            }
        });
        requests.tolerate(libc::ENOENT);
    }
}
