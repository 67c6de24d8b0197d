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
        ("gc -n old", 0, ""),
        ("gc mynett", 1, "there is no network mynett; did you mean mynet?"),
        ("gc nosuch", 1, "there is no network nosuch\n"),
        ("reconcile mynett", 1, "there is no network mynett; did you mean mynet?"),
        ("ps -a", 0, "222faeb47443aa"),
        ("ps ls", 1, "no network and no attached container is ls"),
        ("help ps", 0, "Usage: cnibox attachments"),
        ("help network create", 0, "Usage: cnibox networks create"),
        ("doctor -n", 2, "--dry-run"),
        ("ipam ls mynet", 1, "there is no network mynet with addresses of host-local"),
        ("networks create lan9 -dveth --subnet 10.209.0.0/24", 0, "lan9\n"),
        ("networks create lan8 -d=veth --subnet 10.208.0.0/24", 0, "lan8\n"),
        ("networks rm lan9 lan8", 0, "lan9\n"),
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
        ("man ps", 0, "cnibox\\-attachments \\- "),
        ("man network create", 0, "cnibox\\-networks\\-create \\- Write"),
        ("man help", 0, "cnibox\\-help \\- Show the manual"),
        ("man network", 0, "cniVersion"),
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
        ("--frobnicate", "--frobnicate; there is -h, --help; cnibox --help"),
        ("networks create a --subnett=10.0.0.0/24", "did you mean --subnet?"),
        ("add mynet -- -x --create", "--create; it takes no more arguments"),
    ] {
        check(&world, line, 2, part);
    }
}

#[test]
fn a_container_is_named_by_its_namespace_or_its_id() {
    let world = world();
    for (line, status, part) in [
        ("check web", 0, ""),
        ("check mynet db -i lo", 0, ""),
        ("check 222", 0, ""),
        ("check nosuch", 1, "cannot check container nosuch: no such attachment"),
        ("check old", 2, "no container is old"),
        ("del mynet nosuch", 1, "no such attachment"),
        ("del --container-id nosuch", 1, "no such attachment"),
        ("del nosuch", 1, "cannot detach container nosuch: no such attachment"),
        ("del /run/netns/nosuch", 1, "no such attachment"),
        ("del nosuch --ignore", 0, ""),
        ("del mynet", 2, "no container is mynet"),
        ("del mynet --ignore", 2, "no container is mynet"),
        ("del 222", 1, "no container is 222; did you mean 222faeb47443aa?"),
        ("del --container-id 222faeb47443aa", 0, ""),
        ("del --container-id 222faeb47443aa", 1, "no such attachment"),
        ("del --ignore --container-id 222faeb47443aa", 0, ""),
        ("del web --delete", 0, ""),
        ("del mynet web --delete", 1, "no such attachment"),
    ] {
        check(&world, line, status, part);
    }
    check(&world, "attachments --json", 0, "\"attachments\": []");
    assert!(!world.path("/run/netns/web").exists());
}

#[test]
fn the_beginning_of_an_id_detaches_nothing() {
    let world = world();
    let process = world.tool(&["sleep", "600"], None).start();
    let pid = process.pid_in_world();
    world.container("c1");
    world.container("cafe");
    let attach = |id: &str, ifname: &str| {
        let plugins = json!([{"type": "bridge", "bridge": "br0"}]);
        let list = json!({"cniVersion": "1.0.0", "name": ifname, "plugins": plugins});
        world.write(&format!("/run/net.d/50-{ifname}.conflist"), list.to_string());
        let add = ["add", ifname, "c1", "--container-id", id, "-i", ifname];
        cnibox(&world, &add).run().success();
    };
    attach("pod10", "net1");
    attach(&format!("{pid}beef"), "net2");
    attach("cafe0123", "net3");
    let before = world.host(["sh", "-c", "ls /var/lib/cni/results; ip -n c1 -br link"]);
    let meant = |word: &str, id: &str| format!("no container is {word}; did you mean {id}?");
    for (line, status, part) in [
        ("del --container-id pod1", 1, &*meant("pod1", "pod10")),
        ("del --container-id pod1 --ignore", 0, &meant("pod1", "pod10")),
        ("del pod1", 1, &meant("pod1", "pod10")),
        (&format!("del {pid}"), 1, &meant(&pid.to_string(), &format!("{pid}beef"))),
        (&format!("del net2 {pid} -i eth5"), 1, ""),
        (&format!("check {pid}"), 1, "no container is"),
        ("del cafe", 1, &meant("cafe", "cafe0123")),
        ("del net3 cafe --ignore", 0, ""),
        ("attachments cafe", 1, "no network and no attached container is cafe"),
        ("attachments cafe0", 0, "cafe0123"),
        ("del net3 cafe --delete", 0, ""),
    ] {
        check(&world, line, status, part);
    }
    assert!(!world.path("/run/netns/cafe").exists());
    let after = world.host(["sh", "-c", "ls /var/lib/cni/results; ip -n c1 -br link"]);
    assert_eq!(before, after);
}

