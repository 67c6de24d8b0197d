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
    let mut all = vec![header.map(str::to_owned)];
    all.extend(rows.map(|row| row.map(|cell| printable(&cell))));
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
    let mut widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    while widths.iter().sum::<usize>() + GAP * (N - 1) > columns
        && let Some(widest) = cut.iter().copied().max_by_key(|column| widths[*column])
        && widths[widest] > 1
    {
        widths[widest] -= 1;
    }
    for row in &all {
        let cells = row.iter().zip(widths).map(|(cell, width)| {
            let is_cut = cell.chars().count() > width;
            let kept = cell.chars().take(width - usize::from(is_cut));
            let text = kept.chain(is_cut.then_some('~')).collect::<String>();
            format!("{text:<width$}  ")
        });
        say(&cells.collect::<String>());
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
