//! Sets and maps in which several attachments can need the same element: two containers on different links can have the same
//! address, and one accept or masquerade of the address serves both.
//!
//! The comment of an element names its first owner. Each further owner has an element in a second set, which is added when it
//! is needed:
//!
//! ```nft
//! set owners-of-masquerade-sources {
//!     type ipv4_addr . mark . mark
//!     elements = { 10.1.0.5 . 0x1f2e3d4c . 0x5b6a7988 comment "othernet 4b1c eth0" }
//! }
//! ```
//!
//! Its key is the key of the shared element and the hash of the owner. The removal of the first owner makes a further owner the
//! first one; the removal of the last owner deletes the element. No rule looks up packets in the second set.

use std::collections::BTreeMap;

use crate::attachments::life;
use crate::attachments::owner::{Owner, Owners, hash};
use crate::error::{Error, Result};
use crate::netlink::nft::{
    Batch, Datum, Element, Family, NewSet, Nft, Object, Table, Type, Value, pack,
};
use crate::rules::shared_rules;

/// A set or map with shared elements. A key consists of addresses of the table's family, or of an address, a protocol and a
/// port. The values of a map are names of bridges. No rule looks up packets in such a map, so each owner of an address can have
/// another value.
#[derive(Clone, Copy)]
pub struct SharedSet<'a> {
    pub table: Table<'a>,
    pub name: &'a str,
}

/// The map of `firewall` in the table of iptables. This map and its set of further owners are the only objects of cnibox in a
/// table of another program.
pub const fn accepted(family: Family) -> SharedSet<'static> {
    SharedSet { table: Table { family, name: "filter" }, name: "cnibox" }
}

/// The elements of all owners of one key, in the form of the set itself: the key has no hash of the owner.
#[derive(Clone, Default)]
struct KeyElements {
    /// The element in the set itself. `None` if another program has deleted it.
    first: Option<Element>,
    /// The elements in the set of further owners.
    further: Vec<Element>,
}

/// The elements of owners that a change removed, and those that it kept.
#[derive(Default)]
pub struct Changed {
    /// Removed elements. No other owner has the same key and data.
    pub gone: Vec<Element>,
    /// Elements that existed before the change and stay.
    pub kept: Vec<Element>,
}

/// The beginning of the names of sets of further owners.
pub const OWNERS_OF: &str = "owners-of-";
const MARKS_BYTES: usize = 8;
/// The length of a protocol and a port in a key: four bytes each.
pub const PORT_BYTES: usize = 8;

impl<'a> SharedSet<'a> {
    /// The set with this name in the table `cnibox` of a family.
    pub fn new(family: impl Into<Family>, name: &'a str) -> Self {
        Self { table: shared_rules::table(family), name }
    }

    /// The name of the set of further owners.
    pub fn owners(&self) -> String {
        format!("{OWNERS_OF}{}", self.name)
    }

    /// Sets the elements of an owner at `keys`. Removes at `keys` the other elements of the owner, and the elements of owners
    /// that have provably ended. Returns the change, or `None` if the keys had no elements other than `wanted`. Fails if
    /// another owner needs other data for the same key; the error names that owner.
    pub fn put(
        &self,
        nft: &Nft,
        batch: &mut Batch,
        owner: &str,
        keys: &[Vec<u8>],
        wanted: &[Element],
    ) -> Result<Option<Changed>> {
        let found = nft.elements_at(self.table, self.name, keys)?;
        let found: Vec<Element> = found.into_iter().flatten().collect();
        if found.iter().all(|found| wanted.contains(found)) {
            let missing = wanted.iter().filter(|element| !found.contains(element)).cloned();
            batch.add_elements(self.table, self.name, &missing.collect::<Vec<_>>());
            return Ok(None);
        }
        // This case is rare, so it may be slow: it reads the whole set.
        let is_owner_stale = |of: &str| of == owner || life::has_ended(of);
        let is_stale = |element: &Element| {
            keys.contains(&element.key)
                && !wanted.contains(element)
                && element.comment.as_deref().is_none_or(is_owner_stale)
        };
        self.change(nft, batch, &is_stale, wanted).map(Some)
    }

    /// Removes the elements of owners, see `change`.
    pub fn remove_owners(&self, nft: &Nft, batch: &mut Batch, owners: &Owners) -> Result<Changed> {
        self.change(nft, batch, &|element| shared_rules::is_of(element, owners), &[])
    }

