//! The header of a GGUF file: counts, metadata, tensors, each checked against the file's length before it is believed.
//!
//! Source: docs/gguf.md of ggml.

use super::super::Dtype;
use super::super::local::LocalFile;
use super::cursor::Cursor;
use super::value::{self, Keep, Value};
use crate::problem::{Problem, quote};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT: &str = "general.alignment";
/// Where the file doesn't say.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Of ggml.
const MOST_DIMENSIONS: u32 = 4;
/// The format's limit for a key, in bytes.
const LONGEST_KEY: u64 = 65_535;
/// Of a tensor's name; the format allows 64 bytes, some converters write more.
const LONGEST_NAME: u64 = 1024;
/// Real files have less than a hundred keys, and at most some ten thousand tensors.
const MOST_KEYS: u64 = 100_000;
const MOST_TENSORS: u64 = 1_000_000;

/// A tensor as the header describes it, its bytes counted from the data's start.
pub(super) struct Entry {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub begin: u64,
    pub end: u64,
}

pub(super) struct Header {
    pub metadata: BTreeMap<String, Value>,
    pub entries: Vec<Entry>,
    /// First byte of the data.
    pub data_start: u64,
    /// Bytes before the data, without the padding.
    pub len: u64,
    /// SHA-256 of those, lowercase hex.
    pub sha256: String,
    /// What is wrong with single tensors, or with how they lie.
    pub problems: Vec<Problem>,
}

/// Reads the header of a file.
///
/// # Errors
/// The header as a whole is unusable; what is wrong with single tensors is in [`Header::problems`].
pub(super) fn read(file: &LocalFile) -> Result<Header, Problem> {
    let mut cursor = Cursor::new(file);
    let (keys, tensors) = start(&mut cursor)?;
    let metadata = values(&mut cursor, keys, &[])?;
    let alignment = alignment(&cursor, &metadata)?;
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    let mut names = BTreeSet::new();
    let mut all_described = true;
    for i in 0..tensors {
        let at = cursor.at();
        let name = name(&mut cursor, &format!("the name of tensor {i}"), LONGEST_NAME)?;
        let place = tensor_place(cursor.place(), &name);
        if !names.insert(name.clone()) {
            let message = format!("is there twice, the second time at byte {at}");
            return Err(Problem::new("gguf-duplicate-tensor", place, message));
        }
        match describe(&mut cursor, name, alignment)? {
            Ok(entry) => entries.push(entry),
            Err((code, message)) => {
                all_described = false;
                problems.push(Problem::new(code, place, message));
            }
        }
    }
    let len = cursor.at();
    let data_start = len.next_multiple_of(alignment);
    let place = cursor.place().to_owned();
    let mut header = Header { metadata, entries, data_start, len, sha256: cursor.sha256(), problems };
    let data_len = file.info.len.saturating_sub(data_start);
    header.check_layout(all_described, alignment, data_len, &place);
    header.entries.retain(|entry| entry.end <= data_len);
    Ok(header)
}

/// The keys and values of a file, with the whole of those `arrays`.
///
/// # Errors
/// The file holds no metadata, or one of `arrays` is too long to be kept.
pub(super) fn metadata(file: &LocalFile, arrays: &[&str]) -> Result<BTreeMap<String, Value>, Problem> {
    let mut cursor = Cursor::new(file);
    let (keys, _) = start(&mut cursor)?;
    values(&mut cursor, keys, arrays)
}

/// Magic, version, and how many keys and tensors there are.
fn start(cursor: &mut Cursor<'_>) -> Result<(u64, u64), Problem> {
    magic_and_version(cursor)?;
    let tensors = cursor.u64("the tensor count")?;
    let keys = cursor.u64("the key count")?;
    // A key takes 13 bytes and a tensor 24 at least.
    let left = cursor.left();
    for (what, count, most) in
        [("keys", keys, MOST_KEYS.min(left / 13)), ("tensors", tensors, MOST_TENSORS.min(left / 24))]
    {
        if count > most {
            let at = if what == "keys" { 16 } else { 8 };
            let message = format!("expected at most {most} {what} in {left} bytes, found {count} at byte {at}");
            return Err(cursor.problem("gguf-count", message));
        }
    }
    Ok((keys, tensors))
}

