//! Runs the plugins of a network list on one session. A plugin of this executable is a function call; other plugins are
//! executed. This module does not use the cache or the locks.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cni::json::Json;
use crate::cni::request::{Request, Verb};
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Code, Error, Result};
use crate::kernel::flock::Turns;
use crate::kernel::sys;
use crate::names::Attachment;
use crate::plugin::execute::{Program, execute, supported_versions};
use crate::plugin::log::{Call, Log};
use crate::plugin::restore::Parts;
use crate::plugin::{Context, Entry, Session};
use crate::runtime::conf::{self, Network};
use crate::runtime::request::configuration;

/// The settings that all plugin calls of a process share.
#[derive(Clone)]
pub struct CallSettings {
    /// The plugins of this executable.
    pub plugins: &'static [Entry],
    /// The directories of CNI_PATH.
    pub path: Vec<PathBuf>,
    /// The timeout of an executed plugin.
    pub timeout: Duration,
    /// CNI_NETNS_OVERRIDE.
    pub netns_override: Option<OsString>,
    /// The queues in which the threads of this process wait for the locks of files.
    pub turns: Arc<Turns>,
    /// The log of plugin calls in this process.
    pub log: Option<Log>,
}

/// The CNI parameters of a call. They are empty for STATUS and GC, which have no attachment.
#[derive(Clone, Copy)]
pub struct Parameters<'a> {
    pub at: Option<&'a Attachment>,
    /// CNI_NETNS; empty if it is not set.
    pub netns: &'a Path,
    /// CNI_ARGS.
    pub args: &'a str,
    /// The capability arguments: an object, or `Null`.
    pub capability_args: &'a Json,
}

/// The plugins of a network, and the parameters of their calls.
pub struct Chain<'a> {
    pub settings: &'a CallSettings,
    pub network: &'a Network,
    pub parameters: Parameters<'a>,
}

/// The error of a failed ADD.
pub struct FailedAdd {
    pub error: Error,
    /// Whether the plugin that failed is the first of the list and in this executable: such a plugin undoes its own changes.
    pub changed_nothing: bool,
}

