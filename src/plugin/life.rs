//! Whether the container of an attachment lives: whether its network namespace exists. Everything that removes something without
//! the word of the operator asks here, and nowhere else.
//!
//! The kernel answers by the number that the node's namespace keeps for the container's (see `netlink::rtnl::Number`). What
//! strangers can show or change (processes, mounts, addresses, times) ends nothing.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::path::Path;

use crate::error::Result;
use crate::kernel::file;
use crate::kernel::host_view::HostView;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, NetworkName};
use crate::netlink::rtnl::{Link, Rtnl};
use crate::plugin::owner::Owner;
use crate::plugin::record::{self, Made, Record, Records};

/// Whether an attachment lives.
#[derive(Clone, Debug, PartialEq)]
pub enum Life {
    Alive,
    /// It has provably ended, for this reason.
    Ended(String),
    /// It cannot be told, for this reason.
    Unknown(String),
}

/// The answer of the kernel about the recorded namespace.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// There is no record of this ADD.
    NotRecorded,
    EarlierBoot,
    /// A namespace has the number. A number that the kernel chose can be a later namespace's.
    Present {
        is_unique: bool,
    },
    /// No namespace has it.
    Absent,
    /// The kernel cannot tell.
    None(String),
}

/// The object at the path of an attachment.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// The answer is enough.
    Unasked,
    /// A namespace with the attachment's interface in it.
    Interface,
    /// The recorded namespace.
    Namespace,
    /// Nothing at all, as process 1 sees it.
    Nothing,
    /// Anything else.
    Other(String),
}

/// What the kernel has answered and what was seen, in one place: the whole decision. `link` is a link of the node whose other
/// end is the attachment's.
fn life(answer: &Answer, seen: &Seen, link: Option<&str>) -> Life {
    let unless_linked = |proof: &str| match link {
        Some(link) => {
            Life::Unknown(format!("{proof}, but the other end of link {link} is its own"))
        }
        None => Life::Ended(proof.into()),
    };
    match (answer, seen) {
        (_, Seen::Interface | Seen::Namespace) | (Answer::Present { is_unique: true }, _) => {
            Life::Alive
        }
        (Answer::EarlierBoot, _) => unless_linked("an earlier boot of this host made it"),
        (Answer::Absent, _) => unless_linked("its network namespace has ended"),
        (Answer::Present { is_unique: false }, _) => {
            Life::Unknown("the number of its network namespace can be that of a later one".into())
        }
        (Answer::None(reason), _) => Life::Unknown(reason.clone()),
        (Answer::NotRecorded, Seen::Nothing) => {
            unless_linked("it has no record, and nothing is at the path of its network namespace")
        }
        (Answer::NotRecorded, Seen::Other(reason)) => {
            Life::Unknown(format!("it has no record, and {reason}"))
        }
        (Answer::NotRecorded, Seen::Unasked) => Life::Unknown("it has no record".into()),
    }
}

/// An attachment, as a cache or a record has it.
pub struct Attached<'a> {
    pub network: &'a NetworkName,
    pub at: &'a Attachment,
    /// CNI_NETNS. Empty if it is not known.
    pub netns: &'a Path,
    pub made: &'a Made,
    /// The names of its links on the node.
    pub links: &'a [String],
    /// The record of this ADD.
    pub record: Option<&'a Record>,
    /// The identity of the namespace without a number, which a release up to 0.2.0 has recorded.
    pub old: Option<&'a Identity>,
}

/// The answer to the question whether an attachment lives.
pub struct Verdict {
    pub life: Life,
    /// The namespace at its path, if that is its own.
    pub netns: Option<NetNs>,
}

/// Asks the kernel. It reads what all answers need once.
pub struct Witness {
    home: NetNs,
    host: Rtnl,
    /// This boot, and the cookie of the namespace of this process.
    now: Identity,
    view: OnceCell<Result<HostView, String>>,
    links: OnceCell<Result<Vec<Link>>>,
}

impl Witness {
    pub fn new() -> Result<Self> {
        let (home, host) = (NetNs::own()?, Rtnl::open()?);
        let now = Identity::of(host.netns_cookie());
        Ok(Self { home, host, now, view: OnceCell::new(), links: OnceCell::new() })
    }

    /// The view of the host, or the reason why this process has none.
    pub fn view(&self) -> Result<&HostView, &str> {
        let look = || {
            HostView::look(Path::new(record::DIRECTORY))
                .map_err(|reason| format!("this process has no view of the host: {reason}"))
        };
        self.view.get_or_init(look).as_ref().map_err(String::as_str)
    }

    /// A socket in the namespace of this process.
    pub fn host(&self) -> &Rtnl {
        &self.host
    }