    /// The elements of all owners.
    pub fn all_elements(&self, nft: &Nft) -> Result<Vec<Element>> {
        let elements = |of_key: KeyElements| one_per_owner(of_key.all().collect());
        Ok(self.elements_by_key(nft)?.into_values().flat_map(elements).collect())
    }

    /// Whether the set has the element `wanted` for the owner in its comment, as the first owner or as a further one.
    pub fn has(&self, nft: &Nft, wanted: &Element) -> Result<bool> {
        let key = std::slice::from_ref(&wanted.key);
        let Some(first) = nft.elements_at(self.table, self.name, key)?.pop().flatten() else {
            return Ok(false);
        };
        if first == *wanted || (first.data != wanted.data && !has_value(wanted)) {
            return Ok(first == *wanted);
        }
        let further = to_further_element(wanted);
        let found =
            nft.elements_at(self.table, &self.owners(), std::slice::from_ref(&further.key))?;
        Ok(found == [Some(further)])
    }

    /// Removes the elements for which `is_stale` is true, and adds `wanted`: elements of any owners, of which several can have the
    /// same key. An element that has another owner, too, passes to that owner.
    pub fn change(
        &self,
        nft: &Nft,
        batch: &mut Batch,
        is_stale: &dyn Fn(&Element) -> bool,
        wanted: &[Element],
    ) -> Result<Changed> {
        let mut all: BTreeMap<Vec<u8>, (KeyElements, Vec<&Element>)> = self
            .elements_by_key(nft)?
            .into_iter()
            .map(|(key, of_key)| (key, (of_key, Vec::new())))
            .collect();
        for element in wanted {
            all.entry(element.key.clone()).or_default().1.push(element);
        }
        let mut changed = Changed::default();
        let (mut first, mut further) = (Edit::default(), Edit::default());
        for (before, wanted) in all.into_values() {
            // The common case: the elements of this key do not change.
            if wanted.is_empty() && !before.iter().any(is_stale) {
                changed.kept.extend(before.all());
                continue;
            }
            let after = before.after(is_stale, &wanted, &mut changed)?;
            first.add(before.first, after.first);
            let written = |elements: Vec<Element>| {
                elements.iter().map(to_further_element).collect::<Vec<_>>()
            };
            further.add(written(before.further), written(after.further));
        }
        if let [element, ..] = further.added.as_slice()
            && nft.exist(&[Object::Set(self.table, &self.owners())])? == [false]
        {
            batch.add_set(self.table, &self.new_owners(element));
        }
        further.write(batch, self.table, &self.owners());
        first.write(batch, self.table, self.name);
        Ok(changed)
    }

    /// The set of further owners for the first element in it.
    fn new_owners(&self, element: &Element) -> NewSet {
        let address = Type::address(self.table.family);
        let bytes = if self.table.family == Family::Ip6 { 16 } else { 4 };
        let bytes_of_key = element.key.len() - MARKS_BYTES;
        let mut key = vec![address];
        if bytes_of_key == bytes + PORT_BYTES {
            key.extend([Type::InetProto, Type::InetService]);
        } else {
            key.resize(bytes_of_key / bytes, address);
        }
        key.extend([Type::Mark; 2]);
        match has_value(element) {
            true => NewSet::map(self.owners(), key, [Type::IfName]),
            false => NewSet::set(self.owners(), key),
        }
    }

    /// The elements of all owners, by the keys of the set.
    fn elements_by_key(&self, nft: &Nft) -> Result<BTreeMap<Vec<u8>, KeyElements>> {
        let mut all: BTreeMap<Vec<u8>, KeyElements> = BTreeMap::new();
        for element in nft.elements(self.table, self.name)? {
            let of_key = all.entry(element.key.clone()).or_default();
            of_key.first = Some(element);
        }
        for mut element in nft.elements(self.table, &self.owners())? {
            element.key.truncate(element.key.len().saturating_sub(MARKS_BYTES));
            let of_key = all.entry(element.key.clone()).or_default();
            let data = of_key.first.as_ref().and_then(|first| first.data.clone());
            element.data = element.data.or(data);
            of_key.further.push(element);
        }
        Ok(all)
    }
}

