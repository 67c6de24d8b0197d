//! The DHCPv4 options of a server, with validated values (RFC 2132). An option with an invalid value counts as missing.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::dhcp::domain;
use crate::dhcp::lease::v4::Route;

pub const SUBNET_MASK: u8 = 1;
pub const ROUTERS: u8 = 3;
pub const DNS: u8 = 6;
pub const DOMAIN: u8 = 15;
pub const MTU: u8 = 26;
pub const STATIC_ROUTES: u8 = 33;
pub const REQUESTED_ADDRESS: u8 = 50;
pub const LEASE_TIME: u8 = 51;
pub const OVERLOAD: u8 = 52;
pub const MESSAGE_TYPE: u8 = 53;
pub const SERVER_ID: u8 = 54;
pub const REQUEST_LIST: u8 = 55;
pub const SIZE_MAX: u8 = 57;
pub const RENEWAL_TIME: u8 = 58;
pub const REBINDING_TIME: u8 = 59;
pub const CLIENT_ID: u8 = 61;
pub const SEARCH: u8 = 119;
pub const CLASSLESS_ROUTES: u8 = 121;
pub const PAD: u8 = 0;
pub const END: u8 = 255;

/// The smallest MTU that is accepted, in bytes: every host receives datagrams of this size (RFC 791, section 3.1).
const MTU_MIN: u16 = 576;

/// The options of a packet. The parts of an option that occurs several times are joined (RFC 3396).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    /// Adds the options of a field. Returns `None` if an option is longer than the rest of the field.
    pub fn read(&mut self, field: &[u8]) -> Option<()> {
        let mut rest = field;
        while let Some((&code, after)) = rest.split_first() {
            rest = match code {
                PAD => after,
                END => break,
                _ => {
                    let (&size, after) = after.split_first()?;
                    let (value, after) = after.split_at_checked(size.into())?;
                    self.append(code, value);
                    after
                }
            };
        }
        Some(())
    }

    fn append(&mut self, code: u8, value: &[u8]) {
        match self.0.iter_mut().find(|(known, _)| *known == code) {
            Some((_, first)) => first.extend_from_slice(value),
            None => self.0.push((code, value.to_vec())),
        }
    }

    pub fn get(&self, code: u8) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == code).map(|(_, value)| value.as_slice())
    }

    pub fn u8(&self, code: u8) -> Option<u8> {
        Some(u8::from_be_bytes(self.get(code)?.try_into().ok()?))
    }

    pub fn u32(&self, code: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(code)?.try_into().ok()?))
    }

    /// The addresses of an option, without those that no host can have.
    pub fn hosts(&self, code: u8) -> Vec<Ipv4Addr> {
        let value = self.get(code).unwrap_or_default();
        let (addresses, []) = value.as_chunks() else { return Vec::new() };
        addresses.iter().map(|bytes| Ipv4Addr::from(*bytes)).filter(|host| is_host(*host)).collect()
    }

    /// The server identifier, if it is an address that a host can have.
    pub fn server(&self) -> Option<Ipv4Addr> {
        match self.hosts(SERVER_ID).as_slice() {
            [server] => Some(*server),
            _ => None,
        }
    }

    /// The length of the subnet mask: 1 to 32.
    pub fn prefix_len(&self) -> Option<u8> {
        let mask = Ipv4Addr::from(self.u32(SUBNET_MASK)?);
        ipnet::ipv4_mask_to_prefix(mask).ok().filter(|bits| *bits > 0)
    }

    /// The MTU in bytes.
    pub fn mtu(&self) -> Option<u16> {
        let mtu = u16::from_be_bytes(self.get(MTU)?.try_into().ok()?);
        (mtu >= MTU_MIN).then_some(mtu)
    }

    /// The domain name; empty if it is missing or is not a name. If option 15 has several names, which Windows accepts, the
    /// first.
    pub fn domain(&self) -> String {
        self.domains().into_iter().next().unwrap_or_default()
    }

    /// The domain search list (RFC 3397). Without that option: the names of option 15, if it has several.
    pub fn search(&self) -> Vec<String> {
        let list = domain::list(self.get(SEARCH).unwrap_or_default()).unwrap_or_default();
        let domains = self.domains();
        if list.is_empty() && domains.len() > 1 { domains } else { list }
    }

    fn domains(&self) -> Vec<String> {
        domain::words(self.get(DOMAIN).unwrap_or_default())
    }

    /// The first router that is another host than the client.
    pub fn gateway(&self, own: Ipv4Net) -> Option<Ipv4Addr> {
        self.hosts(ROUTERS).into_iter().find(|gateway| *gateway != own.addr())
    }

    /// The classless routes (RFC 3442) if the server sent them; else the classful ones and the default route via the gateway.
    /// On-link routes come first. A router that is neither in the client's subnet nor in the destination of an on-link route
    /// gets an on-link route. Routes via the client itself, and routes to loopback and multicast addresses, are left out.
    pub fn routes(&self, own: Ipv4Net) -> Vec<Route> {
        let classless = self.get(CLASSLESS_ROUTES).and_then(classless_routes);
        let mut routes = classless.unwrap_or_else(|| {
            let (pairs, _) = self.get(STATIC_ROUTES).unwrap_or_default().as_chunks();
            let classful = pairs.iter().filter_map(classful_route);
            let dst = Ipv4Net::default();
            let default = self.gateway(own).map(|router| Route { dst, router });
            classful.chain(default).collect()
        });
        routes.retain(|route| route.router != own.addr() && is_routed(&route.dst));
        let (mut on_link, routed): (Vec<_>, Vec<_>) =
            routes.into_iter().partition(|route| route.router.is_unspecified());
        for Route { router, .. } in &routed {
            if !own.contains(router) && !on_link.iter().any(|route| route.dst.contains(router)) {
                on_link.push(Route { dst: (*router).into(), router: Ipv4Addr::UNSPECIFIED });
            }
        }
        on_link.extend(routed);
        on_link
    }
}

