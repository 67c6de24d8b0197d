//! A world: a private user, PID, mount and network namespace that plays the host, containers in it, a directory of
//! plugins, and nothing of the machine that runs the tests. The state of a world is read with `ip` and `nft`.

pub mod attempts;
pub mod bare;
pub mod call;
pub mod connection;
pub mod json;
pub mod kernel;
pub mod killed;
pub mod lan;
pub mod pool;
pub mod scratch;
pub mod state;
mod sys;

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde_json::Value;

pub use attempts::one_attempt_is;
pub use bare::Bare;
pub use call::{Call, Outcome, Running, VERSIONS, all_at_once};
pub use connection::{Connection, echo};
pub use json::{leaves, with, without};
pub use kernel::{half_for, is_for_options, kernel_has, not_run, runs_with};
pub use killed::{at_every_change, at_every_change_from, at_every_system_call};
pub use lan::{LAN, OUTSIDE, is_made_or_missed, lan, through_dhcp};
pub use pool::on_two_threads;
pub use scratch::Scratch;
pub use state::{RECORDS, State};
pub use sys::{Namespaces, Process};

/// Whether the tests have time for all rounds.
pub fn is_full() -> bool {
    std::env::var_os("CNIBOX_TESTS_FULL").is_some()
}

/// The executable under test: that of CNIBOX_EXECUTABLE, to test what is shipped, or the debug build. Only a debug build has
/// the faults of the modules named `faults`, and boots again.
#[expect(clippy::disallowed_methods, reason = "it is asked of the caller of the tests")]
pub fn executable() -> &'static str {
    static CHOSEN: LazyLock<String> = LazyLock::new(|| {
        std::env::var("CNIBOX_EXECUTABLE").unwrap_or_else(|_| env!("CARGO_BIN_EXE_cnibox").into())
    });
    &CHOSEN
}

/// Where every world shows the executable under test.
const EXECUTABLE_IN_WORLD: &str = "/run/bin/cnibox";

/// Where the links named after the plugins lie in a world.
pub const PLUGIN_DIR: &str = "/run/plugins";

/// A program that runs programs: they may not read the processes that have more rights, such as the keeper.
pub const WITHOUT_PTRACE: [&str; 2] = ["setpriv", "--bounding-set=-sys_ptrace"];

/// A program that runs programs with a file over the boot id, as systemd-nspawn and LXC do it.
pub const COVERED_BOOT: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-ec",
    r#"cat /proc/sys/kernel/random/uuid >/run/covering_id
    mount --bind /run/covering_id /proc/sys/kernel/random/boot_id
    exec "$@""#,
    "sh",
];

/// The file with the boot id of a world, from its first boot on. Only a debug build reads it: the names of the tests that boot
/// have the word "reboot", and `tests/tiers` skips them for other executables.
const BOOT_FILE: &str = "/run/boot_id";

/// The limit for changes that the kernel makes after the call has returned. A limit that is not reached costs nothing, and a
/// loaded machine needs much of it.
const KERNEL_LIMIT: Duration = Duration::from_secs(60);

/// Repeats a ping for 60 s: it ends at the first answer, but also at the first ICMP error, such as that of an address that a loaded
/// machine did not resolve in time.
const PING: &str = r#"end=$(($(date +%s) + 60))
    until ping -n -q -c 1 -w 60 -i 0.2 "$@"; do
        [ "$(date +%s)" -lt "$end" ] || exit 1
        sleep 0.2
    done"#;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A "host" with its own network, mounts, users and processes. Ends, with all that was made in it, when dropped.
pub struct World {
    /// Process 1 of the world. It ends with the test process, since it reads a pipe of that, and all other processes of the
    /// world end with it.
    keeper: Process,
    namespaces: Arc<Namespaces>,
    cni_path: String,
}

/// A network namespace in a world that is bound to `/run/netns/NAME`, as container runtimes do it.
pub struct Container<'w> {
    pub world: &'w World,
    pub name: String,
}

