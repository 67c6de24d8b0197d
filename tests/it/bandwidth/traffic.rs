//! Transfers by iperf3: within a tenth of the configured rate, after the burst.

use serde_json::{Value, json};

use super::{limited, limits};
use crate::world::{Container, World, parse};

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

/// In Mbit/s, as the receiver counts, of UDP packets that are sent at the rate `offered`: three seconds, after one more that is
/// left out. (TCP on a busy machine is slower for reasons of its own.)
fn rate(container: &Container<'_>, address: &str, more: &[&str], offered: f64) -> f64 {
    let offered = format!("{offered}M");
    let how = ["-c", address, "-t", "3", "-O", "1", "-u", "-l", "1400", "-b", &offered];
    transfer(container, &[&how, more].concat())
}

fn transfer(container: &Container<'_>, how: &[&str]) -> f64 {
    let server = serve(container);
    let words = [&["iperf3", "-J"], how].concat();
    let said = parse(&container.world.tool(&words, None).output_of_success());
    server.finish().output();
    said["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6
}

/// iperf3 counts what UDP carries; headers are about 4 %.
#[track_caller]
fn assert_near(measured: f64, asked: f64, what: &str) {
    assert!((0.9..1.1).contains(&(measured / asked)), "{what}: {measured} Mbit/s, not {asked}");
}

#[test]
fn rates_are_kept_to_in_both_directions_and_families() {
    let world = World::new();
    let c1 = world.container("c1");
    limited(&c1, limits());
    for address in ["10.1.0.2", "fd00:1::2"] {
        for (more, asked) in DIRECTIONS {
            assert_near(
                rate(&c1, address, more, 1.5 * asked),
                asked,
                &format!("{address} {more:?}"),
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
    let rates = std::thread::scope(|scope| {
        let run = |(container, address)| scope.spawn(move || rate(container, address, &[], 30.0));
        let running = [(&containers[0], "10.1.0.2"), (&containers[1], "10.1.0.3")].map(run);
        running.map(|it| it.join().unwrap())
    });
    for rate in rates {
        assert_near(rate, 20.0, "both at once");
    }
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
            let measured = rate(&c1, "10.1.0.2", more, offered * asked);
            let what = format!("{keys} {more:?}");
            match is_shaped {
                true => assert_near(measured, asked, &what),
                false => assert!(measured > 5.0 * asked, "{what}: {measured}"),
            }
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
    // A fifth of the burst; at the rate alone it would take a quarter of an hour.
    let measured = transfer(&c1, &["-c", "10.1.0.2", "-n", "100M"]);
    assert!(measured > 100.0, "{measured}");
}
