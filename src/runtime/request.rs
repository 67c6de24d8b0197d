//! Derives the request configuration of a plugin in a list: the JSON on its stdin.
//!
//! Source: CNI specification 1.1.0, section 3, "Deriving request configuration from plugin configuration".

use crate::cni::json::Json;
use crate::names::Attachment;
use crate::runtime::conf::{Network, declared, remove_keys};

/// The keys that only a runtime may write. They are removed from the configuration of the administrator.
const RESERVED: [&str; 6] = [
    "cniVersion",
    "name",
    "capabilities",
    "prevResult",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
];

/// The request configuration of a plugin: name and version of the network; the keys of the plugin, whose order and numbers do
/// not change; then the keys of the runtime: the capability arguments that the plugin declares, and the attachments that GC
/// keeps.
pub fn configuration(
    network: &Network,
    plugin: &Json,
    capability_args: &Json,
    valid_attachments: Option<&[Attachment]>,
) -> Json {
    let Json::Object(own) = plugin else { return Json::Null };
    let mut entries = vec![
        ("cniVersion".to_owned(), network.version.text().into()),
        ("name".to_owned(), network.name.to_string().into()),
    ];
    let mut own = own.clone();
    remove_keys(&mut own, &RESERVED);
    let runtime_config = runtime_config(plugin, capability_args);
    if runtime_config.is_some() {
        remove_keys(&mut own, &["runtimeConfig"]);
    }
    entries.append(&mut own);
    let valid = valid_attachments.map(list);
    let added = [
        ("runtimeConfig", runtime_config),
        // The key of the valid attachments in a draft of the specification of GC.
        ("cni.dev/attachments", valid.clone()),
        ("cni.dev/valid-attachments", valid),
    ];
    let present = added.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    entries.extend(present);
    Json::Object(entries)
}

/// The value of `runtimeConfig`: the capability arguments that the plugin declares. `None` if there are none.
fn runtime_config(plugin: &Json, capability_args: &Json) -> Option<Json> {
    let Json::Object(args) = capability_args else { return None };
    let declared = declared(plugin);
    let wanted = |(name, _): &&(String, Json)| declared.contains(name.as_str());
    let wanted: Vec<_> = args.iter().filter(wanted).cloned().collect();
    (!wanted.is_empty()).then_some(Json::Object(wanted))
}

fn list(valid: &[Attachment]) -> Json {
    let object = |at: &Attachment| {
        Json::object([
            ("containerID", Some(at.container_id.to_string().into())),
            ("ifname", Some(at.ifname.to_string().into())),
        ])
    };
    Json::Array(valid.iter().map(object).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).unwrap()
    }

    fn of(plugin: &str, capability_args: &Json, valid: Option<&[Attachment]>) -> String {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#);
        let network = Network::from_cache(text.as_bytes()).unwrap();
        configuration(&network, &network.plugins[0], capability_args, valid).to_compact()
    }

    #[test]
    fn keys_keep_their_order_and_numbers_their_digits() {
        let plugin = r#"{"z":1.0,"type":"a","n":12345678901234567890,"a":[1e3],"args":{"x":{}}}"#;
        let expected = r#"{"cniVersion":"1.0.0","name":"net","z":1.0,"type":"a","n":12345678901234567890,"a":[1e3],"args":{"x":{}}}"#;
        assert_eq!(of(plugin, &Json::Null, None), expected);
    }

    #[test]
    fn name_and_version_are_those_of_the_list_and_reserved_keys_go() {
        let plugin = r#"{"name":"x","CniVersion":"0.1.0","type":"a","prevResult":{},"Capabilities":{},"cni.dev/attachments":[]}"#;
        let expected = r#"{"cniVersion":"1.0.0","name":"net","type":"a"}"#;
        assert_eq!(of(plugin, &Json::Null, None), expected);
    }

    #[test]
    fn a_plugin_gets_the_capability_arguments_that_it_declares() {
        let args = json(r#"{"mac":"m","portMappings":[{"hostPort":1}],"ips":["i"]}"#);
        let plugin = r#"{"type":"a","runtimeConfig":{"own":1},"capabilities":{"ips":false,"portMappings":true,"mac":true,"dns":true}}"#;
        let expected = r#"{"cniVersion":"1.0.0","name":"net","type":"a","runtimeConfig":{"mac":"m","portMappings":[{"hostPort":1}]}}"#;
        assert_eq!(of(plugin, &args, None), expected);
        // Without capability arguments, `runtimeConfig` of the administrator stays.
        let plugin = r#"{"type":"a","runtimeConfig":{"own":1}}"#;
        let expected =
            r#"{"cniVersion":"1.0.0","name":"net","type":"a","runtimeConfig":{"own":1}}"#;
        assert_eq!(of(plugin, &args, None), expected);
    }

    #[test]
    fn gc_gets_the_list_under_both_of_its_names() {
        let expected = r#"{"cniVersion":"1.0.0","name":"net","type":"a","cni.dev/attachments":[],"cni.dev/valid-attachments":[]}"#;
        assert_eq!(of(r#"{"type":"a"}"#, &Json::Null, Some(&[])), expected);
    }
}
