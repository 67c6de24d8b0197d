//! The messages of the client, with the options of each message type.

use std::net::Ipv4Addr;

use super::option::{self, CLIENT_ID};
use super::packet::{self, Message, MessageType};
use super::settings::Settings;
use crate::dhcp::protocol::Provided;
use crate::error::{Error, Result};

/// The largest UDP payload in an Ethernet frame.
const PAYLOAD_BYTES_MAX: usize = 1472;
/// The value of option 57, as in the reference: the longest message that a server may send, in bytes with IP and UDP headers.
const SIZE_MAX: u16 = 1500;
/// Options that only the client sets. A configured value is ignored.
const RESERVED: [u8; 5] =
    [option::PAD, option::REQUESTED_ADDRESS, option::OVERLOAD, option::SERVER_ID, option::END];

/// The parameter request list (option 55): the configured codes in their order, then the options that cnibox uses. Classless
/// routes come before routers and static routes (RFC 3442). An empty list is replaced by that of the reference.
pub fn request_list(configured: &[u8], skip_default: bool) -> Vec<u8> {
    const USED: [u8; 7] = [
        option::CLASSLESS_ROUTES,
        option::ROUTERS,
        option::SUBNET_MASK,
        option::MTU,
        option::DNS,
        option::DOMAIN,
        option::SEARCH,
    ];
    let mut list = Vec::new();
    let defaults: &[u8] = if skip_default { &[] } else { &USED };
    for &code in configured.iter().chain(defaults) {
        if !list.contains(&code) {
            let is_router = |code: &u8| matches!(*code, option::ROUTERS | option::STATIC_ROUTES);
            let first_router = list.iter().position(is_router).unwrap_or(list.len());
            let is_classless = code == option::CLASSLESS_ROUTES;
            list.insert(if is_classless { first_router } else { list.len() }, code);
        }
    }
    if list.is_empty() {
        list = vec![option::SUBNET_MASK, option::ROUTERS, option::DOMAIN, option::DNS];
    }
    list
}

impl Settings {
    /// Fails if the options do not fit into one packet (code 7).
    pub fn check(&self) -> Result<()> {
        let any = Some(Ipv4Addr::UNSPECIFIED);
        let largest =
            Message { address: any, server: any, ..Message::new(MessageType::REQUEST, 0) };
        let size = self.packet(&largest).len();
        if size <= PAYLOAD_BYTES_MAX {
            return Ok(());
        }
        Err(Error::config(format_args!(
            "cannot send the options: the packet has {size} bytes, {PAYLOAD_BYTES_MAX} are possible"
        )))
    }

    /// The packet of a message, with the options of its message type, sorted by code as in the reference.
    pub fn packet(&self, message: &Message) -> Vec<u8> {
        let mut options = vec![(CLIENT_ID, self.client_id.clone())];
        let is_short = message.kind == MessageType::RELEASE || message.kind == MessageType::DECLINE;
        if !is_short {
            set(&mut options, option::SIZE_MAX, &SIZE_MAX.to_be_bytes());
        }
        for Provided { option, value } in &self.provide {
            if !RESERVED.contains(option) && (!is_short || *option == CLIENT_ID) {
                set(&mut options, *option, value.as_bytes());
            }
        }
        if !is_short && !self.request.is_empty() {
            set(&mut options, option::REQUEST_LIST, &self.request);
        }
        set(&mut options, option::MESSAGE_TYPE, &[message.kind.0]);
        let addresses =
            [(option::REQUESTED_ADDRESS, message.address), (option::SERVER_ID, message.server)];
        for (code, address) in addresses {
            if let Some(address) = address {
                set(&mut options, code, &address.octets());
            }
        }
        // Only a client without an address that waits for an answer sets the flag (RFC 2131, table 5).
        let broadcast = self.broadcast && message.ciaddr.is_unspecified() && !is_short;
        packet::encode(message, self.mac, broadcast, &options)
    }
}

