//! MLPs and mixtures of experts.

use super::super::contract::{Contract, Layout, Slice};
use super::super::fields::Fields;
use super::super::keys::Reported;
use super::super::plan::{Clamp, FeedForward, Groups, Linear, Mlp, Moe, MoeNorms, Router, Scoring, Weight};
use super::super::rules;
use super::super::schema;
use super::{Hyper, MAX_PIECES, Norms, Shape, needed};
use crate::ops::Activation;

/// Numbers of what follows the mixer.
pub struct FeedForwardHyper {
    activation: Activation,
    /// Per layer; empty where every layer has experts alone.
    intermediate_size: Vec<usize>,
    bias: bool,
    sub_norm: bool,
    /// Per layer: standard deviations above the mean, where there is a threshold.
    sparsity: Vec<Option<f64>>,
    moe: Option<MoeHyper>,
}

struct MoeHyper {
    /// Per layer.
    layers: Vec<bool>,
    experts: usize,
    /// Per layer.
    top_k: Vec<usize>,
    /// Per layer.
    intermediate_size: Vec<usize>,
    /// Per layer; zero where there is no shared expert.
    shared_size: Vec<usize>,
    shared_gate: bool,
    layout: ExpertsLayout,
    bias: bool,
    router_bias: bool,
    scoring: Scoring,
    selection_bias: bool,
    groups: Option<Groups>,
    norm_topk_prob: bool,
    norm_topk_eps: f64,
    routed_scaling_factor: f64,
    weights_input: bool,
    clamp: Option<Clamp>,
}

#[derive(Debug, Clone, Copy)]
struct ExpertsLayout {
    /// Nothing where the stored shape tells.
    transposed: Option<bool>,
    in_turn: bool,
}

impl FeedForwardHyper {
    /// Nothing for a family of mixers alone.
    pub fn read(
        fields: &mut Fields<'_, '_, '_>,
        shape: &Shape<'_>,
        activation: Option<Activation>,
    ) -> Result<Option<Self>, Reported> {
        let layer = &fields.pack.tensors.layer;
        let dense = ["up", "gate_up"].iter().any(|role| layer.contains_key(*role));
        if !dense && !layer.contains_key("router") {
            return Ok(None);
        }
        let activation = needed(activation, fields)?;
        let moe = MoeHyper::read(fields, shape)?;
        let all_moe =
            moe.as_ref().is_some_and(|moe| moe.layers.iter().all(|&moe| moe)) && !layer.contains_key("dense_out_norm");
        let mut intermediate_size = match (fields.field("intermediate_size"), fields.rule("intermediate_size")) {
            (_, Some(schema::AUTO_ADJUSTED)) => vec![auto_adjusted(fields)?; shape.layers],
            (_, Some(_)) => {
                let given = fields.get("intermediate_size", schema::COUNT, &super::super::keys::count)?;
                vec![given.unwrap_or(4 * shape.hidden); shape.layers]
            }
            // A key that is there is read, needed or not.
            (Some(field), None) if all_moe && !field.keys.iter().any(|key| fields.keys.has(key)) => Vec::new(),
            (None, None) if all_moe => Vec::new(),
            _ => fields.counts("intermediate_size", shape.layers)?,
        };
        if fields.flag("double_wide_shared")? {
            let shared = fields.whole("num_kv_shared_layers")?;
            let own = shape.layers.saturating_sub(shared);
            intermediate_size.iter_mut().skip(own).for_each(|size| *size *= 2);
        }
        let sparsity = match fields.numbers("activation_sparsity_pattern", shape.layers)? {
            Some(shares) => sparsity(fields, &shares)?,
            None if fields.rule("activation_sparsity_pattern").is_some() && shape.layers > 10 => {
                let shares: Vec<f64> = (0..shape.layers).map(|i| if i < 10 { 0.95 } else { 0.0 }).collect();
                sparsity(fields, &shares)?
            }
            None => vec![None; shape.layers],
        };
        let (bias, sub_norm) = (fields.flag("mlp_bias")?, fields.flag("ffn_sub_norm")?);
        Ok(Some(Self { activation, intermediate_size, bias, sub_norm, sparsity, moe }))
    }

    pub fn activation(&self) -> Activation {
        self.activation
    }

