//! Finds published ports of living containers that do not answer other hosts, and those that a program of the host uses, too.

use crate::attachments::life::Life;
use crate::cni::json::Json;
use crate::error::Result;
use crate::plugins::portmap::return_path;
use crate::plugins::portmap::shadowed::{HostPorts, Sockets};
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;
use crate::runtime::request::configuration;

use super::finding::{Findings, Harm};
use super::host::Host;
use super::published::mappings;

/// Finds containers with a second network for which a reverse path filter drops the requests or replies of a published port.
pub(super) fn replies(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    // The check `leaks` reports this error.
    let Ok(survey) = &host.survey else { return Ok(()) };
    for (entry, life) in &survey.attachments {
        if !matches!(life, Life::Alive) {
            continue;
        }
        let fault = match fault(host, entry) {
            // Its namespace or a link has vanished.
            Err(_) if !host.is_at_rest(entry) => None,
            fault => fault?,
        };
        if let Some(fault) = fault {
            found.add(
                Harm::Broken,
                format_args!("{}: {fault}", entry.title()),
                "The filter drops packets that arrive by another link than the route back leaves by.",
                format_args!("add the plugin sbr to network {}, and attach it again", entry.network),
            );
        }
    }
    Ok(())
}

/// Finds published ports on which a program of the host waits.
pub(super) fn shadowed(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    let Ok(survey) = &host.survey else { return Ok(()) };
    let alive = survey.attachments.iter().filter(|(_, life)| *life == Life::Alive);
    let publishing = alive.map(|(entry, _)| entry).filter(|entry| portmap(entry).is_some());
    let published: Vec<(&CacheEntry, Vec<HostPorts>)> = publishing
        .map(|entry| Ok((entry, HostPorts::of(&mappings(&entry.capability_args)?))))
        .collect::<Result<_>>()?;
    let sockets = Sockets::read(published.iter().flat_map(|(_, ports)| ports))?;
    for (entry, ports) in published {
        if let Some(shadowed) = sockets.find(&ports, Some(&entry.at.container_id)) {
            found.add(
                Harm::Note,
                format_args!("{} publishes {shadowed}", entry.title()),
                "Clients of the program reach the container instead.",
                "stop the program, or publish another port",
            );
        }
    }
    Ok(())
}

/// The configuration of `portmap` for an attachment.
fn portmap(entry: &CacheEntry) -> Option<Json> {
    // The check `leaks` reports an unreadable cache entry.
    let network = Network::from_cache(&entry.config).ok()?;
    let plugin = network.plugin("portmap")?;
    Some(configuration(&network, plugin, &entry.capability_args, None))
}

fn fault(host: &Host<'_>, entry: &CacheEntry) -> Result<Option<String>> {
    let (Some(config), Ok(Some(result))) = (portmap(entry), entry.success()) else {
        return Ok(None);
    };
    let Some(netns) = host.home.open_if_exists(&entry.netns).ok().flatten() else {
        return Ok(None);
    };
    return_path::fault(&host.rtnl, &netns, &config, &entry.at, &result)
}
