//! Tables for people: aligned columns below a header.

use super::say;

/// Prints rows below their header, as wide as they are. An empty cell is a dash.
pub(super) fn print<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let mut all = vec![header.map(str::to_owned)];
    all.extend(rows.map(|row| row.map(|cell| printable(&cell))));
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    for row in &all {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  "));
        say(&cells.collect::<String>());
    }
}

/// Text from files may contain control characters, which the terminal would execute.
fn printable(cell: &str) -> String {
    match cell {
        "" => "-".into(),
        cell => cell.replace(char::is_control, "?"),
    }
}
