//! Names that the DNS server of a network resolves for commands of `cnibox run`. The server is dnsmasq.

use serde_json::{Value, json};

use super::Host;

/// A network with the DNS server at the bridge, over IPv4 or IPv6.
fn network(name: &str, number: u8, server: &str) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": name, "plugins": [{
            "type": "bridge", "bridge": format!("cni{number}"), "isGateway": true,
            "dns": {"nameservers": [server], "search": [format!("{name}.example")]},
            "ipam": {"type": "host-local", "ranges": [
                [{"subnet": format!("10.{number}.0.0/24")}], [{"subnet": format!("fd00:{number}::/64")}],
            ]},
        }],
    })
}

/// The global address of an interface of a named run.
fn address(host: &Host, name: &str, ifname: &str, family: &str) -> String {
    let words =
        ["exec", name, "ip", "-o", family, "addr", "show", "dev", ifname, "scope", "global"];
    let line = host.cnibox(&words).run().output();
    line.split_whitespace().nth(3).and_then(|word| word.split('/').next()).unwrap().to_owned()
}

#[test]
fn two_runs_on_two_networks_each_resolve_one_another_by_the_networks_server() {
    let host = Host::new();
    host.configure("1.conflist", &network("one", 1, "10.1.0.1"));
    host.configure("2.conflist", &network("two", 2, "fd00:2::1"));
    // A resolver of glibc, as most programs have it, then traffic to the name. Which server answers first is the order of
    // the networks.
    let script = |names: &str| {
        format!(
            ": > /run/$0; while [ ! -e /run/go ]; do sleep 0.05; done
            for name in {names}; do getent ahosts $name && ping -n -c1 -w60 $name || exit 9; done
            : > /run/$0.done; while [ ! -e /run/end ]; do sleep 0.05; done"
        )
    };
    let start = |first: &str, second: &str, name: &str, script: &str| {
        let words =
            ["run", "-n", first, "-n", second, "--name", name, "--", "sh", "-c", script, name];
        let running = host.cnibox(&words).start();
        host.world
            .eventually("the command runs", || host.world.path(format!("/run/{name}")).exists());
        running
    };
    let red = start("one", "two", "red", &script("blue blue.two.example"));
    let blue = start("two", "one", "blue", &script("red red.one.example"));
    let (red4, red6) = (address(&host, "red", "eth0", "-4"), address(&host, "red", "eth1", "-6"));
    let (blue4, blue6) =
        (address(&host, "blue", "eth1", "-4"), address(&host, "blue", "eth0", "-6"));
    let records = [("red", &red4, &red6), ("blue", &blue4, &blue6)].map(|(name, four, six)| {
        [
            format!("--host-record={name}.one.example,{four}"),
            format!("--host-record={name}.two.example,{six}"),
        ]
    });
    let logs = ["--log-queries", "--log-facility=/run/queries"];
    let records = records.as_flattened().iter().map(String::as_str);
    let options: Vec<&str> = logs.into_iter().chain(records).collect();
    let server = host.world.dnsmasq("10.1.0.1,fd00:2::1", &options);
    let is_up = || host.world.host(["ss", "-Hnul", "sport", "=", "53"]).lines().count() == 2;
    host.world.eventually("the server listens", is_up);
    host.world.write("/run/go", "");
    for name in ["red", "blue"] {
        let done = || host.world.path(format!("/run/{name}.done")).exists();
        host.world.eventually("the names are resolved and reached", done);
    }
    host.world.write("/run/end", "");
    for (running, expected) in [(red, [&blue4, &blue6]), (blue, [&red4, &red6])] {
        let outcome = running.finish();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        for address in expected {
            assert!(outcome.stdout.contains(address.as_str()), "{address}: {}", outcome.report());
        }
    }
    // Each asked the server of its first network.
    let queries = host.world.read("/run/queries");
    for (name, client) in [("blue.one.example", "10.1.0."), ("red.one.example", "fd00:2::")] {
        let is_asked = |line: &str| line.contains(name) && line.contains(&format!("from {client}"));
        assert!(queries.lines().any(is_asked), "{name} {client}: {queries}");
    }
    host.world.host(["kill", &server.pid_in_world().to_string()]);
    server.finish();
    assert_eq!(host.kept(), [""; 0]);
}
