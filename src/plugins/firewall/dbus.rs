//! A client for D-Bus methods that take strings and return a string, a boolean or a number. It does not depend on the called
//! services.
//!
//! No crate is used, because cnibox calls five methods: `dbus` needs the library libdbus, zbus 6 has an asynchronous runtime,
//! and rustbus 0.19, the smallest, adds 101 KB for one call.

use std::fmt::{self, Display};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use super::address::endpoints;
use crate::fault;
use crate::kernel::unix::Stream;

/// A connection to a bus.
pub(super) struct Bus {
    stream: BufReader<Stream>,
    /// The serial of the last message.
    serial: u32,
    /// The unique name that the bus gave to this connection. Empty before the first call.
    pub(super) name: String,
}

/// A method that a message calls.
pub(super) struct Method<'a> {
    /// The unique name of the service, such as `:1.5`, or the name of the bus.
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) name: &'a str,
}

/// The reason why a call has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The timeout passed. The bus can be running, but slow.
    Timeout,
    Connection(io::Error),
    /// The error that the service, or the bus on its behalf, returned: its name and its text.
    Refused {
        name: String,
        text: String,
    },
}

/// A method of the bus itself.
pub(super) const fn bus_method(name: &str) -> Method<'_> {
    Method {
        destination: BUS,
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        name,
    }
}

impl Bus {
    /// Connects to the first address that accepts the connection. The bus reads the user id of this process from the kernel.
    pub(super) fn connect(addresses: &[u8]) -> Result<Self, Failure> {
        let deadline = Instant::now() + timeout();
        let mut failure = io::Error::new(ErrorKind::InvalidInput, "the address names no socket");
        for endpoint in endpoints(addresses) {
            match Stream::connect(&endpoint, deadline) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => failure = error,
                stream => {
                    let stream = BufReader::new(stream?);
                    let mut bus = Self { stream, serial: HELLO, name: String::new() };
                    bus.greet()?;
                    return Ok(bus);
                }
            }
        }
        Err(failure.into())
    }

    /// Sends the authentication and the call of `Hello`, which every bus requires.
    fn greet(&mut self) -> io::Result<()> {
        let hello = encode(&bus_method("Hello"), self.serial, &[]);
        let greeting = [b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n".as_slice(), &hello].concat();
        self.stream.get_mut().write_all(&greeting)?;
        for _ in 0..LINES_MAX {
            let mut line = Vec::new();
            self.stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if line.starts_with(b"OK") {
                return Ok(());
            }
            if !line.starts_with(b"DATA") {
                break;
            }
        }
        Err(io::Error::new(ErrorKind::PermissionDenied, "the bus refused the authentication"))
    }

    /// Restarts the timeout of the calls.
    pub(super) fn restart_timeout(&mut self) {
        self.stream.get_mut().deadline = Instant::now() + timeout();
    }

    pub(super) fn call(
        &mut self,
        method: &Method<'_>,
        arguments: &[&str],
    ) -> Result<Message, Failure> {
        self.serial += 1;
        self.stream.get_mut().write_all(&encode(method, self.serial, arguments))?;
        // The reply to `Hello` comes first, and signals can come before the reply. Each client of the bus can send a message
        // that looks like the reply, but the bus itself sets the sender.
        for _ in 0..MESSAGES_MAX {
            let message = Message::read(&mut self.stream)?;
            if message.reply_to == HELLO && message.sender == BUS {
                self.name = message.text;
                continue;
            }
            if message.reply_to != self.serial
                || ![method.destination, BUS].contains(&message.sender.as_str())
            {
                continue;
            }
            match message.kind {
                RETURN => return Ok(message),
                ERROR => return Err(Failure::Refused { name: message.error, text: message.text }),
                _ => {}
            }
        }
        Err(invalid("too many messages before the reply").into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock => Self::Timeout,
            _ => Self::Connection(error),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(f, "timeout after {} s", timeout().as_secs()),
            Self::Connection(error) => write!(f, "{error}"),
            Self::Refused { name, text } if text.is_empty() => f.write_str(name),
            Self::Refused { text, .. } => f.write_str(text),
        }
    }
}

fn timeout() -> Duration {
    fault::bus_limit(TIMEOUT)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the bus sent {what}"))
}

