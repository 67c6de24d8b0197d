//! Compares the index with a model.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::ipam::store::number_of;
use crate::ipam::store::tests::TempDir;

const BOOT: u64 = 7;

fn path(dir: &TempDir) -> PathBuf {
    dir.path().join("own/net")
}

fn directory(dir: &TempDir) -> Directory {
    fs::create_dir_all(dir.network_dir()).unwrap();
    Directory::open(&dir.network_dir()).unwrap()
}

fn number(text: &str) -> u128 {
    number_of(text.parse::<IpAddr>().unwrap())
}

fn indexed_file(address: u128) -> IndexedFile {
    // Two addresses for each owner.
    let owner = u64::try_from(address / 2 % (1 << 64)).unwrap();
    IndexedFile { address, owner, identity: !owner, kind: FileKind::Reserved, is_older: false }
}

fn run_of(first: &str, count: u32) -> Vec<IndexedFile> {
    (0..u128::from(count)).map(|offset| indexed_file(number(first) + offset)).collect()
}

/// Compares all look-ups with the model.
fn compare(index: &mut Index, model: &BTreeMap<u128, IndexedFile>) -> io::Result<()> {
    let mut indexed_files = index.indexed_files()?;
    indexed_files.sort_by_key(|file| file.address);
    assert_eq!(indexed_files, model.values().copied().collect::<Vec<_>>());
    let (Some(first), Some(last)) = (model.keys().next(), model.keys().last()) else {
        return Ok(());
    };
    for address in [*first, first + 1, *last, last + 1, last + 256, first - 1] {
        let is_taken = model.get(&address).is_some_and(|file| file.kind != FileKind::Incomplete);
        assert_eq!(index.is_taken(address)?, is_taken);
        let free = (address..=last + 1).find(|candidate| {
            model.get(candidate).is_none_or(|file| file.kind == FileKind::Incomplete)
        });
        assert_eq!(index.next_free(address, last + 1)?, free);
        let owner = indexed_file(address).owner;
        let of_owner = |file: &&IndexedFile| file.owner == owner && file.kind == FileKind::Reserved;
        let held: Vec<u128> = model.values().filter(of_owner).map(|file| file.address).collect();
        let mut found = index.held_by(owner)?;
        found.sort_unstable();
        assert_eq!(found, held);
    }
    Ok(())
}

fn model_of(indexed_files: &[IndexedFile]) -> BTreeMap<u128, IndexedFile> {
    indexed_files.iter().map(|file| (file.address, *file)).collect()
}

#[test]
fn a_run_of_any_length_is_skipped() {
    let dir = TempDir::new();
    for (first, count) in [("10.1.0.2", 1), ("10.1.0.2", 300), ("fd00::2", 70_000)] {
        let mut index = Index::create(&path(&dir), BOOT, &run_of(first, count)).unwrap();
        let first = number(first);
        let next = first + u128::from(count);
        assert_eq!(index.next_free(first, next).unwrap(), Some(next));
        assert_eq!(index.next_free(first, next - 1).unwrap(), None);
        assert_eq!(index.next_free(first - 1, next).unwrap(), Some(first - 1));
        let hole = first + u128::from(count / 2);
        index.remove(hole, indexed_file(hole).owner).unwrap();
        assert_eq!(index.next_free(first, next).unwrap(), Some(hole));
    }
}

#[test]
fn a_look_up_takes_a_few_reads() {
    let dir = TempDir::new();
    let mut index = Index::create(&path(&dir), BOOT, &run_of("fd00::2", 70_000)).unwrap();
    index.commit(&path(&dir), &directory(&dir)).unwrap();
    let mut index = Index::open(&path(&dir)).unwrap();
    assert!(index.next_free(number("fd00::3"), number("fd00::ffff:ffff")).unwrap().is_some());
    assert_eq!(index.held_by(indexed_file(number("fd00::3")).owner).unwrap().len(), 2);
    assert!(index.buckets.len() < 16, "{} of {}", index.buckets.len(), index.header.buckets);
}

