//! Values of a GGUF file's metadata.

use super::cursor::Cursor;
use crate::problem::{Problem, quote, visible};
use std::fmt;

/// Bytes of a text that are kept; of a longer one (a chat template) its length alone.
const TEXT: u64 = 4096;
/// Numbers of an array that are kept, one per layer or per head being what they are for.
const NUMBERS: u64 = 4096;
/// Arrays in arrays.
const DEPTH: u32 = 8;
/// Values of an array that is kept in full, and the bytes that it takes in the file: the largest vocabularies have less
/// than a million tokens.
const MOST_VALUES: u64 = 1 << 22;
const MOST_BYTES: u64 = 1 << 26;

/// What is kept of a long array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Length,
    Values,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Whole(i128),
    /// The float32 types' values stay apart: they mean the decimal number that they were written from.
    Float32(f32),
    Float64(f64),
    Flag(bool),
    Text(String),
    /// A text of so many bytes, or one that isn't UTF-8.
    LongText(u64),
    List(Vec<Value>),
    /// An array of so many values that aren't kept: texts, arrays, or very many numbers.
    LongList(u64),
}

impl Value {
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number that is whole and not negative.
    pub fn as_count(&self) -> Option<u64> {
        match self {
            Value::Whole(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// Elements of an array.
    pub fn list_len(&self) -> Option<u64> {
        match self {
            Value::List(list) => Some(list.len() as u64),
            Value::LongList(len) => Some(*len),
            _ => None,
        }
    }

    /// As JSON; what isn't kept is said in words.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Whole(n) => match (u64::try_from(*n), i64::try_from(*n)) {
                (Ok(n), _) => n.into(),
                (_, Ok(n)) => n.into(),
                _ => self.to_string().into(),
            },
            // The shortest decimal number that rounds to this float32 is the one that was meant: 1e-5, not
            // 9.999999747378752e-6.
            Value::Float32(n) if n.is_finite() => {
                n.to_string().parse::<f64>().map_or(serde_json::Value::Null, Into::into)
            }
            Value::Float64(n) if n.is_finite() => (*n).into(),
            Value::Flag(flag) => (*flag).into(),
            Value::Text(text) => text.as_str().into(),
            Value::List(list) => list.iter().map(Value::to_json).collect(),
            // JSON has no infinity, and null would mean that there is no such key.
            Value::Float32(_) | Value::Float64(_) | Value::LongText(_) | Value::LongList(_) => self.to_string().into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Whole(n) => write!(f, "{n}"),
            Value::Float32(n) => write!(f, "{n}"),
            Value::Float64(n) => write!(f, "{n}"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Text(text) => f.write_str(&quote(text)),
            Value::LongText(len) => write!(f, "a text of {len} bytes"),
            Value::LongList(len) => write!(f, "an array of {len} values"),
            Value::List(list) => {
                let shown: Vec<String> = list.iter().take(8).map(Value::to_string).collect();
                let more = if list.len() > shown.len() { ", ..." } else { "" };
                write!(f, "[{}{more}]", visible(&shown.join(", ")))
            }
        }
    }
}

const TEXT_TYPE: u32 = 8;
const ARRAY_TYPE: u32 = 9;

/// Bytes that a value of a type takes, at least.
fn smallest(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        TEXT_TYPE | 10..=12 => 8,
        ARRAY_TYPE => 12,
        _ => return None,
    })
}

/// Reads the value of `key`: its type, then what the type says.
///
/// # Errors
/// There is no such type, the file ends, an array holds more values than the file can, or too many to be kept.
pub(super) fn read(cursor: &mut Cursor<'_>, key: &str, keep: Keep) -> Result<Value, Problem> {
    let what = format!("the value of key {}", quote(key));
    let kind = cursor.u32(&what)?;
    of_kind(cursor, kind, &what, keep, 0)
}

