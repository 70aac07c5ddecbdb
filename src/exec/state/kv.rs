//! Keys and values of an attention layer: all of them, or those that a sliding window can still see.

use super::{CacheFormat, MixerState, Part, SessionOptions, StateError};
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::{Float, Matrix};

/// The keys (after RoPE) and values of the tokens so far.
#[derive(Debug, Clone)]
pub struct KvState<F> {
    kv: Kv<F>,
    format: CacheFormat,
    /// The window, where what it can't see any more is dropped.
    rolling: Option<usize>,
}

impl<F: Float> KvState<F> {
    pub fn new(spec: &AttentionSpec, options: SessionOptions) -> Self {
        let width = spec.num_key_value_heads * spec.head_dim;
        let empty = || Matrix::filled(0, width, F::ZERO);
        let kv = Kv { first: 0, keys: empty(), values: empty() };
        Self { kv, format: options.cache, rolling: spec.sliding_window.filter(|_| options.rolling) }
    }

    /// What attention reads.
    pub fn kv(&self) -> &Kv<F> {
        &self.kv
    }

    /// Adds the keys and values of the next tokens, `[tokens, num_key_value_heads * head_dim]` each.
    pub fn append(&mut self, keys: &Matrix<F>, values: &Matrix<F>) {
        for (all, new) in [(&mut self.kv.keys, keys), (&mut self.kv.values, values)] {
            match self.format {
                CacheFormat::Computed => all.extend_rows(new.data()),
                format => {
                    let mut rounded = new.clone();
                    rounded.iter_rows_mut().for_each(|row| format.round(row));
                    all.extend_rows(rounded.data());
                }
            }
        }
    }

    /// Drops what the next token can't see, once the tokens of a pass have seen it.
    pub fn settle(&mut self) {
        let Some(window) = self.rolling else { return };
        // The next token sees itself and window - 1 before it. Twice as many are kept before rows are moved.
        let rows = self.kv.keys.rows();
        if rows >= 2 * window {
            self.drop_first(rows - (window - 1));
        }
    }

    /// The first token that the one after `len` tokens sees.
    fn needed_from(&self, len: usize) -> usize {
        self.rolling.map_or(0, |window| (len + 1).saturating_sub(window)).min(len)
    }

    fn drop_first(&mut self, rows: usize) {
        for matrix in [&mut self.kv.keys, &mut self.kv.values] {
            *matrix = matrix.slice_rows(rows..matrix.rows());
        }
        self.kv.first += rows;
    }
}

impl<F: Float> MixerState<F> for KvState<F> {
    fn can_trim(&self, len: usize) -> Result<(), StateError> {
        match self.kv.first {
            first if first > self.needed_from(len) && len > 0 => Err(StateError::Dropped { wanted: len, first }),
            _ => Ok(()),
        }
    }

    fn trim(&mut self, len: usize) {
        let first = self.kv.first.min(len);
        let rows = if len == 0 { 0 } else { len - first };
        for matrix in [&mut self.kv.keys, &mut self.kv.values] {
            *matrix = matrix.slice_rows(0..rows);
        }
        self.kv.first = first;
    }

    fn parts(&self) -> Vec<Part<'_, F>> {
        let part = |name, rows| Part { name, first: Some(self.kv.first), rows };
        vec![part("keys", &self.kv.keys), part("values", &self.kv.values)]
    }

    fn restore(&mut self, parts: Vec<(String, Option<usize>, Matrix<F>)>) -> Result<(), String> {
        let cols = self.kv.keys.cols();
        match <[_; 2]>::try_from(parts) {
            Ok([(k, Some(first), keys), (v, second, values)]) => {
                let fits = k == "keys" && v == "values" && second == Some(first) && keys.rows() == values.rows();
                if !fits || keys.cols() != cols || values.cols() != cols {
                    return Err(format!("expected keys and values of {cols} columns and as many rows each"));
                }
                let needed = self.needed_from(first + keys.rows());
                if first > needed {
                    return Err(format!("the next token needs tokens from {needed} on, found those from {first} on"));
                }
                self.kv = Kv { first, keys, values };
                Ok(())
            }
            Ok(_) => Err("expected keys and values of tokens".to_owned()),
            Err(parts) => Err(format!("expected keys and values, found {} parts", parts.len())),
        }
    }
}
