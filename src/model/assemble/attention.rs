//! Attention, latent attention, and their rotary tables.

use super::super::contract::{Contract, Slice};
use super::super::fields::Fields;
use super::super::keys::{Found, Keys, Reported, positive};
use super::super::plan::{Attention, LatentAttention, Mixer, Norm, QkNorm, Temperature, Weight};
use super::super::rope::{self, Expected, Flat, Table};
use super::super::rules::{self, LayerType};
use super::super::schema;
use super::{Hyper, MAX_PIECES, Norms, Shape};
use crate::ops::attention::AttentionSpec;

/// Columns of a head: of most layers, and of those of full attention where they differ.
#[derive(Debug, Clone, Copy)]
pub struct HeadDims {
    pub head_dim: usize,
    pub full_head_dim: usize,
}

/// Numbers of attention.
pub struct AttentionHyper {
    heads: usize,
    kv_heads: usize,
    full_kv_heads: usize,
    dims: HeadDims,
    qkv_bias: bool,
    o_bias: bool,
    by_kv_head: bool,
    /// Per layer.
    scales: Vec<f64>,
    softcap: Option<f64>,
    windows: Vec<Option<usize>>,
    chunk: Option<usize>,
    qk_norm: Option<QkNormHyper>,
    v_norm: bool,
    k_eq_v: bool,
    /// Per layer: the layer whose keys and values it reads.
    kv_layers: Vec<Option<usize>>,
    gate: bool,
    sinks: bool,
    clip: Option<f64>,
    temperature: Vec<Option<Temperature>>,
    sub_norm: bool,
    /// Per layer: the table.
    ropes: Vec<Option<usize>>,
    latent: Option<LatentHyper>,
}

/// A norm for each head, each a tensor of its own.
const OWN_TENSORS: &str = "head, own tensors";

struct QkNormHyper {
    norms: Norms,
    over: String,
    after_rope: bool,
    /// Only layers with RoPE have one.
    on_rope_layers: bool,
}

struct LatentHyper {
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    nope: usize,
    rope: usize,
    v_head_dim: usize,
    eps: f64,
    /// Of `q_a`, `kv_a` and `o`.
    bias: bool,
}

/// Query heads and key/value heads.
pub fn heads(fields: &mut Fields<'_, '_, '_>) -> Result<(usize, usize), Reported> {
    let heads = fields.count("num_attention_heads");
    let kv = match fields.rule("num_key_value_heads") {
        Some(_) => multi_query(fields, heads),
        None => fields.count("num_key_value_heads"),
    };
    let (heads, kv) = (heads?, kv?);
    if heads.is_multiple_of(kv) {
        return Ok((heads, kv));
    }
    let message = format!("expected a divisor of num_attention_heads ({heads}), found {kv}");
    Err(fields.wrong("num_key_value_heads", message))
}

/// See [`schema::MULTI_QUERY`].
fn multi_query(fields: &mut Fields<'_, '_, '_>, heads: Result<usize, Reported>) -> Result<usize, Reported> {
    let new = super::new_decoder(fields);
    let one = fields.keys.flag("multi_query");
    let given = fields.get("num_key_value_heads", schema::COUNT, &super::super::keys::count);
    let (new, one, given, heads) = (new?, one?.unwrap_or(true), given?, heads?);
    Ok(match (new, one) {
        (true, _) => given.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    })
}

pub fn head_dims(fields: &mut Fields<'_, '_, '_>, hidden: usize, heads: usize) -> Result<HeadDims, Reported> {
    let given = match fields.field("head_dim") {
        // Latent attention has no single width.
        None => return Ok(HeadDims { head_dim: 0, full_head_dim: 0 }),
        Some(field) if field.rule.is_some() => {
            let null = field.keys.iter().any(|key| fields.keys.is_null(key));
            fields.get("head_dim", schema::COUNT, &super::super::keys::count)?.filter(|_| !null)
        }
        Some(_) => Some(fields.count("head_dim")?),
    };
    let head_dim = match given {
        Some(dim) => dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let key = fields.key("head_dim");
            let message =
                format!("missing, and hidden_size ({hidden}) is not a multiple of num_attention_heads ({heads})");
            return Err(fields.keys.report("config-key-missing", &key, message));
        }
    };
    // Where layers rotate or don't, the table says it.
    let rotates_all = fields.field("rope").is_some()
        && ["partial_rotary_factor", "rope_layers"].iter().all(|name| fields.field(name).is_none());
    if rotates_all && !head_dim.is_multiple_of(2) {
        let message = format!("RoPE rotates pairs: expected an even head dimension, found {head_dim}");
        return Err(fields.wrong("head_dim", message));
    }
    let full_head_dim = fields.some_count("full_head_dim")?.unwrap_or(head_dim);
    Ok(HeadDims { head_dim, full_head_dim })
}

