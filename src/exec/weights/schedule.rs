//! In which order a pass reads weights: the driver's order. Rows of embeddings are read apart, and so are experts, which
//! are known only once tokens were routed.

use crate::model::plan::{
    AltUp, Attention, FeedForward, GatedDelta, LatentAttention, Layer, Linear, Mamba2, Mixer, Mlp, Moe, Norm,
    PerLayerInput, Plan, ShortConv, Weight,
};

/// Weights that are read together, group after group.
#[derive(Default)]
struct Groups<'a>(Vec<Vec<&'a Weight>>);

/// Everything that a pass reads, whatever its tokens are.
pub fn of_plan(plan: &Plan) -> Vec<Vec<&Weight>> {
    let mut groups = Groups::default();
    if let Some(inputs) = &plan.per_layer_inputs {
        groups.linear(&inputs.projection);
        groups.norm(&inputs.norm);
    }
    let altup = plan.altup.as_ref();
    altup.iter().flat_map(|ends| &ends.projections).for_each(|l| groups.linear(l));
    plan.layers.iter().for_each(|layer| groups.layer(layer));
    altup.iter().flat_map(|ends| &ends.unembed_projections).for_each(|l| groups.linear(l));
    groups.norm(&plan.norm);
    groups.linear(&plan.head.linear);
    groups.0
}

/// What an MLP reads.
pub fn of_mlp(mlp: &Mlp) -> Vec<Vec<&Weight>> {
    let mut groups = Groups::default();
    groups.mlp(mlp);
    groups.0
}

impl<'a> Groups<'a> {
    fn one(&mut self, weight: &'a Weight) {
        self.0.push(vec![weight]);
    }

    fn maybe(&mut self, weight: &'a Option<Weight>) {
        weight.iter().for_each(|weight| self.one(weight));
    }

    fn linears(&mut self, linears: &[&'a Linear]) {
        // For their means.
        self.0.push(linears.iter().filter(|linear| linear.rounds_weights()).map(|linear| &linear.weight).collect());
        self.0.push(linears.iter().map(|linear| &linear.weight).collect());
        self.0.push(linears.iter().filter_map(|linear| linear.stored_scale()).collect());
        self.0.push(linears.iter().filter_map(|linear| linear.bias.as_ref()).collect());
    }

    fn linear(&mut self, linear: &'a Linear) {
        self.linears(&[linear]);
    }

    fn norm(&mut self, norm: &'a Norm) {
        norm.each_weight(&mut |weight| self.one(weight));
    }

    fn norms(&mut self, norms: impl IntoIterator<Item = &'a Norm>) {
        norms.into_iter().for_each(|norm| self.norm(norm));
    }

    fn layer(&mut self, layer: &'a Layer) {
        let altup = layer.altup.as_deref();
        if let Some(altup) = altup {
            self.altup_router(altup);
            self.linear(&altup.prediction);
        }
        self.norms(&layer.mixer_norm);
        if let Some(altup) = altup {
            self.linear(&altup.laurel_left);
            self.linear(&altup.laurel_right);
            self.norm(&altup.laurel_norm);
        }
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(attention),
            Mixer::LatentAttention(attention) => self.latent(attention),
            Mixer::ShortConv(conv) => self.short_conv(conv),
            Mixer::Mamba2(mamba) => self.mamba2(mamba),
            Mixer::GatedDelta(delta) => self.gated_delta(delta),
        }
        self.norms(&layer.mixer_post_norm);
        self.norms(&layer.mlp_norm);
        match &layer.mlp {
            Some(FeedForward::Dense(mlp)) => self.mlp(mlp),
            Some(FeedForward::Moe(moe)) => self.moe(moe),
            None => {}
        }
        self.norms(&layer.mlp_post_norm);
        if let Some(altup) = altup {
            self.altup_router(altup);
            self.linear(&altup.correction);
            self.maybe(&altup.output_scale);
        }
        if let Some(PerLayerInput { gate, projection, norm, .. }) = &layer.per_layer_input {
            self.linear(gate);
            self.linear(projection);
            self.norm(norm);
        }
        self.maybe(&layer.scalar);
    }

    fn altup_router(&mut self, altup: &'a AltUp) {
        self.norm(&altup.router_norm);
        self.linear(&altup.router);
    }

    fn attention(&mut self, a: &'a Attention) {
        let projections: Vec<&Linear> = std::iter::once(&a.q).chain(&a.k).chain(&a.v).chain(&a.gate).collect();
        self.linears(&projections);
        self.norms(a.qk_norm.iter().flat_map(|norms| std::iter::once(&norms.q).chain(&norms.k)));
        self.norms(&a.v_norm);
        self.maybe(&a.sinks);
        self.norms(&a.sub_norm);
        self.linear(&a.o);
    }

    fn latent(&mut self, a: &'a LatentAttention) {
        if let Some((linear, norm)) = &a.q_a {
            self.linear(linear);
            self.norm(norm);
        }
        self.linear(&a.q);
        self.linear(&a.kv_a);
        self.norm(&a.kv_a_norm);
        self.linear(&a.kv_b);
        self.linear(&a.o);
    }

    fn short_conv(&mut self, m: &'a ShortConv) {
        self.linears(&[&m.b, &m.c, &m.x]);
        m.conv.each_weight(&mut |weight| self.one(weight));
        self.linear(&m.out);
    }

    fn mamba2(&mut self, m: &'a Mamba2) {
        self.linears(&[&m.z, &m.xbc, &m.dt]);
        m.conv.each_weight(&mut |weight| self.one(weight));
        self.maybe(&m.dt_bias);
        self.one(&m.a_log);
        self.maybe(&m.d);
        self.norm(&m.norm);
        self.linear(&m.out);
    }

    fn gated_delta(&mut self, d: &'a GatedDelta) {
        let further = d.decay.first().into_iter().chain(d.gate.first());
        let projections: Vec<&Linear> = [&d.q, &d.k, &d.v, &d.beta].into_iter().chain(further).collect();
        self.linears(&projections);
        d.conv.iter().for_each(|conv| conv.each_weight(&mut |weight| self.one(weight)));
        d.decay.iter().skip(1).for_each(|l| self.linear(l));
        self.maybe(&d.dt_bias);
        self.one(&d.a_log);
        d.gate.iter().skip(1).for_each(|l| self.linear(l));
        self.norm(&d.norm);
        self.linear(&d.out);
    }

    fn mlp(&mut self, mlp: &'a Mlp) {
        let projections: Vec<&Linear> = mlp.gate.iter().chain([&mlp.up]).collect();
        self.linears(&projections);
        self.norms(&mlp.sub_norm);
        self.linear(&mlp.down);
    }

    fn moe(&mut self, moe: &'a Moe) {
        self.norms(&moe.router.norm);
        self.linear(&moe.router.linear);
        self.maybe(&moe.router.selection_bias);
        self.maybe(&moe.router.expert_scale);
        moe.shared.iter().for_each(|shared| self.mlp(shared));
        moe.shared_gate.iter().for_each(|gate| self.linear(gate));
        if let Some(norms) = &moe.norms {
            self.norms([&norms.shared_out, &norms.experts_in, &norms.experts_out]);
        }
    }
}
