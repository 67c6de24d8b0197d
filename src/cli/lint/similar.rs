//! Names that were meant when a name is unknown.

/// The known name that is nearest to an unknown one, if it is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = normal(name);
    let distance = |known: &'a str| (distance(&wanted, &normal(known)), known);
    let (distance, known) =
        known.into_iter().map(distance).min_by_key(|(distance, _)| *distance)?;
    // A typing error in a short name makes another name.
    let limit = match wanted.len() {
        0..3 => 0,
        3..6 => 1,
        _ => 2,
    };
    (distance <= limit).then_some(known)
}

/// In lower case, without the marks between words.
fn normal(name: &str) -> Vec<u8> {
    name.bytes()
        .filter(|byte| !b"_-.".contains(byte))
        .map(|byte| byte.to_ascii_lowercase())
        .collect()
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
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }
}
