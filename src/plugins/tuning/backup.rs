//! How all was before an attachment's first ADD, in the reference's file, `DATADIR/CONTAINERID_IFNAME.json`. Its keys come
//! first, as it writes them; `sysctl` and `owner` are ours, and it does not look at keys that it does not know.
//!
//! Written by ADD. Removed by a failing ADD, DEL and GC. GC removes only what says in `owner` that it is of the network:
//! of a file of the reference nobody can tell.

use super::tuned::Tuned;
use crate::cni::json::Json;
use crate::error::Result;
use crate::names::Attachment;
use crate::steps::owner::{Owner, Owners};
use crate::steps::record::{self, Record};
use crate::steps::undo::Failures;

pub fn record(dir: &str, at: &Attachment) -> Record {
    Record::new(dir, &format!("{}_{}.json", at.container_id, at.ifname))
}

/// What a file says. The error is of one that cannot be read.
pub fn parse(content: &[u8]) -> Result<Tuned> {
    let json = Json::parse(content)?;
    let mut tuned = Tuned::read(&json)?;
    if let Some(Json::Object(entries)) = json.get("sysctl") {
        for (path, value) in entries {
            if let Json::String(value) = value {
                tuned.sysctls.push((path.clone(), value.clone()));
            }
        }
    }
    Ok(tuned)
}

/// Whether it is another attachment's, whose name happens to be the same when joined.
pub fn is_of_another(content: &[u8], owner: &Owner) -> bool {
    owner_of(content).is_some_and(|it| it != owner.to_string())
}

fn owner_of(content: &[u8]) -> Option<String> {
    match Json::parse(content).ok()?.get("owner") {
        Some(Json::String(owner)) => Some(owner.clone()),
        _ => None,
    }
}

pub fn content(before: &Tuned, owner: &Owner) -> String {
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
    ]);
    json.indented_by(" ")
}

/// For GC: removes those that belong to the owners.
pub fn collect(dir: &str, owners: &Owners) -> Result<()> {
    let mut failures = Failures::default();
    for record in record::all(dir)? {
        let is_stale =
            |content: &[u8]| owner_of(content).is_some_and(|owner| owners.contain(&owner));
        failures.note(match record.read() {
            Ok(Some(content)) if is_stale(&content) => record.remove(),
            result => result.map(drop),
        });
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{ContainerId, IfName, NetworkName};

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
    fn the_file_begins_as_the_references() {
        let before = parse(OF_REFERENCE.as_bytes()).unwrap();
        let whole = content(&before, &owner().1);
        let ours = ",\n \"owner\": \"net abc eth0\"\n}";
        assert_eq!(whole, OF_REFERENCE.strip_suffix("\n}").unwrap().to_owned() + ours);
        assert!(!is_of_another(OF_REFERENCE.as_bytes(), &owner().1));
        assert!(!is_of_another(whole.as_bytes(), &owner().1));
        assert!(is_of_another(whole.replace("abc", "abd").as_bytes(), &owner().1));
    }

    #[test]
    fn what_is_written_is_read() {
        let sysctls = vec![("net/a".into(), "1".into()), ("net/b.c/d".into(), "x\ty".into())];
        for before in [
            Tuned { sysctls: sysctls.clone(), ..Tuned::default() },
            Tuned { mtu: Some(1400), promisc: Some(true), sysctls, ..Tuned::default() },
            Tuned::default(),
        ] {
            assert_eq!(parse(content(&before, &owner().1).as_bytes()), Ok(before));
        }
    }

    #[test]
    fn torn_files_are_errors() {
        for content in ["", "{", "{\"mtu\": \"x\"}", "{\"mac\": \"x\"}"] {
            assert!(parse(content.as_bytes()).is_err(), "{content}");
        }
    }
}
