//! From a pack's fields to a plan: first every number is read from the config, then every part takes its tensors.

mod attention;
mod extras;
mod feed_forward;
mod recurrent;

use super::contract::{Contract, Layout, Slice};
use super::fields::Fields;
use super::keys::{Reported, positive};
use super::plan::{Head, Layer, Linear, Mixer, Norm, NormKind, Plan, Ternary, TernaryScale, Weight};
use super::quantization::{self, Quantization};
use super::rope::Table;
use super::rules::{self, LayerType};
use super::schema;
use crate::ops::Activation;
use attention::AttentionHyper;
use extras::Extras;
use feed_forward::FeedForwardHyper;
use recurrent::RecurrentHyper;
use std::collections::BTreeMap;

/// No model has more; a config that says so is damaged.
const MAX_LAYERS: usize = 10_000;
/// No model has more experts, or heads with tensors of their own, in all its layers together.
const MAX_PIECES: usize = 200_000;

/// Everything in a plan but the tensors.
pub struct Hyper {
    vocab_size: usize,
    hidden_size: usize,
    layers: usize,
    /// Layers that predict further tokens, which stand after the others.
    mtp_layers: usize,
    max_position_embeddings: usize,
    /// Nothing where that hangs on whether a head is stored.
    tied: Option<bool>,
    head_bias: bool,
    embed_scale: f64,
    logit_scale: f64,
    logits_scaling: f64,
    final_logit_softcapping: Option<f64>,
    norms: Norms,
    learned_positions: bool,
    parallel: bool,
    shared_branch_norm: bool,
    residual_multiplier: f64,
    types: Vec<LayerType>,
    tables: Vec<Table>,
    attention: Option<AttentionHyper>,
    feed_forward: Option<FeedForwardHyper>,
    recurrent: RecurrentHyper,
    extras: Extras,
    parts: Parts,
}

/// How a family's linear parts are stored.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// As `[in, out]`.
    transposed: bool,
    /// Of the layers' projections; the schema keeps it from fused and transposed ones.
    quantization: Option<Quantization>,
}

impl Parts {
    /// A linear map of its own, `[out, in]`.
    fn linear(self, contract: &mut Contract<'_>, i: usize, role: &str, shape: [usize; 2], bias: bool) -> Linear {
        self.slice(contract, i, role, shape, bias, None)
    }

    /// Two linear maps of one shape that lie in one tensor, one after the other.
    fn halves(
        self,
        contract: &mut Contract<'_>,
        i: usize,
        role: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> (Linear, Linear) {
        let rows = shape[0];
        let mut half = |first| self.slice(contract, i, role, shape, bias, Some(Slice::run(2 * rows, first, rows)));
        (half(0), half(rows))
    }

    /// A linear map that is a part of a fused one.
    fn slice(
        self,
        contract: &mut Contract<'_>,
        i: usize,
        role: &str,
        shape: [usize; 2],
        bias: bool,
        slice: Option<Slice>,
    ) -> Linear {
        let layout = Layout { slice, expert: None, transposed: self.transposed };
        let packed = self.quantization.is_some_and(|quantization| quantization.packed());
        let weight = match packed {
            true => contract.packed(i, role, shape),
            false => contract.part(i, role, &shape, layout),
        };
        let ternary = self.quantization.map(|quantization| {
            let mut stored = || contract.scale(i, &format!("{role}_scale"));
            let scale = match quantization {
                Quantization::Multiplies => TernaryScale::Multiplies(stored()),
                Quantization::Divides => TernaryScale::Divides(stored()),
                Quantization::Online => TernaryScale::Mean,
            };
            Box::new(Ternary { scale, inputs_as_they_are: false })
        });
        let layout = Layout { transposed: false, ..layout };
        let bias = bias.then(|| contract.part(i, &format!("{role}_bias"), &shape[..1], layout));
        Linear { weight, bias, ternary }
    }
}

/// How a family normalises.
#[derive(Debug, Clone, Copy)]
struct Norms {
    kind: NormKind,
    eps: f64,
    bias: bool,
    plus_one: bool,
}

impl Norms {
    fn read(fields: &mut Fields<'_, '_, '_>) -> Result<Self, Reported> {
        let kind = kind(fields.choice("norm")?.as_deref());
        let (bias, plus_one) = (fields.flag("norm_bias")?, fields.flag("norm_plus_one")?);
        Ok(Self { kind, eps: fields.eps("norm_eps")?, bias, plus_one })
    }

