//! `portmap`: ports of the host that lead to containers, tested with connections and with `nft`.

mod check;
mod collisions;
mod conditions;
mod del;
mod faults;
mod gc;
mod large;
mod many;
mod own;
mod refused;
mod results;
mod rules;
mod several_networks;
mod switch_over;
mod traffic;
pub mod udp;

use serde_json::{Value, json};

use crate::world::{Call, Container, World, with};

/// The network that containers are attached to before their ports are published.
fn network() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isDefaultGateway": true,
        "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "fd00:1::/64"}]]},
    })
}

/// A result as `bridge` gives it, for tests that are not about traffic.
fn result(number: u32, netns: &str) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "cni0", "mac": "02:00:00:00:00:01"},
            {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": netns},
        ],
        "ips": [
            {"address": format!("10.1.{}.{}/16", number / 250, number % 250 + 2), "interface": 1, "gateway": "10.1.0.1"},
            {"address": format!("fd00:1::{:x}/64", number + 2), "interface": 1, "gateway": "fd00:1::1"},
        ],
    })
}

/// The configuration of the plugin in the same list, without a previous result.
fn portmap(mappings: Value) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": mappings},
    })
}

/// The same as it comes from a runtime.
fn chained(config: &Value, result: &Value) -> Value {
    with(config, json!({"prevResult": result}))
}

fn tcp(host_port: u16, container_port: u16) -> Value {
    json!({"hostPort": host_port, "containerPort": container_port, "protocol": "tcp"})
}

fn udp(host_port: u16, container_port: u16) -> Value {
    json!({"hostPort": host_port, "containerPort": container_port, "protocol": "udp"})
}

/// Attaches a container to the network and publishes its ports; returns the result.
#[track_caller]
fn attach(container: &Container<'_>, config: &Value) -> Value {
    let result = container.add("bridge", &network());
    container.add("portmap", &chained(config, &result));
    result
}

/// A container without a network and an invented result.
#[track_caller]
fn publish(container: &Container<'_>, number: u32, config: &Value) {
    container.add("portmap", &chained(config, &result(number, &container.netns())));
}

/// Everything that attachments have in our tables: `ip portmap-published tcp . 8080 = …, net c1 eth0`, sorted. The links of
/// the host are not theirs, and a source names one of many.
pub fn elements(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    // Not the whole ruleset: nft 1.0.6 prints a freed text as the flags of a table with an owner.
    for (kind, plural) in [("set", "sets"), ("map", "maps")] {
        let ruleset = world.host_json(["nft", "-j", "list", plural]);
        for object in ruleset["nftables"].as_array().unwrap() {
            let Some(set) = object.get(kind) else { continue };
            let name = set["name"].as_str().unwrap();
            if name == "portmap-localnet" || name.starts_with("portmap-sources-") {
                continue;
            }
            for element in set["elem"].as_array().into_iter().flatten() {
                let (key, data) = match element.as_array() {
                    Some(pair) => (&pair[0], pair[1].to_string()),
                    None => (element, String::new()),
                };
                let family = set["family"].as_str().unwrap();
                let comment = key["elem"]["comment"].as_str().unwrap_or("nobody");
                let key = &key["elem"]["val"];
                lines.push(format!("{family} {name} {key} = {data}, {comment}"));
            }
        }
    }
    lines.sort();
    lines
}

/// The number of elements with a line that begins like this.
fn count(world: &World, start: &str) -> usize {
    elements(world).iter().filter(|line| line.starts_with(start)).count()
}

/// Two neighbours of the host: `outside` (192.0.2.2, fd00:2::2) and `beyond` (198.51.100.2, fd00:3::2). The host routes
/// between them. Forwarding needs link-local addresses at once, so duplicate address detection is off.
pub fn neighbours(world: &World) -> [Container<'_>; 2] {
    let [outside, beyond] = ["outside", "beyond"].map(|name| world.container(name));
    for (container, number, v4, v6) in
        [(&outside, 0, "192.0.2", "fd00:2:"), (&beyond, 1, "198.51.100", "fd00:3:")]
    {
        let netns = container.netns();
        world.host([
            "sh",
            "-ec",
            &format!(
                "ip link add wan{number} type veth peer name wan netns {netns}
                 echo 0 >/proc/sys/net/ipv6/conf/wan{number}/accept_dad
                 ip address add {v4}.1/24 dev wan{number}
                 ip address add {v6}:1/64 dev wan{number} nodad
                 ip link set wan{number} up"
            ),
        ]);
        container.exec([
            "sh",
            "-ec",
            &format!(
                "ip link set lo up
                 echo 0 >/proc/sys/net/ipv6/conf/wan/accept_dad
                 ip address add {v4}.2/24 dev wan
                 ip address add {v6}:2/64 dev wan nodad
                 ip link set wan up
                 ip route add default via {v4}.1
                 ip route add default via {v6}:1"
            ),
        ]);
    }
    [outside, beyond]
}

