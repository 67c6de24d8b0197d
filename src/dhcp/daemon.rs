//! The daemon: the table of leases behind its socket.

use std::sync::Arc;

use crate::cni::success::Success;
use crate::dhcp::clients::Options;
use crate::dhcp::flags::Flags;
use crate::dhcp::journal::{Journal, Record};
use crate::dhcp::lease::Key;
use crate::dhcp::protocol::Ask;
use crate::dhcp::server::{self, Passed, Service};
use crate::dhcp::table::Table;
use crate::dhcp::v4::client::Times;
use crate::error::{Error, Result};
use crate::kernel::sys::{self, thread};
use crate::names::{Attachment, NetworkName};

/// Runs the daemon until a signal ends it. The leases stay.
pub fn run(flags: &Flags, passed: Passed) -> Result<()> {
    server::run(flags, passed, &|journal| open(flags, journal))
}

fn open(flags: &Flags, journal: Journal) -> Result<Arc<dyn Service>> {
    // 500 attachments at once have as many connections and sockets.
    sys::raise_file_limit();
    let options = Options {
        times: Times {
            timeout: flags.timeout.into(),
            resend_max: flags.resend_max.into(),
            resend_timeout: flags.resend_timeout.into(),
        },
        prefix: flags.hostprefix.clone(),
        broadcast: flags.broadcast,
    };
    let table = Table::open(journal, options)?;
    let clients = Arc::clone(&table);
    thread::start(Box::new(move || clients.run()))
        .map_err(|error| Error::internal(format!("cannot start a thread: {error}")))?;
    Ok(Arc::new(Daemon(table)))
}

/// The table as the socket needs it.
struct Daemon(Arc<Table>);

impl Service for Daemon {
    fn acquire(&self, ask: &Ask) -> Result<Success> {
        self.0.acquire(ask)
    }

    fn has(&self, key: &Key) -> bool {
        self.0.has(key)
    }

    fn check(&self, key: &Key) -> Result<()> {
        self.0.check(key)
    }

    fn release(&self, key: &Key) -> Result<()> {
        self.0.release(key)
    }

    fn retain(&self, network: &NetworkName, keep: &[Attachment]) -> Result<()> {
        self.0.retain(network, keep)
    }

    fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    fn list(&self) -> Vec<(Record, &'static str)> {
        self.0.list()
    }

    fn limit(&self) -> std::time::Duration {
        self.0.limit()
    }
}
