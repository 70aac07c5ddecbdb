//! The grammar we accept.

use super::error::shown;
use super::{FORMAT, FileError, HEADERS, Logits, NumericClass, OracleFile, RECEIPTS, STANDARD_INPUT, is_plain_range};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// How much of what the format does not define is let pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Unknown keys are kept as receipts where they have two fields, and skipped otherwise.
    Lenient,
    /// Unknown keys are refused.
    Strict,
}

/// The longest line that is read: room for six million tokens, and an end for a file that has no lines.
const LINE_LIMIT: usize = 64 << 20;

impl OracleFile {
    /// Reads the file at `path`; `-` is standard input.
    pub fn open(path: &Path, reading: Reading) -> Result<Self, FileError> {
        if path.as_os_str() == "-" {
            return Self::read(STANDARD_INPUT, io::stdin().lock(), reading);
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|cause| FileError::Unreadable { file: name.clone(), cause })?;
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(FileError::Folder { file: name });
        }
        Self::read(&name, BufReader::with_capacity(1 << 16, file), reading)
    }

    /// Reads a file from `input`; `name` is what errors call it. Memory is bounded by what is actually read, never
    /// by a number that the file states.
    pub fn read(name: &str, mut input: impl BufRead, reading: Reading) -> Result<Self, FileError> {
        let mut parser = Parser::new(name, reading);
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = input
                .by_ref()
                .take(LINE_LIMIT as u64)
                .read_until(b'\n', &mut line)
                .map_err(|cause| FileError::Unreadable { file: name.to_string(), cause })?;
            if count == 0 {
                return parser.finish();
            }
            parser.line(&line)?;
        }
    }
}

/// A value and the line it stands in.
struct At<T> {
    line: usize,
    value: T,
}

/// A logit as read: its bits await the class that says how wide they are.
struct Row {
    index: u32,
    line: usize,
    bits: u64,
}

struct Parser<'a> {
    file: &'a str,
    reading: Reading,
    line: usize,
    first_line: String,
    /// In the order of [`HEADERS`].
    headers: [Option<At<String>>; HEADERS.len()],
    /// Every other two-field record, `positions` included.
    receipts: Vec<(String, At<String>)>,
    rows: Vec<Row>,
    ascending: bool,
    /// The first logit that has more than 8 digits.
    first_wide: Option<(At<String>, u32)>,
}

impl<'a> Parser<'a> {
    fn new(file: &'a str, reading: Reading) -> Self {
        Self {
            file,
            reading,
            line: 0,
            first_line: String::new(),
            headers: [const { None }; HEADERS.len()],
            receipts: Vec::new(),
            rows: Vec::new(),
            ascending: true,
            first_wide: None,
        }
    }

    fn file(&self) -> String {
        self.file.to_string()
    }

