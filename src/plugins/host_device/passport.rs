//! What a device carries with it on its way: whose it is now, and what it was on the host.
//!
//! It is an alternative name of the link, so the device is found by it wherever it is, also when nothing but the kernel
//! is left to bring it back. A container that may change its links can change it: what it says is believed only where
//! the host has recorded the same, see `journal`.
//!
//! ```text
//! cnibox.8a5cf2b101c3d9e0.12fd4e6a7b8c9d0e.1500.52-54-00-12-34-56.ua.enp3s0
//!        network          owner            MTU  MAC               what  name
//! ```

use std::fmt::{self, Display};

use crate::error::Result;
use crate::kernel::rtnl::{Link, LinkChange, Rtnl};
use crate::names::{Attachment, IfName, Mac, NetworkName};
use crate::plugin::owner::{Owner, Owners, hash};

use super::journal::Journal;

const PREFIX: &str = "cnibox.";

/// Has to fit 127 bytes as text; it takes 91 at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passport {
    /// Hashes, since the names themselves may be too long.
    pub network: u64,
    pub owner: u64,
    pub mtu: u32,
    /// None where it is none of Ethernet; then it stays as it is.
    pub mac: Option<Mac>,
    pub up: bool,
    pub promiscuous: bool,
    pub all_multicast: bool,
    /// The alias is the name, as the reference has it. Otherwise the administrator's was there, and stays.
    pub alias_is_name: bool,
    /// The kernel knows its kind: it is no hardware. A container cannot make a link without a kind.
    pub has_kind: bool,
    /// Its name on the host.
    pub name: String,
}

impl Passport {
    /// For a link of the host. If that one was away and has not been brought home yet, the journal knows what it really
    /// is like.
    pub fn issue(network: &NetworkName, at: &Attachment, link: &Link, journal: &Journal) -> Self {
        let (network, owner) = (network_hash(network), owner_hash(network, at));
        match journal.of(link) {
            Some(old) => Self { network, owner, ..old.clone() },
            None => Self {
                network,
                owner,
                mtu: link.mtu,
                mac: link.mac,
                up: link.up,
                promiscuous: link.promiscuous,
                all_multicast: link.all_multicast,
                alias_is_name: link.alias.is_none(),
                has_kind: link.kind.is_some(),
                name: link.name.clone(),
            },
        }
    }

    /// What the reference writes into the alias of a device, the name, is all that it knows.
    pub fn of_reference(link: &Link) -> Option<Self> {
        let name = link.alias.as_deref()?;
        Some(Self {
            network: 0,
            owner: 0,
            mtu: link.mtu,
            mac: link.mac,
            up: false,
            promiscuous: false,
            all_multicast: false,
            alias_is_name: true,
            has_kind: link.kind.is_some(),
            name: IfName::new(name).ok()?.to_string(),
        })
    }

    /// Whether it is on this link. Two containers that wanted it at once may each have given it one.
    pub fn is_on(&self, link: &Link) -> bool {
        let text = self.to_string();
        link.alt_names.contains(&text) && self.may_be_of(link)
    }

    /// Whether the device may be this link, as far as a container cannot change it.
    pub fn may_be_of(&self, link: &Link) -> bool {
        self.has_kind == link.kind.is_some()
    }

    /// Whether the device is this link of the host, without any passport: it has not left, or is home again.
    pub fn is_at_home_as(&self, link: &Link) -> bool {
        self.name == link.name && self.mac == link.mac && self.may_be_of(link)
    }

    /// Whether the link says that it is the attachment's. A container may have written that.
    pub fn is_claimed(network: &NetworkName, at: &Attachment, link: &Link) -> bool {
        let owner = owner_hash(network, at);
        let mut claims = link.alt_names.iter().filter_map(|name| Self::parse(name));
        claims.any(|claim| claim.owner == owner)
    }

    /// The link in a namespace that it is on, whatever that is called.
    pub fn find(&self, rtnl: &Rtnl) -> Result<Option<Link>> {
        Ok(rtnl.links()?.into_iter().find(|link| self.is_on(link)))
    }

