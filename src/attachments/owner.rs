//! The owner of an object in the kernel: the attachment that made it. The aliases of links and the comments of rules contain
//! the owner, so DEL and GC find the objects of an attachment without its namespace and its result.

use std::fmt::{self, Display};
use std::rc::Rc;

use crate::cni::request::Verb;
pub use crate::names::hash;
use crate::names::{Attachment, ContainerId, IfName, NetworkName};

/// A network, a container and an interface in one line: `dbnet 3f2a… eth0`.
///
/// At most 127 bytes, because a comment of nf_tables cannot be longer. A long name is replaced by `#` and the hash of the name;
/// no valid name contains `#`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(String);

const ALIAS_PREFIX: &str = "cnibox ";

/// The longest network name and container id in an owner: a longer one is replaced by its hash. A container id of 64 digits
/// with a short prefix, such as `k8s.io-`, is not replaced.
const NETWORK_BYTES_MAX: usize = 40;
const CONTAINER_ID_BYTES_MAX: usize = 70;

impl Owner {
    pub fn new(network: &NetworkName, at: &Attachment) -> Self {
        let container_id = shortened(&at.container_id, CONTAINER_ID_BYTES_MAX);
        Self(format!("{}{container_id} {}", Self::prefix(network), at.ifname))
    }

