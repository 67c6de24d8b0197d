//! `cnibox demo`: two containers on the specification's example network, in namespaces of its own.

mod picture;

use std::fmt::Display;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use argh::FromArgs;

use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::cni::version::{self, Version};
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::rtnl::Rtnl;
use crate::kernel::sandbox;

use super::{NAME, say};

/// The example of the specification 1.0.0, section 1, with the bridge as the gateway, so that there is one to reach.
const NETWORK: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "dbnet",
  "type": "bridge",
  "bridge": "cni0",
  "isGateway": true,
  "keyA": ["some more", "plugin specific", "configuration"],
  "ipam": {
    "type": "host-local",
    "subnet": "10.1.0.0/16",
    "gateway": "10.1.0.1",
    "routes": [ { "dst": "0.0.0.0/0" } ]
  },
  "dns": { "nameservers": [ "10.1.0.1" ] }
}"#;
const BRIDGE: &str = "cni0";
/// Where the reference keeps its reservations.
const RESERVATIONS: &str = "/var/lib/cni/networks/dbnet";
const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));
/// How long an exchange in the demo's own network may take.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(5);
const GREETING: &[u8] = b"hello from the other side\n";

/// Connect two containers, send traffic, take it all down again; in namespaces of its own, so the host stays as it is.
#[derive(FromArgs)]
#[argh(subcommand, name = "demo", help_triggers("-h", "--help", "help"))]
pub(super) struct Demo {}

struct Container {
    name: &'static str,
    netns: NetNs,
    result: Json,
    success: Success,
    took: Duration,
}

impl Demo {
    pub(super) fn run(self) -> Result<()> {
        let plugins = prepare()?;
        say(&format!("The network, from the CNI specification:\n\n{NETWORK}\n"));

        let mut containers = Vec::new();
        for name in ["c1", "c2"] {
            containers.push(attach(&plugins, name)?);
        }
        say(&picture::draw(&containers));

        let [one, two] = containers.as_slice() else { unreachable!("there are two containers") };
        let host = NetNs::own()?;
        for (from, to, address) in [
            (one, &two.netns, two.address()),
            (two, &one.netns, one.address()),
            (one, &host, GATEWAY),
            (two, &host, GATEWAY),
        ] {
            let took = exchange(&from.netns, to, address)?;
            say(&format!("tcp    {} to {address}: there and back in {}", from.name, millis(took)));
        }
        for container in &containers {
            container.call(&plugins, "CHECK")?;
            say(&format!("CHECK  {}: everything is as ADD made it", container.name));
        }
        for container in &containers {
            let started = Instant::now();
            container.call(&plugins, "DEL")?;
            say(&format!("DEL    {} in {}", container.name, millis(started.elapsed())));
        }
        nothing_is_left(&containers)?;
        say(&format!(
            "left   nothing but the empty bridge {BRIDGE}, which the next container will use"
        ));
        Ok(())
    }
}

/// Moves into namespaces of our own, and puts this executable and its links there. Returns the links' directory.
fn prepare() -> Result<PathBuf> {
    let executable = std::env::current_exe()
        .and_then(fs::read)
        .map_err(|error| Error::internal(format!("cannot read this executable: {error}")))?;
    sandbox::enter()?;
    for directory in ["/run", "/var/lib"] {
        sandbox::mount_memory(Path::new(directory))?;
    }
    let plugins = PathBuf::from("/run/cnibox-demo");
    let placed = || {
        use std::os::unix::fs::OpenOptionsExt;
        fs::create_dir_all("/run/netns")?;
        fs::create_dir_all(&plugins)?;
        let mut options = fs::OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(plugins.join(NAME))?
            .write_all(&executable)?;
        ["bridge", "host-local"].iter().try_for_each(|plugin| symlink(NAME, plugins.join(plugin)))
    };
    placed().map_err(|error: io::Error| {
        Error::internal(format!("cannot install into {}: {error}", plugins.display()))
    })?;
    Ok(plugins)
}

