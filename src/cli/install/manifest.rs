//! The manifest: a file with the names that an installation made in a directory. It is written before the first change, and
//! again after the last one. Runtimes do not read it.

use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cni::json;
use crate::error::{Code, Error, Result};
use crate::kernel::file;

use super::directory::{MANIFEST, failed};

/// The content of the file. Unknown keys are ignored: other versions can write them.
#[derive(Default, Serialize, Deserialize)]
pub(in crate::cli) struct Manifest {
    #[serde(default)]
    pub(super) version: String,
    #[serde(default)]
    pub(super) commit: String,
    /// Whether the installation has made all its changes.
    #[serde(rename = "complete")]
    pub(in crate::cli) is_complete: bool,
    /// The names that the installation made. The executable is the first.
    pub(in crate::cli) names: Vec<Installed>,
}

/// A name that the installation made.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::cli) struct Installed {
    pub(in crate::cli) name: String,
    /// The plugin that the name runs. Empty for the executable.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(in crate::cli) plugin: String,
    /// The link method in words, such as `hard link`.
    #[serde(default)]
    pub(in crate::cli) kind: String,
}

impl Installed {
    /// A name that no manifest has. The link method is unknown.
    pub(in crate::cli) fn of(name: &str, plugin: &str) -> Self {
        Self { name: name.into(), plugin: plugin.into(), kind: String::new() }
    }
}

impl Manifest {
    /// The manifest of a directory, if it has one. Names that are paths or begin with a dot are dropped.
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

/// Whether a name is a plain file name: no path, and no dot at the beginning.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}
