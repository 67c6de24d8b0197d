//! `flannel`: a network with the subnet that the daemon flanneld chose for this host. Another plugin makes the
//! interface.
//!
//! ```json
//! { "cniVersion": "1.0.0", "name": "cbr0", "type": "flannel", "delegate": { "hairpinMode": true, "isDefaultGateway": true } }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `subnetFile` | string | `/run/flannel/subnet.env` | File in which the daemon writes subnets, networks, MTU and masquerading. |
//! | `dataDir` | string | `/var/lib/cni/flannel` | Directory of the saved configurations. |
//! | `delegate` | object | none | Keys of the delegate, all but `name` and `ipam`. They override what the file implies. |
//! | `delegate.type` | string | `bridge` | Plugin that makes the interface. It must not be `flannel`. |
//! | `ipam` | object | none | Keys of the delegate's `ipam`. `ranges` are always the subnets of the file. |
//! | `ipam.type` | string | `host-local` | IPAM plugin of the delegate. |
//! | `ipam.routes` | list of objects | none | Routes of the container. The networks of the file are added. |
//! | `runtimeConfig` | object | none | Handed to the delegate as it is. |
//!
//! The file sets `mtu` and `ipMasq` of the delegate (`ipMasq` is the opposite of FLANNEL_IPMASQ). A delegate `bridge`
//! also gets `isGateway`. All of these are defaults: a key in `delegate` overrides them.
//!
//! - **ADD** saves the configuration of the delegate in `dataDir`, and calls the ADD of the delegate. If the delegate
//!   fails and cannot undo its work, the file stays for a later DEL.
//! - **CHECK** calls the CHECK of the delegate with the saved configuration. Without that file it reads `subnetFile`
//!   again.
//! - **DEL** calls the DEL of the delegate with the saved configuration, and removes the file once that succeeded.
//!   Without both files it does nothing and succeeds. If the saved configuration is damaged, it calls the delegate with
//!   the present one, and fails without `subnetFile`.
//! - **GC** calls the GC of the delegate, with the current configuration and with each different saved configuration
//!   of attachments that are not valid, and removes the files of these attachments.
//! - **STATUS** fails if `subnetFile` is missing or incomplete, if `dataDir` cannot be written, or if the STATUS of
//!   the delegate fails.

mod saved_conf;
mod subnet_env;

use std::path::Path;

use ipnet::IpNet;

use crate::cni::json::{Json, keys};
use crate::cni::request::{Request, Verb};
use crate::cni::success::{Route, Success};
use crate::error::{Code, Error, Result};
use crate::kernel::netns::NetNs;
use crate::names::Attachment;
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Entry, Plugin, Scope};
use crate::steps::delegate;
use crate::steps::state;
use crate::steps::undo::{Failures, Undo};
use saved_conf::{Saved, SavedConf};
use subnet_env::SubnetEnv;

/// The default of `subnetFile`, in which the daemon flanneld writes the subnets.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";

pub const ENTRY: Entry =
    Entry::plugin::<Flannel>("flannel", "a network with the subnet that the flannel daemon chose");

keys! {
    pub struct Flannel {
        "subnetFile" => subnet_file: String = SUBNET_FILE.into(),
        "dataDir" => data_dir: String = "/var/lib/cni/flannel".into(),
    }
}

impl Plugin for Flannel {
    fn examine(&self, cx: &Context<'_>, _: &Attachment) -> Result<()> {
        self.config(cx).map(drop)
    }

    fn add(&self, cx: &Context<'_>, at: &Attachment, _netns: &NetNs) -> Result<Success> {
        let config = self.config(cx)?;
        let (record, before) = saved_conf::write(&self.data_dir, cx.request, at, &config)?;
        let is_first = before.is_none();
        let mut undo = Undo::new(cx);
        // The DEL of an earlier ADD needs the configuration of that ADD.
        undo.push("restore the saved configuration", move || match before {
            Some(content) => record.write(&content),
            None => record.remove(),
        });
        let request = cx.request.with_config(config)?;
        match delegate::add(&delegate_context(cx, &request), &request.conf.kind, at) {
            Ok(success) => {
                undo.keep();
                Ok(success)
            }
            Err(failed) => {
                if is_first && !failed.is_undone {
                    // The file stays, so that a later DEL or GC calls the delegate again.
                    undo.keep();
                }
                Err(failed.error)
            }
        }
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment, _netns: &NetNs) -> Result<()> {
        cx.request.required_prev_result()?;
        self.call(cx, self.config_of_add(cx, at)?, &Verb::Check(at.clone()))
    }

    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let request = with_config(cx, self.config_of_add(cx, at)?)?;
        delegate::reconcile(&delegate_context(cx, &request), &request.conf.kind, at, parts)
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, _: Option<&NetNs>) -> Result<()> {
        // A warning about the keys in `dropped` was already written.
        if cx.request.dropped.is_empty() {
            cx.or_warn(Keys::read(cx.request).map(drop));
        }
        match scope {
            Scope::One(at) => self.del(cx, at),
            Scope::Each(all) => all.iter().try_for_each(|at| self.del(cx, at)),
            Scope::AllExcept(keep) => self.gc(cx, scope, &Verb::Gc(keep.to_vec())),
        }
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let config = self.config(cx).and_then(|config| {
            state::check_writable(&self.data_dir)?;
            Ok(config)
        });
        let config = config.map_err(Error::into_not_available)?;
        self.call(cx, config, &Verb::Status)
    }
}