    /// An RMSNorm with a plain weight, whatever the family's others are.
    fn plain(eps: f64) -> Self {
        Self { kind: NormKind::Rms, eps, bias: false, plus_one: false }
    }

    /// Of `size` columns, with the weight that plays `role`.
    fn layer(self, contract: &mut Contract<'_>, i: usize, role: &str, size: usize) -> Norm {
        let weight = contract.layer(i, role, &[size]);
        let bias = self.bias.then(|| contract.layer(i, &format!("{role}_bias"), &[size]));
        self.of(Some(weight), bias, size)
    }

    /// As [`Norms::layer`], where the pack has such a part.
    fn optional(self, contract: &mut Contract<'_>, i: usize, role: &str, size: usize) -> Option<Norm> {
        contract.names_role(role).then(|| self.layer(contract, i, role, size))
    }

    fn of(self, weight: Option<Weight>, bias: Option<Weight>, size: usize) -> Norm {
        let Self { kind, eps, plus_one, .. } = self;
        Norm { weight, further: Vec::new(), bias, eps, kind, offset: if plus_one { 1.0 } else { 0.0 }, size }
    }
}

fn kind(word: Option<&str>) -> NormKind {
    if word == Some("layer") { NormKind::Layer } else { NormKind::Rms }
}

impl Hyper {
    /// Reads every number; all problems are in the keys when this fails.
    pub fn read(fields: &mut Fields<'_, '_, '_>) -> Result<Self, Reported> {
        let hyper = Self::read_all(fields);
        if hyper.is_err() {
            fields.read_all();
        }
        hyper
    }

