//! Runs the plugins of a network list on one session. A plugin of this executable is a function call; other plugins are
//! executed. This module does not use the cache or the locks.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attachments::record::Record;
use crate::cni::json::Json;
use crate::cni::request::{Parameters, Request, Verb, missing_variables};
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Turns;
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::execute::{Program, execute, supported_versions};
use crate::plugin::log::{Call, Log};
use crate::plugin::parts::Parts;
use crate::plugin::{Context, Session};
use crate::plugins::{self, PLUGINS};
use crate::runtime::conf::{self, Network};
use crate::runtime::request::configuration;

/// The plugin directories if CNI_PATH is not set: the usual one, that of Debian, that of Fedora.
pub const PATH: &str = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni";

/// The settings that all plugin calls of a process share.
#[derive(Clone)]
pub struct CallSettings {
    /// The directories of CNI_PATH.
    pub path: Vec<PathBuf>,
    /// The timeout of an executed plugin.
    pub timeout: Duration,
    /// CNI_NETNS_OVERRIDE.
    pub netns_override: bool,
    /// DBUS_SYSTEM_BUS_ADDRESS; `None` when empty.
    pub bus_address: Option<OsString>,
    /// The queues in which the threads of this process wait for the locks of files.
    pub turns: Arc<Turns>,
    /// The log of plugin calls in this process.
    pub log: Option<Log>,
}

/// The plugins of a network, and the verb and the parameters of their calls. A function that calls the plugins closes the
/// session at its end.
pub struct Chain<'a> {
    pub settings: &'a CallSettings,
    pub network: &'a Network,
    pub verb: Verb,
    /// CNI_NETNS; empty if it is not set.
    pub netns: &'a Path,
    /// CNI_ARGS.
    pub args: &'a str,
    /// The capability arguments: an object, or `Null`.
    pub capability_args: &'a Json,
    /// The record of an attachment that exists. What a plugin of this executable made, it checks, restores and removes itself,
    /// also if CNI_PATH leads to another executable now.
    pub record: Option<&'a Record>,
    /// The session that the plugins of this executable share. The first of them opens it.
    pub session: OnceCell<Session>,
}

/// The error of a failed ADD.
pub struct FailedAdd {
    pub error: Error,
    /// Whether the plugin that failed is the first of the list and in this executable: such a plugin undoes its own changes.
    pub changed_nothing: bool,
}

impl<'a> Chain<'a> {
    /// A chain for calls without CNI_NETNS, CNI_ARGS and capability arguments.
    pub fn without_parameters(
        settings: &'a CallSettings,
        network: &'a Network,
        verb: Verb,
    ) -> Self {
        let (netns, capability_args, session) = (Path::new(""), &Json::Null, OnceCell::new());
        Self { settings, network, verb, netns, args: "", capability_args, record: None, session }
    }

    /// Fails if a plugin of the list does not exist, or does not support the CNI version of the list. Calls VERSION of each
    /// other executable once. Returns the plugins in this executable, also those that they delegate to.
    pub fn require_plugins(&self) -> Result<Vec<String>> {
        let (mut ours, mut checked): (Vec<String>, Vec<PathBuf>) = Default::default();
        let version = self.network.version.text();
        for plugin in &self.network.plugins {
            let kind = conf::kind(plugin);
            let Program::Executable(file) = self.program(kind)? else {
                ours.push(kind.into());
                let delegates = conf::delegates(plugin).into_iter();
                ours.extend(delegates.filter(|kind| self.has(kind)).map(str::to_owned));
                continue;
            };
            if checked.contains(&file) {
                continue;
            }
            let supported = supported_versions(&file, Some(self.settings.timeout))?;
            if !supported.iter().any(|supported| supported == version) {
                let msg = format!("plugin {kind} does not speak CNI version {version:?}");
                return Err(Error::new(Code::INCOMPATIBLE_VERSION, msg).with_details(
                    format_args!("{} speaks {}", file.display(), supported.join(", ")),
                ));
            }
            checked.push(file);
        }
        Ok(ours)
    }

