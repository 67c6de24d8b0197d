//! Results pass through unchanged, in every version, from every runtime.

use serde_json::json;

use super::{chained, count, elements, network, portmap, publish, result, tcp};
use crate::world::{VERSIONS, World, with};

#[test]
fn results_pass_through_in_every_version() {
    for version in VERSIONS {
        let world = World::new();
        let c1 = world.container("c1");
        let in_version = json!({"cniVersion": version});
        let before =
            c1.call("bridge", "ADD", &with(&network(), in_version.clone())).run().success();
        let config = with(&portmap(json!([tcp(8080, 80)])), in_version);
        let chained = chained(&config, &before);
        assert_eq!(c1.add("portmap", &chained), before, "{version}");
        assert_eq!(count(&world, "ip published "), 1);
        assert_eq!(count(&world, "ip6 published "), 1);
        if version >= "0.4.0" {
            c1.check("portmap", &config, &before);
        }
        c1.del("portmap", &chained);
        assert_eq!(elements(&world), [""; 0], "{version}");
    }
}

#[test]
fn keys_and_nulls_are_taken_as_runtimes_send_them() {
    let world = World::new();
    let c1 = world.container("c1");
    let mappings = json!([
        {"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""},
        {"HostPort": 8081, "ContainerPort": 81, "Protocol": "TCP", "HostIP": null, "Label": "http"},
        {"HostPort": 8082, "ContainerPort": 82, "Protocol": "Sctp", "HostIP": "0.0.0.0"},
        {"HostPort": 8083, "ContainerPort": 83, "Protocol": "UDP", "HostIP": "::ffff:192.0.2.1"},
        {"HostPort": 8084, "ContainerPort": 84},
        {"HostPort": 65535, "ContainerPort": 65535, "Protocol": "udp"},
    ]);
    let more = json!({
        "backend": null, "snat": null, "masqAll": null, "markMasqBit": null, "externalSetMarkChain": null,
        "conditionsV4": null, "conditionsV6": [], "capabilities": {"portMappings": true},
    });
    publish(&c1, 1, &with(&portmap(mappings), more));
    let lines = elements(&world);
    for start in [
        r#"ip published {"concat":["tcp",8080]} = {"concat":["10.1.0.3",80]}"#,
        r#"ip published {"concat":["tcp",8081]} = {"concat":["10.1.0.3",81]}"#,
        r#"ip published {"concat":["sctp",8082]} = {"concat":["10.1.0.3",82]}"#,
        r#"ip published_on {"concat":["192.0.2.1","udp",8083]} = {"concat":["10.1.0.3",83]}"#,
        r#"ip published {"concat":["tcp",8084]} = {"concat":["10.1.0.3",84]}"#,
        r#"ip published {"concat":["udp",65535]} = {"concat":["10.1.0.3",65535]}"#,
        r#"ip6 published {"concat":["tcp",8080]} = {"concat":["fd00:1::3",80]}"#,
    ] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start}\n{}", lines.join("\n"));
    }
    assert_eq!(count(&world, "ip published "), 5);
    assert_eq!(count(&world, "ip6 published "), 4);
}

#[test]
fn the_first_address_of_the_container_in_each_family_is_the_target() {
    let world = World::new();
    let c1 = world.container("c1");
    let mut result = result(1, &c1.netns());
    result["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "eth1", "sandbox": c1.netns()}));
    result["ips"] = json!([
        {"address": "10.9.0.1/16", "interface": 0},
        {"address": "10.9.0.2/16", "interface": 2},
        {"address": "10.1.0.9/24", "interface": 1},
        {"address": "10.1.0.10/24", "interface": 1},
        {"address": "fd00:9::1/64"},
    ]);
    c1.add("portmap", &chained(&portmap(json!([tcp(8080, 80)])), &result));
    let lines = elements(&world);
    for start in [
        r#"ip published {"concat":["tcp",8080]} = {"concat":["10.1.0.9",80]}"#,
        r#"ip masqueraded_24 {"concat":["10.1.0.0","10.1.0.9"]}"#,
        r#"ip6 published {"concat":["tcp",8080]} = {"concat":["fd00:9::1",80]}"#,
    ] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start}\n{}", lines.join("\n"));
    }
}

#[test]
fn no_program_is_run_and_no_path_is_needed() {
    let world = World::new();
    let c1 = world.container("c1");
    let config = portmap(json!([tcp(8080, 80), super::udp(8053, 53)]));
    let config = chained(&config, &result(1, &c1.netns()));
    for verb in ["ADD", "CHECK", "DEL"] {
        let trace = format!("/run/{verb}");
        let calls = "trace=execve,execveat,fork,vfork,clone,clone3";
        let call = c1.call("portmap", verb, &config);
        let outcome =
            call.under(&["/usr/bin/strace", "-f", "-e", calls, "-o", &trace]).env("PATH", "").run();
        assert_eq!(outcome.status, 0, "{}", outcome.report());
        let lines = world.read(&trace);
        assert_eq!(lines.matches("exec").count(), 1, "{lines}");
        assert!(!lines.contains("clone") && !lines.contains("fork"), "{lines}");
    }
}
