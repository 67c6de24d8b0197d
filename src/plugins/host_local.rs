//! `host-local`: addresses from ranges, reserved in files on this host.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0", "name": "mynet", "type": "bridge",
//!   "ipam": {
//!     "type": "host-local",
//!     "ranges": [
//!       [{ "subnet": "10.1.0.0/16", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.3.255", "gateway": "10.1.0.1" }],
//!       [{ "subnet": "fd00:1::/64" }]
//!     ],
//!     "routes": [{ "dst": "0.0.0.0/0" }],
//!     "resolvConf": "/etc/resolv.conf",
//!     "dataDir": "/var/lib/cni/networks",
//!     "exclude": ["10.1.0.53", "10.1.2.0/24", "fd00:1::/120"],
//!     "sticky": true,
//!     "staleOnBoot": "reclaim"
//!   }
//! }
//! ```
//!
//! | key | type | default | meaning |
//! |---|---|---|---|
//! | `ipam.ranges` | list of lists of objects | none | Range sets. ADD takes one address from each set. |
//! | `ipam.ranges[][].subnet` | string | required | Subnet of a range. |
//! | `ipam.ranges[][].rangeStart` | string | first host address | First address of the range. |
//! | `ipam.ranges[][].rangeEnd` | string | last host address | Last address of the range. |
//! | `ipam.ranges[][].gateway` | string | first host address | Gateway in the result. It is never allocated. |
//! | `ipam.ranges[][].exclude` | list of strings | none | Addresses and prefixes of this range that are never allocated. |
//! | `ipam.subnet` | string | none | A further set of one range, before those of `ranges`. |
//! | `ipam.rangeStart` | string | first host address | First address of that range. |
//! | `ipam.rangeEnd` | string | last host address | Last address of that range. |
//! | `ipam.gateway` | string | first host address | Gateway of that range. |
//! | `ipam.routes` | list of objects | none | Routes in the result. `cnibox help network` describes the objects. |
//! | `ipam.resolvConf` | string | none | File in the format of resolv.conf(5), for the DNS in the result. |
//! | `ipam.dataDir` | string | `/var/lib/cni/networks` | Directory of the reservations. |
//! | `ipam.exclude` | list of strings | none | Addresses and prefixes of all ranges that are never allocated. A request for one is an error; a container that has one keeps it. |
//! | `ipam.sticky` | boolean | false | A container gets its last addresses again, if they are free. |
//! | `ipam.staleOnBoot` | string | `reclaim` | `reclaim` or `keep`: what happens to reservations of an earlier boot, see below. |
//! | `runtimeConfig.ipRanges` | list of lists of objects | none | Range sets of the runtime (capability `ipRanges`), before all others. |
//! | `runtimeConfig.ipRanges[][].subnet` | string | required | As in `ipam.ranges`. |
//! | `runtimeConfig.ipRanges[][].rangeStart` | string | first host address | As in `ipam.ranges`. |
//! | `runtimeConfig.ipRanges[][].rangeEnd` | string | last host address | As in `ipam.ranges`. |
//! | `runtimeConfig.ipRanges[][].gateway` | string | first host address | As in `ipam.ranges`. |
//! | `runtimeConfig.ipRanges[][].exclude` | list of strings | none | As in `ipam.ranges`. |
//! | `runtimeConfig.ips` | list of strings | none | Requested addresses (capability `ips`). ADD fails if it cannot allocate all of them. |
//! | `args.cni.ips` | list of strings | none | Further requested addresses. |
//! | `CNI_ARGS: IP` | string | none | A further requested address. |
//! | `CNI_ARGS: K8S_POD_NAMESPACE` | string | none | With `K8S_POD_NAME`, identifies the container for `sticky`. Without them, the container id identifies it. |
//! | `CNI_ARGS: K8S_POD_NAME` | string | none | See `K8S_POD_NAMESPACE`. |
//!
//! `exclude`, `sticky` and `staleOnBoot` are not in the reference. The Go plugin can use the same directory and
//! ignores them.
//!
//! **Order.** Allocation continues after the last allocated address of a set, so that a released address stays unused
//! as long as possible.
//!
//! **Reservations of ended containers.** An ADD that finds no free address, or that requests an address that is taken, asks the
//! kernel whether a container with such an address has ended, as `cnibox gc` does. It removes what this container left, and gets
//! its address. An ADD of a container that has ended without a DEL gets an address in the same way. If no container of a full
//! range has ended, ADD and STATUS do not search again for three seconds.
//!
//! **Addresses that no container can use** are not chosen on a link with broadcast (`bridge`, `macvlan`, `ipvlan` in mode l2,
//! `vlan`, `host-device`): the network's and the broadcast address, the anycast address of the routers in IPv6, and addresses that
//! the host has on this link. If one is requested, ADD reserves it and warns. Subnets of two addresses have no such address.
//!
//! **Reservations of an earlier boot** belong to no running container. With `reclaim` they are released when a range
//! set is exhausted, when an ADD of the same attachment follows without a DEL, and when the address is requested. With
//! `keep` they stay, if this host has no record of their containers; this is needed if several hosts share `dataDir`. Boots are distinguished by the kernel's boot
//! id, not by clocks. A process that cannot read this id, because a mount covers it, does not release them, and reads all
//! files at each call. A reservation of the Go plugin belongs to the boot in which cnibox first saw it.
//!
//! **Files.** `dataDir/NETWORK` has the format of the Go plugin, and both use the same lock. `dataDir/.cnibox` holds
//! the addresses of each container, so that the cost of a call does not depend on the number of reservations, and those for
//! `sticky`. Both may be removed at any time. The directory of a network has a modification time of our own: if another program
//! has changed it, the next call reads all files once. A call waits up to 30 seconds for the lock. Then it fails
//! with code 11 and names the process that holds the lock.
//!
//! - **ADD** reserves one address from each set: a requested one, the last one of the container, or the next free one.
//! - **CHECK** fails if the attachment has no reservation, or lacks one for an address of `prevResult`.
//! - **DEL** removes the reservations of the attachment. It needs only `name` and `dataDir`. `lock` and
//!   `last_reserved_ip.N` stay.
//! - **GC** removes the reservations of attachments that are not valid.
//! - **STATUS** fails if a range set is exhausted, or if `dataDir` or `resolvConf` cannot be used.

