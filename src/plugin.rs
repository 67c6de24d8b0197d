//! The interface of a plugin: its configuration, and a method for each CNI verb.

pub(crate) mod assignable;
pub(crate) mod claim;
pub(crate) mod execute;
pub(crate) mod log;
pub(crate) mod parts;
pub(crate) mod records;
mod session;

use std::fmt::Display;
use std::path::Path;

use crate::attachments::life::{Life, Witness};
use crate::attachments::owner::Owners;
use crate::attachments::record::{Begun, Made, Maker, Replaced};
use crate::cni::json::{Json, Read};
use crate::cni::request::{Parameters, Request, Verb};
use crate::cni::success::{Interface, Ip, Success};
use crate::cni::version::Version;
use crate::error::{Error, Result};
use crate::kernel::file;
use crate::kernel::netns::NetNs;
use crate::kernel::sys;
use crate::names::{Attachment, NetworkName};
use crate::netlink::nft::{Batch, Nft};

pub use crate::attachments::owner::Scope;
pub use session::Session;

use parts::Parts;

/// The version in the banner of a plugin: the compatible release of the reference plugins, then the release of cnibox. Runtimes
/// compare the part before `+`.
pub const VERSION: &str = concat!("v1.9.1+cnibox.", env!("CARGO_PKG_VERSION"));

