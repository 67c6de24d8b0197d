//! The state file in which `tuning`, also that of the reference, stores the old values of an interface from ADD to DEL.

use crate::cni::json::Json;
use crate::error::Result;
use crate::names::Attachment;
use crate::steps::state::StateFile;

/// The default of the key `dataDir` of `tuning`.
pub const DIR: &str = "/run/cni/tuning";

pub fn record(dir: &str, at: &Attachment) -> StateFile {
    StateFile::new(dir, &format!("{}_{}.json", at.container_id, at.ifname))
}

/// Whether `tuning` set the MTU of the interface. Then CHECK of the plugin that made the interface does not require the
/// configured MTU. A file in another `dataDir` is not found.
pub fn has_mtu(at: &Attachment) -> Result<bool> {
    let Some(content) = record(DIR, at).read()? else { return Ok(false) };
    Ok(Json::parse(&content).is_ok_and(|json| json.get("mtu").is_some()))
}
