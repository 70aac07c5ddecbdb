//! A plan for a person: every number that affects the result, with the config's own names, layer by layer where layers
//! differ.

use crate::model::Plan;
use crate::model::plan::{
    Attention, CausalConv, FeedForward, GatedDelta, LatentAttention, Layer, Linear, Mamba2, Mixer, Mlp, Moe, Norm,
    NormKind, Scoring, Temperature, TernaryScale,
};
use crate::ops::Activation;
use crate::ops::attention::AttentionSpec;
use crate::ops::rope::{Rope, RopeScaling};
use crate::oracle::printable::ranges;

/// Names and values, in the order in which they are printed.
pub fn rows(plan: &Plan, rows: &mut Vec<(&str, String)>) {
    let mut row = |name, value: String| rows.push((name, value));
    row("vocab_size", plan.vocab_size.to_string());
    row("hidden_size", plan.hidden_size.to_string());
    row("num_hidden_layers", plan.layers.len().to_string());
    if let Some(text) = embedding(plan) {
        row("embedding", text);
    }
    let attention_only = plan.layers.iter().all(|layer| matches!(layer.mixer, Mixer::Attention(_)));
    row(
        if attention_only { "attention" } else { "mixer" },
        per_layer(plan, |layer| mixer(&layer.mixer, attention_only)),
    );
    let any_attention = plan.layers.iter().any(|layer| layer.mixer.attention_spec().is_some());
    if any_attention {
        row("sliding_window", per_layer(plan, window));
        row("rope", per_layer(plan, |layer| rope_of(plan, layer)));
        row("q/k norm", per_layer(plan, qk_norm));
    }
    if plan.layers.iter().any(|layer| layer.mlp.is_some()) {
        row("mlp", per_layer(plan, feed_forward));
    }
    if plan.layers.iter().any(|layer| ternary(layer).is_some()) {
        row("quantization", per_layer(plan, |layer| ternary(layer).unwrap_or_else(|| "none".to_owned())));
    }
    row("bias", per_layer(plan, biases));
    row("norm", per_layer(plan, |layer| norms(layer, &plan.norm)));
    if plan.layers.iter().any(|layer| branches(layer).is_some()) {
        row("branches", per_layer(plan, |layer| branches(layer).unwrap_or_else(|| "one after the other".to_owned())));
    }
    row("head", head(plan));
    if !plan.placeholder_tokens.is_empty() {
        let tokens = plan.placeholder_tokens.iter().map(|(id, key)| format!("{id} ({key})"));
        row("refused tokens", tokens.collect::<Vec<_>>().join(", "));
    }
}

