//! A source whose tensors have other names, shapes, orders and numbers than the files hold: what a converter or a
//! quantiser did is undone while the bytes are read.

use super::quantized::{Loaded, Quantized};
use super::{Decoder, Source, SourceFile, TensorInfo};
use crate::problem::quote;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// How a tensor comes out of stored ones.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// Bytes of stored tensors, one piece after the other.
    Pieces(Vec<Piece>),
    /// The rows of a stored tensor, in blocks of `block` rows that are shuffled alike: row r of a block is its stored
    /// row `order[r]`.
    Shuffled { stored: String, row_bytes: u64, order: Arc<[u32]> },
    /// float32 values of stored elements in another order: one grid after the other, each value changed alike.
    Values { grids: Vec<Grid>, change: Change },
    /// float32 values of quantised matrices of one shape, one below the other, and what their format is called.
    Quantized { format: String, matrices: Vec<Quantized> },
}

/// Elements of stored tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// One tensor, or several of which the place along the axis `turn` chooses.
    pub stored: Vec<(String, Decoder)>,
    pub turn: Option<usize>,
    /// The first element.
    pub first: u64,
    /// How many elements there are along each axis and how far apart they are stored, outermost axis first.
    pub axes: Vec<(u64, u64)>,
}

/// What happens to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Nothing,
    MinusOne,
    /// ln(-x), rounded from float64.
    LogOfNegative,
}

impl Change {
    fn of(self, value: f32) -> f32 {
        match self {
            Change::Nothing => value,
            Change::MinusOne => value - 1.0,
            Change::LogOfNegative => libm::log(-f64::from(value)) as f32,
        }
    }
}

impl Grid {
    fn cells(&self) -> u64 {
        self.axes.iter().map(|(count, _)| count).product()
    }

    /// Of a cell, its place along each axis.
    fn places(&self, mut cell: u64) -> Vec<u64> {
        let mut places = vec![0; self.axes.len()];
        for (place, (count, _)) in places.iter_mut().zip(&self.axes).rev() {
            *place = cell % count;
            cell /= count;
        }
        places
    }

    /// Stored elements among which those of some cells are.
    fn span(&self, cells: &Range<u64>) -> Range<u64> {
        let (from, to) = (self.places(cells.start), self.places(cells.end - 1));
        let (mut low, mut high) = (self.first, self.first);
        let mut alike = true;
        for ((&a, &b), (count, step)) in from.iter().zip(&to).zip(&self.axes) {
            // Behind the first axis on which they differ anything is between them.
            let (a, b) = if alike { (a, b) } else { (0, count - 1) };
            low += a * step;
            high += b * step;
            alike &= a == b;
        }
        low..high + 1
    }
}

/// Bytes of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub stored: String,
    pub range: Range<u64>,
}

impl Piece {
    /// One of `count` equal parts.
    pub fn entry(&self, i: usize, count: usize) -> Self {
        let each = (self.range.end - self.range.start) / count as u64;
        let first = self.range.start + i as u64 * each;
        Self { stored: self.stored.clone(), range: first..first + each }
    }
}

/// A tensor's name, the number of a matrix in it, and what that one needs.
type Held = ((String, usize), Arc<Loaded>);

/// The tensors of another source, differently.
pub struct Presented {
    inner: Arc<dyn Source>,
    tensors: BTreeMap<String, TensorInfo>,
    views: BTreeMap<String, View>,
    ignorable: Vec<(&'static str, String)>,
    /// Matrices that don't lie by rows, by tensor and number: those that were used last.
    held: Mutex<VecDeque<Held>>,
}

/// As many as are read at a time: in the order of a pass, and of experts.
const HELD: usize = 2;
const WIDTH: u64 = size_of::<f32>() as u64;

impl Presented {
    /// `tensors` are descriptions of what is to be read, with the way to it. File and offset are those of the first
    /// stored byte.
    pub fn new(inner: Arc<dyn Source>, tensors: impl IntoIterator<Item = (TensorInfo, View)>) -> Self {
        let (mut infos, mut views) = (BTreeMap::new(), BTreeMap::new());
        for (info, view) in tensors {
            views.insert(info.name.clone(), view);
            infos.insert(info.name.clone(), info);
        }
        Self { inner, tensors: infos, views, ignorable: Vec::new(), held: Mutex::default() }
    }