    fn read_all(fields: &mut Fields<'_, '_, '_>) -> Result<Self, Reported> {
        // What others need is read before any of it fails, so that most problems are found at once.
        let vocab_size = fields.count("vocab_size");
        let hidden_size = fields.count("hidden_size");
        let layers = fields.count("num_hidden_layers").and_then(|n| match n {
            n if n <= MAX_LAYERS.min(fields.stored.tensors) => Ok(n),
            // So many would be missing that nobody reads their names.
            n if n <= MAX_LAYERS => {
                let message =
                    format!("expected at most {}, as there are no more tensors, found {n}", fields.stored.tensors);
                Err(fields.wrong("num_hidden_layers", message))
            }
            n => Err(fields.wrong("num_hidden_layers", format!("expected at most {MAX_LAYERS}, found {n}"))),
        });
        let max_position_embeddings = match fields.field("max_position_embeddings") {
            Some(_) => fields.count("max_position_embeddings"),
            None => Ok(u32::MAX as usize),
        };
        let tied = fields.get("tie_word_embeddings", schema::FLAG, &serde_json::Value::as_bool);
        let stored_decides = fields.rule("tie_word_embeddings").is_some();
        let tied = tied.map(|tied| tied.or((!stored_decides).then_some(false)));
        let mtp_layers = fields.some_count("num_mtp_layers");
        let norms = Norms::read(fields);
        let quantization = quantization::read(fields);
        let transposed = fields.flag("transposed")?;
        let (parallel, shared_branch_norm) = branches(fields)?;
        let factors = ["residual_multiplier", "logit_scale", "logits_scaling"].map(|name| fields.factor(name));
        let final_logit_softcapping = fields.positive("final_logit_softcapping");
        let (head_bias, learned_positions) = (fields.flag("head_bias")?, fields.flag("learned_positions")?);
        let embed_scale = embed_scale(fields, hidden_size);
        let has_attention = ["q", "qkv", "kv_a"].iter().any(|role| fields.pack.tensors.layer.contains_key(*role));
        let heads = if has_attention { attention::heads(fields) } else { Ok((1, 1)) };
        let activation = match fields.field("hidden_act") {
            Some(_) => fields.activation("hidden_act").map(Some),
            None => Ok(None),
        };
        let dims = match (has_attention, hidden_size, heads) {
            (true, Ok(hidden), Ok((heads, _))) => attention::head_dims(fields, hidden, heads).map(Some),
            (true, ..) => Err(Reported),
            _ => Ok(None),
        };
        let layers = layers?;
        let (types, dims) = (rules::layer_types(fields, layers)?, dims?);
        let recurrent = [LayerType::Linear, LayerType::Conv, LayerType::Mamba];
        if let Some(i) = types.iter().position(|kind| dims.is_none() && !recurrent.contains(kind)) {
            let message = format!("layer {i} is one of attention, which this family doesn't have");
            return Err(fields.wrong("layer_types", message));
        }
        let shape = Shape { hidden: hidden_size?, layers, max: max_position_embeddings?, types: &types };
        let (mut tables, mut attention) = (Vec::new(), None);
        if let Some(dims) = dims {
            let read = AttentionHyper::read(fields, &shape, heads?, dims)?;
            (tables, attention) = (read.0, Some(read.1));
        }
        let feed_forward = FeedForwardHyper::read(fields, &shape, activation?)?;
        let recurrent = RecurrentHyper::read(fields, &shape)?;
        let extras = Extras::read(fields, &shape)?;
        let [residual_multiplier, logit_scale, logits_scaling] = factors;
        Ok(Self {
            vocab_size: vocab_size?,
            hidden_size: shape.hidden,
            layers,
            mtp_layers: mtp_layers?.unwrap_or(0),
            max_position_embeddings: shape.max,
            tied: tied?,
            head_bias,
            embed_scale: embed_scale?,
            logit_scale: logit_scale?,
            logits_scaling: logits_scaling?,
            final_logit_softcapping: final_logit_softcapping?,
            norms: norms?,
            learned_positions,
            parallel,
            shared_branch_norm,
            residual_multiplier: residual_multiplier?,
            tables,
            attention,
            feed_forward,
            recurrent,
            extras,
            parts: Parts { transposed, quantization: quantization? },
            types,
        })
    }

    /// Gives every part its tensors.
    pub fn plan(self, contract: &mut Contract<'_>) -> Plan {
        contract.set_layers(self.layers, self.mtp_layers);
        let embed_shape = [self.vocab_size, self.hidden_size];
        let embed = contract.model("embed", &embed_shape);
        let position_shape = [self.max_position_embeddings, self.hidden_size];
        let position_embed = self.learned_positions.then(|| contract.model("position_embed", &position_shape));
        let per_layer_inputs = self.extras.per_layer_inputs(contract, &self);
        let altup = self.extras.altup_ends(contract, self.hidden_size);
        let layers = (0..self.layers).map(|i| self.layer(contract, i)).collect();
        let bias = |contract: &mut Contract<'_>| contract.model("norm_bias", &[self.hidden_size]);
        let weight = contract.model("norm", &[self.hidden_size]);
        let bias = self.norms.bias.then(|| bias(contract));
        let norm = self.norms.of(Some(weight), bias, self.hidden_size);
        // A tied checkpoint may store the head as well: it is then accounted for, and compared with the embedding.
        let stored = contract.model_name("head").is_some_and(|name| contract.has(&name));
        let tied = self.tied.unwrap_or(!stored);
        let head = (!tied || stored).then(|| contract.model("head", &embed_shape));
        let weight = head.filter(|_| !tied).unwrap_or_else(|| embed.clone());
        let bias = self.head_bias.then(|| contract.model("head_bias", &embed_shape[..1]));
        Plan {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            max_position_embeddings: self.max_position_embeddings,
            ropes: self.tables.iter().map(|table| table.rope.clone()).collect(),
            embed,
            embed_scale: self.embed_scale,
            position_embed,
            per_layer_inputs,
            altup,
            layers,
            norm,
            head: Head {
                linear: Linear::new(weight, bias),
                tied,
                logit_scale: self.logit_scale,
                logits_scaling: self.logits_scaling,
                final_logit_softcapping: self.final_logit_softcapping,
            },
            placeholder_tokens: BTreeMap::new(),
        }
    }