    /// The common prefix of the texts of all owners in a network.
    pub fn prefix(network: &NetworkName) -> String {
        format!("{} ", shortened(network, NETWORK_BYTES_MAX))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The words for network, container and interface in the text of an owner. `None` if the text does not have three words.
    pub fn parts(text: &str) -> Option<[&str; 3]> {
        let mut parts = text.split(' ');
        let found = [parts.next()?, parts.next()?, parts.next()?];
        parts.next().is_none().then_some(found)
    }

    /// The text of an owner for an error.
    pub fn title(text: &str) -> String {
        match Self::parts(text) {
            Some([network, container, interface]) => {
                format!("network {network}, container {container}, interface {interface}")
            }
            None => format!("{text:?}"),
        }
    }

    /// The network and the attachment in the text of an owner. `None` also if the text has only the hash of a long name.
    pub fn named(text: &str) -> Option<(NetworkName, Attachment)> {
        let [network, id, ifname] = Self::parts(text)?;
        let container_id = ContainerId::new(id).ok()?;
        let at = Attachment { container_id, ifname: IfName::new(ifname).ok()? };
        Some((NetworkName::new(network).ok()?, at))
    }

    /// The alias by which a link names its owner.
    pub fn alias(&self) -> String {
        format!("{ALIAS_PREFIX}{self}")
    }

    /// The text of the owner that the alias of a link names.
    pub fn in_alias(alias: &str) -> Option<&str> {
        let text = alias.strip_prefix(ALIAS_PREFIX)?;
        // An owner has three words. `steps::link::parent` adds more words after the owner to the alias.
        let end = text.match_indices(' ').nth(2).map_or(text.len(), |(end, _)| end);
        Some(&text[..end])
    }

    /// A hash of eight digits, for names of objects. Two owners can have the same hash, so an object that is found by it must
    /// also contain the text of its owner.
    pub fn short(&self) -> String {
        let hash = hash(&self.0);
        format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
    }
}

impl Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The command that removes an attachment of unknown life. `named` is `None` if only a hash of its names is known.
pub fn remover(named: Option<(NetworkName, Attachment)>) -> String {
    match named {
        Some((network, Attachment { container_id, ifname })) => {
            format!("cnibox gc --unknown {network}/{container_id}/{ifname}")
        }
        None => "its DEL".into(),
    }
}

/// The attachments that a call removes.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// DEL: this attachment.
    One(&'a Attachment),
    /// `cnibox gc`: these attachments, whose namespaces have ended.
    Each(&'a [Attachment]),
    /// GC: all attachments of the network except these.
    AllExcept(&'a [Attachment]),
}

impl<'a> Scope<'a> {
    /// The attachment of a DEL; `None` for the other scopes.
    pub fn one(self) -> Option<&'a Attachment> {
        match self {
            Self::One(at) => Some(at),
            Self::Each(_) | Self::AllExcept(_) => None,
        }
    }

    /// The verbs with which a delegate is called for this scope, one call each.
    pub fn verbs(self) -> Vec<Verb> {
        match self {
            Self::One(at) => vec![Verb::Del(at.clone())],
            Self::Each(all) => all.iter().cloned().map(Verb::Del).collect(),
            Self::AllExcept(keep) => vec![Verb::Gc(keep.to_vec())],
        }
    }
}

/// The owners in the scope of a DEL or GC. A clone shares the list.
#[derive(Clone)]
pub struct Owners {
    network: NetworkName,
    /// The common prefix of the texts of all owners in the network.
    prefix: String,
    /// The attachments of the scope, or the keep set of a GC, with their owners, sorted by the texts of the owners.
    listed: Rc<[(Attachment, Owner)]>,
    /// The scope is the listed owners. If false, it is all owners of the network except the listed ones.
    has_listed: bool,
    /// The scope is one attachment, as in a DEL.
    is_one: bool,
}

impl Owners {
    /// The owners in a scope of a network.
    pub fn of(network: &NetworkName, scope: Scope<'_>) -> Self {
        let (listed, has_listed) = match scope {
            Scope::One(at) => (std::slice::from_ref(at), true),
            Scope::Each(all) => (all, true),
            Scope::AllExcept(keep) => (keep, false),
        };
        let of = |at: &Attachment| (at.clone(), Owner::new(network, at));
        let mut listed: Vec<_> = listed.iter().map(of).collect();
        listed.sort_unstable_by(|(_, one), (_, other)| one.0.cmp(&other.0));
        Self {
            network: network.clone(),
            prefix: Owner::prefix(network),
            listed: listed.into(),
            has_listed,
            is_one: scope.one().is_some(),
        }
    }

    pub fn network(&self) -> &NetworkName {
        &self.network
    }

    /// The attachment and the owner of a DEL; `None` for the other scopes.
    pub fn one(&self) -> Option<(&Attachment, &Owner)> {
        let (at, owner) = self.listed.first().filter(|_| self.is_one)?;
        Some((at, owner))
    }

    /// Whether the scope is a list of attachments. False for a GC, which lists the attachments to keep.
    pub fn are_listed(&self) -> bool {
        self.has_listed
    }

    /// Whether an object is in the scope. `is_of` decides whether the object belongs to an attachment.
    pub fn has(&self, is_of: impl Fn(&Attachment, &Owner) -> bool) -> bool {
        self.listed.iter().any(|(at, owner)| is_of(at, owner)) == self.has_listed
    }

    /// Whether `text`, such as the comment of a rule, is the text of an owner in the scope.
    pub fn contain(&self, text: &str) -> bool {
        let is_listed = || self.listed.binary_search_by(|(_, owner)| (*owner.0).cmp(text)).is_ok();
        text.starts_with(&self.prefix) && is_listed() == self.has_listed
    }
}

/// The name, or `#` and its hash if it is longer.
pub fn shortened(name: &str, bytes_max: usize) -> String {
    if name.len() <= bytes_max { name.to_owned() } else { format!("#{:016x}", hash(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(network: &str, container_id: &str) -> String {
        let at = Attachment {
            container_id: ContainerId::new(container_id).unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        };
        Owner::new(&NetworkName::new(network).unwrap(), &at).to_string()
    }

    #[test]
    fn usual_names_are_not_shortened() {
        assert_eq!(owner("mynet", "abc"), "mynet abc eth0");
        let id = "k8s.io-".to_owned() + &"0123456789abcdef".repeat(4)[..63];
        assert_eq!(owner("mynet", &id), format!("mynet {id} eth0"));
    }

    #[test]
    fn an_owner_has_three_parts() {
        assert_eq!(Owner::parts(&owner("mynet", "abc")), Some(["mynet", "abc", "eth0"]));
        assert_eq!(Owner::parts("two words"), None);
        assert_eq!(Owner::parts("these are four words"), None);
    }

    #[test]
    fn long_names_are_shortened_and_differ() {
        let long = "n".repeat(200);
        let other = "n".repeat(199) + "m";
        let owners = [owner(&long, &long), owner(&long, &other), owner(&other, &long)];
        assert!(owners.iter().all(|owner| owner.len() <= 127), "{owners:?}");
        assert!(owners[0] != owners[1] && owners[0] != owners[2] && owners[1] != owners[2]);
        assert!(owners[0].starts_with(&Owner::prefix(&NetworkName::new(long).unwrap())));
    }

    #[test]
    fn the_short_form_is_the_fnv_hash_folded() {
        // FNV-1a of "a" is af63dc4c8601ec8c.
        assert_eq!(Owner("a".into()).short(), format!("{:08x}", 0xaf63_dc4c_u32 ^ 0x8601_ec8c));
    }
}
