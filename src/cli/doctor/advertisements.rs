//! Finds links that ignore router advertisements because the host forwards IPv6.

use crate::error::Result;
use crate::kernel::sysctl;
use crate::names::IpFamily;
use crate::netlink::rtnl::Rtnl;

use super::finding::{Finding, Findings, Harm, quoted};
use super::forwarding::value;
use super::host::Host;

/// When ADD enables forwarding, it sets accept_ra=2 on the links that exist. This check finds links that appeared later, and
/// hosts on which another program enabled forwarding.
pub(super) fn advertisements(host: &Host<'_>, found: &mut Findings) -> Result<()> {
    for name in ignoring_links(&host.rtnl)? {
        let what =
            format!("{name} ignores router advertisements: it forwards, and its accept_ra is 1");
        let why = "The host loses the IPv6 default route and the addresses that came from them.";
        let fix = format!("sysctl -w {}=2", quoted(accept_ra(&name)));
        found.0.push(Finding { harm: Harm::Broken, what, why, fix, is_fixable: true });
    }
    Ok(())
}

/// Sets accept_ra=2 on these links: the next router advertisement restores the default route. `print` gets a line for each
/// link.
pub(super) fn fix(is_dry_run: bool, print: &mut dyn FnMut(&str)) -> Result<()> {
    for name in ignoring_links(&Rtnl::open()?)? {
        let key = accept_ra(&name);
        let set = if is_dry_run { "would set" } else { "set" };
        if !is_dry_run {
            sysctl::set(&key, "2")?;
        }
        print(&format!("{set} {key} to 2"));
    }
    Ok(())
}

/// The links that forward, have accept_ra=1, and have an address with a lifetime. Such an address came from an advertisement,
/// or from a DHCPv6 server, which gives no default route: the link needs advertisements. Static addresses have no lifetime.
fn ignoring_links(rtnl: &Rtnl) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for link in rtnl.links()? {
        let forwarding = || value(&sysctl::of_link(IpFamily::V6, &link.name, "forwarding"));
        if link.accept_ra == Some(1) && forwarding() == "1" {
            let addresses = rtnl.addresses_of(link.index, IpFamily::V6)?;
            if addresses.iter().any(|address| !address.permanent && !address.scope_link) {
                names.push(link.name.clone());
            }
        }
    }
    Ok(names)
}

fn accept_ra(link: &str) -> String {
    sysctl::of_link(IpFamily::V6, link, "accept_ra")
}
