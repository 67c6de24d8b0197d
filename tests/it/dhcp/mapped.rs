//! The memory of a process that runs for long: nothing of its executable is written and executed, and relocated data are
//! read-only.

use super::Daemon;
use crate::world::World;

/// The begin and the length of the relocated data, by the headers of the executable.
fn relocated(headers: &str) -> (u64, u64) {
    let line = headers.lines().find(|line| line.contains("GNU_RELRO")).expect(headers);
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |index: usize| u64::from_str_radix(words[index].trim_start_matches("0x"), 16);
    (number(2).unwrap(), number(5).unwrap())
}

#[test]
fn relocated_data_are_read_only() {
    let world = World::new();
    let daemon = Daemon::new(&world);
    let headers = world.host(["readelf", "--wide", "--program-headers", "/run/bin/cnibox"]);
    let (begin, length) = relocated(&headers);
    let maps = daemon.proc("maps");
    let parts = maps.lines().filter(|line| line.ends_with("/cnibox")).map(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
        (address(from), address(to), rest[..4].to_owned())
    });
    let parts: Vec<(u64, u64, String)> = parts.collect();
    assert!(parts.iter().all(|(.., access)| !access.starts_with("rwx")), "{maps}");
    // A file with fixed addresses begins where its headers say.
    let first = parts.iter().map(|(from, ..)| *from).min().unwrap();
    let base = if headers.contains("DYN") { first } else { 0 };
    let last = base + begin + length - 1;
    let part = parts.iter().find(|(from, to, _)| (*from..*to).contains(&last));
    let (.., access) = part.unwrap_or_else(|| panic!("{last:x} in {maps}"));
    assert_eq!(access, "r--p", "{last:x} in {maps}");
}
