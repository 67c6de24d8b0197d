//! `host-local`: addresses from ranges, remembered as files. It touches no network, so it needs no world.

mod faults;
mod files;
mod killed;
mod options;
mod ranges;
mod requests;
mod results;
mod verbs;

use serde_json::{Value, json};

use crate::world::{Bare, Call, Outcome};

/// host-local alone, as a runtime would call it for the network `net`.
struct Net {
    bare: Bare,
    config: Value,
}

impl Net {
    /// `ipam` holds the keys in addition to `type` and `dataDir`.
    fn new(ipam: Value) -> Self {
        Self::of_version("1.1.0", ipam)
    }

    fn of_version(version: &str, ipam: Value) -> Self {
        let bare = Bare::new();
        let mut config =
            json!({"cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam});
        config["ipam"]["type"] = "host-local".into();
        config["ipam"]["dataDir"] = bare.data_dir().into();
        Self { bare, config }
    }

    fn call(&self, verb: &str, id: &str) -> Call<'static> {
        self.bare.call("host-local", verb, &self.config).env("CNI_CONTAINERID", id)
    }

    fn run(&self, verb: &str, id: &str) -> Outcome {
        self.call(verb, id).run()
    }

    /// The addresses that an ADD gives, with their prefix lengths.
    #[track_caller]
    fn add(&self, id: &str) -> Vec<String> {
        addresses(&self.run("ADD", id).success())
    }

    #[track_caller]
    fn del(&self, id: &str) {
        self.run("DEL", id).silence();
    }

    /// The same network with keys laid over its configuration.
    fn with(&self, more: Value) -> Value {
        crate::world::with(&self.config, more)
    }

    fn taken(&self) -> Vec<String> {
        self.bare.taken("net")
    }

    fn write(&self, file: &str, content: &str) {
        std::fs::create_dir_all(self.bare.network("net")).unwrap();
        std::fs::write(self.bare.network("net").join(file), content).unwrap();
    }

    #[track_caller]
    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.bare.network("net").join(file)).unwrap()
    }

    fn has(&self, file: &str) -> bool {
        self.bare.network("net").join(file).exists()
    }
}

fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}
