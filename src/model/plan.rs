//! A plan: what a checkpoint computes, family-neutral and with every number resolved.

use crate::digest::sha256_hex;
use crate::ops::Activation;
use crate::ops::attention::AttentionSpec;
use crate::ops::rope::Rope;
use serde::Serialize;

/// A decoder-only language model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub max_position_embeddings: usize,
    /// The rotary tables; attention layers refer to them by index.
    pub ropes: Vec<Rope>,
    /// `[vocab_size, hidden_size]`
    pub embed: Weight,
    pub layers: Vec<Layer>,
    /// Before the head.
    pub norm: RmsNorm,
    pub head: Head,
}

/// A stored tensor, under the name that it has in the checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Weight {
    pub name: String,
    pub shape: Vec<usize>,
}

impl Weight {
    /// A matrix's `[rows, cols]`; a vector is one row.
    pub fn rows_and_cols(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.shape.iter().product::<usize>() / cols, cols)
    }
}

/// `y = x W^T (+ bias)`, W being `[out, in]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Linear {
    pub weight: Weight,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bias: Option<Weight>,
}

impl Linear {
    /// Calls `f` with the weight, then with the bias.
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        f(&self.weight);
        if let Some(bias) = &self.bias {
            f(bias);
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RmsNorm {
    pub weight: Weight,
    pub eps: f64,
}

/// A pre-norm residual block: `x += mixer(norm(x))`, then `x += mlp(norm(x))`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layer {
    pub mixer_norm: RmsNorm,
    pub mixer: Mixer,
    pub mlp_norm: RmsNorm,
    pub mlp: Mlp,
}

/// Where tokens meet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mixer {
    Attention(Attention),
}

/// Grouped-query attention with rotary positions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attention {
    #[serde(flatten)]
    pub spec: AttentionSpec,
    /// Index into [`Plan::ropes`].
    pub rope: usize,
    /// `[num_attention_heads * head_dim, hidden_size]`
    pub q: Linear,
    /// `[num_key_value_heads * head_dim, hidden_size]`
    pub k: Linear,
    /// `[num_key_value_heads * head_dim, hidden_size]`
    pub v: Linear,
    /// `[hidden_size, num_attention_heads * head_dim]`
    pub o: Linear,
    /// On each head by itself (`[head_dim]`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qk_norm: Option<QkNorm>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QkNorm {
    pub q: RmsNorm,
    pub k: RmsNorm,
    /// After RoPE instead of before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub after_rope: bool,
}

/// `down(activation(gate(x)) * up(x))`
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mlp {
    pub activation: Activation,
    /// `[intermediate_size, hidden_size]`
    pub gate: Linear,
    /// `[intermediate_size, hidden_size]`
    pub up: Linear,
    /// `[hidden_size, intermediate_size]`
    pub down: Linear,
}

/// The output projection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Head {
    #[serde(flatten)]
    pub linear: Linear,
    /// The weight is the embedding.
    pub tied: bool,
}

impl Plan {
    /// SHA-256 (lowercase hex) of the plan's JSON: equal for two checkpoints that compute the same function of their
    /// weights.
    pub fn sha256(&self) -> String {
        let json = serde_json::to_vec(self).expect("a plan holds nothing that JSON can't");
        sha256_hex(&json)
    }

    /// Stored elements that the plan uses, a tied head counted once.
    pub fn parameters(&self) -> u64 {
        let mut total = 0u64;
        let mut add = |w: &Weight| {
            // A damaged config may promise more than any file holds.
            let elements = w.shape.iter().fold(1u64, |product, &n| product.saturating_mul(n as u64));
            total = total.saturating_add(elements);
        };
        add(&self.embed);
        add(&self.norm.weight);
        if !self.head.tied {
            add(&self.head.linear.weight);
        }
        for layer in &self.layers {
            layer.each_weight(&mut add);
        }
        total
    }
}

impl Layer {
    /// Calls `f` with every weight of the layer in the order in which a pass reads them.
    pub fn each_weight<'a>(&'a self, f: &mut impl FnMut(&'a Weight)) {
        f(&self.mixer_norm.weight);
        match &self.mixer {
            Mixer::Attention(a) => {
                for l in [&a.q, &a.k, &a.v] {
                    l.each_weight(f);
                }
                if let Some(norms) = &a.qk_norm {
                    f(&norms.q.weight);
                    f(&norms.k.weight);
                }
                a.o.each_weight(f);
            }
        }
        f(&self.mlp_norm.weight);
        for l in [&self.mlp.gate, &self.mlp.up, &self.mlp.down] {
            l.each_weight(f);
        }
    }
}
