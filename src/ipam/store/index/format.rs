//! The format of the index: a header, then the buckets of a hash table. All numbers are little-endian on every machine.
//!
//! ```text
//! header, 512 bytes                          bucket, 512 bytes
//!   0  "cnibox"  14, and the version          0  digest of the rest, with the bucket's number as the seed
//!   8  digest of the rest                     8  1 if entries of this bucket are also in the next one
//!  16  number of buckets                     32  ten entries of 48 bytes; the first byte of an entry is its kind
//!  24  number of entries                         0  none
//!  32  entries of an earlier boot                1  reservation    2  incomplete file    3  not a regular file
//!  40  digest of the boot id                         1  1 if an earlier boot made it
//!  48  state of the directory, 6 numbers             8  digest of the owner   16  address   32  the file's identity
//!                                                4  256 addresses    5  256 times 256 addresses
//!                                                    1  block number, 15 bytes   16  a bit for each taken one
//! ```

use std::io::{self, ErrorKind};

use crate::ipam::store::digest::digest;
use crate::ipam::store::directory::DirState;

pub(super) const BUCKET_BYTES: usize = 512;
pub(super) const SLOTS: usize = 10;
const SLOT_BYTES: usize = 48;
const SLOTS_AT: usize = 32;
const OVERFLOW_AT: usize = 8;

/// The last byte is the version. It must be raised with every change of the format, and of the rule which files are
/// incomplete.
const MAGIC: [u8; 8] = *b"cnibox\x14\x02";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) buckets: u64,
    pub(super) entries: u64,
    /// The number of reservations of an earlier boot.
    pub(super) older: u64,
    pub(super) boot: u64,
    pub(super) directory: DirState,
}

/// The kind of a file with an address as its name. The numbers are those of the entries on disk, as are those of `Level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::ipam::store) enum FileKind {
    Reserved = 1,
    /// The file has no owner (see `Owner::Incomplete`): the address is free, and GC removes the file.
    Incomplete = 2,
    /// Not a regular file, or unreadable: the address cannot be reserved.
    NotRegular = 3,
}

/// The entry of a file with an address as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ipam::store) struct IndexedFile {
    pub(in crate::ipam::store) address: u128,
    /// The digest of the owner, or of the address if it has no owner.
    pub(in crate::ipam::store) owner: u64,
    pub(in crate::ipam::store) identity: u64,
    pub(in crate::ipam::store) kind: FileKind,
    pub(in crate::ipam::store) is_older: bool,
}

/// The meaning of a bit of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Level {
    /// One taken address.
    Address = 4,
    /// A block of 256 taken addresses.
    Block = 5,
}

