//! `cnibox metrics`: the numbers, as a parser of OpenMetrics reads them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::ipam::host::Host;
use crate::world::World;

/// Debian's python3-prometheus-client reads the text and prints `NAME{LABEL=VALUE,…} NUMBER` for each sample, and sums in
/// microseconds.
const PARSER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    expected = 'histogram' if family.name == 'cnibox_call_seconds' else 'gauge'
    assert family.type == expected and family.documentation, family
    for sample in family.samples:
        labels = ','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))
        unit = 1_000_000 if sample.name.endswith('_sum') else 1
        print(f'{sample.name}{{{labels}}} {round(sample.value * unit)}')
";

fn parsed(world: &World, text: &str) -> BTreeMap<String, u64> {
    let output = world.tool(&["python3", "-c", PARSER], None).stdin(text).run().output();
    let sample = |line: &str| {
        let (name, number) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    };
    output.lines().map(sample).collect()
}

#[test]
fn a_parser_of_openmetrics_reads_all_numbers() {
    let host = Host::new();
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.8.0.0/29"}]]});
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let plugins =
        json!([{"type": "bridge", "bridge": "cni8", "isGateway": true, "ipam": ipam}, portmap]);
    let network = json!({"cniVersion": "1.0.0", "name": "web", "plugins": plugins});
    host.world.write("/run/net.d/20-web.conflist", network.to_string());
    let _one = host.attached("one");
    host.dead("two");
    let _page = host.world.container("page");
    host.cnibox(&["add", "web", "page", "-p", "8080:80", "-p", "53:53/udp", "-p", "8081:81"])
        .run()
        .output();
    host.ipam(&["reserve", "10.8.0.5"]).output();
    let text = host.cnibox(&["metrics"]).run().output();
    let numbers = parsed(&host.world, &text);
    for (sample, expected) in [
        ("cnibox_pool_size{network=web,range=10.8.0.1-10.8.0.6}", 5),
        ("cnibox_pool_used{network=web,range=10.8.0.1-10.8.0.6}", 2),
        ("cnibox_pool_free{network=web,range=10.8.0.1-10.8.0.6}", 3),
        ("cnibox_pool_used{network=net,range=10.1.0.1-10.1.0.254}", 2),
        ("cnibox_reservations{network=net,state=alive}", 2),
        ("cnibox_reservations{network=net,state=gone}", 2),
        ("cnibox_reservations{network=web,state=reserved}", 1),
        ("cnibox_attachments{network=net,state=alive}", 1),
        ("cnibox_attachments{network=net,state=gone}", 1),
        ("cnibox_stale{kind=attachment,network=net}", 1),
        ("cnibox_stale{kind=reservation,network=net}", 2),
        ("cnibox_published_ports{network=web,protocol=tcp}", 2),
        ("cnibox_published_ports{network=web,protocol=udp}", 1),
    ] {
        assert_eq!(numbers.get(sample), Some(&expected), "{sample}: {numbers:?}");
    }
    // No timer calls gc, and there is no log.
    assert!(!text.contains("cnibox_gc_age_seconds") && !text.contains("cnibox_call_seconds"));
}

#[test]
fn the_log_of_all_calls_has_their_durations() {
    const LOG: &str = "/run/calls.log";
    let host = Host::new();
    let metrics = |setting: &str| host.cnibox(&["metrics"]).env("CNIBOX_LOG", setting).run();
    let of_file = || parsed(&host.world, &metrics(&format!("info,file:{LOG}")).output());
    assert!(of_file().keys().all(|key| !key.starts_with("cnibox_call_seconds")));
    host.world.container("web");
    let add = host.cnibox(&["add", "net", "web"]);
    add.env("CNIBOX_LOG", &format!("info,file:{LOG}")).run().output();
    let count = "cnibox_call_seconds_count{plugin=bridge,verb=ADD}";
    assert_eq!(of_file().get(count), Some(&1));
    host.world.write(
        LOG,
        "time=2026-11-22T05:04:03.210Z verb=DEL plugin=dhcp network=n ms=0.900 code=0\n\
         time=2026-11-22T05:04:03.211Z verb=DEL plugin=dhcp network=n ms=2.500 code=0\n\
         a line of another program\n\
         time=2026-11-22T05:04:03.211Z verb=DEL plugin=dhcp network=n ms=61000.000 code=11 error=\"ms=1.000\"\n",
    );
    let numbers = of_file();
    for (sample, expected) in [
        ("bucket{le=0.001,plugin=dhcp,verb=DEL}", 1),
        ("bucket{le=0.0025,plugin=dhcp,verb=DEL}", 2),
        ("bucket{le=10.0,plugin=dhcp,verb=DEL}", 2),
        ("bucket{le=+Inf,plugin=dhcp,verb=DEL}", 3),
        ("count{plugin=dhcp,verb=DEL}", 3),
        ("sum{plugin=dhcp,verb=DEL}", 61_003_400),
    ] {
        let sample = format!("cnibox_call_seconds_{sample}");
        assert_eq!(numbers.get(&sample), Some(&expected), "{sample}: {numbers:?}");
    }
    // A log of failed calls lacks the durations of the others.
    let text = metrics(&format!("error,file:{LOG}")).output();
    assert!(!text.contains("cnibox_call_seconds"), "{text}");
    host.world.host(["sh", "-c", &format!("rm {LOG}; mkfifo {LOG}")]);
    let outcome = metrics(&format!("info,file:{LOG}"));
    assert!(outcome.stderr.contains("cannot read /run/calls.log: "), "{}", outcome.report());
    host.cnibox(&["gc", "--confirm"]).run().silence();
    let numbers = parsed(&host.world, &host.cnibox(&["metrics"]).run().output());
    assert!(numbers["cnibox_gc_age_seconds{}"] < 3600, "{numbers:?}");
}

#[test]
fn a_file_is_replaced_at_once() {
    let host = Host::new();
    host.world.host(["mkdir", "/run/collector"]);
    host.world.write("/run/collector/cnibox.prom", "old\n");
    let old = host.world.host(["stat", "-c", "%i", "/run/collector/cnibox.prom"]);
    host.cnibox(&["metrics", "/run/collector/cnibox.prom"]).run().silence();
    let text = host.world.read("/run/collector/cnibox.prom");
    assert_eq!(text, host.cnibox(&["metrics"]).run().output());
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert_eq!(parsed(&host.world, &text).len(), 6, "{text}");
    // Another file, which the collector, of another user, can read.
    assert_ne!(host.world.host(["stat", "-c", "%i", "/run/collector/cnibox.prom"]), old);
    let metadata = host.world.path("/run/collector/cnibox.prom").metadata().unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o644);
    assert_eq!(host.world.host(["ls", "-A", "/run/collector"]), "cnibox.prom\n");
    let outcome = host.cnibox(&["metrics", "/run/missing/cnibox.prom"]).run();
    assert!(
        outcome.status == 1 && outcome.stderr.contains("cannot write /run/missing/cnibox.prom: "),
        "{}",
        outcome.report()
    );
}