    /// Whether the attachment of a record lives.
    pub fn life_of_record(&self, record: &Record) -> Life {
        let none = Made::default();
        let attached = Attached {
            network: &record.network,
            at: &record.at,
            netns: &record.netns,
            made: record.made.last().unwrap_or(&none),
            links: &[],
            record: Some(record),
            old: None,
        };
        self.judge(&attached).life
    }

    /// Whether a living attachment of a record may have an address: true if it cannot be told. Other plugins can have removed the
    /// interface.
    pub fn may_have(&self, record: &Record, address: IpAddr) -> bool {
        let Ok(Some(netns)) = self.home.open_if_exists(&record.netns) else { return true };
        let addresses = netns.rtnl().and_then(|rtnl| {
            let is_it = record.identity.is(&self.now.with_cookie(rtnl.netns_cookie()));
            if is_it { rtnl.all_addresses().map(Some) } else { Ok(None) }
        });
        // The ADD has not ended.
        let is_new = record.made.is_empty();
        is_new || addresses.is_ok_and(|all| all.is_none_or(|all| all.contains(&address)))
    }

    /// Whether an attachment lives.
    pub fn judge(&self, attached: &Attached<'_>) -> Verdict {
        let answer = self.answer(attached.record);
        let (seen, netns) = match answer {
            Answer::Present { is_unique: true } => (Seen::Unasked, None),
            _ => self.look(attached),
        };
        let link = match seen {
            Seen::Unasked | Seen::Interface | Seen::Namespace => Ok(None),
            _ => self.link_of(attached),
        };
        let life = match link {
            Ok(link) => life(&answer, &seen, link),
            Err(error) => Life::Unknown(error.to_string()),
        };
        Verdict { life, netns }
    }

    fn answer(&self, record: Option<&Record>) -> Answer {
        let Some(record) = record else { return Answer::NotRecorded };
        if record.identity.is_of_another_boot(&self.now) {
            return match file::is_of_several_hosts(Path::new(record::DIRECTORY)) {
                Ok(false) => Answer::EarlierBoot,
                _ => Answer::None("another machine may have made it".into()),
            };
        }
        let observer = record.identity.with_cookie(record.observer);
        let Some(number) = record.number else {
            return Answer::None("its record has no number of its network namespace".into());
        };
        if !observer.is(&self.now) {
            return Answer::None(
                "its record was made in another network namespace of a node".into(),
            );
        }
        match self.host.has_number(number) {
            Ok(true) => Answer::Present { is_unique: number.is_unique() },
            Ok(false) => Answer::Absent,
            Err(error) => Answer::None(error.to_string()),
        }
    }

    /// A link of the node with its other end in the attachment's namespace, or in another one that the interface was moved into.
    fn link_of(&self, attached: &Attached<'_>) -> Result<Option<&str>> {
        let links = self.links.get_or_init(|| self.host.links()).as_ref().map_err(Clone::clone)?;
        let owner = Owner::new(attached.network, attached.at);
        let is_its = |link: &&Link| {
            let names_it = link.alias.as_deref().and_then(Owner::in_alias) == Some(owner.as_str());
            link.kind.as_deref() == Some("veth")
                && (names_it || attached.links.contains(&link.name))
                && self.has_living_end(link)
        };
        Ok(links.iter().find(is_its).map(|link| link.name.as_str()))
    }

    /// The kernel removes a link some time after the namespace of its other end.
    fn has_living_end(&self, link: &Link) -> bool {
        let has_ended = |number| self.host.has_number(number) == Ok(false);
        !link.peer_is_elsewhere || link.peer_netns.is_some_and(|number| !has_ended(number))
    }

    fn look(&self, attached: &Attached<'_>) -> (Seen, Option<NetNs>) {
        let path = attached.netns;
        let title = path.display();
        let other = |reason: String| (Seen::Other(reason), None);
        if path.as_os_str().is_empty() {
            return other("the path of its network namespace is not known".into());
        }
        let found = match self.view() {
            Ok(view) => view.namespace_at(path),
            Err(_) => self.home.open_if_exists(path),
        };
        match found {
            Ok(Some(netns)) => match self.look_into(&netns, attached) {
                Ok(Some(seen)) => (seen, Some(netns)),
                Ok(None) => other(format!("its interface is not in {title}")),
                Err(error) => other(error.to_string()),
            },
            Ok(None) => match self.view() {
                Ok(view) if view.may_miss(path) => {
                    other(format!("this process may not see what is at {title}"))
                }
                Ok(view) if view.is_nothing_at(path) => (Seen::Nothing, None),
                Ok(_) => other(format!("{title} is no network namespace")),
                Err(reason) => other(reason.into()),
            },
            Err(error) => {
                other(format!("cannot open network namespace {title}: {}", file::reason(&error)))
            }
        }
    }

