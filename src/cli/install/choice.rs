//! The names that the arguments choose.

use crate::error::Result;
use crate::plugin::Entry;

use super::Install;
use super::manifest::Installed;
use crate::cli::{NAME, not_understood};

/// Whether a call under a name runs this plugin.
pub(super) fn leads_to(name: &str, plugin: &str) -> bool {
    crate::find(name).is_some_and(|entry| entry.name == plugin)
}

impl Install {
    /// The names of the plugins, then the aliases.
    pub(super) fn names(&self, plugins: &[Entry]) -> Result<Vec<Installed>> {
        let (only, exclude) = (split("--only", &self.only, plugins)?, &self.exclude);
        let exclude = split("--exclude", exclude, plugins)?;
        let mut names: Vec<Installed> = Vec::new();
        for entry in plugins {
            let is_chosen = only.is_empty() || only.contains(&entry.name);
            if is_chosen && !exclude.contains(&entry.name) {
                let name = [self.prefix.as_str(), entry.name].concat();
                if !leads_to(&name, entry.name) {
                    return Err(not_understood(format_args!(
                        "--prefix {}: not buildkit-cni- or cnv-",
                        self.prefix
                    )));
                }
                names.push(Installed::new(name, entry.name, NAME));
            }
        }
        for alias in &self.alias {
            let alias = self.alias(alias, &names, plugins)?;
            names.push(alias);
        }
        match names.is_empty() {
            true => Err(not_understood(format_args!("no plugin is chosen"))),
            false => Ok(names),
        }
    }

    fn alias(&self, alias: &str, names: &[Installed], plugins: &[Entry]) -> Result<Installed> {
        let refused = |why: &str| Err(not_understood(format_args!("--alias {alias}: {why}")));
        let Some((name, plugin)) = alias.split_once('=') else {
            return refused("it is not ALIAS=PLUGIN");
        };
        if !plugins.iter().any(|entry| entry.name == plugin) {
            return refused("cnibox has no plugin of that name");
        }
        if !is_plain(name) || name == NAME {
            return refused("the alias is no name for a file here");
        }
        if names.iter().any(|it| it.name == name) {
            return refused("the name is taken");
        }
        let target = match crate::find(name) {
            Some(entry) if entry.name == plugin => NAME,
            Some(entry) => {
                let other = entry.name;
                return refused(&format!("a call under this name runs {other}"));
            }
            None if !self.symbolic => {
                return refused(
                    "a call under this name runs no plugin; a symbolic link (-s) would",
                );
            }
            None => match names.iter().find(|it| it.plugin == plugin && !it.needs_link()) {
                Some(it) => &it.name,
                None => return refused("the plugin is not among the chosen ones"),
            },
        };
        Ok(Installed::new(name.into(), plugin, target))
    }
}

/// Whether a name is one of a file in the directory that a runtime can look up.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// Names separated by commas.
fn split<'a>(option: &str, lists: &'a [String], plugins: &[Entry]) -> Result<Vec<&'a str>> {
    let mut names = Vec::new();
    for list in lists {
        for name in list.split(',') {
            if !plugins.iter().any(|entry| entry.name == name) {
                let why = "cnibox has no plugin of that name";
                return Err(not_understood(format_args!("{option} {name}: {why}")));
            }
            names.push(name);
        }
    }
    Ok(names)
}