/// A plugin that creates or changes an interface. `self` is the configuration.
///
/// The methods of verbs have no default, so each plugin implements each verb.
pub trait Plugin: Read {
    /// Validates the configuration only. Called if the container's namespace cannot be opened: an error of the configuration
    /// is returned in place of the error of the namespace.
    fn examine(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    /// Makes all objects of the attachment. If it fails, it first undoes all its changes.
    fn add(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<Success>;
    /// CHECK: fails if something that `add` made is missing or different.
    fn check(&self, cx: &Context<'_>, at: &Attachment, netns: &NetNs) -> Result<()>;
    /// STATUS: fails with code 50 if an `add` would fail.
    fn status(&self, cx: &Context<'_>) -> Result<()>;
    /// Passes each part that `add` made to `parts.ensure`, with its comparison and the step of `add` that makes it: the parts on
    /// the host, and within `parts.in_container` those in the container. `cx` has the request of a CHECK. Links and connections are not
    /// changed. The default is for a plugin whose objects are all in the container, and whose `add` can be repeated.
    fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        parts.in_container(|parts| {
            let netns = cx.session.required_netns()?;
            parts.ensure(&|| self.check(cx, at, netns), &mut || self.add(cx, at, netns).map(drop))
        })
    }
    /// DEL and GC: removes all objects of the owners in the scope, also if the configuration has changed since the ADD. After
    /// an error, the removal goes on. A missing object is not an error. `netns` is None for GC, and if CNI_NETNS is empty or
    /// does not exist.
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>, netns: Option<&NetNs>) -> Result<()>;
}

/// An IPAM plugin. It gets no namespace, so it also works before the namespace exists.
pub trait Ipam: Read {
    fn add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Success>;
    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()>;
    fn status(&self, cx: &Context<'_>) -> Result<()>;
    /// The addresses of every future ADD. STATUS of the main plugin that delegates to this IPAM plugin calls it.
    fn expected(&self, cx: &Context<'_>) -> Result<Expected>;
    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>) -> Result<()>;
}

/// The addresses that an ADD can get, as far as the configuration of the IPAM plugin determines them.
#[derive(Debug, Default)]
pub struct Expected {
    /// An ADD gets an IPv6 address from the IPAM plugin.
    pub has_v6: bool,
    /// One list for each address of the result: the subnets from which the plugin can select the address, with their gateways.
    /// An item of the `static` plugin is the address itself; one of `host-local` is the address of the subnet.
    pub choices: Vec<Vec<Ip>>,
}

impl Expected {
    pub fn new(choices: Vec<Vec<Ip>>) -> Self {
        // All choices for one address have the same family.
        let mut first = choices.iter().filter_map(|ips| ips.first());
        Self { has_v6: first.any(|ip| ip.address.addr().is_ipv6()), choices }
    }
}

/// An entry of the table of plugins, `plugins::PLUGINS`: the properties of a plugin that the runtime and the tool read without
/// calling it. A plugin states those that differ from `Entry::plugin`, `Entry::chained` or `Entry::ipam`.
pub struct Entry {
    pub name: &'static str,
    /// One sentence for `cnibox --list-full` and the README.
    pub about: &'static str,
    /// An IPAM plugin: it manages addresses only.
    pub is_ipam: bool,
    /// A chained plugin: it follows the plugin that makes the interface.
    pub is_chained: bool,
    /// An IPAM plugin that communicates through the interface: the interface must exist before its ADD and until after its DEL.
    pub needs_link: bool,
    /// The plugin changes nothing outside of the container.
    pub is_in_container: bool,
    /// Only containers of this host have addresses in the subnets of the plugin's networks. If false, other hosts also have
    /// addresses in these subnets.
    pub has_own_subnets: bool,
    /// DEL of the plugin finds its rules and links on the host by their owner, without a configuration.
    pub leaves_owned: bool,
    /// What DEL of the plugin finds by its owner are rules only, no links.
    pub leaves_rules: bool,
    /// The kind of the links of the plugin that can stay on the host after the end of a container's namespace: ifbs, and interfaces
    /// that were moved to the host. The kernel removes a veth pair with the namespace of either end.
    pub leaves_links: Option<&'static str>,
    /// The kinds of links that an ADD makes and that STATUS does not probe, each with its kernel option.
    pub kinds: &'static [(&'static str, &'static str)],
    /// The configurations for which STATUS probes the kernel: the key that needs kernel features (empty: every ADD needs them),
    /// and the configuration's keys in JSON.
    pub probes: &'static [(&'static str, &'static str)],
    /// `cnibox install` and packages make no link for the plugin unless it is asked for: a runtime uses it as soon as its link is there.
    pub is_linked_on_request: bool,
    /// The keys that the reference does not read.
    pub ignored_by_reference: &'static [&'static str],
    /// The text with which the reference begins its error for an unreadable configuration.
    pub unreadable: Option<&'static str>,
    /// Returns the plugin with the default configuration.
    pub new: fn() -> Instance,
}

/// A plugin with its configuration.
pub enum Instance {
    Plugin(Box<dyn Plugin>),
    Ipam(Box<dyn Ipam>),
}

impl Entry {
    /// An item of `kinds`: the plugin makes veth pairs.
    pub const VETH: (&'static str, &'static str) = ("veth", "CONFIG_VETH");
    /// An item of `probes`: an interface with the master `lo`, because each namespace has `lo`.
    pub const ON_LO: (&'static str, &'static str) = ("", r#""master":"lo""#);
    /// An item of `probes`: a configuration with `ipMasq`, which needs masquerading in nf_tables.
    pub const MASQUERADES: (&'static str, &'static str) = (
        "ipMasq",
        r#""isGateway":true,"ipMasq":true,"ipam":{"type":"static","addresses":[{"address":"10.0.0.2/24","gateway":"10.0.0.1"}]}"#,
    );

    /// A plugin that makes an interface.
    pub const fn plugin<P: Plugin + Default + 'static>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        let unreadable = Some("failed to load netconf");
        Self { unreadable, ..Self::of(name, about, || Instance::Plugin(Box::<P>::default())) }
    }

    /// A chained plugin.
    pub const fn chained<P: Plugin + Default + 'static>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        Self { is_chained: true, ..Self::plugin::<P>(name, about) }
    }

    /// An IPAM plugin.
    pub const fn ipam<P: Ipam + Default + 'static>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        Self { is_ipam: true, ..Self::of(name, about, || Instance::Ipam(Box::<P>::default())) }
    }

    const fn of(name: &'static str, about: &'static str, new: fn() -> Instance) -> Self {
        Self {
            name,
            about,
            is_ipam: false,
            is_chained: false,
            needs_link: false,
            is_in_container: false,
            has_own_subnets: false,
            leaves_owned: false,
            leaves_rules: false,
            leaves_links: None,
            kinds: &[],
            probes: &[],
            is_linked_on_request: false,
            ignored_by_reference: &[],
            unreadable: None,
            new,
        }
    }

