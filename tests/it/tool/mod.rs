//! The operator's commands: `cnibox help`, `man`, `completion`, `lint`.

mod completion;
mod help;
mod lint;
mod log;

use crate::world::{Call, World};

/// `cnibox` with these arguments.
fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    world.tool(&[&["/run/bin/cnibox"], args].concat(), None)
}
