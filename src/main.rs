//! The program: passes its arguments to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cnibox::run(std::env::args_os().collect()).into()
}