fn values(cursor: &mut Cursor<'_>, keys: u64, arrays: &[&str]) -> Result<BTreeMap<String, Value>, Problem> {
    let mut metadata = BTreeMap::new();
    for i in 0..keys {
        let at = cursor.at();
        let key = name(cursor, &format!("key {i}"), LONGEST_KEY)?;
        let keep = if arrays.contains(&key.as_str()) { Keep::Values } else { Keep::Length };
        let value = value::read(cursor, &key, keep)?;
        if metadata.insert(key.clone(), value).is_some() {
            let message = format!("gives the key {} twice, the second time at byte {at}", quote(&key));
            return Err(cursor.problem("gguf-duplicate-key", message));
        }
    }
    Ok(metadata)
}

fn magic_and_version(cursor: &mut Cursor<'_>) -> Result<(), Problem> {
    if cursor.left() == 0 {
        return Err(cursor.problem("gguf-magic", "expected a GGUF file, found an empty file (0 bytes)"));
    }
    let magic = cursor.take::<4>("the format's name")?;
    if magic != MAGIC {
        let found = match &magic {
            b"FUGG" => "the four letters in reverse: a big-endian file of another kind",
            b"vers" => "what may be a Git LFS pointer: fetch the real file with `git lfs pull`",
            b"ggml" | b"lmgg" | b"ggjt" | b"tjgg" | b"ggmf" | b"fmgg" => {
                "a file of GGUF's predecessors: convert the original again"
            }
            b"<!DO" | b"<!do" | b"<htm" => "a web page: the download saved an error page",
            _ => return Err(cursor.problem("gguf-magic", format!("expected `GGUF`, found {}", hex(&magic)))),
        };
        return Err(cursor.problem("gguf-magic", format!("expected `GGUF`, found {found}")));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => Ok(()),
        // Small numbers, whose bytes are the other way round.
        _ if version.swap_bytes() <= 0xffff && version > 0xffff => Err(cursor.problem(
            "gguf-big-endian",
            format!(
                "is big-endian (version {} at byte 4, in reverse): expected little-endian, as converted without \
                 --bigendian",
                version.swap_bytes()
            ),
        )),
        _ => {
            let message = format!("expected version 2 or 3 at byte 4, found {version}");
            Err(cursor.problem("gguf-version", message))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("the bytes {}", hex.join(" "))
}

/// A key or a tensor's name.
fn name(cursor: &mut Cursor<'_>, what: &str, longest: u64) -> Result<String, Problem> {
    let at = cursor.at();
    let len = cursor.u64(what)?;
    if len > longest {
        let message = format!("expected at most {longest} bytes of {what} at byte {at}, found {len}");
        return Err(cursor.problem("gguf-name", message));
    }
    let bytes = cursor.bytes(len, what)?;
    match String::from_utf8(bytes) {
        Ok(name) if !name.is_empty() => Ok(name),
        Ok(_) => Err(cursor.problem("gguf-name", format!("expected {what} at byte {at}, found an empty text"))),
        Err(_) => Err(cursor.problem("gguf-name", format!("expected UTF-8 for {what} at byte {at}"))),
    }
}

fn alignment(cursor: &Cursor<'_>, metadata: &BTreeMap<String, Value>) -> Result<u64, Problem> {
    match metadata.get(ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => match value.as_count() {
            Some(n) if n > 0 && u32::try_from(n).is_ok() => Ok(n),
            _ => {
                let message = format!("expected a whole number from 1 to 4294967295 for {ALIGNMENT}, found {value}");
                Err(cursor.problem("gguf-alignment", message))
            }
        },
    }
}

type Described = Result<Entry, (&'static str, String)>;

/// The description behind a tensor's name: dimensions (innermost first), type, offset. The inner error leaves the rest
/// of the header readable.
fn describe(cursor: &mut Cursor<'_>, name: String, alignment: u64) -> Result<Described, Problem> {
    let what = format!("the description of tensor {}", quote(&name));
    let at = cursor.at();
    let dimensions = cursor.u32(&what)?;
    if dimensions > MOST_DIMENSIONS {
        let message = format!("expected at most {MOST_DIMENSIONS} dimensions at byte {at}, found {dimensions}");
        return Err(Problem::new("gguf-dimensions", tensor_place(cursor.place(), &name), message));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(cursor.u64(&what)?);
    }
    shape.reverse();
    let number = cursor.u32(&what)?;
    let begin = cursor.u64(&what)?;
    Ok(entry(name, shape, number, begin, at, alignment))
}

fn entry(name: String, dimensions: Vec<u64>, number: u32, begin: u64, at: u64, alignment: u64) -> Described {
    let Some((dtype, unit)) = Dtype::of_ggml(number).and_then(|dtype| Some((dtype.clone(), dtype.unit()?))) else {
        let why = withdrawn(number).unwrap_or("no such type is known here");
        return Err(("gguf-type", format!("expected the number of a storage type, found {number}: {why}")));
    };
    let cols = dimensions.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(unit.elements as u64) {
        let message = format!(
            "expected rows of a multiple of {} elements, which is a block of {}, found {cols} at byte {at}",
            unit.elements, dtype
        );
        return Err(("gguf-row", message));
    }
    let sizes = dimensions.iter().map(|&n| usize::try_from(n).ok().filter(|&n| n <= isize::MAX as usize));
    let shape: Option<Vec<usize>> = sizes.collect();
    // Where one is zero, so that no product of some of the others is beyond all numbers either.
    let largest = dimensions.iter().try_fold(1u64, |product, &n| product.checked_mul(n.max(1)));
    let bytes =
        largest.filter(|&n| n <= isize::MAX as u64).and_then(|n| dtype.bytes(n.next_multiple_of(unit.elements as u64)));
    let bytes = bytes.map(|bytes| if dimensions.contains(&0) { 0 } else { bytes });
    let (Some(shape), Some(bytes)) = (shape, bytes) else {
        let message = format!("its shape {dimensions:?} at byte {at} takes more bytes than any file can hold");
        return Err(("tensor-size", message));
    };
    if !begin.is_multiple_of(alignment) {
        let message = format!("expected an offset that is a multiple of {alignment}, found {begin}");
        return Err(("tensor-offsets", message));
    }
    let Some(end) = begin.checked_add(bytes).filter(|&end| end <= i64::MAX as u64) else {
        return Err(("tensor-offsets", format!("its offset {begin} lies beyond what any file can hold")));
    };
    Ok(Entry { name, dtype, shape, begin, end })
}

impl Header {
    /// The tensors cover the data: each begins where the one before it ends, but for the padding; so no two share a
    /// byte, and no byte is nobody's. Tensors without elements cover nothing.
    fn check_layout(&mut self, all_described: bool, alignment: u64, data_len: u64, place: &str) {
        let mut order: Vec<&Entry> = self.entries.iter().filter(|entry| entry.begin < entry.end).collect();
        order.sort_by_key(|entry| (entry.begin, entry.end));
        let mut covered = 0;
        let mut last: Option<&Entry> = None;
        for entry in order {
            let here = tensor_place(place, &entry.name);
            let before = last.map_or("the data".to_owned(), |last| quote(&last.name));
            if entry.begin < covered {
                let message =
                    format!("its bytes {}..{} overlap {before}, which ends at {covered}", entry.begin, entry.end);
                self.problems.push(Problem::new("tensor-overlap", here, message));
            } else if all_described && entry.begin > covered.next_multiple_of(alignment) {
                let message = format!(
                    "expected its offset to be {}, the next multiple of {alignment} after {before}, found {}: the bytes \
                     between belong to no tensor",
                    covered.next_multiple_of(alignment),
                    entry.begin
                );
                self.problems.push(Problem::new("tensor-hole", here, message));
            }
            if entry.end > covered {
                covered = entry.end;
                last = Some(entry);
            }
        }
        if let Some(last) = last.filter(|_| covered > data_len) {
            let message = format!(
                "expected {} bytes ({} of header, {covered} of data up to the end of tensor {}), found {}: the file is \
                 cut off, or the offsets are wrong",
                self.data_start + covered,
                self.data_start,
                quote(&last.name),
                self.data_start + data_len
            );
            self.problems.push(Problem::new("gguf-truncated", place, message));
        } else if all_described && data_len > covered.next_multiple_of(alignment) {
            let message = format!(
                "expected {} bytes ({} of header, {covered} of data), found {}: what follows belongs to no tensor",
                self.data_start + covered,
                self.data_start,
                self.data_start + data_len
            );
            self.problems.push(Problem::new("gguf-trailing-bytes", place, message));
        }
    }
}

/// How messages name a tensor of a file.
pub(super) fn tensor_place(file: &str, tensor: &str) -> String {
    format!("{file}, tensor {}", quote(tensor))
}

/// Why a number that once was a type has none any more.
fn withdrawn(number: u32) -> Option<&'static str> {
    match number {
        4 | 5 => Some("Q4_2 and Q4_3 were withdrawn in 2023"),
        31..=33 => Some("Q4_0_4_4, Q4_0_4_8 and Q4_0_8_8 were withdrawn in 2024: convert from the original again"),
        36..=38 => {
            Some("IQ4_NL_4_4, IQ4_NL_4_8 and IQ4_NL_8_8 were withdrawn in 2024: convert from the original again")
        }
        _ => None,
    }
}
