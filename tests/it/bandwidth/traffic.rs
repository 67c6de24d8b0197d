//! Transfers by iperf3: within a tenth of the configured rate, after the burst.

use std::fmt::Debug;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::{limited, limits};
use crate::world::{Container, World, one_attempt_is, parse};

/// Into and out of the container, as seen from the host.
const DIRECTIONS: [(&[&str], f64); 2] = [(&[], 20.0), (&["-R"], 10.0)];

/// A server in the container that ends after one transfer.
fn serve(container: &Container<'_>) -> crate::world::call::Running {
    let server = container.tool(["iperf3", "-s", "-1"]).start();
    container.world.eventually("iperf3 listens", || {
        container.tool(["ss", "-ltnH", "sport = :5201"]).output_of_success().contains("5201")
    });
    server
}

/// How often a transfer is repeated that is not as fast as it should be.
const ATTEMPTS: usize = 5;

/// In Mbit/s. A busy host sends less than it could, loses what iperf3 sends only once, and sends a burst after each pause. A wrong
/// limit is wrong in each attempt.
#[track_caller]
fn one_rate_is<T: Debug>(
    what: &str,
    is_good: impl Fn(&T) -> bool,
    measure: impl Fn() -> Option<T>,
) {
    let is_good = |rate: &Option<T>| rate.as_ref().is_some_and(&is_good);
    one_attempt_is(ATTEMPTS, &format!("{what}, in Mbit/s"), is_good, measure);
}

/// iperf3 counts what UDP carries; headers are about 4 %.
fn is_near(measured: f64, asked: f64) -> bool {
    (0.9..1.1).contains(&(measured / asked))
}

/// In Mbit/s, as the receiver counts, of UDP packets that are sent at the rate `offered`: three seconds, after one more that is
/// left out. (TCP on a busy machine is slower for reasons of its own.)
fn rate(container: &Container<'_>, address: &str, more: &[&str], offered: f64) -> Option<f64> {
    let offered = format!("{offered}M");
    let how = ["-c", address, "-t", "3", "-O", "1", "-u", "-l", "1400", "-b", &offered];
    transfer(container, &[&how, more].concat())
}

/// `None` if the client fails: it asks for a stream of UDP with one packet.
fn transfer(container: &Container<'_>, how: &[&str]) -> Option<f64> {
    let server = serve(container);
    let words = [&["iperf3", "-J"], how].concat();
    let client = container.world.tool(&words, None).run();
    if client.status != 0 {
        // The server can still wait for a client, or have ended with this one.
        kill(server.pid(), Signal::SIGTERM).ok();
        server.finish();
        return None;
    }
    server.finish().output();
    parse(&client.stdout)["end"]["sum_received"]["bits_per_second"].as_f64().map(|rate| rate / 1e6)
}

#[test]
fn rates_are_kept_to_in_both_directions_and_families() {
    let world = World::new();
    let c1 = world.container("c1");
    limited(&c1, limits());
    for address in ["10.1.0.2", "fd00:1::2"] {
        for (more, asked) in DIRECTIONS {
            one_rate_is(
                &format!("{address} {more:?}"),
                |measured| is_near(*measured, asked),
                || rate(&c1, address, more, 1.5 * asked),
            );
        }
    }
}

#[test]
fn two_containers_have_a_rate_each() {
    let world = World::new();
    let containers = ["c1", "c2"].map(|name| world.container(name));
    for container in &containers {
        limited(container, limits());
    }
    let both_at_once = || {
        std::thread::scope(|scope| {
            let run =
                |(container, address)| scope.spawn(move || rate(container, address, &[], 30.0));
            let running = [(&containers[0], "10.1.0.2"), (&containers[1], "10.1.0.3")].map(run);
            running.map(|thread| thread.join().unwrap().unwrap_or_default())
        })
    };
    let are_near = |both: &[f64; 2]| both.iter().all(|measured| is_near(*measured, 20.0));
    one_rate_is("both at once", are_near, || Some(both_at_once()));
}

#[test]
fn only_what_is_listed_is_shaped_or_only_the_rest() {
    for (keys, is_shaped) in [
        (json!({"shapedSubnets": ["10.1.0.0/25", "fd00:1::/64"]}), true),
        (json!({"shapedSubnets": ["10.2.0.0/16"]}), false),
        (json!({"unshapedSubnets": ["10.2.0.0/16"]}), true),
        (json!({"unshapedSubnets": ["10.1.0.1/32"]}), false),
    ] {
        let world = World::new();
        let c1 = world.container("c1");
        limited(&c1, crate::world::with(&limits(), keys.clone()));
        for (more, asked) in DIRECTIONS {
            let offered = if is_shaped { 1.5 } else { 6.0 };
            one_rate_is(
                &format!("{keys} {more:?}"),
                |measured| {
                    if is_shaped { is_near(*measured, asked) } else { *measured > 2.0 * asked }
                },
                || rate(&c1, "10.1.0.2", more, offered * asked),
            );
        }
    }
}

#[test]
fn a_burst_of_all_that_32_bits_hold_does_not_stop_anything() {
    let world = World::new();
    let c1 = world.container("c1");
    let burst = u64::from(u32::MAX);
    let keys: Value = json!({"ingressRate": 1_000_000, "ingressBurst": burst});
    limited(&c1, keys);
    // A fifth of the burst; at the rate of 1 Mbit/s alone it would take a quarter of an hour.
    let transfer = || transfer(&c1, &["-c", "10.1.0.2", "-n", "100M"]);
    one_rate_is("with the burst", |measured| *measured > 10.0, transfer);
}

/// A full frame of the pair has 1514 bytes.
#[test]
fn a_burst_smaller_than_a_full_frame_passes_none_and_is_warned_of() {
    for direction in ["ingress", "egress"] {
        for (burst, mtu, passes) in
            [(12_112, 1500, true), (12_104, 1500, false), (12_104, 1499, true)]
        {
            let world = World::new();
            let c1 = world.container("c1");
            let result = c1.add("bridge", &super::network());
            c1.exec(["ip", "link", "set", "eth0", "mtu", &mtu.to_string()]);
            let keys =
                json!({format!("{direction}Rate"): 80_000_000, format!("{direction}Burst"): burst});
            let added = c1.call("bandwidth", "ADD", &super::chained(keys, &result)).run();
            let text = format!("bandwidth: {direction}Burst of 1513 bytes drops full frames");
            assert_eq!(added.stderr.contains(&text), !passes, "{}", added.report());
            added.success();
            for (address, headers) in [("10.1.0.2", 28), ("fd00:1::2", 48)] {
                c1.ping(if address == "10.1.0.2" { "10.1.0.1" } else { "fd00:1::1" });
                let size = (mtu - headers).to_string();
                let words =
                    ["ping", "-c", "3", "-i", "0.2", "-W", "2", "-M", "do", "-s", &size, address];
                let said = world.tool(&words, None).run();
                let answers = said.status == 0;
                assert_eq!(answers, passes, "{direction} {burst} {mtu}: {}", said.report());
            }
        }
    }
}
