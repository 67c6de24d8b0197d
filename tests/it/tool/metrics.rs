//! `cnibox metrics`: the numbers, as a parser of OpenMetrics reads them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::ipam::host::Host;
use crate::world::World;

/// Debian's python3-prometheus-client reads the text and prints `NAME{LABEL=VALUE,…} NUMBER` for each sample.
const PARSER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.type == 'gauge' and family.documentation, family
    for sample in family.samples:
        labels = ','.join(f'{key}={value}' for key, value in sorted(sample.labels.items()))
        print(f'{sample.name}{{{labels}}} {int(sample.value)}')
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
        ("cnibox_published_ports{network=web,protocol=tcp}", 2),
        ("cnibox_published_ports{network=web,protocol=udp}", 1),
    ] {
        assert_eq!(numbers.get(sample), Some(&expected), "{sample}: {numbers:?}");
    }
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