/// Lets the container answer on a port of one protocol, in both families, with its name and who it takes the asker for.
pub fn serve(container: &Container<'_>, protocol: &str, port: u16) {
    // A close before all data is read resets the connection, and the reply can be lost.
    let answer = format!("SYSTEM:read line; echo {} $SOCAT_PEERADDR", container.name);
    for version in [4, 6] {
        let only = if version == 6 { ",ipv6only=1" } else { "" };
        let listen = match protocol {
            "tcp" => format!("TCP{version}-LISTEN:{port},fork,reuseaddr{only}"),
            _ => format!("UDP{version}-RECVFROM:{port},fork,reuseaddr{only}"),
        };
        // It ends with the test: processes of a world end with it.
        container.tool(["socat", &listen, &answer]).start();
    }
    let filter = format!("sport = :{port}");
    let socket = if protocol == "tcp" { "-tl" } else { "-ua" };
    container.world.eventually("both servers listen", || {
        container.exec(["ss", "-Hn", socket, &filter]).lines().count() == 2
    });
}

/// Asks from a container, or (with `None`) from the host. Nothing is a line that says so.
pub fn ask(world: &World, netns: Option<&str>, protocol: &str, address: &str, port: u16) -> String {
    ask_within(ANSWER_LIMIT_S, world, netns, protocol, address, port)
}

/// The same where no answer is expected.
pub fn ask_in_vain(
    world: &World,
    netns: Option<&str>,
    protocol: &str,
    address: &str,
    port: u16,
) -> String {
    ask_within(SILENCE_LIMIT_S, world, netns, protocol, address, port)
}

/// Reached only by a test that fails.
const ANSWER_LIMIT_S: &str = "60";
const SILENCE_LIMIT_S: &str = "2";

fn ask_within(
    limit_s: &str,
    world: &World,
    netns: Option<&str>,
    protocol: &str,
    address: &str,
    port: u16,
) -> String {
    let call = match protocol {
        "tcp" => {
            let host = if address.contains(':') { format!("[{address}]") } else { address.into() };
            let target = format!("TCP:{host}:{port},connect-timeout={limit_s}");
            // A server of TCP ends the connection after its answer, which takes long on a busy host.
            let words = ["socat", "-t", ANSWER_LIMIT_S, "-T", ANSWER_LIMIT_S, "-", &target];
            world.tool(&words, netns).stdin("hello\n")
        }
        _ => asking_by_udp(limit_s, world, netns, address, port, 0),
    };
    match call.run().stdout.trim() {
        "" => "nothing".into(),
        text => without_zeros(text),
    }
}

/// `c1 [fd00:0002:0000:…:0002]` as others write it: `c1 fd00:2::2`.
fn without_zeros(answer: &str) -> String {
    let words = answer.split(' ').map(|word| {
        let address = word.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        address.map_or_else(|_| word.to_owned(), |address| address.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Asks from the port `own_port`, or (with 0) from any.
fn asking_by_udp<'w>(
    limit_s: &str,
    world: &'w World,
    netns: Option<&str>,
    address: &str,
    port: u16,
    own_port: u16,
) -> Call<'w> {
    let [port, own_port] = [port, own_port].map(|number| number.to_string());
    world.tool(&["python3", "-c", UDP_CLIENT, address, &port, &own_port, limit_s], netns)
}

/// It ends with the first answer. socat would wait for more, since UDP has no end.
const UDP_CLIENT: &str = "import socket, sys
address, port, own_port, limit_s = sys.argv[1], *map(int, sys.argv[2:])
family = socket.AF_INET6 if ':' in address else socket.AF_INET
client = socket.socket(family, socket.SOCK_DGRAM)
client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
client.bind(('', own_port))
client.settimeout(limit_s)
client.connect((address, port))
client.send(b'hello\\n')
print(client.recv(4096).decode())";

/// The address of a result without its prefix length.
fn address(result: &Value, index: usize) -> String {
    let text = result["ips"][index]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}
