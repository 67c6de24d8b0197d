//! Decides whether the container of an attachment still exists, that is, whether its network namespace exists. GC, `doctor
//! --fix`, `ipam release --leaks` and each other removal without a command that names the object use this decision, and no
//! other one.
//!
//! The proof is the number (nsid) that the kernel keeps in the node's namespace for the container's namespace, see
//! `netlink::rtnl::Nsid`. Processes, mounts, addresses and times are no proof of an end, because other programs can change
//! them. (Which namespaces GC removes, of those that a killed process made, is another question: see `runtime::netns_lock` and
//! `runtime::abandoned`.)

use std::cell::OnceCell;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::attachments::owner::{self, Owner};
use crate::attachments::record::{self, Made, Record, Records};
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::flock::Limit;
use crate::kernel::host_view::HostView;
use crate::kernel::identity::Identity;
use crate::kernel::netns::NetNs;
use crate::names::{Attachment, NetworkName};
use crate::netlink::rtnl::{Link, Nsid, Rtnl};
use holder::{Holder, Numbered};

mod holder;

/// The longest wait for the end of a namespace that nothing names any more. Usually the kernel takes 10 to 40 ms.
pub const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of an attachment. `docs/evidence.md` has the table of all cases.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum Life {
    Alive,
    /// The attachment has provably ended, for this reason.
    #[serde(rename = "gone")]
    Ended(String),
    /// Neither its life nor its end is proved, for this reason.
    Unknown(String),
}

impl Life {
    /// The state in words, as `--json` prints it.
    pub fn text(&self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Ended(_) => "gone",
            Self::Unknown(_) => "unknown",
        }
    }

    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// The answer of the kernel about the number of the recorded namespace.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// There is no record of this ADD.
    NotRecorded,
    /// The record is of an earlier boot of this host.
    EarlierBoot,
    /// A namespace has the number. If the kernel chose the number, this can be a later namespace.
    Present(Holder),
    /// No namespace has the number.
    Absent,
    /// The kernel cannot be asked, for this reason.
    Unavailable(String),
}

/// The object at the path of the attachment's namespace (CNI_NETNS).
#[derive(Clone, Debug, PartialEq)]
enum AtPath {
    /// The path was not inspected, because the answer of the kernel is sufficient.
    NotInspected,
    /// A namespace that contains the attachment's interface.
    Interface,
    /// The recorded namespace.
    Namespace,
    /// There is no file at the path, as process 1 of the host sees it.
    Nothing,
    /// Another object, or an object that cannot be read: the reason, as text.
    Other(String),
}

/// Decides whether an attachment lives, from the answer of the kernel and the object at the path of its namespace. `link` is a
/// link of the node whose peer is the attachment's interface, in a namespace that exists.
fn life(answer: &Answer, at_path: &AtPath, link: Option<&str>) -> Life {
    let unless_linked = |proof: &str| match link {
        Some(link) => Life::Unknown(format!(
            "{proof}, but its interface, the peer of link {link}, still exists"
        )),
        None => Life::Ended(proof.into()),
    };
    match (answer, at_path) {
        (_, AtPath::Interface | AtPath::Namespace) | (Answer::Present(Holder::Recorded), _) => {
            Life::Alive
        }
        (Answer::EarlierBoot, _) => unless_linked("an earlier boot of this host made it"),
        (Answer::Absent | Answer::Present(Holder::Later), _) => {
            unless_linked("its network namespace has ended")
        }
        (Answer::Present(Holder::Unknown), _) => {
            Life::Unknown("the number of its network namespace can be that of a later one".into())
        }
        (Answer::Unavailable(reason), _) => Life::Unknown(reason.clone()),
        (Answer::NotRecorded, AtPath::Nothing) => {
            unless_linked("it has no record, and nothing is at the path of its network namespace")
        }
        (Answer::NotRecorded, AtPath::Other(reason)) => {
            Life::Unknown(format!("it has no record, and {reason}"))
        }
        (Answer::NotRecorded, AtPath::NotInspected) => Life::Unknown("it has no record".into()),
    }
}

