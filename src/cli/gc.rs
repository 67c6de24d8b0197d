//! `cnibox gc`: removes attachments that are provably dead.

use crate::cni::json::{Json, Object};
use crate::error::{Error, Result};
use crate::runtime::gc::{Options, Removed};

use super::call::Call;
use super::parameters;

/// `cnibox gc`.
pub(super) fn gc(call: &Call<'_>) -> Result<u8> {
    let runtime = parameters::runtime(call.plugins, call.timeout_s);
    let (network, _) = parameters::network_and_netns(&call.operands)?;
    let choice = network.map(parameters::choice).transpose()?;
    let (is_dry_run, is_json) = (call.has("--dry-run"), call.has("--json"));
    let options = Options { is_dry_run, uncached: call.has("--uncached") };
    let collected = runtime.gc(choice.as_ref(), options)?;
    let mut objects = Vec::new();
    for removed in &collected.removed {
        let Removed { network, at, reason } = removed;
        if is_json {
            let mut object = Object::default();
            object.text("network", network).text("containerID", &at.container_id);
            objects.push(object.text("ifname", &at.ifname).text("reason", reason).json());
        } else {
            let done = if is_dry_run { "would remove" } else { "removed" };
            let at = format!("{} of container {}", at.ifname, at.container_id);
            super::tell(format_args!("{done} {at} from network {network}: {reason}"));
        }
    }
    if is_json {
        let mut document = Object::default();
        document.put("dryRun", Json::Bool(is_dry_run)).list("removed", objects);
        super::say_json(&mut document);
    }
    Error::joined(collected.errors).map(|()| 0)
}
