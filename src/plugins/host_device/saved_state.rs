//! The saved state of a device: its owner, and the attributes that it had on the host.
//!
//! An alternative name of the link holds it, so that DEL finds the device in any namespace, also after the kernel
//! returned it. A container that can change its links can change that name: it is valid only if a record on the host
//! has the same content, see `records`.
//!
//! ```text
//! cnibox.8a5cf2b101c3d9e0.12fd4e6a7b8c9d0e.1500.52-54-00-12-34-56.ua.enp3s0
//!        network          owner            MTU  MAC               flags name
//! ```

use std::fmt::{self, Display};

use crate::attachments::owner::{Owner, Owners, hash};
use crate::error::Result;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, IfName, Mac, NetworkName};
use crate::netlink::rtnl::{Link, LinkChange, Nsid, Rtnl};
use crate::steps::link::host_link::MARK;

/// The saved state of a device. As a text it has at most 91 bytes; an alternative name has room for 127.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedState {
    /// The hash of the network, because the name can be too long for the text. `owner` is also a hash.
    pub network: u64,
    pub owner: u64,
    pub mtu: u32,
    /// `None` if the link is not an Ethernet device. Then no MAC address is restored.
    pub mac: Option<Mac>,
    pub up: bool,
    pub promiscuous: bool,
    pub all_multicast: bool,
    /// ADD sets the alias to the name, as the reference does. False: the administrator has set an alias, which stays.
    pub alias_is_name: bool,
    /// The link has a kind, so it is virtual. A container cannot create a link without a kind.
    pub has_kind: bool,
    /// The name on the host.
    pub name: String,
    /// The host's number (nsid) of the namespace that a virtual device was moved into. The record has it, the alternative name
    /// does not.
    pub netns_number: Option<Nsid>,
}

impl SavedState {
    /// The state of a link of the host. `recorded` is the recorded state of a link that the kernel returned and that is not
    /// restored yet: it is used instead of the link's present attributes.
    pub fn new(
        network: &NetworkName,
        at: &Attachment,
        link: &Link,
        recorded: Option<&Self>,
    ) -> Self {
        let (network, owner) = (network_hash(network), owner_hash(network, at));
        match recorded {
            Some(old) => Self { network, owner, netns_number: None, ..old.clone() },
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
                netns_number: None,
            },
        }
    }

    /// The state of a device that the reference moved. The reference saves the name only, in the alias.
    pub fn of_reference(link: &Link) -> Option<Self> {
        let name = IfName::new(link.alias.as_deref()?).ok()?.to_string();
        let (mtu, mac, has_kind) = (link.mtu, link.mac, link.kind.is_some());
        Some(Self { mtu, mac, has_kind, name, alias_is_name: true, ..Self::default() })
    }

    /// This state with the number of the namespace that the device is moved into, if the kernel deletes the device with that
    /// namespace. `container` is a socket in `netns`.
    pub fn moved_into(self, netns: &NetNs, (host, container): (&Rtnl, &Rtnl), link: &Link) -> Self {
        // The kernel returns physical devices, which have no kind, and CAN devices to the host.
        let is_deleted = link.kind.as_deref().is_some_and(|kind| kind != "can");
        // Without a number, nothing proves that the kernel deleted the device, and the record stays.
        let number = || host.ensure_nsid(netns, container.netns_cookie()).ok();
        let netns_number = is_deleted.then(number).flatten();
        Self { netns_number, ..self }
    }

    /// Whether the kernel provably deleted the device with its namespace: the namespace number is no longer in use.
    pub fn is_gone(&self, host: &Rtnl) -> bool {
        self.netns_number.is_some_and(|number| host.has_nsid(number) == Ok(false))
    }

    /// The content of the record: the text with the namespace number.
    pub fn record_text(&self) -> String {
        self.text(self.netns_number)
    }

    /// Whether the link has this state as an alternative name. A link can have two saved states after two concurrent ADDs.
    pub fn is_on(&self, link: &Link) -> bool {
        let text = self.to_string();
        link.alt_names.contains(&text) && self.may_be_of(link)
    }

    /// Whether the link can be the device: both have a kind or both have none. A container cannot change this.
    pub fn may_be_of(&self, link: &Link) -> bool {
        self.has_kind == link.kind.is_some()
    }

    /// Whether a link of the host is the device in its original state, by name and MAC address: it was not moved, or is
    /// restored.
    pub fn is_unmoved(&self, link: &Link) -> bool {
        self.name == link.name && self.mac == link.mac && self.may_be_of(link)
    }

    /// Whether an alternative name of the link has the attachment's owner. A container can have forged that name.
    pub fn is_marked(network: &NetworkName, at: &Attachment, link: &Link) -> bool {
        let mut marks = link.alt_names.iter().filter_map(|name| Self::parse(name));
        marks.any(|mark| mark.is_of(network, at))
    }

    /// The link in a namespace that has this state as an alternative name.
    pub fn find(&self, rtnl: &Rtnl) -> Result<Option<Link>> {
        Ok(rtnl.links()?.into_iter().find(|link| self.is_on(link)))
    }

    /// Whether the saved state names the attachment as the owner of the device.
    pub fn is_of(&self, network: &NetworkName, at: &Attachment) -> bool {
        self.owner == owner_hash(network, at)
    }

    /// Whether the saved state names one of the owners as the owner of the device.
    pub fn belongs_to(&self, owners: &Owners) -> bool {
        let is_of = |_: &Attachment, owner: &Owner| hash(owner.as_str()) == self.owner;
        self.network == network_hash(owners.network()) && owners.has(is_of)
    }

    /// The changes that restore the state of a link. A name, MTU or MAC address that is already right is left out: a driver can
    /// refuse to set it.
    pub fn changes<'a>(&'a self, link: &Link) -> LinkChange<'a> {
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
        let mut parts = text.strip_prefix(MARK)?.splitn(6, '.');
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
            netns_number: Nsid::parse(
                flags.trim_start_matches(|flag: char| flag.is_ascii_lowercase()),
            ),
        })
    }

    /// The state as a text. The namespace number, if there is one, follows the flags.
    fn text(&self, netns_number: Option<Nsid>) -> String {
        let mac = self.mac.map_or_else(String::new, |mac| mac.to_string().replace(':', "-"));
        let flags = [
            (self.up, 'u'),
            (self.promiscuous, 'p'),
            (self.all_multicast, 'm'),
            (self.alias_is_name, 'a'),
            (self.has_kind, 'k'),
        ];
        let flags: String =
            flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect();
        let number = netns_number.map_or_else(String::new, |number| number.to_string());
        let (network, owner, mtu, name) = (self.network, self.owner, self.mtu, &self.name);
        format!("{MARK}{network:016x}.{owner:016x}.{mtu}.{mac}.{flags}{number}.{name}")
    }
}

