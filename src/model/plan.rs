//! A plan: what a checkpoint computes, family-neutral and with every number resolved.
//!
//! What most models don't have is left out of the JSON (and so of its digest) where a plan doesn't have it.

use crate::digest::sha256_hex;
use crate::ops::Activation;
use crate::ops::attention::AttentionSpec;
use crate::ops::delta::DeltaSpec;
use crate::ops::mamba2::ScanSpec;
use crate::ops::rope::Rope;
use serde::Serialize;
use std::collections::BTreeMap;

/// A decoder-only language model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub max_position_embeddings: usize,
    /// The rotary tables; attention layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// `[vocab_size, hidden_size]`
    pub embed: Weight,
    /// What the embedding's rows are multiplied by (Gemma's `sqrt(hidden_size)`, Granite's `embedding_multiplier`).
    #[serde(skip_serializing_if = "is_one")]
    pub embed_scale: f64,
    /// Learned positions, `[max_position_embeddings, hidden_size]`, added to the embedding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position_embed: Option<Weight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Several copies of the hidden state (Gemma 3n).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub altup: Option<AltUpEnds>,
    pub layers: Vec<Layer>,
    /// Before the head.
    pub norm: Norm,
    pub head: Head,
    /// Tokens that stand for an image or a sound, with the config key that says so: a text run refuses them.
    #[serde(skip)]
    pub placeholder_tokens: BTreeMap<u32, String>,
}

/// A part of a model's weights: a stored tensor under the name that it has in the checkpoint, or a part of one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Weight {
    pub name: String,
    /// As the plan uses it: `[out, in]`, or `[n]`.
    pub shape: Vec<usize>,
    /// Where it lies in the stored tensor, if it isn't the whole of it as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Box<Part>>,
}

/// Where a weight `[out, in]` (or `[out]`) lies in a stored tensor.
///
/// The stored tensor is seen as a matrix: its last dimension are the columns, all others together the rows; that of a
/// vector which isn't `transposed` as one column of all its elements. Output `o` of the weight is entry
/// `first + o / block * stride + o % block` of the stored rows; where `transposed`, of the stored columns, and its input
/// `i` is the stored row `base + i`. Else `base` is added to the row.
///
/// Where `packed`, the whole tensor is the weight: output `o` is, less one, the bits `2 * (o / rows)` and the next of each
/// byte of the stored row `o % rows`, `rows` being as many as are stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// The stored tensor's shape.
    pub stored: Vec<usize>,
    /// The first stored row of an expert, in a tensor that holds several.
    #[serde(skip_serializing_if = "is_zero")]
    pub base: usize,
    pub first: usize,
    pub block: usize,
    pub stride: usize,
    /// Stored as `[in, out]`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
    /// Four outputs in each stored row of bytes (BitNet's `pack_weights`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
}

impl Weight {
    /// A whole stored tensor.
    pub fn whole(name: String, shape: &[usize]) -> Self {
        Self { name, shape: shape.to_vec(), part: None }
    }

    /// A matrix's `[rows, cols]`; a vector is one row.
    pub fn rows_and_cols(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            // A damaged config may promise more than any file holds.
            [rows @ .., cols] => (rows.iter().fold(1, |product: usize, &n| product.saturating_mul(n)), *cols),
            [] => (1, 1),
        }
    }

    /// Whether four outputs lie in each stored row.
    pub fn is_packed(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.packed)
    }

    /// The shape of the stored tensor.
    pub fn stored_shape(&self) -> &[usize] {
        self.part.as_ref().map_or(&self.shape, |part| &part.stored)
    }
}

/// `y = x W^T (+ bias)`, W being `[out, in]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Linear {
    pub weight: Weight,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Weight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ternary: Option<Box<Ternary>>,
}

/// What a linear layer of BitNet b1.58 does (Ma et al. 2024): its weights are -1, 0 and 1, and the inputs of each token
/// are rounded to `q = round(x * s)`, `s = 127 / max|x|` (see [`crate::ops::ternary`]). Without a scale
/// `y = q W^T / s + bias`.
///
/// Weights that aren't packed are stored as floats, and become `round(w / mean|w|)`, cut to -1 ..= 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ternary {
    pub scale: TernaryScale,
    /// A broken engine's: inputs are used as they are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inputs_as_they_are: bool,
}