impl AttentionHyper {
    pub fn read(
        fields: &mut Fields<'_, '_, '_>,
        shape: &Shape<'_>,
        (heads, kv_heads): (usize, usize),
        dims: HeadDims,
    ) -> Result<(Vec<Table>, Self), Reported> {
        let latent = LatentHyper::read(fields)?;
        let mut dims = match &latent {
            Some(l) => HeadDims { head_dim: l.nope + l.rope, full_head_dim: l.nope + l.rope },
            None => dims,
        };
        if latent.is_some() && kv_heads != heads {
            let message = format!("latent attention has a key for each of {heads} heads, found {kv_heads}");
            return Err(fields.wrong("num_key_value_heads", message));
        }
        let k_eq_v = fields.flag("attention_k_eq_v")?;
        let full_kv_heads = match per_layer_config(fields, shape.types)? {
            Some((head_dim, kv)) => {
                fields.read_all_of(&["full_num_key_value_heads"]);
                dims.full_head_dim = head_dim.unwrap_or(dims.head_dim);
                kv.unwrap_or(kv_heads)
            }
            // It is there for layers whose values are their keys, and counts on no others.
            None => fields.some_count("full_num_key_value_heads")?.filter(|_| k_eq_v).unwrap_or(kv_heads),
        };
        if !heads.is_multiple_of(full_kv_heads) {
            let message = format!("expected a divisor of num_attention_heads ({heads}), found {full_kv_heads}");
            return Err(fields.wrong("full_num_key_value_heads", message));
        }
        let rope_layers = rules::rope_layers(fields, shape.types)?;
        let windows = rules::windows(fields, shape.types, &rope_layers)?;
        let (tables, ropes) = tables(fields, shape, dims, latent.as_ref(), &rope_layers, &windows)?;
        let mscale = match fields.flag("mscale_in_scale")? {
            true => tables.first().map_or(1.0, |table| table.mscale),
            false => 1.0,
        };
        let scales = scales(fields, shape, dims, mscale)?;
        let temperature = temperatures(fields, &rope_layers, &tables)?;
        let qk_norm = QkNormHyper::read(fields)?;
        let most = MAX_PIECES / shape.layers;
        if heads > most && qk_norm.as_ref().is_some_and(|norm| norm.over == OWN_TENSORS) {
            let message = format!("expected at most {most} with norms of their own in each layer, found {heads}");
            return Err(fields.wrong("num_attention_heads", message));
        }
        let hyper = Self {
            heads,
            kv_heads,
            full_kv_heads,
            dims,
            qkv_bias: fields.flag("qkv_bias")?,
            o_bias: fields.flag("o_bias")?,
            by_kv_head: fields.choice("qkv_layout")?.as_deref() == Some("by key/value head"),
            scales,
            softcap: fields.positive("attn_logit_softcapping")?,
            windows,
            chunk: fields.some_count("attention_chunk_size")?,
            qk_norm,
            v_norm: fields.flag("v_norm")?,
            k_eq_v,
            kv_layers: kv_layers(fields, shape)?,
            gate: fields.flag("attn_output_gate")?,
            sinks: fields.flag("sinks")?,
            clip: fields.positive("clip_qkv")?,
            temperature,
            sub_norm: fields.flag("attn_sub_norm")?,
            ropes,
            latent,
        };
        for (i, kind) in shape.types.iter().enumerate() {
            let lacks = match kind {
                LayerType::Sliding if hyper.windows[i].is_none() => "sliding_attention, and there is no window",
                LayerType::Chunked if hyper.chunk.is_none() => {
                    "chunked_attention, and there is no attention_chunk_size"
                }
                _ => continue,
            };
            return Err(fields.wrong("layer_types", format!("layer {i} is {lacks}")));
        }
        Ok((tables, hyper))
    }

