//! Tests of the cache: its format is libcni's, byte for byte.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;

/// A temporary directory. Drop removes it with its content.
pub(in crate::runtime) struct Scratch(PathBuf);

impl Scratch {
    pub(in crate::runtime) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(format!("cnibox-runtime-{pid}-{count}"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(in crate::runtime) fn path(&self) -> &Path {
        &self.0
    }

    pub(in crate::runtime) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// An entry of libcni 1.3.0.
const LIBCNI: &str = r#"{"kind":"cniCacheV1","containerId":"cnitool-20b4ff582526573bbe7d","config":"eyJuYW1lIjoiZm9vIiwiY25pVmVyc2lvbiI6IjEuMS4wIiwicGx1Z2lucyI6W3sidHlwZSI6ImZha2UifV19","ifName":"eth0","networkName":"foo","netns":"/run/netns/c1","cniArgs":[["A","b"],["C","d"]],"capabilityArgs":{"mac":"aa","portMappings":[{"hostPort":1}]},"result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"address":"1.2.3.4/24","interface":0}]}}"#;

fn entry() -> CacheEntry {
    CacheEntry::parse(&Json::parse(LIBCNI.as_bytes()).unwrap()).unwrap()
}

fn attachment(container_id: &str) -> Attachment {
    Attachment {
        container_id: ContainerId::new(container_id).unwrap(),
        ifname: IfName::new("eth0").unwrap(),
    }
}

fn name(name: &str) -> NetworkName {
    NetworkName::new(name).unwrap()
}

#[test]
fn an_entry_of_libcni_is_read_and_written_as_it_is() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path().join("lib/results"));
    let entry = entry();
    assert_eq!(cache.read(&entry.network, &entry.at), Ok(None));
    cache.write(&entry).unwrap();
    let path = dir.path().join("lib/results/foo-cnitool-20b4ff582526573bbe7d-eth0");
    assert_eq!(fs::read_to_string(&path).unwrap(), LIBCNI);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(fs::read_dir(dir.path().join("lib")).unwrap().count(), 1, "nothing is left aside");
    assert_eq!(cache.read(&entry.network, &entry.at), Ok(Some(entry.clone())));
    assert_eq!(entry.args, "A=b;C=d");
    assert_eq!(entry.network_of_add().unwrap().plugins.len(), 1);
    assert_eq!(entry.success().unwrap().unwrap().ips.len(), 1);
    cache.remove(&entry.network, &entry.at).unwrap();
    cache.remove(&entry.network, &entry.at).unwrap();
    assert_eq!(cache.read(&entry.network, &entry.at), Ok(None));
}

#[test]
fn podman_keeps_a_result_of_its_version_and_no_netns() {
    let json = Json::parse(
        br#"{"kind":"cniCacheV1","containerId":"c","config":"eyJuYW1lIjoieCJ9","ifName":"eth0",
            "networkName":"podman","result":{"cniVersion":"0.4.0","ips":[{"version":"4",
            "address":"10.88.0.2/16","gateway":"10.88.0.1","interface":0}],"dns":{}}}"#,
    );
    let entry = CacheEntry::parse(&json.unwrap()).unwrap();
    let success = entry.success().unwrap().unwrap();
    assert_eq!(success.nets()[0].to_string(), "10.88.0.2/16");
    assert_eq!((entry.netns.as_os_str().len(), entry.args.len()), (0, 0));
    let netns = |interfaces: &str| {
        let json = format!(
            r#"{{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"podman",
                "result":{{"cniVersion":"0.4.0","interfaces":[{interfaces}]}}}}"#
        );
        CacheEntry::parse(&Json::parse(json.as_bytes()).unwrap())
            .unwrap()
            .netns
            .display()
            .to_string()
    };
    let container = r#"{"name":"eth0","sandbox":"/run/netns/c"}"#;
    assert_eq!(netns(container), "/run/netns/c");
    assert_eq!(
        netns(&format!(r#"{{"name":"eth0"}},{{"name":"a","sandbox":"/b"}},{container}"#)),
        "/run/netns/c"
    );
    assert_eq!(netns(r#"{"name":"eth0","sandbox":"vm-7"},{"name":"eth1","sandbox":"/b"}"#), "");
    let error = entry.network_of_add().unwrap_err();
    assert!(error.to_string().contains("no plugin configs found"), "{error}");
    let other = CacheEntry { network: name("other"), ..self::entry() };
    assert!(other.network_of_add().unwrap_err().details.contains("network foo"));
}

#[test]
fn a_damaged_entry_is_reported_and_the_others_are_there() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    cache.write(&entry()).unwrap();
    let broken = [
        ("a-b-c", ""),
        ("b-b-c", "{\"kind\":"),
        ("c-b-c", r#"{"cniVersion":"0.4.0","dns":{}}"#),
        (
            "d-b-c",
            r#"{"kind":"cniCacheV1","networkName":"d","containerId":"b","ifName":"c","config":"*"}"#,
        ),
        ("e-b-c", r#"{"kind":"cniCacheV1","networkName":"d","containerId":"b"}"#),
        (
            "f-b-c",
            r#"{"kind":"cniCacheV1","networkName":"d","containerId":"b","ifName":"c","cniArgs":[["a"]]}"#,
        ),
    ];
    for (name, text) in broken {
        dir.write(name, text);
    }
    let Entries { entries, damaged } = cache.all().unwrap();
    assert_eq!(entries, [entry()]);
    assert_eq!(damaged.len(), broken.len(), "{damaged:?}");
    for ((name, _), Damaged { name: damaged, error }) in broken.iter().zip(&damaged) {
        assert_eq!(damaged, name);
        let path = dir.path().join(name);
        assert_eq!(error.msg, format!("cannot use cache entry {}", path.display()));
    }
    assert!(Cache::new("/nowhere").all().unwrap().entries.is_empty());
}

#[test]
fn before_cni_cache_v1_the_file_was_the_result() {
    let dir = Scratch::new();
    dir.write("net-c-eth0", r#"{"cniVersion":"0.4.0","ips":[{"address":"10.0.0.2/24"}],"dns":{}}"#);
    let entry = Cache::new(dir.path()).read(&name("net"), &attachment("c")).unwrap().unwrap();
    assert_eq!(entry.success().unwrap().unwrap().nets()[0].to_string(), "10.0.0.2/24");
    assert!(entry.config.is_empty());
}

#[test]
fn an_entry_of_another_attachment_with_the_same_file_name_is_not_used() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let (first, second) = (attachment("c"), attachment("b-c"));
    cache.write(&CacheEntry { network: name("a-b"), at: first.clone(), ..entry() }).unwrap();
    assert!(cache.read(&name("a-b"), &first).unwrap().is_some());
    let error = cache.read(&name("a"), &second).unwrap_err();
    assert_eq!(error.details, "it belongs to eth0 of container c in network a-b");
}

#[test]
fn the_configuration_is_in_the_base64_of_go() {
    for (bytes, text) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ] {
        assert_eq!(BASE64.encode(bytes), text);
        assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
    }
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(decode(&BASE64.encode(&all)), Some(all));
    assert_eq!(decode("Zm9v\r\nYmFy").as_deref(), Some(&b"foobar"[..]));
    assert_eq!(decode("Zh==").as_deref(), Some(&b"f"[..]), "the last bits of h are not used");
    for broken in ["Z", "Zg=", "Zg", "Zg==Zg==", "Z===", "====", "Zm9*", "Z=9v"] {
        assert_eq!(decode(broken), None, "{broken}");
    }
}