/// The facts about an attachment, from the cache or from a record. `Witness::judge` decides from them whether it lives.
pub struct Attached<'a> {
    pub network: &'a NetworkName,
    pub at: &'a Attachment,
    /// CNI_NETNS. Empty if unknown.
    pub netns: &'a Path,
    pub made: &'a Made,
    /// The names of the attachment's links on the node.
    pub links: &'a [String],
    /// The record that the ADD of this attachment wrote, or the error of an unreadable one.
    pub record: Result<Option<&'a Record>, &'a Error>,
    /// The identity of the namespace that a release up to 0.2.0 recorded, without a number.
    pub old_identity: Option<&'a Identity>,
}

/// The result of `Witness::judge`.
pub struct Verdict {
    pub life: Life,
    /// The namespace at the path of the attachment, if it is the attachment's namespace.
    pub netns: Option<NetNs>,
}

/// Decides whether attachments live, from what the kernel and the file system answer. One value can judge many attachments: it
/// reads the links of the node and the view of the host once.
pub struct Witness {
    /// The namespace of this process.
    home: NetNs,
    /// An rtnetlink socket in the namespace of this process.
    host: Rtnl,
    /// The identity of the namespace of this process: the present boot, and the cookie of the namespace.
    now: Identity,
    view: OnceCell<Result<HostView, String>>,
    links: OnceCell<Result<Vec<Link>>>,
    numbered: OnceCell<Numbered>,
}

impl Witness {
    pub fn new() -> Result<Self> {
        let (home, host) = (NetNs::own()?, Rtnl::open()?);
        let now = Identity::of(host.netns_cookie());
        let (view, links, numbered) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Ok(Self { home, host, now, view, links, numbered })
    }

