//! Text for people: sections of aligned lines.

use super::Report;
use crate::oracle::printable::printable;
use std::io::{self, Write};

pub(super) fn write(report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(report.text().finish().as_bytes())
}

/// A page under construction.
#[derive(Debug, Clone, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// A page that begins with one line, which says the result.
    pub fn new(headline: &str) -> Self {
        Self { text: format!("{}\n", printable(headline)) }
    }

    /// A section of lines under a title; nothing at all where there are no lines.
    pub fn lines<T: AsRef<str>>(&mut self, title: &str, lines: impl IntoIterator<Item = T>) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        self.text.push_str(&format!("\n{title}\n"));
        for line in lines {
            self.text.push_str(&format!("  {}\n", printable(line.as_ref())));
        }
    }

    /// A section of names and values, the values aligned.
    pub fn pairs(&mut self, title: &str, pairs: &[(&str, String)]) {
        let rows: Vec<Vec<String>> = pairs.iter().map(|(name, value)| vec![name.to_string(), value.clone()]).collect();
        self.lines(title, aligned(&rows, 2));
    }

    /// A section of columns, the first `left` aligned to the left and the others to the right.
    pub fn columns(&mut self, title: &str, rows: &[Vec<String>], left: usize) {
        self.lines(title, aligned(rows, left));
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// Pads cells to the widest of their column, and leaves no space at the end of a line.
fn aligned(rows: &[Vec<String>], left: usize) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_aligned_and_empty_ones_do_not_appear() {
        let mut page = Page::new("done");
        page.pairs("sizes", &[("a", "1".to_string()), ("long", "22".to_string())]);
        page.lines("nothing", Vec::<String>::new());
        page.columns(
            "table",
            &[vec!["n".into(), "x".into(), "yy".into()], vec!["10".into(), "zzz".into(), "w".into()]],
            1,
        );
        let expected = "done\n\nsizes\n  a     1\n  long  22\n\ntable\n  n     x  yy\n  10  zzz   w\n";
        assert_eq!(page.finish(), expected);
    }
}
