//! The index of a network: the addresses of each owner, and the free addresses. A look-up takes a few small reads for any
//! number of reservations.
//!
//! The index is a copy of the content of the network's files. Its loss costs time, and the information which reservations are
//! of an earlier boot. It is valid only in the boot of the host, and only for the state of the directory, that its header
//! names: a power failure can leave a part of a write. Damage is an error, and after an error the index is not used.
//!
//! The index is one hash table with two kinds of entries. The key of a reservation is the digest of its owner. The key of a
//! block is its number. A block has a bit for each of 256 addresses, or, on the next level, a bit for each of 256 blocks that
//! is set if the block is full. So one look-up skips a run of 65,536 taken addresses.
//!
//! Changes stay in memory until [`Index::commit`], which writes the header last. After a crash before that, no header
//! names the state of the directory.

mod format;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::path::Path;

use super::digest::digest;
use super::directory::{DirState, Directory};
use super::files;
use format::{BUCKET_BYTES, Bits, Block, Bucket, Header, IndexEntry, Level, SLOTS, damaged};
pub(super) use format::{FileKind, IndexedFile};

/// The number of buckets in the smallest index. With the header they are one page of memory, which is enough for a small host.
const BUCKETS_MIN: usize = 7;
const PAGE_BYTES: usize = BUCKET_BYTES * (1 + BUCKETS_MIN);
/// More buckets than any host needs: a header with a larger number is damaged.
const BUCKETS_MAX: u64 = 1 << 32;
/// The number of entries per bucket in a new table.
const ENTRIES_PER_BUCKET_NEW: usize = 4;
/// With more entries per bucket, too many entries are outside of their own bucket: a larger table is built.
const ENTRIES_PER_BUCKET_MAX: u64 = 7;
/// More addresses than any container has. If an operator writes the same text into thousands of files, the entries above this
/// number have their address as the key, so that they do not all belong to one bucket.
const ADDRESSES_PER_OWNER_MAX: usize = 16;
/// The number of buckets in one read, when all buckets are read.
const BUCKETS_PER_READ: usize = 128;

pub(super) struct Index {
    /// The open file of the index. `None` while the index is built in memory.
    file: Option<File>,
    header: Header,
    /// The buckets in memory, by number, and whether each differs from the file.
    buckets: BTreeMap<u64, (Bucket, bool)>,
}

/// The position of an entry: the number of its bucket, and its slot.
type SlotRef = (u64, usize);

