//! Reads `resolv.conf` into the DNS of a result.

use std::path::Path;

use crate::cni::success::Dns;
use crate::error::{Code, Result};
use crate::kernel::file;

/// Reads the file that `ipam.resolvConf` names.
pub fn read(path: &str) -> Result<Dns> {
    let doing = format_args!("cannot read resolvConf {path}");
    let content = file::read(Path::new(path)).map_err(file::failed_with(Code::IO, doing))?;
    Ok(parse(&String::from_utf8_lossy(&content)))
}

/// Parses the content of a resolv.conf. Keywords without a field in the result are ignored. Source: resolv.conf(5).
fn parse(content: &str) -> Dns {
    let mut dns = Dns::default();
    for line in content.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        let keyword = words.next();
        let values: Vec<String> = words.map(str::to_owned).collect();
        match (keyword, values.first()) {
            (Some("nameserver"), Some(address)) => dns.nameservers.push(address.clone()),
            (Some("domain"), Some(domain)) => dns.domain.clone_from(domain),
            (Some("search"), _) => dns.search.extend(values),
            (Some("options"), _) => dns.options.extend(values),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keywords_are_collected() {
        let dns = parse(
            "# comment\n ; another\n\nnameserver 10.0.0.1 ignored\nnameserver fd00::1\r\ndomain a\ndomain b\n\
             search x y\nsearch z\noptions ndots:5 rotate\nsortlist 1.2.3.4\nnameserver\n",
        );
        assert_eq!(dns.nameservers, ["10.0.0.1", "fd00::1"]);
        assert_eq!(dns.domain, "b");
        assert_eq!(dns.search, ["x", "y", "z"]);
        assert_eq!(dns.options, ["ndots:5", "rotate"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read("/nonexistent/resolv.conf").unwrap_err();
        assert_eq!(error.code, Code::IO);
        assert!(
            error.msg.starts_with("cannot read resolvConf /nonexistent/resolv.conf: "),
            "{error}"
        );
    }
}
