//! The names that the arguments of `install` select.

use crate::cli::output::usage_error;
use crate::error::Result;
use crate::plugins::{self, PLUGINS};

use super::Install;
use super::manifest::is_plain;

/// A name, and the plugin that a call under it runs.
pub(super) type NameAndPlugin = (String, &'static str);

impl Install {
    /// The names of the plugins, then the aliases.
    pub(super) fn names(&self) -> Result<Vec<NameAndPlugin>> {
        let only = split("--only", &self.only)?;
        let exclude = split("--exclude", &self.exclude)?;
        let mut names: Vec<NameAndPlugin> = Vec::new();
        for entry in PLUGINS {
            let is_chosen = only.is_empty() || only.contains(&entry.name);
            if is_chosen && !exclude.contains(&entry.name) {
                let name = format!("{}{}", self.prefix, entry.name);
                if crate::find(&name).is_none_or(|found| found.name != entry.name) {
                    return Err(usage_error(format_args!(
                        "--prefix {}: not buildkit-cni- or cnv-",
                        self.prefix
                    )));
                }
                names.push((name, entry.name));
            }
        }
        for alias in &self.alias {
            let refused = |why: &str| Err(usage_error(format_args!("--alias {alias}: {why}")));
            let Some((name, plugin)) = alias.split_once('=') else {
                return refused("it is not ALIAS=PLUGIN");
            };
            match crate::find(name).filter(|_| is_plain(name)) {
                Some(entry) if entry.name == plugin => names.push((name.into(), entry.name)),
                Some(entry) => {
                    return refused(&format!("a call under this name runs {}", entry.name));
                }
                None => return refused("the alias is not buildkit-cni-PLUGIN or cnv-PLUGIN"),
            }
        }
        match names.is_empty() {
            true => Err(usage_error("no plugin is chosen")),
            false => Ok(names),
        }
    }
}

/// Splits the arguments of an option into plugin names, which are separated by commas. Fails if there is no such plugin.
fn split<'a>(option: &str, lists: &'a [String]) -> Result<Vec<&'a str>> {
    let names: Vec<&str> = lists.iter().flat_map(|list| list.split(',')).collect();
    match names.iter().find(|name| plugins::named(name).is_none()) {
        Some(name) => {
            Err(usage_error(format_args!("{option} {name}: cnibox has no plugin of that name")))
        }
        None => Ok(names),
    }
}