impl Display for SavedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None))
    }
}

/// Whether an alternative name is the saved state of a device.
pub fn is_name(alt_name: &str) -> bool {
    alt_name.starts_with(MARK)
}

/// Whether an alternative name of the link is the saved state of a device.
pub fn has_mark(link: &Link) -> bool {
    link.alt_names.iter().any(|name| is_name(name))
}

fn network_hash(network: &NetworkName) -> u64 {
    hash(Owner::prefix(network))
}

fn owner_hash(network: &NetworkName, at: &Attachment) -> u64 {
    hash(Owner::new(network, at).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &str) -> SavedState {
        SavedState {
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
            netns_number: None,
        }
    }

    #[test]
    fn the_text_of_a_state_parses_to_the_same_state() {
        let text = state("enp3s0.100").to_string();
        assert_eq!(
            text,
            "cnibox.0000000000000012.ffffffffffffffff.1500.52-54-00-12-34-56.ua.enp3s0.100"
        );
        assert_eq!(SavedState::parse(&text), Some(state("enp3s0.100")));
        let moved = SavedState { netns_number: Nsid::parse("7"), ..state("a.1") };
        assert_eq!(moved.to_string(), state("a.1").to_string());
        assert_eq!(SavedState::parse(&moved.record_text()), Some(moved));
        let bare = SavedState { mac: None, up: false, alias_is_name: false, ..state("a") };
        assert_eq!(SavedState::parse(&bare.to_string()), Some(bare));
    }

    #[test]
    fn the_longest_state_fits_an_alternative_name() {
        let longest = SavedState {
            mtu: u32::MAX,
            promiscuous: true,
            all_multicast: true,
            has_kind: true,
            ..state("fifteen-bytes-x")
        };
        assert!(longest.to_string().len() <= 127);
    }

    #[test]
    fn other_names_are_no_saved_states() {
        for text in [
            "enp3s0",
            "cnibox.",
            "cnibox.1.2.3",
            "cnibox.x.2.1500..u.a",
            "cnibox.1.2.1500..u.",
            "cnibox.1.2.1500..u.sixteen-bytes-xy",
            "cnibox.1.2.1500..u.a/b",
        ] {
            assert_eq!(SavedState::parse(text), None, "{text}");
        }
    }
}