impl Index {
    /// Opens an index. Fails if the file is damaged. [`Self::is_of`] decides whether the index is valid.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let (file, length) = files::open_plain(path)?;
        // One read gets all of a small index.
        let mut page = vec![0; PAGE_BYTES];
        if length < page.len() as u64 {
            return Err(damaged());
        }
        files::read_at(&file, &mut page, 0)?;
        let (first, _) = page.split_first_chunk::<BUCKET_BYTES>().ok_or_else(damaged)?;
        let header = Header::decode(first)?;
        let is_plausible = (BUCKETS_MIN as u64..=BUCKETS_MAX).contains(&header.buckets)
            && length == offset(header.buckets)
            && header.entries <= header.buckets * SLOTS as u64
            && header.older <= header.entries;
        if !is_plausible {
            return Err(damaged());
        }
        let mut index = Self { file: Some(file), header, buckets: BTreeMap::new() };
        if index.is_small() {
            for (number, bytes) in (0..).zip(&page.as_chunks::<BUCKET_BYTES>().0[1..]) {
                let bucket = Bucket(Box::new(*bytes));
                bucket.check(number)?;
                index.buckets.insert(number, (bucket, false));
            }
        }
        Ok(index)
    }

    /// Builds a new index of the files and writes it. It is not valid for any state of a directory until it is committed.
    pub(super) fn create(
        path: &Path,
        boot: u64,
        indexed_files: &[IndexedFile],
    ) -> io::Result<Self> {
        let mut blocks: Vec<u128> =
            indexed_files.iter().map(|file| split(file.address).0).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let entries = indexed_files.len() + blocks.len();
        let count = (entries / ENTRIES_PER_BUCKET_NEW).max(BUCKETS_MIN) as u64;
        let header = Header { buckets: count, boot, ..Header::default() };
        let buckets = (0..count).map(|number| (number, (Bucket::empty(), true))).collect();
        let mut index = Self { file: None, header, buckets };
        for file in indexed_files {
            index.add(*file)?;
        }
        let bytes = index.seal_all();
        index.file = Some(files::replace(path, &bytes)?);
        Ok(index)
    }

    /// Whether the index is valid for a state of the directory in a boot.
    pub(super) fn is_of(&self, directory: &DirState, boot: u64) -> bool {
        self.header.directory == *directory && self.header.boot == boot
    }

    pub(super) fn boot(&self) -> u64 {
        self.header.boot
    }

    /// The state of the directory at the last commit.
    pub(super) fn directory(&self) -> &DirState {
        &self.header.directory
    }

    /// Whether the index has a reservation of an earlier boot.
    pub(super) fn has_older(&self) -> bool {
        self.header.older > 0
    }

    pub(super) fn is_taken(&mut self, address: u128) -> io::Result<bool> {
        let (number, bit) = split(address);
        let found = self.block(Level::Address, number)?;
        Ok(found.is_some_and(|(_, block)| block.bits.has(bit)))
    }

    /// The addresses of the reservations of an owner.
    pub(super) fn held_by(&mut self, owner: u64) -> io::Result<Vec<u128>> {
        let mut owned = self.indexed_files_at(owner, |file| file.owner == owner)?;
        if owned.len() >= ADDRESSES_PER_OWNER_MAX {
            let all = self.indexed_files()?.into_iter().filter(|file| file.owner == owner);
            owned = all.map(|file| ((0, 0), file)).collect();
        }
        let reserved = owned.into_iter().filter(|(_, file)| file.kind == FileKind::Reserved);
        Ok(reserved.map(|(_, file)| file.address).collect())
    }

    fn indexed_files_at(
        &mut self,
        hash: u64,
        is_wanted: impl Fn(&IndexedFile) -> bool,
    ) -> io::Result<Vec<(SlotRef, IndexedFile)>> {
        let found = self.find(hash, |entry| match entry {
            IndexEntry::File(file) => is_wanted(file),
            IndexEntry::Block(_) => false,
        })?;
        let indexed_file = |(place, entry)| match entry {
            IndexEntry::File(file) => Some((place, file)),
            IndexEntry::Block(_) => None,
        };
        Ok(found.into_iter().filter_map(indexed_file).collect())
    }

    /// The first address from `first` to `last` that is not taken.
    pub(super) fn next_free(&mut self, first: u128, last: u128) -> io::Result<Option<u128>> {
        let mut address = first;
        while address <= last {
            let (number, bit) = split(address);
            let free = match self.block(Level::Address, number)? {
                None => Some(bit),
                Some((_, block)) => block.bits.first_clear(bit),
            };
            if let Some(bit) = free {
                let address = join(number, bit);
                return Ok((address <= last).then_some(address));
            }
            match self.next_block_with_free(number + 1, split(last).0)? {
                Some(number) => address = join(number, 0),
                None => break,
            }
        }
        Ok(None)
    }

    fn next_block_with_free(&mut self, first: u128, last: u128) -> io::Result<Option<u128>> {
        let mut block = first;
        while block <= last {
            let (number, bit) = split(block);
            let found = match self.block(Level::Block, number)? {
                None => Some(bit),
                Some((_, full)) => full.bits.first_clear(bit),
            };
            match found {
                Some(bit) => return Ok(Some(join(number, bit)).filter(|block| *block <= last)),
                None => block = join(number + 1, 0),
            }
        }
        Ok(None)
    }

    /// The entries of all files.
    pub(super) fn indexed_files(&self) -> io::Result<Vec<IndexedFile>> {
        let mut indexed_files = Vec::new();
        let mut first = 0;
        while first < self.header.buckets {
            let count = (self.header.buckets - first).min(BUCKETS_PER_READ as u64);
            for (number, bucket) in (first..).zip(self.run_of_buckets(first, count)?) {
                let bucket = match self.buckets.get(&number) {
                    Some((in_memory, _)) => in_memory,
                    None => {
                        bucket.check(number)?;
                        &bucket
                    }
                };
                for slot in 0..SLOTS {
                    if let Some(IndexEntry::File(file)) = bucket.entry(slot)? {
                        indexed_files.push(file);
                    }
                }
            }
            first += count;
        }
        Ok(indexed_files)
    }

    fn run_of_buckets(&self, first: u64, count: u64) -> io::Result<Vec<Bucket>> {
        let count = usize::try_from(count).map_err(|_| damaged())?;
        let mut bytes = vec![0; count * BUCKET_BYTES];
        // If all buckets are in memory, no read is necessary.
        if self.buckets.len() as u64 != self.header.buckets {
            files::read_at(self.file()?, &mut bytes, offset(first))?;
        }
        let buckets = bytes.as_chunks::<BUCKET_BYTES>().0.iter();
        Ok(buckets.map(|bytes| Bucket(Box::new(*bytes))).collect())
    }

    pub(super) fn add(&mut self, file: IndexedFile) -> io::Result<()> {
        let others = self.indexed_files_at(file.owner, |other| other.owner == file.owner)?.len();
        let is_one_of_many = others >= ADDRESSES_PER_OWNER_MAX;
        let hash = if is_one_of_many { hash_of(file.address) } else { file.owner };
        self.insert(hash, &IndexEntry::File(file))?;
        self.header.older += u64::from(file.is_older);
        if file.kind == FileKind::Incomplete { Ok(()) } else { self.mark(file.address, true) }
    }

    pub(super) fn remove(&mut self, address: u128, owner: u64) -> io::Result<()> {
        let owned = self.indexed_files_at(owner, |file| file.owner == owner)?;
        let found = match owned.iter().find(|(_, file)| file.address == address) {
            Some(found) if owned.len() < ADDRESSES_PER_OWNER_MAX => Some(*found),
            // After this removal, look-ups would miss the entries that have their address as the key. The error makes the
            // caller build a new index.
            Some(_) => None,
            None => self
                .indexed_files_at(hash_of(address), |file| file.address == address)?
                .first()
                .copied(),
        };
        let (place, file) = found.ok_or_else(damaged)?;
        self.set(place, None)?;
        let older = self.header.older.checked_sub(file.is_older.into());
        self.header.older = older.ok_or_else(damaged)?;
        if file.kind == FileKind::Incomplete { Ok(()) } else { self.mark(address, false) }
    }

    /// Marks an address as taken or free, and its block as full or not.
    fn mark(&mut self, address: u128, is_taken: bool) -> io::Result<()> {
        let (number, bit) = split(address);
        if self.set_bit(Level::Address, number, bit, is_taken)? {
            let (number, bit) = split(number);
            self.set_bit(Level::Block, number, bit, is_taken)?;
        }
        Ok(())
    }

    /// Sets or clears a bit. Returns true if the block became full, or is not full any more.
    fn set_bit(&mut self, level: Level, number: u128, bit: u8, is_set: bool) -> io::Result<bool> {
        let found = self.block(level, number)?;
        let old = found.map_or_else(Bits::default, |(_, block)| block.bits);
        let mut bits = old;
        bits.set(bit, is_set);
        let entry = IndexEntry::Block(Block { level, number, bits });
        match found {
            Some((place, _)) if bits.is_empty() => self.set(place, None)?,
            Some((place, _)) => self.set(place, Some(&entry))?,
            None => self.insert(Block::hash(level, number), &entry)?,
        }
        Ok(old.is_full() != bits.is_full())
    }

    fn block(&mut self, level: Level, number: u128) -> io::Result<Option<(SlotRef, Block)>> {
        let found = self.find(Block::hash(level, number), |entry| match entry {
            IndexEntry::Block(block) => block.level == level && block.number == number,
            IndexEntry::File(_) => false,
        })?;
        match found[..] {
            [] => Ok(None),
            [(place, IndexEntry::Block(block))] => Ok(Some((place, block))),
            _ => Err(damaged()),
        }
    }

    fn find(
        &mut self,
        hash: u64,
        is_wanted: impl Fn(&IndexEntry) -> bool,
    ) -> io::Result<Vec<(SlotRef, IndexEntry)>> {
        let mut found = Vec::new();
        for number in self.buckets_of(hash) {
            let (bucket, _) = self.bucket(number)?;
            for slot in 0..SLOTS {
                if let Some(entry) = bucket.entry(slot)?.filter(&is_wanted) {
                    found.push(((number, slot), entry));
                }
            }
            if !bucket.overflows() {
                break;
            }
        }
        Ok(found)
    }

    fn insert(&mut self, hash: u64, entry: &IndexEntry) -> io::Result<()> {
        for number in self.buckets_of(hash) {
            let (bucket, is_changed) = self.bucket(number)?;
            *is_changed = true;
            for slot in 0..SLOTS {
                if bucket.entry(slot)?.is_none() {
                    bucket.set(slot, Some(entry));
                    self.header.entries += 1;
                    return Ok(());
                }
            }
            bucket.set_overflowing();
        }
        Err(damaged())
    }

    fn set(&mut self, (number, slot): SlotRef, entry: Option<&IndexEntry>) -> io::Result<()> {
        let (bucket, is_changed) = self.bucket(number)?;
        *is_changed = true;
        bucket.set(slot, entry);
        if entry.is_none() {
            self.header.entries = self.header.entries.checked_sub(1).ok_or_else(damaged)?;
        }
        Ok(())
    }

    /// The buckets that can have an entry with this key, in the order of the search. The search ends at the first one that
    /// does not overflow.
    fn buckets_of(&self, hash: u64) -> impl Iterator<Item = u64> + use<> {
        let count = self.header.buckets;
        let first = hash % count;
        (first..count).chain(0..first)
    }

    fn bucket(&mut self, number: u64) -> io::Result<&mut (Bucket, bool)> {
        if !self.buckets.contains_key(&number) {
            let mut bucket = Bucket::empty();
            files::read_at(self.file()?, &mut bucket.0[..], offset(number))?;
            bucket.check(number)?;
            self.buckets.insert(number, (bucket, false));
        }
        self.buckets.get_mut(&number).ok_or_else(damaged)
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(damaged)
    }

    /// Whether the index is one page.
    fn is_small(&self) -> bool {
        self.header.buckets == BUCKETS_MIN as u64
    }

    /// Writes the changes and gives the directory a new state, for which the index is valid. If the table is full, a larger
    /// one replaces it.
    pub(super) fn commit(&mut self, path: &Path, directory: &Directory) -> io::Result<()> {
        if self.header.entries > self.header.buckets * ENTRIES_PER_BUCKET_MAX {
            let last = self.header.directory;
            *self = Self::create(path, self.header.boot, &self.indexed_files()?)?;
            self.header.directory = last;
        }
        if self.is_small() {
            self.header.directory = directory.stamp(&self.header.directory)?;
            // The write of one page is atomic unless the power fails, and then another boot begins.
            let bytes = self.seal_all();
            return files::write_at(self.file()?, &bytes, 0);
        }
        for (number, (bucket, is_changed)) in &mut self.buckets {
            if *is_changed {
                bucket.seal(*number);
                files::write_at(
                    self.file.as_ref().ok_or_else(damaged)?,
                    &bucket.0[..],
                    offset(*number),
                )?;
                *is_changed = false;
            }
        }
        self.header.directory = directory.stamp(&self.header.directory)?;
        files::write_at(self.file()?, &self.header.encode(), 0)
    }

    /// Makes the index valid for the present state of the directory.
    pub(super) fn commit_as(&mut self, directory: DirState) -> io::Result<()> {
        self.header.directory = directory;
        files::write_at(self.file()?, &self.header.encode(), 0)
    }

    /// Sets the checksums, and returns the bytes of the whole file. All its buckets must be in memory.
    fn seal_all(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; BUCKET_BYTES * (1 + self.buckets.len())];
        bytes[..BUCKET_BYTES].copy_from_slice(&self.header.encode());
        for (number, (bucket, is_changed)) in &mut self.buckets {
            if mem::take(is_changed) {
                bucket.seal(*number);
            }
            bytes[byte_range(*number)].copy_from_slice(&bucket.0[..]);
        }
        bytes
    }
}

fn hash_of(address: u128) -> u64 {
    digest(0, &address.to_le_bytes())
}

/// The number of the block that contains an address or a block of the level below, and the bit for it in the block.
fn split(number: u128) -> (u128, u8) {
    (number >> 8, number.to_le_bytes()[0])
}

const fn join(block: u128, bit: u8) -> u128 {
    block << 8 | bit as u128
}

const fn offset(bucket: u64) -> u64 {
    (1 + bucket) * BUCKET_BYTES as u64
}

/// The bytes of a bucket in the file.
fn byte_range(bucket: u64) -> Range<usize> {
    let start = usize::try_from(offset(bucket)).unwrap_or(usize::MAX - BUCKET_BYTES);
    start..start + BUCKET_BYTES
}
