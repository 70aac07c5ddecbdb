//! How much memory a pass takes, known before it starts.

use super::driver::{PIECE_BYTES, recurrent};
use super::weights::{self, AHEAD};
use crate::checkpoint::Source;
use crate::model::plan::{FeedForward, Layer, Linear, Mixer, Mlp, Moe, Plan};

/// What a pass is made of, as far as memory depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Number of tokens of each sequence.
    pub tokens: &'a [usize],
    /// Bytes of a float, for each executor that goes through the pass.
    pub floats: &'a [usize],
    pub threads: usize,
}

/// The program, its threads' stacks as far as they are used, and what the allocator doesn't give back.
pub const PROGRAM: u64 = 16 << 20;

/// An upper bound in bytes of the process's resident memory during such a pass, the program itself included.
///
/// It counts what the driver and the kernels hold at the same time: the hidden states, the rows of the branch that needs
/// most of them, what the sessions keep of all layers, the pieces of weights that are read ahead, and the threads'
/// scratch. No weight beyond those pieces is ever held, however many experts there are.
pub fn bound(plan: &Plan, source: &dyn Source, load: Load<'_>) -> u64 {
    /// A tensor in the census and in the plan: its names and sizes.
    const ENTRY: u64 = 1 << 10;

    let total: u64 = load.tokens.iter().map(|&n| n as u64).sum();
    let longest = load.tokens.iter().copied().max().unwrap_or(0) as u64;
    let (sequences, threads) = (load.tokens.len() as u64, load.threads as u64);
    let branches = plan.layers.iter().map(|layer| {
        mixer_row(layer, plan.hidden_size).max(mlp_row(layer, plan)) + rounded_row(layer, plan.hidden_size)
    });
    let branch = branches.max().unwrap_or(0);
    let (mut kept, mut head) = (0, 0);
    for layer in &plan.layers {
        kept += total * kept_of_token(&layer.mixer);
        if let Some((_, of_session)) = recurrent::floats(&layer.mixer, plan.hidden_size) {
            kept += sequences * of_session as u64;
        }
        let widths = layer.mixer.attention_spec().map_or(0, |spec| spec.head_dim + spec.v_head_dim());
        head = head.max(widths as u64);
    }
    // Keys and values of one head in panels and the scores of a block of queries; sums of some outputs.
    let scratch = threads * (longest * (head + 64) + total * 160);
    // Logits as they are computed, per sequence, as sums of a piece, and as numbers to rank and to write.
    let logits = sequences * plan.vocab_size as u64 * 6;
    let rope: u64 = plan.ropes.iter().map(|r| total * r.dim as u64).sum();
    let (per_layer, embedding) = per_layer_row(plan);
    let copies = 1 + plan.altup.as_ref().map_or(0, |altup| altup.projections.len());
    let streams = total * (copies * plan.hidden_size + per_layer) as u64;
    let values = streams + (total * branch.max(embedding) as u64).max(logits) + kept + scratch + rope;

    let (piece, expert_piece) = pieces(plan, source);
    // Those that are read ahead, the one that is used, and rows that were picked from it, or its rounded weights.
    let pieces = (AHEAD as u64 + 2) * piece + if expert_piece > 0 { (AHEAD as u64 + 1) * expert_piece } else { 0 };
    let passes: u64 = load.floats.iter().map(|&size| values * size as u64 + pieces).sum();
    PROGRAM
        + passes
        + source.working_bytes(piece.max(expert_piece))
        + source.tensors().len() as u64 * ENTRY
        + threads * (1 << 20)
}

/// Bytes of the largest piece of what every pass reads, and of an expert: a piece holds at least one row.
fn pieces(plan: &Plan, source: &dyn Source) -> (u64, u64) {
    let largest = |groups: Vec<Vec<_>>| {
        let bytes = groups.iter().map(|group| weights::largest_piece(source, PIECE_BYTES, group));
        bytes.max().unwrap_or(0)
    };
    // A layer's experts are alike.
    let experts = plan.layers.iter().filter_map(|layer| match &layer.mlp {
        Some(FeedForward::Moe(moe)) => moe.experts.first(),
        _ => None,
    });
    (largest(weights::of_plan(plan)), experts.map(|expert| largest(weights::of_mlp(expert))).max().unwrap_or(0))
}