    /// The file system as process 1 of the host sees it, or the reason why this process cannot see it.
    pub fn view(&self) -> Result<&HostView, &str> {
        let open_view = || {
            HostView::open(record::DIRECTORY.path()).map_err(|reason| {
                format!("this process cannot see what process 1 of the host sees: {reason}")
            })
        };
        self.view.get_or_init(open_view).as_ref().map_err(String::as_str)
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
            record: Ok(Some(record)),
            old_identity: None,
        };
        self.judge(&attached).life
    }

    /// `life_of_record`, for a caller that is refused because of the attachment. The kernel ends a namespace some time after its
    /// last name, process and socket are gone, so this waits for that end.
    pub fn settled_life(&self, record: &Record) -> Life {
        let life = self.life_of_record(record);
        let is_ending = life == Life::Alive && self.may_end(record);
        let has_ended = is_ending && self.wait_for_end(&[record], END_TIMEOUT);
        if has_ended { self.life_of_record(record) } else { life }
    }

    /// Whether nothing at the path of a record names its namespace any more.
    pub fn may_end(&self, record: &Record) -> bool {
        record.number.is_some()
            && match self.open(&record.netns) {
                Ok(None) => true,
                Ok(Some(netns)) => {
                    self.host.nsid_of(&netns).is_ok_and(|number| number != record.number)
                }
                Err(_) => false,
            }
    }

    /// Waits until one of the namespaces of these records has ended. False after the timeout.
    pub fn wait_for_end(&self, records: &[&Record], timeout: Duration) -> bool {
        let numbers: Vec<Nsid> = records.iter().filter_map(|record| record.number).collect();
        self.host.wait_for_end(&numbers, timeout) == Ok(true)
    }

    /// Waits until the namespaces have ended that nothing names any more, of the attachments that look alive. Up to a second.
    pub fn settle<'r>(&self, records: impl Iterator<Item = &'r Record>) {
        let limit = Limit::new(END_TIMEOUT);
        for record in records {
            let is_ending = !record.netns.exists() && self.may_end(record);
            if is_ending && !limit.left().is_zero() {
                self.wait_for_end(&[record], limit.left());
            }
        }
    }

    /// Whether the living attachment of a record may still have an address. False only if its namespace was read and lacks the
    /// address, for example because another plugin removed the interface.
    pub fn may_have(&self, record: &Record, address: IpAddr) -> bool {
        let Ok(Some(netns)) = self.home.open_if_exists(&record.netns) else { return true };
        let addresses = netns.rtnl().and_then(|rtnl| {
            let is_recorded = record.identity.is(&self.now.with_cookie(rtnl.netns_cookie()));
            if is_recorded { rtnl.all_addresses().map(Some) } else { Ok(None) }
        });
        // The ADD is in progress and configures the address later.
        let is_in_progress = record.made.is_empty();
        is_in_progress || !matches!(addresses, Ok(Some(all)) if !all.contains(&address))
    }

    /// Decides whether an attachment lives.
    pub fn judge(&self, attached: &Attached<'_>) -> Verdict {
        let answer = self.answer(attached.record);
        let (at_path, netns) = match answer {
            Answer::Present(Holder::Recorded) => (AtPath::NotInspected, None),
            _ => self.inspect_path(attached),
        };
        let is_at_path = matches!(at_path, AtPath::Interface | AtPath::Namespace);
        let answer = match (answer, attached.record) {
            (Answer::Present(Holder::Unknown), Ok(Some(record))) if !is_at_path => {
                Answer::Present(self.holder(record))
            }
            (answer, _) => answer,
        };
        let link = match answer {
            Answer::Present(Holder::Recorded) => Ok(None),
            _ if is_at_path => Ok(None),
            _ => self.link_of(attached),
        };
        let life = match link {
            Ok(link) => life(&answer, &at_path, link),
            Err(error) => Life::Unknown(error.to_string()),
        };
        Verdict { life, netns }
    }

    /// Asks the kernel whether a namespace has the number of the record.
    fn answer(&self, record: Result<Option<&Record>, &Error>) -> Answer {
        let record = match record {
            Ok(Some(record)) => record,
            Ok(None) => return Answer::NotRecorded,
            Err(error) => return Answer::Unavailable(error.to_string()),
        };
        if record.identity.is_of_another_boot(&self.now) {
            return match file::is_on_shared_file_system(record::DIRECTORY.path()) {
                Ok(false) => Answer::EarlierBoot,
                _ => Answer::Unavailable("another machine may have written its record".into()),
            };
        }
        let observer = record.identity.with_cookie(record.observer);
        let Some(number) = record.number else {
            return Answer::Unavailable("its record has no number of its network namespace".into());
        };
        if !observer.is(&self.now) {
            return Answer::Unavailable(
                "its record was made in another network namespace of a node".into(),
            );
        }
        match self.host.has_nsid(number) {
            Ok(true) if number.is_unique() => Answer::Present(Holder::Recorded),
            Ok(true) => Answer::Present(Holder::Unknown),
            Ok(false) => Answer::Absent,
            Err(error) => Answer::Unavailable(error.to_string()),
        }
    }

    /// The name of a veth of the node whose peer is the attachment's interface, in a namespace that exists. This need not be
    /// the namespace of the ADD: the interface can have been moved.
    fn link_of(&self, attached: &Attached<'_>) -> Result<Option<&str>> {
        let links = self.links.get_or_init(|| self.host.links()).as_ref().map_err(Clone::clone)?;
        let owner = Owner::new(attached.network, attached.at);
        let is_peer = |link: &&Link| {
            let has_owner = link.alias.as_deref().and_then(Owner::in_alias) == Some(owner.as_str());
            link.kind.as_deref() == Some("veth")
                && (has_owner || attached.links.contains(&link.name))
                && self.has_living_end(link)
        };
        Ok(links.iter().find(is_peer).map(|link| link.name.as_str()))
    }

    /// Whether the namespace of a veth's peer exists. The kernel removes a veth some time after the namespace of its peer has
    /// ended.
    fn has_living_end(&self, link: &Link) -> bool {
        let has_ended = |number| self.host.has_nsid(number) == Ok(false);
        !link.peer_is_elsewhere || link.peer_netns.is_some_and(|number| !has_ended(number))
    }

    /// The namespace at a path, as process 1 of the host sees it, or else as this process does.
    fn open(&self, path: &Path) -> io::Result<Option<NetNs>> {
        match self.view() {
            Ok(view) => view.namespace_at(path),
            Err(_) => self.home.open_if_exists(path),
        }
    }

    /// The object at the path of the attachment's namespace, and the namespace if it is the attachment's.
    fn inspect_path(&self, attached: &Attached<'_>) -> (AtPath, Option<NetNs>) {
        let path = attached.netns;
        let title = path.display();
        let other = |reason: String| (AtPath::Other(reason), None);
        if path.as_os_str().is_empty() {
            return other("the path of its network namespace is not known".into());
        }
        match self.open(path) {
            Ok(Some(netns)) => match self.inspect_namespace(&netns, attached) {
                Ok(Some(found)) => (found, Some(netns)),
                Ok(None) => other(format!("its interface is not in {title}")),
                Err(error) => other(error.to_string()),
            },
            Ok(None) => match self.view() {
                Ok(view) if view.may_miss(path) => {
                    other(format!("this process may not see what is at {title}"))
                }
                Ok(view) if view.is_absent(path) => (AtPath::Nothing, None),
                Ok(_) => other(format!("{title} is no network namespace")),
                Err(reason) => other(reason.into()),
            },
            Err(error) => {
                other(format!("cannot open network namespace {title}: {}", file::reason(&error)))
            }
        }
    }

    /// How a namespace is recognized as the attachment's: by its identity or by the interface. `None` if it is another
    /// namespace.
    fn inspect_namespace(&self, netns: &NetNs, attached: &Attached<'_>) -> Result<Option<AtPath>> {
        if netns.is(&self.home)? {
            return Ok(None);
        }
        let rtnl = netns.rtnl()?;
        let identity = self.now.with_cookie(rtnl.netns_cookie());
        let of_record = attached.record.ok().flatten().map(|record| &record.identity);
        let recorded = [of_record, attached.old_identity];
        if recorded.into_iter().flatten().any(|recorded| recorded.is(&identity)) {
            return Ok(Some(AtPath::Namespace));
        }
        let is_recorded = matches!(attached.record, Ok(Some(_)));
        let has_interface = has_interface(&rtnl, attached.at, attached.made, is_recorded)?;
        Ok(has_interface.then_some(AtPath::Interface))
    }
}