    fn spec(&self, i: usize, model: &Hyper) -> AttentionSpec {
        let full = model.types[i] == LayerType::Full;
        let (kv_heads, head_dim) =
            if full { (self.full_kv_heads, self.dims.full_head_dim) } else { (self.kv_heads, self.dims.head_dim) };
        AttentionSpec {
            scale: self.scales[i],
            sliding_window: self.windows[i],
            attention_chunk_size: self.chunk.filter(|_| model.types[i] == LayerType::Chunked),
            attn_logit_softcapping: self.softcap,
            ..AttentionSpec::new(self.heads, kv_heads, head_dim)
        }
    }

    pub fn mixer(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Mixer {
        if let Some(latent) = &self.latent {
            return Mixer::LatentAttention(self.latent(contract, i, model, latent));
        }
        let (hidden, parts, bias) = (model.hidden_size, model.parts, self.qkv_bias);
        let spec = self.spec(i, model);
        let (dim, heads, kv_heads) = (spec.head_dim, self.heads, spec.num_key_value_heads);
        let (q_rows, kv_rows) = (heads * dim, kv_heads * dim);
        let shares = self.kv_layers[i].is_some();
        let k_is_v = self.k_eq_v && model.types[i] == LayerType::Full;
        let (q, k, v, gate);
        if contract.names_role("qkv") {
            let mut part = |(rows, slice)| parts.slice(contract, i, "qkv", [rows, hidden], bias, Some(slice));
            let [of_q, of_k, of_v] = fused(self.by_kv_head, heads, kv_heads, dim);
            (q, k, v, gate) = (part(of_q), Some(part(of_k)), Some(part(of_v)), None);
        } else {
            (q, gate) = if self.gate {
                // Head by head the query, then its gate.
                let part = |first| Some(Slice { of: 2 * q_rows, first, block: dim, stride: 2 * dim });
                let mut linear = |slice| parts.slice(contract, i, "q", [q_rows, hidden], bias, slice);
                (linear(part(0)), Some(linear(part(dim))))
            } else {
                (parts.linear(contract, i, "q", [q_rows, hidden], bias), None)
            };
            let mut linear = |role| parts.linear(contract, i, role, [kv_rows, hidden], bias);
            k = (!shares).then(|| linear("k"));
            v = (!shares && !k_is_v).then(|| linear("v"));
        }
        let rope = self.ropes[i];
        let qk_norm = self.qk_norm.as_ref().filter(|n| !n.on_rope_layers || rope.is_some());
        Mixer::Attention(Attention {
            rope,
            q,
            k,
            v,
            o: parts.linear(contract, i, "o", [hidden, q_rows], self.o_bias),
            qk_norm: qk_norm.map(|norms| QkNorm {
                q: norms.norm(contract, i, "q_norm", heads, dim),
                k: (!shares).then(|| norms.norm(contract, i, "k_norm", kv_heads, dim)),
                after_rope: norms.after_rope,
            }),
            v_norm: (self.v_norm && !shares).then(|| Norms::plain(model.norms.eps).of(None, None, dim)),
            kv_layer: self.kv_layers[i],
            gate,
            sinks: self.sinks.then(|| contract.layer(i, "sinks", &[heads])),
            clip: self.clip,
            temperature: self.temperature[i].clone(),
            sub_norm: self.sub_norm.then(|| model.norms.layer(contract, i, "attn_sub_norm", q_rows)),
            spec,
        })
    }

    fn latent(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper, latent: &LatentHyper) -> LatentAttention {
        let (hidden, parts) = (model.hidden_size, model.parts);
        let LatentHyper { nope, rope, v_head_dim, kv_lora_rank, bias, .. } = *latent;
        let norms = Norms::plain(latent.eps);
        let rows = self.heads * (nope + rope);
        let (q_a, q) = match latent.q_lora_rank {
            Some(rank) => {
                let q_a = parts.linear(contract, i, "q_a", [rank, hidden], bias);
                let norm = norms.layer(contract, i, "q_a_norm", rank);
                (Some((q_a, norm)), parts.linear(contract, i, "q_b", [rows, rank], false))
            }
            None => (None, parts.linear(contract, i, "q", [rows, hidden], false)),
        };
        LatentAttention {
            spec: AttentionSpec { v_head_dim: Some(v_head_dim), ..self.spec(i, model) },
            rope: self.ropes[i],
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rope,
            q_a,
            q,
            kv_a: parts.linear(contract, i, "kv_a", [kv_lora_rank + rope, hidden], bias),
            kv_a_norm: norms.layer(contract, i, "kv_a_norm", kv_lora_rank),
            kv_b: parts.linear(contract, i, "kv_b", [self.heads * (nope + v_head_dim), kv_lora_rank], false),
            o: parts.linear(contract, i, "o", [hidden, self.heads * v_head_dim], bias),
            temperature: self.temperature[i].clone(),
        }
    }
}

/// `head_dim` and `num_key_value_heads` of the layers of full attention, where they differ.
type FullLayers = (Option<usize>, Option<usize>);

/// `per_layer_config`: `head_dim` and `num_key_value_heads` of the layers of full attention, which must be the same for all
/// of them.
fn per_layer_config(fields: &mut Fields<'_, '_, '_>, types: &[LayerType]) -> Found<FullLayers> {
    const KEYS: [&str; 2] = ["head_dim", "num_key_value_heads"];
    if fields.rule("full_head_dim") != Some(schema::PER_LAYER_CONFIG) {
        return Ok(None);
    }
    let expected = "head_dim and num_key_value_heads, the same for exactly the layers of full attention";
    fields.keys.read(schema::PER_LAYER_CONFIG, expected, |value| {
        let map = value.as_object()?;
        let sound = |layer: &serde_json::Value| {
            let layer = layer.as_object()?;
            let known = layer.keys().all(|key| KEYS.contains(&key.as_str()));
            let [dim, kv] = KEYS.map(|key| layer.get(key).map(super::super::keys::count));
            (known && dim != Some(None) && kv != Some(None)).then_some((dim.flatten(), kv.flatten()))
        };
        let mut found = None;
        for (i, kind) in types.iter().enumerate() {
            match (map.get(&i.to_string()), *kind == LayerType::Full) {
                (Some(layer), true) => {
                    let layer = sound(layer)?;
                    if found.is_some_and(|other| other != layer) {
                        return None;
                    }
                    found = Some(layer);
                }
                (None, false) => {}
                _ => return None,
            }
        }
        let full = types.iter().filter(|kind| **kind == LayerType::Full).count();
        found.filter(|_| map.len() == full)
    })
}

/// Rows and place of queries, keys and values in a fused tensor.
fn fused(by_kv_head: bool, heads: usize, kv_heads: usize, dim: usize) -> [(usize, Slice); 3] {
    let (q, kv) = (heads * dim, kv_heads * dim);
    let of = q + 2 * kv;
    if by_kv_head {
        let group = heads / kv_heads * dim;
        let stride = group + 2 * dim;
        let part = |rows, first, block| (rows, Slice { of, first, block, stride });
        [part(q, 0, group), part(kv, group, dim), part(kv, group + dim, dim)]
    } else {
        let part = |rows, first| (rows, Slice::run(of, first, rows));
        [part(q, 0), part(kv, q), part(kv, q + kv)]
    }
}

impl QkNormHyper {
    fn read(fields: &mut Fields<'_, '_, '_>) -> Result<Option<Self>, Reported> {
        let on = fields.flag("qk_norm")?;
        let norms = Norms {
            bias: fields.flag("qk_norm_bias")?,
            plus_one: fields.flag("qk_norm_plus_one")?,
            ..Norms::read(fields)?
        };
        let over = fields.choice("qk_norm_over")?.unwrap_or_else(|| "head".to_owned());
        let (after_rope, on_rope_layers) = (fields.flag("qk_norm_after_rope")?, fields.flag("qk_norm_on_rope_layers")?);
        Ok(on.then_some(Self { norms, over, after_rope, on_rope_layers }))
    }

