use std::io::Write;
use std::time::{Duration, SystemTime};

use super::*;
use crate::attachments::record::{Maker, Operation, Version};
use crate::names::{ContainerId, IfName, Mac};
use crate::netlink::rtnl::Nsid;

struct Scratch(PathBuf);

impl Scratch {
    fn records(name: &str) -> (Self, Records) {
        let dir = std::env::temp_dir().join(format!("cnibox-record-{name}-{}", std::process::id()));
        (Self(dir.clone()), Records::in_directory(dir.join("cni/attachments")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn record(boot_and_cookie: &str) -> Record {
    Record {
        version: Version::default(),
        network: NetworkName::new("net").unwrap(),
        at: Attachment {
            container_id: ContainerId::new("c1").unwrap(),
            ifname: IfName::new("eth0").unwrap(),
        },
        netns: "/run/netns/c1".into(),
        identity: Identity::parse(boot_and_cookie).unwrap(),
        observer: Some(1),
        number: Nsid::parse("1073741831"),
        generation: "0123456789abcdef".into(),
        maker: Maker::Plugin,
        made: Vec::new(),
        claims: Vec::new(),
        plugins: vec!["bridge".into()],
        ports: None,
        starter: None,
        is_deleting: false,
        is_repeated: false,
        request: Vec::new(),
        is_added: false,
    }
}

fn made(address: &str) -> Made {
    let macs = vec![Mac([2, 0, 0, 0, 0, 7])];
    Made { macs, addresses: vec![address.parse().unwrap()], cache: None }
}

fn read(records: &Records) -> Option<Record> {
    let Record { network, at, .. } = record("b 7");
    records.read(&network, &at).unwrap()
}

#[test]
fn a_record_has_the_addresses_of_the_add_and_the_later_ones() {
    let (dir, records) = Scratch::records("lines");
    let mut begun = records.begin(&record("b 7")).unwrap();
    assert_eq!(read(&records), Some(record("b 7")));
    begun.note_made(&made("10.1.0.2")).unwrap();
    let whole = |addresses: &[&str]| {
        let made = addresses.iter().copied().map(made).collect();
        Some(Record { made, ..record("b 7") })
    };
    assert_eq!(read(&records), whole(&["10.1.0.2"]));
    let Record { network, at, .. } = record("b 7");
    records.amend(&network, &at, &made("10.1.0.3")).unwrap();
    assert_eq!(read(&records), whole(&["10.1.0.2", "10.1.0.3"]));
    // The incomplete line of a writer that was killed.
    let path = records.path(&network, &at);
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str(r#"{"macs":["#);
    fs::write(&path, text).unwrap();
    assert_eq!(read(&records), whole(&["10.1.0.2", "10.1.0.3"]));
    records.remove(&network, &at).unwrap();
    assert_eq!(read(&records), None);
    let all = records.all().unwrap();
    assert_eq!((all.records, all.unreadable.len()), (vec![], 0));
    records.amend(&network, &at, &made("10.1.0.3")).unwrap();
    drop(dir);
}

#[test]
fn the_file_of_a_record_has_one_document_per_line() {
    let (_dir, records) = Scratch::records("format");
    let mut begun = records.begin(&record("b 7")).unwrap();
    let path = records.path(&record("b 7").network, &record("b 7").at);
    records.note_claims(&path, &["@10.1.0.2@cni0".into()]).unwrap();
    begun.note_made(&made("10.1.0.2")).unwrap();
    let header = r#"{"version":1,"network":"net","containerID":"c1","ifname":"eth0","netns":"/run/netns/c1","identity":"b 7","observer":1,"number":1073741831,"generation":"0123456789abcdef","maker":"plugin"}"#;
    let claims = r#"{"claims":["@10.1.0.2@cni0"]}"#;
    let made = r#"{"macs":["02:00:00:00:00:07"],"addresses":["10.1.0.2"]}"#;
    let plugins = r#"{"plugins":["bridge"]}"#;
    // Lines that are appended begin with a newline.
    let all = format!("{header}\n{plugins}\n\n{claims}\n\n{made}\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), all);
    // A full disk has cut off a line. The next one is read nevertheless.
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(br#"{"claims":["@10.1"#).unwrap();
    begun.note_deleting().unwrap();
    assert!(read(&records).unwrap().is_deleting);
}

#[test]
fn a_record_that_is_amended_often_stays_short() {
    let (_dir, records) = Scratch::records("short");
    let Record { network, at, .. } = record("b 7");
    records.begin(&record("b 7")).unwrap().note_made(&made("10.1.0.1")).unwrap();
    let file = records.file_name(&network, &at);
    for number in 2..250 {
        let address = format!("10.1.0.{number}");
        let claim = claims::name(address.parse().unwrap(), "cni0");
        records.note_claims(&file, &[claim]).unwrap();
        records.amend(&network, &at, &made(&address)).unwrap();
    }
    let read = read(&records).unwrap();
    assert!(fs::metadata(records.path(&network, &at)).unwrap().len() < 4096);
    let last = read.made.iter().rev().take(2).cloned().collect::<Vec<_>>();
    assert_eq!(last, [made("10.1.0.249"), made("10.1.0.248")]);
    assert_eq!(read.claims.last().unwrap(), "@10.1.0.249@cni0");
    assert_eq!(read.identity, record("b 7").identity);
}

#[test]
fn a_failed_add_leaves_the_earlier_record() {
    let (dir, records) = Scratch::records("failed");
    fs::create_dir(&dir.0).unwrap();
    records.begin(&record("b 7")).unwrap().undo().unwrap();
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
    records.begin(&record("b 7")).unwrap().note_made(&made("10.1.0.2")).unwrap();
    let before = read(&records);
    let Record { network, at, .. } = record("b 7");
    let path = records.path(&network, &at);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    // Another namespace, and the same one again.
    for identity in ["b 8", "b 7"] {
        let begun = records.begin(&record(identity)).unwrap();
        let is_repeated = identity == "b 7";
        assert_eq!(read(&records), Some(Record { is_repeated, ..record(identity) }));
        begun.undo().unwrap();
        assert_eq!(read(&records), before);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
    }
}

#[test]
fn an_add_repeats_an_earlier_one_until_one_succeeds() {
    let (_dir, records) = Scratch::records("repeated");
    let begin = |identity: &str| records.begin(&record(identity)).unwrap();
    // The first ADDs are killed.
    assert!(!begin("b 7").is_repeated && !begin("b 7").is_repeated);
    let mut begun = begin("b 7");
    // A plugin that this one delegates to.
    assert!(!begin("b 7").is_repeated);
    begun.note_made(&made("10.1.0.2")).unwrap();
    drop(begun);
    assert!(begin("b 7").is_repeated && begin("b 7").is_repeated);
    let begun = begin("b 7");
    assert!(begin("b 7").is_repeated, "a delegate");
    drop(begun);
    // `life` tells whether the other namespace has ended.
    assert!(begin("b 8").is_repeated);
    assert!(!begin("b 8").is_repeated);
}

#[test]
fn the_record_of_a_caller_stays() {
    let (_dir, records) = Scratch::records("caller");
    let mut outer = records.begin(&record("b 7")).unwrap();
    let other = Record { maker: Maker::Ipam, ..record("b 7") };
    let inner = records.begin(&other).unwrap();
    inner.undo().unwrap();
    assert_eq!(read(&records), Some(record("b 7")));
    records.begin(&other).unwrap().note_made(&made("10.1.0.2")).unwrap();
    outer.note_made(&made("10.1.0.2")).unwrap();
    assert_eq!(read(&records).unwrap().maker, Maker::Plugin);
}

#[test]
fn a_record_lists_the_noted_ports_and_passes_them_on() {
    let (_dir, records) = Scratch::records("ports");
    let ports = |ports: &[&str]| Some(ports.iter().copied().map(str::to_owned).collect());
    let begin = |identity: &str| {
        let mut begun = records.begin(&Record { ports: ports(&[]), ..record(identity) }).unwrap();
        begun.note_made(&made("10.1.0.2")).unwrap();
        read(&records).unwrap()
    };
    let first = begin("b 7");
    assert_eq!(first.ports, ports(&[]));
    for noted in ["a", "b"] {
        records.note_add(&first, "portmap", vec![noted.to_owned()]).unwrap();
    }
    assert_eq!(read(&records).unwrap().ports, ports(&["a", "b"]));
    assert_eq!(begin("b 8").ports, ports(&["a", "b"]));
    // An earlier release writes no ports.
    records.remove(&first.network, &first.at).unwrap();
    records.begin(&record("b 7")).unwrap().note_made(&made("10.1.0.2")).unwrap();
    assert_eq!(begin("b 8").ports, None);
}

#[test]
fn an_adopted_record_replaces_no_record() {
    let (_dir, records) = Scratch::records("adopted");
    let adopted = Record { maker: Maker::Adopted, ..record("b 7") };
    assert_eq!(records.adopt(&adopted, &made("10.1.0.2")), Ok(true));
    assert_eq!(records.adopt(&record("b 8"), &made("10.1.0.2")), Ok(false));
    assert_eq!(read(&records).unwrap().maker, Maker::Adopted);
}

/// Contents of which none is a record that this release reads, and a part of the error about each.
const DAMAGES: [(&str, &str); 5] = [
    ("", "it is empty"),
    (r#"{"version":1,"network":"net","contai"#, "EOF"),
    ("{}", "missing field"),
    (r#"{"version":2,"network":7}"#, "its form has version 2"),
    (
        r#"{"network":"net","containerID":"c1","ifname":"eth0","netns":"","identity":"b 7","generation":"","maker":"cnibox2"}"#,
        "cnibox2",
    ),
];

#[test]
fn an_unreadable_record_is_no_absence_and_stays() {
    for (damage, reason) in DAMAGES {
        let (_dir, records) = Scratch::records("unreadable");
        let Record { network, at, .. } = record("b 7");
        records.begin(&record("b 7")).unwrap().note_made(&made("10.1.0.2")).unwrap();
        let path = records.path(&network, &at);
        fs::write(&path, damage).unwrap();
        let error = records.read(&network, &at).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("cannot read record"), "{error}");
        assert_eq!(records.of_owner("net c1 eth0").unwrap_err().to_string(), error);
        // The owner's names can be those behind a hash.
        assert_eq!(records.of_owner("#12 c1 eth0").unwrap_err().to_string(), error);
        assert!(records.begin(&record("b 8")).is_err());
        assert!(records.hold(&network, &at).is_err());
        assert!(records.amend(&network, &at, &made("10.1.0.3")).is_err());
        let all = records.sweep().unwrap();
        assert_eq!((all.records.len(), all.unreadable.len()), (0, 1));
        assert_eq!(all.unreadable[0].named(), Some((network.clone(), at.clone())));
        assert_eq!(fs::read_to_string(&path).unwrap(), damage);
        records.remove(&network, &at).unwrap();
        assert_eq!(records.read(&network, &at), Ok(None));
    }
}

#[test]
fn a_record_that_cannot_be_opened_is_no_absence() {
    let (_dir, records) = Scratch::records("unopened");
    let Record { network, at, .. } = record("b 7");
    let path = records.path(&network, &at);
    assert_eq!(records.read(&network, &at), Ok(None), "there is no directory");
    fs::create_dir_all(&path).unwrap();
    assert!(records.read(&network, &at).is_err());
    assert_eq!(records.all().unwrap().unreadable.len(), 1);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path.parent().unwrap(), "").unwrap();
    assert!(records.read(&network, &at).is_err() && records.all().is_err());
}

#[test]
fn the_claim_of_an_unreadable_record_may_be_valid() {
    let (_dir, records) = Scratch::records("claim");
    let Record { network, at, .. } = record("b 7");
    records.begin(&record("b 7")).unwrap().note_made(&made("10.1.0.2")).unwrap();
    let (file, claim) = (records.file_name(&network, &at), "@10.1.0.2@cni0");
    records.note_claims(&file, &[claim.into()]).unwrap();
    records.claim(claim, &file).unwrap();
    assert_eq!(records.holder(claim).unwrap().unwrap().at, at);
    fs::write(records.path(&network, &at), "").unwrap();
    assert!(records.holder(claim).is_err());
    records.sweep().unwrap();
    assert!(records.holder(claim).is_err());
    records.remove(&network, &at).unwrap();
    records.sweep().unwrap();
    assert_eq!(
        (records.holder(claim), records.directory().join(claim).is_symlink()),
        (Ok(None), false)
    );
}

#[test]
fn a_record_tells_which_operation_was_interrupted() {
    let (_dir, records) = Scratch::records("operation");
    let Record { network, at, .. } = record("b 7");
    let request = br#"{"kind":"cniCacheV1","config":"e30="}"#.to_vec();
    let operation = || read(&records).unwrap().operation();
    let new = Record { maker: Maker::Cnibox, request: request.clone(), ..record("b 7") };
    let mut begun = records.begin(&new).unwrap();
    assert_eq!(operation(), Some(Operation::Add));
    begun.note_made(&made("10.1.0.2")).unwrap();
    assert_eq!(operation(), Some(Operation::Add), "the caller has no result yet");
    begun.note_added().unwrap();
    drop(begun);
    assert_eq!(operation(), None);
    // The DEL of a plugin.
    records.mark_deleting(&read(&records).unwrap()).unwrap();
    assert_eq!(operation(), None);
    let Hold::Held(mut held) = records.hold_for_removal(&network, &at).unwrap() else { panic!() };
    held.note_deleting(Vec::new).unwrap();
    assert_eq!(operation(), Some(Operation::Del));
    // The ADD of a chained plugin.
    records.note_add(&read(&records).unwrap(), "portmap", Vec::new()).unwrap();
    records.note_void(&read(&records).unwrap()).unwrap();
    assert_eq!(operation(), None);
    assert_eq!(read(&records).unwrap().request, request);
    // A request that a full disk cut off.
    let path = records.path(&network, &at);
    fs::write(&path, [read(&records).unwrap().content(), request[..20].to_vec()].concat()).unwrap();
    assert_eq!(read(&records).unwrap().request, request);
    // A release up to 0.2.0 wrote no request.
    let old = Record { request: Vec::new(), ..new };
    fs::write(&path, old.content()).unwrap();
    assert_eq!(operation(), Some(Operation::Add));
}
