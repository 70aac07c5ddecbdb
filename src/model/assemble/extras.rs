//! What Gemma 3n and 4 add around a layer: per-layer inputs, AltUp, Laurel.

use super::super::contract::Contract;
use super::super::fields::Fields;
use super::super::keys::Reported;
use super::super::plan::{AltUp, AltUpEnds, Linear, PerLayerInput, PerLayerInputs};
use super::{Hyper, Norms, Shape};

/// No model has more copies of its hidden state; a config that says so is damaged.
const MAX_COPIES: usize = 64;

/// Numbers of what only few families have.
pub struct Extras {
    per_layer: Option<PerLayer>,
    altup: Option<AltUpHyper>,
}

struct PerLayer {
    dim: usize,
    vocab_size: usize,
}

struct AltUpHyper {
    inputs: usize,
    active: usize,
    correct_scale: bool,
    laurel_rank: usize,
}

impl Extras {
    pub fn read(fields: &mut Fields<'_, '_, '_>, _: &Shape<'_>) -> Result<Self, Reported> {
        let per_layer = match fields.some_count("hidden_size_per_layer_input")? {
            Some(dim) => Some(PerLayer { dim, vocab_size: fields.count("vocab_size_per_layer_input")? }),
            None => {
                fields.read_all_of(&["vocab_size_per_layer_input"]);
                None
            }
        };
        let altup = match fields.some_count("altup_num_inputs")? {
            Some(inputs) => {
                let (active, laurel_rank) = (fields.whole("altup_active_idx")?, fields.count("laurel_rank")?);
                if inputs > MAX_COPIES {
                    let message = format!("expected at most {MAX_COPIES}, found {inputs}");
                    return Err(fields.wrong("altup_num_inputs", message));
                }
                if active >= inputs {
                    let message = format!("expected less than altup_num_inputs ({inputs}), found {active}");
                    return Err(fields.wrong("altup_active_idx", message));
                }
                Some(AltUpHyper { inputs, active, correct_scale: fields.flag("altup_correct_scale")?, laurel_rank })
            }
            None => None,
        };
        Ok(Self { per_layer, altup })
    }

    pub fn per_layer_inputs(&self, contract: &mut Contract<'_>, model: &Hyper) -> Option<PerLayerInputs> {
        let PerLayer { dim, vocab_size } = *self.per_layer.as_ref()?;
        let columns = model.layers * dim;
        let weight = contract.model("per_layer_projection", &[columns, model.hidden_size]);
        let norm = contract.model("per_layer_norm", &[dim]);
        Some(PerLayerInputs {
            dim,
            embed: contract.model("per_layer_embed", &[vocab_size, columns]),
            embed_scale: (dim as f64).sqrt(),
            projection: Linear::new(weight, None),
            projection_scale: 1.0 / (model.hidden_size as f64).sqrt(),
            norm: model.norms.of(Some(norm), None, dim),
            scale: std::f64::consts::FRAC_1_SQRT_2,
        })
    }

    pub fn per_layer_input(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Option<PerLayerInput> {
        let dim = self.per_layer.as_ref()?.dim;
        let (hidden, parts) = (model.hidden_size, model.parts);
        Some(PerLayerInput {
            activation: model.feed_forward.as_ref()?.activation(),
            gate: parts.linear(contract, i, "per_layer_gate", [dim, hidden], false),
            projection: parts.linear(contract, i, "per_layer_projection", [hidden, dim], false),
            norm: model.norms.layer(contract, i, "per_layer_post_norm", hidden),
        })
    }

    pub fn altup_ends(&self, contract: &mut Contract<'_>, hidden: usize) -> Option<AltUpEnds> {
        let altup = self.altup.as_ref()?;
        let mut each = |role: &str| -> Vec<Linear> {
            let one = |copy| Linear::new(contract.copy(role, copy, &[hidden, hidden]), None);
            (0..altup.inputs - 1).map(one).collect()
        };
        let (projections, unembed_projections) = (each("altup_projection"), each("altup_unembed"));
        Some(AltUpEnds { active: altup.active, projections, unembed_projections })
    }

    pub fn altup(&self, contract: &mut Contract<'_>, i: usize, model: &Hyper) -> Option<Box<AltUp>> {
        let altup = self.altup.as_ref()?;
        let (hidden, parts, n) = (model.hidden_size, model.parts, altup.inputs);
        let norms: Norms = model.norms;
        Some(Box::new(AltUp {
            router_norm: norms.layer(contract, i, "altup_router_norm", hidden),
            router_scale: 1.0 / hidden as f64,
            router: parts.linear(contract, i, "altup_router", [n, hidden], false),
            prediction: parts.linear(contract, i, "altup_prediction", [n * n, n], false),
            correction: parts.linear(contract, i, "altup_correction", [n, n], false),
            output_scale: altup.correct_scale.then(|| contract.layer(i, "altup_output_scale", &[hidden])),
            laurel_left: parts.linear(contract, i, "laurel_left", [altup.laurel_rank, hidden], false),
            laurel_right: parts.linear(contract, i, "laurel_right", [hidden, altup.laurel_rank], false),
            laurel_norm: norms.layer(contract, i, "laurel_norm", hidden),
        }))
    }
}