    /// Names tensors that a plan may leave unused, with what they are.
    #[must_use]
    pub fn with_ignorable(self, ignorable: Vec<(&'static str, String)>) -> Self {
        Self { ignorable, ..self }
    }

    fn stored(&self, name: &str) -> Result<&TensorInfo> {
        self.inner.tensors().get(name).with_context(|| format!("there is no stored tensor {}", quote(name)))
    }
}

impl Source for Presented {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn stored(&self) -> &BTreeMap<String, TensorInfo> {
        self.inner.stored()
    }

    fn ignorable(&self) -> &[(&'static str, String)] {
        &self.ignorable
    }

    fn stored_bytes(&self, tensor: &TensorInfo, range: &Range<u64>) -> u64 {
        match self.views.get(&tensor.name) {
            Some(View::Quantized { matrices, .. }) if tensor.len > 0 => {
                // They are alike.
                let each = matrices.first().map_or(0, Quantized::stored_bytes);
                share(each * matrices.len() as u64, tensor.len, range)
            }
            Some(View::Values { grids, .. }) if tensor.len > 0 => {
                let stored = |grid: &Grid| {
                    let decoder = grid.stored.first().map(|(_, decoder)| decoder);
                    decoder.map_or(0, |d| grid.cells() * d.block_bytes() as u64 / d.block_elements() as u64)
                };
                share(grids.iter().map(stored).sum(), tensor.len, range)
            }
            _ => range.end - range.start,
        }
    }

    fn formats(&self) -> BTreeMap<String, usize> {
        let is_made = |name: &str| matches!(self.views.get(name), Some(View::Quantized { .. }));
        if !self.tensors.keys().any(|name| is_made(name)) {
            return self.inner.formats();
        }
        let ignorable: BTreeSet<&str> = self.ignorable.iter().map(|(_, name)| name.as_str()).collect();
        let mut formats = BTreeMap::new();
        for info in self.tensors.values().filter(|info| !ignorable.contains(info.name.as_str())) {
            *formats.entry(self.format(info)).or_default() += 1;
        }
        formats
    }

    fn format(&self, tensor: &TensorInfo) -> String {
        match self.views.get(&tensor.name) {
            Some(View::Quantized { format, .. }) => format.clone(),
            Some(View::Values { grids, .. }) => {
                let stored = grids.first().and_then(|grid| grid.stored.first());
                let stored = stored.and_then(|(name, _)| self.inner.tensors().get(name));
                stored.map_or(&tensor.dtype, |info| &info.dtype).to_string()
            }
            _ => tensor.dtype.to_string(),
        }
    }

    fn working_bytes(&self, range: u64) -> u64 {
        let whole = |view: &View| match view {
            View::Quantized { matrices, .. } => {
                Some(matrices.iter().filter(|m| !m.by_rows()).map(Quantized::stored_bytes).max().unwrap_or(0))
            }
            _ => None,
        };
        // Those that are kept and one that comes, or the codes and scales of rows.
        self.views.values().filter_map(whole).max().map_or(0, |whole| (HELD as u64 + 1) * whole + 2 * range)
    }

    fn files(&self) -> &[SourceFile] {
        self.inner.files()
    }

    fn read_into<'a>(&'a self, tensor: &TensorInfo, range: Range<u64>, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let view = self.views.get(&tensor.name);
        let view = view.with_context(|| format!("there is no tensor {}", quote(&tensor.name)))?;
        let len = self.tensors[&tensor.name].len;
        ensure!(
            range.start <= range.end && range.end <= len,
            "{}: expected a range within its {len} bytes, found {range:?}",
            quote(&tensor.name)
        );
        match view {
            View::Pieces(pieces) => self.pieces(pieces, range, buffer),
            View::Shuffled { stored, row_bytes, order } => {
                self.shuffled(self.stored(stored)?, *row_bytes, order, range, buffer)
            }
            View::Values { grids, change } => self.values(grids, *change, range, buffer),
            View::Quantized { matrices, .. } => self.quantized(&tensor.name, matrices, range, buffer),
        }
    }

    fn is_resident(&self) -> bool {
        false
    }

    fn check_unchanged(&self) -> Result<()> {
        self.inner.check_unchanged()
    }

    fn headers_sha256(&self) -> Result<String> {
        self.inner.headers_sha256()
    }