/// The scale of ternary weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TernaryScale {
    /// `[1]`: `y = (q W^T / s + bias) * scale` (transformers' `AutoBitLinear`).
    Multiplies(Weight),
    /// `[1]`: `y = q W^T / (s * scale) + bias` (transformers' `BitLinear`).
    Divides(Weight),
    /// Of weights that are stored as floats: as `Divides`, with `1 / mean|w|`.
    Mean,
    /// A broken engine's: there is none.
    Dropped,
}

impl Linear {
    /// A linear layer of the usual kind.
    pub fn new(weight: Weight, bias: Option<Weight>) -> Self {
        Self { weight, bias, ternary: None }
    }

    /// The scale of ternary weights, where it is a tensor.
    pub fn stored_scale(&self) -> Option<&Weight> {
        match &self.ternary.as_ref()?.scale {
            TernaryScale::Multiplies(scale) | TernaryScale::Divides(scale) => Some(scale),
            TernaryScale::Mean | TernaryScale::Dropped => None,
        }
    }

    /// Whether each token's inputs are rounded.
    pub fn rounds_inputs(&self) -> bool {
        self.ternary.as_ref().is_some_and(|ternary| !ternary.inputs_as_they_are)
    }

    /// Whether weights become ternary on the way: their mean has to be known before any of them is used.
    pub fn rounds_weights(&self) -> bool {
        self.ternary.is_some() && !self.weight.is_packed()
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.weight.rows_and_cols().0
    }
}

/// A normalisation of a row, or of each group of `size` columns of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Norm {
    /// `[size]`, or as many as a row has columns: then each group has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// The other groups' weights, where they are tensors of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<Weight>,
    /// As the weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Weight>,
    pub eps: f64,
    #[serde(skip_serializing_if = "NormKind::is_rms")]
    pub kind: NormKind,
    /// Added to the weight: one where it is stored as its difference from one (Gemma), else zero.
    #[serde(skip_serializing_if = "is_zero_float")]
    pub offset: f64,
    /// Columns that are normalised together; the others' sizes say it as well.
    #[serde(skip)]
    pub size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMSNorm (Zhang and Sennrich 2019).
    Rms,
    /// LayerNorm (Ba, Kiros and Hinton 2016).
    Layer,
}

impl NormKind {
    fn is_rms(&self) -> bool {
        *self == NormKind::Rms
    }
}

impl Norm {
    /// Calls `f` with every weight in a fixed order.
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        self.weight.iter().chain(&self.further).chain(&self.bias).for_each(f);
    }
}

/// A residual block: `x += mixer(norm(x))`, then `x += mlp(norm(x))`, each norm being optional and the branches'
/// results being normalised where there are post norms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixer_norm: Option<Norm>,
    pub mixer: Mixer,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixer_post_norm: Option<Norm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_norm: Option<Norm>,
    /// Absent in a model of mixers alone (Mamba-2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp: Option<FeedForward>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlp_post_norm: Option<Norm>,
    /// Both branches see the same `x`: `x += mixer(norm(x)) + mlp(norm'(x))`; without an `mlp_norm` they share the
    /// mixer's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub parallel: bool,
    /// Factor of both branches (Granite's `residual_multiplier`).
    #[serde(skip_serializing_if = "is_one")]
    pub residual_multiplier: f64,
    /// Gemma 3n's several hidden states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub altup: Option<Box<AltUp>>,
    /// Gemma 3n and 4: after the MLP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_layer_input: Option<PerLayerInput>,
    /// `[1]`: the layer's result is multiplied by it (Gemma 4's `layer_scalar`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scalar: Option<Weight>,
}

/// Where tokens meet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a plan has some hundred of them at most")]
pub enum Mixer {
    Attention(Attention),
    LatentAttention(LatentAttention),
    ShortConv(ShortConv),
    Mamba2(Mamba2),
    GatedDelta(GatedDelta),
}

impl Mixer {
    /// For messages and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Mixer::Attention(_) => "attention",
            Mixer::LatentAttention(_) => "latent attention",
            Mixer::ShortConv(_) => "short convolution",
            Mixer::Mamba2(_) => "Mamba-2",
            Mixer::GatedDelta(_) => "gated delta rule",
        }
    }

    /// What attention computes, where this is a kind of it.
    pub fn attention_spec(&self) -> Option<&AttentionSpec> {
        match self {
            Mixer::Attention(a) => Some(&a.spec),
            Mixer::LatentAttention(a) => Some(&a.spec),
            Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) => None,
        }
    }
}

