//! `dhcp`: addresses from the DHCP servers of the network that the interface is in.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "lan", "type": "macvlan",
//!   "ipam": {
//!     "type": "dhcp",
//!     "provide": [
//!       { "option": "host-name", "fromArg": "K8S_POD_NAME" },
//!       { "option": "vendor-class-identifier", "value": "cnibox" }
//!     ],
//!     "request": [{ "option": "42" }],
//!     "daemon": "auto"
//!   }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `ipam.daemonSocketPath` | string | /run/cni/dhcp.sock | Socket of the daemon. |
//! | `ipam.daemon` | string | none | `auto` starts a daemon if none listens. That daemon ends when it has no lease left. |
//! | `ipam.provide` | list of objects | none | Options that the client sends to the server. |
//! | `ipam.provide[].option` | string | required | Code of the option, 1 to 254, or one of the names below. |
//! | `ipam.provide[].value` | string | none | Value of the option, at most 255 bytes, sent as it is. |
//! | `ipam.provide[].fromArg` | string | none | Key of CNI_ARGS. Its value, if there is one, replaces `value`. |
//! | `ipam.request` | list of objects | none | Options that the client requests from the server. |
//! | `ipam.request[].option` | string | none | Code of the option, 1 to 254, or one of the names below. |
//! | `ipam.request[].skipDefault` | boolean | false | Requests only the listed options. By default the client also requests 121, 3, 1, 26, 6, 15 and 119. |
//! | `ipam.priority` | integer | 0 | Metric of all routes in the result. 0: the kernel chooses it. |
//! | `ipam.probe` | boolean | false | Looks for another holder of the address: by ARP for IPv4, by duplicate address detection for IPv6. If there is one, the client declines the address and requests another. |
//! | `ipam.broadcast` | boolean | false | Asks the server to send its answers to all hosts. `ipvlan` needs that with most servers. |
//! | `ipam.subnets` | list of strings | none | Subnets that leases may be in. By default only the subnet of the first lease (its /64 over IPv6). |
//! | `ipam.families` | list of strings | `["4"]` | Sources of addresses: `4` is DHCP, `6` is DHCPv6, and `slaac` waits for the addresses that the kernel makes after a router advertisement. |
//!
//! The names of options are `subnet-mask` (1), `routers` (3), `host-name` (12), `vendor-class-identifier` (60),
//! `dhcp-client-identifier` (61) and `user-class` (77). Without `dhcp-client-identifier` the identifier is a zero byte and
//! `CONTAINER/NETWORK/INTERFACE`.
//!
//! **The daemon** gets, renews and releases the leases. It is this executable: `dhcp daemon` through a link of that name, or
//! `cnibox dhcp daemon`. `packaging` has units for systemd, OpenRC and busybox. Its flags are those of the Go daemon:
//! `-pidfile`, `-hostprefix`, `-socketpath`, `-broadcast`, `-timeout`, `-resendmax` and `-resendtimeout`. It keeps the leases
//! below /run/cnibox/dhcp: the next daemon adopts them. It does not serve the Go plugin, and the Go daemon does not serve this
//! plugin. `cnibox dhcp leases` lists the leases.
//!
//! The rules of the host are changed to the leased address, so the client declines some addresses: those outside of the
//! subnets, those of the host or of another container, and those that no container can have (169.254.0.0/16). It then writes a
//! line to stderr. At ADD it requests another address, and the error has the reason; at a renewal it keeps the lease that it
//! has.
//!
//! When the server changes the address, its mask, the routes, the gateway or the MTU, the daemon changes the interface and
//! writes a line to stderr. It also changes the address on the host: in published ports, masquerading, the rules and sources of
//! `firewall`, and the runtime's cache entry, so CHECK succeeds with the new address. In the container it changes the routing
//! rules of `sbr`. It deletes connections of the old address from conntrack. A step that fails is repeated, for example if
//! another process holds the lock of the container. While an attachment has no lease, its rules name the last address. A lease
//! ends with its namespace or interface, too.
//!
//! - **ADD** returns the address, the routes, the MTU of the routes and the DNS of the lease. It waits at most
//!   `-resendtimeout`.
//! - **CHECK** fails if the attachment has no valid lease. It does not request one.
//! - **DEL** releases the lease. If the daemon is down, the plugin itself releases the lease while the interface exists; else
//!   it leaves a mark, and the daemon releases the lease when it starts. An error of the daemon does not make DEL fail.
//! - **GC** releases the leases of attachments that are not valid.
//! - **STATUS** fails if the daemon is down, unless `daemon` is `auto`. It sends nothing to DHCP servers.

