//! Faults that are another plan. Each has the weights' shapes of the true one.

use crate::model::plan::{
    Attention, FeedForward, LatentAttention, Linear, Mixer, Mlp, Moe, Plan, Scoring, TernaryScale,
};
use crate::ops::Activation;
use crate::ops::attention::AttentionSpec;
use crate::ops::rope::{Rope, RopeScaling};

type Changed = Result<(), String>;

/// The attention layers, by index; those of latent attention are not among them.
pub fn attentions(plan: &Plan) -> impl Iterator<Item = (usize, &Attention)> {
    plan.layers.iter().enumerate().filter_map(|(i, layer)| match &layer.mixer {
        Mixer::Attention(attention) => Some((i, attention)),
        _ => None,
    })
}

fn attentions_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Attention> {
    plan.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        _ => None,
    })
}

fn latent_mut(plan: &mut Plan) -> impl Iterator<Item = &mut LatentAttention> {
    plan.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
        Mixer::LatentAttention(attention) => Some(attention),
        _ => None,
    })
}

/// What every kind of attention computes.
fn specs_mut(plan: &mut Plan) -> impl Iterator<Item = &mut AttentionSpec> {
    plan.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
        Mixer::Attention(attention) => Some(&mut attention.spec),
        Mixer::LatentAttention(attention) => Some(&mut attention.spec),
        _ => None,
    })
}

fn moes_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Moe> {
    plan.layers.iter_mut().filter_map(|layer| match &mut layer.mlp {
        Some(FeedForward::Moe(moe)) => Some(moe.as_mut()),
        _ => None,
    })
}

/// Every MLP: those of all tokens, shared experts, and experts.
fn mlps_mut(plan: &mut Plan) -> Vec<&mut Mlp> {
    let mut mlps = Vec::new();
    for mlp in plan.layers.iter_mut().filter_map(|layer| layer.mlp.as_mut()) {
        match mlp {
            FeedForward::Dense(mlp) => mlps.push(mlp),
            FeedForward::Moe(moe) => mlps.extend(moe.experts.iter_mut().chain(&mut moe.shared)),
        }
    }
    mlps
}

/// `Ok` where something was changed.
pub fn if_any(changed: usize, reason: &str) -> Changed {
    if changed > 0 { Ok(()) } else { Err(reason.to_owned()) }
}

/// Changes the tables that rotate otherwise after the change; refuses where none does.
fn change_ropes(plan: &mut Plan, change: impl Fn(&mut Rope), reason: &str) -> Changed {
    let mut changed = 0;
    for rope in &mut plan.ropes {
        let before = rope.clone();
        change(rope);
        if rotates_alike(&before, rope) {
            *rope = before;
        } else {
            changed += 1;
        }
    }
    if_any(changed, reason)
}

/// Whether two tables rotate by the same angles, in short sequences as in long ones.
fn rotates_alike(a: &Rope, b: &Rope) -> bool {
    const LONG: usize = 1 << 24;
    // The first pair is the same in both pairings where there is no other.
    let paired_alike = a.interleaved == b.interleaved || a.dim == 2;
    let turned_alike = [1, LONG].iter().all(|&length| a.inv_freq::<f64>(length) == b.inv_freq::<f64>(length));
    a.dim == b.dim && paired_alike && turned_alike && a.attention_factor() == b.attention_factor()
}

pub fn rope_pairing(plan: &mut Plan) -> Changed {
    change_ropes(plan, |rope| rope.interleaved = !rope.interleaved, "heads with a single pair have one pairing")
}

pub fn rope_theta_default(plan: &mut Plan) -> Changed {
    change_ropes(plan, |rope| rope.rope_theta = 10_000.0, "rope_theta is 10000")
}

pub fn rope_scaling_dropped(plan: &mut Plan) -> Changed {
    change_ropes(plan, |rope| rope.scaling = RopeScaling::Default, "RoPE is not scaled")
}

fn change_attention_factor(plan: &mut Plan, change: fn(f64) -> f64) -> Changed {
    let change = |rope: &mut Rope| {
        if let RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Longrope { attention_factor, .. } =
            &mut rope.scaling
        {
            *attention_factor = change(*attention_factor);
        }
    };
    change_ropes(plan, change, "cos and sin are multiplied by no factor, or by one that this leaves as it is")
}

