//! Tests of the look-up in a directory of configurations, and of the errors of wrong files.

use super::*;
use crate::error::Code;
use crate::runtime::cache::tests::Scratch;

fn parse(text: &str) -> Result<Network> {
    Network::parse(text.as_bytes(), Path::new("/nowhere/net.conflist"))
}

fn kinds(network: &Network) -> Vec<&str> {
    network.plugins.iter().map(kind).collect()
}

/// The file of a network, and the warnings about broken files before it.
fn find(dir: &Scratch, wanted: &str) -> (Result<String>, Vec<String>) {
    let mut warnings = Vec::new();
    let found = Network::find(wanted, dir.path(), &mut |error| warnings.push(error.to_string()));
    let name = |network: Network| network.file.file_name().unwrap().to_str().unwrap().to_owned();
    (found.map(name), warnings)
}

#[test]
fn lists_come_before_single_configurations_and_each_in_the_order_of_names() {
    let dir = Scratch::new();
    let list = r#"{"name":"net","plugins":[{"type":"a"}]}"#;
    for (name, text) in [
        ("10.conf", r#"{"name":"net","type":"a"}"#),
        ("05.json", r#"{"name":"only","type":"a"}"#),
        ("06.conf", r#"{"name":"only","type":"b"}"#),
        ("30.conflist", list),
        ("20.conflist", list),
        ("00.CONFLIST", list),
        ("00.txt", "{"),
    ] {
        dir.write(name, text);
    }
    std::fs::create_dir(dir.path().join("01.conflist")).unwrap();
    assert_eq!(find(&dir, "net"), (Ok("20.conflist".into()), vec![]));
    assert_eq!(find(&dir, "only"), (Ok("05.json".into()), vec![]));
    let all = Network::all(dir.path()).unwrap();
    let files = all.iter().flatten().map(|network| network.file.file_name().unwrap());
    let names: Vec<_> = files.collect();
    assert_eq!(names, ["20.conflist", "30.conflist", "05.json", "06.conf", "10.conf"]);
    let path = dir.path().join("30.conflist");
    assert_eq!(Network::load(&path).unwrap().file, path);
}

#[test]
fn a_broken_file_is_a_warning_with_line_and_column() {
    let dir = Scratch::new();
    dir.write("10.conflist", "{\n  \"name\": \"x\",\n  \"plugins\": [{]\n}");
    dir.write("11.conflist", r#"{"name":"y","plugins":[{"type":7}]}"#);
    dir.write("20.conflist", r#"{"name":"net","plugins":[{"type":"a"}]}"#);
    let (found, warnings) = find(&dir, "net");
    assert_eq!(found.unwrap(), "20.conflist");
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("10.conflist: cannot read JSON: "), "{warnings:?}");
    assert!(warnings[0].ends_with("at line 3 column 16"), "{warnings:?}");
    assert!(
        warnings[1].ends_with("plugins[0]: type: invalid type: integer `7`, expected a string"),
        "{warnings:?}"
    );
    let all = Network::all(dir.path()).unwrap();
    assert_eq!(all.iter().filter(|network| network.is_err()).count(), 2);
}

#[test]
fn the_error_of_a_missing_network_has_the_words_of_libcni() {
    let dir = Scratch::new();
    let error = |dir: &Scratch| find(dir, "net").0.unwrap_err().to_string();
    let path = dir.path().display().to_string();
    assert_eq!(error(&dir), format!("no net configurations found in {path}"));
    dir.write("1.conf", r#"{"name":"x","type":"a"}"#);
    assert_eq!(error(&dir), format!("no net configuration with name \"net\" in {path}"));
    let none = Network::find("net", Path::new("/nowhere"), &mut |_| {}).unwrap_err();
    assert_eq!(none.msg, "no net configurations found in /nowhere");
}

#[test]
fn a_single_configuration_becomes_a_list() {
    let dir = Scratch::new();
    dir.write("1.conf", r#"{"type":"a","z":1.0,"name":"net","cniVersion":"0.4.0"}"#);
    let network = Network::load(&dir.path().join("1.conf")).unwrap();
    assert_eq!((&*network.name, network.version), ("net", Version::V0_4_0));
    assert_eq!(
        String::from_utf8_lossy(&network.bytes),
        r#"{"name":"net","cniVersion":"0.4.0","plugins":[{"type":"a","z":1.0,"name":"net","cniVersion":"0.4.0"}]}"#
    );
    let cached = Network::from_cache(&network.bytes).unwrap();
    assert_eq!(cached.plugins, network.plugins);
    // An old runtime caches the single configuration itself.
    let cached = Network::from_cache(br#"{"name":"net","type":"a"}"#).unwrap();
    assert_eq!((kinds(&cached), cached.version), (vec!["a"], Version::V0_1_0));
}

#[test]
fn plugins_in_a_directory_come_after_those_in_the_list() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.path().join("net")).unwrap();
    dir.write("net/20.conf", r#"{"type":"c"}"#);
    dir.write("net/10.conf", r#"{"type":"b"}"#);
    dir.write("net/30.json", r#"{"type":"d"}"#);
    let load = |text: &str| {
        dir.write("1.conflist", text);
        Network::load(&dir.path().join("1.conflist"))
    };
    let network = load(r#"{"name":"net","plugins":[{"type":"a"}]}"#).unwrap();
    assert_eq!(kinds(&network), ["a", "b", "c"]);
    assert_eq!(kinds(&Network::from_cache(&network.bytes).unwrap()), ["a", "b", "c"]);
    assert_eq!(kinds(&load(r#"{"name":"net"}"#).unwrap()), ["b", "c"]);
    for only in ["true", "\"TRUE\""] {
        let text = format!(
            r#"{{"name":"net","loadOnlyInlinedPlugins":{only},"plugins":[{{"type":"a"}}]}}"#
        );
        assert_eq!(kinds(&load(&text).unwrap()), ["a"]);
    }
    dir.write("net/15.conf", "{");
    let error = load(r#"{"name":"net","plugins":[{"type":"a"}]}"#).unwrap_err();
    assert!(error.to_string().contains("net/15.conf: cannot read JSON"), "{error}");
}

#[test]
fn the_highest_known_version_is_taken() {
    let version = |keys: &str| {
        let text = format!(r#"{{"name":"net",{keys}"plugins":[{{"type":"a"}}]}}"#);
        parse(&text).map(|network| network.version.text()).map_err(|error| error.code)
    };
    assert_eq!(version(""), Ok("0.1.0"));
    assert_eq!(version(r#""cniVersion":"1.0.0","#), Ok("1.0.0"));
    assert_eq!(
        version(r#""cniVersion":"0.3.1","cniVersions":["0.4.0","1.1.0","9.0.0"],"#),
        Ok("1.1.0")
    );
    assert_eq!(version(r#""cniVersion":"1.0.0","cniVersions":["0.3.1"],"#), Ok("1.0.0"));
    assert_eq!(version(r#""cniVersion":"2.0.0","cniVersions":["1.0.0"],"#), Ok("1.0.0"));
    assert_eq!(version(r#""cniVersion":"2.0.0","#), Err(Code::INCOMPATIBLE_VERSION));
    assert_eq!(version(r#""cniVersions":["one"],"#), Err(Code::DECODE));
    assert_eq!(version(r#""cniVersions":"1.0.0","#), Err(Code::DECODE));
    assert_eq!(version(r#""cniVersion":1,"#), Err(Code::DECODE));
}

#[test]
fn switches_are_booleans_or_their_texts() {
    let flags = |value: &str| {
        let text = format!(
            r#"{{"name":"net","disableCheck":{value},"disableGC":{value},"plugins":[{{"type":"a"}}]}}"#
        );
        parse(&text).map(|network| (network.disable_check, network.disable_gc)).ok()
    };
    assert_eq!(flags("true"), Some((true, true)));
    assert_eq!(flags("\"True\""), Some((true, true)));
    assert_eq!(flags("\"false\""), Some((false, false)));
    assert_eq!(flags("null"), Some((false, false)));
    assert_eq!(flags("1"), None);
    assert_eq!(flags("\"yes\""), None);
}

#[test]
fn a_wrong_list_is_refused() {
    for (text, reason) in [
        ("[]", "cannot read network configuration: invalid type: list"),
        (r#"{"plugins":[{"type":"a"}]}"#, "missing network name"),
        (r#"{"name":"a/b","plugins":[{"type":"a"}]}"#, "invalid characters found in network name"),
        (r#"{"name":"net"}"#, "no plugin configs found"),
        (r#"{"name":"net","plugins":[]}"#, "plugins: the list is empty"),
        (r#"{"name":"net","plugins":{}}"#, "plugins: not a list"),
        (r#"{"name":"net","plugins":["a"]}"#, "cannot read plugins[0]: invalid type: string"),
        (r#"{"name":"net","plugins":[{"type":""}]}"#, "plugins[0]: type is missing"),
        (r#"{"name":"net","type":"a"}"#, "no plugin configs found"),
        (r#"{"name":"net","loadOnlyInlinedPlugins":true}"#, "plugins: missing"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.to_string().starts_with(reason), "{text}: {error}");
    }
}

#[test]
fn capabilities_are_declared_by_their_exact_names() {
    let text = r#"{"name":"net","plugins":[{"type":"a","capabilities":{"mac":false,"ips":true}}]}"#;
    let network = parse(text).unwrap();
    assert!(network.is_capable_of("ips"));
    assert!(!network.is_capable_of("mac") && !network.is_capable_of("IPS"));
}
