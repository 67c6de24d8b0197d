//! The last addresses of containers, for `sticky`. The file is a cache: a container without an entry gets another address, so
//! an error of the file does not fail a call.
//!
//! The file is a hash table of buckets. In a full bucket the newest entry replaces the oldest. So the file has at most
//! 2 MiB (86,016 addresses), and buckets without entries use no space on the disk.
//!
//! ```text
//! bucket, 512 bytes:   0  digest of the rest, with the version and the bucket's number as the seed
//!                      8  21 entries of 24 bytes, the newest first: digest of the identity, address
//! ```

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::digest::digest;
use super::{address_of, files, number_of};

const BUCKETS: u64 = 4096;
const BUCKET_BYTES: usize = 512;
const ENTRY_BYTES: usize = 24;
const ENTRIES_MAX: usize = 21;
/// The version of the format, as a part of each seed. Any change of the format raises it.
const VERSION: u64 = 1 << 32;

pub(super) struct Sticky {
    pub(super) path: PathBuf,
}

/// An identity and one of its addresses.
type StickyEntry = (u64, u128);

impl Sticky {
    /// The saved addresses of an identity, the newest first.
    pub(super) fn last_addresses(&self, identity: u64) -> Vec<IpAddr> {
        let entries = self.read(identity % BUCKETS).unwrap_or_default();
        let owned = entries.into_iter().filter(|(owner, _)| *owner == identity);
        owned.map(|(_, address)| address_of(address)).collect()
    }

    /// Saves addresses of an identity. They replace its saved addresses for which `replace` returns true.
    pub(super) fn save_last_addresses(
        &self,
        identity: u64,
        addresses: &[IpAddr],
        replace: impl Fn(IpAddr) -> bool,
    ) -> io::Result<()> {
        let number = identity % BUCKETS;
        let old = self.read(number).unwrap_or_default();
        let stays =
            |(owner, address): &StickyEntry| *owner != identity || !replace(address_of(*address));
        let new = addresses.iter().map(|ip| (identity, number_of(*ip)));
        let entries: Vec<StickyEntry> =
            new.chain(old.iter().copied().filter(stays)).take(ENTRIES_MAX).collect();
        if entries == old {
            return Ok(());
        }
        let bucket = encode(number, &entries);
        let file = match files::open_plain(&self.path) {
            Ok((file, _)) => file,
            Err(_) => files::replace(&self.path, &[])?,
        };
        files::write_at(&file, &bucket, number * BUCKET_BYTES as u64)
    }

    fn read(&self, number: u64) -> io::Result<Vec<StickyEntry>> {
        let (file, _) = files::open_plain(&self.path)?;
        let mut bucket = [0; BUCKET_BYTES];
        files::read_at(&file, &mut bucket, number * BUCKET_BYTES as u64)?;
        Ok(decode(number, &bucket))
    }
}

/// The identity of a container's interface. `of` must stay the same when the container is restarted.
pub fn identity(of: &str, ifname: &str) -> u64 {
    digest(VERSION, format!("{of}\0{ifname}").as_bytes())
}

fn encode(number: u64, entries: &[StickyEntry]) -> [u8; BUCKET_BYTES] {
    let mut bucket = [0; BUCKET_BYTES];
    for ((identity, address), bytes) in
        entries.iter().zip(bucket[8..].chunks_exact_mut(ENTRY_BYTES))
    {
        bytes[..8].copy_from_slice(&identity.to_le_bytes());
        bytes[8..].copy_from_slice(&address.to_le_bytes());
    }
    let check = digest(VERSION + number, &bucket[8..]);
    bucket[..8].copy_from_slice(&check.to_le_bytes());
    bucket
}

/// The entries of a bucket; none if the bucket is damaged or was never written.
fn decode(number: u64, bucket: &[u8; BUCKET_BYTES]) -> Vec<StickyEntry> {
    let (check, entries) = bucket.split_at(8);
    if check != digest(VERSION + number, entries).to_le_bytes() {
        return Vec::new();
    }
    let entry = |bytes: &[u8; ENTRY_BYTES]| {
        let (identity, address) = bytes.split_at(8);
        Some((
            u64::from_le_bytes(identity.try_into().ok()?),
            u128::from_le_bytes(address.try_into().ok()?),
        ))
    };
    let entries = entries.as_chunks::<ENTRY_BYTES>().0.iter().filter_map(entry);
    // An unused entry has address 0.
    entries.filter(|(_, address)| *address != 0).collect()
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
        sticky.save_last_addresses(7 + BUCKETS, &[ip("10.1.0.3")], |_| true).unwrap();
        assert_eq!(sticky.last_addresses(7), [ip("10.1.0.2"), ip("fd00::2")]);
        sticky.save_last_addresses(7, &[ip("10.1.0.9")], |ip| ip.is_ipv4()).unwrap();
        assert_eq!(sticky.last_addresses(7), [ip("10.1.0.9"), ip("fd00::2")]);
        assert_eq!(sticky.last_addresses(7 + BUCKETS), [ip("10.1.0.3")]);
    }

    #[test]
    fn the_size_is_bounded() {
        let dir = TempDir::new();
        let sticky = sticky(&dir);
        for identity in 0..100 {
            sticky.save_last_addresses(identity * BUCKETS, &[ip("10.1.0.2")], |_| true).unwrap();
        }
        let saved = (0..100).filter(|n| !sticky.last_addresses(n * BUCKETS).is_empty());
        assert_eq!(saved.collect::<Vec<_>>(), (79..100).collect::<Vec<_>>());
        sticky.save_last_addresses(BUCKETS - 1, &[ip("10.1.0.2")], |_| true).unwrap();
        assert_eq!(fs::metadata(&sticky.path).unwrap().len(), 2 << 20);
    }

    #[test]
    fn a_damaged_bucket_is_empty() {
        let dir = TempDir::new();
        let sticky = sticky(&dir);
        sticky.save_last_addresses(0, &[ip("10.1.0.2")], |_| true).unwrap();
        let good = fs::read(&sticky.path).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&sticky.path, bytes).unwrap();
            assert!(sticky.last_addresses(0).is_empty(), "byte {at}");
        }
        fs::remove_file(&sticky.path).unwrap();
        fs::create_dir_all(sticky.path.join("in/the/way")).unwrap();
        assert!(sticky.last_addresses(0).is_empty());
        sticky.save_last_addresses(0, &[ip("10.1.0.2")], |_| true).unwrap();
        assert_eq!(sticky.last_addresses(0), [ip("10.1.0.2")]);
    }
}
