//! Network configurations: finds and parses the files with lists of plugins. This module does not depend on attachments.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem;
use std::path::{Path, PathBuf};

use crate::cni::json::{Json, Read, ReadError, is_key, keys};
use crate::cni::request::INPUT_BYTES_MAX;
use crate::cni::version::Version;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::names::NetworkName;
use crate::plugins::flannel;

/// The directory in which runtimes look for network configurations.
pub const DIRECTORY: &str = "/etc/cni/net.d";

/// A network configuration: a list of plugins. The configuration of a single plugin becomes a list of one.
#[derive(Clone, Debug)]
pub struct Network {
    pub name: NetworkName,
    /// The highest version in `cniVersion` and `cniVersions` that this executable supports.
    pub version: Version,
    pub disable_check: bool,
    pub disable_gc: bool,
    /// The configurations of the plugins, unchanged. Each is an object with a `type`.
    pub plugins: Vec<Json>,
    /// The list, including the plugins of other files.
    pub list: Json,
    /// The JSON text of the list. The cache stores it.
    pub bytes: Vec<u8>,
    /// The path of the file. Empty for a configuration from the cache.
    pub file: PathBuf,
}

keys! {
    /// The keys of a list, or of a single configuration, that are about the network. `cniVersions` lists the versions that the
    /// network supports; the runtime uses the highest one that it supports, too.
    struct Keys {
        "name" => name: String,
        "cniVersion" => cni_version: String,
        "cniVersions" => cni_versions: Option<Vec<String>>,
        "disableCheck" => disable_check: Switch,
        "disableGC" => disable_gc: Switch,
        "loadOnlyInlinedPlugins" => only_inlined: Switch,
    }

    struct Typed {
        "type" => kind: String,
    }
}

impl Keys {
    fn version(&self) -> Result<Version> {
        let Some(listed) = &self.cni_versions else { return Version::negotiate(&self.cni_version) };
        let texts: Vec<&str> =
            [&self.cni_version].into_iter().chain(listed).map(String::as_str).collect();
        Version::highest(&texts)
    }
}

/// A boolean, or the string "true" or "false", which libcni also accepts.
#[derive(Default)]
struct Switch(bool);

impl Read for Switch {
    fn read(&mut self, json: &Json) -> Result<(), ReadError> {
        match json {
            Json::String(text) if text.eq_ignore_ascii_case("true") => self.0 = true,
            Json::String(text) if text.eq_ignore_ascii_case("false") => self.0 = false,
            _ => self.0.read(json)?,
        }
        Ok(())
    }
}

impl Network {
    /// Finds a network in a directory by its name. Calls `warn` for each broken file that comes before the network.
    pub fn find(wanted: &str, directory: &Path, warn: &mut dyn FnMut(&Error)) -> Result<Self> {
        let files = files(directory)?;
        for file in &files {
            match Self::load_found(file) {
                Ok(network) if *network.name == *wanted => return Ok(network),
                Ok(_) => {}
                Err(error) => warn(&error),
            }
        }
        let directory = directory.display();
        Err(Error::config(match files.as_slice() {
            [] => format!("no net configurations found in {directory}"),
            _ => format!("no net configuration with name {wanted:?} in {directory}"),
        }))
    }

    /// All networks of a directory, in the order of a look-up by name: if several have the same name, `find` uses the first.
    /// Empty if the directory is missing.
    pub fn all(directory: &Path) -> Result<Vec<Result<Self>>> {
        Ok(files(directory)?.iter().map(|file| Self::load_found(file)).collect())
    }

    /// All networks of a directory, in the order of the file names.
    pub fn all_by_name(directory: &Path) -> Result<Vec<Result<Self>>> {
        let files = files_with(directory, EXTENSIONS)?;
        Ok(files.iter().map(|file| Self::load_found(file)).collect())
    }

    /// Reads a file that the operator names, and the plugins in the directory of its network. The file can be a FIFO, which a
    /// shell creates for `<(command)`.
    pub fn load(file: &Path) -> Result<Self> {
        Self::of_file(file, &read_named(file)?)
    }

