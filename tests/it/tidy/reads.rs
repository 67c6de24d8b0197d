//! Each read of a file or a pipe has a limit, because it is in one of a few places.

use super::{below_src, report, sources};

/// A read without a limit in the standard library, or an open that can wait for a FIFO, and the files that have it.
const READS: [(&str, &[&str]); 9] = [
    ("fs::read", &[]),
    ("read_to_string", &[]),
    // `file::read_to_end` has a limit.
    (".read_to_end", &["kernel/file.rs", "cni/request.rs"]),
    (".read_until", &["dhcp/line.rs", "kernel/file.rs", "plugins/firewall/dbus.rs"]),
    (".read_line", &["cli/doctor.rs"]),
    ("BufReader", &["dhcp/line.rs", "kernel/file.rs", "plugins/firewall/dbus.rs"]),
    ("from_reader", &[]),
    ("io::copy", &[]),
    ("File::open(", &OPENS),
];

/// Directories, namespaces, /dev/urandom, and what the operator names.
const OPENS: [&str; 8] = [
    "cli/install/directory.rs",
    "dhcp/journal.rs",
    "kernel/flock.rs",
    "kernel/host_view.rs",
    "kernel/netns.rs",
    "kernel/sys.rs",
    "runtime/conf.rs",
    "runtime/new_network.rs",
];

/// Whether a line has the word, which ends there.
fn has(line: &str, word: &str) -> bool {
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !word.ends_with(char::is_alphanumeric) || !line[at + word.len()..].starts_with(is_in_word)
    })
}

#[test]
fn reads_are_in_the_places_that_have_limits() {
    let mut broken = Vec::new();
    let mut unused: Vec<(&str, &str)> = READS
        .iter()
        .flat_map(|(word, places)| places.iter().map(|place| (*word, *place)))
        .collect();
    for source in sources("src") {
        for (number, line) in source.code().lines().enumerate() {
            for (word, places) in READS {
                if !has(line, word) {
                    continue;
                }
                let path = below_src(&source);
                unused.retain(|place| *place != (word, path));
                if !places.contains(&path) {
                    broken.push(format!("{}:{}: {word}", source.path, number + 1));
                }
            }
        }
    }
    broken.extend(unused.iter().map(|(word, path)| format!("src/{path} has no {word}")));
    report(&broken, "src/kernel/file.rs reads files, each with a limit");
}
