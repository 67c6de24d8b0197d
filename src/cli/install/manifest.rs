//! The manifest: what an installation put into a directory. Runtimes do not read it.
//!
//! It is written before the first change, with all builds that may be found under the names, and again after the last one.

use std::io::ErrorKind;
use std::path::Path;

use crate::cli::NAME;
use crate::cni::json::{Json, Object, keys};
use crate::error::Result;
use crate::kernel::file;
use crate::plugin::VERSION;

use super::choice::is_plain;
use super::directory::{MANIFEST, failed};
use super::plan::Entry;

keys! {
    /// The content of the file.
    pub(in crate::cli) struct Manifest {
        /// No change is missing.
        "complete" => pub(in crate::cli) is_complete: bool,
        /// The directory did not exist before.
        "madeDirectory" => pub(in crate::cli) made_directory: bool,
        /// SHA-512 of each build that a name may be, in hexadecimal. The first is that of the last installation.
        "sha512" => pub(in crate::cli) builds: Vec<String>,
        "names" => pub(in crate::cli) names: Vec<Installed>,
    }

    /// A name in the directory. The executable is the first.
    pub(in crate::cli) struct Installed {
        "name" => pub(in crate::cli) name: String,
        "plugin" => pub(in crate::cli) plugin: String,
        /// In words, as in a report. Empty for a name that is to be installed.
        "kind" => pub(in crate::cli) kind: String,
        /// The text of a symbolic link: the executable, or a name that tells the plugin. Without such a link it is not in the file.
        "target" => pub(in crate::cli) target: String,
        /// The file that had the name before, in words.
        "replaced" => pub(in crate::cli) replaced: String,
        /// Where that file is, below the directory.
        "backup" => pub(in crate::cli) backup: String,
    }
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
        let unusable = |error: crate::error::Error| {
            error.context(format_args!("cannot use {}", path.display()))
        };
        let json = Json::parse(&content).map_err(unusable)?;
        let mut manifest: Self = json.read("manifest").map_err(unusable)?;
        manifest.names.retain(|it| is_plain(&it.name));
        Ok(Some(manifest))
    }
}

/// The text of the file.
pub(super) fn text(
    is_complete: bool,
    made_directory: bool,
    builds: &[&[String]],
    names: &[Entry],
) -> String {
    let mut objects = Vec::new();
    let mut object = Object::default();
    for entry in names {
        let it = &entry.it;
        object.text("name", &it.name);
        for (key, text) in [
            ("plugin", it.plugin.as_str()),
            ("kind", entry.kind()),
            ("target", entry.link()),
            ("replaced", &it.replaced),
            ("backup", &it.backup),
        ] {
            if !text.is_empty() {
                object.text(key, &text);
            }
        }
        objects.push(object.json());
    }
    object.text("version", &VERSION).text("commit", &env!("CNIBOX_COMMIT"));
    object.put("complete", Json::Bool(is_complete));
    object.put("madeDirectory", Json::Bool(made_directory));
    object.texts("sha512", &builds.concat()).list("names", objects).json().to_pretty() + "\n"
}

impl Installed {
    /// A name that is to be installed.
    pub(super) fn new(name: String, plugin: &str, target: &str) -> Self {
        Self { name, plugin: plugin.into(), target: target.into(), ..Self::default() }
    }

    /// A symbolic link is the only way to the plugin.
    pub(super) fn needs_link(&self) -> bool {
        !self.target.is_empty() && self.target != NAME
    }
}
