//! The file that a plugin directory already has under a name.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::cli::executable::FileKind;
use crate::cli::output::NAME;
use crate::error::Result;
use crate::kernel::file;

use super::directory::failed;

pub(in crate::cli) struct ExistingFile {
    pub(super) kind: FileKind,
    /// The target of a symbolic link.
    pub(super) target: Option<PathBuf>,
    /// The metadata of the file. A symbolic link is followed. `None` for a broken link.
    pub(super) metadata: Option<Metadata>,
}

impl ExistingFile {
    /// Examines the file at a path. `None` if there is no file.
    pub(in crate::cli) fn examine(path: &Path) -> Result<Option<Self>> {
        file::found(Self::of(path)).map_err(|error| failed("examine", path, &error))
    }

    fn of(path: &Path) -> io::Result<Self> {
        let is_link = fs::symlink_metadata(path)?.is_symlink();
        let target = if is_link { Some(fs::read_link(path)?) } else { None };
        let Ok(metadata) = fs::metadata(path) else {
            // A broken link to the name `cnibox` is of an earlier installation whose executable is missing.
            let kind = match target.as_ref().is_some_and(|target| target.ends_with(NAME)) {
                true => FileKind::Cnibox,
                false => FileKind::Damaged("its link leads to no file"),
            };
            return Ok(Self { kind, target, metadata: None });
        };
        Ok(Self { kind: FileKind::of(path, &metadata)?, target, metadata: Some(metadata) })
    }

    /// Whether the file is a build of cnibox, or a link to one.
    pub(in crate::cli) fn is_ours(&self) -> bool {
        matches!(self.kind, FileKind::Own | FileKind::Cnibox)
    }

    /// The reason why the file is not a file of cnibox, in words.
    pub(super) fn reason(&self) -> &'static str {
        match self.kind {
            FileKind::Damaged(why) => why,
            FileKind::Go => "it is a program in Go",
            FileKind::Own | FileKind::Cnibox | FileKind::Other => "it is another program",
        }
    }

    /// The kind of the file in words, such as `a damaged file`.
    pub(super) fn noun(&self) -> &'static str {
        match self.kind {
            FileKind::Damaged(_) => "a damaged file",
            FileKind::Own => "another link or copy of cnibox",
            FileKind::Cnibox => "another build of cnibox",
            FileKind::Go => "a program in Go",
            FileKind::Other => "another program",
        }
    }
}
