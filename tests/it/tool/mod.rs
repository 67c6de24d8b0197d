//! The operator's commands: `cnibox help`, `man`, `completion`, `install`, `lint`, `doctor`, `ipam`, `metrics`, `explain`.

mod completion;
mod doctor;
mod documents;
mod explained;
mod faults;
mod habits;
mod help;
mod install;
mod ipam;
mod lint;
mod log;
mod metrics;
mod not_regular;
mod probe;
mod sizes;

use crate::world::{Call, World};

/// `cnibox` with these arguments.
fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    world.tool(&[&["/run/bin/cnibox"], args].concat(), None)
}

#[test]
fn a_command_fails_if_its_output_cannot_be_written() {
    let world = World::new();
    for command in ["list", "--version", "lint /etc", "help bridge", "--help", "dhcp leases --help"]
    {
        let script = format!("exec /run/bin/cnibox {command} >/dev/full");
        let outcome = world.tool(&["sh", "-c", &script], None).run();
        assert_eq!(outcome.status, 1, "{command}: {}", outcome.report());
        let reason = "cnibox: cannot write to stdout: No space left on device\n";
        assert_eq!(outcome.stderr, reason, "{command}");
    }
}
