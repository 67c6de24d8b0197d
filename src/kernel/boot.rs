//! The boot id of the machine, and whether two ids prove two boots.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::fault;
use crate::kernel::{file, sys, sysctl};

const FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The start of an id that is not the kernel's, because a mount covers the kernel's file. systemd-nspawn and LXC mount a file
/// with a random id over it, so two processes of one boot can read two ids.
const COVERED: &str = "covered-";

/// The id of this boot. The kernel chooses a random one at every boot, so it does not need a clock, which some hosts lack. If a
/// mount covers the kernel's file, or if this cannot be decided, the id starts with `COVERED`. Fails without /proc.
pub fn id() -> io::Result<&'static str> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(boot);
    }
    let file = file::open(Path::new(FILE), file::READ)?;
    let start = match is_of_kernel(&file) {
        Ok(true) => "",
        _ => file::regular(&file).map(|_| COVERED)?,
    };
    let text = match fault::boot_file() {
        Some(path) => file::read_lossy(path)?,
        None => sysctl::read(&file)?,
    };
    Ok(BOOT.get_or_init(|| format!("{start}{}", text.trim_end())))
}

/// The id of this boot. Fails if the id is not the kernel's.
pub fn proven_id() -> io::Result<&'static str> {
    let id = id()?;
    if is_proven(id) { Ok(id) } else { Err(io::Error::other(format!("a mount covers {FILE}"))) }
}

/// Whether two ids prove two boots. False if one of them is unknown or not the kernel's.
pub fn are_different(one: &str, other: &str) -> bool {
    is_proven(one) && is_proven(other) && one != other
}

/// Whether the id is the kernel's. An empty id is unknown.
pub fn is_proven(id: &str) -> bool {
    !id.is_empty() && !id.starts_with(COVERED)
}

/// Whether an open file is the kernel's: it is on a file system of type proc, and no mount is at its path. A mount at a
/// directory of the path, such as the read-only /proc/sys of a container, is also of type proc then.
///
/// The mounts of the process are not read: with 3,000 of them, that takes longer than an ADD.
fn is_of_kernel(file: &File) -> io::Result<bool> {
    Ok(fstatfs(file)?.filesystem_type() == PROC_SUPER_MAGIC && !sys::is_mount_root(file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_ids_of_the_kernel_prove_two_boots() {
        assert!(are_different("a", "b"));
        for (one, other) in
            [("a", "a"), ("", "a"), ("a", ""), ("covered-a", "b"), ("a", "covered-b")]
        {
            assert!(!are_different(one, other), "{one} {other}");
        }
    }

    #[test]
    fn only_a_file_of_proc_that_is_no_mount_is_the_kernels() {
        for (path, expected) in
            [("/proc/self/stat", true), ("/proc", false), ("/proc/self/exe", false), ("/", false)]
        {
            assert_eq!(is_of_kernel(&File::open(path).unwrap()).unwrap(), expected, "{path}");
        }
    }
}
