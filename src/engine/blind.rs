//! What a prompt cannot show, whatever an engine does.

use crate::model::Plan;
use crate::model::plan::Mixer;
use crate::ops::rope::RopeScaling;
use serde::Serialize;
use std::collections::BTreeSet;

/// Something that a prompt leaves untested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlindSpot {
    pub what: String,
    /// What would show it.
    pub remedy: String,
}

impl std::fmt::Display for BlindSpot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.what, self.remedy)
    }
}

/// The sliding windows of a plan's layers.
pub fn windows(plan: &Plan) -> BTreeSet<usize> {
    plan.layers.iter().filter_map(|layer| layer.mixer.attention_spec()?.sliding_window).collect()
}

/// How many tokens back the convolutions of a plan's layers reach, the current one included.
fn kernels(plan: &Plan) -> BTreeSet<usize> {
    let convs = plan.layers.iter().flat_map(|layer| match &layer.mixer {
        Mixer::ShortConv(conv) => std::slice::from_ref(&conv.conv),
        Mixer::Mamba2(mamba) => std::slice::from_ref(&mamba.conv),
        Mixer::GatedDelta(delta) => &delta.conv,
        Mixer::Attention(_) | Mixer::LatentAttention(_) => &[],
    });
    convs.map(|conv| conv.weight.rows_and_cols().1).collect()
}

/// Sizes around which a prompt should be cut: windows and convolutions.
pub fn sizes(plan: &Plan) -> BTreeSet<usize> {
    windows(plan).into_iter().chain(kernels(plan)).collect()
}

/// What this prompt cannot see of this plan: a fault there changes no bit of it, or next to none.
pub fn blind_spots(plan: &Plan, tokens: &[u32], positions: &[u32]) -> Vec<BlindSpot> {
    let mut spots = Vec::new();
    let mut add = |what: String, remedy: String| spots.push(BlindSpot { what, remedy });
    let n = tokens.len();
    if n < 3 {
        add("a chunk of several tokens after others".into(), "needs more than 2 tokens".into());
    }
    if n > 1 && tokens.iter().all(|t| *t == tokens[0]) {
        let what = "positions, masks and windows: the tokens are all equal, and so are their values";
        add(what.into(), "needs different tokens".into());
    }
    for window in windows(plan) {
        if n <= window {
            add(format!("window {window}"), format!("needs more than {window} tokens"));
        } else if n <= 2 * window {
            let what = format!("a rolling cache of window {window} that drops entries");
            add(what, format!("needs more than {} tokens", 2 * window));
        }
    }
    for kernel in kernels(plan).into_iter().filter(|&kernel| n < kernel) {
        add(format!("the first of {kernel} tokens in a convolution"), format!("needs at least {kernel} tokens"));
    }
    let length = positions.iter().max().map_or(0, |&p| p as usize + 1);
    let mut seen = Vec::new();
    for rope in &plan.ropes {
        if let Some((kind, first)) = acts_from(&rope.scaling)
            && length <= first
            && !seen.contains(&(kind, first))
        {
            seen.push((kind, first));
            let remedy = format!("acts from position {first} on; try --positions {}", far(n, first));
            add(format!("rope scaling {kind}"), remedy);
        }
    }
    spots
}

/// The kind of a scaling, and the first position at which it shows in full.
fn acts_from(scaling: &RopeScaling) -> Option<(&'static str, usize)> {
    match *scaling {
        RopeScaling::Default
        | RopeScaling::Linear { .. }
        | RopeScaling::NtkAlpha { .. }
        | RopeScaling::Proportional { .. } => None,
        RopeScaling::Dynamic { max_position_embeddings, .. } => Some(("dynamic", max_position_embeddings)),
        RopeScaling::Llama3 { original_max_position_embeddings: original, .. } => Some(("llama3", original)),
        RopeScaling::Yarn { original_max_position_embeddings: original, .. } => Some(("yarn", original)),
        RopeScaling::Longrope { original_max_position_embeddings: original, .. } => Some(("longrope", original)),
    }
}

/// Positions of `n` tokens of which the last is at `last`; the first few and dots where there are many.
fn far(n: usize, last: usize) -> String {
    const SHOWN: usize = 4;
    let mut list: Vec<String> = (0..n.saturating_sub(1).min(SHOWN)).map(|p| p.to_string()).collect();
    if n > SHOWN + 1 {
        list.push("...".to_owned());
    }
    list.push(last.to_string());
    list.join(",")
}
