//! Plugins without a world: for all that a plugin says before, or without, touching the network.

use std::path::PathBuf;

use serde_json::Value;

use super::scratch::Scratch;
use super::{Call, plugin_names};

/// A directory with a link to the executable for every plugin, and an empty directory for their data.
pub struct Bare {
    pub scratch: Scratch,
}

impl Bare {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        for name in plugin_names() {
            scratch.link(&name);
        }
        Self { scratch }
    }

    /// A call with everything that a runtime sets, and, like the reference's own examples, no real namespace.
    pub fn call(&self, plugin: &str, verb: &str, config: &Value) -> Call<'static> {
        self.plugin(plugin)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", "abc")
            .env("CNI_NETNS", "/dev/null")
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", self.scratch.path().to_str().unwrap())
            .config(config)
    }

    /// A call with nothing at all.
    pub fn plugin(&self, name: &str) -> Call<'static> {
        Call::program(&self.scratch.file(name))
    }

    /// For `ipam.dataDir`.
    pub fn data_dir(&self) -> String {
        self.scratch.text("networks")
    }

    pub fn network(&self, name: &str) -> PathBuf {
        self.scratch.file("networks").join(name)
    }

    /// The addresses that are taken in a network: the names of its files, but for those that are not addresses.
    pub fn taken(&self, network: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.network(network)) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut taken: Vec<String> =
            names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect();
        taken.sort();
        taken
    }
}
