//! Faults of the mixers that keep a state instead of keys and values: other plans, and states that are lost between two
//! passes.

use super::plan::if_any;
use crate::exec::state::{LayerState, Session};
use crate::model::Plan;
use crate::model::plan::{CausalConv, GatedDelta, Mamba2, Mixer, Weight};
use crate::ops::{Activation, Float};

type Changed = Result<(), String>;

/// A part of the state that each pass but the first finds empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostState {
    /// The last inputs of convolutions.
    Conv,
    /// What scans have summed up.
    Scan,
}

impl LostState {
    pub fn applies(self, plan: &Plan) -> Changed {
        let mut plan = plan.clone();
        match self {
            LostState::Conv => {
                let several = |conv: &&mut CausalConv| conv.weight.rows_and_cols().1 > 1;
                if_any(convs_mut(&mut plan).into_iter().filter(several).count(), NO_CONV)
            }
            LostState::Scan => if_any(mambas_mut(&mut plan).count() + deltas_mut(&mut plan).count(), "no layer scans"),
        }
    }

    fn part(self) -> &'static str {
        match self {
            LostState::Conv => "conv",
            LostState::Scan => "scan",
        }
    }
}

impl<F: Float> Session<F> {
    /// Sets a part of the recurrent states to zero, as it is before the first token.
    pub(super) fn lose_state(&mut self, lost: LostState) {
        let states = self.layers.iter_mut().filter(|layer| matches!(layer, LayerState::Recurrent(_)));
        for state in states.map(LayerState::as_mixer_mut) {
            let parts = state.parts().into_iter().map(|part| {
                let mut rows = part.rows.clone();
                if part.name == lost.part() {
                    rows.data_mut().fill(F::ZERO);
                }
                (part.name.to_owned(), part.first, rows)
            });
            let parts = parts.collect();
            // A state takes back what it gave.
            state.restore(parts).expect("parts of the same shape");
        }
    }
}

/// Whether some layer can't be trimmed.
pub fn any(plan: &Plan) -> bool {
    plan.layers.iter().any(|layer| layer.mixer.attention_spec().is_none())
}

const NO_CONV: &str = "no layer has a short convolution";
const NO_MAMBA: &str = "no layer is Mamba-2";
const NO_DELTA: &str = "no layer has a gated delta rule";

fn mixers_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Mixer> {
    plan.layers.iter_mut().map(|layer| &mut layer.mixer)
}

fn mambas_mut(plan: &mut Plan) -> impl Iterator<Item = &mut Mamba2> {
    mixers_mut(plan).filter_map(|mixer| if let Mixer::Mamba2(mamba) = mixer { Some(mamba) } else { None })
}

fn deltas_mut(plan: &mut Plan) -> impl Iterator<Item = &mut GatedDelta> {
    mixers_mut(plan).filter_map(|mixer| if let Mixer::GatedDelta(delta) = mixer { Some(delta) } else { None })
}

fn convs_mut(plan: &mut Plan) -> Vec<&mut CausalConv> {
    let convs = mixers_mut(plan).flat_map(|mixer| match mixer {
        Mixer::ShortConv(conv) => std::slice::from_mut(&mut conv.conv),
        Mixer::Mamba2(mamba) => std::slice::from_mut(&mut mamba.conv),
        Mixer::GatedDelta(delta) => &mut delta.conv,
        Mixer::Attention(_) | Mixer::LatentAttention(_) => &mut [],
    });
    convs.collect()
}

pub fn conv_bias_dropped(plan: &mut Plan) -> Changed {
    if_any(convs_mut(plan).into_iter().filter_map(|conv| conv.bias.take()).count(), "no convolution has a bias")
}

pub fn conv_activation_dropped(plan: &mut Plan) -> Changed {
    let dropped = convs_mut(plan).into_iter().filter_map(|conv| conv.activation.take());
    if_any(dropped.count(), "no convolution has an activation")
}

pub fn conv_gates_swapped(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for mixer in mixers_mut(plan) {
        if let Mixer::ShortConv(conv) = mixer {
            std::mem::swap(&mut conv.b, &mut conv.c);
            changed += 1;
        }
    }
    if_any(changed, "no layer is a gated short convolution")
}

pub fn dt_bias_dropped(plan: &mut Plan) -> Changed {
    let biases = mixers_mut(plan).filter_map(|mixer| match mixer {
        Mixer::Mamba2(mamba) => mamba.dt_bias.take(),
        Mixer::GatedDelta(delta) => delta.dt_bias.take(),
        _ => None,
    });
    if_any(biases.count(), "no scan has a step with a bias")
}

pub fn dt_limit_dropped(plan: &mut Plan) -> Changed {
    if_any(mambas_mut(plan).map(|mamba| mamba.time_step_limit = (0.0, f64::INFINITY)).count(), NO_MAMBA)
}

pub fn scan_skip_dropped(plan: &mut Plan) -> Changed {
    let dropped: Vec<Weight> = mambas_mut(plan).filter_map(|mamba| mamba.d.take()).collect();
    if_any(dropped.len(), NO_MAMBA)
}

pub fn scan_gate_order(plan: &mut Plan) -> Changed {
    if_any(mambas_mut(plan).map(|mamba| mamba.norm_before_gate = !mamba.norm_before_gate).count(), NO_MAMBA)
}

pub fn scan_norm_joined(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for mamba in mambas_mut(plan) {
        let whole = mamba.num_heads * mamba.head_dim;
        changed += usize::from(mamba.norm.size != whole);
        mamba.norm.size = whole;
    }
    if_any(changed, "no scan's result is normalised in groups")
}

pub fn l2_norm_dropped(plan: &mut Plan) -> Changed {
    if_any(deltas_mut(plan).filter_map(|delta| delta.qk_l2_norm_eps.take()).count(), NO_DELTA)
}

pub fn delta_gate_dropped(plan: &mut Plan) -> Changed {
    let gates = deltas_mut(plan).map(|delta| std::mem::take(&mut delta.gate));
    if_any(gates.filter(|gate| !gate.is_empty()).count(), NO_DELTA)
}

pub fn delta_gate_activation(plan: &mut Plan) -> Changed {
    let mut changed = 0;
    for delta in deltas_mut(plan) {
        delta.gate_activation = match delta.gate_activation {
            Activation::Sigmoid => Activation::Silu,
            _ => Activation::Sigmoid,
        };
        changed += 1;
    }
    if_any(changed, NO_DELTA)
}