/// 256 bits, for 256 consecutive addresses or blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) level: Level,
    /// The number of the first address or block, divided by 256.
    pub(super) number: u128,
    pub(super) bits: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits([u64; 4]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexEntry {
    File(IndexedFile),
    Block(Block),
}

#[derive(Clone)]
pub(super) struct Bucket(pub(super) Box<[u8; BUCKET_BYTES]>);

impl Header {
    pub(super) fn encode(&self) -> [u8; BUCKET_BYTES] {
        let mut bytes = [0; BUCKET_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let numbers = [self.buckets, self.entries, self.older, self.boot];
        for (index, number) in numbers.into_iter().chain(self.directory.0).enumerate() {
            put_u64(&mut bytes, 16 + index * 8, number);
        }
        let check = digest(0, &bytes[16..]);
        put_u64(&mut bytes, 8, check);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; BUCKET_BYTES]) -> io::Result<Self> {
        if bytes[..8] != MAGIC || u64_at(bytes, 8) != digest(0, &bytes[16..]) {
            return Err(damaged());
        }
        let [buckets, entries, older, boot] = [16, 24, 32, 40].map(|at| u64_at(bytes, at));
        let directory = DirState([48, 56, 64, 72, 80, 88].map(|at| u64_at(bytes, at)));
        Ok(Self { buckets, entries, older, boot, directory })
    }
}

impl Bucket {
    pub(super) fn empty() -> Self {
        Self(Box::new([0; BUCKET_BYTES]))
    }

    /// Sets the checksum. Called after all changes.
    pub(super) fn seal(&mut self, number: u64) {
        let check = digest(number, &self.0[8..]);
        put_u64(&mut self.0[..], 0, check);
    }

    pub(super) fn check(&self, number: u64) -> io::Result<()> {
        if u64_at(&self.0[..], 0) == digest(number, &self.0[8..]) { Ok(()) } else { Err(damaged()) }
    }

    pub(super) fn overflows(&self) -> bool {
        self.0[OVERFLOW_AT] != 0
    }

    pub(super) fn set_overflowing(&mut self) {
        self.0[OVERFLOW_AT] = 1;
    }

    pub(super) fn entry(&self, slot: usize) -> io::Result<Option<IndexEntry>> {
        let at = SLOTS_AT + slot * SLOT_BYTES;
        let slot = &self.0[at..at + SLOT_BYTES];
        let file = |kind| {
            Some(IndexEntry::File(IndexedFile {
                address: u128_at(slot, 16),
                owner: u64_at(slot, 8),
                identity: u64_at(slot, 32),
                kind,
                is_older: slot[1] != 0,
            }))
        };
        let block = |level| {
            let bits = Bits([16, 24, 32, 40].map(|at| u64_at(slot, at)));
            Some(IndexEntry::Block(Block { level, number: u128_at(slot, 0) >> 8, bits }))
        };
        match slot[0] {
            0 => Ok(None),
            1 => Ok(file(FileKind::Reserved)),
            2 => Ok(file(FileKind::Incomplete)),
            3 => Ok(file(FileKind::NotRegular)),
            4 => Ok(block(Level::Address)),
            5 => Ok(block(Level::Block)),
            _ => Err(damaged()),
        }
    }

    pub(super) fn set(&mut self, slot: usize, entry: Option<&IndexEntry>) {
        let at = SLOTS_AT + slot * SLOT_BYTES;
        let slot = &mut self.0[at..at + SLOT_BYTES];
        slot.fill(0);
        match entry {
            None => {}
            Some(IndexEntry::File(file)) => {
                slot[0] = file.kind as u8;
                slot[1] = file.is_older.into();
                put_u64(slot, 8, file.owner);
                slot[16..32].copy_from_slice(&file.address.to_le_bytes());
                put_u64(slot, 32, file.identity);
            }
            Some(IndexEntry::Block(block)) => {
                slot[..16].copy_from_slice(&(block.number << 8).to_le_bytes());
                slot[0] = block.level as u8;
                for (index, bits) in block.bits.0.into_iter().enumerate() {
                    put_u64(slot, 16 + index * 8, bits);
                }
            }
        }
    }
}

impl Block {
    /// The key of a block in the hash table.
    pub(super) fn hash(level: Level, number: u128) -> u64 {
        digest(level as u64, &number.to_le_bytes())
    }
}

impl Bits {
    pub(super) fn has(&self, bit: u8) -> bool {
        self.0[usize::from(bit / 64)] >> (bit % 64) & 1 == 1
    }

    pub(super) fn set(&mut self, bit: u8, is_set: bool) {
        let word = &mut self.0[usize::from(bit / 64)];
        let mask = 1 << (bit % 64);
        *word = if is_set { *word | mask } else { *word & !mask };
    }

    pub(super) fn is_full(&self) -> bool {
        self.0 == [u64::MAX; 4]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// The first clear bit from `from` on.
    pub(super) fn first_clear(&self, from: u8) -> Option<u8> {
        (from..=u8::MAX).find(|bit| !self.has(*bit))
    }
}

pub(super) fn damaged() -> io::Error {
    ErrorKind::InvalidData.into()
}

fn put_u64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_a_damaged_one_is_an_error() {
        let directory = DirState([1, 2, 3, u64::MAX, 5, 6]);
        let header = Header { buckets: 7, entries: 8, older: 9, boot: 10, directory };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes).unwrap(), header);
        for at in 0..BUCKET_BYTES {
            let mut bytes = bytes;
            bytes[at] ^= 0x40;
            assert!(Header::decode(&bytes).is_err(), "byte {at}");
        }
        let mut other_order = bytes;
        other_order.chunks_exact_mut(8).for_each(<[u8]>::reverse);
        assert!(Header::decode(&other_order).is_err());
        assert!(Header::decode(&[0; BUCKET_BYTES]).is_err());
    }

    #[test]
    fn a_bucket_is_read_back_at_its_own_number_only() {
        let file = |kind, is_older| {
            Some(IndexEntry::File(IndexedFile {
                address: u128::MAX - 1,
                owner: 2,
                identity: u64::MAX,
                kind,
                is_older,
            }))
        };
        let mut bits = Bits::default();
        for bit in [0, 63, 64, 255] {
            bits.set(bit, true);
        }
        let block = |level| Some(IndexEntry::Block(Block { level, number: (1 << 120) - 1, bits }));
        let entries = [
            file(FileKind::Reserved, false),
            file(FileKind::Incomplete, true),
            None,
            file(FileKind::NotRegular, false),
            block(Level::Address),
            block(Level::Block),
        ];
        let mut bucket = Bucket::empty();
        for (slot, entry) in entries.iter().enumerate() {
            bucket.set(slot, entry.as_ref());
        }
        bucket.set_overflowing();
        bucket.seal(3);
        for (slot, entry) in entries.iter().enumerate() {
            assert_eq!(bucket.entry(slot).unwrap(), *entry);
        }
        assert!(bucket.overflows() && bucket.check(3).is_ok() && bucket.check(4).is_err());
        for at in 0..BUCKET_BYTES {
            let mut bucket = bucket.clone();
            bucket.0[at] ^= 1;
            assert!(bucket.check(3).is_err(), "byte {at}");
        }
        // An empty bucket needs a checksum, too.
        assert!(Bucket::empty().check(0).is_err());
    }

    #[test]
    fn clear_bits_are_found() {
        let mut bits = Bits::default();
        assert!(bits.is_empty() && bits.first_clear(200) == Some(200));
        (0..=255).for_each(|bit| bits.set(bit, true));
        assert!(bits.is_full() && bits.first_clear(0).is_none());
        bits.set(130, false);
        assert!(!bits.is_full() && !bits.has(130) && bits.has(129));
        assert_eq!((bits.first_clear(0), bits.first_clear(131)), (Some(130), None));
    }
}