/// A ruleset in the words of nft, without the comments that mark the rules of cnibox.
pub fn without_tags(ruleset: &str) -> String {
    let rule = |line: &str| line.split(" comment \"cnibox ").next().unwrap().to_owned() + "\n";
    ruleset.lines().map(rule).collect()
}

impl World {
    /// A host with a plugin directory that holds a link to our executable for every plugin.
    pub fn new() -> Self {
        let world = Self::with_plugins(PLUGIN_DIR);
        let dir = world.path(PLUGIN_DIR);
        fs::create_dir(&dir).unwrap();
        for name in plugin_names() {
            symlink(EXECUTABLE_IN_WORLD, dir.join(name)).unwrap();
        }
        symlink(DNS_ENGINE, dir.join("aardvark-dns")).unwrap();
        world
    }

    /// A host with the plugins of the machine's directory `cni_path`.
    pub fn with_plugins(cni_path: &str) -> Self {
        let keeper = sys::make_namespaces(Path::new(executable()).parent().unwrap()).expect(
            "the tests need a private user, PID, mount and network namespace, and cannot make one here; \
             the line above names the step",
        );
        let namespaces = Arc::new(Namespaces::of(keeper.pid).unwrap());
        let world = Self { keeper, namespaces, cni_path: cni_path.into() };
        world.host(["ip", "link", "set", "lo", "up"]);
        world
    }