    fn line(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.line += 1;
        let (file, line) = (self.file, self.line);
        if line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(FileError::ByteOrderMark { file: file.to_string() });
        }
        if bytes.contains(&0) {
            return Err(FileError::Nul { file: file.to_string(), line });
        }
        if bytes.len() >= LINE_LIMIT {
            return Err(FileError::LineTooLong { file: file.to_string(), line, limit: LINE_LIMIT });
        }
        let text = str::from_utf8(bytes).map_err(|_| FileError::NotUtf8 { file: file.to_string(), line })?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if line == 1 {
            self.first_line = shown(text);
        }
        match text.strip_prefix("logit\t") {
            Some(rest) => self.logit(rest),
            None => self.record(text),
        }
    }

    fn logit(&mut self, rest: &str) -> Result<(), FileError> {
        let (file, line) = (self.file, self.line);
        let Some((index, bits)) = rest.split_once('\t').filter(|(_, bits)| !bits.contains('\t')) else {
            return Err(self.field_count("logit", rest.split('\t').count() + 1, 3));
        };
        let index =
            decimal(index).ok_or_else(|| FileError::BadIndex { file: file.to_string(), line, found: shown(index) })?;
        let Some(value) = hexadecimal(bits) else {
            let digits = self.known_class().map_or(16, |class| class.hex_digits());
            return Err(FileError::BadBits { file: file.to_string(), line, index, found: shown(bits), digits });
        };
        if bits.len() > 8 && self.first_wide.is_none() {
            self.first_wide = Some((At { line, value: shown(bits) }, index));
        }
        self.ascending &= self.rows.last().is_none_or(|row| row.index < index);
        self.rows.push(Row { index, line, bits: value });
        Ok(())
    }

    fn record(&mut self, text: &str) -> Result<(), FileError> {
        let mut fields = text.split('\t');
        let key = fields.next().unwrap_or_default();
        let value = fields.next();
        let count = 1 + usize::from(value.is_some()) + fields.count();
        let header = HEADERS.iter().position(|&name| name == key);
        let known = header.is_some() || RECEIPTS.contains(&key);
        if key == "logit" {
            return Err(self.field_count(key, count, 3));
        }
        if !known && self.reading == Reading::Strict {
            return Err(FileError::UnknownKey { file: self.file(), line: self.line, found: shown(key) });
        }
        let value = match value {
            Some(value) if count == 2 => value,
            _ if known => return Err(self.field_count(key, count, 2)),
            _ => return Ok(()),
        };
        if known && value.is_empty() {
            return Err(FileError::HeaderEmpty { file: self.file(), line: self.line, key: key.to_string() });
        }
        if key == "format" && value != FORMAT {
            return Err(FileError::FormatUnknown { file: self.file(), line: self.line, found: shown(value) });
        }
        let earlier = match header {
            Some(slot) => self.headers[slot].as_ref(),
            None if known => self.receipts.iter().find(|(name, _)| name == key).map(|(_, at)| at),
            None => None,
        };
        if let Some(first) = earlier {
            return if first.value == value { Ok(()) } else { Err(self.conflict(key, value, first)) };
        }
        let at = At { line: self.line, value: value.to_string() };
        match header {
            Some(slot) => self.headers[slot] = Some(at),
            None => self.receipts.push((key.to_string(), at)),
        }
        Ok(())
    }

    fn field_count(&self, key: &str, found: usize, expected: usize) -> FileError {
        FileError::FieldCount { file: self.file(), line: self.line, key: key.to_string(), found, expected }
    }

    fn conflict(&self, key: &str, value: &str, first: &At<String>) -> FileError {
        FileError::HeaderConflict {
            file: self.file(),
            line: self.line,
            key: key.to_string(),
            found: shown(value),
            first_line: first.line,
            first: shown(&first.value),
        }
    }

    /// The class, where its header was already read.
    fn known_class(&self) -> Option<NumericClass> {
        self.headers[2].as_ref().map(|at| NumericClass::from(at.value.as_str()))
    }

    fn finish(mut self) -> Result<OracleFile, FileError> {
        if self.line == 0 {
            return Err(FileError::Empty { file: self.file() });
        }
        let [format, engine, class, tokens, vocab] = std::mem::replace(&mut self.headers, [const { None }; 5]);
        if format.is_none() {
            return Err(FileError::FormatMissing { file: self.file(), found: self.first_line });
        }
        let missing = |key| FileError::HeaderMissing { file: self.file.to_string(), key };
        let engine = engine.ok_or_else(|| missing("engine"))?.value;
        let class = class.ok_or_else(|| missing("numeric_class"))?.value;
        let tokens = tokens.ok_or_else(|| missing("tokens"))?;
        let vocab = vocab.ok_or_else(|| missing("vocab"))?;

        let tokens = self.numbers("tokens", &tokens)?;
        let positions = self.take_positions(tokens.len())?;
        let numeric_class = NumericClass::from(class.as_str());
        self.check_width(&numeric_class)?;
        let bits = self.complete_row(&vocab)?;
        let logits = match numeric_class {
            NumericClass::Float64 => Logits::F64(bits.map(f64::from_bits).collect()),
            // Every one fits: check_width has seen that no logit has more than 8 digits.
            _ => Logits::F32(bits.map(|bits| f32::from_bits(bits as u32)).collect()),
        };
        let receipts = self.receipts.into_iter().map(|(key, at)| (key, at.value)).collect();
        Ok(OracleFile { engine, numeric_class, tokens, positions, receipts, logits })
    }

    fn numbers(&self, key: &'static str, list: &At<String>) -> Result<Vec<u32>, FileError> {
        let number = |text: &str| {
            decimal(text).ok_or_else(|| FileError::BadNumber {
                file: self.file(),
                line: list.line,
                key,
                found: shown(text),
                least: 0,
            })
        };
        list.value.split(',').map(number).collect()
    }

    /// Takes `positions` out of the receipts; `None` where they are the plain 0, 1, 2, ...
    fn take_positions(&mut self, tokens: usize) -> Result<Option<Vec<u32>>, FileError> {
        let Some(slot) = self.receipts.iter().position(|(key, _)| key == "positions") else {
            return Ok(None);
        };
        let (_, at) = self.receipts.remove(slot);
        let positions = self.numbers("positions", &at)?;
        if positions.len() != tokens {
            let (file, line) = (self.file(), at.line);
            return Err(FileError::PositionCount { file, line, positions: positions.len(), tokens });
        }
        Ok(Some(positions).filter(|list| !is_plain_range(list)))
    }

    /// Checks that the logits have the digits that their class has.
    fn check_width(&mut self, class: &NumericClass) -> Result<(), FileError> {
        let digits = class.hex_digits();
        match self.first_wide.take() {
            Some((at, index)) if digits == 8 => {
                Err(FileError::BadBits { file: self.file(), line: at.line, index, found: at.value, digits })
            }
            None if digits == 16 && self.rows.iter().any(|row| row.bits != 0) => {
                Err(FileError::NarrowBits { file: self.file() })
            }
            _ => Ok(()),
        }
    }

    /// The bits of logits 0 to vocab-1, each there exactly once.
    fn complete_row(&mut self, vocab: &At<String>) -> Result<impl Iterator<Item = u64> + use<>, FileError> {
        let (file, vocab_line) = (self.file, vocab.line);
        let Some(vocab) = decimal(&vocab.value).filter(|&rows| rows > 0) else {
            let (file, found) = (file.to_string(), shown(&vocab.value));
            return Err(FileError::BadNumber { file, line: vocab_line, key: "vocab", found, least: 1 });
        };
        let mut rows = std::mem::take(&mut self.rows);
        if !self.ascending {
            rows.sort_by_key(|row| row.index);
        }
        for (expected, row) in rows.iter().enumerate() {
            let (file, line, index) = (file.to_string(), row.line, row.index);
            if (index as usize) < expected {
                return Err(FileError::DuplicateLogit { file, line, index, first_line: rows[expected - 1].line });
            }
            if index >= vocab {
                return Err(FileError::IndexBeyondVocab { file, line, index, vocab, vocab_line });
            }
            if index as usize > expected {
                return Err(FileError::MissingLogit { file, index: expected, line, found: index });
            }
        }
        if rows.len() < vocab as usize {
            let line = rows.last().map_or(self.line, |row| row.line);
            return Err(FileError::LogitCount { file: file.to_string(), found: rows.len(), vocab, vocab_line, line });
        }
        Ok(rows.into_iter().map(|row| row.bits))
    }
}

/// A number in decimal digits alone; `str::parse` would let a `+` pass.
fn decimal(text: &str) -> Option<u32> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// 1 to 16 hex digits and nothing else.
fn hexadecimal(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.bytes().try_fold(0, |bits, byte| Some(bits << 4 | u64::from((byte as char).to_digit(16)?)))
}