#[test]
fn an_owner_with_thousands_of_addresses_does_not_slow_others() {
    let dir = TempDir::new();
    let with_one_owner = |mut file: IndexedFile| {
        file.owner = 7;
        file
    };
    let mut indexed_files: Vec<IndexedFile> =
        run_of("10.1.0.2", 5000).into_iter().map(with_one_owner).collect();
    indexed_files.extend(run_of("10.2.0.2", 100));
    let mut index = Index::create(&path(&dir), BOOT, &indexed_files).unwrap();
    index.commit(&path(&dir), &directory(&dir)).unwrap();
    let mut index = Index::open(&path(&dir)).unwrap();
    let other = indexed_file(number("10.2.0.3"));
    assert!(index.held_by(other.owner).unwrap().contains(&other.address));
    assert!(index.buckets.len() < 16, "{}", index.buckets.len());
    assert_eq!(index.held_by(7).unwrap().len(), 5000);
    // Entries with their address as the key can be removed. The first ones, with the owner as the key, cannot.
    let (mut removed, mut refused) = (0, 0);
    for file in &indexed_files[..5000] {
        match index.remove(file.address, 7) {
            Ok(()) => removed += 1,
            Err(_) => refused += 1,
        }
    }
    assert_eq!(removed + refused, 5000);
    assert!((ADDRESSES_PER_OWNER_MAX..100).contains(&refused), "{refused}");
    assert_eq!(index.held_by(7).unwrap().len(), refused);
}

#[test]
fn the_highest_addresses_do_not_overflow() {
    let dir = TempDir::new();
    let mut index = Index::create(&path(&dir), BOOT, &[indexed_file(u128::MAX)]).unwrap();
    assert_eq!(index.next_free(u128::MAX, u128::MAX).unwrap(), None);
    assert_eq!(index.next_free(u128::MAX - 1, u128::MAX).unwrap(), Some(u128::MAX - 1));
    assert_eq!(index.next_free(0, 0).unwrap(), Some(0));
}

#[test]
fn an_index_is_valid_for_one_state_and_one_boot() {
    let (dir, other) = (TempDir::new(), TempDir::new());
    let (directory, other) = (directory(&dir), self::directory(&other));
    let mut index = Index::create(&path(&dir), BOOT, &run_of("10.1.0.2", 3)).unwrap();
    assert!(!index.is_of(&directory.state().unwrap(), BOOT));
    index.commit(&path(&dir), &directory).unwrap();
    let index = Index::open(&path(&dir)).unwrap();
    let state = directory.state().unwrap();
    assert!(index.is_of(&state, BOOT) && !index.is_of(&state, BOOT + 1));
    assert!(!index.is_of(&other.state().unwrap(), BOOT));
    directory.stamp(&state).unwrap();
    assert!(!index.is_of(&directory.state().unwrap(), BOOT));
}

#[test]
fn look_ups_are_right_at_every_size() {
    let dir = TempDir::new();
    let directory = directory(&dir);
    let mut model = BTreeMap::new();
    Index::create(&path(&dir), BOOT, &[]).unwrap();
    for file in run_of("10.1.0.200", 400) {
        let mut index = Index::open(&path(&dir)).unwrap();
        index.add(file).unwrap();
        model.insert(file.address, file);
        index.commit(&path(&dir), &directory).unwrap();
        compare(&mut Index::open(&path(&dir)).unwrap(), &model).unwrap();
    }
    for address in model.keys().copied().collect::<Vec<_>>() {
        let mut index = Index::open(&path(&dir)).unwrap();
        index.remove(address, indexed_file(address).owner).unwrap();
        model.remove(&address);
        index.commit(&path(&dir), &directory).unwrap();
    }
    let mut index = Index::open(&path(&dir)).unwrap();
    compare(&mut index, &model).unwrap();
    assert_eq!(index.header.entries, 0);
}

