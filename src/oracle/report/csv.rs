//! CSV (RFC 4180), LF-terminated.

use super::Report;
use std::io::{self, Write};

pub(super) fn write(report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
    let table = report.table();
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(&table.header)?;
    for row in &table.rows {
        writer.write_record(row)?;
    }
    writer.flush()
}
