//! Tap interfaces. A program reads and writes their frames through a file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::libc;

use crate::error::{Error, Result};
use crate::fault;
use crate::kernel::file;
use crate::kernel::sys::{self, TunRequest};

/// Source: linux/if_tun.h.
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
/// Without this flag the kernel opens an existing tap of the name.
const IFF_TUN_EXCL: u16 = 0x8000;

const DEVICE: &str = "/dev/net/tun";

/// A tap to create.
pub struct NewTap<'a> {
    pub name: &'a str,
    /// The user id and the group id that may use the tap, beside root: `owner` and `group`.
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub multi_queue: bool,
    /// The SELinux context of the tap; empty for the context of this process.
    pub selinux_context: &'a str,
}

/// A tap of this process. The kernel removes it when this value is dropped, or at the end of the process, unless `keep` was
/// called.
pub struct Tap {
    device: File,
    name: String,
}

/// Opens the device of taps. The kernel loads the module if it can.
pub fn open() -> Result<File> {
    file::open_any(Path::new(DEVICE), OFlag::O_RDWR, 0).map_err(|error| {
        let text = format!("cannot open {DEVICE}: {}", sys::reason(&error));
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::internal(text)
                .with_details("the kernel lacks CONFIG_TUN, or the device file was not created"),
            _ => Error::internal(text),
        }
    })
}

impl Tap {
    /// Creates a tap in the namespace of the calling thread.
    pub fn create(new: &NewTap<'_>) -> Result<Self> {
        let tap = Self { device: open()?, name: new.name.into() };
        let multi_queue = if new.multi_queue { IFF_MULTI_QUEUE } else { 0 };
        let flags = IFF_TAP | IFF_NO_PI | IFF_TUN_EXCL | multi_queue;
        let device = tap.device.as_fd();
        tap.explain("create", fault::kernel_request())?;
        match new.selinux_context {
            "" => tap.explain("create", sys::tun_set_name(device, new.name, flags))?,
            context => {
                let result = sys::tun_set_name_in_context(device, new.name, flags, context);
                tap.explain("create", result).map_err(|error| {
                    error.with_details(format_args!("SELinux context {context}"))
                })?;
            }
        }
        for (request, id) in [(TunRequest::Owner, new.owner), (TunRequest::Group, new.group)] {
            if let Some(id) = id {
                tap.set("set the owner of", request, id)?;
            }
        }
        Ok(tap)
    }

    /// Makes the tap persistent: it outlives this process.
    pub fn keep(self) -> Result<()> {
        self.set("keep", TunRequest::Persist, 1)
    }

    fn set(&self, verb: &str, request: TunRequest, value: u32) -> Result<()> {
        let set = || sys::tun_set(self.device.as_fd(), request, value);
        self.explain(verb, fault::kernel_request().and_then(|()| set()))
    }

    /// Adds the verb and the name of the tap to an error.
    fn explain(&self, verb: &str, result: io::Result<()>) -> Result<()> {
        result.map_err(|error| {
            // EBUSY: a link of any kind has the name.
            let reason = match error.kind() {
                io::ErrorKind::ResourceBusy => "it already exists",
                _ => &sys::reason(&error),
            };
            Error::internal(format_args!("cannot {verb} tap {}: {reason}", self.name))
        })
    }
}
