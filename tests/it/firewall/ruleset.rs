//! The tables are those that the modules document.

use serde_json::json;

use super::{attach, bridge, drop_forwarded};
use crate::world::{World, without_tags};

/// The text between the fences of a documentation, without the signs of a comment.
fn documented(source: &str) -> Vec<String> {
    let lines = source.lines().map(|line| line.trim_start_matches("//!").trim_start_matches("///"));
    let fenced = lines.skip_while(|line| line.trim() != "```nft").skip(1);
    fenced
        .take_while(|line| line.trim() != "```")
        .map(plain)
        .filter(|line| !line.is_empty())
        .collect()
}

/// One line with normal spaces, without parts that have no effect.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split([' ', '\t', ';']).filter(|word| !word.is_empty()).collect();
    words.join(" ").replace("priority filter", "priority 0")
}

/// Of what nft lists the lines that say how things are, without elements and comments, sets on one line.
fn listed(world: &World, family: &str, table: &str) -> Vec<String> {
    let text = without_tags(&world.host(["nft", "list", "table", family, table]));
    let lines = text.lines().map(plain);
    let is_structure = |line: &String| {
        !line.is_empty()
            && !line.starts_with('#')
            && !line.starts_with("elements")
            && !line.starts_with("comment")
    };
    let mut joined: Vec<String> = Vec::new();
    for line in lines.filter(is_structure) {
        match joined.last_mut() {
            // A set is `set NAME {`, its type, and `}`: three short lines.
            Some(last) if line.starts_with("type ") && !line.contains("hook") => {
                last.push_str(&format!(" {line} }}"));
            }
            Some(last)
                if line == "}"
                    && last.ends_with(" }")
                    && last.contains(" type ")
                    && !last.contains('\u{1}') =>
            {
                last.push('\u{1}');
            }
            _ => joined.push(line),
        }
    }
    joined.iter().map(|line| line.replace('\u{1}', "")).collect()
}

fn world() -> World {
    let world = World::new();
    drop_forwarded(&world);
    let c1 = world.container("c1");
    attach(&c1, &bridge("net", 1), json!({"ingressPolicy": "isolated", "acceptPublished": true}));
    world
}

#[test]
fn our_tables_are_as_documented() {
    let world = world();
    let ours = documented(include_str!("../../../src/plugins/firewall/ruleset.rs"));
    assert_eq!(listed(&world, "ip", "cnibox"), ours);
    let v6: Vec<String> = ours
        .iter()
        .map(|line| line.replace("table ip ", "table ip6 ").replace("ipv4_addr", "ipv6_addr"))
        .map(|line| line.replace("ip daddr", "ip6 daddr").replace("ip saddr", "ip6 saddr"))
        .collect();
    assert_eq!(listed(&world, "ip6", "cnibox"), v6);
    let bridge = documented(include_str!("../../../src/plugins/firewall/ingress.rs"));
    let listed: Vec<String> = listed(&world, "bridge", "cnibox")
        .iter()
        .map(|line| line.replace("hook forward priority 0", "hook forward priority -200"))
        .collect();
    assert_eq!(listed, bridge);
}

#[test]
fn the_rules_among_those_of_iptables_are_as_documented() {
    let world = world();
    let documented = documented(include_str!("../../../src/plugins/firewall/forward.rs"));
    let without_comment =
        |line: &String| line.split(" comment ").next().unwrap().replace(" { }", " {");
    let expected: Vec<String> = documented.iter().map(without_comment).collect();
    let found: Vec<String> = listed(&world, "ip", "filter").iter().map(without_comment).collect();
    let is_rule = |line: &&String| line.starts_with("jump") || line.contains("mark");
    let rules = |lines: &[String]| lines.iter().filter(is_rule).cloned().collect::<Vec<_>>();
    assert_eq!(rules(&found), rules(&expected));
    for line in expected {
        assert!(found.contains(&line), "{line:?} is not in {found:#?}");
    }
}

#[test]
fn the_match_for_the_mark_is_that_of_iptables() {
    let world = World::new();
    let c1 = world.container("c1");
    drop_forwarded(&world);
    attach(&c1, &bridge("net", 1), json!({}));
    let listed = world.host(["iptables", "-S", "CNI-FORWARD"]);
    assert!(listed.contains("-m mark --mark 0x1000/0x1000 -m comment"), "{listed}");
    assert!(!listed.contains('!'), "{listed}");
}