impl Flannel {
    fn del(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        match saved_conf::find(&self.data_dir, cx.request, at)? {
            Saved::Found(SavedConf { record, config }) => {
                self.call(cx, config, &Verb::Del(at.clone()))?;
                record.remove()
            }
            Saved::Damaged(error) => match self.config(cx) {
                Ok(config) => {
                    cx.warn(error);
                    self.call(cx, config, &Verb::Del(at.clone()))
                }
                Err(missing) => Err(error.also(&missing)),
            },
            Saved::Missing => {
                saved_conf::remove_incomplete(&self.data_dir, cx.request, at);
                match self.config(cx) {
                    Ok(config) => self.call(cx, config, &Verb::Del(at.clone())),
                    // No ADD succeeded, so the delegate has nothing to remove.
                    Err(_) => Ok(()),
                }
            }
        }
    }

    fn gc(&self, cx: &Context<'_>, scope: Scope<'_>, verb: &Verb) -> Result<()> {
        let mut failures = Failures::default();
        let files = saved_conf::all(cx, &self.data_dir, &cx.owners(scope), &mut failures)?;
        let mut called = Vec::new();
        let call = |config: Json, called: &mut Vec<Json>| {
            self.call(cx, config.clone(), verb).map(|()| called.push(config))
        };
        match self.config(cx) {
            Ok(config) => failures.note(call(config.sorted(), &mut called)),
            Err(error) if files.is_empty() => failures.note(Err(error)),
            Err(_) => {}
        }
        for (SavedConf { record, config }, is_stale) in files {
            // A saved configuration can have another delegate, or another state directory of the delegate.
            let needs_call = called.is_empty() || (is_stale && !called.contains(&config));
            let done = if needs_call { call(config, &mut called) } else { Ok(()) };
            failures.note(match done {
                Ok(()) if is_stale => record.remove(),
                done => done,
            });
        }
        failures.into_result()
    }

    /// The configuration of the delegate, from the present keys and `subnetFile`.
    fn config(&self, cx: &Context<'_>) -> Result<Json> {
        let keys = Keys::read(cx.request)?;
        Ok(keys.config(cx.request, &SubnetEnv::read(Path::new(&self.subnet_file))?))
    }

    /// The configuration of the delegate that ADD saved. Without a saved file, the configuration from the present keys.
    fn config_of_add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Json> {
        match saved_conf::find(&self.data_dir, cx.request, at)? {
            Saved::Found(SavedConf { config, .. }) => Ok(config),
            Saved::Missing => self.config(cx),
            Saved::Damaged(error) => Err(error),
        }
    }

    /// Calls the delegate, and commits its changes of nf_tables.
    fn call(&self, cx: &Context<'_>, config: Json, verb: &Verb) -> Result<()> {
        let request = with_config(cx, config)?;
        delegate::call(&delegate_context(cx, &request), &request.conf.kind, verb)?;
        // The saved configuration is removed only after the delegate's changes are made.
        cx.session.commit()
    }
}

/// The request for the delegate: `config` with the version, the previous result and the valid attachments of this call.
fn with_config(cx: &Context<'_>, config: Json) -> Result<Request> {
    let mut config = ConfigObject(config);
    // The version of this call decides which verbs exist.
    for key in ["cniVersion", "prevResult", "cni.dev/valid-attachments"] {
        if let Some(value) = cx.request.json.get(key) {
            config.0.set(key, value.clone());
        }
    }
    let request = cx.request.with_config(config.0)?;
    if request.conf.kind == "flannel" {
        return Err(Error::config("delegate.type: flannel cannot delegate to itself"));
    }
    Ok(request)
}

/// The context for a call of the delegate.
fn delegate_context<'a>(cx: &Context<'a>, request: &'a Request) -> Context<'a> {
    Context { request, session: cx.session, plugins: cx.plugins }
}

