//! Tests of the packets of DHCPv6.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub const DUID: [u8; 18] = [0, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
pub const IAID: u32 = 0x0102_0304;
pub const SERVER: [u8; 10] = [0, 3, 0, 1, 2, 0, 0x5e, 0x10, 0, 1];

pub fn option(code: u16, parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    let size = u16::try_from(value.len()).unwrap();
    [&code.to_be_bytes()[..], &size.to_be_bytes(), &value].concat()
}

pub fn status(code: u16) -> Vec<u8> {
    option(13, &[&code.to_be_bytes(), b"text of the server"])
}

pub fn ia_address(address: Ipv6Addr, preferred: u32, valid: u32) -> Vec<u8> {
    option(5, &[&address.octets(), &preferred.to_be_bytes(), &valid.to_be_bytes()])
}

pub fn ia(iaid: u32, t1: u32, t2: u32, options: &[&[u8]]) -> Vec<u8> {
    let head = [iaid, t1, t2].map(u32::to_be_bytes);
    option(3, &[head.as_flattened(), &options.concat()])
}

/// A message of a server with these options after the DUIDs.
pub fn reply(xid: u32, kind: MessageType, server: &[u8], options: &[&[u8]]) -> Vec<u8> {
    let [_, a, b, c] = xid.to_be_bytes();
    let head = [kind.0, a, b, c];
    [&head[..], &option(1, &[&DUID]), &option(2, &[server]), &options.concat()].concat()
}

fn parse(bytes: &[u8]) -> Option<Reply> {
    Reply::parse(bytes, 0x00ab_cdef, &DUID, IAID)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_have_the_bytes_of_the_rfc() {
    let solicit = Message {
        kind: MessageType::SOLICIT,
        xid: 0x00ab_cdef,
        duid: &DUID,
        iaid: IAID,
        server: None,
        address: None,
        elapsed_cs: 258,
    };
    let client = "0001001200040102030405060708090a0b0c0d0e0f10";
    let (elapsed, list) = ("000800020102", "00060006001700180052");
    assert_eq!(
        hex(&solicit.encode()),
        format!("01abcdef{client}0003000c010203040000000000000000{elapsed}{list}000e0000")
    );
    let address = "fd00::5".parse().unwrap();
    let renew = Message {
        kind: MessageType::RENEW,
        server: Some(&SERVER),
        address: Some(address),
        elapsed_cs: 0,
        ..solicit
    };
    let server = "0002000a0003000102005e100001";
    let ia =
        "0003002801020304000000000000000000050018fd0000000000000000000000000000050000000000000000";
    assert_eq!(hex(&renew.encode()), format!("05abcdef{client}{server}{ia}000800020000{list}"));
    let release = Message { kind: MessageType::RELEASE, ..renew };
    assert_eq!(hex(&release.encode()), format!("08abcdef{client}{server}{ia}000800020000"));
}

#[test]
fn replies_are_read() {
    let address = "fd00::5".parse().unwrap();
    let addresses = [ia_address(address, 100, 200), status(0)].concat();
    let dns: Ipv6Addr = "fe80::53".parse().unwrap();
    let bytes = reply(
        0x00ab_cdef,
        MessageType::REPLY,
        &SERVER,
        &[
            &ia(9, 1, 2, &[]),
            &ia(IAID, 50, 80, &[&addresses]),
            &option(7, &[&[200]]),
            &option(14, &[]),
            &option(23, &[&dns.octets(), &[0; 16], &[0xff; 16]]),
            &option(24, &[b"\x03lan\0\x01a\x01b\0"]),
            &option(82, &[&[0, 0, 0, 99]]),
            &option(9999, &[b"unknown"]),
        ],
    );
    let read = parse(&bytes).unwrap();
    assert_eq!((read.kind, read.preference, read.is_rapid), (7, 200, true));
    assert_eq!((&read.server[..], read.sol_max_rt), (&SERVER[..], Some(99)));
    assert_eq!((read.dns, read.search), (vec![dns], vec!["lan".into(), "a.b".into()]));
    let found = vec![Address { address, preferred: 100, valid: 200 }];
    assert_eq!(read.ia, Some(Ia { t1: 50, t2: 80, status: Status::SUCCESS, addresses: found }));
}

#[test]
fn messages_for_other_clients_and_malformed_ones_are_dropped() {
    let whole = reply(0x00ab_cdef, MessageType::REPLY, &SERVER, &[]);
    assert!(parse(&whole).is_some());
    assert_eq!(Reply::parse(&whole, 1, &DUID, IAID), None);
    assert_eq!(Reply::parse(&whole, 0x00ab_cdef, &SERVER, IAID), None);
    for size in 0..whole.len() {
        assert_eq!(parse(&whole[..size]), None, "{size}");
    }
    assert_eq!(parse(&reply(0x00ab_cdef, MessageType::REPLY, &[], &[])), None, "no server");
    assert_eq!(parse(&reply(0x00ab_cdef, MessageType::REPLY, &[1; 131], &[])), None);
}

#[test]
fn addresses_out_of_range_are_left_out() {
    for text in ["::", "::1", "::10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "febf::1", "ff02::1"] {
        let bytes = ia_address(text.parse().unwrap(), 1, 2);
        let read =
            parse(&reply(0x00ab_cdef, MessageType::REPLY, &SERVER, &[&ia(IAID, 0, 0, &[&bytes])]));
        assert_eq!(read.unwrap().ia.unwrap().addresses, [], "{text}");
    }
    let global = "2001:db8::1".parse().unwrap();
    for (preferred, valid, count) in [(2, 2, 1), (3, 2, 0), (0, 0, 1)] {
        let bytes = ia(IAID, 0, 0, &[&ia_address(global, preferred, valid)]);
        let read = parse(&reply(0x00ab_cdef, MessageType::REPLY, &SERVER, &[&bytes])).unwrap();
        assert_eq!(read.ia.unwrap().addresses.len(), count, "{preferred} {valid}");
    }
    let late = ia(IAID, 20, 10, &[&ia_address(global, 1, 2)]);
    assert_eq!(parse(&reply(0x00ab_cdef, MessageType::REPLY, &SERVER, &[&late])).unwrap().ia, None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_replies_do_not_panic(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        noise in vec(any::<u8>(), 0..200),
        size in any::<prop::sample::Index>(),
    ) {
        let address = ia_address("fd00::5".parse().unwrap(), 100, 200);
        let mut bytes = reply(
            0x00ab_cdef,
            MessageType::REPLY,
            &SERVER,
            &[
                &ia(IAID, 50, 80, &[&address, &status(0)]),
                &option(23, &[&[7; 32]]),
                &option(24, &[b"\x03lan\0\x01a\xc0\0"]),
                &noise,
            ],
        );
        for (at, value) in changes {
            // The xid and the DUID of the client stay unchanged, so that the other options are parsed.
            let at = 26 + at.index(bytes.len() - 26);
            bytes[at] = value;
        }
        bytes.truncate(26 + size.index(bytes.len() - 26 + 1));
        if let Some(read) = parse(&bytes) {
            prop_assert!((1..=130).contains(&read.server.len()));
            prop_assert!(read.dns.iter().all(|address| !address.is_multicast()));
            prop_assert!(read.search.iter().all(|name| (1..=253).contains(&name.len())));
            for address in read.ia.unwrap_or_default().addresses {
                prop_assert!(is_host(address.address) && address.preferred <= address.valid);
            }
        }
        let _ = parse(&noise);
    }
}
