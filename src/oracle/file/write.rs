//! The grammar we write.

use super::{FORMAT, HEADERS, Logits, OracleFile};
use std::io::{self, Write};

impl OracleFile {
    /// Writes the file: headers, positions, receipts, then the logits in ascending order, LF-terminated.
    ///
    /// Fails with `InvalidInput`, before anything is written, where the value is not a v1 file: no tokens, no
    /// logits, a text with a tab or a line break, a receipt under a header's name, a position count that is not the
    /// token count, logits of another width than the class; and with the writer's own errors.
    pub fn write_to(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        self.check().map_err(|sentence| io::Error::new(io::ErrorKind::InvalidInput, sentence))?;
        writeln!(out, "format\t{FORMAT}")?;
        writeln!(out, "engine\t{}", self.engine)?;
        writeln!(out, "numeric_class\t{}", self.numeric_class)?;
        writeln!(out, "tokens\t{}", comma_separated(&self.tokens))?;
        writeln!(out, "vocab\t{}", self.vocab())?;
        if let Some(positions) = self.explicit_positions() {
            writeln!(out, "positions\t{}", comma_separated(positions))?;
        }
        for (key, value) in &self.receipts {
            writeln!(out, "{key}\t{value}")?;
        }
        match &self.logits {
            Logits::F32(values) => {
                for (index, value) in values.iter().enumerate() {
                    writeln!(out, "logit\t{index}\t{:08x}", value.to_bits())?;
                }
            }
            Logits::F64(values) => {
                for (index, value) in values.iter().enumerate() {
                    writeln!(out, "logit\t{index}\t{:016x}", value.to_bits())?;
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.tokens.is_empty() {
            return Err("an oracle file needs at least one token".to_string());
        }
        if self.logits.is_empty() || u32::try_from(self.logits.len()).is_err() {
            return Err(format!("an oracle file needs 1 to 4294967295 logits; there are {}", self.logits.len()));
        }
        let wide = matches!(self.logits, Logits::F64(_));
        if wide != (self.numeric_class.hex_digits() == 16) {
            return Err(format!("logits of {} bits do not go with {}", if wide { 64 } else { 32 }, self.numeric_class));
        }
        if let Some(positions) = &self.positions
            && positions.len() != self.tokens.len()
        {
            return Err(format!("{} positions for {} tokens", positions.len(), self.tokens.len()));
        }
        plain_text("engine", &self.engine)?;
        plain_text("numeric_class", self.numeric_class.as_str())?;
        for (key, value) in &self.receipts {
            if HEADERS.contains(&key.as_str()) || key == "logit" || key == "positions" {
                return Err(format!("{key} is not the name of a receipt"));
            }
            plain_text("a receipt's key", key)?;
            if value.contains(['\t', '\n', '\r', '\0']) {
                return Err(format!("the receipt {key} holds a tab, a line break or a NUL"));
            }
        }
        Ok(())
    }
}

fn plain_text(what: &str, text: &str) -> Result<(), String> {
    if text.is_empty() || text.contains(['\t', '\n', '\r', '\0']) {
        return Err(format!("{what} must not be empty, nor hold a tab, a line break or a NUL"));
    }
    Ok(())
}

fn comma_separated(numbers: &[u32]) -> String {
    let mut text = String::with_capacity(numbers.len() * 6);
    for (index, number) in numbers.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&number.to_string());
    }
    text
}
