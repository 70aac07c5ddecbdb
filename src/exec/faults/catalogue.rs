//! The faults as data.

use super::PositionFault;
use super::kernels::KernelFault;
use super::plan;
use super::recurrent::{self, LostState};
use super::session::SessionFault;
use crate::exec::state::CacheFormat;
use crate::model::Plan;
use serde::Serialize;

/// One way in which engines have been wrong.
#[derive(Debug)]
pub struct Fault {
    /// `NAME`, or `NAME:VARIANT` where there are several of one kind.
    pub name: &'static str,
    /// What the broken engine does.
    pub what: &'static str,
    /// Public reports, or where it is known from; may be empty.
    pub seen_in: &'static str,
    pub(super) make: Make,
}

/// How a fault is made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Make {
    /// The plan says something else. Refuses with a reason where there is nothing to change.
    Plan(fn(&mut Plan) -> Result<(), String>),
    Kernels(KernelFault),
    Session(SessionFault),
    Recurrent(LostState),
    Positions(PositionFault),
    /// Keys and values are rounded.
    Cache(CacheFormat),
}

/// Where in an engine a fault sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// It computes another function.
    Plan,
    /// It computes an operation wrongly.
    Kernels,
    /// It keeps its state wrongly.
    State,
    /// It counts positions wrongly.
    Positions,
}

impl Place {
    /// The word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Place::Plan => "plan",
            Place::Kernels => "kernels",
            Place::State => "state",
            Place::Positions => "positions",
        }
    }
}

/// What a check has to do so that a fault can have an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownBy {
    /// Any pass, also a single one over the whole prompt.
    Pass,
    /// A prompt that goes through in several passes.
    Chunks,
    /// A session that is trimmed and goes on.
    Trim,
    /// A session that is forked from another one.
    Fork,
    /// A session that is restored from a snapshot.
    Restore,
}

impl ShownBy {
    /// "a single pass"
    pub fn name(self) -> &'static str {
        match self {
            ShownBy::Pass => "a single pass",
            ShownBy::Chunks => "several passes",
            ShownBy::Trim => "trimming",
            ShownBy::Fork => "forking",
            ShownBy::Restore => "restoring a snapshot",
        }
    }
}

impl Fault {
    /// The name without its variant.
    pub fn base(&self) -> &'static str {
        self.name.split_once(':').map_or(self.name, |(base, _)| base)
    }

    /// Where it sits.
    pub fn place(&self) -> Place {
        match self.make {
            Make::Plan(_) => Place::Plan,
            Make::Kernels(_) => Place::Kernels,
            Make::Session(_) | Make::Recurrent(_) | Make::Cache(_) => Place::State,
            Make::Positions(_) => Place::Positions,
        }
    }

    /// What can show it.
    pub fn shown_by(&self) -> ShownBy {
        match self.make {
            Make::Plan(_) | Make::Cache(_) => ShownBy::Pass,
            Make::Kernels(fault) => fault.shown_by(),
            Make::Session(fault) => fault.shown_by(),
            Make::Recurrent(_) | Make::Positions(_) => ShownBy::Chunks,
        }
    }

    /// Not a bug: an engine may do this, and a check should say that it did rather than condemn it.
    pub fn honest(&self) -> bool {
        matches!(self.make, Make::Kernels(KernelFault::Bf16Activations))
    }
}

/// Every fault, in the order in which they are documented.
pub fn catalogue() -> &'static [Fault] {
    CATALOGUE
}

const fn fault(name: &'static str, what: &'static str, seen_in: &'static str, make: Make) -> Fault {
    Fault { name, what, seen_in, make }
}

