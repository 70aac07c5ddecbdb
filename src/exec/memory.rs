//! How much memory a pass takes, known before it starts.

use super::driver::{PIECE_BYTES, recurrent_floats};
use super::weights::AHEAD;
use crate::checkpoint::Source;
use crate::model::plan::{FeedForward, Plan, Weight};

/// What a pass is made of, as far as memory depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Number of tokens of each sequence.
    pub tokens: &'a [usize],
    /// Bytes of a float, for each executor that goes through the pass.
    pub floats: &'a [usize],
    pub threads: usize,
}

/// An upper bound in bytes of the process's resident memory during such a pass, the program itself included.
///
/// It counts what the driver and the kernels hold at the same time: two rows of the widest kind per token and one copy
/// of each (the kernels' packing), keys and values or recurrent states of all layers, the pieces of weights that are
/// read ahead, and the threads' scratch. No weight beyond those pieces is ever held.
pub fn bound(plan: &Plan, source: &dyn Source, load: Load<'_>) -> u64 {
    /// The program, its threads' stacks as far as they are used, and what the allocator doesn't give back.
    const PROGRAM: u64 = 16 << 20;
    /// A tensor in the census and in the plan: its names and sizes.
    const ENTRY: u64 = 1 << 10;

    let total: u64 = load.tokens.iter().map(|&n| n as u64).sum();
    let longest = load.tokens.iter().copied().max().unwrap_or(0) as u64;
    let sequences = load.tokens.len() as u64;
    let (mut mixer, mut mlp, mut cache, mut scratch, mut piece) = (0, 0, 0, 0, 0);
    let mut weigh = |w: &Weight| piece = piece.max(largest_piece(source, w));
    let hidden = plan.hidden_size as u64;
    for layer in &plan.layers {
        layer.each_weight(&mut weigh);
        if let Some((rows, kept)) = recurrent_floats(&layer.mixer, plan.hidden_size) {
            mixer = mixer.max(total * rows as u64);
            cache += sequences * kept as u64;
        }
        if let Some(spec) = layer.mixer.attention_spec() {
            let q = (spec.num_attention_heads * spec.head_dim) as u64;
            let kv = (spec.num_key_value_heads * spec.head_dim) as u64;
            // q, its rotated copy, the result twice (by task and as rows), k and v with their copies, the packed input.
            mixer = mixer.max(total * (2 * hidden + 5 * q + 4 * kv + hidden.max(q)));
            // Keys and values of one head in panels, the scores of a block of queries.
            scratch = scratch.max(longest * (2 * spec.head_dim as u64 + 64) * load.threads as u64);
            cache += total * 2 * kv;
        }
        let Some(FeedForward::Dense(dense)) = &layer.mlp else { continue };
        let inner = dense.up.outputs();
        // gate and up, a packed input, and one piece's sums.
        mlp = mlp.max(total * (3 * hidden + 4 * inner as u64));
    }
    weigh(&plan.head.linear.weight);
    let vocab = plan.vocab_size as u64;
    // Logits as they are computed, per sequence, as sums of a piece, and as numbers to rank and to write.
    let logits = sequences * vocab * 6;
    let rope: u64 = plan.ropes.iter().map(|r| total * r.dim as u64).sum();
    let values = 2 * total * hidden + mixer.max(mlp).max(logits) + cache + scratch + rope;
    let passes: u64 = load.floats.iter().map(|&size| values * size as u64 + (AHEAD as u64 + 1) * piece).sum();
    PROGRAM + passes + source.tensors().len() as u64 * ENTRY + load.threads as u64 * (1 << 20)
}

/// Bytes of the largest piece of a weight: a piece holds at least one row.
fn largest_piece(source: &dyn Source, weight: &Weight) -> u64 {
    let Some(info) = source.tensors().get(&weight.name) else { return 0 };
    let (rows, _) = weight.rows_and_cols();
    (PIECE_BYTES as u64).max(info.len / rows.max(1) as u64).min(info.len)
}
