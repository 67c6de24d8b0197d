//! The values that the plugin sets. One type holds the configured, the current and the saved values.

use std::fmt;

use crate::cni::json::{Json, Read, keys};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sysctl;
use crate::names::Mac;
use crate::netlink::rtnl::{Link, LinkChange, Rtnl};
use crate::steps::link::taken_mac;
use crate::steps::undo::Failures;

/// Values of attributes and sysctls: configured, saved or current. A configured value that is `None` is not changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    pub mac: Option<Mac>,
    pub promisc: Option<bool>,
    pub mtu: Option<u32>,
    pub allmulti: Option<bool>,
    pub tx_queue_len: Option<u32>,
    /// Paths below /proc/sys and values, in the order in which they are written.
    pub sysctls: Vec<(String, String)>,
}

keys! {
    struct Values {
        "mac" => mac: String,
        "promisc" => promisc: Option<bool>,
        "mtu" => mtu: Option<u32>,
        "allmulti" => allmulti: Option<bool>,
        "txQLen" => tx_queue_len: Option<u32>,
    }
}

impl Tuned {
    /// Reads all values of an object except sysctls, which a configuration and a file write in different notations. `null` has
    /// no values.
    pub fn read(json: &Json) -> Result<Self> {
        let mut values = Values::default();
        if !json.is_null() {
            values.read(json).map_err(|error| unreadable(format_args!("{error}")))?;
        }
        let mac = Some(values.mac).filter(|mac| !mac.is_empty());
        Ok(Self {
            mac: mac.map(|mac| Mac::of_argument(&mac)).transpose()?,
            promisc: values.promisc,
            mtu: values.mtu.filter(|mtu| *mtu != 0),
            allmulti: values.allmulti,
            tx_queue_len: values.tx_queue_len,
            sysctls: Vec::new(),
        })
    }

    /// These values, completed by those of `other` that are not set here.
    pub fn or(mut self, other: Self) -> Self {
        let is_new =
            |(path, _): &(String, String)| !self.sysctls.iter().any(|(other, _)| other == path);
        let new: Vec<_> = other.sysctls.into_iter().filter(is_new).collect();
        self.sysctls.extend(new);
        Self {
            mac: self.mac.or(other.mac),
            promisc: self.promisc.or(other.promisc),
            mtu: self.mtu.or(other.mtu),
            allmulti: self.allmulti.or(other.allmulti),
            tx_queue_len: self.tx_queue_len.or(other.tx_queue_len),
            sysctls: self.sysctls,
        }
    }

    /// These values without the sysctls of an interface.
    pub fn without_sysctls_of(mut self, ifname: &str) -> Self {
        self.sysctls.retain(|(path, _)| path.split('/').all(|part| part != ifname));
        self
    }

    pub fn changes_link(&self) -> bool {
        self.mac.is_some()
            || self.mtu.or(self.tx_queue_len).is_some()
            || self.promisc.or(self.allmulti).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.sysctls.is_empty() && !self.changes_link()
    }

    /// Reads the current values of the attributes and sysctls that are set here. A sysctl that cannot be read is left out.
    pub fn read_current(&self, netns: &NetNs, link: Option<&Link>) -> Result<Self> {
        let mut now = netns.run(|| self.current_sysctls())?;
        if let Some(link) = link {
            now.mac = self.mac.and(link.mac);
            now.promisc = self.promisc.and(Some(link.promiscuous));
            now.mtu = self.mtu.and(Some(link.mtu));
            now.allmulti = self.allmulti.and(Some(link.all_multicast));
            now.tx_queue_len = self.tx_queue_len.and(Some(link.tx_queue_len));
        }
        Ok(now)
    }

    /// Reads the current values of the sysctls that are set here. Must run in the namespace of the container.
    fn current_sysctls(&self) -> Result<Self> {
        let mut now = Self::default();
        for (path, _) in &self.sysctls {
            if let Some(value) = sysctl::get(path)? {
                now.sysctls.push((path.clone(), value));
            }
        }
        Ok(now)
    }

    /// Sets these values, the sysctls first: `arp_notify` announces the new MAC address.
    pub fn apply(&self, netns: &NetNs, rtnl: &Rtnl, link: Option<&Link>) -> Result<()> {
        netns.run(|| {
            self.sysctls.iter().try_for_each(|(path, value)| sysctl::set(path, value).map(drop))
        })?;
        link.map_or(Ok(()), |link| self.apply_to(rtnl, link))
    }

    /// Sets these saved values in reverse order. After a failure the other values are still set. A sysctl that no longer exists
    /// or is read-only is skipped.
    pub fn restore(&self, netns: &NetNs, rtnl: &Rtnl, link: Option<&Link>) -> Result<()> {
        let mut failures = Failures::default();
        if let Some(link) = link.filter(|_| self.changes_link()) {
            failures.note(self.apply_to(rtnl, link));
        }
        netns.run(|| {
            for (path, value) in self.sysctls.iter().rev() {
                failures.note(sysctl::set_if_possible(path, value));
            }
            Ok(())
        })?;
        failures.into_result()
    }

    fn apply_to(&self, rtnl: &Rtnl, link: &Link) -> Result<()> {
        let change = LinkChange {
            mac: self.mac,
            promiscuous: self.promisc,
            mtu: self.mtu,
            all_multicast: self.allmulti,
            tx_queue_len: self.tx_queue_len,
            ..LinkChange::default()
        };
        match self.mac {
            Some(mac) => taken_mac::change_when_free(rtnl, link, mac, &change),
            None => rtnl.change_link(link.index, &link.name, &change),
        }
    }

    /// Fails if a value of `now` differs from the configured value. The error names the first difference.
    pub fn compare(&self, now: &Self, ifname: &str) -> Result<()> {
        let mac = |mac: Option<Mac>| mac.map(|mac| mac.to_string());
        let switch =
            |is_on: Option<bool>| is_on.map(|is_on| if is_on { "on" } else { "off" }.into());
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        for (what, wanted, now) in [
            ("MAC address", mac(self.mac), mac(now.mac)),
            ("promisc", switch(self.promisc), switch(now.promisc)),
            ("MTU", number(self.mtu), number(now.mtu)),
            ("allmulti", switch(self.allmulti), switch(now.allmulti)),
            ("txQLen", number(self.tx_queue_len), number(now.tx_queue_len)),
        ] {
            if let Some(wanted) = wanted
                && now.as_ref() != Some(&wanted)
            {
                let now = now.unwrap_or_else(|| "none".into());
                return Err(Error::difference(format_args!(
                    "interface {ifname} has {what} {now}, not {wanted}"
                )));
            }
        }
        for (path, wanted) in &self.sysctls {
            // A sysctl that cannot be read is not compared.
            let now = now.sysctls.iter().find(|(other, _)| other == path);
            if let Some((_, now)) = now.filter(|(_, now)| !sysctl::is_same(now, wanted)) {
                return Err(Error::difference(format_args!(
                    "sysctl {path} is {now}, not {wanted}"
                )));
            }
        }
        Ok(())
    }
}

/// The error for a value of the wrong type. It begins with the error text of the reference.
pub fn unreadable(reason: fmt::Arguments<'_>) -> Error {
    Error::config(format_args!("failed to load netconf: {reason}"))
}