    fn norm(&self, contract: &mut Contract<'_>, i: usize, role: &str, heads: usize, dim: usize) -> Norm {
        match self.over.as_str() {
            "all heads" => self.norms.layer(contract, i, role, heads * dim),
            "head, weightless" => self.norms.of(None, None, dim),
            "head, own weights" => {
                let weight = contract.layer(i, role, &[heads, dim]);
                self.norms.of(Some(weight), None, dim)
            }
            OWN_TENSORS => {
                let mut each: Vec<Weight> =
                    (0..heads).map(|h| contract.layer_marked(i, role, &[("{head}", h)], &[dim])).collect();
                let first = each.remove(0);
                Norm { further: each, ..self.norms.of(Some(first), None, dim) }
            }
            _ => self.norms.layer(contract, i, role, dim),
        }
    }
}

impl LatentHyper {
    fn read(fields: &mut Fields<'_, '_, '_>) -> Result<Option<Self>, Reported> {
        if !fields.pack.tensors.layer.contains_key("kv_a") {
            return Ok(None);
        }
        let q_lora_rank = fields.some_count("q_lora_rank")?;
        let (kv_lora_rank, nope) = (fields.count("kv_lora_rank")?, fields.count("qk_nope_head_dim")?);
        let (rope, v_head_dim) = (fields.count("qk_rope_head_dim")?, fields.count("v_head_dim")?);
        let (eps, bias) = (fields.eps("latent_norm_eps")?, fields.flag("latent_bias")?);
        Ok(Some(Self { q_lora_rank, kv_lora_rank, nope, rope, v_head_dim, eps, bias }))
    }
}

/// The factor of the dot products, layer by layer.
fn scales(
    fields: &mut Fields<'_, '_, '_>,
    shape: &Shape<'_>,
    dims: HeadDims,
    mscale: f64,
) -> Result<Vec<f64>, Reported> {
    let given = fields.get("attention_multiplier", schema::POSITIVE, &positive)?;
    let scalar = fields.positive("query_pre_attn_scalar")?;
    let plain = fields.get("scale_attn_weights", schema::FLAG, &serde_json::Value::as_bool)?;
    let by_layer = fields.flag("scale_attn_by_inverse_layer_idx")?;
    let scale = |(i, kind): (usize, &LayerType)| {
        let dim = if *kind == LayerType::Full { dims.full_head_dim } else { dims.head_dim };
        let scale = match (given, scalar, plain) {
            (Some(given), ..) => given,
            (None, Some(scalar), _) => 1.0 / scalar.sqrt(),
            (None, None, Some(false)) => 1.0,
            (None, None, _) => 1.0 / (dim as f64).sqrt() * mscale * mscale,
        };
        if by_layer { scale / (i + 1) as f64 } else { scale }
    };
    Ok(shape.types.iter().enumerate().map(scale).collect())
}

/// Llama 4 on its layers without RoPE, Ministral 3 and Mistral 4 on all.
fn temperatures(
    fields: &mut Fields<'_, '_, '_>,
    rope_layers: &[bool],
    tables: &[Table],
) -> Result<Vec<Option<Temperature>>, Reported> {
    let (floor_scale, attn_scale) = (fields.positive("floor_scale")?, fields.number("attn_scale")?);
    if fields.flag("attn_temperature_tuning")? {
        let (Some(floor_scale), Some(beta)) = (floor_scale, attn_scale) else {
            return Err(fields.wrong("attn_temperature_tuning", "needs floor_scale and attn_scale"));
        };
        let temperature = Temperature { beta, floor_scale, offset: 1.0, slots: true };
        return Ok(rope_layers.iter().map(|rope| (!rope).then(|| temperature.clone())).collect());
    }
    let temperature = tables.first().and_then(|table| table.temperature);
    let temperature =
        temperature.map(|(beta, length)| Temperature { beta, floor_scale: length as f64, offset: 0.0, slots: false });
    Ok(vec![temperature; rope_layers.len()])
}

/// The last layers read the keys and values of the last layer of their type before them (`num_kv_shared_layers`).
fn kv_layers(fields: &mut Fields<'_, '_, '_>, shape: &Shape<'_>) -> Result<Vec<Option<usize>>, Reported> {
    let shared = match fields.field("num_kv_shared_layers") {
        Some(_) => fields.whole("num_kv_shared_layers")?,
        None => 0,
    };
    if shared == 0 {
        return Ok(vec![None; shape.layers]);
    }
    let own = shape.layers.saturating_sub(shared);
    let mut layers = vec![None; own];
    for (i, kind) in shape.types.iter().enumerate().skip(own) {
        match shape.types[..own].iter().rposition(|other| other == kind) {
            Some(owner) => layers.push(Some(owner)),
            None => {
                let message =
                    format!("layer {i} has no earlier layer of its type whose keys and values it could share");
                return Err(fields.wrong("num_kv_shared_layers", message));
            }
        }
    }
    Ok(layers)
}

/// The rotated part of a head, where a key beside the RoPE object or the family gives it.
fn partial_rotary_factor(fields: &mut Fields<'_, '_, '_>, dims: HeadDims) -> Found<f64> {
    const NAME: &str = "partial_rotary_factor";
    let Some(field) = fields.field(NAME) else { return Ok(None) };
    let given = field.value.is_some()
        || field.keys.iter().any(|key| fields.keys.raw(key).is_some_and(|value| !value.is_null()));
    // The default holds only where the object gives none.
    let partial = fields.get(NAME, rope::SHARE, &rope::share)?.filter(|_| given);
    if field.rule.is_none() {
        return Ok(partial);
    }
    let Some(rotated) = fields.keys.count("rotary_dim")? else { return Ok(partial) };
    let whole = dims.head_dim;
    let share = partial.unwrap_or(rotated as f64 / whole as f64);
    let found = rope::rotated(whole, share);
    let message = if rotated > whole || partial.is_some() && found != rotated {
        format!("expected a part of head_dim ({whole}), as partial_rotary_factor has it; found {rotated}")
    } else if found != rotated {
        format!(
            "transformers, which cuts {whole} * ({rotated} / {whole}), rotates {found} columns: what is meant can't be known"
        )
    } else {
        return Ok(Some(share));
    };
    Err(fields.keys.report("config-value", "rotary_dim", message))
}

/// The rotary tables, and which one each layer has.
fn tables(
    fields: &mut Fields<'_, '_, '_>,
    shape: &Shape<'_>,
    dims: HeadDims,
    latent: Option<&LatentHyper>,
    rope_layers: &[bool],
    windows: &[Option<usize>],
) -> Result<(Vec<Table>, Vec<Option<usize>>), Reported> {
    let Some(field) = fields.field("rope") else { return Ok((Vec::new(), vec![None; shape.layers])) };
    let default_theta = fields.default("rope").and_then(|value| schema::number(&value)).unwrap_or(10_000.0);
    let partial_default = fields.default("partial_rotary_factor").and_then(|value| rope::share(&value)).unwrap_or(1.0);
    let rule = field.rule.as_deref();
    let partial = partial_rotary_factor(fields, dims)?;
    let interleaved = fields.flag("rope_interleaved")?;
    let rotates =
        |i: usize| rope_layers[i] && !matches!(shape.types[i], LayerType::Linear | LayerType::Conv | LayerType::Mamba);
    let any = (0..shape.layers).any(rotates);
    let expected = Expected {
        theta_keys: &field.keys,
        default_theta,
        // Heads that no layer rotates may have an odd width.
        head_dim: if any { dims.head_dim } else { dims.head_dim.next_multiple_of(2) },
        partial_rotary_factor: partial,
        default_partial_rotary_factor: partial_default,
        max_position_embeddings: shape.max,
        interleaved,
        longrope: rule == Some(schema::ROPE_LONG),
        alpha: rule == Some(schema::ROPE_ALPHA),
        beta: rule == Some(schema::ROPE_BETA),
        latent: latent.map(|latent| latent.rope),
    };
    match rule {
        Some(
            rule @ (schema::ROPE | schema::ROPE_ALPHA | schema::ROPE_NEEDED | schema::ROPE_BETA | schema::ROPE_LONG),
        ) => {
            let given = |keys: &mut Keys<'_>, key| keys.raw(key).is_some_and(|value| !value.is_null());
            if matches!(rule, schema::ROPE_NEEDED | schema::ROPE_BETA)
                && !["rope_parameters", "rope_scaling"].iter().any(|key| given(fields.keys, key))
            {
                let message = "missing; the family's own default is not plain RoPE, so no one can tell what is meant";
                return Err(fields.keys.report("config-key-missing", "rope_parameters", message));
            }
            let table = rope::read(fields.keys, &expected)?;
            let ropes = (0..shape.layers).map(|i| rotates(i).then_some(0)).collect();
            // A model without a layer that rotates has no table.
            Ok((if any { vec![table] } else { Vec::new() }, ropes))
        }
        rule => {
            let flat = match rule {
                Some(schema::ROPE_LOCAL) => Flat::Local,
                Some(schema::ROPE_UNSCALED) => Flat::Unscaled,
                _ => Flat::Refused,
            };
            let full = Expected { head_dim: dims.full_head_dim, ..expected.clone() };
            let pair = rope::read_pair(fields.keys, &full, &expected, flat)?;
            let sliding = |i: usize| shape.types[i] == LayerType::Sliding || windows[i].is_some();
            let mut tables: Vec<Table> = Vec::new();
            let mut ropes = Vec::new();
            for i in 0..shape.layers {
                let table = if sliding(i) { &pair.1 } else { &pair.0 };
                ropes.push(table.as_ref().filter(|_| rotates(i)).map(|table| {
                    tables.iter().position(|known| known == table).unwrap_or_else(|| {
                        tables.push(table.clone());
                        tables.len() - 1
                    })
                }));
            }
            Ok((tables, ropes))
        }
    }
}