    /// Reads a file that was found in a directory, and the plugins in the directory of its network. A FIFO is an error.
    fn load_found(file: &Path) -> Result<Self> {
        Self::of_file(file, &read(file)?)
    }

    fn of_file(file: &Path, bytes: &[u8]) -> Result<Self> {
        let cannot = |error: Error| error.context(format!("cannot read {}", file.display()));
        Self::parse(bytes, file).map_err(cannot)
    }

    /// Parses a configuration from the cache: a list, or the configuration of a single plugin, which old runtimes store.
    pub fn from_cache(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes, Path::new(""))
    }

    /// The network of a list that no file has.
    #[cfg(feature = "netavark")]
    pub fn of_list(list: Json) -> Result<Self> {
        let bytes = list.to_compact().into_bytes();
        Self::new(list, bytes, Path::new(""))
    }

    fn parse(bytes: &[u8], file: &Path) -> Result<Self> {
        Self::new(Json::parse(bytes)?, bytes.into(), file)
    }

    /// Reads a list, or the configuration of a single plugin. `bytes` is its JSON text, `file` its path: a list must have
    /// `plugins`, and `add_from_directory` reads further plugins beside it. Empty for a list that has all plugins.
    fn new(list: Json, bytes: Vec<u8>, file: &Path) -> Result<Self> {
        let keys: Keys = list.read("network configuration")?;
        let mut network = Self {
            name: NetworkName::new(keys.name.as_str())?,
            version: keys.version()?,
            disable_check: keys.disable_check.0,
            disable_gc: keys.disable_gc.0,
            plugins: Vec::new(),
            list,
            bytes,
            file: file.into(),
        };
        match network.list.get("plugins") {
            None if !is_list(file) && network.list.get("type").is_some() => network.add_single()?,
            listed => {
                let only_inlined = keys.only_inlined.0;
                network.plugins = inlined(listed, only_inlined)?;
                if !only_inlined && !file.as_os_str().is_empty() {
                    network.add_from_directory()?;
                }
            }
        }
        match network.plugins.as_slice() {
            [] => Err(Error::config("no plugin configs found")),
            _ => Ok(network),
        }
    }

    fn add_single(&mut self) -> Result<()> {
        require_type(&self.list, 0)?;
        self.plugins.push(self.list.clone());
        self.set_list(Json::object([
            ("name", self.list.get("name").cloned()),
            ("cniVersion", self.list.get("cniVersion").cloned()),
            ("plugins", Some(Json::Array(self.plugins.clone()))),
        ]));
        Ok(())
    }

    fn set_list(&mut self, list: Json) {
        self.bytes = list.to_compact().into_bytes();
        self.list = list;
    }

    /// Adds the plugins of `NAME/*.conf` beside the file, and writes them into the list, so the cache has them.
    fn add_from_directory(&mut self) -> Result<()> {
        let beside = self.file.parent().unwrap_or_else(|| Path::new("")).join(&*self.name);
        let found = files_with(&beside, &["conf"])?;
        if found.is_empty() {
            return Ok(());
        }
        for path in found {
            let plugin = Json::parse(&read(&path)?).and_then(|plugin| {
                require_type(&plugin, self.plugins.len())?;
                Ok(plugin)
            });
            let cannot = |error: Error| error.context(format!("cannot read {}", path.display()));
            self.plugins.push(plugin.map_err(cannot)?);
        }
        let mut list = mem::take(&mut self.list);
        list.set("loadOnlyInlinedPlugins", Json::Bool(true));
        list.set("plugins", Json::Array(self.plugins.clone()));
        self.set_list(list);
        if self.bytes.len() > INPUT_BYTES_MAX {
            // DEL reads the list from the cache, and reads at most INPUT_BYTES_MAX bytes.
            return Err(Error::config(format_args!(
                "the list with the plugins in {} has more than {INPUT_BYTES_MAX} bytes",
                beside.display()
            )));
        }
        Ok(())
    }

    /// The first plugin of a type.
    pub fn plugin(&self, wanted: &str) -> Option<&Json> {
        self.plugins.iter().find(|plugin| kind(plugin) == wanted)
    }

    /// Whether a plugin of the list declares a capability.
    pub fn is_capable_of(&self, capability: &str) -> bool {
        self.plugins.iter().any(|plugin| declares(plugin, capability))
    }
}

