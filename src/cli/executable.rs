//! Examines a file in a plugin directory: whether it is this executable, another build of cnibox, or another program.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::kernel::{file, sys};

/// The kind of program in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// The kernel cannot execute the file, for this reason.
    Damaged(&'static str),
    /// This executable, or a copy of it.
    Own,
    /// Another build of cnibox.
    Cnibox,
    /// A program in Go, such as a plugin of the reference.
    Go,
    /// A script, or another program.
    Other,
}

impl FileKind {
    pub(super) fn of(path: &Path, metadata: &Metadata) -> io::Result<Self> {
        if !metadata.is_file() {
            return Ok(Self::Damaged("it is not a file"));
        }
        if metadata.len() == 0 {
            return Ok(Self::Damaged("it is empty"));
        }
        if metadata.permissions().mode() & 0o111 == 0 {
            return Ok(Self::Damaged("it is not executable"));
        }
        if metadata.len() > BYTES_MAX as u64 {
            return Ok(Self::Damaged("it has more than 256 MiB"));
        }
        Ok(Self::of_content(&read(path)?, &own_content()?))
    }

    /// The kind of a file with this content. `own` is the content of this executable. Source: elf(5).
    fn of_content(content: &[u8], own: &[u8]) -> Self {
        if content == own {
            return Self::Own;
        }
        if content.starts_with(b"#!") {
            return Self::Other;
        }
        if !content.starts_with(b"\x7fELF") {
            return Self::Damaged("it is neither an ELF file nor a script");
        }
        // A 64-bit kernel also executes 32-bit files, which have another e_machine: those are not compared.
        let is_of_machine = |at: std::ops::Range<usize>| content.get(at.clone()) == own.get(at);
        if content.get(4) == own.get(4) && !is_of_machine(5..6) | !is_of_machine(18..20) {
            return Self::Damaged("it is for another processor");
        }
        if segments_end(content).is_none_or(|end| end > content.len() as u64) {
            return Self::Damaged("it is truncated");
        }
        let has = |text: &[u8]| content.windows(text.len()).any(|window| window == text);
        if has(CNIBOX) {
            Self::Cnibox
        } else if has(GO) {
            Self::Go
        } else {
            Self::Other
        }
    }
}

/// Reads an executable of at most `BYTES_MAX`.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    file::read_within(path, BYTES_MAX)
}

/// The content of the executable of this process.
pub(super) fn own_content() -> io::Result<Vec<u8>> {
    read(sys::own_executable())
}

/// The largest file that is read. The plugins in Go have less than 100 MiB.
const BYTES_MAX: usize = 256 << 20;

/// Each build of cnibox contains this text: it is part of its version.
const CNIBOX: &[u8] = b"+cnibox.";
/// The beginning of the section `.go.buildinfo` (debug/buildinfo of Go).
const GO: &[u8] = b"\xff Go buildinf:";

/// The offset at which the last segment ends in the file. `None` if the headers are truncated.
fn segments_end(content: &[u8]) -> Option<u64> {
    let is_64 = *content.get(4)? == 2;
    let is_little = *content.get(5)? == 1;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let bytes = content.get(at..at.checked_add(bytes)?)?;
        let append = |number, byte: &u8| number << 8 | u64::from(*byte);
        Some(match is_little {
            true => bytes.iter().rev().fold(0, append),
            false => bytes.iter().fold(0, append),
        })
    };
    let word = if is_64 { 8 } else { 4 };
    // The positions of e_phoff, and of e_phentsize and e_phnum; those of p_offset and p_filesz in each program header.
    let (at, size_at) = if is_64 { (32, 54) } else { (28, 42) };
    let (offset_at, filesz_at) = if is_64 { (8, 32) } else { (4, 16) };
    let table = usize::try_from(number(at, word)?).ok()?;
    let size = usize::try_from(number(size_at, 2)?).ok()?;
    let mut end = 0;
    for index in 0..usize::try_from(number(size_at + 2, 2)?).ok()? {
        let header = table.checked_add(index.checked_mul(size)?)?;
        let segment = number(header.checked_add(offset_at)?, word)?;
        end = end.max(segment.checked_add(number(header.checked_add(filesz_at)?, word)?)?);
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit ELF file with one segment that contains this text.
    fn elf(text: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADERS_BYTES];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        // e_machine, e_phoff, e_phentsize and e_phnum; p_offset and p_filesz.
        for (at, value) in
            [(18, 62), (32, 64), (54, 56), (56, 1), (72, HEADERS_BYTES), (96, text.len())]
        {
            file[at] = u8::try_from(value).unwrap();
        }
        file.extend(text);
        file
    }

    const HEADERS_BYTES: usize = 64 + 56;

    #[test]
    fn a_file_is_recognised_by_its_content() {
        let own = elf(b"");
        let kind = |content: &[u8]| FileKind::of_content(content, &own);
        assert_eq!(kind(&own), FileKind::Own);
        assert_eq!(kind(&elf(b"text")), FileKind::Other);
        let cnibox = elf(b"v1.9.1+cnibox.0.1.0");
        assert_eq!(kind(&cnibox), FileKind::Cnibox);
        assert_eq!(kind(&elf(GO)), FileKind::Go);
        for length in [HEADERS_BYTES - 1, 64, 20] {
            assert_eq!(kind(&cnibox[..length]), FileKind::Damaged("it is truncated"), "{length}");
        }
        assert_eq!(kind(&cnibox[..cnibox.len() - 1]), FileKind::Damaged("it is truncated"));
        let mut other = own.clone();
        other[18] = 183;
        assert_eq!(kind(&other), FileKind::Damaged("it is for another processor"));
        assert_eq!(kind(b"#!/bin/sh\n"), FileKind::Other);
        assert_eq!(kind(b"garbage"), FileKind::Damaged("it is neither an ELF file nor a script"));
    }

    #[test]
    fn a_header_with_any_numbers_is_no_crash() {
        let own = elf(b"text");
        for at in 0..own.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = own.clone();
                file[at] = u8::try_from(value).unwrap();
                FileKind::of_content(&file, &own);
            }
        }
    }
}
