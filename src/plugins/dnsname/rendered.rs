//! The files that the engine reads, one for each network: a line with the addresses at which it listens, and one for each attachment.
//!
//! ```text
//! 10.71.0.1,fd71::1 9.9.9.9
//! 3a08… 10.71.0.2 fd71::2 web,www
//! ```
//!
//! Each field is behind one space, so a family without an address leaves two. Servers behind the first field are asked for other names
//! in place of those of the host; in a network whose file name ends with `%int` the engine asks none.
//!
//! Source: aardvark-dns, src/config/mod.rs.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use super::engine::{Engine, ID_FILE, put, read};
use super::named::{Named, Network};
use crate::error::{Error, Result};
use crate::kernel::file;

const INTERNAL: &str = "%int";

impl Engine {
    /// Makes the files of networks, without the addresses that cannot be served: `can_serve` gets the key of a network, an address, and
    /// whether the file had it before. Notes what is served. Returns whether a file has changed.
    pub(super) fn render(
        &self,
        networks: &mut [Network],
        can_serve: &dyn Fn(&str, IpAddr, bool) -> Result<bool>,
    ) -> Result<bool> {
        let mut is_changed = false;
        for Network { key, names, served: listen } in networks {
            let [path, other] = self.files(key, names.iter().any(|named| named.internal));
            let old = [read(&path)?, read(&other)?];
            let had = |address: IpAddr| old.iter().flatten().any(|file| listens(file, address));
            for address in names.iter().flat_map(|named| &named.listen) {
                if !listen.contains(address) && can_serve(key, *address, had(*address))? {
                    listen.push(*address);
                }
            }
            let new = [(!listen.is_empty()).then(|| content(listen, names)), None];
            for ((path, old), new) in [&path, &other].into_iter().zip(&old).zip(new) {
                if *old != new {
                    put(path, new)?;
                    is_changed = true;
                }
            }
        }
        Ok(is_changed)
    }

    /// Removes the files of all other networks.
    pub(super) fn remove_others(&self, networks: &[Network]) -> Result<()> {
        for name in self.names()? {
            if key_of(&name)
                .is_some_and(|of_key| !networks.iter().any(|network| network.key == of_key))
            {
                put(&self.path().join(name), None)?;
            }
        }
        Ok(())
    }

    /// The key of another network that is served at an address. The engine would end if two were.
    pub(super) fn other_network_at(&self, key: &str, address: IpAddr) -> Result<Option<String>> {
        for name in self.names()? {
            let Some(other) = key_of(&name).filter(|other| *other != key) else { continue };
            if read(&self.path().join(&name))?.is_some_and(|file| listens(&file, address)) {
                return Ok(Some(other.to_owned()));
            }
        }
        Ok(None)
    }

    pub(super) fn has_no_file(&self) -> Result<bool> {
        Ok(!self.names()?.iter().any(|name| name.starts_with("n-")))
    }

    /// Removes the directory, after the last name.
    pub(super) fn remove_files(&self) -> Result<()> {
        put(&self.path().join(ID_FILE), None)?;
        match file::found(fs::remove_dir(self.path())) {
            // A file of somebody else.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map(drop).map_err(Error::of_file("remove", self.path())),
        }
    }

    /// Whether the file of a network has the line of an attachment.
    pub(super) fn has(&self, key: &str, named: &Named) -> Result<bool> {
        let line = line(named);
        for path in self.files(key, named.internal) {
            if read(&path)?.is_some_and(|content| content.lines().any(|found| found == line)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The file of a network, and the one that it has not.
    fn files(&self, key: &str, is_internal: bool) -> [PathBuf; 2] {
        let names = [format!("n-{key}"), format!("n-{key}{INTERNAL}")];
        let [open, internal] = names.map(|name| self.path().join(name));
        if is_internal { [internal, open] } else { [open, internal] }
    }

    fn names(&self) -> Result<Vec<String>> {
        let cannot = Error::of_file("read directory", self.path());
        let entries =
            file::found(fs::read_dir(self.path())).map_err(&cannot)?.into_iter().flatten();
        entries
            .map(|entry| Ok(entry.map_err(&cannot)?.file_name().to_string_lossy().into_owned()))
            .collect()
    }
}

/// The key of the network of a file.
fn key_of(name: &str) -> Option<&str> {
    name.strip_prefix("n-").map(|key| key.strip_suffix(INTERNAL).unwrap_or(key))
}

/// Whether the engine listens at an address, by the content of a file.
fn listens(content: &str, address: IpAddr) -> bool {
    let first = content.split([' ', '\n']).next().unwrap_or_default();
    first.split(',').any(|text| text.parse() == Ok(address))
}

fn content(listen: &[IpAddr], all: &[Named]) -> String {
    let mut servers: Vec<IpAddr> = Vec::new();
    for server in all.iter().flat_map(|named| &named.servers) {
        if !servers.contains(server) {
            servers.push(*server);
        }
    }
    let mut content = list(listen);
    if !servers.is_empty() {
        content += &format!(" {}", list(&servers));
    }
    for named in all {
        content += &format!("\n{}", line(named));
    }
    content + "\n"
}

/// The line of an attachment.
fn line(named: &Named) -> String {
    let of = |is_v4: bool| {
        let all = named.addresses.iter().map(IpNet::addr);
        list(&all.filter(|address| address.is_ipv4() == is_v4).collect::<Vec<_>>())
    };
    format!("{} {} {} {}", named.container, of(true), of(false), named.names.join(","))
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_are_those_of_the_engine() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let named = |container: &str, addresses: &[&str], names: &[&str]| Named {
            container: container.into(),
            addresses: addresses.iter().map(|text| IpNet::from(ip(text))).collect(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            servers: vec![ip("9.9.9.9")],
            ..Named::default()
        };
        let all = [
            named("c1", &["10.71.0.2", "fd71::2"], &["web", "www"]),
            named("c2", &["fd71::3"], &["db"]),
        ];
        assert_eq!(
            content(&[ip("10.71.0.1"), ip("fd71::1")], &all),
            "10.71.0.1,fd71::1 9.9.9.9\nc1 10.71.0.2 fd71::2 web,www\nc2  fd71::3 db\n"
        );
    }
}
