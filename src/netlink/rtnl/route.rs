//! Unicast routes: reading, adding and deleting them.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use neli::consts::nl::NlmF;
use nix::libc;

use super::consts::{
    RT_TABLE_MAIN, RTA_VIA, RTAX_ADVMSS, RTAX_MTU, RTM_F_FIB_MATCH, RTNH_F_ONLINK,
};
use super::{Batch, Rtnl};
use crate::error::Result;
use crate::names::{IpFamily, RouteType};
use crate::netlink::{
    Attrs, Error, Requests, attribute, fixed, found, ip_of, octets, u16_at, u32_at, u32_of,
};

/// A route. In a route to add, `None` is the kernel's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub dst: IpNet,
    pub kind: RouteType,
    pub via: Option<IpAddr>,
    /// The index of the link that the packets leave through.
    pub dev: Option<u32>,
    pub src: Option<IpAddr>,
    pub metric: Option<u32>,
    /// `None` is the main table. A route that was read always has a table.
    pub table: Option<u32>,
    /// RT_SCOPE_*: 0 universe, 253 link, 254 host. IPv6 ignores it.
    pub scope: Option<u8>,
    /// RTPROT_*, the origin: 2 is the kernel. `None` is RTPROT_BOOT (3), as for a route that `ip route` adds.
    pub protocol: Option<u8>,
    /// The gateway need not be in a prefix of the link.
    pub onlink: bool,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
    /// The nexthops of a multipath route that was read. Such a route has no `via` and no `dev`.
    pub nexthops: Vec<NextHop>,
}

/// A nexthop of a multipath route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    pub via: Option<IpAddr>,
    pub dev: u32,
}

impl Rtnl {
    /// The unicast routes of every table.
    pub fn routes(&self, family: IpFamily) -> Result<Vec<Route>> {
        self.list_routes(family, libc::RTN_UNICAST)
    }

    /// The routes of every table that reject packets.
    pub fn rejecting_routes(&self, family: IpFamily) -> Result<Vec<Route>> {
        let mut routes = Vec::new();
        for kind in [libc::RTN_BLACKHOLE, libc::RTN_UNREACHABLE, libc::RTN_PROHIBIT] {
            routes.extend(self.list_routes(family, kind)?);
        }
        Ok(routes)
    }

    /// The routes of every table with the type `kind`, one of RTN_*.
    fn list_routes(&self, family: IpFamily, kind: u8) -> Result<Vec<Route>> {
        let (doing, mut header) = ("cannot list routes", [0; HEADER_BYTES]);
        header[0] = family.number();
        let request = Requests::bare(libc::RTM_GETROUTE, NlmF::empty(), doing, &header);
        Ok(self.socket.dump(request, |payload| Route::parse(payload, kind))?)
    }

    /// Waits until the kernel accepts packets to these IPv6 addresses in the table, which is some time after the addresses are
    /// added to a link. Returns false after the timeout.
    pub fn wait_for_local(
        &self,
        table: u32,
        addresses: &[IpAddr],
        timeout: Duration,
    ) -> Result<bool> {
        let (is_done, ()) = self.wait(libc::RTNLGRP_IPV6_ROUTE, timeout, || {
            let local = self.list_routes(IpFamily::V6, libc::RTN_LOCAL)?;
            let is_there = |address: &IpAddr| {
                local.iter().any(|route| route.table == Some(table) && route.dst.addr() == *address)
            };
            Ok((addresses.iter().all(is_there), ()))
        })?;
        Ok(is_done)
    }

    /// The index of the link that packets to an address leave through; `None` without a route. Policy rules can select the
    /// route by the source, an address of the namespace.
    pub fn link_towards(&self, ip: IpAddr, source: Option<IpAddr>) -> Result<Option<u32>> {
        let link = |payload: &[u8]| {
            attribute(payload.get(HEADER_BYTES..)?, libc::RTA_OIF).and_then(u32_of)
        };
        self.route_to(ip, source, 0, link)
    }