/// Encodes a method call, in little-endian order.
///
/// Source: D-Bus specification, "Message Protocol".
fn encode(method: &Method<'_>, serial: u32, arguments: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for argument in arguments {
        put_string(&mut body, argument);
    }
    let mut bytes = vec![b'l', CALL, NO_AUTO_START, PROTOCOL_VERSION];
    put_length(&mut bytes, body.len());
    bytes.extend(serial.to_le_bytes());
    let mut fields = Vec::new();
    for (code, kind, value) in [
        (FIELD_PATH, b'o', method.path),
        (FIELD_INTERFACE, b's', method.interface),
        (FIELD_MEMBER, b's', method.name),
        (FIELD_DESTINATION, b's', method.destination),
    ] {
        // The list begins at a multiple of 8, so the alignment in it is the alignment in the message.
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_string(&mut fields, value);
    }
    if let Ok(count @ 1..) = u8::try_from(arguments.len()) {
        pad(&mut fields, 8);
        fields.extend([FIELD_SIGNATURE, 1, b'g', 0, count]);
        fields.extend(arguments.iter().map(|_| b's'));
        fields.push(0);
    }
    put_length(&mut bytes, fields.len());
    bytes.extend(fields);
    pad(&mut bytes, 8);
    bytes.extend(body);
    bytes
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    put_length(bytes, text.len());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn pad(bytes: &mut Vec<u8>, multiple: usize) {
    bytes.resize(bytes.len().next_multiple_of(multiple), 0);
}

/// A received message.
#[derive(Debug, Default)]
pub(super) struct Message {
    kind: u8,
    /// The serial of the message that it replies to, or 0.
    reply_to: u32,
    /// The unique name of the sender, or the name of the bus.
    sender: String,
    /// The name of the error, if the message is an error reply.
    error: String,
    /// The string in the body, if the body begins with one.
    pub(super) text: String,
    /// The number in the body, if the body begins with one. Of a boolean: 0 or 1.
    pub(super) number: u32,
}

impl Message {
    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let mut bytes = vec![0; FIXED_BYTES];
        stream.read_exact(&mut bytes)?;
        let number: fn([u8; 4]) -> u32 = match bytes[0] {
            b'l' => u32::from_le_bytes,
            b'B' => u32::from_be_bytes,
            _ => return Err(invalid("a message with an unknown byte order")),
        };
        let words = bytes.as_chunks::<4>().0;
        let [body, fields] = [words[1], words[3]].map(|word| number(word) as usize);
        let fields_end = FIXED_BYTES + fields.min(MESSAGE_BYTES_MAX);
        let body_at = fields_end.next_multiple_of(8);
        let length = body_at.saturating_add(body);
        if length > MESSAGE_BYTES_MAX {
            return Err(invalid("a message that is too long"));
        }
        bytes.resize(length, 0);
        stream.read_exact(&mut bytes[FIXED_BYTES..])?;
        let kind = bytes[1];
        let values = Values { bytes: &bytes, at: FIXED_BYTES, number };
        Self { kind, ..Self::default() }
            .with(values, fields_end, body_at)
            .ok_or_else(|| invalid("a malformed message"))
    }

    /// Reads the header fields and the first value of the body.
    fn with(mut self, mut values: Values<'_>, fields_end: usize, body_at: usize) -> Option<Self> {
        let mut kind_of_body = None;
        while values.at < fields_end {
            values.at = values.at.next_multiple_of(8);
            // A field is a code, a type of one letter, and a value.
            let &[code, 1, kind, 0] = values.take(4)? else { return None };
            match kind {
                b'u' => {
                    let value = values.u32()?;
                    if code == FIELD_REPLY_SERIAL {
                        self.reply_to = value;
                    }
                }
                b'g' => {
                    let length = values.take(1)?[0].into();
                    kind_of_body = values.take(length)?.first().copied();
                    values.at += 1;
                }
                b's' | b'o' => {
                    let text = values.string()?;
                    match code {
                        FIELD_ERROR_NAME => self.error = text,
                        FIELD_SENDER => self.sender = text,
                        _ => {}
                    }
                }
                _ => return None,
            }
        }
        values.at = body_at;
        match kind_of_body {
            Some(b's') => self.text = values.string()?,
            Some(b'b' | b'u') => self.number = values.u32()?,
            _ => {}
        }
        Some(self)
    }
}

/// The values of a message, read one after the other.
struct Values<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Decodes a number. Every message declares its byte order.
    number: fn([u8; 4]) -> u32,
}

impl<'a> Values<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.at = self.at.next_multiple_of(4);
        Some((self.number)(self.take(4)?.try_into().ok()?))
    }

    fn string(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        // A NUL follows the text.
        self.at += 1;
        Some(text)
    }
}

/// The name of the bus itself. It also sends the error reply for a service that cannot reply.
const BUS: &str = "org.freedesktop.DBus";

