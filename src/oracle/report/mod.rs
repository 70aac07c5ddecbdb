//! How a result is shown: one file per format, behind [`Report`].
//!
//! A result says its text, its JSON value, its table and its cases; a format turns one of these into bytes. So a new
//! kind of result has every format, and a new format serves every kind of result.

mod comparison;
mod csv;
mod github;
mod json;
mod junit;
mod text;

pub use text::Page;

use clap::ValueEnum;
use std::io::{self, Write};

/// The formats a result can be written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One object, with stable keys
    Json,
    /// One header, one row per result
    Csv,
    /// JUnit XML, for CI dashboards
    Junit,
    /// GitHub workflow commands: annotations on a run
    Github,
}

impl Format {
    /// Writes a result in this format, ending in a line break.
    pub fn write(self, report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Text => text::write(report, out),
            Self::Json => json::write(report, out),
            Self::Csv => csv::write(report, out),
            Self::Junit => junit::write(report, out),
            Self::Github => github::write(report, out),
        }
    }
}

/// A result that can be shown.
pub trait Report {
    /// The page for people.
    fn text(&self) -> Page;
    /// The JSON value; its keys are stable.
    fn json(&self) -> serde_json::Value;
    /// The rows for a spreadsheet.
    fn table(&self) -> Table;
    /// The checks for a CI system.
    fn suite(&self) -> Suite;
}

/// Rows under one header; every row has as many cells as the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub header: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Checks that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suite {
    pub name: String,
    pub cases: Vec<Case>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub name: String,
    /// The file an annotation belongs to.
    pub file: Option<String>,
    pub outcome: Outcome,
    /// One sentence.
    pub summary: String,
    /// Further lines; may be empty.
    pub details: Vec<String>,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// It was made and did not hold.
    Failed,
    /// It could not be made.
    Trouble,
}
