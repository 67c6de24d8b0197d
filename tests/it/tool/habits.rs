//! What hands type after years of podman and ip: the words work, or the error names those that do.

use serde_json::json;

use crate::world::{Call, World};

/// A host with the networks `mynet` and `old`, and the containers `web` and, under an id of its own, `db`.
fn world() -> World {
    let world = World::new();
    let list = |name: &str, version: &str| {
        json!({"cniVersion": version, "name": name, "plugins": [{"type": "loopback"}]}).to_string()
    };
    world.write("/run/net.d/10-mynet.conflist", list("mynet", "1.1.0"));
    world.write("/run/net.d/20-old.conflist", list("old", "1.0.0"));
    for name in ["web", "db"] {
        world.container(name);
    }
    for args in [
        &["add", "mynet", "web", "-i", "lo"][..],
        &["add", "mynet", "db", "-i", "lo", "--container-id", "222faeb47443aa"],
    ] {
        cnibox(&world, args).run().success();
    }
    world
}

fn cnibox<'w>(world: &'w World, args: &[&str]) -> Call<'w> {
    super::cnibox(world, args).env("NETCONFPATH", "/run/net.d").env("CNI_PATH", "/run/plugins")
}

/// Runs the words, and compares the exit code and a part of both streams. An empty part is any text.
fn check(world: &World, line: &str, status: u8, part: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let outcome = cnibox(world, &words).run();
    assert_eq!(i32::from(status), outcome.status, "{line}: {}", outcome.report());
    let printed = [outcome.stdout.as_str(), &outcome.stderr].concat();
    assert!(printed.contains(part), "{line}: {part:?} is not in {}", outcome.report());
}

#[test]
fn words_of_other_programs_work() {
    let world = world();
    for (line, status, part) in [
        ("networks ls", 0, "10-mynet.conflist"),
        ("network ls -q", 0, "mynet\nold\n"),
        ("networks list --json", 0, "\"cniVersion\""),
        ("networks ls --format json", 0, "\"cniVersion\""),
        ("networks --format=json", 0, "\"cniVersion\""),
        ("networks inspect old mynet", 0, "\"name\": \"mynet\""),
        ("networks inspect nosuch", 1, "no net configuration with name \"nosuch\""),
        ("help networks create", 0, "Usage: cnibox networks create"),
        ("status", 0, "mynet: ready\n"),
        ("status", 0, "no plugin of old was asked: cniVersion 1.0.0 has no STATUS"),
        ("ps", 0, "222faeb47443aa"),
        ("attachments mynet", 0, "222faeb47443aa"),
        ("attachments 222", 0, "222faeb47443aa"),
        ("attachments web", 0, "/run/netns/web"),
        ("attachments", 0, "  222faeb47443aa  "),
        ("attachments nosuch", 1, "no network and no attached container is nosuch"),
        ("ipam ls", 0, "ADDRESS"),
        ("gc -n", 0, ""),
        ("reconcile -n", 0, ""),
        ("-v", 0, "cnibox "),
        ("exec 222fa ip -br link", 0, "lo"),
        ("run -nmynet:lo true", 0, ""),
        ("run --network=mynet:lo --hostname=web2 hostname", 0, "web2\n"),
        ("run --hostname web2 echo --a=b -nx", 0, "--a=b -nx\n"),
        (
            "networks create lan --subnet=10.200.0.0/24 --ip-range 10.200.0.64/26 -d veth",
            0,
            "lan\n",
        ),
        ("networks inspect lan", 0, "\"rangeStart\": \"10.200.0.65\""),
        ("networks create lan2 --ip-range 10.200.1.0/24", 2, "is in no subnet of --subnet"),
        ("networks remove lan", 0, "lan\n"),
        (
            "networks create far --type macvlan --parent nosuch --subnet 10.7.0.0/24",
            0,
            "no link nosuch",
        ),
        ("explain mynet", 0, "loopback: nothing to do"),
        ("man run", 0, "cnibox\\-run \\- Run a command"),
    ] {
        check(&world, line, status, part);
    }
}

#[test]
fn an_unknown_word_gets_the_valid_ones() {
    let world = world();
    for (line, part) in [
        ("networks prune", "prune; there is create, rm, inspect, export; cnibox networks --help"),
        ("networks creat", "creat; did you mean create?"),
        ("networks create a --label x=y", "--label; there is --subnet, --gateway"),
        ("networks create a --ipv6", "--ipv6; there is --subnet, --gateway"),
        ("networks create", "cnibox networks create needs:\n  name "),
        ("networks --filter x", "--filter; there is --json, -q, --quiet"),
        ("gc --dry-rum", "--dry-rum; did you mean --dry-run?"),
        ("version x", "Unrecognized argument: x; it takes no more arguments"),
        ("add", "  network           the network's name"),
        ("ipam", "list, leaks, release or reserve"),
        ("--frobnicate", "--frobnicate; there is --help; cnibox --help"),
    ] {
        check(&world, line, 2, part);
    }
}

