//! Faults that are another plan. Each has the weights' shapes of the true one.

use crate::model::plan::{Attention, FeedForward, Linear, Mixer, Mlp, Norm, Plan};
use crate::ops::Activation;
use crate::ops::rope::{Rope, RopeScaling};

type Changed = Result<(), String>;

/// The attention layers, by index.
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

fn mlps_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Mlp> {
    plan.layers.iter_mut().filter_map(|layer| match &mut layer.mlp {
        Some(FeedForward::Dense(mlp)) => Some(mlp),
        _ => None,
    })
}

fn norms_mut(plan: &mut Plan) -> Vec<&mut Norm> {
    let mut norms = vec![&mut plan.norm];
    for layer in &mut plan.layers {
        norms.extend(layer.mixer_norm.iter_mut().chain(&mut layer.mlp_norm));
        if let Mixer::Attention(attention) = &mut layer.mixer {
            norms.extend(
                attention.qk_norm.iter_mut().flat_map(|norms| std::iter::once(&mut norms.q).chain(&mut norms.k)),
            );
        }
    }
    norms
}

/// `Ok` where something was changed.
fn if_any(changed: usize, reason: &str) -> Changed {
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
    for window in attentions_mut(plan).map(|a| &mut a.spec.sliding_window) {
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
    for spec in attentions_mut(plan).map(|a| &mut a.spec) {
        let scale = 1.0 / (hidden / spec.num_attention_heads as f64).sqrt();
        changed += usize::from(scale != spec.scale);
        spec.scale = scale;
    }
    if_any(changed, "the scale is 1 / sqrt(hidden_size / num_attention_heads)")
}

const NO_QK_NORM: &str = "queries and keys have no norm";

pub fn qk_norm_dropped(plan: &mut Plan) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| a.qk_norm.take()).count(), NO_QK_NORM)
}

pub fn qk_norm_after_rope(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for norms in attentions_mut(plan).filter_map(|a| a.qk_norm.as_mut()) {
        norms.after_rope = !norms.after_rope;
        changed += 1;
    }
    if_any(changed, NO_QK_NORM)
}

fn drop_bias(plan: &mut Plan, part: fn(&mut Attention) -> Option<&mut Linear>, reason: &str) -> Changed {
    if_any(attentions_mut(plan).filter_map(|a| part(a)?.bias.take()).count(), reason)
}

pub fn q_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| Some(&mut a.q), "the query projection has no bias")
}

pub fn k_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| a.k.as_mut(), "the key projection has no bias")
}

pub fn v_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| a.v.as_mut(), "the value projection has no bias")
}

pub fn o_bias_dropped(plan: &mut Plan) -> Changed {
    drop_bias(plan, |a| Some(&mut a.o), "the output projection has no bias")
}

pub fn norm_eps(plan: &mut Plan) -> Changed {
    for norm in norms_mut(plan) {
        // Configs also write it as 9.999999747378752e-06, the nearest float32.
        let is_1e_5 = (norm.eps / 1e-5 - 1.0).abs() < 1e-3;
        norm.eps = if is_1e_5 { 1e-6 } else { 1e-5 };
    }
    Ok(())
}

fn change_activation(plan: &mut Plan, change: fn(Activation) -> Option<Activation>, reason: &str) -> Changed {
    let mut changed = 0;
    for mlp in mlps_mut(plan) {
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