/// Whether an interface of a host can have the address.
pub fn is_host(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    first != 0 && first < 224 && !address.is_loopback()
}

/// Whether a router can forward packets to a destination: it is neither in 127.0.0.0/8 nor in 224.0.0.0/4.
fn is_routed(net: &Ipv4Net) -> bool {
    let is_in =
        |first: u8, bits| Ipv4Net::new_assert(Ipv4Addr::new(first, 0, 0, 0), bits).contains(net);
    !is_in(127, 8) && !is_in(224, 4)
}

/// Parses option 121. `None`: the value is not a list of routes, or is empty.
fn classless_routes(value: &[u8]) -> Option<Vec<Route>> {
    let mut routes = Vec::new();
    let mut rest = value;
    while let Some((&bits, after)) = rest.split_first() {
        let (significant, after) = after.split_at_checked(usize::from(bits).div_ceil(8))?;
        let (router, after) = after.split_first_chunk::<4>()?;
        let mut octets = [0; 4];
        octets.get_mut(..significant.len())?.copy_from_slice(significant);
        let dst = Ipv4Net::new(octets.into(), bits).ok()?.trunc();
        let router = Ipv4Addr::from(*router);
        if router.is_unspecified() || is_host(router) {
            routes.push(Route { dst, router });
        }
        rest = after;
    }
    (!value.is_empty()).then_some(routes)
}

