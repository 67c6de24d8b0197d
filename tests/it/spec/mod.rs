//! The examples of the specification, as printed in it: versions 0.3.1, 0.4.0 and 1.0.0. The files beside this one are
//! copies of its text, comments and stray commas included.

use serde_json::{Value, json};

use crate::world::{Container, Outcome, World, parse, with, without};

/// Everything that the specification says to be called with CNI_COMMAND=ADD.
const ADDS: [(&str, &str); 8] = [
    ("0.3.1", include_str!("0.3.1/network.jsonc")),
    ("0.3.1", include_str!("0.3.1/list.jsonc")),
    ("0.3.1", include_str!("0.3.1/add.jsonc")),
    ("0.4.0", include_str!("0.4.0/network.jsonc")),
    ("0.4.0", include_str!("0.4.0/list.jsonc")),
    ("0.4.0", include_str!("0.4.0/add.jsonc")),
    ("1.0.0", include_str!("1.0.0/list.jsonc")),
    ("1.0.0", include_str!("1.0.0/add.jsonc")),
];

/// The namespace of the examples.
pub const BLUE: &str = "/var/run/netns/blue";

/// JSON without `//` comments and without commas before a closing bracket.
fn plain(text: &str) -> String {
    let without_comment = |line: &str| {
        let quotes_before = |at: usize| line[..at].matches('"').count();
        let starts = line.match_indices("//").map(|(at, _)| at);
        let comment = starts.filter(|&at| quotes_before(at) % 2 == 0).min();
        line[..comment.unwrap_or(line.len())].to_owned()
    };
    let text: String = text.lines().map(|line| without_comment(line) + "\n").collect();
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once(',') {
        plain.push_str(before);
        if !after.trim_start().starts_with(['}', ']']) {
            plain.push(',');
        }
        rest = after;
    }
    plain + rest
}

pub fn example(text: &str) -> Value {
    parse(&plain(text))
}

/// What a runtime makes of a list: its version and name go into the plugin's own configuration.
fn request(example: &Value) -> Value {
    let Some(plugins) = example.get("plugins") else { return example.clone() };
    let inherited = json!({"cniVersion": example["cniVersion"], "name": example["name"]});
    let request = with(&plugins[0], inherited);
    assert_eq!(request["type"], "bridge");
    request
}

fn blue(world: &World) -> Container<'_> {
    world.container("blue")
}

/// A call for the container of the examples, by the path that they print.
fn call(container: &Container<'_>, verb: &str, stdin: &str) -> Outcome {
    let call =
        container.call("bridge", verb, &Value::Null).env("CNI_ARGS", "argA=foo;IgnoreUnknown=1");
    call.env("CNI_NETNS", BLUE).stdin(stdin).run()
}

#[test]
fn every_example_for_add_gives_a_result_of_its_version() {
    for (version, text) in ADDS {
        let world = World::new();
        let container = blue(&world);
        let request = request(&example(text));
        let result = call(&container, "ADD", &request.to_string()).success();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["dns"], json!({"nameservers": ["10.1.0.1"]}));
        let ip = &result["ips"][0];
        assert_eq!((&ip["address"], &ip["gateway"]), (&json!("10.1.0.2/16"), &json!("10.1.0.1")));
        assert_eq!(ip["interface"], 2);
        // Only versions before 1.0.0 tell the family.
        let family = if version == "1.0.0" { None } else { Some(&json!("4")) };
        assert_eq!(ip.get("version"), family);
        let sandboxes: Vec<_> =
            (0..3).map(|index| result["interfaces"][index].get("sandbox").cloned()).collect();
        assert_eq!(sandboxes, [None, None, Some(json!(BLUE))]);
        assert_eq!(container.addresses("eth0"), ["10.1.0.2/16"]);
    }
}

#[test]
fn host_local_takes_the_very_same_input() {
    for (version, text) in ADDS {
        let world = World::new();
        let request = request(&example(text));
        let result = blue(&world).add("host-local", &request);
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result.get("interfaces"), None, "an abbreviated result");
        assert_eq!(result["ips"][0].get("interface"), None);
        let routes = request["ipam"].get("routes");
        assert_eq!(result.get("routes"), routes);
    }
}

#[test]
pub fn examples_without_comments_are_taken_to_the_letter() {
    let world = World::new();
    let container = blue(&world);
    let printed = include_str!("1.0.0/add.jsonc");
    call(&container, "ADD", printed).success();
    assert_eq!(world.read("/var/lib/cni/networks/dbnet/10.1.0.2"), "blue\r\neth0");
}

/// What other plugins of the example's list, and the printed result, bring about.
fn blue_of_the_appendix(world: &World) -> (Container<'_>, Value) {
    let container = blue(world);
    // The next address is the one that is printed.
    world.write("/var/lib/cni/networks/dbnet/last_reserved_ip.0", "10.1.0.4");
    let request = request(&example(include_str!("1.0.0/list.jsonc")));
    let result = call(&container, "ADD", &request.to_string()).success();
    (container, result)
}

/// The printed object with the MACs and the random name of a real result. The MAC of eth0 stays where the example
/// says that another plugin has changed it.
pub fn with_real_names(printed: &Value, real: &Value) -> Value {
    let mut object = printed.clone();
    for index in 0..3 {
        let printed_mac = &printed["interfaces"][index]["mac"];
        if printed_mac != "00:11:22:33:44:66" {
            object["interfaces"][index]["mac"] = real["interfaces"][index]["mac"].clone();
        }
    }
    object["interfaces"][1]["name"] = real["interfaces"][1]["name"].clone();
    object
}

