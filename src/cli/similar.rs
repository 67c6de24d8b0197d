//! The suggestion in the error for an unknown name: a known name with a similar spelling.

/// The known name with the smallest edit distance from `name`. `None` if the distance is too large for a typing error.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let normalized = normal(name);
    // One edit of a short name can give an unrelated name.
    let limit = match normalized.len() {
        0..3 => 0,
        3..6 => 1,
        _ => 2,
    };
    let (mut least, mut nearest) = (limit + 1, None);
    for known in known {
        let distance = distance(&normalized, &normal(known));
        if distance < least {
            (least, nearest) = (distance, Some(*known));
        }
    }
    nearest
}

/// The end of a message about an unknown name: `; did you mean NAME?`, or nothing.
pub(super) fn hint(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(known) => format!("; did you mean {known}?"),
        None => String::new(),
    }
}

/// The name in lower case, without `_`, `-` and `.`.
fn normal(name: &str) -> Vec<u8> {
    let mut normal = name.to_ascii_lowercase().into_bytes();
    normal.retain(|byte| !b"_-.".contains(byte));
    normal
}

/// The edit distance: the least number of bytes to insert, delete, replace, or exchange with the next one (optimal string
/// alignment).
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