mod config;
mod takeover;

use std::net::IpAddr;
use std::path::Path;
#[cfg(feature = "tool")]
use std::path::PathBuf;

#[cfg(feature = "tool")]
use crate::cni::json::Json;
use crate::cni::json::keys;
use crate::cni::success::{Ip, Route, Success};
use crate::error::{Error, Result};
use crate::ipam::range::{Range, RangeConf, RangeSet};
use crate::ipam::store::Store;
use crate::ipam::{AllocationRequest, check_not_exhausted, in_the_way};
use crate::kernel::state_directory::StateDirectory;
use crate::names::Attachment;
use crate::plugin::{Context, Entry, Expected, Ipam, Scope, assignable};
use takeover::Asked;

/// The default of `dataDir`.
pub const DATA_DIR: StateDirectory =
    StateDirectory { usual: "/var/lib/cni/networks", of_user: "/run/cnibox/lib/networks" };

pub const ENTRY: Entry =
    Entry::ipam::<HostLocal>("host-local", "addresses from ranges, reserved in files on this host");

keys! {
    /// The keys, not validated.
    pub struct HostLocal {
        "ipam" => ipam: Option<IpamKeys>,
        "runtimeConfig" => runtime_config: RuntimeConfig,
        "args" => args: ArgsKey,
    }

    struct IpamKeys {
        "dataDir" => data_dir: String,
        "subnet" => subnet: String,
        "rangeStart" => range_start: Option<IpAddr>,
        "rangeEnd" => range_end: Option<IpAddr>,
        "gateway" => gateway: Option<IpAddr>,
        "ranges" => ranges: Vec<Vec<RangeConf>>,
        "routes" => routes: Vec<Route>,
        "resolvConf" => resolv_conf: String,
        "exclude" => exclude: Vec<String>,
        "sticky" => sticky: bool,
        "staleOnBoot" => stale_on_boot: String,
    }

    struct RuntimeConfig {
        "ipRanges" => ip_ranges: Vec<Vec<RangeConf>>,
        "ips" => ips: Vec<IpAddr>,
    }

    struct ArgsKey {
        "cni" => cni: CniArgs,
    }

    struct CniArgs {
        "ips" => ips: Vec<IpAddr>,
    }
}

