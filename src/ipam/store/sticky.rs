//! The last addresses of containers, for `sticky`. The files are a cache: a container without an entry gets another address, so
//! an error of a file does not fail a call.
//!
//! Pods get new names again and again, so the number of identities has no bound, but that of the files has one, and that of the
//! lines in a file. In a full file the newest line replaces the oldest.
//!
//! ```text
//! DATADIR/.cnibox/NETWORK~sticky/3f9    one of 1024 files, named after the end of the identity
//!     9bf31c7ff06293f9 10.1.0.2 fd00::2     identity and addresses, the newest line first
//! ```

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::files;
use crate::names::hash;

const FILES: u64 = 1024;
const LINES_MAX: usize = 64;

pub(super) struct Sticky {
    pub(super) path: PathBuf,
}

impl Sticky {
    /// The saved addresses of an identity.
    pub(super) fn last_addresses(&self, identity: u64) -> Vec<IpAddr> {
        let lines = self.lines(identity);
        let own = lines.iter().find_map(|line| line.strip_prefix(&start(identity)));
        own.into_iter().flat_map(str::split_whitespace).filter_map(|ip| ip.parse().ok()).collect()
    }

    /// Saves addresses of an identity. They replace its saved addresses for which `replace` returns true.
    pub(super) fn save_last_addresses(
        &self,
        identity: u64,
        addresses: &[IpAddr],
        replace: impl Fn(IpAddr) -> bool,
    ) -> io::Result<()> {
        let kept = self.last_addresses(identity).into_iter().filter(|ip| !replace(*ip));
        let all: Vec<String> =
            addresses.iter().copied().chain(kept).map(|ip| ip.to_string()).collect();
        let start = start(identity);
        let old = self.lines(identity);
        let mut lines = vec![start.clone() + &all.join(" ")];
        lines.extend(old.iter().filter(|line| !line.starts_with(&start)).cloned());
        lines.truncate(LINES_MAX);
        if lines == old {
            return Ok(());
        }
        files::make_own_dir(&self.path)?;
        files::replace(&self.file(identity), &(lines.join("\n") + "\n"))
    }

    fn lines(&self, identity: u64) -> Vec<String> {
        let content = files::read(&self.file(identity)).unwrap_or_default();
        String::from_utf8_lossy(&content).lines().map(str::to_owned).collect()
    }

    fn file(&self, identity: u64) -> PathBuf {
        self.path.join(format!("{:03x}", identity % FILES))
    }
}

/// The identity of a container's interface. `of` must stay the same when the container is restarted.
pub fn identity(of: &str, ifname: &str) -> u64 {
    hash(format!("{of}\0{ifname}"))
}

/// The start of an identity's line.
fn start(identity: u64) -> String {
    format!("{identity:016x} ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ipam::store::tests::TempDir;

    fn sticky(dir: &TempDir) -> Sticky {
        Sticky { path: dir.path().join("own/net~sticky") }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn new_addresses_replace_those_of_their_sets() {
        let dir = TempDir::new();
        let sticky = sticky(&dir);
        assert!(sticky.last_addresses(7).is_empty());
        sticky.save_last_addresses(7, &[ip("10.1.0.2"), ip("fd00::2")], |_| true).unwrap();
        sticky.save_last_addresses(7 + FILES, &[ip("10.1.0.3")], |_| true).unwrap();
        assert_eq!(sticky.last_addresses(7), [ip("10.1.0.2"), ip("fd00::2")]);
        sticky.save_last_addresses(7, &[ip("10.1.0.9")], |ip| ip.is_ipv4()).unwrap();
        assert_eq!(sticky.last_addresses(7), [ip("10.1.0.9"), ip("fd00::2")]);
        assert_eq!(sticky.last_addresses(7 + FILES), [ip("10.1.0.3")]);
    }

    #[test]
    fn the_size_is_bounded() {
        let dir = TempDir::new();
        let sticky = sticky(&dir);
        for n in 0..100 {
            sticky.save_last_addresses(n * FILES, &[ip("10.1.0.2")], |_| true).unwrap();
        }
        let saved = (0..100).filter(|n| !sticky.last_addresses(n * FILES).is_empty());
        assert_eq!(saved.collect::<Vec<_>>(), (36..100).collect::<Vec<_>>());
        assert_eq!(fs::read_dir(&sticky.path).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let dir = TempDir::new();
        let sticky = sticky(&dir);
        let save = || sticky.save_last_addresses(0, &[ip("10.1.0.2")], |_| true).unwrap();
        save();
        fs::write(sticky.file(0), [0xa5; 5000]).unwrap();
        assert!(sticky.last_addresses(0).is_empty());
        save();
        assert_eq!(sticky.last_addresses(0), [ip("10.1.0.2")]);
        fs::remove_dir_all(&sticky.path).unwrap();
        fs::write(&sticky.path, "the format of an older release").unwrap();
        assert!(sticky.last_addresses(0).is_empty());
        save();
        fs::remove_file(sticky.file(0)).unwrap();
        fs::create_dir_all(sticky.file(0).join("in/the/way")).unwrap();
        save();
        assert_eq!(sticky.last_addresses(0), [ip("10.1.0.2")]);
    }
}