    /// `None` if the namespace is not that of the attachment.
    fn look_into(&self, netns: &NetNs, attached: &Attached<'_>) -> Result<Option<Seen>> {
        if netns.is(&self.home)? {
            return Ok(None);
        }
        let rtnl = netns.rtnl()?;
        let identity = self.now.with_cookie(rtnl.netns_cookie());
        let recorded = [attached.record.map(|record| &record.identity), attached.old];
        if recorded.into_iter().flatten().any(|recorded| recorded.is(&identity)) {
            return Ok(Some(Seen::Namespace));
        }
        Ok(has_interface(&rtnl, attached)?.then_some(Seen::Interface))
    }
}

/// Whether the interface of an attachment is in a namespace, by whatever name: it has the MAC address, and one of the addresses.
fn has_interface(rtnl: &Rtnl, attached: &Attached<'_>) -> Result<bool> {
    let Made { macs, addresses, .. } = attached.made;
    // Each namespace has lo.
    if *attached.at.ifname == *"lo" {
        return Ok(attached.record.is_none());
    }
    let is_it = |link: &Link| match macs.is_empty() {
        true => *link.name == *attached.at.ifname,
        false => link.mac.is_some_and(|mac| macs.contains(&mac)),
    };
    if !rtnl.links()?.iter().any(is_it) {
        return Ok(false);
    }
    if addresses.is_empty() {
        return Ok(true);
    }
    let there = rtnl.all_addresses()?;
    Ok(addresses.iter().any(|address| there.contains(address)))
}

/// Whether the attachment of the owner of an object lives, with its record. Without a record that is unknown.
pub fn of_owner(owner: &str) -> (Life, Option<Record>) {
    let record = Records::of_host().of_owner(owner);
    let life = match (&record, Witness::new()) {
        (None, _) => Life::Unknown("it has no record".into()),
        (Some(record), Ok(witness)) => witness.life_of_record(record),
        (Some(_), Err(error)) => Life::Unknown(error.to_string()),
    };
    (life, record)
}

/// The record of an owner whose attachment has provably ended.
pub fn ended(owner: &str) -> Option<Record> {
    let (life, record) = of_owner(owner);
    record.filter(|_| matches!(life, Life::Ended(_)))
}

/// What the refusal of an owner's object says of the owner: nothing if it is alive.
pub fn doubt(owner: &str) -> String {
    let (life, record) = of_owner(owner);
    let named = record.map(|Record { network, at, .. }| (network, at));
    doubt_of(&life, named.or_else(|| Owner::named(owner)))
}

/// The same for an attachment. `None` if its name is not known.
pub fn doubt_of(life: &Life, named: Option<(NetworkName, Attachment)>) -> String {
    let Life::Unknown(reason) = life else { return String::new() };
    let fix = match named {
        Some((network, Attachment { container_id, ifname })) => {
            format!("cnibox gc --unknown {network}/{container_id}/{ifname} removes it")
        }
        None => "its DEL removes it".into(),
    };
    format!(", which may have ended: {reason}; {fix}")
}

/// Whether the attachment of an owner has provably ended.
pub fn has_ended(owner: &str) -> bool {
    ended(owner).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_the_table() {
        let none = || Answer::None("no".into());
        let other = || Seen::Other("no".into());
        let (unique, weak) =
            (Answer::Present { is_unique: true }, Answer::Present { is_unique: false });
        let (ended, unknown) = (Life::Ended(String::new()), Life::Unknown(String::new()));
        let kind = |life: Life| match life {
            Life::Alive => Life::Alive,
            Life::Ended(_) => Life::Ended(String::new()),
            Life::Unknown(_) => Life::Unknown(String::new()),
        };
        let answers = [
            Answer::NotRecorded,
            Answer::EarlierBoot,
            unique.clone(),
            weak.clone(),
            Answer::Absent,
            none(),
        ];
        for answer in &answers {
            for seen in [Seen::Interface, Seen::Namespace] {
                assert_eq!(life(answer, &seen, None), Life::Alive, "{answer:?} {seen:?}");
            }
        }
        for (answer, seen, expected, with_link) in [
            (unique.clone(), Seen::Unasked, &Life::Alive, &Life::Alive),
            (unique, other(), &Life::Alive, &Life::Alive),
            (weak, other(), &unknown, &unknown),
            (Answer::EarlierBoot, other(), &ended, &unknown),
            (Answer::Absent, other(), &ended, &unknown),
            (Answer::Absent, Seen::Nothing, &ended, &unknown),
            (none(), Seen::Nothing, &unknown, &unknown),
            (none(), other(), &unknown, &unknown),
            (Answer::NotRecorded, Seen::Nothing, &ended, &unknown),
            (Answer::NotRecorded, other(), &unknown, &unknown),
            (Answer::NotRecorded, Seen::Unasked, &unknown, &unknown),
        ] {
            assert_eq!(&kind(life(&answer, &seen, None)), expected, "{answer:?} {seen:?}");
            assert_eq!(&kind(life(&answer, &seen, Some("v"))), with_link, "{answer:?} {seen:?} v");
        }
    }
}