impl Ipam for HostLocal {
    fn add(&self, cx: &Context<'_>, at: &Attachment) -> Result<Success> {
        let data_dir = self.data_dir()?;
        let config = self.config(cx.request)?;
        let dns = config.dns()?;
        assignable::warn_of_requested(cx, config.requested_nets());
        let (refused, is_of_host) = (cx.session.refused(), assignable::is_of_host(cx));
        let request = AllocationRequest {
            sets: &config.sets,
            requested: &config.requested,
            sticky: config.identity(at, cx.request)?,
            stale_on_boot: config.stale_on_boot,
            is_in_use: &|address| refused.contains(&address) || is_of_host(address),
        };
        let allocated = Asked { cx, data_dir, at, request: &request }.allocate()?;
        let ips = allocated
            .into_iter()
            .map(|ip| Ip { address: ip.address, gateway: Some(ip.gateway), interface: None })
            .collect();
        Ok(Success { ips, routes: config.routes, dns, ..Success::default() })
    }

    fn check(&self, cx: &Context<'_>, at: &Attachment) -> Result<()> {
        let config = self.config(cx.request)?;
        let Some(store) = self.store(cx)? else { return Err(not_found(at)) };
        let expected = addresses_in_prev_result(cx, at)?;
        store.locked(|locked| {
            let held = locked.held_by(at)?;
            let is_ours = |ip: &IpAddr| config.sets.iter().any(|set| set.range_of(*ip).is_some());
            let missing = expected.iter().find(|ip| is_ours(ip) && !held.contains(ip));
            if missing.is_none() && !held.is_empty() {
                return Ok(());
            }
            // An unreadable file can be the reservation that was not found: then the error of this file is returned.
            locked.all_readable()?;
            let details =
                missing.map(|ip| format!("{ip} is not reserved for it")).unwrap_or_default();
            Err(not_found(at).with_details(details))
        })
    }

    fn clean(&self, cx: &Context<'_>, scope: Scope<'_>) -> Result<()> {
        match self.store(cx)? {
            Some(store) => store.locked(|locked| match scope {
                Scope::One(at) => locked.release(at),
                Scope::Each(all) => all.iter().try_for_each(|at| locked.release(at)),
                Scope::AllExcept(keep) => locked.keep_only(keep),
            }),
            None => Ok(()),
        }
    }

    fn status(&self, cx: &Context<'_>) -> Result<()> {
        let config = self.config(cx.request)?;
        let is_ready = || {
            config.dns()?;
            Store::check_usable(self.data_dir()?, &cx.request.network)?;
            let Some(store) = self.store(cx)? else { return Ok(()) };
            let is_of_host = assignable::is_of_host(cx);
            let checked = store.locked(|locked| {
                let check =
                    |set| check_not_exhausted(locked, set, config.stale_on_boot, &is_of_host);
                let Err(exhausted) = config.sets.iter().enumerate().try_for_each(check) else {
                    return Ok(Ok(()));
                };
                Ok(Err((exhausted, in_the_way(locked, &config.sets, &[], &is_of_host)?)))
            });
            checked?.or_else(|(exhausted, in_the_way)| {
                match takeover::can_take(cx, self.data_dir()?, &in_the_way.addresses)? {
                    true => Ok(()),
                    false => Err(exhausted),
                }
            })
        };
        is_ready().map_err(Error::into_not_available)
    }

    fn expected(&self, cx: &Context<'_>) -> Result<Expected> {
        let ip = |range: &Range| Ip {
            address: range.subnet,
            gateway: Some(range.gateway),
            interface: None,
        };
        let choices = |set: &RangeSet| set.ranges().iter().map(ip).collect();
        Ok(Expected::new(self.sets(&cx.request.json)?.iter().map(choices).collect()))
    }
}