mod keys;

use std::path::Path;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::dhcp::clients;
use crate::dhcp::flags::SOCKET;
use crate::dhcp::journal::Journal;
use crate::dhcp::lease::Key;
use crate::dhcp::protocol::{LeaseRequest, Request};
use crate::dhcp::socket::{self, Failure};
use crate::error::{Error, Result};
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Expected, Ipam, Scope};

use keys::Dhcp;

/// The timeout until the daemon begins to serve an ADD or CHECK.
const SERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a DEL or GC.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of a STATUS.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

pub const ENTRY: Entry = Entry {
    needs_link: true,
    ..Entry::ipam::<Dhcp>("dhcp", "addresses from the DHCP servers of the network")
};

impl Ipam for Dhcp {
    fn add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Success> {
        let settings = self.settings(&cx.request.parameters.args)?;
        let Some(netns) = &cx.request.parameters.netns_path else {
            return Err(Error::internal("failed to open netns: CNI_NETNS is empty"));
        };
        if netns.to_str().is_none() {
            return Err(Error::config("cannot use CNI_NETNS: the path is not UTF-8"));
        }
        let netns = std::path::absolute(netns)
            .map_err(|error| Error::config(format_args!("cannot use CNI_NETNS: {error}")))?;
        let request = Request::Acquire(LeaseRequest { key: key(cx, at), netns, settings });
        let result = self
            .call(&self.socket()?, &request, SERVE_TIMEOUT, None)
            .map_err(|error| as_reference(error, ALLOCATE))?;
        version::parse_result(&Json::parse(result.get().as_bytes())?, Version::NEWEST)
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        self.settings(&cx.request.parameters.args)?;
        let request = Request::Check(key(cx, at));
        let asked = self.call(&self.socket()?, &request, SERVE_TIMEOUT, None);
        asked.map(drop).map_err(|failure| as_reference(failure, ALLOCATE))
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        self.settings(&cx.request.parameters.args)?;
        let path = self.socket()?;
        match socket::ask(&path, &Request::Status, STATUS_TIMEOUT, Some(STATUS_TIMEOUT)) {
            Err(Failure::Down(_)) if self.is_auto() => Ok(()),
            asked => asked
                .map(drop)
                .map_err(|failure| as_reference(failure, "STATUS").into_not_available()),
        }
    }

    fn expected(&self, cx: &Context<'_>) -> Result<Expected> {
        let families = self.settings(&cx.request.parameters.args)?.families;
        Ok(Expected { has_v6: families.v6 || families.slaac, choices: Vec::new() })
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>) -> Result<()> {
        match scope {
            Scope::One(at) => self.remove(cx, &Request::Release(key(cx, at)), Some(at), &[]),
            Scope::Each(all) => {
                let cleaned = all.iter().map(|at| self.clean(cx, Scope::One(at)));
                Error::joined(cleaned.filter_map(Result::err).collect())
            }
            Scope::AllExcept(keep) => {
                let network = cx.request.network.clone();
                self.remove(cx, &Request::Gc { network, keep: keep.to_vec() }, None, keep)
            }
        }
    }
}

