//! The demo's network, drawn for a terminal.

use super::{Container, millis};

/// The inner width of a container's box, in characters.
const BOX: usize = 24;
const GAP: &str = "    ";

/// Draws the bridge at the top and the containers below it, each with its veth pair.
pub(super) fn draw(containers: &[Container]) -> String {
    let bridge = &containers[0].success.interfaces[0];
    let gateway =
        containers[0].success.ips[0].gateway.map_or_else(String::new, |ip| ip.to_string());
    let width = containers.len() * (BOX + 2) + (containers.len() - 1) * GAP.len() - 2;
    let title = format!("host: bridge {}  {gateway}  {}", bridge.name, bridge.mac);
    let line = "─".repeat(width);
    let mut lines = vec![
        format!("┌{line}┐"),
        format!("│ {title:<space$}│", space = width - 1),
        format!("└{}┘", edge(&line, containers.len(), '┬')),
    ];
    let row = |text: &dyn Fn(&Container) -> String| {
        containers.iter().map(text).collect::<Vec<_>>().join(GAP)
    };
    let inside = |text: String| format!("│ {text:<space$}│", space = BOX - 1);
    let bar = "─".repeat(BOX);
    lines.push(row(&|container| {
        format!(
            "{:<space$}",
            format!("{:>5}  {}", "│", container.success.interfaces[1].name),
            space = BOX + 2
        )
    }));
    lines.push(row(&|_| format!("┌{}┐", edge(&bar, 1, '┴'))));
    lines.push(row(&|container| {
        inside(format!("{}: {}", container.name, container.success.interfaces[2].name))
    }));
    lines.push(row(&|container| inside(container.success.ips[0].address.to_string())));
    lines.push(row(&|container| inside(container.success.interfaces[2].mac.clone())));
    lines.push(row(&|_| format!("└{bar}┘")));
    lines.push(row(&|container| {
        format!("{:<space$}", format!("  ADD in {}", millis(container.took)), space = BOX + 2)
    }));
    lines.iter().map(|line| format!("  {}\n", line.trim_end())).collect()
}

/// The edge of a box, with a joint for the link of each container.
fn edge(line: &str, containers: usize, joint: char) -> String {
    let mut edge: Vec<char> = line.chars().collect();
    for index in 0..containers {
        edge[3 + index * (BOX + 2 + GAP.len())] = joint;
    }
    edge.into_iter().collect()
}
