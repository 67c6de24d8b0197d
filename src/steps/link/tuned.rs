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
/// configured MTU. A file in another `dataDir` is not found. The writer of an incomplete file was killed before it set a value.
pub fn has_mtu(at: &Attachment) -> Result<bool> {
    let record = record(DIR, at);
    match record.read()?.transpose()? {
        None => Ok(false),
        Some(content) if Json::is_incomplete(&content) => Ok(false),
        Some(content) => {
            let json = Json::parse(&content).map_err(|error| record.damaged(error))?;
            Ok(json.get("mtu").is_some())
        }
    }
}
