//! SIGKILL at each system call of a plugin call, one run per system call.

use std::collections::BTreeMap;

use super::{Call, World};

/// Where strace writes, in the world.
const TRACE: &str = "/run/trace";

/// The system calls by which a plugin or the runtime changes something outside of its process.
const CHANGING: [&str; 28] = [
    "sendto",
    "sendmsg",
    "write",
    "pwrite64",
    "ioctl",
    "setns",
    "mkdir",
    "mkdirat",
    "link",
    "linkat",
    "rename",
    "renameat2",
    "symlink",
    "symlinkat",
    "rmdir",
    "copy_file_range",
    "sendfile",
    "fsync",
    "unlink",
    "unlinkat",
    "unshare",
    "mount",
    "umount2",
    "fchmod",
    "clone",
    "clone3",
    "fork",
    "wait4",
];

/// Runs what `call` returns once as it is, and then killed at each system call from its first socket on. `before`
/// prepares each run, `after` examines what the killed call has left.
pub fn at_every_system_call<'w>(
    world: &World,
    call: impl Fn() -> Call<'w>,
    before: impl Fn(),
    after: impl Fn(&str),
) {
    let from_the_first_socket = |names: &[&str]| {
        let first = names.iter().position(|name| *name == "socket").unwrap();
        (0..names.len()).map(|at| at >= first).collect()
    };
    let killed = at_system_calls(world, call, before, after, from_the_first_socket);
    assert!(killed > 10, "{killed}");
}

/// The same at each system call that changes something. Returns how many runs were killed.
pub fn at_every_change<'w>(
    world: &World,
    call: impl Fn() -> Call<'w>,
    before: impl Fn(),
    after: impl Fn(&str),
) -> u32 {
    let changing = |names: &[&str]| names.iter().map(|name| CHANGING.contains(name)).collect();
    at_system_calls(world, call, before, after, changing)
}

/// The same, from the last system call `first` on.
pub fn at_every_change_from<'w>(
    world: &World,
    first: &str,
    call: impl Fn() -> Call<'w>,
    before: impl Fn(),
    after: impl Fn(&str),
) -> u32 {
    let changing = |names: &[&str]| {
        let from = names.iter().rposition(|name| *name == first).unwrap();
        let of_probe = |(at, name): (usize, &&str)| at >= from && CHANGING.contains(name);
        names.iter().enumerate().map(of_probe).collect()
    };
    at_system_calls(world, call, before, after, changing)
}

/// `choose` tells for each system call of the first run, by their names, whether a run is killed at it.
fn at_system_calls<'w>(
    world: &World,
    call: impl Fn() -> Call<'w>,
    before: impl Fn(),
    after: impl Fn(&str),
    choose: impl Fn(&[&str]) -> Vec<bool>,
) -> u32 {
    let traced = |options: &[&str]| {
        let words = [&["strace", "-qq", "-o", TRACE], options].concat();
        call().under(&words).run().status
    };
    before();
    assert_eq!(traced(&[]), 0);
    after("not killed");
    let trace = world.read(TRACE);
    let names = trace.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name);
    let names: Vec<&str> = names.collect();
    let mut counts = BTreeMap::new();
    let mut killed = 0;
    for (name, is_chosen) in names.iter().zip(choose(&names)) {
        let count = counts.entry(name).or_insert(0);
        *count += 1;
        if is_chosen {
            let point = format!("inject={name}:signal=KILL:when={count}");
            before();
            killed += u32::from(traced(&["-e", &point]) != 0);
            after(&point);
        }
    }
    killed
}
