//! Faults in what a session keeps between two passes.

use super::ShownBy;
use super::plan::attentions;
use crate::exec::state::Session;
use crate::model::Plan;
use crate::model::plan::Attention;
use crate::ops::Float;

/// State that is handled wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionFault {
    NotAppended,
    LayerMixup,
    Trim,
    PrefixOffset,
    SnapshotStale,
}

impl SessionFault {
    pub fn applies(self, plan: &Plan) -> Result<(), String> {
        match self {
            SessionFault::LayerMixup if twins(plan).is_none() => {
                Err("no two layers keep keys and values of one kind".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub fn shown_by(self) -> ShownBy {
        match self {
            SessionFault::NotAppended | SessionFault::LayerMixup => ShownBy::Chunks,
            SessionFault::Trim => ShownBy::Trim,
            SessionFault::PrefixOffset => ShownBy::Fork,
            SessionFault::SnapshotStale => ShownBy::Restore,
        }
    }
}

/// The first two layers whose caches can be mistaken for each other.
pub fn twins(plan: &Plan) -> Option<(usize, usize)> {
    let kinds: Vec<_> = attentions(plan)
        .filter(|(_, a)| a.kv_layer.is_none())
        .map(|(layer, Attention { spec, .. })| {
            let widths = (spec.num_key_value_heads * spec.head_dim, spec.num_key_value_heads * spec.v_head_dim());
            (layer, (widths, spec.sliding_window))
        })
        .collect();
    let pair =
        |(i, a): (usize, &(usize, _))| kinds[i + 1..].iter().find(|b| a.1 == b.1).map(|b: &(usize, _)| (a.0, b.0));
    kinds.iter().enumerate().find_map(pair)
}

/// What is lost of the tokens that a session holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// The last token's row.
    Newest,
    /// Of every row the columns from the number of tokens on, at least the last one.
    ColumnsBeyondLength,
}

impl<F: Float> Session<F> {
    /// Sets to zero what is lost: the slots are there, as in a cache that was allocated at full size.
    pub(super) fn lose(&mut self, lost: Tokens) {
        let len = self.len;
        for layer in &mut self.layers {
            let state = layer.as_mixer_mut();
            let parts = state.parts().into_iter().map(|part| {
                let mut rows = part.rows.clone();
                let (count, cols) = (rows.rows(), rows.cols());
                match lost {
                    Tokens::Newest if count > 0 => rows.row_mut(count - 1).fill(F::ZERO),
                    Tokens::Newest => {}
                    Tokens::ColumnsBeyondLength => {
                        rows.iter_rows_mut().for_each(|row| row[len.min(cols - 1)..].fill(F::ZERO));
                    }
                }
                (part.name.to_owned(), part.first, rows)
            });
            let parts = parts.collect();
            // A state takes back what it gave.
            state.restore(parts).expect("parts of the same shape");
        }
    }
}
