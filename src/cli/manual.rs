//! The manuals of the plugins: the `//!` comments at the heads of their files. build.rs collects them.

/// The manual of the keys that all plugins share, then the manuals of the plugins, separated by `END`.
const MANUALS: &str = include_str!(concat!(env!("OUT_DIR"), "/manuals"));
const END: char = '\0';
const TABLE: &str = "| key | type | default | meaning |";
const IN_ARGS: &str = "CNI_ARGS: ";
/// A capability is the name of its key in this object.
///
/// Source: CNI conventions, "Dynamic plugin specific fields".
const RUNTIME_CONFIG: &str = "runtimeConfig.";

/// The text of one manual.
#[derive(Clone, Copy)]
pub(super) struct Manual {
    pub(super) text: &'static str,
}

/// A row of the table of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key {
    /// The path of the key, such as `ipam.ranges[][].subnet`, or the name of a key of CNI_ARGS.
    pub(super) path: &'static str,
    pub(super) is_in_args: bool,
    /// The type of the value in words. It begins with `boolean`, `integer`, `string`, `list` or `object`.
    pub(super) of_type: &'static str,
    pub(super) default: &'static str,
    pub(super) meaning: &'static str,
}

/// The manual of the keys that all plugins share.
pub(super) fn network() -> Manual {
    Manual { text: MANUALS.split(END).next().unwrap_or_default() }
}

/// The manual of a plugin. Plugins with the same configuration share a manual.
pub(super) fn of(plugin: &str) -> Option<Manual> {
    let name = format!("`{plugin}`");
    // The first sentence of a manual names all its plugins.
    let names =
        |text: &str| text.split([':', '.']).next().is_some_and(|sentence| sentence.contains(&name));
    MANUALS.split(END).skip(1).find(|text| names(text)).map(|text| Manual { text })
}

impl Manual {
    /// The keys in the order of the table.
    pub(super) fn keys(self) -> Vec<Key> {
        let table = self.text.split_once(TABLE).map_or("", |(_, table)| table);
        let mut keys = Vec::new();
        // The first line is the end of the header, the second is `|---|`.
        for line in table.lines().skip(2) {
            match Key::parse(line) {
                Some(key) => keys.push(key),
                None => break,
            }
        }
        keys
    }

    /// The capabilities that the plugin supports.
    pub(super) fn capabilities(self) -> Vec<&'static str> {
        let keys = self.keys().into_iter();
        let mut names: Vec<&str> = keys
            .filter_map(|key| key.path.strip_prefix(RUNTIME_CONFIG)?.split(['.', '[']).next())
            .collect();
        names.dedup();
        names
    }
}

impl Key {
    fn parse(line: &'static str) -> Option<Self> {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let mut cell = || cells.next().map(str::trim);
        let path = cell()?.trim_matches('`');
        Some(Self {
            path: path.strip_prefix(IN_ARGS).unwrap_or(path),
            is_in_args: path.starts_with(IN_ARGS),
            of_type: cell()?,
            default: cell()?,
            meaning: cell()?,
        })
    }
}