fn attach(plugins: &Path, name: &'static str) -> Result<Container> {
    let netns = sandbox::new_namespace(&Path::new("/run/netns").join(name))?;
    let mut container = Container {
        name,
        netns,
        result: Json::Null,
        success: Success::default(),
        took: Duration::ZERO,
    };
    let started = Instant::now();
    let stdout = container.call(plugins, "ADD")?;
    container.took = started.elapsed();
    container.result = Json::parse(&stdout)?;
    container.success = version::parse_result(&container.result, Version::V1_0_0)?;
    if container.success.ips.is_empty() || container.success.interfaces.len() != 3 {
        return Err(Error::internal(format!(
            "ADD of {name} has a result without address or interfaces"
        )));
    }
    Ok(container)
}

impl Container {
    fn address(&self) -> IpAddr {
        self.success.ips[0].address.addr()
    }

    /// Calls the plugin as a runtime does: by its link, with environment and stdin.
    fn call(&self, plugins: &Path, verb: &str) -> Result<Vec<u8>> {
        let failed = |reason: &dyn Display| {
            Error::internal(format!("cannot {verb} {}: {reason}", self.name))
        };
        let mut child = Command::new(plugins.join("bridge"))
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("demo-{}", self.name))
            .env("CNI_NETNS", self.netns.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let written = child
            .stdin
            .take()
            .map_or(Ok(()), |mut stdin| stdin.write_all(self.configuration()?.as_bytes()));
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        written.map_err(|error| failed(&error))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(failed(&String::from_utf8_lossy(&output.stdout))),
        }
    }

    /// The network, with the result of ADD once there is one.
    fn configuration(&self) -> io::Result<String> {
        let mut configuration = Json::parse(NETWORK.as_bytes()).map_err(io::Error::other)?;
        if let (Json::Object(entries), true) = (&mut configuration, self.result != Json::Null) {
            entries.push(("prevResult".into(), self.result.clone()));
        }
        Ok(configuration.to_compact())
    }
}

/// Sends a greeting over TCP from one namespace to another and back, and returns how long that took.
fn exchange(from: &NetNs, to: &NetNs, address: IpAddr) -> Result<Duration> {
    let failed = |error: io::Error| Error::internal(format!("cannot talk to {address}: {error}"));
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)).map_err(failed))?;
    let server_address = listener.local_addr().map_err(failed)?;
    from.run(|| {
        let started = Instant::now();
        let talk = || {
            let mut client = TcpStream::connect_timeout(&server_address, TRAFFIC_LIMIT)?;
            let (mut server, _) = listener.accept()?;
            client.set_read_timeout(Some(TRAFFIC_LIMIT))?;
            server.set_read_timeout(Some(TRAFFIC_LIMIT))?;
            let mut heard = [0; GREETING.len()];
            client.write_all(GREETING)?;
            server.read_exact(&mut heard)?;
            server.write_all(&heard)?;
            client.read_exact(&mut heard)?;
            if heard == GREETING {
                Ok(())
            } else {
                Err(io::Error::other("the greeting came back changed"))
            }
        };
        talk().map_err(failed)?;
        Ok(started.elapsed())
    })
}

/// Checks that DEL has removed the ports of the bridge, the interfaces in the containers, and the reservations.
fn nothing_is_left(containers: &[Container]) -> Result<()> {
    let host = Rtnl::open()?;
    let bridge =
        host.link(BRIDGE)?.ok_or_else(|| Error::internal(format!("bridge {BRIDGE} is gone")))?;
    let mut left: Vec<String> = Vec::new();
    left.extend(host.links_with_master(bridge.index)?.into_iter().map(|link| link.name));
    left.extend(host.links_of_kind("veth")?.into_iter().map(|link| link.name));
    for container in containers {
        let link = container.netns.rtnl()?.link("eth0")?;
        left.extend(link.map(|link| format!("{} in {}", link.name, container.name)));
    }
    let reservations = fs::read_dir(RESERVATIONS)
        .map_err(|error| Error::internal(format!("cannot read {RESERVATIONS}: {error}")))?;
    let names =
        reservations.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    left.extend(names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")));
    if left.is_empty() {
        return Ok(());
    }
    Err(Error::internal(format!("DEL has left behind {}", left.join(", "))))
}

fn millis(duration: Duration) -> String {
    let hundredths = duration.as_micros() / 10;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}
