//! The manuals of the plugins: the `//!` comments at the heads of their files. build.rs packs them into one compressed file.

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/manuals"));

const MATCH_MIN: usize = 4;
const END: char = '\0';
const TABLE: &str = "| key | type | default | meaning |";
const IN_ARGS: &str = "CNI_ARGS: ";
const IN_CAPABILITY: &str = "(capability `";

/// The manual of the keys that all plugins share, then the manuals of the plugins, separated by `END`.
pub(super) struct Manuals {
    text: String,
}

/// The text of one manual.
#[derive(Clone, Copy)]
pub(super) struct Manual<'a> {
    pub(super) text: &'a str,
}

/// A row of the table of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key<'a> {
    /// The path of the key, such as `ipam.ranges[][].subnet`, or the name of a key of CNI_ARGS.
    pub(super) path: &'a str,
    pub(super) is_in_args: bool,
    /// The type of the value in words. It begins with `boolean`, `integer`, `string`, `list` or `object`.
    pub(super) of_type: &'a str,
    pub(super) default: &'a str,
    pub(super) meaning: &'a str,
}

impl Manuals {
    pub(super) fn unpack() -> Self {
        Self { text: String::from_utf8_lossy(&unpacked(PACKED)).into_owned() }
    }

    /// The manual of the keys that all plugins share.
    pub(super) fn network(&self) -> Manual<'_> {
        Manual { text: self.text.split(END).next().unwrap_or_default() }
    }

    /// The manual of a plugin. Plugins with the same configuration share a manual.
    pub(super) fn of(&self, plugin: &str) -> Option<Manual<'_>> {
        let name = format!("`{plugin}`");
        // The first sentence of a manual names all its plugins.
        let names = |text: &str| {
            text.split([':', '.']).next().is_some_and(|sentence| sentence.contains(&name))
        };
        self.text.split(END).skip(1).find(|text| names(text)).map(|text| Manual { text })
    }
}

impl<'a> Manual<'a> {
    /// The keys in the order of the table.
    pub(super) fn keys(self) -> Vec<Key<'a>> {
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
    pub(super) fn capabilities(self) -> Vec<&'a str> {
        let mut capabilities = Vec::new();
        for key in self.keys() {
            if let Some((_, name)) = key.meaning.split_once(IN_CAPABILITY) {
                capabilities.extend(name.split('`').next());
            }
        }
        capabilities
    }

    /// Whether the plugin is a chained plugin: it needs the result of another plugin.
    pub(super) fn is_chained(self) -> bool {
        self.text.contains("The plugin follows ")
    }
}

impl<'a> Key<'a> {
    fn parse(line: &'a str) -> Option<Self> {
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

/// Reverses `packed` in build.rs.
fn unpacked(mut packed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    while let Some((flags, rest)) = packed.split_first() {
        packed = rest;
        for bit in 0..8 {
            match packed {
                [low, high, length, rest @ ..] if flags & (1 << bit) != 0 => {
                    let distance = usize::from(u16::from_le_bytes([*low, *high]));
                    let start = text.len().saturating_sub(distance);
                    for at in start..start + usize::from(*length) + MATCH_MIN {
                        text.extend(text.get(at).copied());
                    }
                    packed = rest;
                }
                [byte, rest @ ..] => {
                    text.push(*byte);
                    packed = rest;
                }
                [] => break,
            }
        }
    }
    text
}