/// Grouped-query attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attention {
    #[serde(flatten)]
    pub spec: AttentionSpec,
    /// Index into [`Plan::ropes`]; the first `dim` columns of a head are rotated. Absent where positions play no part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope: Option<usize>,
    /// `[num_attention_heads * head_dim, hidden_size]`
    pub q: Linear,
    /// `[num_key_value_heads * head_dim, hidden_size]`; absent where [`Attention::kv_layer`] is present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<Linear>,
    /// `[num_key_value_heads * head_dim, hidden_size]`; where only it is absent, the projected key (before its norm and
    /// RoPE) is the value as well (Gemma 4's `attention_k_eq_v`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v: Option<Linear>,
    /// `[hidden_size, num_attention_heads * head_dim]`
    pub o: Linear,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_norm: Option<QkNorm>,
    /// Of each value head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_norm: Option<Norm>,
    /// The layer whose keys and values this one reads (`num_kv_shared_layers`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_layer: Option<usize>,
    /// `[num_attention_heads * head_dim, hidden_size]`: the heads' results are multiplied by its sigmoid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Linear>,
    /// `[num_attention_heads]`: a score without a value in each head's softmax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sinks: Option<Weight>,
    /// Queries, keys and values are cut to -clip ..= clip (OLMoE's `clip_qkv`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
    /// Between the heads' results and `o` (BitNet's `attn_sub_norm`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_norm: Option<Norm>,
}

/// Queries grow with their position: `q *= 1 + beta * ln(floor((position + offset) / floor_scale) + 1)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Temperature {
    /// `attn_scale` (Llama 4), `llama_4_scaling_beta` (Ministral 3, Mistral 4).
    pub beta: f64,
    /// `floor_scale`, `original_max_position_embeddings`.
    pub floor_scale: f64,
    /// 1 in Llama 4, else 0.
    pub offset: f64,
    /// It counts the tokens before instead of looking at the positions (Llama 4).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slots: bool,
}

/// On each head by itself (`[head_dim]`), or on all of them together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QkNorm {
    pub q: Norm,
    /// Absent where keys come from another layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<Norm>,
    /// After RoPE instead of before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub after_rope: bool,
}

/// Multi-head latent attention (DeepSeek-V2, 2024): keys and values come out of one small vector per token.
///
/// Each head's query and key are `[qk_nope_head_dim | qk_rope_head_dim]`; the second part of the keys is the same for
/// all heads. `spec.head_dim` is their sum, `spec.v_head_dim` the values'.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatentAttention {
    #[serde(flatten)]
    pub spec: AttentionSpec,
    /// For the second part; absent in Kimi Linear, where it is not rotated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope: Option<usize>,
    pub qk_nope_head_dim: usize,
    pub qk_rope_head_dim: usize,
    /// `[q_lora_rank, hidden_size]` and its norm, before `q`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_a: Option<(Linear, Norm)>,
    /// `[num_attention_heads * head_dim, hidden_size or q_lora_rank]`
    pub q: Linear,
    /// `[kv_lora_rank + qk_rope_head_dim, hidden_size]`
    pub kv_a: Linear,
    /// `[kv_lora_rank]`, on that part of `kv_a`'s result.
    pub kv_a_norm: Norm,
    /// `[num_attention_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]`, head by head key, then value.
    pub kv_b: Linear,
    /// `[hidden_size, num_attention_heads * v_head_dim]`
    pub o: Linear,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Temperature>,
}

/// A depthwise convolution over the last `kernel` tokens: `y[t][c] = sum_j w[c][j] * x[t - kernel + 1 + j][c] (+ bias)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CausalConv {
    /// `[channels, kernel]`
    pub weight: Weight,
    /// `[channels]`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Weight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
}

impl CausalConv {
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        f(&self.weight);
        self.bias.iter().for_each(f);
    }
}

/// LFM2's gated short convolution: `out(c(x) * conv(b(x) * x(x)))`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShortConv {
    /// `[hidden_size, hidden_size]` each.
    pub b: Linear,
    pub c: Linear,
    pub x: Linear,
    pub conv: CausalConv,
    pub out: Linear,
}