    /// The index of the link that has an address; `None` if this namespace does not have the address.
    pub fn link_with_address(&self, ip: IpAddr) -> Result<Option<u32>> {
        let link = |payload: &[u8]| {
            let local = Route::parse(payload, libc::RTN_LOCAL)?;
            local.dev.filter(|_| local.dst.addr() == ip)
        };
        // The entry of the table has the link. The result of the look-up has `lo`.
        self.route_to(ip, None, RTM_F_FIB_MATCH, link)
    }

    /// Reads the route that the kernel selects for an address; `None` without a route.
    fn route_to<T>(
        &self,
        ip: IpAddr,
        source: Option<IpAddr>,
        flags: u32,
        read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>> {
        let doing = format!("cannot find the route to {ip}");
        let request = Requests::one(libc::RTM_GETROUTE, NlmF::empty(), doing, |attrs| {
            let mut header = [0; HEADER_BYTES];
            let family = IpFamily::of(ip);
            (header[0], header[1]) = (family.number(), family.bits());
            header[2] = source.map_or(0, |_| family.bits());
            header[8..].copy_from_slice(&flags.to_ne_bytes());
            attrs.raw(&header);
            attrs.ip(libc::RTA_DST, ip);
            if let Some(source) = source {
                attrs.ip(libc::RTA_SRC, source);
            }
        });
        Ok(found(self.socket.get(request, read), Error::is_unreachable)?.flatten())
    }
}

impl Batch {
    /// Adds a route. An existing route is no error. `nexthops` is ignored.
    pub fn add_route(&mut self, route: &Route) {
        let via = route.via.map_or_else(String::new, |via| format!(" via {via}"));
        let doing = format!("cannot add route to {}{via}", route.dst);
        self.requests.push(libc::RTM_NEWROUTE, NlmF::CREATE, doing, |attrs| route.encode(attrs));
        self.requests.tolerate(libc::EEXIST);
    }

    /// Deletes a route. A missing route is no error. With a route that was read, the kernel deletes exactly this route.
    pub fn del_route(&mut self, route: &Route) {
        let doing = format!("cannot delete route to {}", route.dst);
        self.requests.push(libc::RTM_DELROUTE, NlmF::empty(), doing, |attrs| route.encode(attrs));
        self.requests.tolerate(libc::ESRCH);
    }
}

impl Route {
    /// A route with a destination and the kernel's defaults.
    pub fn to(dst: IpNet) -> Self {
        Self {
            dst,
            kind: RouteType::Unicast,
            via: None,
            dev: None,
            src: None,
            metric: None,
            table: None,
            scope: None,
            protocol: None,
            onlink: false,
            mtu: None,
            advmss: None,
            nexthops: Vec::new(),
        }
    }

    fn encode(&self, attrs: &mut Attrs) {
        let table = self.table.unwrap_or(RT_TABLE_MAIN);
        let mut header = [0; HEADER_BYTES];
        header[0] = IpFamily::of(self.dst.addr()).number();
        header[1] = self.dst.prefix_len();
        // RTA_TABLE overrides this field.
        header[4] = u8::try_from(table).unwrap_or(libc::RT_TABLE_UNSPEC);
        header[5] = self.protocol.unwrap_or(libc::RTPROT_BOOT);
        header[6] = self.scope.unwrap_or(libc::RT_SCOPE_UNIVERSE);
        header[7] = match self.kind {
            RouteType::Unicast => libc::RTN_UNICAST,
            RouteType::Blackhole => libc::RTN_BLACKHOLE,
            RouteType::Unreachable => libc::RTN_UNREACHABLE,
            RouteType::Prohibit => libc::RTN_PROHIBIT,
        };
        if self.onlink {
            header[8..].copy_from_slice(&RTNH_F_ONLINK.to_ne_bytes());
        }
        attrs.raw(&header);
        // The kernel refuses a destination with host bits.
        attrs.ip(libc::RTA_DST, self.dst.network());
        match self.via {
            Some(via) if IpFamily::of(via) == IpFamily::of(self.dst.addr()) => {
                attrs.ip(libc::RTA_GATEWAY, via);
            }
            // An IPv4 route with an IPv6 gateway.
            Some(via) => attrs.bytes(RTA_VIA, &encode_via(via)),
            None => {}
        }
        if let Some(src) = self.src {
            attrs.ip(libc::RTA_PREFSRC, src);
        }
        attrs.u32s(&[(libc::RTA_OIF, self.dev), (libc::RTA_PRIORITY, self.metric)]);
        attrs.u32(libc::RTA_TABLE, table);
        if self.mtu.is_some() || self.advmss.is_some() {
            attrs.nested(libc::RTA_METRICS, |metrics| {
                metrics.u32s(&[(RTAX_MTU, self.mtu), (RTAX_ADVMSS, self.advmss)]);
            });
        }
    }