    /// Executes a call: runs the plugin, commits the pending changes of nf_tables, and writes or removes the record of the
    /// attachment.
    pub fn call(&self, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
        let maker = self.maker().filter(|_| !cx.session.is_recorded);
        match (verb, &maker) {
            (Verb::Add(at), Some(maker)) => {
                let begun = records::begin(cx, at, maker.clone(), self.name)?;
                begun.iter().filter_map(Begun::replaced).for_each(|earlier| {
                    cx.or_warn(cx.remove_replaced(earlier));
                });
                cx.session.begun.replace(begun);
            }
            (Verb::Del(_), _)
                if !cx.session.is_recorded && cx.session.is_of_successor(cx.request)? =>
            {
                cx.warn(
                    "touched nothing: CNI_NETNS is not the network namespace of the attachment, \
                     which lives in another one",
                );
                return Ok(None);
            }
            (Verb::Del(at), _) if !self.is_ipam && !cx.session.is_recorded => {
                records::mark(cx, at);
            }
            _ => {}
        }
        let run = || {
            self.refuse_repeated(cx, verb)?;
            self.run(cx, verb)
        };
        let result = match (run(), cx.session.commit()) {
            (Err(first), Err(second)) => Err(first.also(&second)),
            (result, committed) => committed.and(result),
        };
        match (&result, cx.session.begun.take()) {
            (Ok(success), Some(mut begun)) => {
                let made = success.as_ref().map(Made::of).unwrap_or_default();
                cx.or_warn(begun.note_made(&made));
            }
            (Ok(Some(success)), None) if self.is_chained && !cx.session.is_recorded => {
                if let Verb::Add(at) = verb {
                    records::amend(cx, at, self.name, success);
                }
            }
            (Ok(_), None) => {
                maker.map_or(Ok(()), |maker| records::clean(cx, verb, &maker))?;
            }
            (Err(_), Some(begun)) => cx.or_warn(begun.undo()),
            _ => {}
        }
        result
    }

    /// Fails if the container has the interface of an ADD that repeats one: then nothing is changed.
    fn refuse_repeated(&self, cx: &Context<'_>, verb: &Verb) -> Result<()> {
        let makes_interface = !self.is_ipam && !self.is_chained && !self.is_in_container;
        if let Verb::Add(at) = verb
            && makes_interface
            && cx.session.is_repeated.get()
            && let Ok(container) = cx.session.container()
            && container.link(&at.ifname)?.is_some()
        {
            let name = &at.ifname;
            let msg = format!("cannot create interface {name} in the container: it already exists");
            return Err(Error::internal(msg));
        }
        Ok(())
    }

    /// The maker of the record that an ADD writes and a DEL removes. `None` if everything that the plugin makes ends with the
    /// container.
    fn maker(&self) -> Option<Maker> {
        match (self.is_chained, self.is_ipam) {
            (true, _) => self.leaves_owned.then(|| Maker::Chained(self.name.into())),
            (false, true) => Some(Maker::Ipam),
            (false, false) => Some(Maker::Plugin),
        }
    }

    /// Runs the plugin. Changes of nf_tables stay pending in the session.
    pub fn run(&self, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
        match self.configured(cx, verb)? {
            Instance::Plugin(plugin) => run(&*plugin, cx, verb),
            Instance::Ipam(plugin) => run_ipam(&*plugin, cx, verb),
        }
    }

    /// Removes the objects of several attachments that have ended. Changes of nf_tables stay pending in the session.
    pub fn remove_ended(&self, cx: &Context<'_>, all: &[Attachment]) -> Result<()> {
        let scope = Scope::Each(all);
        // As for a GC, unreadable keys are ignored.
        match self.configured(cx, &Verb::Gc(Vec::new()))? {
            Instance::Plugin(plugin) => plugin.clean(cx, scope, None),
            Instance::Ipam(plugin) => plugin.clean(cx, scope),
        }
    }

    /// The addresses that an ADD of this IPAM plugin can get. Empty for the other plugins.
    pub fn expected(&self, cx: &Context<'_>) -> Result<Expected> {
        match self.configured(cx, &Verb::Status)? {
            Instance::Plugin(_) => Ok(Expected::default()),
            Instance::Ipam(plugin) => plugin.expected(cx),
        }
    }

    /// Makes the parts of a living attachment that are missing or different. Does nothing for IPAM plugins: they have
    /// only files, and the daemon of `dhcp` restores what it set.
    pub fn reconcile(&self, cx: &Context<'_>, at: &Attachment, parts: &mut Parts) -> Result<()> {
        let Instance::Plugin(plugin) = self.configured(cx, &Verb::Check(at.clone()))? else {
            return Ok(());
        };
        if self.leaves_owned && parts.is_restore() && !cx.session.is_renewed.replace(true) {
            self.renew_record(cx, at);
        }
        plugin.reconcile(cx, at, parts)
    }

