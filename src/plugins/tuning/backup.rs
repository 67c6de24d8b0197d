//! The values from before an attachment's first ADD, in the reference's file, `DATADIR/CONTAINERID_IFNAME.json`. The keys
//! of the reference come first. `sysctl`, `owner` and `netns` are keys of cnibox, which the reference ignores.
//!
//! ADD writes the file. A failing ADD, DEL and GC remove it. GC removes only files with an `owner` of the network; a file of
//! the reference has no owner.

use super::tuned::Tuned;
use crate::attachments::owner::{Owner, Owners};
use crate::cni::json::Json;
use crate::error::{Error, Result};
use crate::kernel::boot;
use crate::kernel::netns::NetNs;
use crate::netlink::rtnl::Rtnl;
use crate::steps::state::{self, StateFile};
use crate::steps::undo::Failures;

/// The content of the file of an attachment: the values from before ADD, the owner, and the namespace.
#[derive(Debug)]
pub struct Backup {
    /// The saved values. An error if the file is damaged.
    pub before: Result<Tuned>,
    owner: Option<String>,
    netns: Option<String>,
}

impl Backup {
    /// `None` if the file is incomplete: the reference writes the file in place, before it changes a value, and was killed.
    pub fn of(record: &StateFile, content: Result<Vec<u8>>) -> Option<Self> {
        let mut backup = match content {
            Ok(content) => Self::parse(&content)?,
            Err(error) => return Some(Self::damaged(error)),
        };
        backup.before = backup.before.map_err(|error| record.damaged(error));
        Some(backup)
    }

    fn damaged(error: Error) -> Self {
        Self { before: Err(error), owner: None, netns: None }
    }

    fn parse(content: &[u8]) -> Option<Self> {
        let json = match Json::parse(content) {
            Ok(json) => json,
            Err(_) if Json::is_incomplete(content) => return None,
            Err(error) => return Some(Self::damaged(error)),
        };
        let text = |key: &str| json.text_at(key).map(str::to_owned);
        let (owner, netns) = (text("owner"), text("netns"));
        Some(Self { before: saved_values(&json), owner, netns })
    }

    /// Whether the file belongs to another attachment with the same file name, such as that of another network.
    pub fn is_of_another(&self, owner: &Owner) -> bool {
        self.owner.as_deref().is_some_and(|recorded| recorded != owner.as_str())
    }

    /// Whether the file names an owner. A file of the reference does not.
    pub fn has_owner(&self) -> bool {
        self.owner.is_some()
    }

    /// Whether the file names another namespace than `id`. False if this is unknown. Within a boot, no two namespaces have one
    /// cookie, so two cookies are two namespaces, also if the boots are unknown.
    pub fn is_of_another_netns(&self, id: Option<&str>) -> bool {
        let (Some(then), Some(now)) = (&self.netns, id) else { return false };
        match (then.split_once(' '), now.split_once(' ')) {
            (Some((boot, netns)), Some((boot_now, netns_now))) => {
                netns != netns_now || boot::are_different(boot, boot_now)
            }
            _ => then != now,
        }
    }
}

/// The saved attributes and sysctls of a file.
fn saved_values(json: &Json) -> Result<Tuned> {
    let mut tuned = Tuned::read(json)?;
    if let Some(Json::Object(entries)) = json.get("sysctl") {
        for (path, value) in entries {
            if let Json::String(value) = value {
                tuned.sysctls.push((path.clone(), value.clone()));
            }
        }
    }
    Ok(tuned)
}

/// Identifies a namespace by the boot id and the namespace cookie of the kernel. On a kernel without cookies (before 5.14), by
/// the boot id, device and inode, which a later namespace can reuse.
pub fn netns_id(netns: &NetNs, rtnl: &Rtnl) -> Option<String> {
    let boot = boot::id().ok()?;
    Some(match (rtnl.netns_cookie(), netns.identity()) {
        (Some(cookie), _) => format!("{boot} {cookie}"),
        (None, Ok((device, inode))) => format!("{boot} {device}:{inode}"),
        (None, Err(_)) => return None,
    })
}

