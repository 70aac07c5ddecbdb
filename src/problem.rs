//! What is wrong with an input, said so that the reader can act on it.

use serde::Serialize;
use std::fmt;

/// One thing that is wrong with a checkpoint, found without reading a weight.
///
/// `code` is stable (a CI job may match on it), `place` names the file, tensor or key, and `message` says what was
/// expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub code: &'static str,
    pub place: String,
    pub message: String,
}

impl Problem {
    pub fn new(code: &'static str, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Several problems as one sentence.
pub fn sentences(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ")
}

/// Text out of an input file, fit for a terminal: control and invisible characters are escaped.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\'' | '"' | '\\' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// A name out of an input file, in backquotes and fit for a terminal: control and invisible characters are escaped,
/// and what follows the 120th character is cut.
pub fn quote(name: &str) -> String {
    const SHOWN: usize = 120;
    match name.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("`{}...`", visible(&name[..at])),
        None => format!("`{}`", visible(name)),
    }
}

/// "; the nearest are a, b, c": up to three of the names that `name` may be a slip of the pen for; empty where none is.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    /// Of Jaro-Winkler: a letter left out or changed in a short name.
    const SIMILAR: f64 = 0.8;
    let similar = |other: &'a str| (strsim::jaro_winkler(name, other), other);
    let mut known: Vec<(f64, &str)> = known.into_iter().map(similar).filter(|(s, _)| *s >= SIMILAR).collect();
    known.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names: Vec<&str> = known.into_iter().take(3).map(|(_, name)| name).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("; the nearest is {one}"),
        several => format!("; the nearest are {}", several.join(", ")),
    }
}

/// The first few of many names, quoted: "`a`, `b`, `c` and 297 more".
pub fn quote_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 6;
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(SHOWN).map(quote).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{nearest, quote, quote_list};

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(quote("a\u{1b}[2J\n\u{202e}b"), "`a\\u{1b}[2J\\n\\u{202e}b`");
        assert_eq!(quote("model.layers.0 \"x\"'s"), "`model.layers.0 \"x\"'s`");
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(quote(&"x".repeat(120)), format!("`{}`", "x".repeat(120)));
        assert_eq!(quote(&"x".repeat(5000)), format!("`{}...`", "x".repeat(120)));
    }

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["llama", "llama4", "mistral", "gpt2"];
        assert_eq!(nearest("lama", known), "; the nearest are llama, llama4");
        assert_eq!(nearest("mistrel", known), "; the nearest is mistral");
        assert_eq!(nearest("acme", known), "");
    }

    #[test]
    fn a_list_says_how_many_it_leaves_out() {
        assert_eq!(quote_list(["a", "b"]), "`a`, `b`");
        assert_eq!(quote_list(["1", "2", "3", "4", "5", "6", "7", "8"]), "`1`, `2`, `3`, `4`, `5`, `6` and 2 more");
    }
}
