//! Keys and values of an attention layer: all of them, or those that a sliding window can still see.
//!
//! Latent attention keeps each head's keys and values too, not the small vectors that they are made of: the numbers are
//! the same, the memory is not.

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
        let empty = |dim: usize| Matrix::filled(0, spec.num_key_value_heads * dim, F::ZERO);
        let kv = Kv { first: 0, keys: empty(spec.head_dim), values: empty(spec.v_head_dim()) };
        Self { kv, format: options.cache, rolling: spec.sliding_window.filter(|_| options.rolling) }
    }

    /// What attention reads.
    pub fn kv(&self) -> &Kv<F> {
        &self.kv
    }

    /// Adds the keys and values of the next tokens, `[tokens, num_key_value_heads * head_dim]` and
    /// `[tokens, num_key_value_heads * v_head_dim]`.
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
        let (k_cols, v_cols) = (self.kv.keys.cols(), self.kv.values.cols());
        match <[_; 2]>::try_from(parts) {
            Ok([(k, Some(first), keys), (v, second, values)]) => {
                let fits = k == "keys" && v == "values" && second == Some(first) && keys.rows() == values.rows();
                if !fits || keys.cols() != k_cols || values.cols() != v_cols {
                    return Err(format!(
                        "expected keys of {k_cols} columns, values of {v_cols}, and as many rows of each"
                    ));
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

/// What a layer keeps that reads the keys and values of another one.
#[derive(Debug, Clone, Copy)]
pub struct Shared;

impl<F: Float> MixerState<F> for Shared {
    fn can_trim(&self, _: usize) -> Result<(), StateError> {
        Ok(())
    }

    fn trim(&mut self, _: usize) {}

    fn parts(&self) -> Vec<Part<'_, F>> {
        vec![]
    }

    fn restore(&mut self, parts: Vec<(String, Option<usize>, Matrix<F>)>) -> Result<(), String> {
        match parts.len() {
            0 => Ok(()),
            n => Err(format!("expected nothing of a layer that reads another one's keys and values, found {n} parts")),
        }
    }
}
