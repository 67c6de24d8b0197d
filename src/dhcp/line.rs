//! Lines of JSON on a stream, with a limit for their length.

use std::io::{self, ErrorKind, Read, Write};

use serde::Serialize;

use crate::cni::json;
use crate::kernel::unix::Stream;

/// Reads to the first newline, or to the end of the stream. The newline is not part of the line. Bytes after it are
/// dropped: there is one request per connection, and answers are read by `Lines`.
pub(super) fn read_line(stream: &mut Stream, bytes_max: usize) -> io::Result<Vec<u8>> {
    Lines::new(stream).next(bytes_max)
}

pub(super) fn write_line(stream: &mut Stream, document: &impl Serialize) -> io::Result<()> {
    let mut line = json::compact(document);
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Reads several lines.
pub(super) struct Lines<'a> {
    pub(super) stream: &'a mut Stream,
    /// The bytes that were read after the end of the last line.
    rest: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(stream: &'a mut Stream) -> Self {
        Self { stream, rest: Vec::new() }
    }

    /// The next line; empty at the end of the stream.
    pub(super) fn next(&mut self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.rest.split_off(searched + at + 1);
                let mut line = std::mem::replace(&mut self.rest, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.rest.len();
            if searched >= bytes_max {
                return Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(std::mem::take(&mut self.rest)),
                Ok(count) => self.rest.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