/// Sets an option and replaces an earlier value. The options stay sorted.
fn set(options: &mut Vec<(u8, Vec<u8>)>, code: u8, value: &[u8]) {
    let at = options.iter().position(|(known, _)| *known >= code).unwrap_or(options.len());
    match options.get_mut(at) {
        Some((known, old)) if *known == code => *old = value.to_vec(),
        _ => options.insert(at, (code, value.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhcp::v4::packet::tests::MAC;
    use crate::dhcp::v4::settings::Times;

    #[test]
    fn request_lists() {
        assert_eq!(request_list(&[], false), [121, 3, 1, 26, 6, 15, 119]);
        assert_eq!(request_list(&[42, 1, 42], false), [42, 1, 121, 3, 26, 6, 15, 119]);
        assert_eq!(request_list(&[42, 33, 3], false), [42, 121, 33, 3, 1, 26, 6, 15, 119]);
        assert_eq!(request_list(&[12, 3], true), [12, 3]);
        assert_eq!(request_list(&[], true), [1, 3, 15, 6]);
    }

    fn settings(provide: &[(u8, &[u8])]) -> Settings {
        Settings {
            mac: MAC,
            client_id: b"\0abc/mynet/eth0".to_vec(),
            broadcast: false,
            provide: provide
                .iter()
                .map(|(option, value)| Provided {
                    option: *option,
                    value: String::from_utf8(value.to_vec()).unwrap(),
                })
                .collect(),
            request: vec![121, 3, 1],
            probe: false,
            times: Times::default(),
        }
    }

    fn options(settings: &Settings, kind: MessageType, server: Option<Ipv4Addr>) -> String {
        let message = Message { address: server, server, ..Message::new(kind, 1) };
        let bytes = settings.packet(&message);
        let end = bytes.iter().rposition(|byte| *byte == 255).unwrap();
        bytes[240..=end].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn options_are_those_of_the_reference() {
        // Contract 7.2.
        let settings = settings(&[(12, b"myhost"), (53, &[9]), (50, &[9]), (255, &[9])]);
        let id = "3d0f006162632f6d796e65742f65746830ff";
        let discover = "0c066d79686f73743501013703790301390205dc".to_owned() + id;
        assert_eq!(options(&settings, MessageType::DISCOVER, None), discover);
        let server = Some(Ipv4Addr::new(10, 77, 0, 1));
        let request =
            "0c066d79686f737432040a4d000135010336040a4d00013703790301390205dc".to_owned() + id;
        assert_eq!(options(&settings, MessageType::REQUEST, server), request);
        let ciaddr = Ipv4Addr::new(10, 77, 0, 56);
        let message = Message { ciaddr, server, ..Message::new(MessageType::RELEASE, 1) };
        let release = settings.packet(&message);
        let hex: String = release[240..266].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "35010736040a4d0001".to_owned() + &id[..34]);
        assert_eq!((&release[12..16], release.len()), (&[10, 77, 0, 56][..], 300));
    }

    #[test]
    fn configured_client_id_replaces_the_default() {
        let settings = settings(&[(61, b"x"), (57, &[2, 64])]);
        assert_eq!(
            options(&settings, MessageType::DISCOVER, None),
            "3501013703790301390202403d0178ff"
        );
        assert_eq!(options(&settings, MessageType::DECLINE, None), "3501043d0178ff");
    }

    #[test]
    fn options_that_exceed_a_packet_are_refused() {
        let long = [7; 255];
        let many: Vec<(u8, &[u8])> = (200..204).map(|code| (code, &long[..])).collect();
        assert!(settings(&many).check().is_ok());
        let more: Vec<(u8, &[u8])> = (200..205).map(|code| (code, &long[..])).collect();
        let error = settings(&more).check().unwrap_err().to_string();
        assert!(error.starts_with("cannot send the options: the packet has 15"), "{error}");
    }
}
