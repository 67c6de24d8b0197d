//! `cnibox demo`: two containers on the example network of the specification, in new namespaces.

mod picture;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use argh::{ArgsInfo, FromArgs};

use crate::cni::json::Json;
use crate::cni::success::Success;
use crate::error::{Error, Result};
use crate::kernel::netns::NetNs;
use crate::kernel::sandbox;
use crate::names::{Attachment, ContainerId, IfName};
use crate::netlink::rtnl::Rtnl;
use crate::runtime::NAMED_NAMESPACES;
use crate::runtime::Runtime;
use crate::runtime::conf::Network;
use crate::runtime::lifecycle::{Choice, NewAttachment, Target};

use super::output::{print_line, print_text};
use super::parameters::{self, AddOptions, Published, TIMEOUT_S};

/// The example of the specification 1.0.0, section 1. Added: the bridge is the gateway, `portmap` publishes ports, and
/// `firewall` accepts the packets of containers.
const NETWORK: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "dbnet",
  "plugins": [
    {
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
    },
    { "type": "portmap", "capabilities": { "portMappings": true } },
    { "type": "firewall" }
  ]
}"#;
const BRIDGE: &str = "cni0";
/// The directory of the reservations, as in the reference.
const RESERVATIONS: &str = "/var/lib/cni/networks/dbnet";
const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));
/// The timeout of one exchange of messages between the demo's namespaces.
const TRAFFIC_LIMIT: Duration = Duration::from_secs(5);
/// The port of c1 that the host publishes, as HOST:CONTAINER.
const PUBLISHED: &str = "8080:80";
const HOST_PORT: u16 = 8080;
const CONTAINER_PORT: u16 = 80;
const GREETING: &[u8] = b"hello from the other side\n";

/// Connect two containers, send traffic, detach them again. All is in new namespaces, so the host stays as it is.
#[derive(ArgsInfo, FromArgs)]
#[argh(subcommand, name = "demo", help_triggers("-h", "--help", "help"))]
pub(super) struct Demo {}

struct Container {
    name: &'static str,
    netns: NetNs,
    new: NewAttachment,
    success: Success,
    took: Duration,
}

impl Demo {
    pub(super) fn run(&self) -> Result<u8> {
        sandbox::enter()?;
        for directory in ["/run", "/var/lib"] {
            sandbox::mount_memory(Path::new(directory))?;
        }
        let host = NetNs::own()?;
        host.rtnl()?.raise_loopback()?;
        let mut runtime = parameters::runtime(TIMEOUT_S);
        // Without CNI_PATH the plugins of this executable are called, not those of the host.
        runtime.settings.path.clear();
        print_text(&format!("The network, a list of plugins:\n\n{NETWORK}\n"));

        let published = PUBLISHED.parse().map_err(Error::config)?;
        let containers = [attach(&runtime, "c1", &[published])?, attach(&runtime, "c2", &[])?];
        print_text(&picture::draw(&containers));

        let [one, two] = &containers;
        for (from, to, address) in [
            (one, &two.netns, two.address()),
            (two, &one.netns, one.address()),
            (one, &host, GATEWAY),
            (two, &host, GATEWAY),
        ] {
            let server = SocketAddr::new(address, CONTAINER_PORT);
            let took = exchange(&from.netns, &listen(to, server)?, server)?;
            print_line(format_args!(
                "tcp    {} to {address}: round trip in {}",
                from.name,
                millis(took)
            ));
        }
        let listener = listen(&one.netns, SocketAddr::new(one.address(), CONTAINER_PORT))?;
        let published = SocketAddr::new(GATEWAY, HOST_PORT);
        for (name, from) in [("host", &host), (two.name, &two.netns)] {
            let took = exchange(from, &listener, published)?;
            let port = format!("{published}, which {} publishes", one.name);
            print_line(format_args!("tcp    {name} to {port}: round trip in {}", millis(took)));
        }
        for container in &containers {
            container.check(&runtime)?;
            print_line(format_args!("CHECK  {}: everything is as ADD made it", container.name));
        }
        for container in &containers {
            let started = Instant::now();
            let NewAttachment { network, at, .. } = &container.new;
            let attached = [(network.name.clone(), at.clone())];
            runtime.detach(&attached, Some(container.netns.path()))?;
            print_line(format_args!("DEL    {} in {}", container.name, millis(started.elapsed())));
        }
        check_removed(&containers)?;
        print_line(format_args!(
            "left   nothing but the empty bridge {BRIDGE}, which the next container will use"
        ));
        Ok(0)
    }
}

