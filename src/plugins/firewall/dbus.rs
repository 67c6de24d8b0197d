//! A client for D-Bus methods that take strings and return a string or a boolean. It does not depend on the called services.
//!
//! No crate is used, because cnibox calls four methods: `dbus` needs the library libdbus, zbus 6 has an asynchronous runtime,
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
    /// The authentication and the call of `Hello`, which every bus requires. Sent before the next message; empty afterwards.
    greeting: Vec<u8>,
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
    Connection(io::Error),
    /// The error that the service returned: its name and its text.
    Refused {
        name: String,
        text: String,
    },
}

/// The body of a reply: the string or the boolean that the method returned, if it returned one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) text: Option<String>,
    pub(super) boolean: Option<bool>,
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
                Ok(stream) => {
                    let mut greeting = b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n".to_vec();
                    greeting.extend(encode(&bus_method("Hello"), 1, &[]));
                    return Ok(Self { stream: BufReader::new(stream), serial: 1, greeting });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(Failure::Connection(error));
                }
                Err(error) => failure = error,
            }
        }
        Err(Failure::Connection(failure))
    }

    /// Restarts the timeout of the calls.
    pub(super) fn restart_timeout(&mut self) {
        self.stream.get_mut().deadline = Instant::now() + timeout();
    }

    pub(super) fn call(
        &mut self,
        method: &Method<'_>,
        arguments: &[&str],
    ) -> Result<Answer, Failure> {
        let answer = self.exchange(method, arguments).map_err(Failure::Connection)?;
        if answer.kind != ERROR {
            return Ok(answer.body);
        }
        Err(Failure::Refused { name: answer.error, text: answer.body.text.unwrap_or_default() })
    }

    fn exchange(&mut self, method: &Method<'_>, arguments: &[&str]) -> io::Result<Message> {
        self.serial += 1;
        let mut bytes = std::mem::take(&mut self.greeting);
        let is_first = !bytes.is_empty();
        bytes.extend(encode(method, self.serial, arguments));
        self.stream.get_mut().write_all(&bytes)?;
        if is_first {
            self.authenticate()?;
        }
        // The reply to `Hello` comes first, and signals can come before the reply. Each client of the bus can send a message
        // that looks like the reply, but the bus itself sets the sender.
        for _ in 0..MESSAGES_MAX {
            let message = self.receive()?;
            if message.reply_to == self.serial
                && matches!(message.kind, RETURN | ERROR)
                && [method.destination, BUS].contains(&message.sender.as_str())
            {
                return Ok(message);
            }
        }
        Err(invalid("too many messages before the reply"))
    }

    fn authenticate(&mut self) -> io::Result<()> {
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

    fn receive(&mut self) -> io::Result<Message> {
        let mut bytes = vec![0; FIXED_BYTES];
        self.stream.read_exact(&mut bytes)?;
        let order =
            Order::of(bytes[0]).ok_or_else(|| invalid("a message with an unknown byte order"))?;
        let [fields_end, body_at, length] = order
            .layout(&bytes)
            .filter(|[.., length]| *length <= MESSAGE_BYTES_MAX)
            .ok_or_else(|| invalid("a message that is too long"))?;
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[FIXED_BYTES..])?;
        Message::read(&bytes, order, fields_end, body_at)
            .ok_or_else(|| invalid("a malformed message"))
    }
}

impl Failure {
    /// Whether the timeout passed. The bus can be running, but slow.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Connection(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Whether the connection failed for another reason than a missing bus.
    pub(super) fn is_unreachable(&self) -> bool {
        let is_missing =
            |kind: ErrorKind| matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        matches!(self, Self::Connection(error) if !is_missing(error.kind()))
    }