    /// Writes the record of the attachment, unless it has a record of the present namespace. The record can be of an earlier
    /// container of the same name: plugins that write no record attached the present container before cnibox replaced them.
    fn renew_record(&self, cx: &Context<'_>, at: &Attachment) {
        let begun = records::renew(cx, at, Maker::Chained(self.name.into()));
        if let Some(mut begun) = cx.or_warn(begun) {
            let made = cx.request.prev_result().ok().flatten();
            let made = made.as_ref().map(Made::of).unwrap_or_default();
            cx.or_warn(begun.note_made(&made));
        }
    }

    /// Returns the plugin with the configuration of the request. ADD, CHECK and STATUS fail if a key is unreadable. DEL and GC
    /// ignore the key and warn: a mistake in the configuration must not prevent the removal.
    fn configured(&self, cx: &Context<'_>, verb: &Verb) -> Result<Instance> {
        let convert = |json: &Json| {
            let mut instance = (self.new)();
            let converted = match &mut instance {
                Instance::Plugin(plugin) => plugin.read(json),
                Instance::Ipam(plugin) => plugin.read(json),
            };
            converted.map(|()| instance)
        };
        let json = &cx.request.json;
        let configured = match verb {
            Verb::Del(_) | Verb::Gc(_) => {
                json.read_or_drop_with(CONFIGURATION, convert).map(|(instance, errors)| {
                    errors.iter().for_each(|error| cx.warn(error));
                    instance
                })
            }
            _ if self.is_ipam => convert(json).map_err(|error| error.reason_first(CONFIGURATION)),
            _ => convert(json).map_err(|error| error.in_document(CONFIGURATION)),
        };
        configured.map_err(|error| match self.unreadable {
            Some(text) => error.in_front(text),
            None => error,
        })
    }
}

/// One call of a plugin. The plugins of a chain can share the session.
pub struct Context<'a> {
    pub request: &'a Request,
    pub session: &'a Session,
    /// All plugins of this executable: a plugin finds its delegate here.
    pub plugins: &'static [Entry],
}

impl Context<'_> {
    /// The owners in a scope, in the network of the request.
    pub fn owners(&self, scope: Scope<'_>) -> Owners {
        Owners::of(&self.request.network, scope)
    }

    /// Writes a warning to stderr, in one line.
    pub fn warn(&self, text: impl Display) {
        sys::warn(format_args!("{}: {text}", self.request.conf.kind));
    }

    /// The value of the result. Writes an error as a warning, and returns the default in place of the value.
    pub fn or_warn<T: Default>(&self, result: Result<T, impl Display>) -> T {
        result.unwrap_or_else(|error| {
            self.warn(error);
            T::default()
        })
    }

    /// The previous result, for DEL. If it is unreadable, warns. Empty if it is missing or unreadable: DEL must go on.
    pub fn prev_result_of_del(&self) -> Success {
        self.or_warn(self.request.prev_result()).unwrap_or_default()
    }

    /// Removes what an earlier attachment of the same name has left, before an ADD makes anything, if the namespace of its record has
    /// ended. Its addresses are left to the IPAM plugin, see `Session::ended_before`.
    fn remove_replaced(&self, earlier: Replaced) -> Result<()> {
        let record = &earlier.record;
        let Life::Ended(reason) = Witness::new()?.settled_life(record) else { return Ok(()) };
        self.session.is_repeated.set(false);
        self.remove_owned(&record.network, std::slice::from_ref(&record.at))?;
        let title = record.at.title(&record.network);
        self.warn(format_args!("removed what an earlier {title} left: {reason}"));
        self.session.note_ended_before(earlier);
        Ok(())
    }

    /// Removes the rules and links of attachments of a network that have ended: calls all plugins of this executable that create
    /// such objects, which needs no configuration.
    pub fn remove_owned(&self, network: &NetworkName, all: &[Attachment]) -> Result<()> {
        remove_owned(self.plugins, &self.request.parameters, network, all)
    }

    /// Removes the rules of an attachment of a network, as far as plugins made them that make no links.
    pub fn remove_rules(&self, network: &NetworkName, at: &Attachment) -> Result<()> {
        let plugins = self.plugins.iter().filter(|entry| entry.leaves_rules);
        let parameters = &self.request.parameters;
        remove_of(self.plugins, plugins, parameters, network, std::slice::from_ref(at))
    }

    /// The index of the attachment's interface in a result. If several match, the last one counts. Its `sandbox` can be another path
    /// of the namespace at CNI_NETNS, such as `/var/run/netns/x` or `/proc/PID/ns/net`.
    pub fn interface_index(&self, at: &Attachment, result: &Success) -> Option<usize> {
        let path = self.request.parameters.netns_path.as_deref();
        let is_same = |interface: &Interface| {
            interface.name == *at.ifname
                && path.is_some_and(|path| file::is_same(path, Path::new(&interface.sandbox)))
        };
        let by_path = result.interface_index(&at.ifname, &self.request.sandbox());
        by_path.or_else(|| result.interfaces.iter().rposition(is_same))
    }

    /// Adds changes to the nf_tables transaction at the end of a DEL or GC, see `Session::commit`. `build` reads the rules and
    /// adds the changes to the batch. `build` is called again if another process changed the rules between the read and the
    /// transaction. `then` is called after the transaction has succeeded.
    pub fn defer(
        &self,
        build: impl FnMut(&Nft, &mut Batch) -> Result<()> + 'static,
        then: impl FnOnce() -> Result<()> + 'static,
    ) {
        self.session.defer(&self.request.conf.kind, build, then);
    }
}