impl Chain<'_> {
    /// Fails if a plugin of the list does not exist, or does not support the CNI version of the list. Calls VERSION of each
    /// other executable once.
    pub fn require_plugins(&self) -> Result<()> {
        let mut checked: Vec<PathBuf> = Vec::new();
        let version = self.network.version.text();
        for plugin in &self.network.plugins {
            let kind = conf::kind(plugin);
            let Program::Executable(file) = self.program(kind)? else { continue };
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
        Ok(())
    }

    /// Runs ADD of each plugin with the result of the plugin before. Returns the last result, in the version of the list. If an
    /// ADD fails, the changes of earlier plugins stay: the caller must run DEL.
    pub fn add(&self) -> Result<Json, FailedAdd> {
        let session = OnceCell::new();
        let mut result = None;
        for (index, plugin) in self.network.plugins.iter().enumerate() {
            let mut is_ours = false;
            let added = self.add_one(&session, plugin, result.take(), &mut is_ours);
            let added = added.map_err(|error| FailedAdd {
                error: self.with_plugin("add", plugin, error),
                changed_nothing: index == 0 && is_ours,
            })?;
            result = Some(added);
            if sys::is_interrupted() {
                let error = self.with_plugin("add", plugin, Error::internal("interrupted"));
                return Err(FailedAdd { error, changed_nothing: false });
            }
        }
        let printed = result.map(|success| version::print_result(&success, self.network.version));
        printed
            .transpose()
            .map(Option::unwrap_or_default)
            .map_err(|error| FailedAdd { error, changed_nothing: false })
    }

    fn add_one(
        &self,
        session: &OnceCell<Session>,
        plugin: &Json,
        previous: Option<Success>,
        is_ours: &mut bool,
    ) -> Result<Success> {
        let (request, verb) = self.request("ADD", plugin, previous, None)?;
        let program = self.program(&request.conf.kind)?;
        *is_ours = matches!(program, Program::Ours(_));
        let success = self.call(session, &program, &request, &verb)?.unwrap_or_default();
        version::lowered(success, self.network.version)
    }

    /// Runs CHECK of each plugin with the result of ADD, up to the first that fails.
    pub fn check(&self, result: Option<&Json>) -> Result<()> {
        self.run_until_error("CHECK", "check", self.parse_result_of_add(result)?)
    }

    /// Runs STATUS of each plugin, up to the first that fails.
    pub fn status(&self) -> Result<()> {
        self.run_until_error("STATUS", "status", None)
    }

    fn run_until_error(
        &self,
        command: &str,
        operation: &str,
        result: Option<Success>,
    ) -> Result<()> {
        let session = OnceCell::new();
        self.network.plugins.iter().try_for_each(|plugin| {
            let request = self.request(command, plugin, result.clone(), None);
            let called = request.and_then(|(request, verb)| {
                let program = self.program(&request.conf.kind)?;
                self.call(&session, &program, &request, &verb)
            });
            called.map(drop).map_err(|error| self.with_plugin(operation, plugin, error))
        })
    }

    /// Runs DEL of each plugin in reverse order, from version 0.4.0 on with the result of ADD. Continues after a plugin that
    /// fails or is missing, and returns all errors.
    pub fn del(&self, result: Option<&Json>) -> Result<()> {
        let result = result.filter(|_| self.network.version >= Version::V0_4_0);
        let result = self.parse_result_of_add(result).unwrap_or_else(|error| {
            sys::warn(format_args!("{error}; going on without the result of ADD"));
            None
        });
        let plugins = self.network.plugins.iter().rev();
        self.run_all("DEL", "delete", plugins, result, None)
    }

    /// Whether all plugins of the list are in this executable.
    pub fn is_ours(&self) -> bool {
        let is_ours = |plugin| matches!(self.program(conf::kind(plugin)), Ok(Program::Ours(_)));
        self.network.plugins.iter().all(is_ours)
    }

    /// Deletes several ended attachments together. All plugins of the list must be in this executable. Continues after a plugin
    /// that fails, and returns all errors.
    pub fn remove_ended(&self, all: &[Attachment]) -> Result<()> {
        let session = OnceCell::new();
        let mut errors = Vec::new();
        for plugin in self.network.plugins.iter().rev() {
            let request = self.request("DEL", plugin, None, None);
            let called =
                request.and_then(|(request, verb)| match self.program(&request.conf.kind)? {
                    Program::Ours(entry) => {
                        let session = self.session(&session, &request, &verb)?;
                        entry.remove_ended(&self.context(&request, session), all)
                    }
                    Program::Executable(_) => Err(Error::internal("it is not in this executable")),
                });
            errors.extend(called.err().map(|error| self.with_plugin("delete", plugin, error)));
        }
        errors.extend(session.get().and_then(|session| session.commit().err()));
        Error::joined(errors)
    }

    /// Runs GC of each plugin. Continues after a plugin that fails or is missing, and returns all errors.
    pub fn gc(&self, keep: &[Attachment]) -> Result<()> {
        self.run_all("GC", "gc", self.network.plugins.iter(), None, Some(keep))
    }

    /// Restores the objects on the host that other programs removed: calls each plugin with the result of ADD. Continues after
    /// a plugin that fails.
    #[cfg(feature = "tool")]
    pub fn restore(&self, result: &Json, is_dry_run: bool) -> Vec<(String, Parts)> {
        let session = OnceCell::new();
        let mut all = Vec::new();
        for plugin in &self.network.plugins {
            if sys::is_interrupted() {
                break;
            }
            let mut parts = Parts::new(is_dry_run);
            if let Err(error) = self.restore_one(&session, plugin, result, &mut parts) {
                parts.errors.push(error);
            }
            let with_plugin = |error| self.with_plugin("restore", plugin, error);
            parts.errors = parts.errors.into_iter().map(with_plugin).collect();
            all.push((conf::kind(plugin).to_owned(), parts));
        }
        all
    }

    #[cfg(feature = "tool")]
    fn restore_one(
        &self,
        session: &OnceCell<Session>,
        plugin: &Json,
        result: &Json,
        parts: &mut Parts,
    ) -> Result<()> {
        let result = self.parse_result_of_add(Some(result))?;
        // The request of ADD, because CNI versions before 0.4.0 have no CHECK. The request of a CHECK is the same.
        let (request, verb) = self.request("ADD", plugin, result, None)?;
        let Verb::Add(at) = &verb else { return Ok(()) };
        match self.program(&request.conf.kind) {
            Ok(Program::Ours(entry)) => {
                let session = self.session(session, &request, &verb)?;
                entry.restore(&self.context(&request, session), at, parts)
            }
            // DEL, not this function, reports a plugin that cannot be found.
            Ok(Program::Executable(_)) | Err(_) => {
                parts.skip_foreign(&request.conf.kind);
                Ok(())
            }
        }
    }

    /// Runs DEL or GC of the plugins. The nf_tables changes of plugins in this executable become one transaction at the end.
    /// Before the call of an executed plugin, the changes of the plugins before it are committed.
    fn run_all<'p>(
        &self,
        command: &str,
        operation: &str,
        plugins: impl Iterator<Item = &'p Json>,
        result: Option<Success>,
        keep: Option<&[Attachment]>,
    ) -> Result<()> {
        let session = OnceCell::new();
        let mut first: Option<Error> = None;
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                first = Some(match first.take() {
                    Some(first) => first.also(&error),
                    None => error,
                });
            }
        };
        let commit = |session: &OnceCell<Session>| session.get().map_or(Ok(()), Session::commit);
        for plugin in plugins {
            if sys::is_interrupted() {
                note(Err(Error::internal("interrupted").context("cannot call the other plugins")));
                break;
            }
            let request = self.request(command, plugin, result.clone(), keep);
            let called =
                request.and_then(|(request, verb)| match self.program(&request.conf.kind)? {
                    Program::Ours(entry) => {
                        let session = self.session(&session, &request, &verb)?;
                        entry.run(&self.context(&request, session), &verb).map(drop)
                    }
                    program => {
                        note(commit(&session));
                        self.call(&session, &program, &request, &verb).map(drop)
                    }
                });
            note(called.map_err(|error| self.with_plugin(operation, plugin, error)));
        }
        note(commit(&session));
        first.map_or(Ok(()), Err)
    }

    /// Parses the cached result of ADD, and converts it to the version of the list.
    fn parse_result_of_add(&self, result: Option<&Json>) -> Result<Option<Success>> {
        let Some(result) = result else { return Ok(None) };
        let converted = version::parse_result(result, Version::NEWEST)
            .and_then(|success| version::lowered(success, self.network.version));
        converted.map(Some).map_err(|error| error.context("cannot convert the cached result"))
    }

    fn program(&self, kind: &str) -> Result<Program> {
        Program::find(kind, &self.settings.path, self.settings.plugins)
    }

    /// The request and the verb of one plugin call. `previous` is its `prevResult`; `keep` has the attachments that GC keeps.
    fn request(
        &self,
        command: &str,
        plugin: &Json,
        previous: Option<Success>,
        keep: Option<&[Attachment]>,
    ) -> Result<(Request, Verb)> {
        let Parameters { at, netns, args, capability_args } = self.parameters;
        let path: Vec<&OsStr> = self.settings.path.iter().map(|path| path.as_os_str()).collect();
        let path = path.join(OsStr::new(":"));
        let env = |name: &str| match name {
            "CNI_CONTAINERID" => at.map(|at| at.container_id.to_string().into()),
            "CNI_IFNAME" => at.map(|at| at.ifname.to_string().into()),
            "CNI_NETNS" => Some(netns.into()),
            "CNI_ARGS" => Some(args.into()),
            // GC requires CNI_PATH: `:` is not empty, and names no directory.
            "CNI_PATH" if path.is_empty() => Some(":".into()),
            "CNI_PATH" => Some(path.clone()),
            "CNI_NETNS_OVERRIDE" => self.settings.netns_override.clone(),
            _ => None,
        };
        let json = configuration(self.network, plugin, capability_args, keep);
        let called = Request::new(command, env, json).map_err(|refusal| refusal.error);
        called.map(|(request, verb)| (request.with_previous(previous), verb))
    }

    fn call(
        &self,
        session: &OnceCell<Session>,
        program: &Program,
        request: &Request,
        verb: &Verb,
    ) -> Result<Option<Success>> {
        match program {
            Program::Ours(entry) => self.logged(request, verb, || {
                let session = self.session(session, request, verb)?;
                entry.call(&self.context(request, session), verb)
            }),
            Program::Executable(file) => execute(file, request, verb, Some(self.settings.timeout)),
        }
    }

    /// Runs and logs the call of a plugin in this process. Executed plugins log their own calls.
    fn logged(
        &self,
        request: &Request,
        verb: &Verb,
        call: impl FnOnce() -> Result<Option<Success>>,
    ) -> Result<Option<Success>> {
        let Some(log) = &self.settings.log else { return call() };
        let (started, plugin) = (Instant::now(), &request.conf.kind);
        let done = call();
        let call = Call { plugin, command: verb.name(), request: Some((request, verb)), started };
        log.write(&call, done.as_ref().err());
        done
    }

    fn session<'s>(
        &self,
        session: &'s OnceCell<Session>,
        request: &Request,
        verb: &Verb,
    ) -> Result<&'s Session> {
        if let Some(session) = session.get() {
            return Ok(session);
        }
        let opened = Session::open(request, verb)?
            .sharing(Arc::clone(&self.settings.turns))
            .limited_to(self.settings.timeout)
            .recorded();
        Ok(session.get_or_init(|| opened))
    }

    fn context<'c>(&self, request: &'c Request, session: &'c Session) -> Context<'c> {
        let cx = Context { request, session, plugins: self.settings.plugins };
        request.dropped.iter().for_each(|error| cx.warn(error));
        cx
    }

    /// Adds the type of the plugin and the name of the network to an error, in libcni's words.
    fn with_plugin(&self, operation: &str, plugin: &Json, error: Error) -> Error {
        let (kind, name) = (conf::kind(plugin), &*self.network.name);
        error.context(format!("plugin type={kind:?} name={name:?} failed ({operation})"))
    }
}