    /// Whether the device belongs to one of the owners.
    pub fn belongs_to(&self, owners: &Owners) -> bool {
        let is_of = |_: &Attachment, owner: &Owner| hash(owner.as_str()) == self.owner;
        self.network == network_hash(owners.network()) && owners.has(is_of)
    }

    /// What has to be done to a link for it to be again as it was. Says nothing of what is so already, since not every
    /// driver can change everything.
    pub fn restore<'a>(&'a self, link: &Link) -> LinkChange<'a> {
        LinkChange {
            name: (link.name != self.name).then_some(self.name.as_str()),
            mtu: (link.mtu != self.mtu).then_some(self.mtu),
            mac: self.mac.filter(|_| link.mac != self.mac),
            up: Some(self.up),
            promiscuous: Some(self.promiscuous),
            all_multicast: Some(self.all_multicast),
            ..LinkChange::default()
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(PREFIX)?.splitn(6, '.');
        let mut next = || parts.next();
        let (network, owner) = (next()?, next()?);
        let (mtu, mac, flags, name) = (next()?, next()?, next()?, next()?);
        Some(Self {
            network: u64::from_str_radix(network, 16).ok()?,
            owner: u64::from_str_radix(owner, 16).ok()?,
            mtu: mtu.parse().ok()?,
            mac: mac.parse().ok(),
            up: flags.contains('u'),
            promiscuous: flags.contains('p'),
            all_multicast: flags.contains('m'),
            alias_is_name: flags.contains('a'),
            has_kind: flags.contains('k'),
            name: IfName::new(name).ok()?.to_string(),
        })
    }
}

impl Display for Passport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mac = self.mac.map_or_else(String::new, |mac| mac.to_string().replace(':', "-"));
        write!(f, "{PREFIX}{:016x}.{:016x}.{}.{mac}.", self.network, self.owner, self.mtu)?;
        let flags = [
            (self.up, "u"),
            (self.promiscuous, "p"),
            (self.all_multicast, "m"),
            (self.alias_is_name, "a"),
            (self.has_kind, "k"),
        ];
        for (_, letter) in flags.iter().filter(|(is_set, _)| *is_set) {
            f.write_str(letter)?;
        }
        write!(f, ".{}", self.name)
    }
}

pub fn is_one(alt_name: &str) -> bool {
    alt_name.starts_with(PREFIX)
}

fn network_hash(network: &NetworkName) -> u64 {
    hash(&Owner::prefix(network))
}

fn owner_hash(network: &NetworkName, at: &Attachment) -> u64 {
    hash(&Owner::new(network, at).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passport(name: &str) -> Passport {
        Passport {
            network: 0x12,
            owner: u64::MAX,
            mtu: 1500,
            mac: Some(Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56])),
            up: true,
            promiscuous: false,
            all_multicast: false,
            alias_is_name: true,
            has_kind: false,
            name: name.into(),
        }
    }

    #[test]
    fn written_and_read() {
        let text = passport("enp3s0.100").to_string();
        assert_eq!(
            text,
            "cnibox.0000000000000012.ffffffffffffffff.1500.52-54-00-12-34-56.ua.enp3s0.100"
        );
        assert_eq!(Passport::parse(&text), Some(passport("enp3s0.100")));
        let bare = Passport { mac: None, up: false, alias_is_name: false, ..passport("a") };
        assert_eq!(Passport::parse(&bare.to_string()), Some(bare));
    }

    #[test]
    fn the_longest_one_fits() {
        let longest = Passport {
            mtu: u32::MAX,
            promiscuous: true,
            all_multicast: true,
            has_kind: true,
            ..passport("fifteen-bytes-x")
        };
        assert!(longest.to_string().len() <= 127);
    }

    #[test]
    fn other_names_are_none() {
        for text in [
            "enp3s0",
            "cnibox.",
            "cnibox.1.2.3",
            "cnibox.x.2.1500..u.a",
            "cnibox.1.2.1500..u.",
            "cnibox.1.2.1500..u.sixteen-bytes-xy",
            "cnibox.1.2.1500..u.a/b",
        ] {
            assert_eq!(Passport::parse(text), None, "{text}");
        }
    }
}
