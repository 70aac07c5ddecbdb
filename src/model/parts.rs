//! Which weights a plan has, in a fixed order, and what each is called by its meaning: the names of the packs, whatever a
//! checkpoint's own are.

use super::plan::{
    AltUp, Attention, CausalConv, FeedForward, GatedDelta, LatentAttention, Layer, Linear, Mamba2, Mixer, Mlp, Moe,
    Norm, Plan, ShortConv, Weight,
};
use std::fmt::{Arguments, Display};

/// What is called with a weight's name and the weight.
type Visit<'f, 'a> = &'f mut dyn FnMut(Arguments<'_>, &'a Weight);

impl Plan {
    /// Calls `f` with every weight and its semantic name (`embed`, `layer.3.q`, `layer.3.expert.5.down`, `head`), a tied
    /// head's once, in a fixed order (that of a pass is in `exec::weights`).
    ///
    /// Two plans of one model have the same names, however their weights lie and are called in the checkpoint.
    pub fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        f(format_args!("embed"), &self.embed);
        maybe("position_embed", &self.position_embed, f);
        if let Some(inputs) = &self.per_layer_inputs {
            f(format_args!("per_layer_embed"), &inputs.embed);
            linear("per_layer_projection", &inputs.projection, f);
            norm("per_layer_norm", &inputs.norm, f);
        }
        let altup = self.altup.as_ref();
        for (i, projection) in altup.iter().flat_map(|altup| altup.projections.iter().enumerate()) {
            linear(format_args!("altup_projection.{i}"), projection, f);
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer.each_part(&mut |name, weight| f(format_args!("layer.{i}.{name}"), weight));
        }
        for (i, projection) in altup.iter().flat_map(|altup| altup.unembed_projections.iter().enumerate()) {
            linear(format_args!("altup_unembed.{i}"), projection, f);
        }
        norm("norm", &self.norm, f);
        if !self.head.tied {
            f(format_args!("head"), &self.head.linear.weight);
        }
        maybe("head_bias", &self.head.linear.bias, f);
    }

    /// As [`Plan::each_part`], without names.
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        self.each_part(&mut |_, weight| f(weight));
    }
}

fn maybe<'a>(name: impl Display, weight: &'a Option<Weight>, f: Visit<'_, 'a>) {
    if let Some(weight) = weight {
        f(format_args!("{name}"), weight);
    }
}

/// The weight, its scale, then the bias.
fn linear<'a>(name: impl Display, linear: &'a Linear, f: Visit<'_, 'a>) {
    f(format_args!("{name}"), &linear.weight);
    if let Some(scale) = linear.stored_scale() {
        f(format_args!("{name}_scale"), scale);
    }
    maybe(format_args!("{name}_bias"), &linear.bias, f);
}

fn norm<'a>(name: impl Display, norm: &'a Norm, f: Visit<'_, 'a>) {
    let Norm { weight, further, bias, eps: _, kind: _, offset: _, size: _ } = norm;
    if further.is_empty() {
        maybe(&name, weight, f);
    }
    // Each head has a tensor of its own.
    for (head, weight) in weight.iter().chain(further).enumerate().filter(|_| !further.is_empty()) {
        f(format_args!("{name}.head.{head}"), weight);
    }
    maybe(format_args!("{name}_bias"), bias, f);
}

fn maybe_norm<'a>(name: &str, there: &'a Option<Norm>, f: Visit<'_, 'a>) {
    there.iter().for_each(|there| norm(name, there, f));
}

fn conv<'a>(name: impl Display, conv: &'a CausalConv, f: Visit<'_, 'a>) {
    f(format_args!("{name}"), &conv.weight);
    maybe(format_args!("{name}_bias"), &conv.bias, f);
}

/// Linear maps one after the other: `one` where there is one, else `{several}_a`, `{several}_b`, ...
fn chain<'a>(one: &str, several: &str, linears: &'a [Linear], f: Visit<'_, 'a>) {
    for (of, letter) in linears.iter().zip('a'..) {
        if linears.len() == 1 {
            linear(one, of, f);
        } else {
            linear(format_args!("{several}_{letter}"), of, f);
        }
    }
}

impl Layer {
    /// Calls `f` with every weight of the layer in a fixed order; of an MLP's the experts' come last, in the order of
    /// their index.
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        let altup: Option<&AltUp> = self.altup.as_deref();
        if let Some(altup) = altup {
            norm("altup_router_norm", &altup.router_norm, f);
            linear("altup_router", &altup.router, f);
            linear("altup_prediction", &altup.prediction, f);
        }
        maybe_norm("mixer_norm", &self.mixer_norm, f);
        if let Some(altup) = altup {
            linear("laurel_left", &altup.laurel_left, f);
            linear("laurel_right", &altup.laurel_right, f);
            norm("laurel_norm", &altup.laurel_norm, f);
        }
        self.mixer.each_part(f);
        maybe_norm("mixer_post_norm", &self.mixer_post_norm, f);
        maybe_norm("mlp_norm", &self.mlp_norm, f);
        match &self.mlp {
            Some(FeedForward::Dense(mlp)) => mlp.each_part(f),
            Some(FeedForward::Moe(moe)) => {
                moe.each_part_but_experts(f);
                for (e, expert) in moe.experts.iter().enumerate() {
                    expert.each_part(&mut |name, weight| f(format_args!("expert.{e}.{name}"), weight));
                }
            }
            None => {}
        }
        maybe_norm("mlp_post_norm", &self.mlp_post_norm, f);
        if let Some(altup) = altup {
            linear("altup_correction", &altup.correction, f);
            maybe("altup_output_scale", &altup.output_scale, f);
        }
        if let Some(input) = &self.per_layer_input {
            linear("per_layer_gate", &input.gate, f);
            linear("per_layer_projection", &input.projection, f);
            norm("per_layer_post_norm", &input.norm, f);
        }
        maybe("layer_scalar", &self.scalar, f);
    }
}

