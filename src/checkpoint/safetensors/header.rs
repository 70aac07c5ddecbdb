//! The JSON header of a safetensors file, checked against the file's length before any of it is believed.

use super::super::{Dtype, json};
use crate::problem::{Problem, quote};
use serde_json::{Map, Value};

/// Bytes before the header: its length, a little-endian u64.
pub(super) const PREFIX: u64 = 8;
/// The specification's limit for the header, in bytes.
const LIMIT: u64 = 100_000_000;

/// One tensor of a header, with `begin..end` counted from the first byte after the header.
pub(super) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub begin: u64,
    pub end: u64,
}

/// What a header says.
pub(super) struct Header {
    /// Tensors whose own description is sound and whose bytes the file holds.
    pub entries: Vec<Entry>,
    /// Tensors that the header names and that can't be used; `problems` says why.
    pub broken: Vec<String>,
    pub problems: Vec<Problem>,
}

/// The header's length in bytes, from the file's first bytes.
///
/// # Errors
/// The file is empty, shorter than the eight bytes, is another kind of file, or gives a length that is 0, beyond the
/// format's limit or beyond the file's end.
pub(super) fn length(start: &[u8], file_len: u64, place: &str) -> Result<u64, Problem> {
    let problem = |code, message: String| Err(Problem::new(code, place, message));
    if start.is_empty() {
        return problem("shard-empty", "expected a safetensors header, found an empty file (0 bytes)".into());
    }
    if let Some(kind) = other_kind(start) {
        return problem("shard-not-safetensors", format!("expected a safetensors file, found {kind}"));
    }
    let Ok(prefix) = <[u8; PREFIX as usize]>::try_from(start) else {
        let message = format!("expected at least {PREFIX} bytes (the header's length), found {}", start.len());
        return problem("shard-truncated", message);
    };
    let length = u64::from_le_bytes(prefix);
    let rest = file_len.saturating_sub(PREFIX);
    match length {
        0 => problem(
            "header-length",
            "gives its header's length as 0: it starts with zeros, as a file does whose download is unfinished".into(),
        ),
        _ if length > LIMIT => problem(
            "header-length",
            format!(
                "gives its header's length as {length} bytes, more than the format's limit of {LIMIT}: this is not a safetensors file, or it is damaged"
            ),
        ),
        _ if length > rest => problem(
            "shard-truncated",
            format!(
                "expected a header of {length} bytes, found {rest} bytes after its length: the file is cut off, or damaged"
            ),
        ),
        _ => Ok(length),
    }
}

/// Reads the header `text` of a file that holds `data_len` bytes after it.
///
/// # Errors
/// The header as a whole is unusable. What is wrong with single tensors, or with how they lie, is in
/// [`Header::problems`].
pub(super) fn parse(text: &[u8], data_len: u64, place: &str) -> Result<Header, Problem> {
    if text[0] != b'{' {
        let message = format!("expected the header to start with `{{`, found byte 0x{:02x}", text[0]);
        return Err(Problem::new("header-start", place, message));
    }
    let object = json::parse_object(text, &format!("{place}, header"))?;
    let mut header = Header { entries: Vec::new(), broken: Vec::new(), problems: Vec::new() };
    let mut all_described = true;
    for (name, value) in object {
        if name == "__metadata__" {
            header.problems.extend(metadata_problem(&value, place));
            continue;
        }
        match describe(&name, &value) {
            Ok(entry) => header.entries.push(entry),
            Err((code, message)) => {
                all_described = false;
                header.problems.push(Problem::new(code, tensor_place(place, &name), message));
                header.broken.push(name);
            }
        }
    }
    let header_len = PREFIX + text.len() as u64;
    if all_described {
        header.check_layout(data_len, header_len, place);
    } else if let Some(beyond) = header.entries.iter().find(|entry| entry.end > data_len) {
        header.problems.push(too_short(beyond, header_len, data_len, place));
    }
    header.drop_unusable(data_len, place);
    Ok(header)
}

impl Header {
    /// The data is covered by the tensors exactly: no two share a byte, no byte is nobody's, the file ends with the
    /// last one. Tensors without elements cover nothing, wherever they lie.
    fn check_layout(&mut self, data_len: u64, header_len: u64, place: &str) {
        let mut order: Vec<&Entry> = self.entries.iter().filter(|entry| entry.begin < entry.end).collect();
        order.sort_by_key(|entry| (entry.begin, entry.end));
        let mut covered = 0;
        let mut last: Option<&Entry> = None;
        for entry in order {
            if let Some(last) = last.filter(|_| entry.begin < covered) {
                let message = format!(
                    "its bytes {}..{} overlap {}..{} of {}",
                    entry.begin,
                    entry.end,
                    last.begin,
                    last.end,
                    quote(&last.name)
                );
                self.problems.push(Problem::new("tensor-overlap", tensor_place(place, &entry.name), message));
            } else if entry.begin > covered {
                let message = format!(
                    "expected its data to start at byte {covered}, where {} ends, found {}: the format allows no holes",
                    last.map_or("the header".into(), |last| quote(&last.name)),
                    entry.begin
                );
                self.problems.push(Problem::new("tensor-hole", tensor_place(place, &entry.name), message));
            }
            if entry.end > covered {
                covered = entry.end;
                last = Some(entry);
            }
        }
        if let Some(last) = last.filter(|_| covered > data_len) {
            self.problems.push(too_short(last, header_len, data_len, place));
        }
        if covered < data_len {
            let message = format!(
                "expected {} bytes ({header_len} of header, {covered} of data), found {}: {} belong to no tensor",
                header_len + covered,
                header_len + data_len,
                data_len - covered
            );
            self.problems.push(Problem::new("shard-trailing-bytes", place, message));
        }
    }

