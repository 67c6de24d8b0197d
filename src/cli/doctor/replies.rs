//! Finds published ports of living containers that do not answer other hosts.

use crate::error::Result;
use crate::plugin::life::Life;
use crate::plugins::portmap::return_path;
use crate::runtime::cache::CacheEntry;
use crate::runtime::conf::Network;
use crate::runtime::request::configuration;

use super::finding::{Findings, Harm};
use super::host::Host;

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

fn fault(host: &Host<'_>, entry: &CacheEntry) -> Result<Option<String>> {
    // The check `leaks` reports an unreadable cache entry.
    let (Ok(network), Ok(Some(result))) = (Network::from_cache(&entry.config), entry.success())
    else {
        return Ok(None);
    };
    let Some(plugin) = network.plugin("portmap") else { return Ok(None) };
    let config = configuration(&network, plugin, &entry.capability_args, None);
    let Some(netns) = host.home.open_if_exists(&entry.netns).ok().flatten() else {
        return Ok(None);
    };
    return_path::fault(&host.rtnl, &netns, &config, &entry.at, &result)
}