    pub fn part(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Option<FeedForward> {
        match &self.moe {
            Some(moe) if moe.layers[i] => {
                let beside = contract.names_role("dense_out_norm").then(|| self.dense(contract, i, model));
                Some(FeedForward::Moe(Box::new(moe.part(contract, i, model, self.activation, beside))))
            }
            _ => Some(FeedForward::Dense(self.dense(contract, i, model))),
        }
    }

    fn dense(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Mlp {
        let (hidden, inner, parts) = (model.hidden_size, self.intermediate_size[i], model.parts);
        let (gate, up) = if contract.names_role("gate_up") {
            let (gate, up) = parts.halves(contract, i, "gate_up", [inner, hidden], self.bias);
            (Some(gate), up)
        } else {
            let gate = contract.names_role("gate");
            let mut linear = |role| parts.linear(contract, i, role, [inner, hidden], self.bias);
            (gate.then(|| linear("gate")), linear("up"))
        };
        Mlp {
            activation: self.activation,
            gate,
            up,
            down: parts.linear(contract, i, "down", [hidden, inner], self.bias),
            clamp: None,
            sparsity: self.sparsity[i],
            sub_norm: self.sub_norm.then(|| model.norms.layer(contract, i, "ffn_sub_norm", inner)),
        }
    }
}

/// LFM2's width: see [`schema::AUTO_ADJUSTED`].
fn auto_adjusted(fields: &mut Fields<'_, '_, '_>) -> Result<usize, Reported> {
    /// transformers' default of `block_multiple_of`.
    const MULTIPLE: usize = 256;
    let size = fields.count("intermediate_size")?;
    let keys = &mut *fields.keys;
    let on = keys.flag(schema::AUTO_ADJUSTED)?.unwrap_or(true);
    let none = keys.is_null("block_ffn_dim_multiplier");
    let factor = keys.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = keys.count("block_multiple_of")?.unwrap_or(MULTIPLE);
    if !on {
        return Ok(size);
    }
    let size = 2 * size / 3;
    // Cut to a whole number, as transformers does; a float that is too large becomes the largest number.
    let scaled = if none { Some(size) } else { ((factor * size as f64) as usize).checked_next_multiple_of(multiple) };
    match scaled.filter(|&size| schema::is_count(size)) {
        Some(size) => Ok(size),
        None => {
            let message = format!("gives no usable width together with {}", schema::AUTO_ADJUSTED);
            Err(fields.wrong("intermediate_size", message))
        }
    }
}

/// From the share of a normal distribution that is to be dropped to standard deviations above its mean.
fn sparsity(fields: &mut Fields<'_, '_, '_>, shares: &[f64]) -> Result<Vec<Option<f64>>, Reported> {
    let mut all = Vec::with_capacity(shares.len());
    for &share in shares {
        all.push(match share {
            0.0 => None,
            share if share > 0.0 && share < 1.0 => Some(normal_quantile(share)),
            _ => {
                let message = format!("expected shares from 0 to less than 1, found {share}");
                return Err(fields.wrong("activation_sparsity_pattern", message));
            }
        });
    }
    Ok(all)
}

/// The x below which a standard normal variable lies with probability `p`: Newton's method on its distribution function,
/// `erfc(-x / sqrt(2)) / 2`.
fn normal_quantile(p: f64) -> f64 {
    let mut x = 0.0f64;
    for _ in 0..100 {
        let below = 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let density = libm::exp(-0.5 * x * x) / (2.0 * std::f64::consts::PI).sqrt();
        let step = (below - p) / density;
        x -= step.clamp(-1.0, 1.0);
        if step.abs() < 1e-15 {
            break;
        }
    }
    x
}

impl MoeHyper {
    fn read(fields: &mut Fields<'_, '_, '_>, shape: &Shape<'_>) -> Result<Option<Self>, Reported> {
        if !fields.pack.tensors.layer.contains_key("router") {
            return Ok(None);
        }
        let n = shape.layers;
        let experts = fields.some_count("num_experts")?;
        let layers = rules::moe_layers(fields, n)?;
        let most = MAX_PIECES / layers.iter().filter(|&&moe| moe).count().max(1);
        let most = most.min(fields.stored.largest);
        if let Some(experts) = experts.filter(|&experts| experts > most) {
            return Err(fields.wrong("num_experts", format!("expected at most {most} in each layer, found {experts}")));
        }
        let switched = fields.rule("moe_layers") == Some(rules::ENABLED);
        if switched && !layers.contains(&true) {
            fields.read_all_of(&["num_experts_per_tok", "moe_intermediate_size"]);
            return Ok(None);
        }
        let Some(experts) = experts else {
            if switched {
                fields.count("num_experts")?;
            }
            if fields.field("num_experts").is_some_and(|field| field.default.is_some() || field.keys.len() > 1)
                || layers.iter().all(|&moe| moe)
            {
                fields.read_all_of(&["num_experts_per_tok", "moe_intermediate_size"]);
                return Ok(None);
            }
            fields.count("num_experts")?;
            return Ok(None);
        };
        let top_k = fields.counts("num_experts_per_tok", n)?;
        if let Some(k) = top_k.iter().find(|&&k| k > experts) {
            let message = format!("expected at most the number of experts ({experts}), found {k}");
            return Err(fields.wrong("num_experts_per_tok", message));
        }
        let intermediate_size = fields.counts("moe_intermediate_size", n)?;
        let shared_size = match fields.field("shared_intermediate_size") {
            Some(_) => fields.counts_or_zero("shared_intermediate_size", n)?,
            None => {
                let shared = fields.counts_or_zero("n_shared_experts", n)?;
                intermediate_size.iter().zip(shared).map(|(size, count)| size * count).collect()
            }
        };
        let layout = fields.choice("experts_layout")?.unwrap_or_else(|| "out, in".to_owned());
        let transposed = (layout != "in, out or out, in").then_some(layout != "out, in");
        let layout = ExpertsLayout { transposed, in_turn: layout == "in, out in turn" };
        let scoring = match fields.choice("scoring_func")?.as_deref() {
            Some("sigmoid") => Scoring::Sigmoid,
            Some("softmax of chosen") => Scoring::SoftmaxOfChosen,
            _ => Scoring::Softmax,
        };
        let (n_group, topk_group) = (fields.some_count("n_group")?, fields.some_count("topk_group")?);
        let sum_of_two = fields.flag("group_sum_of_two")?;
        let limited = fields.group_limited()?;
        let groups = match n_group.filter(|&groups| groups > 1 && limited) {
            Some(n_group) => {
                let topk_group = topk_group.unwrap_or(n_group);
                if !experts.is_multiple_of(n_group) || topk_group > n_group || sum_of_two && experts / n_group < 2 {
                    let two = if sum_of_two { ", with at least two experts in each group" } else { "" };
                    let message = format!(
                        "expected a divisor of the number of experts ({experts}) and at least topk_group ({topk_group}){two}, found {n_group}"
                    );
                    return Err(fields.wrong("n_group", message));
                }
                if let Some(k) = top_k.iter().find(|&&k| k > topk_group * (experts / n_group)) {
                    let message = format!("{topk_group} groups of {} experts can't give {k}", experts / n_group);
                    return Err(fields.wrong("topk_group", message));
                }
                Some(Groups { n_group, topk_group, sum_of_two })
            }
            None => None,
        };
        let (limit, alpha) = (fields.positive("swiglu_limit")?, fields.positive("swiglu_alpha")?);
        let clamp = limit.map(|limit| Clamp { alpha: alpha.unwrap_or(1.0), limit });
        Ok(Some(Self {
            layers,
            experts,
            top_k,
            intermediate_size,
            shared_size,
            shared_gate: fields.flag("shared_expert_gate")?,
            layout,
            bias: fields.flag("experts_bias")?,
            router_bias: fields.flag("router_bias")?,
            scoring,
            selection_bias: fields.flag("selection_bias")?,
            groups,
            norm_topk_prob: fields.flag("norm_topk_prob")?,
            norm_topk_eps: fields.number("norm_topk_eps")?.unwrap_or(0.0),
            routed_scaling_factor: fields.factor("routed_scaling_factor")?,
            weights_input: fields.flag("weights_input")?,
            clamp,
        }))
    }

    /// `beside` is a dense MLP that takes the shared expert's place (Gemma 4).
    fn part(
        &self,
        contract: &mut Contract<'_>,
        i: usize,
        model: &Hyper,
        activation: Activation,
        beside: Option<Mlp>,
    ) -> Moe {
        let hidden = model.hidden_size;
        let router = self.router(contract, i, model);
        let norms = beside.is_some().then(|| MoeNorms {
            experts_in: model.norms.layer(contract, i, "experts_in_norm", hidden),
            experts_out: model.norms.layer(contract, i, "experts_out_norm", hidden),
            shared_out: model.norms.layer(contract, i, "dense_out_norm", hidden),
        });
        let here = |role| contract.layer_name(i, role, &[]).is_some_and(|name| contract.has(&name));
        let fused = contract.names_role("experts_gate_up")
            && (!contract.names_role("expert_gate") || here("experts_gate_up") || here("experts_down"));
        let experts = (0..self.experts).map(|e| {
            if fused {
                self.fused(contract, i, e, model, activation)
            } else {
                self.single(contract, i, e, model, activation)
            }
        });
        let experts = experts.collect();
        let shared = match (beside, self.shared_size[i]) {
            (Some(beside), _) => Some(beside),
            (None, 0) => None,
            (None, size) => Some(self.shared(contract, i, size, model, activation)),
        };
        let gate = self.shared_gate && shared.is_some();
        let shared_gate = gate.then(|| model.parts.linear(contract, i, "shared_expert_gate", [1, hidden], false));
        Moe { router, experts, shared, shared_gate, norms }
    }

    fn router(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Router {
        let hidden = model.hidden_size;
        let scaled = contract.names_role("router_scale");
        let norm = scaled.then(|| {
            let scale = contract.layer(i, "router_scale", &[hidden]);
            Norms::plain(model.norms.eps).of(Some(scale), None, hidden)
        });
        let own = |contract: &mut Contract<'_>, role: &str| contract.layer(i, role, &[self.experts]);
        Router {
            linear: model.parts.linear(contract, i, "router", [self.experts, hidden], self.router_bias),
            norm,
            input_scale: if scaled { 1.0 / (hidden as f64).sqrt() } else { 1.0 },
            scoring: self.scoring,
            num_experts_per_tok: self.top_k[i],
            selection_bias: self.selection_bias.then(|| own(contract, "selection_bias")),
            selection_bias_weighs: false,
            groups: self.groups.clone(),
            norm_topk_prob: self.norm_topk_prob,
            norm_topk_eps: self.norm_topk_eps,
            routed_scaling_factor: self.routed_scaling_factor,
            expert_scale: contract.names_role("expert_scale").then(|| own(contract, "expert_scale")),
            weights_input: self.weights_input,
        }
    }

    fn mlp(&self, activation: Activation, gate: Linear, up: Linear, down: Linear) -> Mlp {
        Mlp { activation, gate: Some(gate), up, down, clamp: self.clamp.clone(), sparsity: None, sub_norm: None }
    }

    /// An expert whose matrices are tensors of their own.
    fn single(&self, contract: &mut Contract<'_>, i: usize, e: usize, model: &Hyper, activation: Activation) -> Mlp {
        let (hidden, inner) = (model.hidden_size, self.intermediate_size[i]);
        let mut linear = |role: &str, shape: [usize; 2]| {
            let mark = [("{expert}", e)];
            let weight = contract.layer_marked(i, role, &mark, &shape);
            let bias = self.bias.then(|| contract.layer_marked(i, &format!("{role}_bias"), &mark, &shape[..1]));
            Linear::new(weight, bias)
        };
        let (gate, up) = (linear("expert_gate", [inner, hidden]), linear("expert_up", [inner, hidden]));
        let down = linear("expert_down", [hidden, inner]);
        self.mlp(activation, gate, up, down)
    }

    /// An expert in tensors that hold all of them.
    fn fused(&self, contract: &mut Contract<'_>, i: usize, e: usize, model: &Hyper, activation: Activation) -> Mlp {
        let (hidden, inner) = (model.hidden_size, self.intermediate_size[i]);
        let transposed = self.layout.transposed.unwrap_or_else(|| {
            let stored = |role, shape: [usize; 2]| {
                let shape = [self.experts, shape[0], shape[1]];
                contract.layer_name(i, role, &[]).is_some_and(|name| contract.shape(&name) == Some(&shape))
            };
            let square = inner == hidden;
            !(if square {
                stored("experts_gate_up", [2 * inner, hidden])
            } else {
                stored("experts_down", [hidden, inner])
            })
        });
        let mut linear = |role: &str, shape: [usize; 2], slice: Option<Slice>| {
            let layout = Layout { slice, expert: Some((e, self.experts)), transposed };
            let weight: Weight = contract.part(i, role, &shape, layout);
            let layout = Layout { transposed: false, ..layout };
            let bias = self.bias.then(|| contract.part(i, &format!("{role}_bias"), &shape[..1], layout));
            Linear::new(weight, bias)
        };
        let half = |second: usize| {
            Some(if self.layout.in_turn {
                Slice { of: 2 * inner, first: second, block: 1, stride: 2 }
            } else {
                Slice::run(2 * inner, second * inner, inner)
            })
        };
        let (gate, up) =
            (linear("experts_gate_up", [inner, hidden], half(0)), linear("experts_gate_up", [inner, hidden], half(1)));
        let down = linear("experts_down", [hidden, inner], None);
        self.mlp(activation, gate, up, down)
    }

    fn shared(&self, contract: &mut Contract<'_>, i: usize, size: usize, model: &Hyper, activation: Activation) -> Mlp {
        let (hidden, parts) = (model.hidden_size, model.parts);
        let (gate, up) = if contract.names_role("shared_gate_up") {
            parts.halves(contract, i, "shared_gate_up", [size, hidden], false)
        } else {
            let mut linear = |role| parts.linear(contract, i, role, [size, hidden], false);
            (linear("shared_gate"), linear("shared_up"))
        };
        let down = parts.linear(contract, i, "shared_down", [hidden, size], false);
        Mlp { activation, gate: Some(gate), up, down, clamp: None, sparsity: None, sub_norm: None }
    }
}

#[cfg(test)]
mod tests {
    use super::normal_quantile;

    /// From tables of the normal distribution, to ten digits.
    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, x) in [(0.5, 0.0), (0.95, 1.644_853_626_951_472_7), (0.6, 0.253_347_103_135_799_7)] {
            assert!((normal_quantile(p) - x).abs() < 1e-14, "{p}");
        }
        assert!((normal_quantile(0.95) - 1.6449).abs() > 1e-6);
    }
}