/// Whether the attachment of a record is provably alive, for a caller that judges no other one.
pub fn is_alive(record: &Record) -> Result<bool> {
    Ok(Witness::new()?.life_of_record(record) == Life::Alive)
}

/// Whether the interface of an attachment is in a namespace, for a DEL whose record cannot be read: by the MAC address and the
/// addresses of the result, or else by the alias that names the owner. `None` if neither tells.
pub fn is_attached_in(
    rtnl: &Rtnl,
    network: &NetworkName,
    at: &Attachment,
    made: &Made,
) -> Result<Option<bool>> {
    if !made.macs.is_empty() {
        return has_interface(rtnl, at, made, true).map(Some);
    }
    let Some(link) = rtnl.link(&at.ifname)? else { return Ok(Some(false)) };
    let owner = link.alias.as_deref().and_then(Owner::in_alias);
    Ok(owner.map(|owner| owner == Owner::new(network, at).as_str()))
}

/// Whether the interface of an attachment is in a namespace. The interface is found by its MAC address (without one, by its
/// name); if the attachment has addresses, the namespace must have one of them. The interface may have been renamed.
fn has_interface(rtnl: &Rtnl, at: &Attachment, made: &Made, is_recorded: bool) -> Result<bool> {
    let Made { macs, addresses, .. } = made;
    // Each network namespace has lo, so lo does not tell which namespace it is. Only without a record is lo accepted: then the
    // attachment counts as alive.
    if *at.ifname == *"lo" {
        return Ok(!is_recorded);
    }
    let is_interface = |link: &Link| match macs.is_empty() {
        true => *link.name == *at.ifname,
        false => link.mac.is_some_and(|mac| macs.contains(&mac)),
    };
    if !rtnl.links()?.iter().any(is_interface) {
        return Ok(false);
    }
    if addresses.is_empty() {
        return Ok(true);
    }
    let present = rtnl.all_addresses()?;
    Ok(addresses.iter().any(|address| present.contains(address)))
}