/// Floats per token that the layers' own inputs take, and those that come on top while they are made.
fn per_layer_row(plan: &Plan) -> (usize, usize) {
    plan.per_layer_inputs.as_ref().map_or((0, 0), |inputs| {
        let row = inputs.projection.outputs();
        (row, 2 * row + 2 * plan.hidden_size)
    })
}

/// Floats that a session keeps of each token.
fn kept_of_token(mixer: &Mixer) -> u64 {
    let shared = matches!(mixer, Mixer::Attention(a) if a.kv_layer.is_some());
    let spec = mixer.attention_spec().filter(|_| !shared);
    spec.map_or(0, |spec| (spec.num_key_value_heads * (spec.head_dim + spec.v_head_dim())) as u64)
}

fn widest(linear: Option<&Linear>) -> usize {
    linear.map_or(0, Linear::outputs)
}

/// Floats per token while a layer's mixer runs: its input, projections and what the kernels make of them.
fn mixer_row(layer: &Layer, hidden: usize) -> usize {
    let extra = extra_row(layer, hidden);
    let spec = match layer.mixer.attention_spec() {
        Some(spec) => spec,
        None => return extra + recurrent::floats(&layer.mixer, hidden).map_or(0, |(of_token, _)| of_token),
    };
    let q = spec.num_attention_heads * spec.head_dim;
    let o = spec.num_attention_heads * spec.v_head_dim();
    let kv = spec.num_key_value_heads * (spec.head_dim + spec.v_head_dim());
    let own = match &layer.mixer {
        Mixer::Attention(a) => 2 * widest(a.gate.as_ref()),
        // The small vectors, and keys and values before they are put together.
        Mixer::LatentAttention(a) => {
            let small = widest(a.q_a.as_ref().map(|(linear, _)| linear));
            2 * (small + a.kv_a.outputs()) + a.kv_b.outputs()
        }
        _ => 0,
    };
    // The input, its packed copy and the result; queries and their copy; keys and values with their copies; the heads'
    // results by task, by sequence and for all.
    extra + 3 * hidden + hidden.max(q).max(o) + 3 * q + 2 * kv + 3 * o + own
}

/// Floats per token while what follows the mixer runs.
fn mlp_row(layer: &Layer, plan: &Plan) -> usize {
    let hidden = plan.hidden_size;
    let rows = match &layer.mlp {
        Some(FeedForward::Dense(mlp)) => hidden + one_mlp(mlp, hidden),
        Some(FeedForward::Moe(moe)) => hidden + mixture(moe, hidden),
        None => 0,
    };
    let own = layer.per_layer_input.as_ref().map_or(0, |input| 3 * input.gate.outputs() + 4 * hidden);
    extra_row(layer, hidden) + rows.max(own)
}

/// The rounded copy of what goes into a ternary layer's widest projection.
fn rounded_row(layer: &Layer, hidden: usize) -> usize {
    let Mixer::Attention(attention) = &layer.mixer else { return 0 };
    let inner = match &layer.mlp {
        Some(FeedForward::Dense(mlp)) => mlp.up.outputs(),
        _ => 0,
    };
    let (_, heads) = attention.o.weight.rows_and_cols();
    if attention.q.rounds_inputs() { hidden.max(heads).max(inner) } else { 0 }
}

/// Gate and up, their packed copy and a piece's sums; the packed input and the result with its sums.
fn one_mlp(mlp: &Mlp, hidden: usize) -> usize {
    4 * mlp.up.outputs() + 3 * hidden
}

/// What the router sees and says, the shared expert's result, and one expert that every token goes to.
fn mixture(moe: &Moe, hidden: usize) -> usize {
    let inner = moe.experts.iter().chain(&moe.shared).map(|mlp| one_mlp(mlp, hidden)).max().unwrap_or(0);
    let router = hidden + 3 * moe.router.linear.outputs() + 8 * moe.router.num_experts_per_tok;
    // The result, the shared expert's, the input after a norm of its own, and an expert's rows.
    4 * hidden + router + inner
}

/// The branch beside the other one, and what AltUp holds besides: what was activated, what it changed, and Laurel.
fn extra_row(layer: &Layer, hidden: usize) -> usize {
    let altup = layer.altup.as_ref().map_or(0, |altup| 5 * hidden + altup.laurel_left.outputs());
    altup + if layer.parallel { 2 * hidden } else { 0 }
}
