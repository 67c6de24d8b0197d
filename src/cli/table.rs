//! Tables for people: aligned columns below a header.

use std::fmt::Display;

use super::output::print_line;
use crate::kernel::terminal::printable;

/// Rows of cells. The first row is the header.
pub(super) struct Table(Vec<Vec<String>>);

/// The spaces between two columns.
const GAP: usize = 2;

impl Table {
    /// A table without rows. A space separates two names of `header`.
    pub(super) fn new(header: &str) -> Self {
        Self(vec![header.split(' ').map(str::to_owned).collect()])
    }

    /// Adds a row with as many cells as the header has. An empty text becomes a dash. Unprintable characters are replaced here,
    /// before the widths are computed.
    pub(super) fn row(&mut self, cells: &[&dyn Display]) {
        let shown = |cell: &&dyn Display| match cell.to_string() {
            text if text.is_empty() => "-".into(),
            text => printable(&text).into(),
        };
        self.0.push(cells.iter().map(shown).collect());
    }

    /// Prints the rows. Lines can be of any length.
    pub(super) fn print(&self) {
        self.print_within(usize::MAX, &[]);
    }

    /// Prints the rows on lines of at most `columns` characters. `cut` lists the columns of the table that can be shortened:
    /// the widest first. A shortened cell ends with a tilde. If that is not enough, lines are longer.
    pub(super) fn print_within(&self, columns: usize, cut: &[usize]) {
        let mut widths = vec![0; self.0[0].len()];
        for row in &self.0 {
            for (cell, width) in row.iter().zip(&mut widths) {
                *width = cell.chars().count().max(*width);
            }
        }
        while widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1) > columns {
            match cut.iter().copied().max_by_key(|column| widths[*column]) {
                Some(widest) if widths[widest] > 1 => widths[widest] -= 1,
                _ => break,
            }
        }
        for row in &self.0 {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let count = cell.chars().count();
                let is_cut = count > *width;
                line.extend(cell.chars().take(width - usize::from(is_cut)));
                line.extend(is_cut.then_some('~'));
                line.extend(std::iter::repeat_n(' ', GAP + width.saturating_sub(count)));
            }
            print_line(line);
        }
    }
}