    fn parse(payload: &[u8], wanted: u8) -> Option<Self> {
        let [family, prefix_len, _, _, table, protocol, scope, kind] = fixed(payload, 0)?;
        let flags = u32_at(payload, 8)?;
        if kind != wanted || flags & libc::RTM_F_CLONED != 0 {
            return None;
        }
        let list = payload.get(HEADER_BYTES..)?;
        let number = |kind| attribute(list, kind).and_then(u32_of);
        let metrics = attribute(list, libc::RTA_METRICS).unwrap_or_default();
        Some(Self {
            dst: match attribute(list, libc::RTA_DST) {
                Some(dst) => IpNet::new(ip_of(family, dst)?, prefix_len).ok()?,
                // The kernel sends a default route without RTA_DST.
                None => IpFamily::from_number(family)?.everything(),
            },
            kind: match kind {
                libc::RTN_BLACKHOLE => RouteType::Blackhole,
                libc::RTN_UNREACHABLE => RouteType::Unreachable,
                libc::RTN_PROHIBIT => RouteType::Prohibit,
                _ => RouteType::Unicast,
            },
            via: gateway(family, list),
            dev: number(libc::RTA_OIF),
            src: attribute(list, libc::RTA_PREFSRC).and_then(|src| ip_of(family, src)),
            metric: number(libc::RTA_PRIORITY),
            table: number(libc::RTA_TABLE).or_else(|| Some(table.into())),
            scope: Some(scope),
            protocol: Some(protocol),
            onlink: flags & RTNH_F_ONLINK != 0,
            mtu: attribute(metrics, RTAX_MTU).and_then(u32_of),
            advmss: attribute(metrics, RTAX_ADVMSS).and_then(u32_of),
            nexthops: attribute(list, libc::RTA_MULTIPATH)
                .map(|list| nexthops(family, list).collect())
                .unwrap_or_default(),
        })
    }
}

/// The gateway in the attributes of a route or of a nexthop.
fn gateway(family: u8, list: &[u8]) -> Option<IpAddr> {
    match attribute(list, libc::RTA_GATEWAY) {
        Some(gateway) => ip_of(family, gateway),
        None => via_of(attribute(list, RTA_VIA)?),
    }
}

/// A list of struct rtnexthop (length, flags, weight, index), each with attributes.
fn nexthops(family: u8, mut bytes: &[u8]) -> impl Iterator<Item = NextHop> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let dev = u32_at(bytes, 4)?;
        let via = gateway(family, bytes.get(8..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NextHop { via, dev })
    })
}

/// struct rtvia: a family of 16 bits, then the address.
fn encode_via(via: IpAddr) -> Vec<u8> {
    let family = u16::from(IpFamily::of(via).number());
    [&family.to_ne_bytes()[..], &octets(via)].concat()
}

fn via_of(value: &[u8]) -> Option<IpAddr> {
    ip_of(u8::try_from(u16_at(value, 0)?).ok()?, value.get(2..)?)
}

