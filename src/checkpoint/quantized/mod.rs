//! Matrices that are stored as codes in one tensor, with scales in others: what folders of Hugging Face's libraries hold.
//!
//! Each weight becomes a float32 by its format's own formula, in the order written at [`Quantized`]; nothing is rounded
//! to the narrower type that a library may compute in.

mod codes;

pub use codes::{Codes, Packing, Values};

use super::dtype::Decoder;
use super::presented::Piece;
use super::{Source, TensorInfo};
use crate::problem::quote;
use anyhow::{Context, Result, bail};
use codes::Loaded as LoadedCodes;
use std::ops::Range;

/// How a matrix `[rows, cols]` comes out of stored tensors: element by element a code's value v, a scale s and an offset
/// z of its group, as `v * s`, `(v - z) * s` or `v * s + z`.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    pub rows: usize,
    pub cols: usize,
    pub codes: Codes,
    pub groups: Groups,
    pub scale: Scale,
    pub offset: Offset,
    /// Its transpose is what is presented.
    pub transposed: bool,
}

/// Which scale is whose, in a matrix of scales that is read row by row.
#[derive(Debug, Clone, PartialEq)]
pub enum Groups {
    /// One for each block of rows and columns, `across` in a row of blocks.
    Blocks { rows: usize, cols: usize, across: usize },
    /// `[cols / c, rows]`: one for some inputs of an output, outputs side by side.
    Below { cols: usize },
    /// A group's number for each column; the scales are `[groups, rows]` or `[rows, groups]`.
    Mapped { map: Piece, groups: usize, below: bool },
    /// One for so many elements of the matrix, read as a line.
    Line { size: usize },
    /// One for every `count`th element of the matrix, read as a line.
    Modulo { count: usize },
}

/// Numbers that are stored by themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    pub stored: Piece,
    pub decoder: Decoder,
}

impl Numbers {
    /// Those of one of `count` entries.
    pub fn entry(&self, i: usize, count: usize) -> Self {
        Self { stored: self.stored.entry(i, count), ..self.clone() }
    }
}

/// The scales.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    pub numbers: Numbers,
    pub further: Further,
    pub sign: Sign,
}

/// What a stored scale becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum Further {
    /// What it is.
    Nothing,
    /// Its product with one number.
    Times(Numbers),
    /// Its quotient by one number.
    Over(Numbers),
    /// Its product with a constant, taken after that with the code.
    Then(f32),
    /// It is a code: its value in a table, times the number of its block of `size`, plus `offset`.
    Nested { table: Values, of: Numbers, size: usize, offset: f32 },
}

/// What scales a format can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    Positive,
    /// Zero where a block holds nothing else, or where a scale was too small for its type.
    NotNegative,
    Any,
}

/// What is taken from a code, or added behind.
#[derive(Debug, Clone, PartialEq)]
pub enum Offset {
    None,
    /// A zero point beside each scale, taken from the code's value.
    Zero(Numbers),
    /// The same, packed: `[rows, groups]`, `[groups, rows]` where `by_group`.
    Packed {
        codes: Codes,
        by_group: bool,
    },
    /// Added to the product.
    Bias(Numbers),
}

/// What is needed of some rows, or of all.
#[derive(Debug)]
pub struct Loaded {
    codes: Part,
    scales: Part,
    offsets: Part,
    /// The one number of all scales, or those of nested ones.
    further: Part,
    map: Vec<usize>,
}

/// Stored bytes, from byte `first` of what was described on.
#[derive(Debug, Default)]
struct Part {
    first: u64,
    bytes: Vec<u8>,
}

impl Part {
    fn read(source: &dyn Source, stored: &Piece, range: Range<u64>) -> Result<Self> {
        let info = info(source, stored)?;
        let first = range.start;
        let bytes = source.read(info, stored.range.start + range.start..stored.range.start + range.end)?;
        Ok(Self { first, bytes })
    }

    fn whole(source: &dyn Source, stored: &Piece) -> Result<Self> {
        Self::read(source, stored, 0..stored.range.end - stored.range.start)
    }