    fn full_sha256(&self) -> Result<String> {
        self.inner.full_sha256()
    }
}

impl Presented {
    fn pieces<'a>(&'a self, pieces: &[Piece], range: Range<u64>, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let mut parts = Vec::new();
        let mut at = 0;
        for Piece { stored, range: piece } in pieces {
            let end = at + (piece.end - piece.start);
            let (first, last) = (range.start.max(at), range.end.min(end));
            if first < last {
                parts.push((stored, piece.start + first - at..piece.start + last - at));
            }
            at = end;
        }
        if let [(stored, part)] = &parts[..] {
            return self.inner.read_into(self.stored(stored)?, part.clone(), buffer);
        }
        let mut all = Vec::with_capacity(usize::try_from(range.end - range.start)?);
        for (stored, part) in parts {
            all.extend_from_slice(self.inner.read_into(self.stored(stored)?, part, buffer)?);
        }
        *buffer = all;
        Ok(buffer)
    }

    fn shuffled<'a>(
        &'a self,
        stored: &TensorInfo,
        row_bytes: u64,
        order: &[u32],
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        if range.is_empty() {
            buffer.clear();
            return Ok(buffer);
        }
        let block = order.len() as u64;
        let rows = range.start / row_bytes..range.end.div_ceil(row_bytes);
        // Whole blocks, in one read.
        let first = rows.start / block * block;
        let last = rows.end.next_multiple_of(block);
        let mut read = Vec::new();
        let bytes = self.inner.read_into(stored, first * row_bytes..last * row_bytes, &mut read)?;
        let width = usize::try_from(row_bytes)?;
        buffer.clear();
        for row in rows.clone() {
            let at = row / block * block + u64::from(order[(row % block) as usize]) - first;
            buffer.extend_from_slice(&bytes[at as usize * width..][..width]);
        }
        Ok(cut(buffer, range.start - rows.start * row_bytes, range.end - range.start))
    }

    fn values<'a>(
        &'a self,
        grids: &[Grid],
        change: Change,
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        let wanted = range.start / WIDTH..range.end.div_ceil(WIDTH);
        let mut bytes = Vec::with_capacity(usize::try_from((wanted.end - wanted.start) * WIDTH)?);
        let mut at = 0;
        for grid in grids {
            let end = at + grid.cells();
            let (first, last) = (wanted.start.max(at), wanted.end.min(end));
            if first < last {
                self.grid(grid, first - at..last - at, |value| {
                    bytes.extend_from_slice(&change.of(value).to_le_bytes())
                })?;
            }
            at = end;
        }
        let skipped = range.start % WIDTH;
        ensure!(bytes.len() as u64 >= skipped + range.end - range.start, "the tensor has fewer values than it should");
        *buffer = bytes;
        Ok(cut(buffer, skipped, range.end - range.start))
    }

    /// The values `cells` of a grid, one after the other.
    fn grid(&self, grid: &Grid, cells: Range<u64>, mut value: impl FnMut(f32)) -> Result<()> {
        let Some((&(count, step), _)) = grid.axes.split_last() else { return Ok(()) };
        let last = grid.axes.len() - 1;
        let span = grid.span(&cells);
        let sparse = (cells.end - cells.start) * 4 < span.end - span.start;
        let mut buffers = vec![Vec::new(); grid.stored.len()];
        let mut decoded = Vec::new();
        for ((name, decoder), buffer) in grid.stored.iter().zip(&mut buffers) {
            let (elements, width) = (decoder.block_elements() as u64, decoder.block_bytes() as u64);
            let blocks = span.start / elements..span.end.div_ceil(elements);
            let bytes = self.inner.read_into(self.stored(name)?, blocks.start * width..blocks.end * width, buffer)?;
            let count = usize::try_from(blocks.end - blocks.start)?;
            let mut values = vec![0.0; count * decoder.block_elements()];
            if !sparse {
                decoder.decode(bytes, &mut values);
            }
            let waiting = vec![true; if sparse { count } else { 0 }];
            decoded.push(Decoded { first: blocks.start * elements, decoder: *decoder, bytes, values, waiting });
        }
        let mut places = grid.places(cells.start);
        let mut left = cells.end - cells.start;
        while left > 0 {
            // Along the innermost axis, as far as it goes.
            let run = places[last]..count.min(places[last] + left);
            places[last] = 0;
            let start = grid.first + places.iter().zip(&grid.axes).map(|(place, (_, step))| place * step).sum::<u64>();
            left -= run.end - run.start;
            for i in run {
                let tensor = match grid.turn {
                    Some(turn) if turn == last => i,
                    Some(turn) => places[turn],
                    None => 0,
                };
                value(decoded[tensor as usize].at(start + i * step));
            }
            for (place, (count, _)) in places[..last].iter_mut().zip(&grid.axes).rev() {
                *place += 1;
                if *place < *count {
                    break;
                }
                *place = 0;
            }
        }
        Ok(())
    }

    fn quantized<'a>(
        &'a self,
        name: &str,
        matrices: &[Quantized],
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        buffer.clear();
        let (Some((rows, cols)), false) = (matrices.first().map(Quantized::presented), range.is_empty()) else {
            return Ok(buffer);
        };
        let row_bytes = cols as u64 * WIDTH;
        let (first, end) = ((range.start / row_bytes) as usize, range.end.div_ceil(row_bytes) as usize);
        for (number, matrix) in matrices.iter().enumerate().take(end.div_ceil(rows)).skip(first / rows) {
            let above = number * rows;
            let wanted = first.saturating_sub(above)..(end - above).min(rows);
            let loaded = self.loaded(name, number, matrix, &wanted)?;
            matrix.decode(self.inner.as_ref(), &loaded, wanted, buffer)?;
        }
        Ok(cut(buffer, range.start - first as u64 * row_bytes, range.end - range.start))
    }

    /// What rows of a matrix need: read for them alone, or else kept for those that come next.
    fn loaded(&self, name: &str, number: usize, matrix: &Quantized, rows: &Range<usize>) -> Result<Arc<Loaded>> {
        if matrix.by_rows() {
            return Ok(Arc::new(matrix.load(self.inner.as_ref(), rows.clone())?));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = held.iter().position(|((n, i), _)| n == name && *i == number)
            && let Some((key, loaded)) = held.remove(at)
        {
            held.push_front((key, Arc::clone(&loaded)));
            return Ok(loaded);
        }
        held.truncate(HELD - 1);
        drop(held);
        let loaded = Arc::new(matrix.load(self.inner.as_ref(), 0..matrix.rows)?);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.truncate(HELD - 1);
        held.push_front(((name.to_owned(), number), Arc::clone(&loaded)));
        Ok(loaded)
    }
}

