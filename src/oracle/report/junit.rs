//! JUnit XML, the subset that CI systems agree on.

use super::{Case, Outcome, Report};
use std::io::{self, Write};

pub(super) fn write(report: &dyn Report, out: &mut dyn Write) -> io::Result<()> {
    let suite = report.suite();
    let count = |outcome| suite.cases.iter().filter(|case| case.outcome == outcome).count();
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<testsuites>")?;
    writeln!(
        out,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\">",
        escaped(&suite.name),
        suite.cases.len(),
        count(Outcome::Failed),
        count(Outcome::Trouble)
    )?;
    for case in &suite.cases {
        write_case(&suite.name, case, out)?;
    }
    writeln!(out, "  </testsuite>")?;
    writeln!(out, "</testsuites>")
}

fn write_case(suite: &str, case: &Case, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "    <testcase classname=\"{}\" name=\"{}\">", escaped(suite), escaped(&case.name))?;
    let (summary, details) = (escaped(&case.summary), escaped(&case.details.join("\n")));
    match case.outcome {
        Outcome::Passed if details.is_empty() => writeln!(out, "      <system-out>{summary}</system-out>")?,
        Outcome::Passed => writeln!(out, "      <system-out>{summary}\n{details}</system-out>")?,
        Outcome::Failed => writeln!(out, "      <failure message=\"{summary}\">{details}</failure>")?,
        Outcome::Trouble => writeln!(out, "      <error message=\"{summary}\">{details}</error>")?,
    }
    writeln!(out, "    </testcase>")
}

/// Text for an attribute or an element; what XML 1.0 cannot hold becomes U+FFFD.
fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '"' => result.push_str("&quot;"),
            '\'' => result.push_str("&apos;"),
            '\n' | '\t' => result.push(character),
            '\r' => result.push_str("&#13;"),
            '\u{fffe}' | '\u{ffff}' | '\0'..='\u{1f}' => result.push('\u{fffd}'),
            _ => result.push(character),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn markup_and_control_characters_cannot_break_the_document() {
        assert_eq!(
            escaped("<a b=\"c\">&'\u{1b}\u{ffff}\t\r"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&apos;\u{fffd}\u{fffd}\t&#13;"
        );
    }
}
