//! What is measured about one weight of two checkpoints: row by row, so that no number depends on pieces or threads.

use crate::exec::weights::{Block, RowReader};
use crate::oracle::metrics::{Extreme, NonFinite, finite, raise, tolerance_passes};
use crate::oracle::verdict::Gate;
use anyhow::Result;
use rayon::prelude::*;
use serde::Serialize;

/// One element of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Element {
    /// Counted through the rows of the plan's shape.
    pub index: usize,
    /// `null` in JSON where it is NaN or infinite; the bits tell which.
    pub reference: f64,
    pub candidate: f64,
    /// Of the float32 value, 8 hex digits.
    pub reference_bits: String,
    pub candidate_bits: String,
}

/// The measurements, over the decoded float32 values of a weight, in f64. Differences are over the elements of which both
/// sides are finite; what has no value is `None`, never NaN.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightMetrics {
    pub elements: usize,
    /// How many of them hold the same bits on both sides.
    pub equal_bits: usize,
    pub nonfinite: NonFinite,
    /// Largest `|c - r|`.
    pub max_abs: Option<Extreme<f64>>,
    /// Largest `|c - r| / |r|` over the elements of which r is not 0.
    pub max_relative: Option<Extreme<f64>>,
    /// How many elements have r = 0 and c not 0: no relative difference exists there.
    pub zero_reference: usize,
    /// `sqrt(mean((c - r)^2))`.
    pub rmse: Option<f64>,
    /// `sum((c - r)^2) / sum(r^2)`; `None` where the reference is all zero and the candidate is not.
    pub nmse: Option<f64>,
    /// Cosine of the angle between the two: 1 where all values are equal, zeros too; `None` where one side alone is all
    /// zero.
    pub cosine: Option<f64>,
    /// Signal to noise, `10 log10(sum(r^2) / sum((c - r)^2))`; `None` where there is no noise, or no signal.
    pub snr_db: Option<f64>,
    /// How many finite elements the gate does not let pass.
    pub beyond: usize,
    /// The first of them.
    pub first_beyond: Option<Element>,
    /// The first element that is NaN or infinite on a side; else the one with the largest difference, else the first with
    /// other bits.
    pub worst: Option<Element>,
}

impl WeightMetrics {
    /// Whether every value is finite and every element has the same bits on both sides.
    pub fn identical(&self) -> bool {
        self.nonfinite.none() && self.equal_bits == self.elements
    }

    /// Whether the gate lets the weight pass.
    pub fn passes(&self) -> bool {
        self.nonfinite.none() && self.beyond == 0
    }

    /// How much of the weight is lost, relative to what it holds.
    pub fn damage(&self) -> f64 {
        match (self.nonfinite.none(), self.nmse) {
            (true, Some(nmse)) => nmse,
            _ => f64::INFINITY,
        }
    }
}

/// Measures a weight of two checkpoints, both read in pieces of about `piece_bytes`, a row at least. The two have the same
/// number of rows and columns.
///
/// # Errors
/// A source can't be read.
pub fn measure(
    reference: &RowReader<'_>,
    candidate: &RowReader<'_>,
    gate: Gate,
    piece_bytes: usize,
) -> Result<WeightMetrics> {
    let (rows, cols) = (reference.rows(), reference.cols());
    let step = rows_at_once(reference.row_bytes().max(candidate.row_bytes()), piece_bytes);
    let (mut left, mut right) = (Block::default(), Block::default());
    let mut all = Sums::default();
    for first in (0..rows).step_by(step) {
        let range = first..rows.min(first.saturating_add(step));
        let (of_reference, of_candidate) =
            rayon::join(|| reference.read(range.clone(), &mut left), || candidate.read(range.clone(), &mut right));
        of_reference.and(of_candidate)?;
        let of_row = |(r, c): &mut (Vec<f32>, Vec<f32>), row: usize| {
            left.row(row - first, r);
            right.row(row - first, c);
            Sums::of_row(r, c, row * cols, gate)
        };
        let scratch = || (vec![0.0; cols], vec![0.0; cols]);
        let tasks = range.into_par_iter().with_min_len((TASK / cols.max(1)).max(1));
        let sums: Vec<Sums> = tasks.map_init(scratch, of_row).collect();
        sums.iter().for_each(|sums| all.add(sums));
    }
    Ok(all.metrics())
}

/// Elements that are worth a task of their own.
const TASK: usize = 1 << 14;

/// Whole blocks of rows where a piece has as many, so that none is read twice in a tensor whose columns they are.
fn rows_at_once(row_bytes: u64, piece_bytes: usize) -> usize {
    /// Of each row some sums are held.
    const MOST: u64 = 1 << 14;
    /// Elements of the longest block of a format.
    const BLOCK: usize = 256;
    let rows = (piece_bytes as u64 / row_bytes.max(1)).clamp(1, MOST) as usize;
    if rows >= BLOCK { rows / BLOCK * BLOCK } else { rows }
}

/// An element of both sides, as it is met.
#[derive(Debug, Clone, Copy)]
struct Met {
    index: usize,
    r: f32,
    c: f32,
}

impl From<Met> for Element {
    fn from(Met { index, r, c }: Met) -> Self {
        let bits = |value: f32| format!("{:08x}", value.to_bits());
        Self { index, reference: r.into(), candidate: c.into(), reference_bits: bits(r), candidate_bits: bits(c) }
    }
}