    /// Runs ADD of each plugin with the result of the plugin before. Returns the last result, as the version of the list has it.
    /// If an ADD fails, the changes of earlier plugins stay: the caller must run DEL.
    pub fn add(self) -> Result<Success, FailedAdd> {
        let mut result = None;
        for (index, plugin) in self.network.plugins.iter().enumerate() {
            let added = self.add_one(plugin, result.take());
            result = Some(added.map_err(|FailedAdd { error, changed_nothing }| FailedAdd {
                error,
                changed_nothing: changed_nothing && index == 0,
            })?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Runs ADD of one plugin with the result of the plugin before. Returns its result, as the version of the list has it.
    pub fn add_one(&self, plugin: &Json, previous: Option<Success>) -> Result<Success, FailedAdd> {
        let prepared = self.prepare(plugin, previous);
        let is_ours = matches!(prepared, Ok((_, Program::Ours(_))));
        let failed = |error, changed_nothing| FailedAdd {
            error: self.with_plugin("add", plugin, error),
            changed_nothing,
        };
        let called = prepared.and_then(|(request, program)| self.call(&request, &program));
        let success = called.map_err(|error| failed(error, is_ours))?;
        let lowered = version::lowered(success.unwrap_or_default(), self.network.version);
        let lowered = lowered.map_err(|error| failed(error, false))?;
        if sys::is_interrupted() {
            return Err(failed(Error::internal("interrupted"), false));
        }
        Ok(lowered)
    }

    /// Runs CHECK of each plugin with the result of ADD, up to the first that fails.
    /// `result` is `Null` if there is none.
    pub fn check(self, result: &Json) -> Result<()> {
        self.run_until_error("check", self.parse_result_of_add(result)?)
    }

    /// Runs STATUS of each plugin, up to the first that fails.
    pub fn status(self) -> Result<()> {
        self.run_until_error("status", None)
    }

    fn run_until_error(&self, operation: &str, result: Option<Success>) -> Result<()> {
        self.network.plugins.iter().try_for_each(|plugin| {
            let prepared = self.prepare(plugin, result.clone());
            let called = prepared.and_then(|(request, program)| self.call(&request, &program));
            called.map(drop).map_err(|error| self.with_plugin(operation, plugin, error))
        })
    }

    /// Runs DEL of each plugin in reverse order, from version 0.4.0 on with the result of ADD. Continues after a plugin that
    /// fails or is missing, and returns all errors.
    pub fn del(self, result: &Json) -> Result<()> {
        let has_result = self.network.version >= Version::V0_4_0;
        let result = if has_result { result } else { &Json::Null };
        let result = self.parse_result_of_add(result).unwrap_or_else(|error| {
            sys::warn(format_args!("{error}; going on without the result of ADD"));
            None
        });
        self.run_all("delete", self.network.plugins.iter().rev(), result)
    }

    /// Runs GC of each plugin. Continues after a plugin that fails or is missing, and returns all errors.
    pub fn gc(self) -> Result<()> {
        self.run_all("gc", self.network.plugins.iter(), None)
    }

    /// Runs DEL or GC of the plugins. The nf_tables changes of plugins in this executable become one transaction at the end.
    /// Before the call of an executed plugin, the changes of the plugins before it are committed.
    fn run_all<'p>(
        &self,
        operation: &str,
        plugins: impl Iterator<Item = &'p Json>,
        result: Option<Success>,
    ) -> Result<()> {
        let mut errors = Vec::new();
        for plugin in plugins {
            if sys::is_interrupted() {
                let error = Error::internal("interrupted");
                errors.push(error.context("cannot call the other plugins"));
                break;
            }
            let called = match self.prepare(plugin, result.clone()) {
                Ok((request, Program::Ours(entry))) => {
                    self.context(&request).and_then(|cx| entry.run(&cx, &self.verb))
                }
                Ok((request, Program::Executable(file))) => {
                    errors.extend(self.commit().err());
                    self.execute(&file, &request)
                }
                Err(error) => Err(error),
            };
            errors.extend(called.err().map(|error| self.with_plugin(operation, plugin, error)));
        }
        errors.extend(self.commit().err());
        Error::joined(errors)
    }

    /// Whether all plugins of the list are in this executable, also the interface plugins that they delegate to.
    pub fn is_ours(&self) -> bool {
        self.network.plugins.iter().all(|plugin| {
            let [delegate, _] = conf::delegates(plugin);
            self.has(conf::kind(plugin)) && (delegate.is_empty() || self.has(delegate))
        })
    }

    /// Whether a plugin is in this executable.
    fn has(&self, kind: &str) -> bool {
        matches!(self.program(kind), Ok(Program::Ours(_)))
    }

    /// Deletes several ended attachments together. All plugins of the list must be in this executable. Continues after a plugin
    /// that fails, and returns all errors.
    pub fn remove_ended(self, all: &[Attachment]) -> Result<()> {
        let mut errors = Vec::new();
        for plugin in self.network.plugins.iter().rev() {
            let called = self.prepare(plugin, None).and_then(|(request, program)| match program {
                Program::Ours(entry) => entry.remove_ended(&self.context(&request)?, all),
                Program::Executable(_) => Err(Error::internal("it is not in this executable")),
            });
            errors.extend(called.err().map(|error| self.with_plugin("delete", plugin, error)));
        }
        errors.extend(self.commit().err());
        Error::joined(errors)
    }

    /// Passes the parts of each plugin on the host to `Parts`, which `new` makes. Continues after a plugin that fails.
    pub fn reconcile(
        self,
        at: &Attachment,
        result: &Json,
        new: &dyn Fn(&str) -> Parts,
    ) -> Vec<(String, Parts)> {
        let result = self.parse_result_of_add(result);
        let mut all = Vec::new();
        for plugin in &self.network.plugins {
            if sys::is_interrupted() {
                break;
            }
            let mut parts = new(conf::kind(plugin));
            let reconciled = result
                .clone()
                .and_then(|result| self.reconcile_one(plugin, at, result, &mut parts));
            parts.errors.extend(reconciled.err());
            let with_plugin = |error| self.with_plugin("restore", plugin, error);
            parts.errors = parts.errors.into_iter().map(with_plugin).collect();
            all.push((conf::kind(plugin).to_owned(), parts));
        }
        all
    }

    /// Parses the cached result of ADD, and converts it to the version of the list. `None` if it is `Null`.
    fn parse_result_of_add(&self, result: &Json) -> Result<Option<Success>> {
        if *result == Json::Null {
            return Ok(None);
        }
        let converted = version::parse_result(result, Version::NEWEST)
            .and_then(|success| version::lowered(success, self.network.version));
        converted.map(Some).map_err(|error| error.context("cannot convert the cached result"))
    }

    /// The program of a plugin, as the record or else CNI_PATH says.
    pub fn program(&self, kind: &str) -> Result<Program> {
        Program::find(kind, self.makers(), &self.settings.path, PLUGINS)
    }

    /// The plugins of this executable that made the attachment. Empty if they are unknown.
    fn makers(&self) -> &[String] {
        self.record.map_or(&[], |record| &record.plugins)
    }

    /// Adds the type of the plugin and the name of the network to an error, in libcni's words.
    pub fn with_plugin(&self, operation: &str, plugin: &Json, error: Error) -> Error {
        let (kind, name) = (conf::kind(plugin), &*self.network.name);
        error.context(format!("plugin type={kind:?} name={name:?} failed ({operation})"))
    }

    /// Calls a plugin.
    fn call(&self, request: &Request, program: &Program) -> Result<Option<Success>> {
        match program {
            Program::Ours(entry) => {
                let started = Instant::now();
                let called = self.context(request).and_then(|cx| entry.call(&cx, &self.verb));
                self.log(request, started, called.as_ref().err());
                called
            }
            Program::Executable(file) => self.execute(file, request),
        }
    }

    fn execute(&self, file: &Path, request: &Request) -> Result<Option<Success>> {
        let netns = request.parameters.netns_path.as_deref();
        execute(file, (request, netns), &self.verb, Some(self.settings.timeout))
    }

    fn reconcile_one(
        &self,
        plugin: &Json,
        at: &Attachment,
        result: Option<Success>,
        parts: &mut Parts,
    ) -> Result<()> {
        let request = self.request(plugin, result)?;
        let kind = request.conf.kind.as_str();
        // Where the plugins of the ADD are known, a plugin that CNI_PATH leads to now does not count. What a plugin makes in the
        // container needs no DEL, and the plugin need not have noted its name.
        let is_in_container = plugins::named(kind).is_some_and(|entry| entry.is_in_container);
        let makers = self.makers();
        let counts = makers.is_empty() || is_in_container || makers.iter().any(|own| own == kind);
        match self.program(kind).ok().filter(|_| counts) {
            Some(Program::Ours(entry)) => entry.reconcile(&self.context(&request)?, at, parts),
            // DEL, not this function, reports a plugin that cannot be found.
            Some(Program::Executable(_)) | None => {
                parts.skip_foreign(kind);
                Ok(())
            }
        }
    }

    /// The request of a call, and the program of the plugin. `previous` is its `prevResult`.
    fn prepare(&self, plugin: &Json, previous: Option<Success>) -> Result<(Request, Program)> {
        let request = self.request(plugin, previous)?;
        let program = self.program(&request.conf.kind)?;
        Ok((request, program))
    }

    /// The request of a call. `previous` is its `prevResult`.
    fn request(&self, plugin: &Json, previous: Option<Success>) -> Result<Request> {
        let has_netns = !self.netns.as_os_str().is_empty();
        if !has_netns && matches!(self.verb, Verb::Add(_) | Verb::Check(_)) {
            return Err(missing_variables(&["CNI_NETNS"]));
        }
        let keep = match &self.verb {
            Verb::Gc(keep) => Some(keep.as_slice()),
            _ => None,
        };
        let json = configuration(self.network, plugin, self.capability_args, keep);
        let mut request = Request::new(&self.verb, json)?;
        request.previous = previous;
        request.parameters = Parameters {
            netns_path: has_netns.then(|| self.netns.into()),
            netns_override: self.settings.netns_override,
            bus_address: self.settings.bus_address.clone(),
            args: self.args.into(),
            path: self.settings.path.clone(),
            makers: self.makers().to_vec(),
            ..Parameters::default()
        };
        Ok(request)
    }

    /// The context of the call of a plugin in this executable.
    fn context<'c>(&'c self, request: &'c Request) -> Result<Context<'c>> {
        let session = match self.session.get() {
            Some(session) => session,
            None => {
                let opened = Session::open(request, &self.verb)?;
                let opened = match self.record {
                    Some(record) => opened.of_recorded(record, request, &self.verb),
                    None => opened,
                };
                let opened = opened
                    .sharing(Arc::clone(&self.settings.turns))
                    .limited_to(self.settings.timeout)
                    .recorded();
                self.session.get_or_init(|| opened)
            }
        };
        let cx = Context { request, session, plugins: PLUGINS };
        request.dropped.iter().for_each(|error| cx.warn(error));
        Ok(cx)
    }

    /// Commits the pending changes of nf_tables.
    fn commit(&self) -> Result<()> {
        self.session.get().map_or(Ok(()), Session::commit)
    }

    /// Logs the call of a plugin in this process. Executed plugins log their own calls.
    fn log(&self, request: &Request, started: Instant, error: Option<&Error>) {
        let Some(log) = &self.settings.log else { return };
        let (plugin, command) = (&request.conf.kind, self.verb.name());
        log.write(&Call { plugin, command, request: Some((request, &self.verb)), started }, error);
    }
}
