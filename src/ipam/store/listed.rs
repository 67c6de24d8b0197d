//! The reservations of a network for `cnibox ipam`: lists them, releases listed ones, and reserves addresses for the
//! operator.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;

use super::address_files::AddressFiles;
use super::content::{self, Owner};
use super::locked::Locked;
use super::{StorePaths, failed, files};
use crate::error::{Error, Result};
use crate::names::{Attachment, ContainerId, IfName, NetworkName, hash};

/// The content of the file that `cnibox ipam reserve` writes. A container id cannot have a space, so no DEL releases this
/// owner. GC and the reclaim after a boot keep text that no plugin can have written.
const OF_OPERATOR: &str = "reserved by the operator";

/// The file of an address, with its owner.
#[derive(Clone, Debug, Serialize)]
pub struct Reservation {
    pub address: IpAddr,
    #[serde(flatten)]
    pub holder: Holder,
    /// The time of the last write. `None` if the file system has no times.
    #[serde(skip)]
    pub modified: Option<SystemTime>,
    /// The reservation was made in an earlier boot of this host.
    #[serde(skip)]
    pub is_of_earlier_boot: bool,
    /// The identity of the file: it changes when the file is written again or replaced.
    #[serde(skip)]
    identity: u64,
    /// The text in the file, which names the owner.
    #[serde(skip)]
    owner: String,
}

/// The holder that the file of an address names.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Holder {
    /// Old releases of the reference wrote the container id alone.
    Container {
        #[serde(rename = "containerID")]
        id: ContainerId,
        #[serde(skip_serializing_if = "Option::is_none")]
        ifname: Option<IfName>,
    },
    /// The operator: `cnibox ipam reserve` wrote the file.
    Operator,
    /// Text that no plugin writes.
    Other { owner: String },
}

impl Reservation {
    /// A text that differs for a later reservation of the same address.
    pub fn incarnation(&self) -> String {
        format!("{:016x}{:016x}", self.identity, hash(&self.owner))
    }
}

impl Holder {
    /// Whether the holder is this attachment. A holder without an interface is any attachment of its container.
    #[cfg(feature = "tool")]
    pub fn is(&self, at: &Attachment) -> bool {
        let Self::Container { id, ifname } = self else { return false };
        at.container_id == *id && ifname.as_ref().is_none_or(|ifname| at.ifname == *ifname)
    }

    fn parse(text: &str) -> Self {
        match content::attachment_in(text) {
            _ if text == OF_OPERATOR => Self::Operator,
            Some((id, ifname)) => Self::Container { id, ifname },
            None => Self::Other { owner: text.into() },
        }
    }
}

/// The reservations of a network in the order of their addresses, and an error for each address whose file cannot be read.
pub type Listed = (Vec<Reservation>, Vec<(IpAddr, Error)>);

/// Lists the reservations of a network. Changes nothing and takes no lock, so the list can be out of date when it is returned.
pub fn list(data_dir: &Path, network: &NetworkName) -> Result<Listed> {
    let paths = StorePaths::new(data_dir, network);
    let mut files = AddressFiles::read(&paths.dir)?;
    // Without the texts, no boot is known.
    let _ = paths.owners.recall(&mut files);
    let (mut listed, mut unreadable) = (Vec::new(), Vec::new());
    for (address, found) in files.0 {
        let path = paths.dir.join(address.to_string());
        let text = match &found.owner {
            Owner::Text(text) => text,
            Owner::Unreadable(error) => {
                unreadable.push((address, error.clone()));
                continue;
            }
            // Report the error of the read: the address cannot be reserved.
            Owner::NotRegular => {
                let error = files::read(&path).map_err(failed("read", path)).err();
                unreadable.extend(error.map(|error| (address, error)));
                continue;
            }
            Owner::Incomplete => continue,
        };
        let metadata = fs::metadata(path);
        listed.push(Reservation {
            address,
            holder: Holder::parse(text),
            modified: metadata.and_then(|file| file.modified()).ok(),
            is_of_earlier_boot: paths.owners.is_earlier(found.boot),
            identity: found.identity,
            owner: text.clone(),
        });
    }
    Ok((listed, unreadable))
}

impl Locked<'_> {
    /// Releases a reservation. Returns false if its file has changed since it was listed, or does not exist any more.
    pub fn release_listed(&mut self, listed: &Reservation) -> Result<bool> {
        self.release_if(listed.address, &listed.owner, listed.identity)
    }

    /// Reserves an address for the operator, so that no attachment gets it. Returns false if it is taken.
    pub fn reserve_for_operator(&mut self, address: IpAddr) -> Result<bool> {
        self.reserve_as(address, OF_OPERATOR)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::ipam::store::tests::{TempDir, attachment};

    use super::*;

    fn listed(dir: &TempDir) -> Vec<Reservation> {
        let name = dir.network_dir().file_name().unwrap().to_str().unwrap().to_owned();
        let (listed, unreadable) = list(dir.path(), &NetworkName::new(name).unwrap()).unwrap();
        assert_eq!(unreadable, []);
        listed
    }

    #[test]
    fn holders_are_read_from_their_files() {
        let of = |text: &str| match Holder::parse(text) {
            Holder::Container { id, ifname } => {
                format!("{id} {}", ifname.map_or_else(String::new, |name| name.to_string()))
            }
            Holder::Operator => "operator".into(),
            Holder::Other { owner } => format!("other {owner}"),
        };
        let cases = [
            ("abc\r\neth0", "abc eth0"),
            ("abc", "abc "),
            (OF_OPERATOR, "operator"),
            ("held by\nthe administrator", "other held by\nthe administrator"),
            ("abc\r\nno name", "other abc\r\nno name"),
        ];
        for (text, expected) in cases {
            assert_eq!(of(text), expected);
        }
    }

    #[test]
    fn only_the_listed_file_is_released() {
        let dir = TempDir::new();
        dir.write("10.1.0.2", "one\r\neth0");
        dir.write("10.1.0.3", "two");
        dir.write("10.1.0.4", "");
        dir.write("10.1.0.5", "held by others");
        let before = listed(&dir);
        assert_eq!(before.len(), 3, "{before:?}");
        dir.write("10.1.0.3", "two\r\neth0");
        std::fs::File::options()
            .write(true)
            .open(dir.network_dir().join("10.1.0.5"))
            .unwrap()
            .set_modified(SystemTime::now() + Duration::from_secs(9))
            .unwrap();
        let released = |reservation: &Reservation| {
            dir.store().locked(|locked| locked.release_listed(reservation)).unwrap()
        };
        assert_eq!(before.iter().map(released).collect::<Vec<_>>(), [true, false, false]);
        assert!(!released(&before[0]));
        let names: Vec<String> =
            dir.names().into_iter().filter(|name| name.starts_with("10.")).collect();
        assert_eq!(names, ["10.1.0.3", "10.1.0.4", "10.1.0.5"]);
    }

    #[test]
    fn gc_and_del_keep_an_address_of_the_operator() {
        let dir = TempDir::new();
        let address = "10.1.0.9".parse().unwrap();
        dir.store()
            .locked(|locked| {
                assert!(locked.reserve_for_operator(address)?);
                assert!(!locked.reserve_for_operator(address)?);
                assert!(!locked.reserve(address, &attachment("c"))?);
                locked.release(&attachment("reserved"))?;
                locked.keep_only(&[])
            })
            .unwrap();
        let listed = listed(&dir);
        assert_eq!(listed[0].holder, Holder::Operator);
        assert!(dir.store().locked(|locked| locked.release_listed(&listed[0])).unwrap());
    }
}