    /// Whether the service, or the bus on its behalf, returned an error with another name than `error`.
    pub(super) fn is_error_other_than(&self, error: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name != error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(_) if self.is_timeout() => {
                write!(f, "timeout after {} s", timeout().as_secs())
            }
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

/// The byte order of a message. Every message declares it.
#[derive(Clone, Copy)]
enum Order {
    LittleEnd,
    BigEnd,
}

impl Order {
    fn of(byte: u8) -> Option<Self> {
        match byte {
            b'l' => Some(Self::LittleEnd),
            b'B' => Some(Self::BigEnd),
            _ => None,
        }
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let four = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(match self {
            Self::LittleEnd => u32::from_le_bytes(four),
            Self::BigEnd => u32::from_be_bytes(four),
        })
    }

    /// Reads the offsets of a message from the fixed part of its header: the end of the header fields, the begin of the body,
    /// and the end of the body. `None` if an offset exceeds 32 bits, on each machine.
    fn layout(self, fixed: &[u8]) -> Option<[usize; 3]> {
        let fields_end = self.u32(fixed, 12)?.checked_add(u32::try_from(FIXED_BYTES).ok()?)?;
        let body_at = fields_end.checked_next_multiple_of(8)?;
        let length = body_at.checked_add(self.u32(fixed, 4)?)?;
        Some([fields_end, body_at, length].map(|offset| offset as usize))
    }

    /// Reads the string at the next multiple of 4. Returns it and the offset of its end.
    fn string(self, bytes: &[u8], at: usize) -> Option<(String, usize)> {
        let at = at.checked_next_multiple_of(4)?;
        let length = self.u32(bytes, at)? as usize;
        let begin = at + 4;
        let end = begin.checked_add(length)?;
        let text = String::from_utf8_lossy(bytes.get(begin..end)?).into_owned();
        Some((text, end + 1))
    }
}

/// A received message.
struct Message {
    kind: u8,
    /// The serial of the message that it replies to, or 0.
    reply_to: u32,
    /// The unique name of the sender, or the name of the bus.
    sender: String,
    /// The name of the error, if the message is an error reply.
    error: String,
    body: Answer,
}

impl Message {
    fn read(bytes: &[u8], order: Order, fields_end: usize, body_at: usize) -> Option<Self> {
        let mut message = Self {
            kind: *bytes.get(1)?,
            reply_to: 0,
            sender: String::new(),
            error: String::new(),
            body: Answer::default(),
        };
        let mut signature = Vec::new();
        let mut at = FIXED_BYTES;
        while at < fields_end {
            at = at.next_multiple_of(8);
            // A field is a code, a type of one letter, and a value.
            let [code, 1, kind, 0] = bytes.get(at..at + 4)? else { return None };
            at += 4;
            match kind {
                b'u' => {
                    let value = order.u32(bytes, at)?;
                    if *code == FIELD_REPLY_SERIAL {
                        message.reply_to = value;
                    }
                    at += 4;
                }
                b'g' => {
                    let begin = at + 1;
                    let end = begin + usize::from(*bytes.get(at)?);
                    signature = bytes.get(begin..end)?.to_vec();
                    at = end + 1;
                }
                b's' | b'o' => {
                    let (text, end) = order.string(bytes, at)?;
                    match *code {
                        FIELD_ERROR_NAME => message.error = text,
                        FIELD_SENDER => message.sender = text,
                        _ => {}
                    }
                    at = end;
                }
                _ => return None,
            }
        }
        match signature.first() {
            Some(b's') => message.body.text = Some(order.string(bytes, body_at)?.0),
            Some(b'b') => message.body.boolean = Some(order.u32(bytes, body_at)? != 0),
            _ => {}
        }
        Some(message)
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

    fn read(bytes: &[u8]) -> Option<Message> {
        let order = Order::of(*bytes.first()?)?;
        let [fields_end, body_at, _] = order.layout(bytes)?;
        Message::read(bytes, order, fields_end, body_at)
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
    fn lengths_that_overflow_32_bits_are_no_message() {
        for (body, fields, expected) in [
            (0_u32, 0_u32, Some([16, 16, 16])),
            (5, 9, Some([25, 32, 37])),
            (0, u32::MAX, None),
            (0, u32::MAX - 16, None),
            (0, u32::MAX - 23, Some([0xffff_fff8, 0xffff_fff8, 0xffff_fff8])),
            (8, u32::MAX - 23, None),
            (u32::MAX, 0, None),
        ] {
            let fixed =
                [*b"l\x02\0\x01", body.to_le_bytes(), [1, 0, 0, 0], fields.to_le_bytes()].concat();
            assert_eq!(Order::LittleEnd.layout(&fixed), expected, "{body} {fields}");
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
        assert_eq!(read.body.text.as_deref(), Some("a.b"));
    }

    #[test]
    fn answers_are_read_and_torn_ones_are_not() {
        let text = answer(RETURN, b's', b"\x02\0\0\0hi\0");
        let boolean = answer(RETURN, b'b', &1_u32.to_le_bytes());
        let error = answer(ERROR, b's', b"\x02\0\0\0no\0");
        let of = |bytes: &[u8]| read(bytes).unwrap();
        assert_eq!(of(&text).body.text.as_deref(), Some("hi"));
        assert_eq!((of(&boolean).body.boolean, of(&boolean).reply_to), (Some(true), 2));
        assert_eq!(of(&boolean).sender, ":1.5");
        let refused = of(&error);
        assert_eq!((refused.kind, refused.error.as_str()), (ERROR, "org.example.Error"));
        for bytes in [text, boolean, error] {
            for end in 0..bytes.len() {
                read(&bytes[..end]);
                for wrong in [0, 1, b'g', 0x7f, 0xff] {
                    let mut bytes = bytes.clone();
                    bytes[end] = wrong;
                    read(&bytes);
                }
            }
        }
    }
}