#[test]
fn an_entry_that_cannot_be_read_is_no_absence() {
    let world = world();
    let entry = world.host(["sh", "-c", "ls /var/lib/cni/results/mynet-cnitool-*-lo"]);
    let entry = entry.trim();
    let id = entry.split("mynet-").nth(1).unwrap().trim_end_matches("-lo").to_owned();
    world.host(["sh", "-c", &format!("cp {entry} /run/whole; truncate -s 100 {entry}")]);
    let unusable = format!("cannot use cache entry {entry}: ");
    for (line, verb) in [
        ("del web", "detach"),
        ("del web --ignore", "detach"),
        ("del web --delete", "detach"),
        ("del web --delete --ignore", "detach"),
        ("check web", "check"),
    ] {
        check(&world, line, 1, &format!("cannot {verb} container "));
        check(&world, line, 1, &unusable);
    }
    check(&world, &format!("check --container-id {id}"), 1, &unusable);
    assert!(world.path("/run/netns/web").exists());
    check(&world, "networks rm mynet", 1, &unusable);
    assert!(world.path("/run/net.d/10-mynet.conflist").exists());
    // Each other container has its own entry.
    check(&world, "check 222", 0, "");
    check(&world, "del db --delete", 0, "");
    check(&world, "del --container-id nosuch --ignore", 0, "");
    for number in 1..12 {
        world.host(["cp", "/run/whole", entry]);
        let number = number.to_string();
        let del = cnibox(&world, &["del", "web", "--ignore"]).env("CNIBOX_FAIL_FILE", &number);
        let outcome = del.run();
        let is_gone = !world.path(entry).exists();
        assert!(outcome.status != 0 || is_gone, "file {number}: {}", outcome.report());
        if is_gone {
            cnibox(&world, &["add", "mynet", "web", "-i", "lo"]).run().success();
            world.host(["cp", entry, "/run/whole"]);
        }
    }
    for ignore in ["", " --ignore"] {
        world.host(["truncate", "-s", "100", entry]);
        // The record has the list.
        check(&world, &format!("del --container-id {id}{ignore}"), 0, "going on without it");
        assert!(!world.path(entry).exists());
        cnibox(&world, &["add", "mynet", "web", "-i", "lo"]).run().success();
    }
    world.host(["truncate", "-s", "100", entry]);
    check(&world, "del mynet web -i lo --delete", 0, "going on without it");
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
    for line in ["check 222", "attachments 222", "exec 222 true"] {
        check(&world, line, 1, "222 names several containers, such as 222b and 222faeb47443aa");
    }
    check(&world, "del 222", 1, "no container is 222; did you mean 222b?");
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

/// The commands in the help, and the actions of each.
fn commands(world: &World) -> Vec<Vec<String>> {
    let words = |args: &[&str], from: &str, to: &str| -> Vec<String> {
        let help = cnibox(world, args).run().output();
        let lines = help.lines().skip_while(|line| *line != from).take_while(|line| *line != to);
        let lines = lines.filter_map(|line| line.strip_prefix("  "));
        let words = lines.filter_map(|line| line.split(' ').next());
        words.filter(|word| !word.is_empty() && *word != "help").map(String::from).collect()
    };
    let mut commands = Vec::new();
    for name in words(&["--help"], "Networks of containers:", "Plugins:") {
        for action in words(&[&name, "--help"], "Commands:", "") {
            commands.push(vec![name.clone(), action]);
        }
        commands.push(vec![name]);
    }
    commands
}

/// The files of the host that a wrong command line could change, and the attachments.
fn state(world: &World) -> String {
    world.host([
        "sh",
        "-c",
        "ls -R /run/net.d /run/netns /run/plugins /run/cnibox /var/lib/cni; ip -br link; ls",
    ])
}

#[test]
fn a_flag_takes_no_value() {
    let world = world();
    let before = state(&world);
    let mut count = 0;
    for command in commands(&world) {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = cnibox(&world, &[&command[..], &["--help"]].concat()).run().output();
        let usage = help.lines().next().unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  -")) {
            let names = line.split([' ', ',']).filter(|word| !word.is_empty());
            let names: Vec<&str> = names.take_while(|word| word.starts_with('-')).collect();
            if usage.contains(&format!("[{} <", names[0])) {
                continue;
            }
            for name in names {
                for operands in [&[][..], &["mynet"]] {
                    let flag = format!("{name}=false");
                    // What follows the first operand is of another program.
                    if !operands.is_empty() && ["run", "exec", "completion"].contains(&command[0]) {
                        continue;
                    }
                    let line = [&command[..], operands, &[&flag]].concat().join(" ");
                    check(&world, &line, 2, &format!("{name} takes no value"));
                    count += 1;
                }
            }
        }
    }
    assert!(count > 150, "{count}");
    assert_eq!(before, state(&world));
}

#[test]
fn a_command_is_the_first_word() {
    let world = world();
    let before = state(&world);
    for command in commands(&world) {
        let command = command.join(" ");
        for first in ["--dry-run", "-n", "--json", "--force=false", "-v"] {
            check(&world, &format!("{first} {command} web"), 2, "Unrecognized argument: ");
        }
        check(&world, &format!("--help {command}"), 0, "Usage: cnibox COMMAND");
        check(&world, &format!("nosuch {command}"), 127, "there is no command or plugin nosuch");
    }
    for action in ["create", "rm", "inspect", "export", "remove", "del", "show"] {
        for first in ["networks ls", "network ls", "networks list", "networks ls -q", "ps", "list"]
        {
            check(&world, &format!("{first} {action} mynet"), 2, "Unrecognized argument: ");
        }
    }
    assert_eq!(before, state(&world));
}
