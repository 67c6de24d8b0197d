//! Lines of JSON on a stream, with a limit for their length.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use serde::Serialize;

use crate::cni::json;
use crate::kernel::unix::Stream;

/// Reads lines from a stream.
pub struct Lines(BufReader<Stream>);

impl Lines {
    pub fn new(stream: Stream) -> Self {
        Self(BufReader::new(stream))
    }

    pub fn stream(&mut self) -> &mut Stream {
        self.0.get_mut()
    }

    /// Reads to the next newline, or to the end of the stream. The newline is not part of the line.
    pub fn next(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        let count = (&mut self.0).take(bytes_max).read_until(b'\n', &mut line)?;
        match line.pop_if(|byte| *byte == b'\n') {
            None if count as u64 == bytes_max => {
                Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"))
            }
            _ => Ok(line),
        }
    }
}

pub fn write_line(stream: &mut Stream, document: &impl Serialize) -> io::Result<()> {
    let mut line = json::compact(document);
    line.push('\n');
    stream.write_all(line.as_bytes())
}
