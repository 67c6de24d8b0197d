//! A FIFO, a device or a directory in place of a regular file is refused at once; the plugin does not read it.

use std::fs;
use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use crate::world::{Container, Outcome, World, with};

/// The file in its place. (A link to a device: a new one cannot be made without privileges.)
const INSTEAD: [&str; 4] = ["FIFO", "device", "socket", "directory"];
/// In seconds. A call takes milliseconds; the shortest wait of a plugin for a lock is 10 s.
const LIMIT: &str = "60";

/// A file that a plugin opens, and the verbs that open it.
struct Place {
    plugin: &'static str,
    config: Value,
    path: &'static str,
    verbs: &'static [&'static str],
}

fn host_local(more: Value) -> Value {
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": "/run/nets", "subnet": "10.1.0.0/24"},
    });
    with(&config, more)
}

fn places() -> Vec<Place> {
    let place = |plugin, config, path, verbs| Place { plugin, config, path, verbs };
    let resolv_conf = host_local(json!({"ipam": {"resolvConf": "/run/resolv.conf"}}));
    let tuning = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tuning", "dataDir": "/run/tuning",
        "mtu": 1400, "sysctl": {"net.core.somaxconn": "500"}, "prevResult": {"cniVersion": "1.1.0"},
    });
    let flannel = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "flannel", "dataDir": "/run/scratch",
        "subnetFile": "/run/subnet.env",
    });
    let two_sets = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]);
    let dual_stack = host_local(json!({"ipam": {"subnet": null, "ranges": two_sets}}));
    let host_device =
        json!({"cniVersion": "1.1.0", "name": "net", "type": "host-device", "device": "card"});
    vec![
        place(
            "host-local",
            host_local(json!({})),
            "/run/nets/net/lock",
            &["ADD", "DEL", "CHECK", "STATUS"],
        ),
        place("host-local", host_local(json!({})), "/run/nets/net/last_reserved_ip.0", &["ADD"]),
        place("host-local", dual_stack, "/run/nets/net/last_reserved_ip.1", &["ADD"]),
        place("host-device", host_device, "/run/cni/host-device/c1:lo", &["ADD", "DEL", "STATUS"]),
        place("host-local", resolv_conf, "/run/resolv.conf", &["ADD"]),
        place("tuning", tuning.clone(), "/run/tuning/c1_lo.json", &["ADD", "DEL"]),
        place("tuning", tuning, "/etc/cni/tuning/allowlist.conf", &["ADD"]),
        place("flannel", flannel.clone(), "/run/subnet.env", &["ADD", "STATUS"]),
        place("flannel", flannel, "/run/scratch/c1", &["ADD", "DEL"]),
    ]
}

fn world() -> World {
    let world = World::new();
    world.write(
        "/run/subnet.env",
        "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
    );
    world
}

fn plant(world: &World, what: &str, path: &str) {
    let dir = path.rsplit_once('/').unwrap().0;
    world.host(["mkdir", "-p", dir]);
    world.host(["rm", "-f", path]);
    match what {
        "FIFO" => drop(world.host(["mkfifo", path])),
        "device" => drop(world.host(["ln", "-s", "/dev/zero", path])),
        "directory" => drop(world.host(["mkdir", path])),
        _ => drop(UnixListener::bind(world.path(path)).unwrap()),
    }
}

/// Runs the call under a time limit; timeout(1) ends with 124 when it is reached.
fn within_limit(container: &Container<'_>, plugin: &str, verb: &str, config: &Value) -> Outcome {
    let call = container.call(plugin, verb, config).env("CNI_IFNAME", "lo");
    call.under(&["timeout", LIMIT]).run()
}

/// Why a call of the place is not right.
fn problem(place: &Place, what: &str, verb: &str) -> Option<String> {
    let Place { plugin, config, path, .. } = place;
    let world = world();
    let c1 = world.container("c1");
    plant(&world, what, path);
    let outcome = within_limit(&c1, plugin, verb, config);
    if outcome.status != 1 {
        return Some(format!("{what}: {}", outcome.report()));
    }
    let error = outcome.error_object();
    let said = format!("{}: {}", error.msg, error.details);
    let reason = format!("it is a {what}, not a regular file");
    (!(said.contains(path) && said.contains(&reason)))
        .then(|| format!("{what}: {}", outcome.report()))
}

#[test]
fn a_file_that_is_not_regular_is_refused_at_once() {
    let places = places();
    let problems: Vec<String> = places
        .iter()
        .flat_map(|place| INSTEAD.map(|what| (place, what)))
        .flat_map(|(place, what)| {
            place.verbs.iter().filter_map(move |verb| problem(place, what, verb))
        })
        .collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn a_fifo_with_the_name_of_an_address_is_not_read_and_keeps_the_address() {
    for what in INSTEAD {
        let world = world();
        let c1 = world.container("c1");
        plant(&world, what, "/run/nets/net/10.1.0.2");
        for verb in ["ADD", "CHECK", "STATUS", "DEL"] {
            let outcome = within_limit(&c1, "host-local", verb, &host_local(json!({})));
            assert_eq!(outcome.status, 0, "{what}: {}", outcome.report());
            let is_right = verb != "ADD" || outcome.stdout.contains("10.1.0.3/24");
            assert!(is_right, "{what}: {}", outcome.report());
        }
    }
}

/// The owners can be lost at any time, and so can their last addresses. Neither holds up a call.
#[test]
fn a_fifo_in_place_of_the_owners_costs_time_only() {
    for what in INSTEAD {
        for path in ["/run/nets/.cnibox/net~owners", "/run/nets/.cnibox/net~sticky"] {
            let world = world();
            let c1 = world.container("c1");
            plant(&world, what, path);
            let config = host_local(json!({"ipam": {"sticky": true}}));
            for verb in ["ADD", "CHECK", "STATUS", "DEL", "ADD"] {
                let outcome = within_limit(&c1, "host-local", verb, &config);
                assert_eq!(outcome.status, 0, "{what} {path}: {}", outcome.report());
                let is_right = verb != "ADD" || outcome.stdout.contains("10.1.0.");
                assert!(is_right, "{what} {path}: {}", outcome.report());
            }
        }
    }
}

#[test]
fn nothing_is_written_through_a_symbolic_link() {
    for (link, before) in [("last_reserved_ip.0", Some("10.1.0.77")), ("lock", None)] {
        let world = world();
        let c1 = world.container("c1");
        let target = "/run/target";
        before.iter().for_each(|content| world.write(target, content));
        let path = format!("/run/nets/net/{link}");
        world.host(["mkdir", "-p", "/run/nets/net"]);
        world.host(["ln", "-s", target, &path]);
        let outcome = within_limit(&c1, "host-local", "ADD", &host_local(json!({})));
        outcome.fails(5, &[&path, "it is a symbolic link, not a regular file"]);
        let after = fs::read_to_string(world.path(target)).ok();
        assert_eq!(after.as_deref(), before, "{link}");
    }
}

#[test]
fn a_file_that_is_only_read_may_be_a_symbolic_link() {
    let world = world();
    let c1 = world.container("c1");
    world.write("/run/real.conf", "nameserver 10.0.0.53\n");
    world.host(["ln", "-s", "/run/real.conf", "/run/resolv.conf"]);
    let config = host_local(json!({"ipam": {"resolvConf": "/run/resolv.conf"}}));
    let result = c1.add("host-local", &config);
    assert_eq!(result["dns"], json!({"nameservers": ["10.0.0.53"]}));
}
