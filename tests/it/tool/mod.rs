//! The operator's commands: `cnibox help`, `man`, `completion`, `install`, `lint`, `doctor`, `ipam`, `metrics`.

mod completion;
mod doctor;
mod documents;
mod help;
mod install;
mod ipam;
mod lint;
mod log;
mod metrics;

use crate::world::{Call, World};

/// `cnibox` with these arguments.
fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    world.tool(&[&["/run/bin/cnibox"], args].concat(), None)
}