impl KeyElements {
    fn iter(&self) -> impl Iterator<Item = &Element> {
        self.first.iter().chain(&self.further)
    }

    fn all(self) -> impl Iterator<Item = Element> {
        self.first.into_iter().chain(self.further)
    }

    /// The elements of this key after a change: without those that are stale, and with `wanted`.
    fn after(
        &self,
        is_stale: &dyn Fn(&Element) -> bool,
        wanted: &[&Element],
        changed: &mut Changed,
    ) -> Result<Self> {
        let (mut gone, all): (Vec<Element>, Vec<Element>) = self.clone().all().partition(is_stale);
        let mut all = one_per_owner(all);
        changed.kept.extend_from_slice(&all);
        for wanted in wanted {
            if let Some(other) = all.iter().find(|other| conflict(other, wanted)) {
                let owner = other.comment.as_deref().unwrap_or_default();
                let (title, note) = (Owner::title(owner), life::owner_note(owner));
                return Err(Error::internal(format!("{title} has other rules for it{note}")));
            }
            match all.iter_mut().find(|element| element.comment == wanted.comment) {
                Some(own) => own.clone_from(wanted),
                None => all.push((*wanted).clone()),
            }
        }
        let has_first = self.first.is_some() || !wanted.is_empty();
        // Another program has deleted the first owner's element. An element of `wanted` becomes the first one, because it has
        // data, which the elements of further owners can lack.
        if self.first.is_none()
            && let Some(at) = all.iter().position(|element| wanted.contains(&element))
        {
            all[..=at].rotate_right(1);
        }
        gone.retain(|element| !all.iter().any(|other| other.data == element.data));
        gone.dedup_by(|one, other| one.data == other.data);
        changed.gone.extend(gone);
        let further = all.split_off(usize::from(has_first && !all.is_empty()));
        Ok(Self { first: all.pop(), further })
    }
}

/// Keeps the first element of each owner. An owner can have two: after another program deleted the element of the first owner,
/// a further owner became the first owner, too.
fn one_per_owner(mut elements: Vec<Element>) -> Vec<Element> {
    let mut owners = Vec::with_capacity(elements.len());
    elements.retain(|element| {
        let is_new = !owners.contains(&element.comment);
        owners.push(element.comment.clone());
        is_new
    });
    elements
}

/// The elements to delete from a set, and to add to it.
#[derive(Default)]
struct Edit {
    deleted: Vec<Element>,
    added: Vec<Element>,
}

impl Edit {
    /// Notes the elements of `before` that `after` lacks as deleted, and those of `after` that `before` lacks as added.
    fn add(
        &mut self,
        before: impl IntoIterator<Item = Element>,
        after: impl IntoIterator<Item = Element>,
    ) {
        let (before, after): (Vec<_>, Vec<_>) =
            (before.into_iter().collect(), after.into_iter().collect());
        self.added.extend(after.iter().filter(|element| !before.contains(element)).cloned());
        self.deleted.extend(before.into_iter().filter(|element| !after.contains(element)));
    }

    fn write(&self, batch: &mut Batch, table: Table<'_>, set: &str) {
        batch.delete_elements(table, set, &self.deleted);
        batch.add_elements(table, set, &self.added);
    }
}

/// Whether the element is of a map of values, in which no rule looks up packets.
fn has_value(element: &Element) -> bool {
    matches!(element.data, Some(Datum::Value(_)))
}

/// Whether two owners need different data for one key, and the map cannot have both. Only a map of values can.
fn conflict(one: &Element, other: &Element) -> bool {
    // The element of a further owner has no data if another program has deleted the element of the first owner.
    one.data.is_some() && one.data != other.data && !has_value(other)
}

/// Converts an element to its form in the set of further owners: the hash of the owner is appended to the key.
fn to_further_element(element: &Element) -> Element {
    let owner = element.comment.as_deref().unwrap_or_default();
    Element {
        key: [element.key.as_slice(), &marks(owner)].concat(),
        data: element.data.clone().filter(|_| has_value(element)),
        comment: element.comment.clone(),
    }
}

/// The 64-bit hash of a text as two values of the nf_tables type `mark`.
pub fn marks(text: &str) -> Vec<u8> {
    let [a, b, c, d, e, f, g, h] = hash(text).to_be_bytes();
    pack(&[[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes).map(Value::Mark))
}