/// The timeout of all calls on a connection together. firewalld replies within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The length in bytes of the fixed part of the header of a message.
const FIXED_BYTES: usize = 16;

/// The maximum length of a received message. Usual messages have a few hundred bytes; the texts of errors can be longer.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The number of messages that may precede the reply. A bus sends one, NameAcquired.
const MESSAGES_MAX: u32 = 32;

const LINES_MAX: u32 = 4;
const LINE_BYTES_MAX: u64 = 512;

/// The serial of the call of `Hello`, the first message.
const HELLO: u32 = 1;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
/// The header flag NO_AUTO_START_FLAG: the bus must not start a service that does not run.
const NO_AUTO_START: u8 = 2;
const PROTOCOL_VERSION: u8 = 1;

const FIELD_PATH: u8 = 1;
const FIELD_INTERFACE: u8 = 2;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR_NAME: u8 = 4;
const FIELD_REPLY_SERIAL: u8 = 5;
const FIELD_DESTINATION: u8 = 6;
const FIELD_SENDER: u8 = 7;
const FIELD_SIGNATURE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> Option<Message> {
        Message::read(&mut bytes).ok()
    }

    /// A message as dbus-daemon sends it: REPLY_SERIAL, SENDER, SIGNATURE and a body.
    fn answer(kind: u8, signature: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b'l', kind, 1, 1];
        put_length(&mut bytes, body.len());
        bytes.extend(9_u32.to_le_bytes());
        let mut fields = vec![FIELD_REPLY_SERIAL, 1, b'u', 0, 2, 0, 0, 0];
        if kind == ERROR {
            fields.extend([FIELD_ERROR_NAME, 1, b's', 0]);
            put_string(&mut fields, "org.example.Error");
            pad(&mut fields, 8);
        }
        fields.extend([FIELD_SENDER, 1, b's', 0]);
        put_string(&mut fields, ":1.5");
        pad(&mut fields, 8);
        fields.extend([FIELD_SIGNATURE, 1, b'g', 0, 1, signature, 0]);
        put_length(&mut bytes, fields.len());
        bytes.extend(fields);
        pad(&mut bytes, 8);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_is_read() {
        for (body, fields, expected) in [
            (0_u32, 0_u32, None),
            (5, 9, Some("failed to fill whole buffer")),
            (64 * 1024 - 16, 0, Some("failed to fill whole buffer")),
            (64 * 1024 - 15, 0, Some("the bus sent a message that is too long")),
            (0, 64 * 1024, Some("the bus sent a message that is too long")),
            (0, u32::MAX, Some("the bus sent a message that is too long")),
            (8, u32::MAX - 23, Some("the bus sent a message that is too long")),
            (u32::MAX, 0, Some("the bus sent a message that is too long")),
        ] {
            let fixed =
                [*b"l\x02\0\x01", body.to_le_bytes(), [1, 0, 0, 0], fields.to_le_bytes()].concat();
            let error = Message::read(&mut fixed.as_slice()).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{body} {fields}");
        }
    }

    #[test]
    fn a_call_is_what_the_specification_says() {
        let bytes = encode(&bus_method("GetNameOwner"), 2, &["a.b"]);
        assert_eq!(&bytes[..16], b"l\x01\x02\x01\x08\0\0\0\x02\0\0\0\x7f\0\0\0");
        assert_eq!(&bytes[16..46], b"\x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.ends_with(b"\x03\0\0\0a.b\0"), "{}", bytes.escape_ascii());
        let read = read(&bytes).unwrap();
        assert_eq!(read.text, "a.b");
    }

    #[test]
    fn answers_are_read_and_torn_ones_are_not() {
        let text = answer(RETURN, b's', b"\x02\0\0\0hi\0");
        let boolean = answer(RETURN, b'b', &1_u32.to_le_bytes());
        let error = answer(ERROR, b's', b"\x02\0\0\0no\0");
        let of = |bytes: &[u8]| read(bytes).unwrap();
        assert_eq!(of(&text).text, "hi");
        assert_eq!((of(&boolean).number, of(&boolean).reply_to), (1, 2));
        assert_eq!(of(&boolean).sender, ":1.5");
        let refused = of(&error);
        assert_eq!((refused.kind, refused.error.as_str()), (ERROR, "org.example.Error"));
        for bytes in [text, boolean, error] {
            for end in 0..bytes.len() {
                assert!(read(&bytes[..end]).is_none());
                for wrong in [0, 1, b'g', 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[end] = wrong;
                    read(&bytes);
                }
            }
        }
    }
}