/// What one walk adds up: over a row from its first column on, over a weight from its first row on.
#[derive(Debug, Clone, Default)]
struct Sums {
    elements: usize,
    equal_bits: usize,
    finite: usize,
    nonfinite: NonFinite,
    /// Of `(c - r)^2`, `r^2`, `c^2` and `r * c`.
    squares: f64,
    reference: f64,
    candidate: f64,
    product: f64,
    zero_reference: usize,
    max_abs: Option<Extreme<f64>>,
    max_relative: Option<Extreme<f64>>,
    beyond: usize,
    first_beyond: Option<Met>,
    first_nonfinite: Option<Met>,
    first_difference: Option<Met>,
    /// The element of `max_abs`.
    largest: Option<Met>,
}

impl Sums {
    /// Over the elements of a row, of which the first is number `first`.
    fn of_row(r: &[f32], c: &[f32], first: usize, gate: Gate) -> Self {
        let mut sums = Self { elements: r.len(), ..Self::default() };
        for (at, (&r, &c)) in r.iter().zip(c).enumerate() {
            let met = Met { index: first + at, r, c };
            let same = r.to_bits() == c.to_bits();
            if same {
                sums.equal_bits += 1;
            } else {
                sums.first_difference.get_or_insert(met);
            }
            if r.is_finite() && c.is_finite() {
                sums.finite_pair(met, same, gate);
            } else {
                sums.nonfinite.reference += usize::from(!r.is_finite());
                sums.nonfinite.candidate += usize::from(!c.is_finite());
                sums.nonfinite.first_index.get_or_insert(met.index);
                sums.first_nonfinite.get_or_insert(met);
            }
        }
        sums
    }

    #[inline(always)]
    fn finite_pair(&mut self, met: Met, same: bool, gate: Gate) {
        let (r, c) = (f64::from(met.r), f64::from(met.c));
        self.finite += 1;
        self.reference += r * r;
        self.candidate += c * c;
        self.product += r * c;
        // Most are the same, and these figures know it already.
        if same && self.max_abs.is_some() && self.max_relative.is_some() {
            return;
        }
        let abs = (c - r).abs();
        self.squares += abs * abs;
        if self.max_abs.is_none_or(|max| abs > max.value) {
            self.largest = Some(met);
        }
        raise(&mut self.max_abs, met.index, abs);
        if r != 0.0 {
            raise(&mut self.max_relative, met.index, abs / r.abs());
        } else if c != 0.0 {
            self.zero_reference += 1;
        }
        let passes = match gate {
            Gate::Tolerance { atol, rtol } => tolerance_passes(abs, r, atol, rtol),
            _ => same,
        };
        if !passes {
            self.beyond += 1;
            self.first_beyond.get_or_insert(met);
        }
    }

    /// Adds what comes after.
    fn add(&mut self, next: &Self) {
        self.elements += next.elements;
        self.equal_bits += next.equal_bits;
        self.finite += next.finite;
        self.nonfinite.reference += next.nonfinite.reference;
        self.nonfinite.candidate += next.nonfinite.candidate;
        self.nonfinite.first_index = self.nonfinite.first_index.or(next.nonfinite.first_index);
        self.squares += next.squares;
        self.reference += next.reference;
        self.candidate += next.candidate;
        self.product += next.product;
        self.zero_reference += next.zero_reference;
        if let Some(max) = next.max_abs {
            if self.max_abs.is_none_or(|known| max.value > known.value) {
                self.largest = next.largest;
            }
            raise(&mut self.max_abs, max.index, max.value);
        }
        if let Some(max) = next.max_relative {
            raise(&mut self.max_relative, max.index, max.value);
        }
        self.beyond += next.beyond;
        self.first_beyond = self.first_beyond.or(next.first_beyond);
        self.first_nonfinite = self.first_nonfinite.or(next.first_nonfinite);
        self.first_difference = self.first_difference.or(next.first_difference);
    }

    fn metrics(&self) -> WeightMetrics {
        let (any, differs) = (self.finite > 0, self.squares > 0.0);
        let unless_equal = |equal: f64, value: f64| match (any, differs) {
            (false, _) => None,
            (true, false) => Some(equal),
            (true, true) => finite(value),
        };
        let cosine = self.product / (self.reference * self.candidate).sqrt();
        WeightMetrics {
            elements: self.elements,
            equal_bits: self.equal_bits,
            nonfinite: self.nonfinite.clone(),
            max_abs: self.max_abs,
            max_relative: self.max_relative,
            zero_reference: self.zero_reference,
            rmse: unless_equal(0.0, (self.squares / self.finite as f64).sqrt()),
            nmse: unless_equal(0.0, self.squares / self.reference),
            cosine: unless_equal(1.0, cosine).map(|cosine| cosine.clamp(-1.0, 1.0)),
            snr_db: finite(10.0 * (self.reference / self.squares).log10()).filter(|_| differs),
            beyond: self.beyond,
            first_beyond: self.first_beyond.map(Element::from),
            worst: self
                .first_nonfinite
                .or(self.largest.filter(|_| differs))
                .or(self.first_difference)
                .map(Element::from),
        }
    }
}