/// The `type` of a plugin; empty if it has none.
pub fn kind(plugin: &Json) -> &str {
    plugin.text_at("type").unwrap_or_default()
}

/// The `type` of a plugin's IPAM plugin; empty if it has none.
pub fn ipam_kind(plugin: &Json) -> &str {
    plugin.get("ipam").map_or("", kind)
}

/// The types of the delegate and of the IPAM plugin; empty if a plugin has none.
pub fn delegates(plugin: &Json) -> [&str; 2] {
    if kind(plugin) == "flannel" { flannel::delegates(plugin) } else { ["", ipam_kind(plugin)] }
}

/// Whether a plugin declares a capability.
pub fn declares(plugin: &Json, capability: &str) -> bool {
    declared(plugin).contains(capability)
}

/// The capabilities that a plugin declares. Their names are data, so they are case-sensitive.
pub fn declared(plugin: &Json) -> BTreeSet<&str> {
    let mut declared = BTreeSet::new();
    let Some(Json::Object(entries)) = plugin.get("capabilities") else { return declared };
    for (name, value) in entries {
        // The last of repeated keys counts.
        match value {
            Json::Bool(true) => declared.insert(name.as_str()),
            _ => declared.remove(name.as_str()),
        };
    }
    declared
}

/// Removes keys from an object. The comparison ignores case, as the parser of a plugin does.
pub fn remove_keys(entries: &mut Vec<(String, Json)>, keys: &[&str]) {
    entries.retain(|(name, _)| !keys.iter().any(|key| is_key(name, key)));
}

/// All configuration files of a directory: the lists in the order of their names, then the single configurations.
pub fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, singles): (Vec<_>, Vec<_>) =
        files_with(directory, EXTENSIONS)?.into_iter().partition(|file| is_list(file));
    files.extend(singles);
    Ok(files)
}

const EXTENSIONS: &[&str] = &["conflist", "conf", "json"];

/// Whether a file has a list of plugins, by its extension.
pub fn is_list(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "conflist")
}

/// The files with one of these extensions, in the order of their names.
fn files_with(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let cannot = Error::of_file("read directory", directory);
    let entries = file::found(fs::read_dir(directory)).map_err(&cannot)?;
    let Some(entries) = entries else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(&cannot)?;
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_wanted = extension.is_some_and(|extension| extensions.contains(&extension));
        if is_wanted && !entry.file_type().map_err(&cannot)?.is_dir() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads a file that was found in a directory.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    file::read_within(path, INPUT_BYTES_MAX).map_err(Error::of_file("read", path))
}

/// Reads a file that the operator names. It can be of any type; the open of a FIFO waits for its writer.
pub fn read_named(path: &Path) -> Result<Vec<u8>> {
    let content = File::open(path).and_then(|file| file::read_to_end(file, INPUT_BYTES_MAX));
    content.map_err(Error::of_file("read", path))
}

/// The plugins in a list.
fn inlined(listed: Option<&Json>, only_inlined: bool) -> Result<Vec<Json>> {
    match listed {
        None if only_inlined => {
            Err(Error::config("plugins: missing, although loadOnlyInlinedPlugins is true"))
        }
        None => Ok(Vec::new()),
        Some(Json::Array(plugins)) if !plugins.is_empty() => {
            for (index, plugin) in plugins.iter().enumerate() {
                require_type(plugin, index)?;
            }
            Ok(plugins.clone())
        }
        Some(Json::Array(_)) => Err(Error::config("plugins: the list is empty")),
        Some(_) => Err(Error::config("plugins: not a list")),
    }
}

fn require_type(plugin: &Json, index: usize) -> Result<()> {
    let Typed { kind } = plugin.read(&format!("plugins[{index}]"))?;
    match kind.is_empty() {
        true => Err(Error::config(format_args!("plugins[{index}]: type is missing"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
