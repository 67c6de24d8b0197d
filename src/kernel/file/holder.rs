//! The process that holds a flock(2), for the error of a caller that waited too long for it.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

/// USER_HZ, the unit of times in /proc on every architecture that we build for. Source: asm-generic/param.h.
const TICKS_PER_SECOND: u64 = 100;

const UNKNOWN: &str = "the holder is unknown without /proc/locks";

/// The number of attempts to find the holder. The kernel writes a page of /proc/locks at a time. If any process takes or
/// releases a lock meanwhile, lines can be missing.
const READS_MAX: usize = 10;

/// Names the process that holds the flock(2) of a file, as a clause of an error message. Reads /proc/locks.
///
/// The hold time is unknown; the age of the process is an upper bound.
pub fn holder(file: &File) -> String {
    let Ok(metadata) = file.metadata() else { return UNKNOWN.into() };
    for _ in 0..READS_MAX {
        // Any user can make /proc/locks long, by locks on ranges of a file.
        let locks = match super::read_lossy("/proc/locks") {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                return format!("the holder is unknown: cannot read /proc/locks: {error}");
            }
            Err(_) => return UNKNOWN.into(),
            Ok(locks) => locks,
        };
        match pid_in(&locks, metadata.dev(), metadata.ino()) {
            None => {}
            Some("0") => return "a process outside of this pid namespace holds it".into(),
            Some(pid) => return describe(pid),
        }
    }
    "/proc/locks does not name the holder".into()
}

/// Names a process, with its name and age if /proc shows them.
fn describe(pid: &str) -> String {
    let stat = super::read_lossy(format!("/proc/{pid}/stat")).unwrap_or_default();
    let uptime = super::read_lossy("/proc/uptime").unwrap_or_default();
    match name_and_age(&stat, &uptime) {
        Some((name, age)) => format!("process {pid} ({name}), which started {age} s ago, holds it"),
        None => format!("process {pid} holds it"),
    }
}

/// The id of the process with a flock(2) on the file. A line with an arrow is about a process that waits. Source:
/// proc_locks(5).
fn pid_in(locks: &str, device: u64, inode: u64) -> Option<&str> {
    let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
    let minor = device & 0xff | (device >> 12) & 0xffff_ff00;
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let mut words = words.skip(2);
        let pid = words.next()?;
        (is_flock && words.next() == Some(file.as_str())).then_some(pid)
    })
}

/// The name of a process, and its age in seconds. Source: proc_pid_stat(5), fields 2 and 22; proc_uptime(5).
fn name_and_age<'a>(stat: &'a str, uptime: &str) -> Option<(&'a str, u64)> {
    // A name can contain any character, also brackets and blanks.
    let (start, rest) = stat.rsplit_once(')')?;
    let started: u64 = rest.split_whitespace().nth(19)?.parse().ok()?;
    let up: u64 = uptime.split('.').next()?.parse().ok()?;
    Some((start.split_once('(')?.1, up.saturating_sub(started / TICKS_PER_SECOND)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_read_as_the_kernel_writes_them() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:131 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 22 fe:00:1310 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 33 fe:00:131 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 44 fe:00:131 0 EOF\n\
            4: FLOCK  ADVISORY  READ  55 103:fff01:7 0 EOF\n";
        assert_eq!(pid_in(locks, 0xfe00, 131), Some("33"));
        assert_eq!(pid_in(locks, 0xfff1_0301, 7), Some("55"));
        assert_eq!(pid_in(locks, 0xfe00, 13), None);
        let stat = "33 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9000 20 21";
        assert_eq!(name_and_age(stat, "100.25 180.00\n"), Some(("a) b", 10)));
        assert_eq!(name_and_age("", "100.25"), None);
    }

    #[test]
    fn the_holder_of_a_free_file_is_not_named() {
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(holder(&file), "/proc/locks does not name the holder");
    }
}
