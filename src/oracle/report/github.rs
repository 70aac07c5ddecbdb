//! GitHub workflow commands: `::error file=...,title=...::message`.

use super::{Case, Outcome, Report};
use std::io::{self, Write};

pub(super) fn write(report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
    for case in &report.suite().cases {
        write_case(case, out)?;
    }
    Ok(())
}

fn write_case(case: &Case, out: &mut dyn Write) -> io::Result<()> {
    let command = match case.outcome {
        Outcome::Passed => "notice",
        Outcome::Failed | Outcome::Trouble => "error",
    };
    let file = case.file.as_ref().map_or(String::new(), |file| format!("file={},", property(file)));
    let message =
        std::iter::once(&case.summary).chain(&case.details).map(String::as_str).collect::<Vec<_>>().join("\n");
    writeln!(out, "::{command} {file}title={}::{}", property(&case.name), data(&message))
}

/// Escapes a message as the runner unescapes it.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property's value, which also ends at a comma or colon.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::{data, property};

    #[test]
    fn what_would_end_a_command_is_escaped() {
        assert_eq!(data("50%\r\nof a: b, c"), "50%25%0D%0Aof a: b, c");
        assert_eq!(property("c:\\a,b%\n"), "c%3A\\a%2Cb%25%0A");
    }
}
