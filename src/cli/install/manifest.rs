//! The manifest: the names that an installation put into a directory. Runtimes do not read it. It is written before the
//! first change, and again after the last one.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::error::{Code, Error, Result};
use crate::kernel::file;

use super::directory::{MANIFEST, failed};

/// The content of the file. It may have more keys: those of earlier versions, for example.
#[derive(Default, Serialize, Deserialize)]
pub(in crate::cli) struct Manifest {
    #[serde(default)]
    pub(super) version: String,
    #[serde(default)]
    pub(super) commit: String,
    /// No change is missing.
    #[serde(rename = "complete")]
    pub(in crate::cli) is_complete: bool,
    /// The executable is the first.
    pub(in crate::cli) names: Vec<Installed>,
}

/// A name in the directory.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::cli) struct Installed {
    pub(in crate::cli) name: String,
    /// Empty for the executable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(in crate::cli) plugin: String,
    /// In words, as in a report.
    #[serde(default)]
    pub(in crate::cli) kind: String,
}

impl Manifest {
    /// The manifest of a directory, if it has one. Only names of files in the directory are taken from it.
    pub(in crate::cli) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(MANIFEST);
        let content = match file::read(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            content => content.map_err(|error| failed("read", &path, &error))?,
        };
        let mut manifest: Self = json::read(&content).map_err(|error| {
            let msg = format!("cannot use {}: {error}", path.display());
            Error::new(Code::DECODE, msg)
        })?;
        manifest.names.retain(|entry| is_plain(&entry.name));
        Ok(Some(manifest))
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        json::pretty(self) + "\n"
    }
}

/// Whether a name is one of a file in the directory that a runtime can look up.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}
