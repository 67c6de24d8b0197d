//! File operations that fail.

use std::fs;

use serde_json::json;

use super::Net;

/// An unreadable text is no absent one: after each failed operation of the first call of a boot, the reservation of the boot before is
/// still known as such.
#[test]
fn a_failed_read_does_not_change_the_boot_of_a_reservation() {
    let net = Net::new(
        json!({"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.2", "rangeEnd": "10.1.0.2"}),
    );
    let boot_file = net.bare.scratch.text("boot");
    let call = |verb: &str, id: &str, boot: &str| {
        fs::write(&boot_file, format!("{boot}-e6cd-4471-bb46-39adcacd0000\n")).unwrap();
        net.call(verb, id).env("CNIBOX_BOOT_FILE", &boot_file)
    };
    for number in 1.. {
        assert!(number < 100);
        net.write("10.1.0.2", "old\r\neth0");
        call("DEL", "x", "00000001").run().silence();
        let failing =
            call("DEL", "x", "00000002").env("CNIBOX_FAIL_FILE", &number.to_string()).run();
        call("ADD", "new", "00000002").run().success();
        call("DEL", "new", "00000002").run().silence();
        if !failing.is_faulty {
            assert!(number > 10, "{number}");
            break;
        }
    }
}