pub fn attention_factor_dropped(plan: &mut Plan) -> Changed {
    change_attention_factor(plan, |_| 1.0)
}

pub fn attention_factor_squared(plan: &mut Plan) -> Changed {
    change_attention_factor(plan, |factor| factor * factor)
}

pub fn attention_factor_log_twice(plan: &mut Plan) -> Changed {
    change_attention_factor(plan, |factor| if factor <= 1.0 { 1.0 } else { 0.1 * libm::log(factor) + 1.0 })
}

pub fn longrope_switch(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for rope in &mut plan.ropes {
        if let RopeScaling::Longrope { short_factor, long_factor, original_max_position_embeddings, .. } =
            &mut rope.scaling
            && short_factor != long_factor
        {
            *original_max_position_embeddings += 1;
            changed += 1;
        }
    }
    if_any(changed, "RoPE has no short and long factors")
}

pub fn partial_rotary_ignored(plan: &mut Plan) -> Changed {
    let heads: Vec<(usize, usize)> = attentions(plan).filter_map(|(_, a)| Some((a.rope?, a.spec.head_dim))).collect();
    let mut changed = 0;
    for (rope, head_dim) in heads {
        changed += usize::from(plan.ropes[rope].dim != head_dim);
        plan.ropes[rope].dim = head_dim;
    }
    if_any(changed, "whole heads are rotated")
}

pub fn rope_wrong_layer(plan: &mut Plan) -> Changed {
    let full = attentions(plan).find(|(_, a)| a.spec.sliding_window.is_none()).map(|(_, a)| a.rope);
    let mut changed = 0;
    for attention in attentions_mut(plan).filter(|a| a.spec.sliding_window.is_some()) {
        if let Some(full) = full.filter(|&full| full != attention.rope) {
            attention.rope = full;
            changed += 1;
        }
    }
    if_any(changed, "sliding layers have no frequencies of their own")
}

const NO_WINDOW: &str = "no layer has a sliding window";

fn change_windows(plan: &mut Plan, change: fn(usize) -> Option<usize>) -> Changed {
    let mut changed = 0;
    for window in specs_mut(plan).map(|spec| &mut spec.sliding_window) {
        if let Some(w) = *window {
            *window = change(w);
            changed += 1;
        }
    }
    if_any(changed, NO_WINDOW)
}

pub fn window_missing(plan: &mut Plan) -> Changed {
    change_windows(plan, |_| None)
}

pub fn window_off_by_one(plan: &mut Plan) -> Changed {
    change_windows(plan, |w| Some(w.saturating_add(1)))
}

pub fn window_wrong_layer(plan: &mut Plan) -> Changed {
    let windows: Vec<Option<usize>> = attentions(plan).map(|(_, a)| a.spec.sliding_window).collect();
    let any = windows.iter().find_map(|w| *w).ok_or(NO_WINDOW)?;
    if windows.iter().all(Option::is_some) {
        return Err("every layer has a sliding window".to_owned());
    }
    for (attention, window) in attentions_mut(plan).zip(windows) {
        attention.spec.sliding_window = if window.is_some() { None } else { Some(any) };
    }
    Ok(())
}

pub fn attn_scale(plan: &mut Plan) -> Changed {
    let hidden = plan.hidden_size as f64;
    let mut changed = 0;
    for spec in specs_mut(plan) {
        let scale = 1.0 / (hidden / spec.num_attention_heads as f64).sqrt();
        changed += usize::from(scale != spec.scale);
        spec.scale = scale;
    }
    if_any(changed, "the scale is 1 / sqrt(hidden_size / num_attention_heads)")
}

pub fn mla_scale(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for spec in latent_mut(plan).map(|a| &mut a.spec) {
        let scale = 1.0 / (spec.head_dim as f64).sqrt();
        changed += usize::from(scale != spec.scale);
        spec.scale = scale;
    }
    if_any(changed, "no latent attention has a scale with mscale in it")
}

