//! The files that the engine reads, one for each network: a line with the addresses at which it listens, and one for each attachment.
//!
//! ```text
//! 10.71.0.1,fd71::1 9.9.9.9
//! 3a08… 10.71.0.2 fd71::2 web,www
//! ```
//!
//! Each field is behind one space, so a family without an address leaves two. Servers behind the first field are asked for other names in
//! place of those of the host; in a network whose file name ends with `%int` the engine asks none.
//!
//! Source: aardvark-dns, src/config/mod.rs.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;

use super::engine::{Engine, ID_FILE};
use super::registry::{DIRECTORY, Named, names_of};
use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file::{self, Aside};

const INTERNAL: &str = "%int";

/// What `Engine::render` did.
#[derive(Default)]
pub(super) struct Rendered {
    pub(super) is_changed: bool,
    /// The addresses at which the engine did not listen before.
    pub(super) new: Vec<IpAddr>,
}

impl Engine {
    /// Makes the files of networks. Only the addresses that `can_serve` accepts are in them.
    pub(super) fn render(
        &self,
        keys: &[String],
        can_serve: &dyn Fn(IpAddr) -> bool,
    ) -> Result<Rendered> {
        let mut rendered = Rendered::default();
        for key in keys {
            let all = names_of(key)?;
            let [path, other] = self.files(key, all.iter().any(|named| named.internal));
            let mut listen: Vec<IpAddr> = Vec::new();
            for address in all.iter().flat_map(|named| &named.listen) {
                if !listen.contains(address) && can_serve(*address) {
                    listen.push(*address);
                }
            }
            let old = [read(&path)?, read(&other)?];
            let listened = |address: &IpAddr| {
                let before =
                    old.iter().flatten().filter_map(|content| content.split([' ', '\n']).next());
                before.flat_map(|first| first.split(',')).any(|text| text.parse() == Ok(*address))
            };
            rendered.new.extend(listen.iter().filter(|address| !listened(address)));
            let content = (!listen.is_empty()).then(|| content(&listen, &all));
            let new = [content, None];
            for ((path, old), new) in [&path, &other].into_iter().zip(old).zip(new) {
                if old != new {
                    put(path, new)?;
                    rendered.is_changed = true;
                }
            }
        }
        Ok(rendered)
    }

    /// Removes the files of all networks except these.
    pub(super) fn remove_others(&self, keys: &[String]) -> Result<()> {
        for name in self.names()? {
            let of_key =
                name.strip_prefix("n-").map(|key| key.strip_suffix(INTERNAL).unwrap_or(key));
            if of_key.is_some_and(|of_key| !keys.iter().any(|key| key == of_key)) {
                put(&self.path().join(name), None)?;
            }
        }
        Ok(())
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

fn read(path: &std::path::Path) -> Result<Option<String>> {
    file::found(file::read_text(path)).map_err(Error::of_file("read", path))
}

/// Writes or removes a file. The engine reads all files of its directory, so a temporary one is in another.
fn put(path: &std::path::Path, content: Option<String>) -> Result<()> {
    let Some(content) = content else {
        let removed = fault::file_operation().and_then(|()| fs::remove_file(path));
        return file::found(removed).map(drop).map_err(Error::of_file("remove", path));
    };
    let write = || {
        if let Some(directory) = path.parent() {
            file::make_directory(directory, 0o700)?;
        }
        let aside = PathBuf::from(DIRECTORY).join(path.file_name().unwrap_or_default());
        Aside::keep(&aside, content.as_bytes(), 0o600)?.rename(path)
    };
    write().map_err(Error::of_file("write", path))
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
        let own: Vec<IpAddr> =
            named.addresses.iter().copied().filter(|address| address.is_ipv4() == is_v4).collect();
        list(&own)
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
            addresses: addresses.iter().map(|text| ip(text)).collect(),
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