    /// Some elements of numbers, in bytes' terms.
    fn numbers(source: &dyn Source, numbers: &Numbers, range: Range<usize>) -> Result<Self> {
        let size = numbers.decoder.block_bytes() as u64;
        Self::read(source, &numbers.stored, range.start as u64 * size..range.end as u64 * size)
    }

    fn get(&self, decoder: Decoder, index: usize) -> f32 {
        let size = decoder.block_bytes();
        let at = index * size - self.first as usize;
        let mut value = [0.0];
        decoder.decode(&self.bytes[at..at + size], &mut value);
        value[0]
    }
}

fn info<'a>(source: &'a dyn Source, stored: &Piece) -> Result<&'a TensorInfo> {
    let info = source.tensors().get(&stored.stored);
    info.with_context(|| format!("there is no stored tensor {}", quote(&stored.stored)))
}

/// Buffers that are used again.
#[derive(Debug, Default)]
pub struct Scratch {
    codes: Vec<u8>,
    groups: Vec<(f32, f32)>,
}

impl Quantized {
    /// Every stored tensor that this needs.
    fn parts(&self) -> Vec<&Piece> {
        let mut parts = vec![&self.codes.stored, &self.scale.numbers.stored];
        parts.extend(match &self.scale.further {
            Further::Times(numbers) | Further::Over(numbers) | Further::Nested { of: numbers, .. } => {
                Some(&numbers.stored)
            }
            Further::Nothing | Further::Then(_) => None,
        });
        parts.extend(match &self.offset {
            Offset::Zero(numbers) | Offset::Bias(numbers) => Some(&numbers.stored),
            Offset::Packed { codes, .. } => Some(&codes.stored),
            Offset::None => None,
        });
        if let Groups::Mapped { map, .. } = &self.groups {
            parts.push(map);
        }
        parts
    }