    /// Moves tensors whose bytes are not all there, or are not as many as their shape takes, from `entries` to
    /// `broken`.
    fn drop_unusable(&mut self, data_len: u64, place: &str) {
        for entry in std::mem::take(&mut self.entries) {
            let size_problem = size_problem(&entry, place);
            if size_problem.is_some() || entry.end > data_len {
                self.problems.extend(size_problem);
                self.broken.push(entry.name);
            } else {
                self.entries.push(entry);
            }
        }
    }
}

/// How messages name a tensor of a file.
pub(super) fn tensor_place(file: &str, tensor: &str) -> String {
    format!("{file}, tensor {}", quote(tensor))
}

/// Files that are often found under a safetensors name, by their first bytes.
fn other_kind(start: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 5] = [
        (b"version ", "a Git LFS pointer: fetch the real file with `git lfs pull`"),
        (b"PK\x03\x04", "a PyTorch pickle (a zip archive): save the model as safetensors"),
        (b"GGUF", "a GGUF file"),
        (b"<!", "a web page: the download saved an error page"),
        (b"<html", "a web page: the download saved an error page"),
    ];
    kinds.into_iter().find_map(|(magic, kind)| start.starts_with(magic).then_some(kind))
}

fn metadata_problem(value: &Value, place: &str) -> Option<Problem> {
    let found = match value {
        Value::Object(map) => {
            let (key, value) = map.iter().find(|(_, value)| !value.is_string())?;
            format!("{} at the key {}", json::kind(value), quote(key))
        }
        other => json::kind(other).to_owned(),
    };
    let message = format!("expected an object of strings, found {found}");
    Some(Problem::new("header-metadata", format!("{place}, `__metadata__`"), message))
}

/// A tensor's entry, whose size and place are not yet checked; or a problem's code and message.
fn describe(name: &str, value: &Value) -> Result<Entry, (&'static str, String)> {
    let entry = |message: String| ("tensor-entry", message);
    let Value::Object(object) = value else {
        return Err(entry(format!(
            "expected an object with dtype, shape and data_offsets, found {}",
            json::kind(value)
        )));
    };
    if let Some(key) = object.keys().find(|key| !["dtype", "shape", "data_offsets"].contains(&key.as_str())) {
        return Err(entry(format!("expected dtype, shape and data_offsets only, found the key {}", quote(key))));
    }
    let dtype = match field(object, "dtype").map_err(entry)? {
        Value::String(dtype) => Dtype::parse(dtype),
        other => return Err(entry(format!("expected a string for dtype, found {}", json::kind(other)))),
    };
    let shape = naturals(field(object, "shape").map_err(entry)?, "shape").map_err(entry)?;
    let shape = shape.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| entry("its shape has a dimension beyond this machine's addresses".into()))?;
    let offsets = naturals(field(object, "data_offsets").map_err(entry)?, "data_offsets").map_err(entry)?;
    let [begin, end] = offsets[..] else {
        return Err(entry(format!("expected two numbers for data_offsets, found {}", offsets.len())));
    };
    if begin > end {
        return Err(("tensor-offsets", format!("expected data_offsets in ascending order, found [{begin}, {end}]")));
    }
    if end > i64::MAX as u64 {
        return Err(("tensor-offsets", format!("data_offsets end at byte {end}, beyond what any file can hold")));
    }
    Ok(Entry { name: name.to_owned(), dtype, shape, begin, end })
}

fn field<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a Value, String> {
    object.get(key).ok_or_else(|| format!("expected dtype, shape and data_offsets, found no {key}"))
}

fn naturals(value: &Value, key: &str) -> Result<Vec<u64>, String> {
    let Value::Array(array) = value else {
        return Err(format!("expected an array for {key}, found {}", json::kind(value)));
    };
    let natural = |value: &Value| match value {
        Value::Number(number) => {
            number.as_u64().ok_or_else(|| format!("expected whole numbers from 0 to 2^64 - 1 in {key}, found {number}"))
        }
        other => Err(format!("expected whole numbers in {key}, found {}", json::kind(other))),
    };
    array.iter().map(natural).collect()
}

/// The bytes between the offsets are those that the shape and the element size make. An unknown dtype has no size to
/// compare with.
fn size_problem(entry: &Entry, place: &str) -> Option<Problem> {
    entry.dtype.unit()?;
    let (dtype, shape, found) = (&entry.dtype, &entry.shape, entry.end - entry.begin);
    let expected = match dtype.shape_bytes(shape) {
        Some(expected) if expected == found => return None,
        Some(expected) => format!("{expected} bytes"),
        None => "whole bytes, at most 2^64,".to_owned(),
    };
    let message = format!("expected {expected} for shape {shape:?} of {dtype}, found {found} between its data_offsets");
    Some(Problem::new("tensor-size", tensor_place(place, &entry.name), message))
}

fn too_short(last: &Entry, header_len: u64, data_len: u64, place: &str) -> Problem {
    let message = format!(
        "expected {} bytes ({header_len} of header, {} of data up to the end of tensor {}), found {}: the file is cut \
         off, or the offsets are wrong",
        header_len + last.end,
        last.end,
        quote(&last.name),
        header_len + data_len
    );
    Problem::new("shard-truncated", place, message)
}