/// Mamba-2 (Dao and Gu 2024), as a recurrence over tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mamba2 {
    pub num_heads: usize,
    pub head_dim: usize,
    /// Heads of one group share `B` and `C`.
    pub n_groups: usize,
    pub state_size: usize,
    /// The step's bounds after softplus (`time_step_limit`).
    pub time_step_limit: (f64, f64),
    /// `[num_heads * head_dim, hidden_size]`
    pub z: Linear,
    /// `[num_heads * head_dim + 2 * n_groups * state_size, hidden_size]`: x, B and C, which go through `conv`.
    pub xbc: Linear,
    /// `[num_heads, hidden_size]`
    pub dt: Linear,
    pub conv: CausalConv,
    /// `[num_heads]` each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dt_bias: Option<Weight>,
    pub a_log: Weight,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d: Option<Weight>,
    /// RMSNorm of `y * silu(z)`, in groups of its `size`.
    pub norm: Norm,
    /// `norm(y) * silu(z)` instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub norm_before_gate: bool,
    /// `[hidden_size, num_heads * head_dim]`
    pub out: Linear,
}

impl Mamba2 {
    /// Its sizes.
    pub fn spec(&self) -> ScanSpec {
        let Self { num_heads, head_dim, n_groups, state_size, .. } = *self;
        ScanSpec { num_heads, head_dim, n_groups, state_size }
    }
}

/// The gated delta rule (Yang, Kautz and Hatamizadeh 2024) and Kimi delta attention, which decays each key channel by
/// itself.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GatedDelta {
    /// Value head h reads key head `h / (num_v_heads / num_k_heads)`.
    pub num_k_heads: usize,
    pub num_v_heads: usize,
    pub head_k_dim: usize,
    pub head_v_dim: usize,
    /// `[num_k_heads * head_k_dim, hidden_size]`
    pub q: Linear,
    pub k: Linear,
    /// `[num_v_heads * head_v_dim, hidden_size]`
    pub v: Linear,
    /// Over q, k and v side by side: one convolution, or one for each.
    pub conv: Vec<CausalConv>,
    /// `[num_v_heads, hidden_size]`: the step's weight, through a sigmoid.
    pub beta: Linear,
    /// Queries and keys of a head become `x / sqrt(sum(x * x) + eps)`; the queries are then divided by the root of
    /// `head_k_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_l2_norm_eps: Option<f64>,
    /// One after the other; the last gives `[num_v_heads]` or, channel by channel, `[num_v_heads * head_k_dim]`.
    pub decay: Vec<Linear>,
    /// As many as the decay has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dt_bias: Option<Weight>,
    /// `[num_v_heads]`
    pub a_log: Weight,
    /// The gate of the result, `[num_v_heads * head_v_dim]`, one after the other; none where there is no gate.
    pub gate: Vec<Linear>,
    /// Of the gate: SiLU, or the sigmoid.
    pub gate_activation: Activation,
    /// Of each value head, before the gate.
    pub norm: Norm,
    /// `[hidden_size, num_v_heads * head_v_dim]`
    pub out: Linear,
}

impl GatedDelta {
    /// Its sizes.
    pub fn spec(&self) -> DeltaSpec {
        let Self { num_k_heads, num_v_heads, head_k_dim, head_v_dim, .. } = *self;
        DeltaSpec { num_k_heads, num_v_heads, head_k_dim, head_v_dim }
    }
}

/// What follows the mixer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "a plan has some hundred of them at most")]
pub enum FeedForward {
    Dense(Mlp),
    Moe(Box<Moe>),
}

/// `down(activation(gate(x)) * up(x))`, or without a gate `down(activation(up(x)))`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mlp {
    pub activation: Activation,
    /// `[intermediate_size, hidden_size]`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<Linear>,
    /// `[intermediate_size, hidden_size]`
    pub up: Linear,
    /// `[hidden_size, intermediate_size]`
    pub down: Linear,
    /// gpt-oss' gate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clamp: Option<Clamp>,
    /// Gemma 3n: of the gate's values only what exceeds their mean by so many standard deviations passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparsity: Option<f64>,
    /// Before `down` (BitNet's `ffn_sub_norm`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_norm: Option<Norm>,
}

