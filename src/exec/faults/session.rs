//! Faults in what a session keeps between two passes.

use super::ShownBy;
use super::recurrent;
use crate::exec::state::{LayerState, Session};
use crate::model::Plan;
use crate::model::plan::Mixer;
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
            SessionFault::Trim if recurrent::any(plan) => {
                Err("a session is never trimmed: some layers keep a recurrent state, which can't go back".to_owned())
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
    let kind = |index: usize| {
        let mixer = &plan.layers[index].mixer;
        // A layer that reads another one's cache has none.
        if matches!(mixer, Mixer::Attention(a) if a.kv_layer.is_some()) {
            return None;
        }
        let spec = mixer.attention_spec()?;
        let heads = spec.num_key_value_heads;
        Some((heads * spec.head_dim, heads * spec.v_head_dim(), spec.sliding_window))
    };
    let layers = plan.layers.len();
    let twin = |a: usize| (a + 1..layers).find(|&b| kind(a).is_some() && kind(a) == kind(b));
    (0..layers).find_map(|a| Some((a, twin(a)?)))
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
    /// Sets to zero what is lost of keys and values: the slots are there, as in a cache that was allocated at full size.
    pub(super) fn lose(&mut self, lost: Tokens) {
        let len = self.len;
        let caches = self.layers.iter_mut().filter(|layer| matches!(layer, LayerState::Kv(_)));
        for state in caches.map(LayerState::as_mixer_mut) {
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