fn attach(runtime: &Runtime, name: &'static str, publish: &[Published]) -> Result<Container> {
    let path = Path::new(NAMED_NAMESPACES).join(name);
    let netns = sandbox::new_named_namespace(&path, &|netns| netns.rtnl()?.raise_loopback())?;
    let network = Network::from_cache(NETWORK.as_bytes())?;
    let at = Attachment { container_id: ContainerId::new(name)?, ifname: IfName::new("eth0")? };
    let (args, capability_args) = (String::new(), Json::Null);
    let mut new = NewAttachment { network, at, args, capability_args };
    AddOptions { publish, ip: &[], mac: None }.apply(&mut new)?;
    let started = Instant::now();
    let success = runtime.attach_one(&new, &path)?;
    let took = started.elapsed();
    if success.ips.is_empty() || success.interfaces.len() != 3 {
        return Err(Error::internal(format_args!(
            "ADD of {name} has a result without address or interfaces"
        )));
    }
    Ok(Container { name, netns, new, success, took })
}

impl Container {
    fn address(&self) -> IpAddr {
        self.success.ips[0].address.addr()
    }

    fn check(&self, runtime: &Runtime) -> Result<()> {
        let NewAttachment { network, at, .. } = &self.new;
        let target = Target::cached(at, Some(self.netns.path()));
        runtime.check(&Choice::Named(network.name.clone()), &target)
    }
}

fn connection_error(address: SocketAddr) -> impl Fn(io::Error) -> Error {
    move |error| Error::internal(format_args!("cannot exchange data with {address}: {error}"))
}

fn listen(netns: &NetNs, address: SocketAddr) -> Result<TcpListener> {
    netns.run(|| TcpListener::bind(address).map_err(connection_error(address)))
}

/// Connects from a namespace to an address that leads to a listener, sends a greeting and receives it back. Returns the
/// duration.
fn exchange(from: &NetNs, listener: &TcpListener, address: SocketAddr) -> Result<Duration> {
    from.run(|| {
        let started = Instant::now();
        let echo = || {
            let mut client = TcpStream::connect_timeout(&address, TRAFFIC_LIMIT)?;
            let (mut server, _) = listener.accept()?;
            client.set_read_timeout(Some(TRAFFIC_LIMIT))?;
            server.set_read_timeout(Some(TRAFFIC_LIMIT))?;
            let mut received = [0; GREETING.len()];
            client.write_all(GREETING)?;
            server.read_exact(&mut received)?;
            server.write_all(&received)?;
            client.read_exact(&mut received)?;
            if received == GREETING {
                Ok(())
            } else {
                Err(io::Error::other("the greeting came back changed"))
            }
        };
        echo().map_err(connection_error(address))?;
        Ok(started.elapsed())
    })
}

/// Checks that DEL has removed the ports of the bridge, the interfaces in the containers, and the reservations.
fn check_removed(containers: &[Container]) -> Result<()> {
    let host = Rtnl::open()?;
    let bridge = host
        .link(BRIDGE)?
        .ok_or_else(|| Error::internal(format_args!("bridge {BRIDGE} is gone")))?;
    let mut left: Vec<String> = Vec::new();
    left.extend(host.links_with_master(bridge.index)?.into_iter().map(|link| link.name));
    left.extend(host.links_of_kind("veth")?.into_iter().map(|link| link.name));
    for container in containers {
        let link = container.netns.rtnl()?.link("eth0")?;
        left.extend(link.map(|link| format!("{} in {}", link.name, container.name)));
    }
    let reservations = fs::read_dir(RESERVATIONS)
        .map_err(|error| Error::internal(format_args!("cannot read {RESERVATIONS}: {error}")))?;
    let names =
        reservations.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    left.extend(names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")));
    if left.is_empty() {
        return Ok(());
    }
    Err(Error::internal(format_args!("DEL has left behind {}", left.join(", "))))
}

fn millis(duration: Duration) -> String {
    let hundredths = duration.as_micros() / 10;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}