pub fn attn_softcap_dropped(plan: &mut Plan) -> Changed {
    let dropped = specs_mut(plan).filter_map(|spec| spec.attn_logit_softcapping.take()).count();
    if_any(dropped, "scores are not soft-capped")
}

pub fn final_softcap_dropped(plan: &mut Plan) -> Changed {
    if_any(plan.head.final_logit_softcapping.take().iter().count(), "logits are not soft-capped")
}

pub fn sinks_dropped(plan: &mut Plan) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| a.sinks.take()).count(), "there are no attention sinks")
}

pub fn attn_gate_dropped(plan: &mut Plan) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| a.gate.take()).count(), "attention has no output gate")
}

pub fn attn_temperature_dropped(plan: &mut Plan) -> Changed {
    let mut changed = attentions_mut(plan).filter_map(|a| a.temperature.take()).count();
    changed += latent_mut(plan).filter_map(|a| a.temperature.take()).count();
    if_any(changed, "queries have no temperature")
}

pub fn attn_chunk_missing(plan: &mut Plan) -> Changed {
    let dropped = specs_mut(plan).filter_map(|spec| spec.attention_chunk_size.take()).count();
    if_any(dropped, "no layer attends in chunks")
}

const NO_QK_NORM: &str = "queries and keys have no norm";

pub fn qk_norm_dropped(plan: &mut Plan) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| a.qk_norm.take()).count(), NO_QK_NORM)
}

pub fn qk_norm_after_rope(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    // Without weights the order of norm and rotation changes nothing.
    let rotates = attentions_mut(plan).filter(|a| a.rope.is_some());
    for norms in rotates.filter_map(|a| a.qk_norm.as_mut()).filter(|norms| norms.q.weight.is_some()) {
        norms.after_rope = !norms.after_rope;
        changed += 1;
    }
    if_any(changed, "no query or key norm has weights and RoPE beside it")
}

fn drop_bias(plan: &mut Plan, part: fn(&mut Attention) -> Option<&mut Linear>, reason: &str) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| part(a)?.bias.take()).count(), reason)
}

pub fn q_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| Some(&mut a.q), "the query projection has no bias")
}

pub fn k_bias_dropped(plan: &mut Plan) -> Changed {
    /// Added to every key as it is, it adds the same to all scores of a query, and the softmax forgets it.
    fn key(a: &mut Attention) -> Option<&mut Linear> {
        let changes = [a.rope.is_some(), a.qk_norm.is_some(), a.sinks.is_some(), a.clip.is_some(), a.v.is_none()];
        let counts = changes.contains(&true) || a.spec.attn_logit_softcapping.is_some();
        a.k.as_mut().filter(|_| counts)
    }
    drop_bias(plan, key, "no key projection has a bias that changes anything")
}

pub fn v_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| a.v.as_mut(), "the value projection has no bias")
}

pub fn o_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| Some(&mut a.o), "the output projection has no bias")
}

pub fn norm_eps(plan: &mut Plan) -> Changed {
    for norm in plan.norms_mut() {
        // Configs also write it as 9.999999747378752e-06, the nearest float32.
        let is_1e_5 = (norm.eps / 1e-5 - 1.0).abs() < 1e-3;
        norm.eps = if is_1e_5 { 1e-6 } else { 1e-5 };
    }
    Ok(())
}

fn change_offsets(plan: &mut Plan, offset: f64) -> Changed {
    let mut changed = 0;
    for norm in plan.norms_mut().into_iter().filter(|norm| norm.offset != 0.0) {
        norm.offset = offset;
        changed += 1;
    }
    if_any(changed, "no norm adds one to its weights")
}

pub fn norm_plus_one_missing(plan: &mut Plan) -> Changed {
    change_offsets(plan, 0.0)
}

pub fn norm_plus_one_twice(plan: &mut Plan) -> Changed {
    change_offsets(plan, 2.0)
}

pub fn post_norm_dropped(plan: &mut Plan) -> Changed {
    let dropped = plan.layers.iter_mut().flat_map(|layer| [layer.mixer_post_norm.take(), layer.mlp_post_norm.take()]);
    if_any(dropped.flatten().count(), "nothing is normed after the mixer or the MLP")
}

