//! The allowlist of the administrator. Each line of the file is a regular expression. One of them must match each sysctl
//! key as it is written in the configuration. Without the file all keys are allowed.

use std::path::Path;

use super::pattern;
use crate::error::{Code, Error, Result};
use crate::kernel::file;

const PATH: &str = "/etc/cni/tuning/allowlist.conf";

/// Fails if the file exists and none of its patterns matches a sysctl key. The values do not matter.
pub fn check(sysctls: &[(&str, &str)]) -> Result<()> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let text = file::found(file::read_text(Path::new(PATH))).map_err(|error| {
        Error::new(Code::IO, format_args!("cannot read {PATH}: {}", file::reason(&error)))
    })?;
    let Some(text) = text else { return Ok(()) };
    let mut patterns = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        patterns.push(pattern::parse(line).map_err(|reason| {
            Error::config(format_args!("cannot read pattern {line} of {PATH}")).with_details(reason)
        })?);
    }
    for (key, _) in sysctls {
        // `\s` of regex-lite matches a vertical tab, that of Go does not. No sysctl has one in its name.
        let has_vertical_tab = key.contains('\x0b');
        if has_vertical_tab || !patterns.iter().any(|pattern| pattern.is_match(key)) {
            let msg = format!("Sysctl {key} is not allowed. No line of {PATH} matches it");
            return Err(Error::config(msg));
        }
    }
    Ok(())
}