/// How much of `all` a range of `len` stands for: over all ranges as much as there is.
fn share(all: u64, len: u64, range: &Range<u64>) -> u64 {
    let before = |end: u64| (u128::from(all) * u128::from(end) / u128::from(len)) as u64;
    before(range.end) - before(range.start)
}

/// Leaves `count` bytes of a buffer, from `first` on.
fn cut(buffer: &mut Vec<u8>, first: u64, count: u64) -> &[u8] {
    buffer.drain(..first as usize);
    buffer.truncate(count as usize);
    buffer
}

/// Blocks of a stored tensor and their values.
struct Decoded<'a> {
    /// The first element.
    first: u64,
    decoder: Decoder,
    bytes: &'a [u8],
    values: Vec<f32>,
    /// Which blocks have no values yet; empty where all have.
    waiting: Vec<bool>,
}

impl Decoded<'_> {
    fn at(&mut self, element: u64) -> f32 {
        let i = (element - self.first) as usize;
        if !self.waiting.is_empty() {
            let (elements, width) = (self.decoder.block_elements(), self.decoder.block_bytes());
            let block = i / elements;
            if std::mem::take(&mut self.waiting[block]) {
                let values = &mut self.values[block * elements..][..elements];
                self.decoder.decode(&self.bytes[block * width..][..width], values);
            }
        }
        self.values[i]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Dtype, MemorySource};

    /// The tensors `a` and `b`, which count from 0 and from 100 in rows of three, and `t`, made of them.
    fn presented(grids: Vec<Grid>, change: Change) -> Presented {
        let bytes = |first: u8| (0..6).flat_map(|n| f32::from(first + n).to_le_bytes()).collect::<Vec<u8>>();
        let stored = |first| (Dtype::F32, vec![2, 3], bytes(first));
        let tensors = [("a".to_owned(), stored(0)), ("b".to_owned(), stored(100))];
        let inner = MemorySource::new(tensors.into()).expect("sound");
        let len = 4 * grids.iter().map(Grid::cells).sum::<u64>();
        let info = TensorInfo { name: "t".into(), len, ..inner.tensors()["a"].clone() };
        Presented::new(Arc::new(inner), [(info, View::Values { grids, change })])
    }

    fn grid(stored: &[&str], turn: Option<usize>, first: u64, axes: &[(u64, u64)]) -> Grid {
        let decoder = Dtype::F32.decoder().expect("there is one");
        let stored = stored.iter().map(|name| ((*name).to_owned(), decoder)).collect();
        Grid { stored, turn, first, axes: axes.to_vec() }
    }

    #[track_caller]
    fn gives(source: &Presented, expected: &[f32]) {
        let bytes: Vec<u8> = expected.iter().flat_map(|n| n.to_le_bytes()).collect();
        let info = &source.tensors()["t"];
        for from in 0..=bytes.len() {
            for to in from..=bytes.len() {
                let read = source.read(info, from as u64..to as u64).expect("it can be read");
                assert_eq!(read, bytes[from..to], "{from}..{to}");
            }
        }
        assert!(source.read(info, 0..info.len + 1).is_err());
    }

    #[test]
    fn rows_become_columns() {
        gives(&presented(vec![grid(&["a"], None, 0, &[(3, 1), (2, 3)])], Change::Nothing), &[0., 3., 1., 4., 2., 5.]);
    }

    #[test]
    fn a_few_values_of_many_blocks_are_those_of_all() {
        // Q8_0: 64 rows of two blocks, each block its number plus the place in it, seen as columns.
        let block = |n: u8| [&[0, 0x3c][..], &(0..32).map(|i| n / 2 + i).collect::<Vec<u8>>()].concat();
        let bytes: Vec<u8> = (0..128).flat_map(block).collect();
        let dtype = Dtype::of_ggml(8).expect("Q8_0");
        let decoder = dtype.decoder().expect("there is one");
        let inner = MemorySource::new([("a".to_owned(), (dtype, vec![64, 64], bytes))].into()).expect("sound");
        let info = TensorInfo { name: "t".into(), dtype: Dtype::F32, len: 4 * 64 * 64, ..inner.tensors()["a"].clone() };
        let axes = vec![(64, 1), (64, 64)];
        let grids = vec![Grid { stored: vec![("a".into(), decoder)], turn: None, first: 0, axes }];
        let source = Presented::new(Arc::new(inner), [(info, View::Values { grids, change: Change::Nothing })]);
        let info = &source.tensors()["t"];
        let whole = source.read(info, 0..info.len).expect("it can be read");
        let value = |i: usize| f32::from_le_bytes(whole[4 * i..][..4].try_into().expect("four"));
        // Column 33 is the second value of each row's second block.
        assert_eq!((0..4).map(|row| value(33 * 64 + row)).collect::<Vec<f32>>(), [1.0, 2.0, 3.0, 4.0]);
        for column in [0, 31, 33, 63] {
            let range = column * 256 + 3..column * 256 + 250;
            let read = source.read(info, range.clone()).expect("it can be read");
            assert_eq!(read, whole[range.start as usize..range.end as usize], "{column}");
        }
    }

    #[test]
    fn tensors_take_turns_along_any_axis() {
        let last = grid(&["a", "b"], Some(1), 0, &[(2, 3), (2, 0)]);
        gives(&presented(vec![last], Change::Nothing), &[0., 100., 3., 103.]);
        let middle = grid(&["b", "a"], Some(1), 1, &[(2, 1), (2, 0), (2, 3)]);
        gives(&presented(vec![middle], Change::Nothing), &[101., 104., 1., 4., 102., 105., 2., 5.]);
    }

    #[test]
    fn one_grid_follows_another_and_values_change() {
        let grids = || vec![grid(&["b"], None, 2, &[(2, 2)]), grid(&["a"], None, 1, &[(2, 0)])];
        gives(&presented(grids(), Change::MinusOne), &[101., 103., 0., 0.]);
    }

    #[test]
    fn a_decay_is_the_exponential_of_what_it_becomes() {
        for a_log in [-1.5f32, 0.0, 0.7, 2.0, 3.25] {
            let decay = -libm::exp(f64::from(a_log)) as f32;
            let back = Change::LogOfNegative.of(decay);
            assert_eq!(-libm::exp(f64::from(back)) as f32, decay, "{a_log}");
        }
        assert_eq!(Change::LogOfNegative.of(-1.0), 0.0);
    }
}