/// `g = min(gate, limit)`, `u = clamp(up, -limit, limit)`, `(u + 1) * (g * sigmoid(alpha * g))`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clamp {
    pub alpha: f64,
    pub limit: f64,
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moe {
    pub router: Router,
    /// All alike but for their weights.
    pub experts: Vec<Mlp>,
    /// Seen by every token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<Mlp>,
    /// `[1, hidden_size]`: the shared expert's result is multiplied by its sigmoid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_gate: Option<Linear>,
    /// Gemma 4: norms of what the experts see and of both results. The experts and the router then see the hidden state
    /// before `mlp_norm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norms: Option<MoeNorms>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MoeNorms {
    pub experts_in: Norm,
    pub experts_out: Norm,
    pub shared_out: Norm,
}

/// Which experts a token goes to, and with which weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Router {
    /// `[experts, hidden_size]`
    pub linear: Linear,
    /// Gemma 4: of what the router sees, with `scale` as its weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<Norm>,
    /// Of what the router sees, after the norm.
    #[serde(skip_serializing_if = "is_one")]
    pub input_scale: f64,
    pub scoring: Scoring,
    pub num_experts_per_tok: usize,
    /// `[experts]`, added to the scores for the choice alone (`e_score_correction_bias`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection_bias: Option<Weight>,
    /// A broken engine's: the bias is in the weights as well.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub selection_bias_weighs: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
    /// The chosen scores are divided by their sum.
    pub norm_topk_prob: bool,
    /// Added to that sum.
    #[serde(skip_serializing_if = "is_zero_float")]
    pub norm_topk_eps: f64,
    /// Factor of the weights.
    #[serde(skip_serializing_if = "is_one")]
    pub routed_scaling_factor: f64,
    /// `[experts]`: factor of each expert's weight (Gemma 4's `per_expert_scale`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert_scale: Option<Weight>,
    /// The weight multiplies what the expert sees, not its result (Llama 4).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub weights_input: bool,
}

/// From router logits to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Over all experts, before the choice.
    Softmax,
    /// Over the chosen experts.
    SoftmaxOfChosen,
    Sigmoid,
}

/// Only the experts of the best groups can be chosen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Groups {
    pub n_group: usize,
    pub topk_group: usize,
    /// A group's score is the sum of its best two experts', else that of its best.
    pub sum_of_two: bool,
}

/// Gemma 3n and 4: a second embedding with a part for every layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerLayerInputs {
    /// Columns per layer (`hidden_size_per_layer_input`).
    pub dim: usize,
    /// `[vocab_size_per_layer_input, layers * dim]`; a token beyond it takes row 0.
    pub embed: Weight,
    pub embed_scale: f64,
    /// `[layers * dim, hidden_size]`, of the embedding.
    pub projection: Linear,
    pub projection_scale: f64,
    /// On each layer's part of the projection.
    pub norm: Norm,
    /// Of the sum of both.
    pub scale: f64,
}

/// What a layer does with its part: `x += norm(projection(activation(gate(x)) * part))`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerLayerInput {
    pub activation: Activation,
    /// `[dim, hidden_size]`
    pub gate: Linear,
    /// `[hidden_size, dim]`
    pub projection: Linear,
    pub norm: Norm,
}

/// AltUp (Baykal et al. 2023) at both ends of the model: `[hidden_size, hidden_size]` for every copy but the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AltUpEnds {
    pub active: usize,
    pub projections: Vec<Linear>,
    pub unembed_projections: Vec<Linear>,
}

/// AltUp and Laurel in a layer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AltUp {
    /// Of what the router sees.
    pub router_norm: Norm,
    pub router_scale: f64,
    /// `[inputs, hidden_size]`
    pub router: Linear,
    /// `[inputs * inputs, inputs]`
    pub prediction: Linear,
    /// `[inputs, inputs]`
    pub correction: Linear,
    /// `[hidden_size]`: factor of the active copy before the per-layer input (`altup_correct_scale`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_scale: Option<Weight>,
    /// Laurel: `[laurel_rank, hidden_size]`, `[hidden_size, laurel_rank]`, and the norm after them.
    pub laurel_left: Linear,
    pub laurel_right: Linear,
    pub laurel_norm: Norm,
}

/// The output projection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Head {
    #[serde(flatten)]
    pub linear: Linear,
    /// The weight is the embedding.
    pub tied: bool,
    /// Factor of the logits (Cohere's `logit_scale`).
    #[serde(skip_serializing_if = "is_one")]
    pub logit_scale: f64,
    /// Divisor of the logits (Granite's `logits_scaling`).
    #[serde(skip_serializing_if = "is_one")]
    pub logits_scaling: f64,
    /// `cap * tanh(logits / cap)`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_logit_softcapping: Option<f64>,
}

