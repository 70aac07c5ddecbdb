//! JSON: one object, indented.

use super::Report;
use std::io::{self, Write};

pub(super) fn write(report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &report.json())?;
    writeln!(out)
}