/// "1 head", "2 heads".
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn embedding(plan: &Plan) -> Option<String> {
    let mut parts = Vec::new();
    if plan.embed_scale != 1.0 {
        parts.push(format!("times {}", number(plan.embed_scale)));
    }
    if plan.position_embed.is_some() {
        parts.push(format!("learned positions up to {}", plan.max_position_embeddings));
    }
    if let Some(inputs) = &plan.per_layer_inputs {
        let (vocab, _) = inputs.embed.rows_and_cols();
        parts.push(format!("per-layer inputs of {} columns, vocabulary {vocab}", inputs.dim));
    }
    if let Some(altup) = &plan.altup {
        parts.push(format!("AltUp with {} copies, {} active", altup.projections.len() + 1, altup.active));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn mixer(mixer: &Mixer, attention_only: bool) -> String {
    let text = match mixer {
        Mixer::Attention(a) => attention(a),
        Mixer::LatentAttention(a) => latent(a),
        Mixer::ShortConv(conv) => format!("kernel {}", conv.conv.weight.rows_and_cols().1),
        Mixer::Mamba2(mamba) => mamba2(mamba),
        Mixer::GatedDelta(delta) => gated_delta(delta),
    };
    if attention_only { text } else { format!("{}: {text}", mixer.name()) }
}

fn heads(spec: &AttentionSpec) -> String {
    let mut text = format!(
        "{}, {}, head_dim {}",
        counted(spec.num_attention_heads, "head"),
        counted(spec.num_key_value_heads, "key/value head"),
        spec.head_dim,
    );
    if let Some(dim) = spec.v_head_dim {
        text += &format!(", v_head_dim {dim}");
    }
    text += &format!(", scale {}", number(spec.scale));
    if let Some(cap) = spec.attn_logit_softcapping {
        text += &format!(", attn_logit_softcapping {}", number(cap));
    }
    text
}

fn attention(a: &Attention) -> String {
    let mut text = heads(&a.spec);
    let mut add = |part: &str| {
        text += ", ";
        text += part;
    };
    if let Some(layer) = a.kv_layer {
        add(&format!("keys and values of layer {layer}"));
    } else if a.v.is_none() {
        add("values are keys");
    }
    for (there, what) in [
        (a.v_norm.is_some(), "values normalised"),
        (a.gate.is_some(), "sigmoid output gate"),
        (a.sinks.is_some(), "sinks"),
        (a.sub_norm.is_some(), "norm before o"),
    ] {
        if there {
            add(what);
        }
    }
    if let Some(clip) = a.clip {
        add(&format!("clip_qkv {}", number(clip)));
    }
    if let Some(t) = &a.temperature {
        add(&temperature(t));
    }
    text
}

fn latent(a: &LatentAttention) -> String {
    let rank = |linear: &Linear| linear.outputs().to_string();
    let q = a.q_a.as_ref().map_or("none".to_owned(), |(linear, _)| rank(linear));
    let kv = a.kv_a.outputs() - a.qk_rope_head_dim;
    let mut text = format!(
        "{}, q_lora_rank {q}, kv_lora_rank {kv}, qk_nope_head_dim {}, qk_rope_head_dim {}",
        heads(&a.spec),
        a.qk_nope_head_dim,
        a.qk_rope_head_dim
    );
    text += &format!(", latent_norm_eps {}", number(a.kv_a_norm.eps));
    if let Some(t) = &a.temperature {
        text += &format!(", {}", temperature(t));
    }
    text
}

fn temperature(t: &Temperature) -> String {
    let counted = if t.slots { "tokens" } else { "positions" };
    format!("temperature {} per {} {counted}", number(t.beta), number(t.floor_scale))
}

fn mamba2(m: &Mamba2) -> String {
    let mut text = format!(
        "{} of {}, state_size {}, {}, kernel {}{}",
        counted(m.num_heads, "head"),
        m.head_dim,
        m.state_size,
        counted(m.n_groups, "group"),
        m.conv.weight.rows_and_cols().1,
        conv_act(&m.conv)
    );
    let (low, high) = m.time_step_limit;
    if (low, high) != (0.0, f64::INFINITY) {
        text += &format!(", time_step_limit {} to {}", number(low), number(high));
    }
    if m.norm.size != m.num_heads * m.head_dim {
        text += &format!(", result normalised in groups of {}", m.norm.size);
    }
    text
}

/// The activation after a convolution, where it isn't the usual one.
fn conv_act(conv: &CausalConv) -> String {
    let unusual = conv.activation.filter(|activation| *activation != Activation::Silu);
    unusual.map_or(String::new(), |activation| format!(" with {}", activation.name()))
}

fn gated_delta(d: &GatedDelta) -> String {
    let per_channel = d.decay.last().is_some_and(|linear| linear.outputs() != d.num_v_heads);
    format!(
        "{} of {}, {} of {}, kernel {}{}, decay per {}{}",
        counted(d.num_k_heads, "key head"),
        d.head_k_dim,
        counted(d.num_v_heads, "value head"),
        d.head_v_dim,
        d.conv.first().map_or(0, |conv| conv.weight.rows_and_cols().1),
        d.conv.first().map_or(String::new(), conv_act),
        if per_channel { "channel" } else { "head" },
        match d.gate_activation {
            Activation::Silu => String::new(),
            other => format!(", {} gate", other.name()),
        }
    )
}

fn window(layer: &Layer) -> String {
    let spec = layer.mixer.attention_spec();
    match spec.map(|s| (s.sliding_window, s.attention_chunk_size)) {
        Some((Some(window), _)) => window.to_string(),
        Some((None, Some(chunk))) => format!("chunks of {chunk}"),
        _ => "none".to_owned(),
    }
}

fn rope_of(plan: &Plan, layer: &Layer) -> String {
    let table = match &layer.mixer {
        Mixer::Attention(a) => a.rope,
        Mixer::LatentAttention(a) => a.rope,
        _ => None,
    };
    table.map_or("none".to_owned(), |table| rope(&plan.ropes[table]))
}

fn qk_norm(layer: &Layer) -> String {
    let Mixer::Attention(a) = &layer.mixer else { return "none".to_owned() };
    a.qk_norm.as_ref().map_or("none".to_owned(), |n| {
        let order = if n.after_rope { "after" } else { "before" };
        let over = if n.q.size == a.spec.head_dim { "per head" } else { "over all heads" };
        let weight = if n.q.weight.is_none() { "weightless " } else { "" };
        format!("{weight}{} {over} {order} RoPE, eps {}", norm_name(&n.q), number(n.q.eps))
    })
}

fn norm_name(norm: &Norm) -> &'static str {
    match (norm.kind, norm.offset != 0.0) {
        (NormKind::Rms, false) => "RMSNorm",
        (NormKind::Rms, true) => "RMSNorm (1 + w)",
        (NormKind::Layer, false) => "LayerNorm",
        (NormKind::Layer, true) => "LayerNorm (1 + w)",
    }
}

fn feed_forward(layer: &Layer) -> String {
    match &layer.mlp {
        Some(FeedForward::Dense(mlp)) => dense(mlp),
        Some(FeedForward::Moe(moe)) => mixture(moe),
        None => "none".to_owned(),
    }
}

fn dense(mlp: &Mlp) -> String {
    let gated = if mlp.gate.is_some() { "gated" } else { "plain" };
    let mut text = format!("{gated}, intermediate_size {}, hidden_act {}", mlp.up.outputs(), mlp.activation.name());
    if let Some(clamp) = &mlp.clamp {
        text += &format!(", swiglu_limit {}, alpha {}", number(clamp.limit), number(clamp.alpha));
    }
    if let Some(sparsity) = mlp.sparsity {
        text += &format!(", gate above its mean by {} standard deviations", number(sparsity));
    }
    if mlp.sub_norm.is_some() {
        text += ", norm before down";
    }
    text
}

fn mixture(moe: &Moe) -> String {
    let r = &moe.router;
    let scores = match r.scoring {
        Scoring::Softmax => "softmax",
        Scoring::SoftmaxOfChosen => "softmax of the chosen",
        Scoring::Sigmoid => "sigmoid",
    };
    let mut text = format!("{}, {} per token, {scores}", counted(moe.experts.len(), "expert"), r.num_experts_per_tok);
    let mut add = |part: String| text += &format!(", {part}");
    if r.selection_bias.is_some() {
        add("selection bias".into());
    }
    if let Some(groups) = &r.groups {
        let by = if groups.sum_of_two { " by the sum of their best two" } else { "" };
        add(format!("{} of {} groups{by}", groups.topk_group, groups.n_group));
    }
    if r.norm_topk_prob {
        add("norm_topk_prob".into());
        if r.norm_topk_eps != 0.0 {
            add(format!("norm_topk_eps {}", number(r.norm_topk_eps)));
        }
    }
    if r.norm.is_some() {
        add(format!("the router's input normalised, times {}", number(r.input_scale)));
    }
    if r.routed_scaling_factor != 1.0 {
        add(format!("routed_scaling_factor {}", number(r.routed_scaling_factor)));
    }
    if r.weights_input {
        add("weights on the input".into());
    }
    if r.expert_scale.is_some() {
        add("expert scales".into());
    }
    if let Some(expert) = moe.experts.first() {
        add(format!("each {}", dense(expert)));
    }
    if let Some(shared) = &moe.shared {
        let gate = if moe.shared_gate.is_some() { " with a gate" } else { "" };
        add(format!("shared expert{gate} of {}", shared.up.outputs()));
    }
    text
}

/// What a layer's projections have of BitNet: all have the same.
fn ternary(layer: &Layer) -> Option<String> {
    let Mixer::Attention(Attention { q, .. }) = &layer.mixer else { return None };
    let ternary = q.ternary.as_ref()?;
    let weights = match ternary.scale {
        TernaryScale::Multiplies(_) => "packed, times weight_scale",
        TernaryScale::Divides(_) => "packed, divided by weight_scale",
        TernaryScale::Mean => "rounded on the way, times their mean magnitude",
        TernaryScale::Dropped => "not scaled",
    };
    let inputs = if q.rounds_inputs() { "rounded to 8 bits per token" } else { "as they are" };
    Some(format!("ternary weights, {weights}; inputs {inputs}"))
}

fn biases(layer: &Layer) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut look = |name, linear: Option<&Linear>| {
        if linear.is_some_and(|linear| linear.bias.is_some()) {
            names.push(name);
        }
    };
    match &layer.mixer {
        Mixer::Attention(a) => {
            for (name, linear) in [("q", Some(&a.q)), ("k", a.k.as_ref()), ("v", a.v.as_ref()), ("o", Some(&a.o))] {
                look(name, linear);
            }
        }
        Mixer::LatentAttention(a) => {
            let q_a = a.q_a.as_ref().map(|(linear, _)| linear);
            for (name, linear) in [("q_a", q_a), ("kv_a", Some(&a.kv_a)), ("o", Some(&a.o))] {
                look(name, linear);
            }
        }
        Mixer::ShortConv(conv) => {
            look("in", Some(&conv.x));
            look("out", Some(&conv.out));
        }
        Mixer::Mamba2(mamba) => {
            look("in", Some(&mamba.xbc));
            look("out", Some(&mamba.out));
        }
        Mixer::GatedDelta(delta) => look("out", Some(&delta.out)),
    }
    let convolved = match &layer.mixer {
        Mixer::ShortConv(conv) => conv.conv.bias.is_some(),
        Mixer::Mamba2(mamba) => mamba.conv.bias.is_some(),
        Mixer::GatedDelta(delta) => delta.conv.iter().any(|conv| conv.bias.is_some()),
        Mixer::Attention(_) | Mixer::LatentAttention(_) => false,
    };
    let mlp = match &layer.mlp {
        Some(FeedForward::Dense(mlp)) => Some(mlp),
        Some(FeedForward::Moe(moe)) => {
            look("router", Some(&moe.router.linear));
            moe.experts.first()
        }
        None => None,
    };
    if let Some(mlp) = mlp {
        for (name, linear) in [("gate", mlp.gate.as_ref()), ("up", Some(&mlp.up)), ("down", Some(&mlp.down))] {
            look(name, linear);
        }
    }
    if convolved {
        names.push("conv");
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Where a layer normalises.
fn norms(layer: &Layer, last: &Norm) -> String {
    let there = |norms: [(&Option<Norm>, &'static str); 2]| -> Vec<&'static str> {
        norms.into_iter().filter(|(norm, _)| norm.is_some()).map(|(_, name)| name).collect()
    };
    let mut before = there([(&layer.mixer_norm, "mixer"), (&layer.mlp_norm, "mlp")]);
    let after = there([(&layer.mixer_post_norm, "mixer"), (&layer.mlp_post_norm, "mlp")]);
    before.push("head");
    let list = |names: &[&str]| match names {
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
        [] => String::new(),
    };
    let after = if after.is_empty() { String::new() } else { format!(", after {}", list(&after)) };
    format!("{} before {}{after}, eps {}", norm_name(last), list(&before), number(last.eps))
}

/// How a layer's branches join, where it isn't the usual way.
fn branches(layer: &Layer) -> Option<String> {
    let mut parts = Vec::new();
    if layer.parallel {
        let norm = if layer.mlp_norm.is_some() { "a norm each" } else { "one norm" };
        parts.push(format!("parallel, {norm}"));
    }
    if layer.residual_multiplier != 1.0 {
        parts.push(format!("residual_multiplier {}", number(layer.residual_multiplier)));
    }
    if let Some(altup) = &layer.altup {
        let scaled = if altup.output_scale.is_some() { ", output scaled" } else { "" };
        parts.push(format!("AltUp and Laurel of rank {}{scaled}", altup.laurel_left.outputs()));
    }
    for (there, what) in
        [(layer.per_layer_input.is_some(), "per-layer input"), (layer.scalar.is_some(), "layer_scalar")]
    {
        if there {
            parts.push(what.to_owned());
        }
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn head(plan: &Plan) -> String {
    let head = &plan.head;
    let mut text = if head.tied { "tied to the embedding".to_owned() } else { head.linear.weight.name.clone() };
    let mut add = |part: String| text += &format!(", {part}");
    if head.linear.bias.is_some() {
        add("bias".into());
    }
    if head.logit_scale != 1.0 {
        add(format!("logit_scale {}", number(head.logit_scale)));
    }
    if head.logits_scaling != 1.0 {
        add(format!("logits_scaling {}", number(head.logits_scaling)));
    }
    if let Some(cap) = head.final_logit_softcapping {
        add(format!("final_logit_softcapping {}", number(cap)));
    }
    text
}

/// What holds for each layer: said once where all agree, else for each value the layers that have it.
fn per_layer(plan: &Plan, value: impl Fn(&Layer) -> String) -> String {
    let mut values: Vec<(String, Vec<usize>)> = Vec::new();
    for (i, layer) in plan.layers.iter().enumerate() {
        let value = value(layer);
        match values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, layers)) => layers.push(i),
            None => values.push((value, vec![i])),
        }
    }
    match values.as_slice() {
        [(only, _)] => only.clone(),
        _ => {
            let texts = values.iter().map(|(value, layers)| {
                let what = if layers.len() == 1 { "layer" } else { "layers" };
                format!("{what} {}: {value}", ranges(layers))
            });
            texts.collect::<Vec<_>>().join("; ")
        }
    }
}

fn rope(rope: &Rope) -> String {
    let scaling = match &rope.scaling {
        RopeScaling::Default => "default".to_owned(),
        RopeScaling::Linear { factor } => format!("linear, factor {}", number(*factor)),
        RopeScaling::NtkAlpha { alpha } => format!("dynamic with alpha {}", number(*alpha)),
        RopeScaling::Proportional { factor, rotated } => {
            format!("proportional, {rotated} of {} pairs, factor {}", rope.dim / 2, number(*factor))
        }
        RopeScaling::Dynamic { factor, max_position_embeddings: max } => {
            format!("dynamic, factor {} beyond max_position_embeddings {max}", number(*factor))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings: max } => {
            let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(|&n| number(n));
            format!(
                "llama3, factor {factor}, low_freq_factor {low}, high_freq_factor {high}, original_max_position_embeddings {max}"
            )
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: max,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
        } => {
            let [factor, attention, fast, slow] = [factor, attention_factor, beta_fast, beta_slow].map(|&n| number(n));
            format!(
                "yarn, factor {factor}, attention_factor {attention}, beta_fast {fast}, beta_slow {slow}, truncate {truncate}, original_max_position_embeddings {max}"
            )
        }
        RopeScaling::Longrope {
            short_factor,
            long_factor,
            original_max_position_embeddings: max,
            attention_factor,
        } => {
            let (short, long) = (list(short_factor), list(long_factor));
            let attention = number(*attention_factor);
            format!(
                "longrope, attention_factor {attention}, short_factor {short} up to {max} positions, long_factor {long} beyond"
            )
        }
    };
    let pairing = if rope.interleaved { "interleaved pairs" } else { "halves" };
    format!("{scaling}, rope_theta {}, {} dimensions in {pairing}", number(rope.rope_theta), rope.dim)
}

/// The shortest digits that read back as the same number.
fn number(value: f64) -> String {
    let plain = value == 0.0 || (1e-3..1e15).contains(&value.abs());
    if plain { value.to_string() } else { format!("{value:e}") }
}

/// Numbers, the first and the last where there are many.
fn list(numbers: &[f64]) -> String {
    match numbers {
        [first, _, _, .., _, last] => {
            format!("[{}, ..., {}] ({} values)", number(*first), number(*last), numbers.len())
        }
        _ => format!("[{}]", numbers.iter().map(|&n| number(n)).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{list, number};

    #[test]
    fn a_number_is_shown_in_the_short_form() {
        let shown = [0.0, 1e-5, 0.01, 500_000.0, 1.138_629_436_111_989, 1e300].map(number);
        assert_eq!(shown, ["0", "1e-5", "0.01", "500000", "1.138629436111989", "1e300"]);
    }

    #[test]
    fn a_long_list_is_shown_by_its_ends() {
        assert_eq!(list(&[1.0, 1.5, 2.0, 4.25]), "[1, 1.5, 2, 4.25]");
        assert_eq!(list(&[1.0, 1.5, 2.0, 4.25, 8.0]), "[1, ..., 8] (5 values)");
    }
}