    /// Stored bytes of all of it.
    pub fn stored_bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.range.end - part.range.start).sum()
    }

    /// Rows and columns of what is presented.
    pub fn presented(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// Whether some rows can be had without the others.
    pub fn by_rows(&self) -> bool {
        let groups = matches!(self.groups, Groups::Blocks { .. } | Groups::Line { .. });
        let offsets = !matches!(self.offset, Offset::Packed { .. });
        self.codes.packing.by_rows() && groups && offsets && !self.transposed
    }

    /// The scales of some rows.
    fn span(&self, rows: &Range<usize>) -> Range<usize> {
        match self.groups {
            Groups::Blocks { rows: high, across, .. } => rows.start / high * across..rows.end.div_ceil(high) * across,
            Groups::Line { size } => rows.start * self.cols / size..(rows.end * self.cols).div_ceil(size),
            Groups::Below { cols } => 0..self.cols.div_ceil(cols) * self.rows,
            Groups::Mapped { groups, .. } => 0..groups * self.rows,
            Groups::Modulo { count } => 0..count,
        }
    }

    /// How many scales there are.
    pub fn scales(&self) -> usize {
        self.span(&(0..self.rows)).end
    }

    /// Reads what some rows need, or all where it doesn't lie by rows.
    ///
    /// # Errors
    /// The source can't be read, or a column's group is none.
    pub fn load(&self, source: &dyn Source, rows: Range<usize>) -> Result<Loaded> {
        let rows = if self.by_rows() { rows } else { 0..self.rows };
        let span = self.span(&rows);
        let packed = &self.codes;
        let all = packed.stored.range.end - packed.stored.range.start;
        let codes = Part::read(source, &packed.stored, packed.packing.bytes_of(&rows, self.cols, all))?;
        let scales = Part::numbers(source, &self.scale.numbers, span.clone())?;
        let further = match &self.scale.further {
            Further::Times(one) | Further::Over(one) => Part::whole(source, &one.stored)?,
            Further::Nested { of, size, .. } => Part::numbers(source, of, span.start / size..span.end.div_ceil(*size))?,
            Further::Nothing | Further::Then(_) => Part::default(),
        };
        let offsets = match &self.offset {
            Offset::None => Part::default(),
            Offset::Zero(numbers) | Offset::Bias(numbers) => Part::numbers(source, numbers, span)?,
            Offset::Packed { codes, .. } => Part::whole(source, &codes.stored)?,
        };
        let map = match &self.groups {
            Groups::Mapped { map, groups, .. } => self.map(source, map, *groups)?,
            _ => Vec::new(),
        };
        Ok(Loaded { codes, scales, offsets, further, map })
    }

    /// Each column's group.
    fn map(&self, source: &dyn Source, stored: &Piece, groups: usize) -> Result<Vec<usize>> {
        let part = Part::whole(source, stored)?;
        let (words, _) = part.bytes.as_chunks::<4>();
        let mut map = Vec::with_capacity(words.len());
        for (col, word) in words.iter().enumerate() {
            let group = i32::from_le_bytes(*word);
            match usize::try_from(group) {
                Ok(group) if group < groups => map.push(group),
                _ => bail!(
                    "{}, element {col}: expected a group from 0 to {}, found {group}",
                    place(source, stored)?,
                    groups - 1
                ),
            }
        }
        Ok(map)
    }

    /// Where the scale of a group of row `row` is in the matrix of scales.
    fn index(&self, row: usize, group: usize) -> usize {
        match self.groups {
            Groups::Blocks { rows, across, .. } => row / rows * across + group,
            Groups::Below { .. } | Groups::Mapped { below: true, .. } => group * self.rows + row,
            Groups::Mapped { groups, .. } => row * groups + group,
            Groups::Line { .. } | Groups::Modulo { .. } => group,
        }
    }

    /// The group of an element, and the first column that is of another, or the next that may be.
    fn group(&self, map: &[usize], row: usize, col: usize) -> (usize, usize) {
        let place = row * self.cols + col;
        match self.groups {
            Groups::Blocks { cols, .. } | Groups::Below { cols } => (col / cols, (col / cols + 1) * cols),
            Groups::Mapped { .. } => (map[col], col + 1),
            Groups::Line { size } => (place / size, (place / size + 1) * size - row * self.cols),
            Groups::Modulo { count } => (place % count, col + 1),
        }
    }

    /// A group's scale and offset.
    fn pair(&self, source: &dyn Source, loaded: &Loaded, row: usize, group: usize) -> Result<(f32, f32)> {
        let index = self.index(row, group);
        let Scale { numbers, further, sign } = &self.scale;
        let stored = loaded.scales.get(numbers.decoder, index);
        let scale = match further {
            Further::Nothing | Further::Then(_) => stored,
            Further::Times(one) => stored * self.one(source, loaded, one)?,
            Further::Over(one) => stored / self.one(source, loaded, one)?,
            Further::Nested { table, of, size, offset } => {
                table.get(stored as u8) * loaded.further.get(of.decoder, index / size) + offset
            }
        };
        let sound = match sign {
            Sign::Positive => scale > 0.0,
            Sign::NotNegative => scale >= 0.0,
            Sign::Any => true,
        };
        if !(sound && scale.is_finite()) {
            let expected = match sign {
                Sign::Positive => "a finite scale greater than zero",
                Sign::NotNegative => "a finite scale that is not negative",
                Sign::Any => "a finite scale",
            };
            bail!("{}, element {index}: expected {expected}, found {scale}", place(source, &numbers.stored)?);
        }
        let offset = match &self.offset {
            Offset::None => 0.0,
            Offset::Zero(numbers) | Offset::Bias(numbers) => {
                let offset = loaded.offsets.get(numbers.decoder, index);
                if !offset.is_finite() {
                    let place = place(source, &numbers.stored)?;
                    bail!("{place}, element {index}: expected a finite number, found {offset}");
                }
                offset
            }
            Offset::Packed { codes, by_group } => {
                let groups = self.scales() / self.rows;
                let (rows, cols, at, col) =
                    if *by_group { (groups, self.rows, group, row) } else { (self.rows, groups, row, group) };
                let loaded = LoadedCodes { bytes: &loaded.offsets.bytes, first: loaded.offsets.first, rows, cols };
                codes.get(loaded, at, col)
            }
        };
        Ok((scale, offset))
    }

    /// The one number of all scales.
    fn one(&self, source: &dyn Source, loaded: &Loaded, one: &Numbers) -> Result<f32> {
        let value = loaded.further.get(one.decoder, 0);
        if !(value.is_finite() && value > 0.0) {
            bail!("{}: expected a finite scale greater than zero, found {value}", place(source, &one.stored)?);
        }
        Ok(value)
    }

    /// Decodes the columns `cols` of row `row`.
    ///
    /// # Errors
    /// A scale is not what its format can have.
    fn row(
        &self,
        source: &dyn Source,
        loaded: &Loaded,
        row: usize,
        cols: Range<usize>,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        let Part { first, bytes } = &loaded.codes;
        let codes = LoadedCodes { bytes, first: *first, rows: self.rows, cols: self.cols };
        self.codes.decode(codes, row, cols.clone(), &mut scratch.codes, out);
        if let Groups::Mapped { groups, .. } = self.groups {
            let pairs = (0..groups).map(|group| self.pair(source, loaded, row, group));
            scratch.groups.clear();
            for pair in pairs {
                scratch.groups.push(pair?);
            }
            for (value, col) in out.iter_mut().zip(cols) {
                self.formula(scratch.groups[loaded.map[col]], std::slice::from_mut(value));
            }
            return Ok(());
        }
        let mut col = cols.start;
        while col < cols.end {
            let (group, end) = self.group(&loaded.map, row, col);
            let end = end.min(cols.end);
            let pair = self.pair(source, loaded, row, group)?;
            self.formula(pair, &mut out[col - cols.start..end - cols.start]);
            col = end;
        }
        Ok(())
    }

    fn formula(&self, (scale, offset): (f32, f32), values: &mut [f32]) {
        match (&self.offset, &self.scale.further) {
            (Offset::None, Further::Then(factor)) => values.iter_mut().for_each(|v| *v = *v * scale * factor),
            (Offset::None, _) => values.iter_mut().for_each(|v| *v *= scale),
            (Offset::Zero(_) | Offset::Packed { .. }, _) => values.iter_mut().for_each(|v| *v = (*v - offset) * scale),
            (Offset::Bias(_), _) => values.iter_mut().for_each(|v| *v = *v * scale + offset),
        }
    }

    /// Appends some rows of what is presented to `out`, as little-endian float32.
    ///
    /// # Errors
    /// As [`Quantized::row`].
    pub fn decode(&self, source: &dyn Source, loaded: &Loaded, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let mut scratch = Scratch::default();
        if !self.transposed {
            let mut line = vec![0.0; self.cols];
            for row in rows {
                self.row(source, loaded, row, 0..self.cols, &mut scratch, &mut line)?;
                let start = out.len();
                out.resize(start + line.len() * size_of::<f32>(), 0);
                let (values, _) = out[start..].as_chunks_mut();
                for (to, value) in values.iter_mut().zip(&line) {
                    *to = value.to_le_bytes();
                }
            }
            return Ok(());
        }
        let start = out.len();
        out.resize(start + rows.len() * self.rows * size_of::<f32>(), 0);
        let (values, _) = out[start..].as_chunks_mut();
        let mut line = vec![0.0; rows.len()];
        for row in 0..self.rows {
            self.row(source, loaded, row, rows.clone(), &mut scratch, &mut line)?;
            for (i, value) in line.iter().enumerate() {
                values[i * self.rows + row] = value.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// File and tensor, for messages.
fn place(source: &dyn Source, stored: &Piece) -> Result<String> {
    let info = info(source, stored)?;
    Ok(format!("{}, tensor {}", source.files()[info.file].path.display(), quote(&info.name)))
}