    /// The same file as `inside`, seen from the test. (A link on the way would be followed outside of the world.)
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        let inside = inside.as_ref().strip_prefix("/").expect("paths in a world are absolute");
        Path::new("/proc").join(self.keeper.pid.to_string()).join("root").join(inside)
    }

    pub fn write(&self, inside: &str, content: impl AsRef<[u8]>) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// All that a boot is for cnibox: another boot id.
    pub fn boot(&self, number: u32) {
        self.write(BOOT_FILE, format!("{number:08}-e6cd-4471-bb46-39adcacd0000\n"));
    }

    pub fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_else(|error| panic!("{inside}: {error}"))
    }

    pub fn container(&self, name: &str) -> Container<'_> {
        let container = Container { world: self, name: name.into() };
        self.write(&container.netns(), "");
        let path = CString::new(container.netns()).unwrap();
        let mut maker = sys::make_netns(Arc::clone(&self.namespaces), path).unwrap();
        assert!(maker.child.wait().unwrap().success());
        container
    }

    /// Runs a tool on the host; it must succeed.
    #[track_caller]
    pub fn host<const N: usize>(&self, words: [&str; N]) -> String {
        self.tool(&words, None).output_of_success()
    }

    #[track_caller]
    pub fn host_json<const N: usize>(&self, words: [&str; N]) -> Value {
        parse(&self.host(words))
    }

    /// A tool on the host, or in the container with that namespace path, not yet started.
    pub fn tool(&self, words: &[&str], netns: Option<&str>) -> Call<'_> {
        Call::tool(self, words, netns)
    }

    /// A ping on the host, or in the container with that namespace path, as `Container::pinging` has it.
    /// Starts a DNS server at addresses of the host, with options for its records.
    pub fn dnsmasq(&self, addresses: &str, options: &[&str]) -> Running {
        let listen = format!("--listen-address={addresses}");
        let own = [
            "dnsmasq",
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
            "--group=",
            "--pid-file=",
            "--bind-interfaces",
            &listen,
        ];
        self.tool(&[&own, options].concat(), None).start()
    }

    pub fn pinging(&self, address: &str, netns: Option<&str>) -> Call<'_> {
        self.tool(&["sh", "-c", PING, "sh", address], netns)
    }

    /// A plugin call for no container in particular; see also `Container::call`.
    pub fn call(&self, plugin: &str, verb: &str, config: &Value) -> Call<'_> {
        Call::plugin_of_world(self, plugin).env("CNI_COMMAND", verb).config(config)
    }

    pub fn state(&self) -> State {
        State::read(self, &[])
    }

    pub fn state_with(&self, containers: &[&Container<'_>]) -> State {
        State::read(self, containers)
    }

    /// The value of a setting of the host, `net/ipv4/ip_forward` for example.
    pub fn sysctl(&self, name: &str) -> String {
        let path = format!("/proc/sys/{name}");
        self.host(["cat", &path]).trim().into()
    }

    /// STATUS of a plugin that makes links of this kind, on a host where nothing else is in the way: whether the kernel
    /// has them, an option, decides.
    #[track_caller]
    pub fn status_as_the_kernel_has(&self, option: &str, kind: &str, config: &Value) {
        let words = ["ip", "link", "add", "probe0", "address", "0:0:0:0:0:0", "type", kind];
        let is_unknown = self.tool(&words, None).run().stderr.contains("Unknown device type");
        let status = self.call(kind, "STATUS", config).run();
        if half_for(option, !is_unknown) {
            status.silence();
        } else {
            status.fails(50, &["Unknown device type", &format!("the kernel lacks {option}")]);
        }
    }

    /// Names of the links on the host that are ports of `bridge`.
    pub fn ports_of(&self, bridge: &str) -> Vec<String> {
        names(&self.host_json(["ip", "-j", "link", "show", "master", bridge]))
    }

    /// Names of all links of the host.
    pub fn links(&self) -> Vec<String> {
        names(&self.host_json(["ip", "-j", "link"]))
    }

    /// Waits until `holds`, for what the kernel does some time after it said yes.
    #[track_caller]
    pub fn eventually(&self, what: &str, holds: impl Fn() -> bool) {
        self.within(KERNEL_LIMIT.as_secs(), what, holds);
    }

    /// The same for what other processes do.
    #[track_caller]
    pub fn within(&self, limit_s: u64, what: &str, holds: impl Fn() -> bool) {
        self.within_or(limit_s, holds, || what.to_owned());
    }

    /// The same with a text about the failure that is made when it has happened.
    #[track_caller]
    #[expect(
        clippy::disallowed_methods,
        reason = "there is no event for all that can be waited for"
    )]
    pub fn within_or(&self, limit_s: u64, holds: impl Fn() -> bool, what: impl FnOnce() -> String) {
        let deadline = Instant::now() + Duration::from_secs(limit_s);
        while !holds() {
            if Instant::now() >= deadline {
                panic!("not within {limit_s} s: {}", what());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // This closes the pipe that the keeper reads.
        self.keeper.child.wait().ok();
    }
}

impl<'w> Container<'w> {
    pub fn netns(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Runs a tool in the container; it must succeed.
    #[track_caller]
    pub fn exec<const N: usize>(&self, words: [&str; N]) -> String {
        self.tool(words).output_of_success()
    }

    #[track_caller]
    pub fn json<const N: usize>(&self, words: [&str; N]) -> Value {
        parse(&self.exec(words))
    }

    pub fn tool<const N: usize>(&self, words: [&str; N]) -> Call<'w> {
        self.world.tool(&words, Some(&self.netns()))
    }

    /// A plugin call for this container's `eth0`; the container is its own id.
    pub fn call(&self, plugin: &str, verb: &str, config: &Value) -> Call<'w> {
        self.world
            .call(plugin, verb, config)
            .env("CNI_CONTAINERID", &self.name)
            .env("CNI_NETNS", &self.netns())
            .env("CNI_IFNAME", "eth0")
    }

    #[track_caller]
    pub fn add(&self, plugin: &str, config: &Value) -> Value {
        self.call(plugin, "ADD", config).run().success()
    }

    #[track_caller]
    pub fn del(&self, plugin: &str, config: &Value) {
        self.call(plugin, "DEL", config).run().silence();
    }

    #[track_caller]
    pub fn check(&self, plugin: &str, config: &Value, result: &Value) {
        self.checking(plugin, config, result).run().silence();
    }

    /// A CHECK that is not started yet, of what `result` promises.
    pub fn checking(&self, plugin: &str, config: &Value, result: &Value) -> Call<'w> {
        let mut config = config.clone();
        config["prevResult"] = result.clone();
        self.call(plugin, "CHECK", &config)
    }

    pub fn sysctl(&self, name: &str) -> String {
        let path = format!("/proc/sys/{name}");
        self.exec(["cat", &path]).trim().into()
    }

    /// Addresses on a link of the container as `ip/len`, without those that the kernel makes by itself.
    #[track_caller]
    pub fn addresses(&self, link: &str) -> Vec<String> {
        addresses(&self.json(["ip", "-j", "address", "show", "dev", link]))
    }

    /// Waits until the kernel has found the link-local address of a link unique: only then a socket can use it.
    #[track_caller]
    pub fn wait_for_link_local(&self, link: &str) {
        self.world.eventually("the link-local address is usable", || {
            let addresses = self.exec(["ip", "-6", "-o", "address", "show", "dev", link]);
            addresses.contains("fe80:") && !addresses.contains("tentative")
        });
    }

    /// One echo there and back, with some tries for the neighbour discovery.
    #[track_caller]
    pub fn ping(&self, address: &str) {
        self.pinging(address).output_of_success();
    }

    /// A ping that is not started yet, and ends with the first answer, or without one after a minute.
    pub fn pinging(&self, address: &str) -> Call<'w> {
        self.world.pinging(address, Some(&self.netns()))
    }

    /// The number of the namespace on the host. The kernel chooses it, as it does for the peer of a veth, if it has none.
    pub fn number(&self) -> String {
        self.world.host(["ip", "netns", "set", &self.name, "auto"]);
        let listed = self.world.host(["ip", "netns", "list-id"]);
        let end = format!("name: {})", self.name);
        let line = listed.lines().find(|line| line.ends_with(&end));
        line.unwrap_or_else(|| panic!("{listed}")).split(' ').nth(1).unwrap().to_owned()
    }

    /// Unmounts the namespace and removes its file, as a runtime does last.
    pub fn destroy(&self) {
        self.unmount();
        self.world.host(["rm", &self.netns()]);
    }

    /// Like `destroy`, by a runtime that died before it removed the file.
    pub fn unmount(&self) {
        self.world.host(["sh", "-c", UNMOUNT, "sh", &self.name]);
    }
}