/// The life of the attachment that an object names as its owner, and its record. Without a readable record the life is unknown.
fn of_owner(owner: &str, life_of: fn(&Witness, &Record) -> Life) -> (Life, Option<Record>) {
    let record = match Records::of_host().of_owner(owner) {
        Ok(record) => record,
        Err(error) => return (Life::Unknown(error.to_string()), None),
    };
    let life = match (&record, Witness::new()) {
        (None, _) => Life::Unknown("it has no record".into()),
        (Some(record), Ok(witness)) => life_of(&witness, record),
        (Some(_), Err(error)) => Life::Unknown(error.to_string()),
    };
    (life, record)
}

/// The record of an owner's attachment, if the attachment has provably ended. Waits for that end, see `Witness::settled_life`.
pub fn ended(owner: &str) -> Option<Record> {
    let (life, record) = of_owner(owner, Witness::settled_life);
    record.filter(|_| life.is_ended())
}

/// The end of an error about an object of another owner: if the life of this owner is unknown, the reason, and the command that
/// removes the attachment. Empty if it is alive.
pub fn owner_note(owner: &str) -> String {
    let (life, record) = of_owner(owner, Witness::life_of_record);
    let named = record.map(|Record { network, at, .. }| (network, at));
    note_if_unknown(&life, named.or_else(|| Owner::named(owner)))
}

/// The end of an error about an object of an attachment with this life, see `owner_note`. `named` is `None` if only a hash of
/// the attachment's names is known.
pub fn note_if_unknown(life: &Life, named: Option<(NetworkName, Attachment)>) -> String {
    let Life::Unknown(reason) = life else { return String::new() };
    let all = "if no container of this node lives, cnibox gc --none-alive removes all such";
    format!(", which may have ended: {reason}; {} removes it; {all}", owner::remover(named))
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
        let unavailable = || Answer::Unavailable("no".into());
        let other = || AtPath::Other("no".into());
        let [recorded, later, weak] =
            [Holder::Recorded, Holder::Later, Holder::Unknown].map(Answer::Present);
        let (ended, unknown) = (Life::Ended(String::new()), Life::Unknown(String::new()));
        let kind = |life: Life| match life {
            Life::Alive => Life::Alive,
            Life::Ended(_) => Life::Ended(String::new()),
            Life::Unknown(_) => Life::Unknown(String::new()),
        };
        let answers = [
            Answer::NotRecorded,
            Answer::EarlierBoot,
            recorded.clone(),
            later.clone(),
            weak.clone(),
            Answer::Absent,
            unavailable(),
        ];
        for answer in &answers {
            for at_path in [AtPath::Interface, AtPath::Namespace] {
                assert_eq!(life(answer, &at_path, None), Life::Alive, "{answer:?} {at_path:?}");
            }
        }
        for (answer, at_path, expected, with_link) in [
            (recorded.clone(), AtPath::NotInspected, &Life::Alive, &Life::Alive),
            (recorded, other(), &Life::Alive, &Life::Alive),
            (later.clone(), other(), &ended, &unknown),
            (later, AtPath::Nothing, &ended, &unknown),
            (weak.clone(), other(), &unknown, &unknown),
            (weak, AtPath::Nothing, &unknown, &unknown),
            (Answer::EarlierBoot, other(), &ended, &unknown),
            (Answer::Absent, other(), &ended, &unknown),
            (Answer::Absent, AtPath::Nothing, &ended, &unknown),
            (unavailable(), AtPath::Nothing, &unknown, &unknown),
            (unavailable(), other(), &unknown, &unknown),
            (Answer::NotRecorded, AtPath::Nothing, &ended, &unknown),
            (Answer::NotRecorded, other(), &unknown, &unknown),
            (Answer::NotRecorded, AtPath::NotInspected, &unknown, &unknown),
        ] {
            assert_eq!(&kind(life(&answer, &at_path, None)), expected, "{answer:?} {at_path:?}");
            assert_eq!(
                &kind(life(&answer, &at_path, Some("v"))),
                with_link,
                "{answer:?} {at_path:?} v"
            );
        }
    }
}