#[test]
fn a_container_is_named_by_its_namespace_or_the_beginning_of_its_id() {
    let world = world();
    for (line, status, part) in [
        ("check web", 0, ""),
        ("check mynet db -i lo", 0, ""),
        ("check 222", 0, ""),
        ("check nosuch", 2, "no container is nosuch"),
        ("del mynet nosuch", 1, "no such attachment"),
        ("del --container-id nosuch", 1, "no such attachment"),
        ("del nosuch", 2, "no container is nosuch"),
        ("del --container-id 222", 0, ""),
        ("del --container-id 222", 1, "no such attachment"),
        ("del --ignore --container-id 222", 0, ""),
        ("del web --delete", 0, ""),
        ("del mynet web --delete", 1, "no such attachment"),
    ] {
        check(&world, line, status, part);
    }
    check(&world, "attachments --json", 0, "\"attachments\": []");
    assert!(!world.path("/run/netns/web").exists());
}

#[test]
fn an_error_says_what_is_wrong() {
    let world = world();
    world.write("/run/net.d/00-empty.conflist", "");
    check(
        &world,
        "networks",
        0,
        "cannot read /run/net.d/00-empty.conflist: cannot read JSON: it is empty",
    );
    check(&world, "lint", 1, "00-empty.conflist:1:1: cannot read JSON: it is empty");
    let user = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    let outcome = cnibox(&world, &["networks", "create", "mine"]).under(&user).run();
    assert_eq!(outcome.status, 1, "{}", outcome.report());
    let error = "cannot create network mine: it needs root: CAP_NET_ADMIN";
    assert!(outcome.stderr.contains(error), "{}", outcome.report());
}

#[test]
fn an_ambiguous_beginning_is_refused() {
    let world = world();
    world.container("other");
    let add = ["add", "mynet", "other", "-i", "lo", "--container-id", "222b"];
    cnibox(&world, &add).run().success();
    for line in ["del 222", "check 222", "attachments 222", "exec 222 true"] {
        check(&world, line, 1, "222 names several containers, such as 222b and 222faeb47443aa");
    }
    check(&world, "del 222b", 0, "");
    check(&world, "check 222", 0, "");
}

#[test]
fn a_port_that_a_program_of_the_host_uses_is_refused_without_force() {
    let world = world();
    let list = json!({"cniVersion": "1.0.0", "name": "web",
        "plugins": [{"type": "loopback", "capabilities": {"portMappings": true}}]});
    world.write("/run/net.d/30-web.conflist", list.to_string());
    world.container("other");
    let server = ["socat", "TCP4-LISTEN:9090,bind=127.0.0.1,fork", "EXEC:cat"];
    let server = world.tool(&server, None).start();
    // 9090 in hexadecimal.
    let is_up = || world.host(["cat", "/proc/net/tcp"]).contains(":2382 ");
    world.eventually("the server listens", is_up);
    let pid = server.pid_in_world();
    let refusal =
        format!("cannot publish tcp port 9090: the program socat, process {pid}, uses it: --force");
    for (line, status, part) in [
        ("run -n web:lo -p 9090:80 true", 1, &*refusal),
        ("run -n web:lo -p 9089-9091:80-82 true", 1, &refusal),
        ("add web db -i lo -p 9090:80", 1, &refusal),
        ("run -n web:lo -p 9090:80/udp true", 0, ""),
        ("run -n web:lo -p 10.0.0.1:9090:80 true", 0, ""),
        ("run --force -n web:lo -p 9090:80 true", 0, ""),
        ("add web other -i lo -p 9090:80 --force", 0, "cniVersion"),
    ] {
        check(&world, line, status, part);
    }
}

#[test]
fn a_command_does_not_get_the_dns_server_on_the_loopback_of_the_host() {
    let world = world();
    world.write("/run/stub.conf", "nameserver 127.0.0.53\noptions edns0\n");
    world.host(["mount", "--bind", "/run/stub.conf", "/etc/resolv.conf"]);
    let cat = "run -n mynet:lo cat /etc/resolv.conf";
    check(&world, cat, 0, "the command reaches no DNS server");
    world.write("/run/systemd/resolve/resolv.conf", "nameserver 10.7.7.7\n");
    check(&world, cat, 0, "nameserver 10.7.7.7\n");
    check(
        &world,
        "run -n mynet:lo --dns 10.8.8.8 cat /etc/resolv.conf",
        0,
        "nameserver 10.8.8.8\n",
    );
    check(&world, "run cat /etc/resolv.conf", 0, "nameserver 127.0.0.53\n");
}
