//! The host's record of the devices that are away: one file per attachment, `/run/cni/host-device/CONTAINERID:IFNAME`,
//! which holds the passport as text. A container cannot reach it, so what a passport says is believed only if it is
//! there, too. It goes with the host's next boot, which brings the devices home.
//!
//! Written by ADD, before the device is touched. Removed by a failing ADD, DEL and GC, when the device is home.

use crate::error::Result;
use crate::kernel::rtnl::{Link, Rtnl};
use crate::names::Attachment;
use crate::steps::state::{self, Record};

use super::passport::Passport;

const DIR: &str = "/run/cni/host-device";

/// What is recorded of one attachment.
pub struct Entry {
    pub record: Record,
    pub passport: Passport,
}

/// All entries.
pub struct Journal(pub Vec<Entry>);

/// The file of an attachment. Neither of the names has a colon.
pub fn record(at: &Attachment) -> Record {
    Record::new(DIR, &format!("{}:{}", at.container_id, at.ifname))
}

/// What was recorded of the attachment, whatever its network was called then.
pub fn find(at: &Attachment) -> Result<Option<Passport>> {
    read(&record(at))
}

fn read(record: &Record) -> Result<Option<Passport>> {
    let content = record.read()?;
    Ok(content.and_then(|content| Passport::parse(std::str::from_utf8(&content).ok()?)))
}

/// For STATUS: fails when nothing could be recorded.
pub fn check_writable() -> Result<()> {
    state::check_writable(DIR)
}

impl Journal {
    pub fn open() -> Result<Self> {
        let mut entries = Vec::new();
        for record in state::all(DIR)? {
            entries.extend(read(&record)?.map(|passport| Entry { record, passport }));
        }
        Ok(Self(entries))
    }

    /// What a link was on the host before it was away.
    pub fn of(&self, link: &Link) -> Option<&Passport> {
        self.0.iter().map(|entry| &entry.passport).find(|passport| passport.is_on(link))
    }

    /// Devices that are not on the host now.
    pub fn away(&self, host: &Rtnl) -> Result<Vec<&Passport>> {
        let links = host.links()?;
        let is_here = |passport: &Passport| {
            links.iter().any(|link| passport.is_on(link) || passport.is_at_home_as(link))
        };
        let passports = self.0.iter().map(|entry| &entry.passport);
        Ok(passports.filter(|passport| !is_here(passport)).collect())
    }

    /// Forgets what was recorded of a link for other attachments: it is another one's now.
    pub fn hand_over(&self, link: &Link, to: &Attachment) -> Result<()> {
        let own = record(to);
        let is_old =
            |entry: &&Entry| entry.passport.is_on(link) && entry.record.name() != own.name();
        self.0.iter().filter(is_old).try_for_each(|entry| entry.record.remove())
    }
}
