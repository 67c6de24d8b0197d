//! `cnibox`: every CNI plugin in one executable. The name of the executable selects the plugin.
//!
//! All code is in this library, which `main.rs` calls. Only the modules that `tests/threads.rs` uses are public: in private
//! modules the compiler warns about dead code.

// A build with fewer features does not use all code of the shared modules.
#![cfg_attr(not(feature = "default"), allow(dead_code, unused_imports))]

pub mod attachments;
mod cli;
pub mod cni;
mod daemon;
mod dhcp;
pub mod error;
mod fault;
mod ipam;
pub mod kernel;
pub mod names;
pub mod netlink;
pub mod plugin;
pub mod plugins;
mod rules;
pub mod runtime;
mod serve;
mod steps;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::plugin::Entry;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: kernel::sys::allocator::Allocator = kernel::sys::allocator::Allocator::new();

/// The most symbolic links that `plugin_of_path` follows, as in the kernel.
const LINKS_MAX: usize = 40;

/// Runs the program. The first argument is the name of the executable. Returns the exit code.
pub fn run(args: Vec<OsString>) -> u8 {
    fault::arm(|name| std::env::var_os(name));
    #[cfg(target_env = "musl")]
    kernel::sys::protect_relocated_data();
    let mut args = args.into_iter();
    let called_as = PathBuf::from(args.next().unwrap_or_else(|| "cnibox".into()));
    let args: Vec<OsString> = args.collect();
    #[cfg(feature = "netavark")]
    if serve::command().is_empty()
        && let Some(code) = cli::netavark::answer(&args)
    {
        return code;
    }
    if let Some(entry) = plugin_of_path(&called_as) {
        return call(entry, &args);
    }
    let name = base_name(&called_as);
    if name != "cni" && !name.starts_with("cnibox") {
        return serve::unknown(&name, plugins::PLUGINS);
    }
    let first = args.first().map(|arg| arg.to_string_lossy());
    match first.as_deref() {
        None if !serve::command().is_empty() => serve::unknown(&name, plugins::PLUGINS),
        None => cli::run(&args),
        Some(first) => match plugins::called(first) {
            Some(entry) => call(entry, &args[1..]),
            None if cli::accepts(first) => cli::run(&args),
            None if serve::command().is_empty() => cli::unknown(first),
            None => serve::unknown(first, plugins::PLUGINS),
        },
    }
}

/// Calls a plugin, or runs a command of `dhcp`: `dhcp daemon` or `dhcp leases`.
fn call(entry: &'static Entry, args: &[OsString]) -> u8 {
    match args.first() {
        Some(word) if is_dhcp(entry) && cli::dhcp::is_command(word) => cli::dhcp::run(args),
        _ => serve::serve(entry, plugins::PLUGINS),
    }
}

/// Whether the plugin is `dhcp`. Without the feature `dhcp` this is the constant false, so the compiler leaves the daemon out
/// of the executable.
fn is_dhcp(entry: &Entry) -> bool {
    cfg!(feature = "dhcp") && entry.name == "dhcp"
}

/// The plugin that the last component of this executable's path names. If it names none, follows the symbolic link at the path
/// and tries the last component of its target. Does not use /proc: the caller can have changed the root directory.
fn plugin_of_path(path: &Path) -> Option<&'static Entry> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let found = plugins::called(&base_name(&path));
        if found.is_some() {
            return found;
        }
        path = path.parent()?.join(std::fs::read_link(&path).ok()?);
    }
    None
}

fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