const NO_EMBED_SCALE: &str = "the embedding is not scaled";

pub fn embed_scale_missing(plan: &mut Plan) -> Changed {
    let changed = usize::from(plan.embed_scale != 1.0);
    plan.embed_scale = 1.0;
    if_any(changed, NO_EMBED_SCALE)
}

pub fn embed_scale_bf16(plan: &mut Plan) -> Changed {
    let rounded = half::bf16::from_f64(plan.embed_scale).to_f64();
    let changed = usize::from(plan.embed_scale != rounded);
    plan.embed_scale = rounded;
    if_any(changed, "the embedding's scale, if any, is a bf16 number")
}

pub fn residual_multiplier_dropped(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for multiplier in plan.layers.iter_mut().map(|layer| &mut layer.residual_multiplier) {
        changed += usize::from(*multiplier != 1.0);
        *multiplier = 1.0;
    }
    if_any(changed, "what is added to the residual is not scaled")
}

pub fn logit_scale_dropped(plan: &mut Plan) -> Changed {
    let head = &mut plan.head;
    let changed = usize::from(head.logit_scale != 1.0 || head.logits_scaling != 1.0);
    (head.logit_scale, head.logits_scaling) = (1.0, 1.0);
    if_any(changed, "the logits are not scaled")
}

pub fn layer_scalar_dropped(plan: &mut Plan) -> Changed {
    if_any(plan.layers.iter_mut().filter_map(|layer| layer.scalar.take()).count(), "layers have no scalar")
}

pub fn per_layer_input_dropped(plan: &mut Plan) -> Changed {
    let dropped = plan.layers.iter_mut().filter_map(|layer| layer.per_layer_input.take()).count();
    if_any(dropped, "there are no per-layer inputs")
}

fn change_activation(plan: &mut Plan, change: fn(Activation) -> Option<Activation>, reason: &str) -> Changed {
    let mut changed = 0;
    // gpt-oss' gate is a function of its own.
    for mlp in mlps_mut(plan).into_iter().filter(|mlp| mlp.clamp.is_none()) {
        if let Some(other) = change(mlp.activation) {
            mlp.activation = other;
            changed += 1;
        }
    }
    if_any(changed, reason)
}

pub fn gelu_variant(plan: &mut Plan) -> Changed {
    let other = |activation| match activation {
        Activation::Gelu => Some(Activation::GeluTanh),
        Activation::GeluTanh => Some(Activation::Gelu),
        _ => None,
    };
    change_activation(plan, other, "the activation is not GELU")
}

pub fn act_swapped(plan: &mut Plan) -> Changed {
    let other = |activation| match activation {
        Activation::Silu => Some(Activation::GeluTanh),
        _ => Some(Activation::Silu),
    };
    change_activation(plan, other, "there is no activation")
}

pub fn gate_up_swapped(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for mlp in mlps_mut(plan) {
        if let Some(gate) = &mut mlp.gate {
            std::mem::swap(gate, &mut mlp.up);
            changed += 1;
        }
    }
    if_any(changed, "the MLP has no gate")
}

pub fn head_tied(plan: &mut Plan) -> Changed {
    if plan.head.tied {
        return Err("the head is the embedding, and there is no other tensor to take for it".to_owned());
    }
    plan.head.linear.weight = plan.embed.clone();
    plan.head.tied = true;
    Ok(())
}

const NO_EXPERTS: &str = "there are no experts";

/// Changes every mixture that `change` says something about.
fn change_moes(plan: &mut Plan, change: impl Fn(&mut Moe) -> bool, reason: &str) -> Changed {
    let (mut any, mut changed) = (false, 0);
    for moe in moes_mut(plan) {
        any = true;
        changed += usize::from(change(moe));
    }
    if_any(changed, if any { reason } else { NO_EXPERTS })
}

pub fn topk_norm(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        let router = &mut moe.router;
        // The chosen scores of a softmax over them add up to one as they are, and so does a single one divided by itself.
        let matters = router.scoring != Scoring::SoftmaxOfChosen;
        router.norm_topk_prob = if matters { !router.norm_topk_prob } else { router.norm_topk_prob };
        matters
    };
    change_moes(plan, change, "the chosen experts' weights add up to one as they are")
}