#[test]
fn the_result_of_the_appendix_is_the_one_printed() {
    let world = World::new();
    let (_, result) = blue_of_the_appendix(&world);
    let printed = example(include_str!("1.0.0/add-result.jsonc"));
    assert_eq!(without(&result, "cniVersion"), with_real_names(&printed, &result));
}

#[test]
fn check_and_delete_of_the_appendix_succeed() {
    let world = World::new();
    let before = world.state_with(&[]).apart_from("cni0", "dbnet");
    let (container, result) = blue_of_the_appendix(&world);
    // The tuning plugin has changed the MAC in between.
    container.exec(["ip", "link", "set", "eth0", "address", "00:11:22:33:44:66"]);
    for (verb, text) in
        [("CHECK", include_str!("1.0.0/check.jsonc")), ("DEL", include_str!("1.0.0/delete.jsonc"))]
    {
        let mut request = example(text);
        request["prevResult"] = with_real_names(&request["prevResult"], &result);
        call(&container, verb, &request.to_string()).silence();
    }
    before.assert_same(&world.state_with(&[]).apart_from("cni0", "dbnet"), "after DEL");
}

/// A call of another plugin of the list, with the names of a real result in what is printed.
fn chained(
    container: &Container<'_>,
    plugin: &str,
    verb: &str,
    printed: &str,
    real: &Value,
) -> Outcome {
    let mut request = example(printed);
    request["prevResult"] = with_real_names(&request["prevResult"], real);
    let call = container.call(plugin, verb, &Value::Null).env("CNI_NETNS", BLUE);
    call.env("CNI_ARGS", "argA=foo;IgnoreUnknown=1").stdin(request.to_string()).run()
}

#[test]
fn the_whole_list_of_the_appendix_runs_as_printed() {
    let world = World::new();
    // What all share in nf_tables, and the container's sysctl, stay from the first time on.
    for is_first in [true, false] {
        let before = world.state_with(&[]).apart_from("cni0", "dbnet");
        let (container, result) = blue_of_the_appendix(&world);
        let add =
            chained(&container, "tuning", "ADD", include_str!("1.0.0/tuning-add.jsonc"), &result);
        let tuned = add.success();
        let printed = example(include_str!("1.0.0/tuning-result.jsonc"));
        assert_eq!(without(&tuned, "cniVersion"), with_real_names(&printed, &result));
        assert_eq!(container.sysctl("net/core/somaxconn"), "500");
        let links = container.json(["ip", "-j", "link", "show", "eth0"]);
        assert_eq!(links[0]["address"], "00:11:22:33:44:66");
        let add =
            chained(&container, "portmap", "ADD", include_str!("1.0.0/portmap.jsonc"), &tuned);
        assert_eq!(add.success(), tuned);
        assert!(world.host(["nft", "list", "ruleset"]).contains("10.1.0.5 . 80"));

        for (plugin, verb, text) in [
            ("bridge", "CHECK", include_str!("1.0.0/check.jsonc")),
            ("tuning", "CHECK", include_str!("1.0.0/tuning.jsonc")),
            ("portmap", "CHECK", include_str!("1.0.0/portmap.jsonc")),
            ("portmap", "DEL", include_str!("1.0.0/portmap.jsonc")),
            ("tuning", "DEL", include_str!("1.0.0/tuning.jsonc")),
            ("bridge", "DEL", include_str!("1.0.0/delete.jsonc")),
        ] {
            chained(&container, plugin, verb, text, &tuned).silence();
        }
        container.destroy();
        if !is_first {
            before.assert_same(&world.state_with(&[]).apart_from("cni0", "dbnet"), "after DEL");
        }
    }
}

#[test]
fn check_and_delete_of_0_4_0_succeed() {
    let world = World::new();
    let container = blue(&world);
    let before = world.state_with(&[&container]).apart_from("cni0", "dbnet");
    let result = call(&container, "ADD", &plain(include_str!("0.4.0/add.jsonc"))).success();
    for (verb, text) in
        [("CHECK", include_str!("0.4.0/check.jsonc")), ("DEL", include_str!("0.4.0/delete.jsonc"))]
    {
        let mut request = example(text);
        request["prevResult"] = with_real_names(&request["prevResult"], &result);
        // 10.0.0.5/32 is printed, which is not of the printed subnet.
        request["prevResult"]["ips"][0]["address"] = result["ips"][0]["address"].clone();
        call(&container, verb, &request.to_string()).silence();
    }
    before.assert_same(&world.state_with(&[&container]).apart_from("cni0", "dbnet"), "after DEL");
}

#[test]
fn delete_of_0_3_1_needs_no_result() {
    let world = World::new();
    let container = blue(&world);
    let before = world.state_with(&[&container]).apart_from("cni0", "dbnet");
    call(&container, "ADD", &plain(include_str!("0.3.1/add.jsonc"))).success();
    call(&container, "DEL", &plain(include_str!("0.3.1/delete.jsonc"))).silence();
    before.assert_same(&world.state_with(&[&container]).apart_from("cni0", "dbnet"), "after DEL");
}