fn not_found(at: &Attachment) -> Error {
    let id = &at.container_id;
    Error::internal(format_args!("host-local: Failed to find address added by container {id}"))
}

impl HostLocal {
    fn data_dir(&self) -> Result<&Path> {
        let data_dir = self.ipam()?.data_dir.as_str();
        Ok(if data_dir.is_empty() { DATA_DIR.path() } else { Path::new(data_dir) })
    }

    /// The reservations of the network. `None` if there never was one.
    fn store<'a>(&self, cx: &'a Context<'_>) -> Result<Option<Store<'a>>> {
        Store::open_if_exists(self.data_dir()?, &cx.request.network, cx.session.turns())
    }
}

/// The address ranges of a network on this host, and the directory of their reservations.
#[cfg(feature = "tool")]
pub struct Pool {
    pub data_dir: PathBuf,
    /// The range sets, or the error of an invalid configuration.
    pub sets: Result<Vec<RangeSet>>,
    /// Whether reservations can be those of other hosts: `"staleOnBoot": "keep"`.
    pub is_of_several_hosts: bool,
}

/// The pool of a plugin configuration with the IPAM plugin `host-local`. Fails if a key has the wrong type.
#[cfg(feature = "tool")]
pub fn pool(plugin: &Json) -> Result<Pool> {
    let keys: HostLocal = plugin.read("network configuration")?;
    let is_of_several_hosts = keys.ipam()?.stale_on_boot == "keep";
    Ok(Pool { data_dir: keys.data_dir()?.into(), sets: keys.sets(plugin), is_of_several_hosts })
}

