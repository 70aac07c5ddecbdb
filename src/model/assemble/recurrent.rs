//! Convolutions and recurrences.

use super::super::contract::{Contract, Slice};
use super::super::fields::Fields;
use super::super::keys::Reported;
use super::super::plan::{CausalConv, GatedDelta, Linear, Mamba2, ShortConv};
use super::super::rules::LayerType;
use super::super::schema;
use super::{Hyper, Norms, Shape};
use crate::ops::Activation;

/// Numbers of the mixers that are not attention.
pub struct RecurrentHyper {
    conv_kernel: usize,
    conv_bias: bool,
    proj_bias: bool,
    /// Value heads of the delta rule, heads of Mamba.
    heads: usize,
    key_heads: usize,
    head_dim: usize,
    key_dim: usize,
    state_size: usize,
    groups: usize,
    time_step_limit: (f64, f64),
    norm_group: Option<usize>,
    activation: Activation,
    gate_activation: Activation,
}

impl RecurrentHyper {
    pub fn read(fields: &mut Fields<'_, '_, '_>, shape: &Shape<'_>) -> Result<Self, Reported> {
        let has = |kind| shape.types.contains(&kind);
        let (delta, mamba) = (has(LayerType::Linear), has(LayerType::Mamba));
        let any = delta || mamba || has(LayerType::Conv);
        if !any {
            // A hybrid's keys may stand in the config of a model without such layers.
            fields.read_all_of(&RECURRENT);
        }
        let count = |fields: &mut Fields<'_, '_, '_>, name: &str, wanted: bool| {
            if wanted { fields.count(name) } else { Ok(0) }
        };
        let conv_kernel = count(fields, "conv_kernel", any)?;
        let heads = count(fields, "state_heads", delta || mamba)?;
        let head_dim = match fields.rule("state_head_dim") {
            Some(_) if mamba => expanded(fields, shape.hidden, heads)?,
            _ => count(fields, "state_head_dim", delta || mamba)?,
        };
        let (key_heads, key_dim) = (count(fields, "state_key_heads", delta)?, count(fields, "state_key_dim", delta)?);
        if delta && !heads.is_multiple_of(key_heads) {
            let message = format!("expected a divisor of the number of value heads ({heads}), found {key_heads}");
            return Err(fields.wrong("state_key_heads", message));
        }
        let (state_size, groups) = (count(fields, "state_size", mamba)?, count(fields, "state_groups", mamba)?);
        if mamba && !heads.is_multiple_of(groups) {
            let message = format!("expected a divisor of the number of heads ({heads}), found {groups}");
            return Err(fields.wrong("state_groups", message));
        }
        let inner = heads * head_dim;
        if let Some(expand) = fields.get("expand", schema::COUNT, &super::super::keys::count)?
            && mamba
            && expand * shape.hidden != inner
        {
            let message =
                format!("expected what gives heads times head_dim ({inner}) with hidden_size, found {expand}");
            return Err(fields.wrong("expand", message));
        }
        let (low, high) = time_step_limit(fields)?;
        let activation = match fields.field("conv_act") {
            Some(_) => fields.activation("conv_act")?,
            None => Activation::Silu,
        };
        let gate_activation = match fields.field("gate_act") {
            Some(_) => fields.activation("gate_act")?,
            None => Activation::Silu,
        };
        Ok(Self {
            conv_kernel,
            conv_bias: fields.flag("conv_bias")?,
            proj_bias: fields.flag("proj_bias")?,
            heads,
            key_heads,
            head_dim,
            key_dim,
            state_size,
            groups,
            time_step_limit: (low, high),
            norm_group: fields.some_count("state_norm_groups")?,
            activation,
            gate_activation,
        })
    }

    /// A depthwise convolution, stored as `[channels, 1, kernel]`.
    fn conv(&self, contract: &mut Contract<'_>, i: usize, role: &str, channels: usize, silent: bool) -> CausalConv {
        let kernel = self.conv_kernel;
        let weight = contract.reshaped(i, role, &[channels, kernel], &[channels, 1, kernel]);
        let bias = self.conv_bias.then(|| contract.layer(i, &format!("{role}_bias"), &[channels]));
        CausalConv { weight, bias, activation: (!silent).then_some(self.activation) }
    }

    pub fn short_conv(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> ShortConv {
        let (hidden, parts) = (model.hidden_size, model.parts);
        let mut third = |n: usize| {
            let slice = Some(Slice::run(3 * hidden, n * hidden, hidden));
            parts.slice(contract, i, "conv_in", [hidden, hidden], self.conv_bias, slice)
        };
        let (b, c, x) = (third(0), third(1), third(2));
        ShortConv {
            b,
            c,
            x,
            conv: self.conv(contract, i, "conv", hidden, true),
            out: parts.linear(contract, i, "conv_out", [hidden, hidden], self.conv_bias),
        }
    }

    pub fn mamba(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Mamba2 {
        let (hidden, parts, heads) = (model.hidden_size, model.parts, self.heads);
        let inner = heads * self.head_dim;
        let channels = inner + 2 * self.groups * self.state_size;
        let of = inner + channels + heads;
        let mut slice = |first, rows| {
            parts.slice(contract, i, "mamba_in", [rows, hidden], self.proj_bias, Some(Slice::run(of, first, rows)))
        };
        let (z, xbc, dt) = (slice(0, inner), slice(inner, channels), slice(inner + channels, heads));
        let weight = contract.layer(i, "mamba_norm", &[inner]);
        let mut own = |role| contract.layer(i, role, &[heads]);
        let (dt_bias, a_log, d) = (own("mamba_dt_bias"), own("mamba_a_log"), own("mamba_d"));
        Mamba2 {
            num_heads: heads,
            head_dim: self.head_dim,
            n_groups: self.groups,
            state_size: self.state_size,
            time_step_limit: self.time_step_limit,
            z,
            xbc,
            dt,
            conv: self.conv(contract, i, "mamba_conv", channels, false),
            dt_bias: Some(dt_bias),
            a_log,
            d: Some(d),
            norm_before_gate: false,
            norm: Norms::plain(model.norms.eps).of(Some(weight), None, inner / self.norm_group.unwrap_or(1)),
            out: parts.linear(contract, i, "mamba_out", [hidden, inner], self.proj_bias),
        }
    }

    pub fn delta(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> GatedDelta {
        let (hidden, parts) = (model.hidden_size, model.parts);
        let (k_heads, v_heads) = (self.key_heads, self.heads);
        let (k_rows, v_rows) = (k_heads * self.key_dim, v_heads * self.head_dim);
        let group = v_heads / k_heads;
        let (kimi, fused) = (contract.names_role("delta_f_a"), contract.names_role("delta_qkvz"));
        let mut linear = |role: &str, rows: usize, slice: Option<Slice>| {
            parts.slice(contract, i, role, [rows, hidden], false, slice)
        };
        let (q, k, v, gate, beta, decay);
        if kimi {
            (q, k, v) =
                (linear("delta_q", k_rows, None), linear("delta_k", k_rows, None), linear("delta_v", v_rows, None));
            beta = linear("delta_b", v_heads, None);
            let mut chain = |a: &str, b: &str, rows: usize| -> Vec<Linear> {
                let first = parts.linear(contract, i, a, [self.head_dim, hidden], false);
                vec![first, parts.linear(contract, i, b, [rows, self.head_dim], false)]
            };
            decay = chain("delta_f_a", "delta_f_b", k_heads * self.key_dim);
            gate = chain("delta_g_a", "delta_g_b", v_rows);
        } else if fused {
            // For each key head its query, its key, its value heads and their gates.
            let (dk, dv) = (self.key_dim, group * self.head_dim);
            let stride = 2 * dk + 2 * dv;
            let slice = |first, block| Some(Slice { of: k_heads * stride, first, block, stride });
            q = linear("delta_qkvz", k_rows, slice(0, dk));
            k = linear("delta_qkvz", k_rows, slice(dk, dk));
            v = linear("delta_qkvz", v_rows, slice(2 * dk, dv));
            gate = vec![linear("delta_qkvz", v_rows, slice(2 * dk + dv, dv))];
            let slice = |first| Some(Slice { of: 2 * v_heads, first, block: group, stride: 2 * group });
            beta = linear("delta_ba", v_heads, slice(0));
            decay = vec![linear("delta_ba", v_heads, slice(group))];
        } else {
            let of = 2 * k_rows + v_rows;
            q = linear("delta_qkv", k_rows, Some(Slice::run(of, 0, k_rows)));
            k = linear("delta_qkv", k_rows, Some(Slice::run(of, k_rows, k_rows)));
            v = linear("delta_qkv", v_rows, Some(Slice::run(of, 2 * k_rows, v_rows)));
            gate = vec![linear("delta_z", v_rows, None)];
            beta = linear("delta_b", v_heads, None);
            decay = vec![linear("delta_a", v_heads, None)];
        }
        let conv = if kimi {
            let parts = [("delta_q_conv", k_rows), ("delta_k_conv", k_rows), ("delta_v_conv", v_rows)];
            parts.into_iter().map(|(role, rows)| self.conv(contract, i, role, rows, false)).collect()
        } else {
            vec![self.conv(contract, i, "delta_conv", 2 * k_rows + v_rows, false)]
        };
        let decays = if kimi { k_rows } else { v_heads };
        let a_log = if kimi {
            contract.reshaped(i, "delta_a_log", &[v_heads], &[1, 1, v_heads, 1])
        } else {
            contract.layer(i, "delta_a_log", &[v_heads])
        };
        let weight = contract.layer(i, "delta_norm", &[self.head_dim]);
        GatedDelta {
            num_k_heads: k_heads,
            num_v_heads: v_heads,
            head_k_dim: self.key_dim,
            head_v_dim: self.head_dim,
            q,
            k,
            v,
            conv,
            beta,
            decay,
            qk_l2_norm_eps: Some(QK_L2_NORM_EPS),
            dt_bias: Some(contract.layer(i, "delta_dt_bias", &[decays])),
            a_log,
            gate,
            gate_activation: self.gate_activation,
            norm: Norms::plain(model.norms.eps).of(Some(weight), None, self.head_dim),
            out: parts.linear(contract, i, "delta_out", [hidden, v_rows], false),
        }
    }
}

/// Of the queries' and keys' norm in every model with a gated delta rule; no config says it.
const QK_L2_NORM_EPS: f64 = 1e-6;

/// The fields that are read for layers of these mixers alone.
const RECURRENT: [&str; 7] =
    ["conv_kernel", "state_heads", "state_key_heads", "state_head_dim", "state_key_dim", "state_size", "state_groups"];

/// See [`schema::EXPANDED`].
fn expanded(fields: &mut Fields<'_, '_, '_>, hidden: usize, heads: usize) -> Result<usize, Reported> {
    let expected = format!("{}, or auto", schema::COUNT);
    let given = fields.get("state_head_dim", &expected, &|value| {
        let auto = value.as_str() == Some("auto");
        super::super::keys::count(value).map(Some).or(auto.then_some(None))
    })?;
    let inner = fields.count("expand")? * hidden;
    match given.flatten() {
        Some(dim) => Ok(dim),
        None if inner.is_multiple_of(heads) => Ok(inner / heads),
        None => {
            let message = format!("heads ({heads}) of {inner} columns have no common width");
            Err(fields.wrong("state_head_dim", message))
        }
    }
}

/// Mamba-2's `time_step_limit`: any step above the lower end where the upper one is infinite.
fn time_step_limit(fields: &mut Fields<'_, '_, '_>) -> Result<(f64, f64), Reported> {
    let expected = "a list of two ascending numbers, the second of which may be Infinity";
    let limit = fields.get("time_step_limit", expected, &|value| {
        let [low, high] = value.as_array()?.as_slice() else { return None };
        let high = match high.as_f64() {
            Some(high) => high,
            None if ["inf", "Infinity"].contains(&high.as_str()?) => f64::INFINITY,
            None => return None,
        };
        schema::number(low).filter(|low| *low <= high).map(|low| (low, high))
    })?;
    Ok(limit.unwrap_or((0.0, f64::INFINITY)))
}