fn is_one(x: &f64) -> bool {
    *x == 1.0
}

fn is_zero_float(x: &f64) -> bool {
    *x == 0.0
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Plan {
    /// SHA-256 (lowercase hex) of the plan's JSON: equal for two checkpoints that compute the same function of their
    /// weights.
    pub fn sha256(&self) -> String {
        let json = serde_json::to_vec(self).expect("a plan holds nothing that JSON can't");
        sha256_hex(&json)
    }

    /// The first token that a run of text alone can't have, as a sentence.
    pub fn placeholder(&self, tokens: &[u32]) -> Option<String> {
        let (at, token, key) =
            tokens.iter().enumerate().find_map(|(at, t)| self.placeholder_tokens.get(t).map(|key| (at, t, key)))?;
        let kinds = [("image", "an image"), ("video", "a video"), ("audio", "a sound")];
        let kind = kinds.into_iter().find(|(part, _)| key.contains(part)).map_or("no text", |(_, kind)| kind);
        Some(format!("token {at}: {token} stands for {kind} ({key} in the config), and a run of text alone has none"))
    }

    /// Every norm.
    pub fn norms_mut(&mut self) -> Vec<&mut Norm> {
        let mut norms = vec![&mut self.norm];
        norms.extend(self.per_layer_inputs.iter_mut().map(|inputs| &mut inputs.norm));
        for layer in &mut self.layers {
            let Layer {
                mixer_norm, mixer, mixer_post_norm, mlp_norm, mlp, mlp_post_norm, altup, per_layer_input, ..
            } = layer;
            norms.extend(mixer_norm.iter_mut().chain(mixer_post_norm).chain(mlp_norm).chain(mlp_post_norm));
            match mixer {
                Mixer::Attention(a) => {
                    if let Some(QkNorm { q, k, .. }) = &mut a.qk_norm {
                        norms.push(q);
                        norms.extend(k);
                    }
                    norms.extend(a.v_norm.iter_mut().chain(&mut a.sub_norm));
                }
                Mixer::LatentAttention(a) => {
                    norms.extend(a.q_a.iter_mut().map(|(_, norm)| norm));
                    norms.push(&mut a.kv_a_norm);
                }
                Mixer::Mamba2(mamba) => norms.push(&mut mamba.norm),
                Mixer::GatedDelta(delta) => norms.push(&mut delta.norm),
                Mixer::ShortConv(_) => {}
            }
            match mlp {
                Some(FeedForward::Dense(mlp)) => norms.extend(&mut mlp.sub_norm),
                Some(FeedForward::Moe(moe)) => {
                    norms.extend(&mut moe.router.norm);
                    if let Some(MoeNorms { experts_in, experts_out, shared_out }) = &mut moe.norms {
                        norms.extend([experts_in, experts_out, shared_out]);
                    }
                }
                None => {}
            }
            if let Some(altup) = altup {
                norms.extend([&mut altup.router_norm, &mut altup.laurel_norm]);
            }
            norms.extend(per_layer_input.iter_mut().map(|input| &mut input.norm));
        }
        norms
    }

    /// Elements of all weights that the plan uses, a tied head counted once.
    pub fn parameters(&self) -> u64 {
        let mut total = 0u64;
        self.each_weight(&mut |w| {
            // A damaged config may promise more than any file holds.
            let elements = w.shape.iter().fold(1u64, |product, &n| product.saturating_mul(n as u64));
            total = total.saturating_add(elements);
        });
        total
    }
}

#[cfg(test)]
mod tests {
    use super::Weight;

    #[test]
    fn rows_and_columns_of_any_shape() {
        let of = |shape: &[usize]| Weight::whole("w".to_owned(), shape).rows_and_cols();
        assert_eq!([of(&[3, 4]), of(&[7]), of(&[2, 3, 4]), of(&[])], [(3, 4), (1, 7), (6, 4), (1, 1)]);
        // Of a damaged config.
        assert_eq!([of(&[5, 0]), of(&[usize::MAX, 2, 3])], [(5, 0), (usize::MAX, 3)]);
    }
}