    fn layer(&self, contract: &mut Contract<'_>, i: usize) -> Layer {
        let hidden = self.hidden_size;
        let mixer_norm = self.norms.optional(contract, i, "mixer_norm", hidden);
        let mixer = self.mixer(contract, i);
        let mixer_post_norm = self.norms.optional(contract, i, "mixer_post_norm", hidden);
        let mlp = self.feed_forward.as_ref().and_then(|hyper| hyper.part(contract, i, self));
        let has_mlp = mlp.is_some();
        let mut mlp_norm = |role| if has_mlp { self.norms.optional(contract, i, role, hidden) } else { None };
        let shared = self.parallel && self.shared_branch_norm;
        let (mlp_norm, mlp_post_norm) = (if shared { None } else { mlp_norm("mlp_norm") }, mlp_norm("mlp_post_norm"));
        Layer {
            mixer_norm,
            mixer,
            mixer_post_norm,
            mlp_norm,
            mlp,
            mlp_post_norm,
            parallel: self.parallel,
            residual_multiplier: self.residual_multiplier,
            altup: self.extras.altup(contract, i, self),
            per_layer_input: self.extras.per_layer_input(contract, i, self),
            scalar: contract.names_role("layer_scalar").then(|| contract.layer(i, "layer_scalar", &[1])),
        }
    }

    fn mixer(&self, contract: &mut Contract<'_>, i: usize) -> Mixer {
        match (self.types[i], &self.attention) {
            (LayerType::Linear, _) => Mixer::GatedDelta(self.recurrent.delta(contract, i, self)),
            (LayerType::Conv, _) => Mixer::ShortConv(self.recurrent.short_conv(contract, i, self)),
            (LayerType::Mamba, _) => Mixer::Mamba2(self.recurrent.mamba(contract, i, self)),
            (_, Some(attention)) => attention.mixer(contract, i, self),
            // Reading the fields has refused attention where there is none.
            (_, None) => unreachable!("a layer of attention without its fields"),
        }
    }
}

/// What the readers of parts need to know of the whole.
struct Shape<'a> {
    hidden: usize,
    layers: usize,
    max: usize,
    types: &'a [LayerType],
}

/// Whether attention and MLP stand side by side, and whether they then share a norm.
fn branches(fields: &mut Fields<'_, '_, '_>) -> Result<(bool, bool), Reported> {
    let parallel = fields.flag("parallel")?;
    if fields.rule("parallel").is_some() && !parallel && new_decoder(fields)? {
        return Err(fields.wrong("parallel", "contradicts new_decoder_architecture, which is parallel"));
    }
    let shared = match fields.rule("shared_branch_norm") {
        Some(_) => {
            let norms = fields.keys.count(schema::NUM_LN)?;
            !new_decoder(fields)? || norms == Some(1)
        }
        None => fields.flag("shared_branch_norm")?,
    };
    Ok((parallel, shared))
}

/// Falcon's `new_decoder_architecture`.
fn new_decoder(fields: &mut Fields<'_, '_, '_>) -> Result<bool, Reported> {
    Ok(fields.keys.flag(schema::NEW_DECODER)?.unwrap_or(false))
}

fn embed_scale(fields: &mut Fields<'_, '_, '_>, hidden: Result<usize, Reported>) -> Result<f64, Reported> {
    match fields.rule("embed_scale") {
        Some(_) => Ok((hidden? as f64).sqrt()),
        None => Ok(fields.get("embed_scale", schema::POSITIVE, &positive)?.unwrap_or(1.0)),
    }
}

/// The activation of a family's MLPs, which a family without any doesn't have.
fn needed(activation: Option<Activation>, fields: &mut Fields<'_, '_, '_>) -> Result<Activation, Reported> {
    match activation {
        Some(activation) => Ok(activation),
        None => fields.activation("hidden_act"),
    }
}