fn of_kind(cursor: &mut Cursor<'_>, kind: u32, what: &str, keep: Keep, depth: u32) -> Result<Value, Problem> {
    Ok(match kind {
        0 => Value::Whole(u8::from_le_bytes(cursor.take(what)?).into()),
        1 => Value::Whole(i8::from_le_bytes(cursor.take(what)?).into()),
        2 => Value::Whole(u16::from_le_bytes(cursor.take(what)?).into()),
        3 => Value::Whole(i16::from_le_bytes(cursor.take(what)?).into()),
        4 => Value::Whole(u32::from_le_bytes(cursor.take(what)?).into()),
        5 => Value::Whole(i32::from_le_bytes(cursor.take(what)?).into()),
        6 => Value::Float32(f32::from_le_bytes(cursor.take(what)?)),
        7 => match cursor.take::<1>(what)? {
            [0] => Value::Flag(false),
            [1] => Value::Flag(true),
            [other] => {
                let message = format!("expected 0 or 1 for {what} at byte {}, found {other}", cursor.at() - 1);
                return Err(cursor.problem("gguf-value", message));
            }
        },
        TEXT_TYPE => text(cursor, what)?,
        ARRAY_TYPE => array(cursor, what, keep, depth)?,
        10 => Value::Whole(cursor.u64(what)?.into()),
        11 => Value::Whole(i64::from_le_bytes(cursor.take(what)?).into()),
        12 => Value::Float64(f64::from_le_bytes(cursor.take(what)?)),
        _ => return Err(unknown(cursor, kind, what)),
    })
}

fn unknown(cursor: &Cursor<'_>, kind: u32, what: &str) -> Problem {
    let at = cursor.at() - 4;
    cursor.problem("gguf-value-type", format!("expected a type from 0 to 12 for {what} at byte {at}, found {kind}"))
}

fn text(cursor: &mut Cursor<'_>, what: &str) -> Result<Value, Problem> {
    let len = cursor.u64(what)?;
    if len > TEXT {
        cursor.skip(len, what)?;
        return Ok(Value::LongText(len));
    }
    let bytes = cursor.bytes(len, what)?;
    Ok(String::from_utf8(bytes).map_or(Value::LongText(len), Value::Text))
}

fn array(cursor: &mut Cursor<'_>, what: &str, keep: Keep, depth: u32) -> Result<Value, Problem> {
    if depth == DEPTH {
        let message = format!("nests arrays deeper than {DEPTH} levels in {what} at byte {}", cursor.at());
        return Err(cursor.problem("gguf-value", message));
    }
    let kind = cursor.u32(what)?;
    let Some(smallest) = smallest(kind) else { return Err(unknown(cursor, kind, what)) };
    let len = cursor.u64(what)?;
    if len > cursor.left() / smallest {
        let message = format!(
            "expected at most {} values in the array of {what} at byte {}, found {len}: the file holds no more bytes",
            cursor.left() / smallest,
            cursor.at() - 8
        );
        return Err(cursor.problem("gguf-count", message));
    }
    if keep == Keep::Values && kind != ARRAY_TYPE {
        return full_array(cursor, kind, len, what).map(Value::List);
    }
    match kind {
        TEXT_TYPE => {
            for _ in 0..len {
                let bytes = cursor.u64(what)?;
                cursor.skip(bytes, what)?;
            }
        }
        ARRAY_TYPE => {
            for _ in 0..len {
                array(cursor, what, Keep::Length, depth + 1)?;
            }
        }
        _ if len <= NUMBERS => {
            let values: Result<Vec<Value>, Problem> =
                (0..len).map(|_| of_kind(cursor, kind, what, keep, depth)).collect();
            return values.map(Value::List);
        }
        _ => cursor.skip(len * smallest, what)?,
    }
    Ok(Value::LongList(len))
}

/// The values of an array of texts, numbers or flags.
fn full_array(cursor: &mut Cursor<'_>, kind: u32, len: u64, what: &str) -> Result<Vec<Value>, Problem> {
    let start = cursor.at();
    if len > MOST_VALUES {
        let message =
            format!("expected at most {MOST_VALUES} values in the array of {what} at byte {start}, found {len}");
        return Err(cursor.problem("gguf-count", message));
    }
    let mut values = Vec::new();
    for _ in 0..len {
        values.push(of_kind(cursor, kind, what, Keep::Length, DEPTH)?);
        if cursor.at() - start > MOST_BYTES {
            let message =
                format!("expected at most {MOST_BYTES} bytes in the array of {what} at byte {start}, found more");
            return Err(cursor.problem("gguf-count", message));
        }
    }
    Ok(values)
}
