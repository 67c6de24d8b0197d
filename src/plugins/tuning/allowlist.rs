//! Which sysctls an administrator allows: a file with a regular expression on each line, one of which has to be found in
//! the key as it is written in the configuration. Without the file all are allowed.

use std::io::ErrorKind;
use std::path::Path;

use super::pattern::Pattern;
use crate::error::{Error, Result};
use crate::kernel::file;

const PATH: &str = "/etc/cni/tuning/allowlist.conf";

/// Every key is allowed, whatever its value.
pub fn check(sysctls: &[(&str, &str)]) -> Result<()> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let text = match file::read_text(Path::new(PATH)) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(
                Error::internal(format!("cannot read {PATH}")).with_details(error.to_string())
            );
        }
    };
    let mut patterns = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        patterns.push(Pattern::parse(line).map_err(|reason| {
            Error::config(format!("cannot read pattern {line} of {PATH}")).with_details(reason)
        })?);
    }
    for (key, _) in sysctls {
        if !patterns.iter().any(|pattern| pattern.is_in(key)) {
            let msg = format!("Sysctl {key} is not allowed. No line of {PATH} matches it");
            return Err(Error::config(msg));
        }
    }
    Ok(())
}