impl Dhcp {
    /// Releases the lease of one attachment, or all leases of the network except those of `keep`. If the daemon is down, marks
    /// the leases in the journal, so that the next daemon releases them. Fails if neither can be done: nothing else remembers
    /// the lease.
    fn remove(
        &self,
        cx: &Context<'_>,
        request: &Request,
        one: Option<&Attachment>,
        keep: &[Attachment],
    ) -> Result<()> {
        // DEL and GC remove something even if the key is invalid.
        let path = self.socket().unwrap_or_else(|_| SOCKET.into());
        let journal = Journal::of(Path::new(""), &path);
        let asked = socket::ask(&path, request, REMOVAL_TIMEOUT, Some(REMOVAL_TIMEOUT));
        let Err(failure) = asked else { return Ok(()) };
        if let (Failure::Down(_), Some(at)) = (&failure, one)
            && cx.or_warn(self.release_without_daemon(cx, at, &journal))
        {
            return Ok(());
        }
        let marked = match one {
            Some(at) => journal.mark(&key(cx, at)).map(usize::from),
            None => journal.mark_all_except(&cx.request.network, keep),
        };
        let asked = match failure {
            Failure::Down(_) if marked == Ok(0) => Ok(()),
            // A daemon that started meanwhile may have read the journal before the leases were marked. A lease without its mark
            // would be adopted.
            Failure::Down(_) => {
                self.call(&path, request, REMOVAL_TIMEOUT, Some(REMOVAL_TIMEOUT)).map(drop)
            }
            failure => Err(failure),
        };
        let Err(failure) = asked else { return Ok(()) };
        let error = failure.into_error();
        if let Err(unmarked) = marked {
            return Err(error.also(&unmarked));
        }
        cx.warn(format_args!("{error}; the daemon releases marked leases when it starts"));
        Ok(())
    }

    /// Sends the request to the daemon. Starts the daemon if it is down and `daemon` is `auto`.
    fn call(
        &self,
        path: &Path,
        request: &Request,
        serve_timeout: Duration,
        timeout: Option<Duration>,
    ) -> Result<Box<RawValue>, Failure> {
        match socket::ask(path, request, serve_timeout, timeout) {
            Err(Failure::Down(_)) if self.is_auto() => {
                socket::start(path).map_err(Failure::Down)?;
                socket::ask(path, request, serve_timeout, timeout)
            }
            asked => asked,
        }
    }

    /// Sends the RELEASE from the container's interface. The lock on the journal keeps a new daemon from adopting the lease
    /// meanwhile. Returns false if there is a lease that only a daemon can release.
    fn release_without_daemon(
        &self,
        cx: &Context<'_>,
        at: &Attachment,
        journal: &Journal,
    ) -> Result<bool> {
        let key = key(cx, at);
        if journal.read(&key)?.is_none() {
            return Ok(true);
        }
        let (Some(_), _) = cx.session.netns_of_del() else { return Ok(false) };
        let Some(_lock) = journal.lock(Duration::ZERO)? else { return Ok(false) };
        // A daemon may have released the lease before this process got the lock.
        let Some(record) = journal.read(&key)? else { return Ok(true) };
        if !clients::release(cx.session.host_netns()?, &record)? {
            return Ok(false);
        }
        journal.remove(&key).map(|()| true)
    }
}

/// The method name of the reference's daemon, for error texts like those of the reference.
const ALLOCATE: &str = "DHCP.Allocate";

/// Puts the error text of the reference in front of the error.
fn as_reference(failure: Failure, method: &str) -> Error {
    match failure {
        Failure::Refused(error) => error.in_front(format_args!("error calling {method}")),
        Failure::Down(error) | Failure::Silent(error) => {
            error.in_front("error dialing DHCP daemon")
        }
    }
}

fn key(cx: &Context<'_>, at: &Attachment) -> Key {
    Key { network: cx.request.network.clone(), at: at.clone() }
}