const HEADER_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{AF_INET, rows};

    fn to(dst: &str) -> Route {
        Route::to(dst.parse().unwrap())
    }

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    /// Routes and their bytes. The routes have all attributes that the kernel sends, so the bytes can be read back.
    fn samples() -> [(Route, &'static str); 5] {
        let metrics = Route { mtu: Some(1300), advmss: Some(1200), ..to("::/0") };
        [
            (
                Route { via: ip("10.1.0.1"), dev: Some(7), ..to("0.0.0.0/0") },
                "02000000 fe030001 00000000 08000100 00000000 \
                 08000500 0a010001 08000400 07000000 08000f00 fe000000",
            ),
            (
                Route {
                    src: ip("10.1.0.5"),
                    metric: Some(77),
                    table: Some(1000),
                    scope: Some(253),
                    ..to("10.9.0.1/32")
                },
                "02200000 0003fd01 00000000 08000100 0a090001 \
                 08000700 0a010005 08000600 4d000000 08000f00 e8030000",
            ),
            (
                metrics,
                "0a000000 fe030001 00000000 14000100 00000000 00000000 00000000 00000000 \
                 08000f00 fe000000 14000880 08000200 14050000 08000800 b0040000",
            ),
            (
                Route { via: ip("10.1.0.1"), onlink: true, ..to("0.0.0.0/0") },
                "02000000 fe030001 04000000 08000100 00000000 08000500 0a010001 08000f00 fe000000",
            ),
            (
                Route { via: ip("fe80::1"), ..to("10.8.0.0/16") },
                "02100000 fe030001 00000000 08000100 0a080000 \
                 16001200 0a00fe80 00000000 00000000 00000000 00010000 08000f00 fe000000",
            ),
        ]
    }

    #[test]
    fn routes_are_written_and_read_back() {
        for (route, expected) in samples() {
            let mut attrs = Attrs::default();
            route.encode(&mut attrs);
            assert_eq!(rows(attrs.as_slice()), expected, "{}", route.dst);
            let table = route.table.or(Some(RT_TABLE_MAIN));
            let scope = route.scope.or(Some(0));
            let read = Route { table, scope, protocol: Some(libc::RTPROT_BOOT), ..route };
            assert_eq!(Route::parse(attrs.as_slice(), libc::RTN_UNICAST), Some(read));
        }
    }

    #[test]
    fn host_bits_of_a_destination_are_not_sent() {
        let (mut untidy, mut tidy) = (Attrs::default(), Attrs::default());
        to("10.8.3.4/16").encode(&mut untidy);
        to("10.8.0.0/16").encode(&mut tidy);
        assert_eq!(rows(untidy.as_slice()), rows(tidy.as_slice()));
    }

    #[test]
    fn a_truncated_route_is_read_as_far_as_possible() {
        for (route, _) in samples() {
            let mut attrs = Attrs::default();
            route.encode(&mut attrs);
            for end in 0..attrs.as_slice().len() {
                assert_eq!(
                    Route::parse(&attrs.as_slice()[..end], libc::RTN_UNICAST).is_some(),
                    end >= HEADER_BYTES
                );
            }
        }
    }

    #[test]
    fn only_unicast_routes_of_a_table_are_read() {
        let header = |kind: u8, flags: u8| [2, 0, 0, 0, 254, 3, 0, kind, 0, flags, 0, 0];
        assert!(Route::parse(&header(libc::RTN_UNICAST, 0), libc::RTN_UNICAST).is_some());
        assert_eq!(Route::parse(&header(libc::RTN_LOCAL, 0), libc::RTN_UNICAST), None);
        // RTM_F_CLONED: an entry of the kernel's cache.
        assert_eq!(Route::parse(&header(libc::RTN_UNICAST, 2), libc::RTN_UNICAST), None);
    }

    #[test]
    fn nexthops_of_a_multipath_route() {
        let hop = |dev: u8, via: &[u8]| {
            let mut gateway = Attrs::default();
            gateway.bytes(libc::RTA_GATEWAY, via);
            [&[16, 0, 0, 0, dev, 0, 0, 0], gateway.as_slice()].concat()
        };
        let list = [hop(2, &[10, 1, 0, 1]), hop(3, &[10, 1, 0, 2])].concat();
        let expected =
            [NextHop { via: ip("10.1.0.1"), dev: 2 }, NextHop { via: ip("10.1.0.2"), dev: 3 }];
        assert_eq!(nexthops(AF_INET, &list).collect::<Vec<_>>(), expected);
        for end in 0..list.len() {
            assert_eq!(nexthops(AF_INET, &list[..end]).count(), end / 16, "{end}");
        }
        for length in [0, 4, 7, 255] {
            let mut list = list.clone();
            list[0] = length;
            assert_eq!(nexthops(AF_INET, &list).count(), 0, "{length}");
        }
    }
}