/// Removes the rules and links of attachments of a network that have ended, see `Context::remove_owned`.
pub fn remove_owned(
    plugins: &'static [Entry],
    parameters: &Parameters,
    network: &NetworkName,
    all: &[Attachment],
) -> Result<()> {
    let leaving = plugins.iter().filter(|entry| entry.leaves_owned);
    remove_of(plugins, leaving, parameters, network, all)
}

/// Calls these plugins to remove what they made for attachments of a network.
fn remove_of(
    plugins: &'static [Entry],
    called: impl Iterator<Item = &'static Entry>,
    parameters: &Parameters,
    network: &NetworkName,
    all: &[Attachment],
) -> Result<()> {
    let session = Session::without_container();
    let mut errors = Vec::new();
    for entry in called {
        let keys =
            [("cniVersion", Version::NEWEST.text()), ("name", &**network), ("type", entry.name)];
        let json = Json::object(keys.map(|(key, text)| (key, Some(text.into()))));
        let mut request = Request::new(&Verb::Gc(Vec::new()), json)?;
        request.parameters = parameters.clone();
        let cx = Context { request: &request, session: &session, plugins };
        let removed = entry.remove_ended(&cx, all);
        let context = || format!("cannot remove what plugin {} made", entry.name);
        errors.extend(removed.err().map(|error| error.context(context())));
    }
    errors.extend(session.commit().err());
    Error::joined(errors)
}

fn run(plugin: &dyn Plugin, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    let netns = |at| {
        let netns = cx.session.required_netns();
        netns.or_else(|error| plugin.examine(cx, at).and(Err(error)))
    };
    match verb {
        Verb::Add(at) => return plugin.add(cx, at, netns(at)?).map(Some),
        Verb::Check(at) => plugin.check(cx, at, netns(at)?)?,
        Verb::Status => plugin.status(cx)?,
        // If the namespace exists and cannot be opened, DEL removes everything outside of it, and then fails.
        Verb::Del(at) => {
            let (netns, unusable) = cx.session.netns_of_del();
            plugin.clean(cx, Scope::One(at), netns)?;
            unusable.map_or(Ok(()), |error| Err(error.clone()))?;
        }
        Verb::Gc(keep) => plugin.clean(cx, Scope::AllExcept(keep), None)?,
    }
    Ok(None)
}

fn run_ipam(plugin: &dyn Ipam, cx: &Context<'_>, verb: &Verb) -> Result<Option<Success>> {
    match verb {
        Verb::Add(at) => return plugin.add(cx, at).map(Some),
        Verb::Check(at) => plugin.check(cx, at)?,
        Verb::Status => plugin.status(cx)?,
        Verb::Del(at) => plugin.clean(cx, Scope::One(at))?,
        Verb::Gc(keep) => plugin.clean(cx, Scope::AllExcept(keep))?,
    }
    Ok(None)
}

const CONFIGURATION: &str = "network configuration";