impl Mixer {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        match self {
            Mixer::Attention(attention) => attention.each_part(f),
            Mixer::LatentAttention(attention) => attention.each_part(f),
            Mixer::ShortConv(conv) => conv.each_part(f),
            Mixer::Mamba2(mamba) => mamba.each_part(f),
            Mixer::GatedDelta(delta) => delta.each_part(f),
        }
    }
}

impl Attention {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        let projections = [("q", Some(&self.q)), ("k", self.k.as_ref()), ("v", self.v.as_ref())];
        for (name, there) in projections.into_iter().chain([("attn_gate", self.gate.as_ref())]) {
            there.into_iter().for_each(|there| linear(name, there, f));
        }
        if let Some(norms) = &self.qk_norm {
            norm("q_norm", &norms.q, f);
            maybe_norm("k_norm", &norms.k, f);
        }
        maybe_norm("v_norm", &self.v_norm, f);
        maybe("sinks", &self.sinks, f);
        maybe_norm("attn_sub_norm", &self.sub_norm, f);
        linear("o", &self.o, f);
    }
}

impl LatentAttention {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        if let Some((q_a, q_a_norm)) = &self.q_a {
            linear("q_a", q_a, f);
            norm("q_a_norm", q_a_norm, f);
        }
        linear(if self.q_a.is_some() { "q_b" } else { "q" }, &self.q, f);
        linear("kv_a", &self.kv_a, f);
        norm("kv_a_norm", &self.kv_a_norm, f);
        linear("kv_b", &self.kv_b, f);
        linear("o", &self.o, f);
    }
}

impl ShortConv {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        linear("conv_in.b", &self.b, f);
        linear("conv_in.c", &self.c, f);
        linear("conv_in.x", &self.x, f);
        conv("conv", &self.conv, f);
        linear("conv_out", &self.out, f);
    }
}

impl Mamba2 {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        linear("mamba_in.z", &self.z, f);
        linear("mamba_in.xbc", &self.xbc, f);
        linear("mamba_in.dt", &self.dt, f);
        conv("mamba_conv", &self.conv, f);
        maybe("mamba_dt_bias", &self.dt_bias, f);
        f(format_args!("mamba_a_log"), &self.a_log);
        maybe("mamba_d", &self.d, f);
        norm("mamba_norm", &self.norm, f);
        linear("mamba_out", &self.out, f);
    }
}

impl GatedDelta {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        linear("delta_q", &self.q, f);
        linear("delta_k", &self.k, f);
        linear("delta_v", &self.v, f);
        let apart: &[&str] = if self.conv.len() == 1 { &[""] } else { &["q_", "k_", "v_"] };
        for (of, part) in self.conv.iter().zip(apart) {
            conv(format_args!("delta_{part}conv"), of, f);
        }
        linear("delta_b", &self.beta, f);
        chain("delta_a", "delta_f", &self.decay, f);
        maybe("delta_dt_bias", &self.dt_bias, f);
        f(format_args!("delta_a_log"), &self.a_log);
        chain("delta_z", "delta_g", &self.gate, f);
        norm("delta_norm", &self.norm, f);
        linear("delta_out", &self.out, f);
    }
}

impl Mlp {
    fn each_part<'a>(&'a self, f: Visit<'_, 'a>) {
        self.gate.iter().for_each(|gate| linear("gate", gate, f));
        linear("up", &self.up, f);
        maybe_norm("ffn_sub_norm", &self.sub_norm, f);
        linear("down", &self.down, f);
    }

    /// Calls `f` with every weight in a fixed order.
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        self.each_part(&mut |_, weight| f(weight));
    }
}

impl Moe {
    /// Every weight that all tokens need.
    fn each_part_but_experts<'a>(&'a self, f: Visit<'_, 'a>) {
        // With norms of both results it is the layer's dense MLP (Gemma 4).
        let shared = if self.norms.is_some() { "" } else { "shared_" };
        if let Some(mlp) = &self.shared {
            mlp.each_part(&mut |name, weight| f(format_args!("{shared}{name}"), weight));
        }
        self.shared_gate.iter().for_each(|gate| linear("shared_expert_gate", gate, f));
        maybe_norm("router_scale", &self.router.norm, f);
        linear("router", &self.router.linear, f);
        maybe("selection_bias", &self.router.selection_bias, f);
        maybe("expert_scale", &self.router.expert_scale, f);
        if let Some(norms) = &self.norms {
            norm("dense_out_norm", &norms.shared_out, f);
            norm("experts_in_norm", &norms.experts_in, f);
            norm("experts_out_norm", &norms.experts_out, f);
        }
    }
}
