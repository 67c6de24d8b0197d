//! Decides which addresses a server may assign. Rules of the host have the address of a lease, such as those of published
//! ports and the accepts of `firewall`. So a server that assigned an address of the host would publish the host's own
//! services.
//!
//! The address must be within the subnets of the network (`ipam.subnets`); without them, within the subnet of the first lease
//! of its family. It must not be reserved, such as a loopback or link-local address, and must not be an address of the host
//! or of another attachment.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use crate::attachments::life::Witness;
use crate::attachments::record::{self, Record, Records, Unreadable};
use crate::dhcp::lease::Leases;
use crate::dhcp::site::Site;
use crate::kernel::file;
use crate::names::reserved::{self, reserved};
use crate::netlink::rtnl::Rtnl;

/// The prefix length of an IPv6 subnet (RFC 4291, section 2.5.4). A DHCPv6 lease has no prefix length.
const SUBNET_BITS_V6: u8 = 64;

/// The reason why the client must decline an address. `None` if there is none. If the addresses of the host cannot be read,
/// the address is not compared with them.
pub fn problem(site: &Site<'_>, address: IpAddr) -> Option<&'static str> {
    if reserved(&address.into()).is_some() {
        return Some("the server offered an address that no container can have");
    }
    let (listed, first) = (&site.record.request.settings.subnets, &site.record.subnets);
    let is_of_family = |net: &&IpNet| net.addr().is_ipv4() == address.is_ipv4();
    let of_first: Vec<&IpNet> = first.iter().filter(is_of_family).collect();
    let is_within = match listed.is_empty() {
        true => of_first.is_empty() || of_first.iter().any(|net| net.contains(&address)),
        false => listed.iter().any(|net| net.contains(&address)),
    };
    if !is_within {
        return Some("the server offered an address outside of the subnets of the network");
    }
    // The prefix length of an IPv4 lease is known when its reply is read, see `v4::grant`.
    let in_subnet = |ip| Ipv6Net::new_assert(ip, SUBNET_BITS_V6).into();
    if let IpAddr::V6(ip) = address
        && reserved::in_subnet(&in_subnet(ip)).is_some()
    {
        return Some("the server offered an address that no interface can have");
    }
    match Rtnl::open().and_then(|host| host.all_addresses()) {
        Ok(all) if all.contains(&address) => {
            return Some("the server offered an address of this host");
        }
        Ok(_) => {}
        Err(_) => return Some("the addresses of this host cannot be read"),
    }
    let key = &site.record.request.key;
    let records = Records::in_directory(file::below(site.prefix, record::DIRECTORY.path()));
    let Ok(all) = records.all() else {
        return Some("the records of the attachments cannot be read");
    };
    let mut unreadable = all.unreadable.iter();
    let is_held = all.records.iter().any(|record| is_of_other_holder(site, record, address))
        || unreadable.any(|Unreadable { file, .. }| {
            *file != records.file_name(&key.network, &key.at) && records.may_claim(file, address)
        });
    is_held.then_some("another container of this host has the offered address")
}

/// Whether a record is of another attachment, which has the address and has not ended.
fn is_of_other_holder(site: &Site<'_>, record: &Record, address: IpAddr) -> bool {
    let key = &site.record.request.key;
    let is_own = record.network == key.network && record.at == key.at;
    let has_it = record.made.last().is_some_and(|made| made.addresses.contains(&address));
    let has_ended = || {
        let life = Witness::new().map(|witness| witness.life_of_record(record));
        life.is_ok_and(|life| life.is_ended())
    };
    has_it && !is_own && !has_ended()
}

/// The subnets of leases.
pub fn subnets(leases: &Leases) -> Vec<IpNet> {
    let v4 = leases.v4.iter().map(|lease| IpNet::V4(lease.address.trunc()));
    let of_v6 = |address: Ipv6Addr| Ipv6Net::new_assert(address, SUBNET_BITS_V6).trunc();
    let v6 = leases.v6.iter().map(|lease| IpNet::V6(of_v6(lease.address)));
    v4.chain(v6).collect()
}