/// Parses a route of option 33. The address class of the destination gives the prefix length. The default route is illegal in
/// this option (RFC 2132, section 5.8).
fn classful_route(pair: &[u8; 8]) -> Option<Route> {
    let [a, b, c, d, router @ ..] = *pair;
    let (net, router) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::from(router));
    let bits = match a {
        0..128 => 8,
        128..192 => 16,
        192..224 => 24,
        _ => return None,
    };
    let dst = Ipv4Net::new_assert(net, bits).trunc();
    (is_host(net) && is_host(router)).then_some(Route { dst, router })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        options.read(bytes).unwrap();
        options
    }

    fn routes(bytes: &[u8]) -> Vec<String> {
        let texts = options(bytes).routes("10.0.0.5/24".parse().unwrap()).into_iter();
        texts.map(|Route { dst, router }| format!("{dst} {router}")).collect()
    }

    #[test]
    fn parts_of_a_long_option_are_joined() {
        let read = options(&[15, 2, b'a', b'.', 0, 0, 1, 4, 255, 255, 0, 0, 15, 1, b'b', 255, 9]);
        assert_eq!(read.domain(), "a.b");
        assert_eq!(read.prefix_len(), Some(16));
        assert_eq!(Options::default().read(&[15, 2, b'a']), None);
        assert_eq!(Options::default().read(&[15]), None);
    }

    #[test]
    fn values_out_of_range_are_missing() {
        for mask in [[0, 0, 0, 0], [255, 0, 255, 0], [0, 255, 255, 255]] {
            assert_eq!(options(&[&[1, 4][..], &mask].concat()).prefix_len(), None, "{mask:?}");
        }
        assert_eq!(options(&[1, 3, 255, 255, 255]).prefix_len(), None);
        assert_eq!(options(&[26, 2, 2, 63]).mtu(), None);
        assert_eq!(options(&[26, 2, 2, 64]).mtu(), Some(576));
        assert_eq!(options(&[6, 3, 1, 2, 3]).hosts(DNS), Vec::<Ipv4Addr>::new());
        let dns = options(&[6, 12, 10, 0, 0, 1, 0, 0, 0, 0, 224, 0, 0, 1]).hosts(DNS);
        assert_eq!(dns, [Ipv4Addr::new(10, 0, 0, 1)]);
        assert_eq!(options(&[15, 4, b'a', b'/', b'.', b'.']).domain(), "");
    }

    #[test]
    fn several_domain_names_are_searched() {
        let both = [15, 3, b'a', b' ', b'b'];
        assert_eq!(
            (options(&both).domain().as_str(), options(&both).search()),
            ("a", vec!["a".into(), "b".into()])
        );
        let with_list = [&both[..], &[119, 3, 1, b'c', 0]].concat();
        assert_eq!(
            (options(&with_list).domain().as_str(), options(&with_list).search()),
            ("a", vec!["c".into()])
        );
        assert_eq!(options(&[15, 1, b'a']).search(), Vec::<String>::new());
    }

    #[test]
    fn a_router_outside_of_the_subnet_gets_an_on_link_route() {
        let default = [121, 5, 0, 10, 9, 0, 1];
        assert_eq!(routes(&default), ["10.9.0.1/32 0.0.0.0", "0.0.0.0/0 10.9.0.1"]);
        let after = [121, 14, 0, 10, 9, 0, 1, 32, 10, 9, 0, 1, 0, 0, 0, 0];
        assert_eq!(routes(&after), ["10.9.0.1/32 0.0.0.0", "0.0.0.0/0 10.9.0.1"]);
        assert_eq!(routes(&[3, 4, 10, 9, 0, 1]), ["10.9.0.1/32 0.0.0.0", "0.0.0.0/0 10.9.0.1"]);
    }

    #[test]
    fn classless_routes_replace_the_router() {
        let classless = [121, 14, 24, 192, 168, 5, 10, 0, 0, 9, 0, 10, 0, 0, 1, 8];
        let router = [3, 4, 10, 0, 0, 2];
        // The last route has no destination, so the option counts as missing.
        assert_eq!(routes(&[&classless[..], &router].concat()), ["0.0.0.0/0 10.0.0.2"]);
        let mut whole = classless.to_vec();
        whole[1] = 19;
        whole.extend([10, 0, 0, 0, 0]);
        assert_eq!(
            routes(&[&whole[..], &router].concat()),
            ["10.0.0.0/8 0.0.0.0", "192.168.5.0/24 10.0.0.9", "0.0.0.0/0 10.0.0.1"]
        );
        assert_eq!(routes(&[121, 5, 33, 1, 2, 3, 4]), Vec::<String>::new());
        // Bits after the prefix length are cleared. A route via a router that is not a host is left out.
        assert_eq!(
            routes(&[121, 13, 4, 0xff, 10, 0, 0, 1, 16, 10, 1, 224, 0, 0, 1]),
            ["240.0.0.0/4 10.0.0.1"]
        );
    }

    #[test]
    fn the_on_link_route_of_a_gateway_outside_of_the_subnet_comes_first() {
        assert_eq!(routes(&[3, 4, 10, 9, 0, 1]), ["10.9.0.1/32 0.0.0.0", "0.0.0.0/0 10.9.0.1"]);
        assert_eq!(routes(&[3, 4, 10, 0, 0, 1]), ["0.0.0.0/0 10.0.0.1"]);
    }

    #[test]
    fn routes_via_the_client_and_to_loopback_or_multicast_are_left_out() {
        assert_eq!(routes(&[3, 4, 10, 0, 0, 5]), Vec::<String>::new());
        assert_eq!(routes(&[3, 8, 10, 0, 0, 5, 10, 0, 0, 1]), ["0.0.0.0/0 10.0.0.1"]);
        assert_eq!(routes(&[33, 8, 10, 1, 0, 0, 10, 0, 0, 5]), Vec::<String>::new());
        for (bits, net) in [(8, &[127][..]), (32, &[127, 0, 0, 9]), (4, &[224]), (24, &[239, 1, 1])]
        {
            let route = [&[bits][..], net, &[10, 0, 0, 1]].concat();
            let size = u8::try_from(route.len()).unwrap();
            assert_eq!(
                routes(&[&[121, size], &route[..]].concat()),
                Vec::<String>::new(),
                "{net:?}"
            );
        }
        assert_eq!(routes(&[121, 6, 8, 11, 10, 0, 0, 5]), Vec::<String>::new());
        // Half of the default route.
        assert_eq!(routes(&[121, 6, 1, 128, 10, 0, 0, 1]), ["128.0.0.0/1 10.0.0.1"]);
    }

    #[test]
    fn classful_routes_come_before_the_default_route() {
        let value = [
            [10, 1, 2, 3, 10, 0, 0, 9],
            [172, 16, 0, 0, 10, 0, 0, 8],
            [192, 168, 5, 9, 10, 0, 0, 7],
            [0, 0, 0, 0, 10, 0, 0, 6],
            [224, 0, 0, 0, 10, 0, 0, 6],
        ]
        .concat();
        assert_eq!(
            routes(&[&[33, 40][..], &value, &[3, 8, 10, 0, 0, 1, 10, 0, 0, 2]].concat()),
            [
                "10.0.0.0/8 10.0.0.9",
                "172.16.0.0/16 10.0.0.8",
                "192.168.5.0/24 10.0.0.7",
                "0.0.0.0/0 10.0.0.1"
            ]
        );
    }
}
