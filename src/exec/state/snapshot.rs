//! A session as a file: kept, and restored later or elsewhere.
//!
//! One line of JSON (what it is, for which plan, which parts of which shape), a line feed, then the parts' values row by
//! row, little endian, in the order of the header.

use super::{Session, SessionOptions};
use crate::model::Plan;
use crate::ops::{Float, Matrix};
use crate::problem::visible;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use thiserror::Error;

const FORMAT: &str = "oracle-session-v1";
/// A header of more bytes is damaged.
const HEADER_LIMIT: u64 = 16_000_000;

/// Why a snapshot can't be restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("the snapshot can't be read: {0}")]
    Io(#[from] io::Error),

    #[error("not a session snapshot: expected a first line with the format {FORMAT}{0}")]
    NotASnapshot(String),

    #[error("the snapshot's {what} is {found}; expected {expected}")]
    Mismatch { what: &'static str, expected: String, found: String },

    #[error("layer {layer} of the snapshot: {message}")]
    Layer { layer: usize, message: String },

    #[error("the snapshot ends early or goes on too long: expected {expected} bytes of values")]
    Length { expected: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    plan_sha256: String,
    /// Bits of a float.
    bits: usize,
    /// Tokens seen.
    len: usize,
    /// As in [`Session::length`].
    length: usize,
    /// Per layer, the parts of its state.
    layers: Vec<Vec<PartHeader>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartHeader {
    name: String,
    /// Absent where the rows are a state after all tokens.
    first: Option<usize>,
    rows: usize,
    cols: usize,
}

impl<F: Float> Session<F> {
    /// Writes the session.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn snapshot(&self, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
        let layers = self.layers.iter().map(|layer| {
            let parts = layer.as_mixer().parts().into_iter().map(|p| PartHeader {
                name: p.name.to_owned(),
                first: p.first,
                rows: p.rows.rows(),
                cols: p.rows.cols(),
            });
            parts.collect()
        });
        let header = Header {
            format: FORMAT.to_owned(),
            plan_sha256: plan.sha256(),
            bits: 8 * size_of::<F>(),
            len: self.len,
            length: self.length,
            layers: layers.collect(),
        };
        serde_json::to_writer(&mut *out, &header)?;
        out.write_all(b"\n")?;
        for layer in &self.layers {
            for part in layer.as_mixer().parts() {
                for &value in part.rows.data() {
                    value.write_le(out)?;
                }
            }
        }
        Ok(())
    }

    /// Reads what [`Session::snapshot`] wrote; `options` are those of the session that was written.
    ///
    /// # Errors
    /// Not a snapshot, one of another plan or float type, or a damaged one.
    pub fn restore(plan: &Plan, options: SessionOptions, input: &mut dyn BufRead) -> Result<Self, SnapshotError> {
        let mut line = Vec::new();
        io::Read::take(&mut *input, HEADER_LIMIT).read_until(b'\n', &mut line)?;
        let header: Header =
            serde_json::from_slice(&line).map_err(|e| SnapshotError::NotASnapshot(format!(" ({e})")))?;
        if header.format != FORMAT {
            return Err(SnapshotError::NotASnapshot(format!(", found {}", visible(&header.format))));
        }
        let mut session = Self::with_options(plan, header.length, options);
        for (what, expected, found) in [
            ("plan_sha256", plan.sha256(), header.plan_sha256),
            ("float type", (8 * size_of::<F>()).to_string(), header.bits.to_string()),
            ("number of layers", session.layers.len().to_string(), header.layers.len().to_string()),
        ] {
            if expected != found {
                return Err(SnapshotError::Mismatch { what, expected, found });
            }
        }
        let mut sizes = header.layers.iter().flatten().map(|p| p.rows.checked_mul(p.cols));
        let values = sizes.try_fold(0usize, |sum, size| sum.checked_add(size?));
        let values = values.and_then(|n| n.checked_mul(size_of::<F>()));
        let expected = values.map_or(u64::MAX, |n| n as u64);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(&mut *input, expected.saturating_add(1)), &mut bytes)?;
        if bytes.len() as u64 != expected {
            return Err(SnapshotError::Length { expected });
        }
        let mut values = bytes.chunks_exact(size_of::<F>()).map(F::from_le);
        for (layer, (state, parts)) in session.layers.iter_mut().zip(header.layers).enumerate() {
            let mut restored = Vec::new();
            for part in parts {
                if let Some(first) = part.first
                    && first.checked_add(part.rows) != Some(header.len)
                {
                    let rows = part.rows;
                    let message = format!(
                        "expected {} up to token {}, found {rows} rows from token {first} on",
                        visible(&part.name),
                        header.len
                    );
                    return Err(SnapshotError::Layer { layer, message });
                }
                let data: Vec<F> = values.by_ref().take(part.rows * part.cols).collect();
                restored.push((part.name, part.first, Matrix::from_vec(part.rows, part.cols, data)));
            }
            state.as_mixer_mut().restore(restored).map_err(|message| SnapshotError::Layer { layer, message })?;
        }
        session.len = header.len;
        Ok(session)
    }
}