/// The validated keys for the delegate.
struct Keys {
    delegate: ConfigObject,
    ipam: ConfigObject,
    routes: Vec<Json>,
}

/// A JSON object whose keys this plugin sets: the configuration of the delegate, or its `ipam`.
struct ConfigObject(Json);

impl Keys {
    fn read(request: &Request) -> Result<Self> {
        let object = |key: &str| match request.json.get(key) {
            None => Ok(ConfigObject(Json::Object(Vec::new()))),
            Some(value @ Json::Object(_)) => Ok(ConfigObject(value.clone())),
            Some(_) => Err(Error::config(format_args!("{key}: it is not an object"))),
        };
        let (delegate, ipam) = (object("delegate")?, object("ipam")?);
        for key in ["name", "ipam"] {
            if delegate.0.get(key).is_some() {
                return Err(Error::config(format_args!(
                    "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
                )));
            }
        }
        match delegate.0.get("type") {
            None => {}
            Some(Json::String(kind)) if kind != "flannel" => {}
            Some(Json::String(_)) => {
                return Err(Error::config("delegate.type: flannel cannot delegate to itself"));
            }
            Some(_) => {
                return Err(Error::config(
                    "'delegate' dictionary, if present, must have (string) 'type' field",
                ));
            }
        }
        // The delegate would also refuse an invalid list, but its error would not name the key of flannel.
        let routes = match ipam.0.get("routes") {
            None => Vec::new(),
            Some(list @ Json::Array(routes)) => {
                list.read::<Vec<Route>>("ipam.routes").map_err(|error| {
                    Error::new(Code::INVALID_CONFIG, format_args!("ipam.routes: {}", error.msg))
                })?;
                routes.clone()
            }
            Some(_) => return Err(Error::config("ipam.routes: it is not a list of routes")),
        };
        Ok(Self { delegate, ipam, routes })
    }

    fn config(mut self, request: &Request, env: &SubnetEnv) -> Json {
        let route = |net: &IpNet| Json::object([("dst", Some(net.to_string().into()))]);
        self.ipam.set_ranges(env);
        self.routes.extend(env.networks.iter().map(route));
        self.ipam.0.set("routes", Json::Array(self.routes));

        let mut config = self.delegate;
        config.0.set("name", Json::String(request.conf.name.clone()));
        config.set_default("type", "bridge".into());
        config.set_default("ipMasq", Json::Bool(!env.ip_masq));
        config.set_default("mtu", env.mtu.into());
        if config.0.get("type") == Some(&"bridge".into()) {
            config.set_default("isGateway", Json::Bool(true));
        }
        if !request.conf.cni_version.is_empty() {
            config.0.set("cniVersion", Json::String(request.conf.cni_version.clone()));
        }
        if let Some(runtime) = request.json.get("runtimeConfig") {
            config.0.set("runtimeConfig", runtime.clone());
        }
        config.0.set("ipam", self.ipam.0);
        config.0
    }
}

/// The types of the delegate and of its IPAM plugin.
pub fn delegates(plugin: &Json) -> [&str; 2] {
    let kind = |key: &str, default| match plugin.get(key).and_then(|config| config.text_at("type"))
    {
        None | Some("") => default,
        Some(kind) => kind,
    };
    [kind("delegate", "bridge"), kind("ipam", "host-local")]
}

/// The configuration of the delegate's IPAM plugin: an object with the key `ipam`. `None` if the daemon has not written the
/// subnets.
#[cfg(feature = "tool")]
pub fn host_local(plugin: &Json) -> Option<Json> {
    let subnet_file = plugin.text_at("subnetFile").filter(|path| !path.is_empty());
    let subnet_file = subnet_file.unwrap_or(SUBNET_FILE);
    let env = SubnetEnv::read(Path::new(subnet_file)).ok()?;
    let mut ipam = ConfigObject(plugin.get("ipam").cloned().unwrap_or(Json::Object(Vec::new())));
    ipam.set_ranges(&env);
    Some(Json::object([("ipam", Some(ipam.0))]))
}

impl ConfigObject {
    /// Sets `ranges` to the subnets of the file, and `type` to `host-local` if it is missing.
    fn set_ranges(&mut self, env: &SubnetEnv) {
        self.set_default("type", "host-local".into());
        let mut ranges = Vec::new();
        for subnet in &env.subnets {
            let range = Json::object([("subnet", Some(subnet.to_string().into()))]);
            ranges.push(Json::Array(vec![range]));
        }
        self.0.set("ranges", Json::Array(ranges));
    }

    fn set_default(&mut self, key: &str, value: Json) {
        if self.0.get(key).is_none() {
            self.0.set(key, value);
        }
    }
}
