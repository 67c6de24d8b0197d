//! Names that were meant when a name is unknown.

/// The known name that is nearest to an unknown one, if it is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let wanted = normal(name);
    // A typing error in a short name makes another name.
    let limit = match wanted.len() {
        0..3 => 0,
        3..6 => 1,
        _ => 2,
    };
    let (mut least, mut nearest) = (limit + 1, None);
    for known in known {
        let distance = distance(&wanted, &normal(known));
        if distance < least {
            (least, nearest) = (distance, Some(*known));
        }
    }
    nearest
}

/// The question at the end of a message about an unknown name.
pub(super) fn hint(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(known) => format!("; did you mean {known}?"),
        None => String::new(),
    }
}

/// In lower case, without the marks between words.
fn normal(name: &str) -> Vec<u8> {
    let mut normal = name.to_ascii_lowercase().into_bytes();
    normal.retain(|byte| !b"_-.".contains(byte));
    normal
}

/// The number of bytes to insert, delete, replace, or exchange with the next one.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = [Vec::new(), Vec::new(), (0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        rows.rotate_left(1);
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = rows[1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(row[j - 1] + 1).min(rows[1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(rows[0][j - 2] + 1);
            }
        }
        rows[2] = row;
    }
    rows[2][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_near_and_another_name_is_not() {
        let known = ["bridge", "isGateway", "mtu", "mac", "ipMasq", "subnet"];
        let cases = [
            ("brigde", Some("bridge")),
            ("is_gateway", Some("isGateway")),
            ("isGatewy", Some("isGateway")),
            ("mtuu", Some("mtu")),
            ("ipMasc", Some("ipMasq")),
            ("subnets", Some("subnet")),
            ("keyA", None),
            ("my", None),
            ("master", None),
            ("", None),
        ];
        for (name, expected) in cases {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
