//! Tables for people: aligned columns below a header.

use super::say;

/// Prints rows below their header, as wide as they are. An empty cell is a dash.
pub(super) fn print<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    print_within(usize::MAX, &[], header, rows);
}

/// The same on lines of at most `columns` characters: the widest of the cells in the places of `cut` end with a tilde.
pub(super) fn print_within<const N: usize>(
    columns: usize,
    cut: &[usize],
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let mut all = vec![header.map(str::to_owned).to_vec()];
    all.extend(rows.map(|row| row.to_vec()));
    print_all(columns, cut, &mut all);
}

/// All rows have the same number of cells.
fn print_all(columns: usize, cut: &[usize], rows: &mut [Vec<String>]) {
    let mut widths = Vec::new();
    for row in rows.iter_mut() {
        widths.resize(row.len(), 0);
        for (cell, width) in row.iter_mut().zip(&mut widths) {
            *cell = printable(cell);
            *width = cell.chars().count().max(*width);
        }
    }
    while widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > columns {
        match cut.iter().copied().max_by_key(|column| widths[*column]) {
            Some(widest) if widths[widest] > 1 => widths[widest] -= 1,
            _ => break,
        }
    }
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let count = cell.chars().count();
            let is_cut = count > *width;
            line.extend(cell.chars().take(width - usize::from(is_cut)));
            line.extend(is_cut.then_some('~'));
            line.extend(std::iter::repeat_n(' ', GAP + width.saturating_sub(count)));
        }
        say(&line);
    }
}

/// The spaces between two columns.
const GAP: usize = 2;

/// Text from files may contain control characters, which the terminal would execute.
fn printable(cell: &str) -> String {
    match cell {
        "" => "-".into(),
        cell => cell.replace(char::is_control, "?"),
    }
}