static CATALOGUE: &[Fault] = {
    use KernelFault as K;
    use Make::{Cache, Kernels, Positions, Recurrent, Session};
    use SessionFault as S;
    &[
        fault(
            "rope-pairing",
            "rotates interleaved pairs instead of halves, or the reverse",
            "TinyLlama#24, llama2.c#286",
            Make::Plan(plan::rope_pairing),
        ),
        fault(
            "rope-theta-default",
            "base 10000 instead of the configured one",
            "DeepSpeed#8345",
            Make::Plan(plan::rope_theta_default),
        ),
        fault(
            "rope-scaling-dropped",
            "parses the scaling and doesn't apply it",
            "mlxcel#1355, unsloth#6197",
            Make::Plan(plan::rope_scaling_dropped),
        ),
        fault(
            "yarn-attention-factor:dropped",
            "cos and sin aren't multiplied by the factor of yarn or longrope",
            "llama.cpp#17980, vllm#48351",
            Make::Plan(plan::attention_factor_dropped),
        ),
        fault(
            "yarn-attention-factor:squared",
            "cos and sin are multiplied by it twice",
            "llama.cpp#17980, vllm#48351",
            Make::Plan(plan::attention_factor_squared),
        ),
        fault(
            "yarn-attention-factor:log-twice",
            "it goes through 0.1 ln(x) + 1 once more",
            "llama.cpp#17980, vllm#48351",
            Make::Plan(plan::attention_factor_log_twice),
        ),
        fault(
            "longrope-switch",
            "goes from the short to the long factors one token late",
            "transformers#33129",
            Make::Plan(plan::longrope_switch),
        ),
        fault(
            "partial-rotary-ignored",
            "rotates the whole head",
            "mlx-lm#1698",
            Make::Plan(plan::partial_rotary_ignored),
        ),
        fault(
            "rope-wrong-layer",
            "a sliding layer uses the full layers' frequencies",
            "Gemma 3 ports",
            Make::Plan(plan::rope_wrong_layer),
        ),
        fault(
            "decode-position-off-by-one",
            "a decoded token sits at position n + 1",
            "",
            Positions(PositionFault::DecodeOffByOne),
        ),
        fault(
            "chunk-position-reset",
            "each chunk of a prompt starts at position 0",
            "chunked prefill",
            Positions(PositionFault::ChunkReset),
        ),
        fault("causal-mask-missing", "attends to the future", "", Kernels(K::CausalMaskMissing)),
        fault(
            "chunk-mask-local",
            "the mask of a later chunk leaves out what is cached",
            "lalamo#200",
            Kernels(K::ChunkMaskLocal),
        ),
        fault("window-missing", "no sliding window", "mlx-lm#390, nanochat#452", Make::Plan(plan::window_missing)),
        fault(
            "window-off-by-one",
            "a window of W + 1",
            "mlx-lm#390, nanochat#452",
            Make::Plan(plan::window_off_by_one),
        ),
        fault(
            "window-wrong-layer",
            "the window is on the other layers",
            "mlx-lm#390, nanochat#452",
            Make::Plan(plan::window_wrong_layer),
        ),
        fault(
            "window-rolls-early",
            "a rolling cache drops its oldest entry one step early",
            "transformers#37574",
            Kernels(K::WindowRollsEarly),
        ),
        fault(
            "attn-scale",
            "scores times 1 / sqrt(hidden_size / heads) where head_dim differs",
            "TensorRT-LLM#5912",
            Make::Plan(plan::attn_scale),
        ),
        fault(
            "attn-softcap-dropped",
            "the scores' soft-cap is ignored",
            "sglang#33915",
            Make::Plan(plan::attn_softcap_dropped),
        ),
        fault(
            "final-softcap-dropped",
            "the logits' soft-cap is ignored",
            "sglang#33915",
            Make::Plan(plan::final_softcap_dropped),
        ),
        fault("sinks-dropped", "attention sinks are ignored", "gpt-oss ports", Make::Plan(plan::sinks_dropped)),
        fault(
            "attn-chunk-missing",
            "attends beyond the chunk of the sequence that a token is in",
            "Llama 4 ports",
            Make::Plan(plan::attn_chunk_missing),
        ),
        fault(
            "attn-temperature-dropped",
            "queries don't grow with their position",
            "Llama 4 ports",
            Make::Plan(plan::attn_temperature_dropped),
        ),
        fault(
            "attn-gate-dropped",
            "attention's output gate is ignored",
            "Qwen3-Next ports",
            Make::Plan(plan::attn_gate_dropped),
        ),
        fault("gqa-tile", "query heads go round the key/value heads instead of in groups", "", Kernels(K::GqaTile)),
        fault(
            "qk-norm-dropped",
            "the norm of queries and keys is ignored",
            "mlx-vlm#1590",
            Make::Plan(plan::qk_norm_dropped),
        ),
        fault(
            "qk-norm-after-rope",
            "it is applied after RoPE, or before where it belongs after",
            "mlx-vlm#1590",
            Make::Plan(plan::qk_norm_after_rope),
        ),
        fault(
            "q-bias-dropped",
            "the query projection's bias is ignored",
            "candle-vllm#167",
            Make::Plan(plan::q_bias_dropped),
        ),
        fault(
            "k-bias-dropped",
            "the key projection's bias is ignored",
            "candle-vllm#167",
            Make::Plan(plan::k_bias_dropped),
        ),
        fault(
            "v-bias-dropped",
            "the value projection's bias is ignored",
            "candle-vllm#167",
            Make::Plan(plan::v_bias_dropped),
        ),
        fault(
            "o-bias-dropped",
            "the output projection's bias is ignored",
            "candle-vllm#167",
            Make::Plan(plan::o_bias_dropped),
        ),
        fault(
            "mla-scale",
            "the softmax scale of latent attention lacks mscale squared",
            "mobius#548",
            Make::Plan(plan::mla_scale),
        ),
        fault(
            "norm-plus-one-missing",
            "w instead of 1 + w",
            "mold#1074, executorch#19901",
            Make::Plan(plan::norm_plus_one_missing),
        ),
        fault(
            "norm-plus-one-twice",
            "2 + w instead of 1 + w",
            "mold#1074, executorch#19901",
            Make::Plan(plan::norm_plus_one_twice),
        ),
        fault("norm-eps", "epsilon 1e-5; where that is right, 1e-6", "transformers#38025", Make::Plan(plan::norm_eps)),
        fault("post-norm-dropped", "the second norm of a sandwich is ignored", "", Make::Plan(plan::post_norm_dropped)),
        fault(
            "embed-scale-missing",
            "sqrt(hidden_size) is missing",
            "transformers#29402",
            Make::Plan(plan::embed_scale_missing),
        ),
        fault(
            "embed-scale-bf16",
            "sqrt(hidden_size) is rounded to bf16",
            "transformers#29402",
            Make::Plan(plan::embed_scale_bf16),
        ),
        fault(
            "residual-multiplier-dropped",
            "what is added to the residual isn't scaled",
            "Granite ports",
            Make::Plan(plan::residual_multiplier_dropped),
        ),
        fault(
            "logit-scale-dropped",
            "the logits aren't scaled",
            "Granite and Cohere ports",
            Make::Plan(plan::logit_scale_dropped),
        ),
        fault("layer-scalar-dropped", "a layer's result isn't scaled", "", Make::Plan(plan::layer_scalar_dropped)),
        fault(
            "per-layer-input-dropped",
            "a layer doesn't see its part of the second embedding",
            "Gemma 3n ports",
            Make::Plan(plan::per_layer_input_dropped),
        ),
        fault(
            "sub-norm-dropped",
            "the norms inside attention and the MLP are ignored",
            "",
            Make::Plan(plan::sub_norm_dropped),
        ),
        fault(
            "activation-quantization-dropped",
            "a ternary layer's inputs aren't rounded to eight bits",
            "BitNet ports",
            Make::Plan(plan::activation_quantization_dropped),
        ),
        fault(
            "ternary-scale-dropped",
            "ternary weights aren't scaled",
            "BitNet ports",
            Make::Plan(plan::ternary_scale_dropped),
        ),
        fault(
            "swiglu-clamp-dropped",
            "gate and up aren't clamped",
            "gpt-oss ports",
            Make::Plan(plan::swiglu_clamp_dropped),
        ),
        fault(
            "gelu-variant",
            "the erf form of GELU for the tanh form, or the reverse",
            "",
            Make::Plan(plan::gelu_variant),
        ),
        fault("act-swapped", "SiLU for GELU or ReLU, GELU for SiLU", "", Make::Plan(plan::act_swapped)),
        fault("gate-up-swapped", "gate and up are exchanged", "tinker-cookbook#459", Make::Plan(plan::gate_up_swapped)),
        fault(
            "head-tied",
            "the embedding is the head although there is another one",
            "vllm#51665",
            Make::Plan(plan::head_tied),
        ),
        fault(
            "topk-norm",
            "the chosen experts' weights are (not) renormalised",
            "sglang#35160",
            Make::Plan(plan::topk_norm),
        ),
        fault(
            "router-bias-dropped",
            "the selection bias is ignored",
            "GLM and DeepSeek ports",
            Make::Plan(plan::router_bias_dropped),
        ),
        fault(
            "router-bias-weighted",
            "the selection bias is used as a weight",
            "GLM and DeepSeek ports",
            Make::Plan(plan::router_bias_weighted),
        ),
        fault("router-order", "softmax after top-k instead of before", "mlxcel#391", Make::Plan(plan::router_order)),
        fault("group-limit-dropped", "group-limited routing is ignored", "", Make::Plan(plan::group_limit_dropped)),
        fault(
            "routed-scaling-dropped",
            "the experts' weights aren't scaled",
            "DeepSeek ports",
            Make::Plan(plan::routed_scaling_dropped),
        ),
        fault("shared-expert-dropped", "the shared expert is ignored", "", Make::Plan(plan::shared_expert_dropped)),
        fault("shared-gate-dropped", "the shared expert's gate is ignored", "", Make::Plan(plan::shared_gate_dropped)),
        fault("expert-permuted", "two experts are exchanged", "", Make::Plan(plan::expert_permuted)),
        fault(
            "kv-not-appended",
            "the newest entry never gets into the cache: its slot stays zero",
            "candle#3957",
            Session(S::NotAppended),
        ),
        fault("kv-swapped", "cached keys are read as values, and values as keys", "candle#3957", Kernels(K::KvSwapped)),
        fault("kv-head-order", "cached heads are read in another order", "candle#3957", Kernels(K::KvHeadOrder)),
        fault("kv-layer-mixup", "decoding uses another layer's cache", "candle#3957", Session(S::LayerMixup)),
        fault(
            "kv-trim",
            "trimming to n tokens cuts the columns instead: those from n on are lost",
            "candle#3957",
            Session(S::Trim),
        ),
        fault("prefix-offset", "a reused prefix lacks its last entry", "", Session(S::PrefixOffset)),
        fault("snapshot-stale", "a restored snapshot lacks the last step", "", Session(S::SnapshotStale)),
        fault(
            "conv-state-dropped",
            "the state of a short convolution starts from zero at a chunk's border",
            "hybrid ports",
            Recurrent(LostState::Conv),
        ),
        fault(
            "scan-state-reset",
            "the state of a scan starts from zero at a chunk's border",
            "hybrid ports",
            Recurrent(LostState::Scan),
        ),
        fault(
            "conv-bias-dropped",
            "a short convolution's bias is ignored",
            "",
            Make::Plan(recurrent::conv_bias_dropped),
        ),
        fault(
            "conv-activation-dropped",
            "what follows a short convolution is not SiLU but nothing",
            "",
            Make::Plan(recurrent::conv_activation_dropped),
        ),
        fault(
            "conv-gates-swapped",
            "the gates before and after a short convolution are exchanged",
            "",
            Make::Plan(recurrent::conv_gates_swapped),
        ),
        fault("dt-bias-dropped", "the bias of a scan's step is ignored", "", Make::Plan(recurrent::dt_bias_dropped)),
        fault(
            "dt-limit-dropped",
            "a scan's step is not clamped to time_step_limit",
            "transformers 5.24, single tokens",
            Make::Plan(recurrent::dt_limit_dropped),
        ),
        fault(
            "scan-skip-dropped",
            "Mamba-2's D times the input is missing",
            "",
            Make::Plan(recurrent::scan_skip_dropped),
        ),
        fault(
            "scan-gate-order",
            "Mamba-2's result is normalised before its gate instead of after it",
            "",
            Make::Plan(recurrent::scan_gate_order),
        ),
        fault(
            "scan-norm-joined",
            "Mamba-2's result is normalised as a whole instead of in groups",
            "",
            Make::Plan(recurrent::scan_norm_joined),
        ),
        fault(
            "l2-norm-dropped",
            "queries and keys of a gated delta rule keep their lengths",
            "",
            Make::Plan(recurrent::l2_norm_dropped),
        ),
        fault(
            "delta-gate-dropped",
            "the gate of a gated delta rule's result is ignored",
            "",
            Make::Plan(recurrent::delta_gate_dropped),
        ),
        fault(
            "delta-gate-activation",
            "that gate goes through a sigmoid instead of SiLU, or the reverse",
            "",
            Make::Plan(recurrent::delta_gate_activation),
        ),
        fault("kv-quantized:q8_0", "the cache is rounded to q8_0 without being asked", "", Cache(CacheFormat::Q8_0)),
        fault(
            "kv-quantized:fp8",
            "the cache is rounded to 8-bit floats without being asked",
            "",
            Cache(CacheFormat::Fp8),
        ),
        fault(
            "bf16-activations",
            "activations are rounded to bf16 around each operation: an honest engine, not a bug",
            "",
            Kernels(K::Bf16Activations),
        ),
    ]
};