pub fn router_bias_dropped(plan: &mut Plan) -> Changed {
    change_moes(plan, |moe| moe.router.selection_bias.take().is_some(), "the choice of experts has no bias of its own")
}

pub fn router_bias_weighted(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        moe.router.selection_bias_weighs = moe.router.selection_bias.is_some();
        moe.router.selection_bias_weighs
    };
    change_moes(plan, change, "the choice of experts has no bias of its own")
}

pub fn router_order(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        let router = &mut moe.router;
        let other = match router.scoring {
            // Renormalised, a softmax over all experts is one over the chosen ones.
            Scoring::Softmax if !router.norm_topk_prob => Scoring::SoftmaxOfChosen,
            Scoring::SoftmaxOfChosen => Scoring::Softmax,
            _ => return false,
        };
        router.scoring = other;
        true
    };
    change_moes(plan, change, "the order of softmax and choice makes no difference")
}

pub fn group_limit_dropped(plan: &mut Plan) -> Changed {
    let limits = |moe: &mut Moe| moe.router.groups.take().is_some_and(|groups| groups.topk_group < groups.n_group);
    change_moes(plan, limits, "the choice of experts is not limited to groups")
}

pub fn shared_expert_dropped(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        let there = moe.shared.take().is_some();
        moe.shared_gate = None;
        there
    };
    change_moes(plan, change, "there is no shared expert")
}

pub fn shared_gate_dropped(plan: &mut Plan) -> Changed {
    change_moes(plan, |moe| moe.shared_gate.take().is_some(), "the shared expert has no gate")
}

pub fn expert_permuted(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        let several = moe.experts.len() > 1;
        // All of them move, so that whichever are chosen, others answer.
        moe.experts.rotate_left(usize::from(several));
        several
    };
    change_moes(plan, change, "there are no two experts")
}

pub fn routed_scaling_dropped(plan: &mut Plan) -> Changed {
    let change = |moe: &mut Moe| {
        let scaled = moe.router.routed_scaling_factor != 1.0 || moe.router.expert_scale.is_some();
        moe.router.routed_scaling_factor = 1.0;
        moe.router.expert_scale = None;
        scaled
    };
    change_moes(plan, change, "the experts' weights are not scaled")
}

pub fn swiglu_clamp_dropped(plan: &mut Plan) -> Changed {
    if_any(mlps_mut(plan).into_iter().filter_map(|mlp| mlp.clamp.take()).count(), "no MLP is clamped")
}

/// Every projection of attention and of MLPs.
fn projections_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Linear> {
    plan.layers.iter_mut().flat_map(|layer| {
        let mut linears = Vec::new();
        if let Mixer::Attention(Attention { q, k, v, o, .. }) = &mut layer.mixer {
            linears.extend([q, o].into_iter().chain(k).chain(v));
        }
        if let Some(FeedForward::Dense(Mlp { gate, up, down, .. })) = &mut layer.mlp {
            linears.extend([up, down].into_iter().chain(gate));
        }
        linears
    })
}

pub fn activation_quantization_dropped(plan: &mut Plan) -> Changed {
    let ternary = projections_mut(plan).filter_map(|linear| linear.ternary.as_mut());
    let dropped = ternary.map(|ternary| ternary.inputs_as_they_are = true).count();
    if_any(dropped, "no projection rounds its inputs")
}

pub fn ternary_scale_dropped(plan: &mut Plan) -> Changed {
    let ternary = projections_mut(plan).filter_map(|linear| linear.ternary.as_mut());
    let dropped = ternary.map(|ternary| ternary.scale = TernaryScale::Dropped).count();
    if_any(dropped, "no weights are ternary")
}

pub fn sub_norm_dropped(plan: &mut Plan) -> Changed {
    let mut dropped = attentions_mut(plan).filter_map(|a| a.sub_norm.take()).count();
    dropped += mlps_mut(plan).into_iter().filter_map(|mlp| mlp.sub_norm.take()).count();
    if_any(dropped, "nothing is normed inside attention or the MLP")
}