pub fn content(before: &Tuned, owner: &Owner, netns_id: Option<String>) -> String {
    let flag = |flag: Option<bool>| flag.map(Json::Bool);
    let sysctls = before.sysctls.iter();
    let sysctls = sysctls.map(|(path, value)| (path.clone(), value.as_str().into())).collect();
    let json = Json::object([
        ("mac", before.mac.map(|mac| mac.to_string().into())),
        ("promisc", flag(before.promisc)),
        ("mtu", before.mtu.map(Json::from)),
        ("allmulti", flag(before.allmulti)),
        ("txQLen", before.tx_queue_len.map(Json::from)),
        ("sysctl", Some(Json::Object(sysctls)).filter(|_| !before.sysctls.is_empty())),
        ("owner", Some(owner.to_string().into())),
        ("netns", netns_id.map(Json::from)),
    ]);
    json.indented_by(" ")
}

/// For GC: removes the files of the owners.
pub fn collect(dir: &str, owners: &Owners) -> Result<()> {
    let mut failures = Failures::default();
    for record in state::all(dir)? {
        let Some(content) = failures.note(record.read()) else { continue };
        let owner = Backup::of(&record, content).and_then(|backup| backup.owner);
        if owner.is_some_and(|owner| owners.contain(&owner)) {
            failures.note(record.remove());
        }
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{Attachment, ContainerId, IfName, NetworkName};

    fn owner() -> (NetworkName, Owner) {
        let container_id = ContainerId::new("abc").unwrap();
        let at = Attachment { container_id, ifname: IfName::new("eth0").unwrap() };
        let network = NetworkName::new("net").unwrap();
        let owner = Owner::new(&network, &at);
        (network, owner)
    }

    const OF_REFERENCE: &str = "{\n \"mac\": \"d6:99:b1:07:02:a7\",\n \"promisc\": false,\n \"mtu\": 1500,\n \
                                \"allmulti\": false,\n \"txQLen\": 1000\n}";

    #[test]
    fn the_file_begins_with_the_keys_of_the_reference() {
        let of_reference = Backup::parse(OF_REFERENCE.as_bytes()).unwrap();
        let whole = content(&of_reference.before.unwrap(), &owner().1, Some("b 7".into()));
        let ours = ",\n \"owner\": \"net abc eth0\",\n \"netns\": \"b 7\"\n}";
        assert_eq!(whole, OF_REFERENCE.strip_suffix("\n}").unwrap().to_owned() + ours);
        let is_of_another = |text: &str| {
            let backup = Backup::parse(text.as_bytes()).unwrap();
            backup.is_of_another(&owner().1) || backup.is_of_another_netns(Some("b 7"))
        };
        assert!(!is_of_another(OF_REFERENCE));
        assert!(!is_of_another(&whole));
        assert!(is_of_another(&whole.replace("net abc", "net2 abc")));
        assert!(is_of_another(&whole.replace("abc", "abd")));
        assert!(is_of_another(&whole.replace("b 7", "b 8")));
        assert!(is_of_another(&whole.replace("b 7", "c 7")));
        // A mount covered the boot id: only another cookie is another namespace.
        assert!(is_of_another(&whole.replace("b 7", "covered-c 8")));
        assert!(!is_of_another(&whole.replace("b 7", "covered-c 7")));
    }

    #[test]
    fn a_written_file_is_read_back() {
        let sysctls = vec![("net/a".into(), "1".into()), ("net/b.c/d".into(), "x\ty".into())];
        for before in [
            Tuned { sysctls: sysctls.clone(), ..Tuned::default() },
            Tuned { mtu: Some(1400), promisc: Some(true), sysctls, ..Tuned::default() },
            Tuned::default(),
        ] {
            let read = Backup::parse(content(&before, &owner().1, None).as_bytes());
            assert_eq!(read.unwrap().before, Ok(before));
        }
    }

    #[test]
    fn an_incomplete_file_has_no_values_and_a_damaged_one_is_an_error() {
        for end in 0..OF_REFERENCE.len() {
            let content = &OF_REFERENCE[..end];
            assert!(Backup::parse(content.as_bytes()).is_none(), "{content}");
        }
        for content in ["[]", "{}}", "no JSON", "{\"mtu\": \"x\"}", "{\"mac\": \"x\"}"] {
            let backup = Backup::parse(content.as_bytes()).unwrap();
            assert!(backup.before.is_err(), "{content}");
        }
    }
}