/// Unmounts a namespace, which is busy while a watcher has it open. The kernel ends it a moment after the last process that used
/// it: waits for that, up to a second, since a process can still be in it.
const UNMOUNT: &str = r#"
    ip netns set "$1" auto 2>/dev/null
    number=$(ip netns list-id 2>/dev/null | sed -n "s/^nsid \([0-9]*\) .* name: $1)$/\1/p")
    for try in $(seq 100); do
        umount "/run/netns/$1" && break
        [ "$try" -lt 100 ] || exit
        sleep 0.01
    done
    for _ in $(seq 100); do
        [ -n "$number" ] && ip netns list-id nsid "$number" >/dev/null 2>&1 || exit 0
        sleep 0.01
    done"#;

/// The plugins that get a link only on request.
pub const ON_REQUEST: [&str; 1] = ["dnsname"];

/// The program that answers for `dnsname`: tests/install unpacks it.
pub const DNS_ENGINE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/aardvark/usr/lib/podman/aardvark-dns");

/// The names that the executable must answer to.
pub fn plugin_names() -> Vec<String> {
    let mut names = linked_names();
    names.extend(ON_REQUEST.map(str::to_owned));
    names.sort();
    names
}

/// The links that packages ship, and that `cnibox install` makes without options. CNIBOX_SYMLINKS is their directory in a virtual
/// machine, which has no directory of the project.
#[expect(clippy::disallowed_methods, reason = "it is asked of the caller of the tests")]
pub fn linked_names() -> Vec<String> {
    let dir = std::env::var("CNIBOX_SYMLINKS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/symlinks").into());
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in: {text}"))
}

pub fn names(links: &Value) -> Vec<String> {
    let name = |link: &Value| link["ifname"].as_str().map(str::to_owned);
    links.as_array().unwrap().iter().filter_map(name).collect()
}

/// Global addresses in the output of `ip -j address`.
pub fn addresses(links: &Value) -> Vec<String> {
    let infos = links.as_array().unwrap().iter().flat_map(|link| link["addr_info"].as_array());
    let global = infos.flatten().filter(|info| info["scope"] == "global");
    global
        .map(|info| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]))
        .collect()
}