/// The addresses of `prevResult` that are those of the attachment's interface or name no interface.
fn addresses_in_prev_result(cx: &Context<'_>, at: &Attachment) -> Result<Vec<IpAddr>> {
    let Some(prev_result) = cx.request.prev_result()? else { return Ok(Vec::new()) };
    let ours = cx.interface_index(at, &prev_result);
    let is_ours = |ip: &&Ip| ip.interface.is_none_or(|index| Some(index as usize) == ours);
    Ok(prev_result.ips.iter().filter(is_ours).map(|ip| ip.address.addr()).collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use crate::error::Code;
    use crate::ipam::store::tests::TempDir;
    use crate::plugin::Session;

    use crate::cni::request::Request;

    use super::*;

    /// Calls the plugin. `ipam` is the content of the JSON object of that name, `more` the text after it.
    fn call(
        command: &str,
        dir: &TempDir,
        ipam: &str,
        more: &str,
        args: &str,
    ) -> Result<Option<Success>> {
        let stdin = format!(
            r#"{{"cniVersion":"1.1.0","name":"net","ipam":{{"dataDir":{:?},{ipam}}}{more}}}"#,
            dir.path()
        );
        call_with(command, &stdin, args)
    }

    fn call_with(command: &str, stdin: &str, args: &str) -> Result<Option<Success>> {
        let env = |name: &str| match name {
            "CNI_CONTAINERID" => Some(OsString::from("abc")),
            "CNI_NETNS" => Some("/run/netns/abc".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            "CNI_PATH" => Some("/opt/cni/bin".into()),
            "CNI_ARGS" => Some(args.into()),
            _ => None,
        };
        let (request, verb) =
            Request::read(command, env, stdin.as_bytes()).map_err(|refusal| refusal.error)?;
        let session = Session::without_container();
        let cx = Context { request: &request, session: &session, plugins: &[] };
        ENTRY.run(&cx, &verb)
    }

    fn add(dir: &TempDir, ipam: &str, more: &str, args: &str) -> Result<String> {
        let success = call("ADD", dir, ipam, more, args)?.unwrap();
        let show = |ip: &Ip| format!("{} via {}", ip.address, ip.gateway.unwrap());
        Ok(success.ips.iter().map(show).collect::<Vec<_>>().join(", "))
    }

    const SUBNET: &str = r#""subnet":"10.1.0.0/16""#;

    #[test]
    fn range_sets_have_the_order_runtime_subnet_ranges() {
        let dir = TempDir::new();
        let ipam = r#""subnet":"10.1.0.0/16","rangeStart":"10.1.2.3","gateway":"10.1.9.9",
            "ranges":[[{"subnet":"10.2.0.0/16"}]]"#;
        let more = r#","runtimeConfig":{"ipRanges":[[{"subnet":"fd00::/64"}]]}"#;
        assert_eq!(
            add(&dir, ipam, more, "").unwrap(),
            "fd00::2/64 via fd00::1, 10.1.2.3/16 via 10.1.9.9, 10.2.0.2/16 via 10.2.0.1"
        );
        assert_eq!(dir.read("last_reserved_ip.1"), "10.1.2.3");
        assert_eq!(dir.read("10.1.2.3"), "abc\r\neth0");
    }

    #[test]
    fn an_address_requested_twice_is_reserved_once() {
        let dir = TempDir::new();
        let ipam = r#""ranges":[[{"subnet":"10.1.0.0/16"}],[{"subnet":"10.2.0.0/16"}],[{"subnet":"fd00::/64"}]]"#;
        let more = r#","args":{"cni":{"ips":["10.2.0.8/8","10.1.0.7"]}},"runtimeConfig":{"ips":["fd00:0::9"]}"#;
        assert_eq!(
            add(&dir, ipam, more, "IP=10.1.0.7/16").unwrap(),
            "10.1.0.7/16 via 10.1.0.1, 10.2.0.8/16 via 10.2.0.1, fd00::9/64 via fd00::1"
        );
    }

    #[test]
    fn routes_and_dns_are_in_the_result() {
        let dir = TempDir::new();
        let resolv_conf = dir.path().join("resolv.conf");
        fs::write(&resolv_conf, "nameserver 10.0.0.53\n").unwrap();
        let ipam = format!(
            r#"{SUBNET},"resolvConf":{resolv_conf:?},"routes":[{{"dst":"0.0.0.0/0","mtu":9}}]"#
        );
        let success = call("ADD", &dir, &ipam, "", "").unwrap().unwrap();
        assert_eq!(success.dns.nameservers, ["10.0.0.53"]);
        assert_eq!(
            (success.routes[0].dst.to_string().as_str(), success.routes[0].mtu),
            ("0.0.0.0/0", 9)
        );
        assert!(success.interfaces.is_empty() && success.ips[0].interface.is_none());
    }

    #[test]
    fn a_wrong_configuration_is_an_error_before_any_change() {
        let dir = TempDir::new();
        let cases = [
            (r#""x":1"#, "", 7, "no IP ranges specified"),
            (
                r#""subnet":"10.1.0.0/32""#,
                "",
                7,
                "invalid range set 0: Network 10.1.0.0/32 too small to allocate from",
            ),
            (
                r#""subnet":"10.1.0.0/16","resolvConf":"/nonexistent""#,
                "",
                5,
                "cannot read resolvConf /nonexistent: ",
            ),
            (
                SUBNET,
                "IP=x",
                4,
                r#"ARGS: error parsing value of pair "IP=x": invalid IP address: x"#,
            ),
            (r#""rangeStart":"x""#, "", 6, "invalid IP address: x"),
        ];
        for (ipam, args, code, expected) in cases {
            let error = add(&dir, ipam, "", args).unwrap_err();
            assert_eq!(error.code, Code(code), "{ipam}: {error}");
            assert!(error.msg.starts_with(expected), "{ipam}: {error}");
        }
        let old =
            r#","cniVersion":"0.2.0","runtimeConfig":{"ipRanges":[[{"subnet":"10.2.0.0/16"}]]}"#;
        assert_eq!(
            add(&dir, SUBNET, old, "").unwrap_err().msg,
            "CNI version 0.2.0 does not support more than 1 address per family"
        );
        assert!(!dir.network_dir().exists());
    }

    #[test]
    fn ipam_is_required() {
        for ipam in ["", r#","ipam":null"#] {
            for command in ["ADD", "DEL", "CHECK", "STATUS"] {
                let stdin = format!(r#"{{"cniVersion":"1.1.0","name":"net"{ipam}}}"#);
                let error = call_with(command, &stdin, "").unwrap_err();
                assert_eq!(error, Error::config("IPAM config missing 'ipam' key"), "{command}");
            }
        }
    }

    #[test]
    fn del_needs_only_data_dir_and_creates_nothing() {
        let dir = TempDir::new();
        call("DEL", &dir, SUBNET, "", "").unwrap();
        assert!(!dir.network_dir().exists());
        add(&dir, SUBNET, "", "").unwrap();
        call("DEL", &dir, r#""ranges":5,"resolvConf":"/nonexistent""#, "", "").unwrap();
        assert_eq!(dir.names(), ["last_reserved_ip.0", "lock"]);
        call("DEL", &dir, SUBNET, "", "").unwrap();
    }

    #[test]
    fn check_fails_for_a_missing_reservation() {
        let dir = TempDir::new();
        let not_found = "host-local: Failed to find address added by container abc";
        let check =
            |more: &str| call("CHECK", &dir, SUBNET, more, "").err().map(|error| error.to_string());
        assert_eq!(check("").as_deref(), Some(not_found));
        add(&dir, SUBNET, "", "").unwrap();
        assert_eq!(check(""), None);
        let prev = |ip: &str, index: &str| {
            format!(
                r#","prevResult":{{"cniVersion":"1.1.0","interfaces":[{{"name":"cni0"}},
                {{"name":"eth0","sandbox":"/run/netns/abc"}}],"ips":[{{"address":"{ip}/16"{index}}}]}}"#
            )
        };
        let on = |index: u32| format!(r#","interface":{index}"#);
        for (ip, index) in [("10.1.0.2", on(1)), ("10.1.0.3", on(0)), ("10.2.0.3", on(1))] {
            assert_eq!(check(&prev(ip, &index)), None, "{ip} {index}");
        }
        for index in [on(1), String::new()] {
            assert_eq!(
                check(&prev("10.1.0.3", &index)).unwrap(),
                format!("{not_found}: 10.1.0.3 is not reserved for it")
            );
        }
    }

    #[test]
    fn gc_releases_stale_reservations() {
        let dir = TempDir::new();
        add(&dir, SUBNET, "", "").unwrap();
        dir.write("10.1.0.9", "gone\r\neth0");
        let valid = r#","cni.dev/valid-attachments":[{"containerID":"abc","ifname":"eth0"}]"#;
        call("GC", &dir, r#""ranges":5"#, valid, "").unwrap();
        assert_eq!(dir.names(), ["10.1.0.2", "last_reserved_ip.0", "lock"]);
        call("GC", &dir, SUBNET, r#","cni.dev/valid-attachments":[]"#, "").unwrap();
        assert_eq!(dir.names(), ["last_reserved_ip.0", "lock"]);
    }

    #[test]
    fn status_fails_if_an_add_would_fail() {
        let dir = TempDir::new();
        let status = |ipam: &str| {
            let result = call("STATUS", &dir, ipam, "", "");
            result.map_or_else(|error| (error.code.0, error.msg.clone()), |_| (0, String::new()))
        };
        let small = r#""ranges":[[{"subnet":"fd00::/64"}],[{"subnet":"10.1.0.0/30"}]]"#;
        assert_eq!(status(small).0, 0);
        assert!(!dir.network_dir().exists());
        add(&dir, small, "", "").unwrap();
        let exhausted = "no IP addresses available in range set: 10.1.0.1-10.1.0.2";
        assert_eq!(status(small), (50, exhausted.into()));
        assert_eq!(status(SUBNET).0, 0);
        assert_eq!(status(r#""subnet":"10.1.0.0/31""#).0, 7);
        assert_eq!(status(r#""subnet":"10.1.0.0/16","resolvConf":"/nonexistent""#).0, 50);
        fs::write(dir.path().join("file"), "").unwrap();
        let data_dir_below_file = format!(
            r#"{{"cniVersion":"1.1.0","name":"net","ipam":{{{SUBNET},"dataDir":"{}/file"}}}}"#,
            dir.path().display()
        );
        assert_eq!(
            call_with("STATUS", &data_dir_below_file, "").unwrap_err().code,
            Code::NOT_AVAILABLE
        );
        assert_eq!(call_with("DEL", &data_dir_below_file, ""), Ok(None));
    }
}