#[test]
fn damage_is_an_error() {
    let dir = TempDir::new();
    let path = path(&dir);
    let mut torn = indexed_file(number("10.1.0.90"));
    torn.kind = FileKind::Incomplete;
    for count in [20, 200] {
        let mut indexed_files = run_of("10.1.0.2", count);
        indexed_files.push(torn);
        indexed_files.dedup_by_key(|file| file.address);
        let indexed_files: Vec<IndexedFile> = model_of(&indexed_files).into_values().collect();
        Index::create(&path, BOOT, &indexed_files).unwrap();
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, bytes).unwrap();
            let compared = Index::open(&path)
                .and_then(|mut index| compare(&mut index, &model_of(&indexed_files)));
            assert!(compared.is_err(), "damage of byte {at} is not detected");
        }
        for length in [0, 1, 511, 512, 4095, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            assert!(Index::open(&path).is_err(), "{length} bytes");
        }
        fs::write(&path, [&good[..], &[0]].concat()).unwrap();
        assert!(Index::open(&path).is_err());
    }
}

#[test]
fn a_header_with_wrong_numbers_is_an_error() {
    let dir = TempDir::new();
    let path = path(&dir);
    Index::create(&path, BOOT, &run_of("10.1.0.2", 100)).unwrap();
    let good = fs::read(&path).unwrap();
    let header = Header::decode(good[..512].try_into().unwrap()).unwrap();
    let wrong = [
        Header { buckets: 0, ..header },
        Header { buckets: 1, ..header },
        Header { buckets: header.buckets - 1, ..header },
        Header { buckets: header.buckets + 1, ..header },
        Header { buckets: u64::MAX, ..header },
        Header { buckets: u64::MAX / 512 + 1, ..header },
        Header { entries: u64::MAX, ..header },
        Header { older: 1 << 40, ..header },
    ];
    for header in wrong {
        fs::write(&path, [&header.encode()[..], &good[512..]].concat()).unwrap();
        assert!(Index::open(&path).is_err(), "{header:?}");
    }
}

#[test]
fn swapped_buckets_are_an_error() {
    let dir = TempDir::new();
    let path = path(&dir);
    for count in [20, 200] {
        Index::create(&path, BOOT, &run_of("10.1.0.2", count)).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let (one, other) = bytes[512..].split_at_mut(512);
        one.swap_with_slice(&mut other[..512]);
        fs::write(&path, bytes).unwrap();
        assert!(Index::open(&path).and_then(|index| index.indexed_files()).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn look_ups_match_the_model(changes in prop::collection::vec((any::<bool>(), 0u8..3, any::<u16>()), 1..300)) {
        let dir = TempDir::new();
        let directory = directory(&dir);
        let mut model = BTreeMap::new();
        let mut index = Index::create(&path(&dir), BOOT, &[]).unwrap();
        for (is_kept, kind, offset) in changes {
            // Three dense groups across the borders of blocks.
            let near = [number("10.1.0.250"), number("10.2.255.250"), number("fd00::fff0")];
            let address = near[usize::from(kind)] + u128::from(offset % 40);
            if let Some(old) = model.remove(&address) {
                let IndexedFile { owner, .. } = old;
                index.remove(address, owner).unwrap();
            } else {
                let kind = [FileKind::Reserved, FileKind::Incomplete, FileKind::NotRegular][usize::from(offset % 3)];
                let file = IndexedFile { kind, is_older: offset % 2 == 0, ..indexed_file(address) };
                index.add(file).unwrap();
                model.insert(address, file);
            }
            if is_kept {
                index.commit(&path(&dir), &directory).unwrap();
                index = Index::open(&path(&dir)).unwrap();
            }
        }
        prop_assert_eq!(
            index.has_older(),
            model.values().any(|file| file.is_older)
        );
        let mut indexed_files = index.indexed_files().unwrap();
        indexed_files.sort_by_key(|file| file.address);
        let expected: Vec<IndexedFile> = model.values().copied().collect();
        prop_assert_eq!(indexed_files, expected);
        for first in [number("10.1.0.240"), number("10.2.255.240"), number("fd00::ffe0")] {
            for address in first..first + 70 {
                let is_taken = |address: &u128| {
                    model.get(address).is_some_and(|file| file.kind != FileKind::Incomplete)
                };
                prop_assert_eq!(index.is_taken(address).unwrap(), is_taken(&address));
                let free = (address..=first + 70).find(|candidate| !is_taken(candidate));
                prop_assert_eq!(index.next_free(address, first + 70).unwrap(), free);
            }
        }
    }
}
