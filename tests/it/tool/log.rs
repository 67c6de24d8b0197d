//! The log of calls: CNIBOX_LOG and /etc/cnibox/cnibox.conf.

use serde_json::json;

use super::cnibox;
use crate::world::World;

const FILE: &str = "info,file:/run/cnibox.log";

/// The lines of the log without time and duration.
fn lines(text: &str) -> Vec<String> {
    let is_kept = |word: &&str| !word.starts_with("time=") && !word.starts_with("ms=");
    let line = |line: &str| line.split(' ').filter(is_kept).collect::<Vec<_>>().join(" ");
    text.lines().map(line).collect()
}

#[test]
fn each_call_is_a_line_with_its_outcome() {
    let world = World::new();
    let container = world.container("c1");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"});
    let call = |verb: &str| container.call("loopback", verb, &config).env("CNIBOX_LOG", FILE);
    call("ADD").run().success();
    call("DEL")
        .env("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .run()
        .silence();
    call("CHECK").run().error();
    call("ADD").stdin("{").run().error();
    let text = world.read("/run/cnibox.log");
    let found = lines(&text);
    assert_eq!(found[0], "verb=ADD plugin=loopback network=net container=c1 ifname=eth0 code=0");
    assert!(
        found[1].ends_with("code=0 trace=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        "{text}"
    );
    assert!(
        found[2].contains("verb=CHECK")
            && found[2].ends_with("code=999 error=\"loopback interface is down\""),
        "{text}"
    );
    assert!(found[3].starts_with("verb=ADD plugin=loopback code=6 error="), "{text}");
    assert_eq!(found.len(), 4, "{text}");
    assert_eq!(world.host(["stat", "-c", "%a", "/run/cnibox.log"]), "600\n");
    for line in text.lines() {
        let milliseconds =
            line.split(" ms=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(milliseconds.parse::<f64>().unwrap() > 0.0, "{line}");
        let time = line.strip_prefix("time=").unwrap().split(' ').next().unwrap();
        world.host(["date", "--date", time]);
    }
}

#[test]
fn the_level_error_has_only_calls_that_fail() {
    let world = World::new();
    let container = world.container("c1");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"});
    let call = |verb: &str| container.call("loopback", verb, &config).env("CNIBOX_LOG", "error");
    assert_eq!(call("ADD").run().stderr, "");
    call("DEL").run().silence();
    let outcome = call("CHECK").run();
    assert!(outcome.stderr.starts_with("verb=CHECK plugin=loopback"), "{}", outcome.report());
}

#[test]
fn the_host_configures_the_log_and_the_environment_overrides_it() {
    let world = World::new();
    let container = world.container("c1");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"});
    world.host(["mkdir", "-p", "/etc/cnibox"]);
    world.write("/etc/cnibox/cnibox.conf", "# calls\n log = info,file:/run/host.log\n");
    container.add("loopback", &config);
    container.call("loopback", "DEL", &config).env("CNIBOX_LOG", "off").run().silence();
    assert_eq!(world.read("/run/host.log").lines().count(), 1);
    let outcome = container.call("loopback", "ADD", &config).env("CNIBOX_LOG", "loud").run();
    assert!(outcome.stderr.contains("cannot log: \"loud\" is not LEVEL"), "{}", outcome.report());
    assert_eq!(outcome.status, 0, "{}", outcome.report());
}

#[test]
fn a_log_that_cannot_be_written_does_no_harm() {
    let world = World::new();
    let container = world.container("c1");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"});
    for place in ["file:/run/missing/log", "file:/run", "syslog"] {
        let call = container.call("loopback", "ADD", &config);
        call.env("CNIBOX_LOG", &format!("info,{place}")).run().success();
    }
}

#[test]
fn syslog_gets_a_datagram() {
    let world = World::new();
    let container = world.container("c1");
    let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"});
    world.host(["mount", "-t", "tmpfs", "tmpfs", "/dev"]);
    let server = world
        .tool(&["socat", "-u", "UNIX-RECV:/dev/log", "OPEN:/run/syslog,creat,append"], None)
        .start();
    world.eventually("the server of syslog listens", || world.path("/dev/log").exists());
    container.call("loopback", "ADD", &config).env("CNIBOX_LOG", "info,syslog").run().success();
    world.eventually("the record arrives", || {
        let text = std::fs::read_to_string(world.path("/run/syslog")).unwrap_or_default();
        text.starts_with("<30>cnibox[") && text.contains("]: verb=ADD plugin=loopback network=net")
    });
    world.host(["kill", &server.pid_in_world().to_string()]);
    server.finish();
}

#[test]
fn the_runtime_logs_each_plugin_of_a_list() {
    let world = World::new();
    let network = json!({"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "loopback"}, {"type": "tuning"}]});
    world.write("/run/two.conflist", network.to_string());
    world.host(["ip", "netns", "add", "web"]);
    let args = ["add", "/run/two.conflist", "web", "-i", "lo", "--container-id", "c1"];
    cnibox(&world, &args).env("CNIBOX_LOG", FILE).env("CNI_PATH", "/run/plugins").run().output();
    let found = lines(&world.read("/run/cnibox.log"));
    assert_eq!(
        found,
        [
            "verb=ADD plugin=loopback network=two container=c1 ifname=lo code=0",
            "verb=ADD plugin=tuning network=two container=c1 ifname=lo code=0",
        ]
    );
}
