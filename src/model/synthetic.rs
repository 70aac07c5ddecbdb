//! A tiny checkpoint for a pack, made in code: the same bytes on every machine.

use super::plan::{Mixer, Plan, Weight};
use super::{Pack, close_books};
use crate::checkpoint::{Config, Dtype, MemorySource};
use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Name, storage and data of every tensor.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A checkpoint from the pack's `self_test.config`: its weights are pseudo-random, stored as F32, F16 and BF16 in turn.
///
/// # Errors
/// The pack refuses its checkpoints, has no such config, or one that doesn't give a plan.
pub fn checkpoint(pack: &Pack) -> Result<(Config, Tensors)> {
    if let Some(reason) = &pack.refuse {
        bail!("pack {} runs no checkpoint: {reason}", pack.name);
    }
    let tested = !pack.self_test.config.is_empty();
    ensure!(tested, "pack {} has no [self_test], whose config gives a tiny checkpoint to try things on", pack.name);
    made_from(pack, &format!("pack {}", pack.name), &pack.self_test.config)
}

/// That of [`checkpoint`] under the pack's name, then one for each entry of `self_test.further`.
///
/// # Errors
/// A config doesn't give a plan.
pub fn checkpoints(pack: &Pack) -> Result<Vec<(String, Config, Tensors)>> {
    let (config, tensors) = checkpoint(pack)?;
    let mut all = vec![(pack.name.clone(), config, tensors)];
    for (name, keys) in &pack.self_test.further {
        let mut table = pack.self_test.config.clone();
        table.extend(keys.clone());
        let (config, tensors) = made_from(pack, &format!("pack {}, {name}", pack.name), &table)?;
        all.push((format!("{}/{name}", pack.name), config, tensors));
    }
    Ok(all)
}

fn made_from(pack: &Pack, path: &str, table: &toml::Table) -> Result<(Config, Tensors)> {
    let root = serde_json::to_value(table)?;
    let root = root.as_object().context("a table becomes an object")?.clone();
    let config = Config { path: PathBuf::from(path), sha256: String::new(), root, origins: BTreeMap::new() };
    // Without a tensor the books complain, but the plan says which tensors it wants.
    let empty = MemorySource::new(BTreeMap::new())?;
    let books = close_books(&config, &empty, &BTreeSet::new(), &pack.and_embedded(), &[]);
    let mut plan = books.plan.with_context(|| format!("{path}: its config for the self-test gives no plan"))?;
    let kinds = kinds(&mut plan);
    let mut tensors = Tensors::new();
    plan.each_weight(&mut |weight| {
        let index = tensors.len();
        let kind = kinds.get(&weight.name).copied().unwrap_or(Kind::Usual);
        tensors.entry(weight.name.clone()).or_insert_with(|| tensor(index, weight, kind));
    });
    Ok((config, tensors))
}

/// Where a tensor's values lie.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A vector's around one; a matrix's are scaled down so that activations keep their size.
    Usual,
    /// Around one, though it is a matrix: a norm's with weights for each head.
    Norm,
    /// Around zero: one is added to them.
    Offset,
    /// The logarithm of a decay's rate: some of a state is forgotten, some kept.
    Rate,
    /// Before the softplus that gives a step.
    Step,
}

/// Tensors that are not of the usual kind, by name.
fn kinds(plan: &mut Plan) -> BTreeMap<String, Kind> {
    let mut kinds = BTreeMap::new();
    for norm in plan.norms_mut() {
        let kind = if norm.offset == 0.0 { Kind::Norm } else { Kind::Offset };
        kinds.extend(norm.weight.iter().chain(&norm.further).map(|weight| (weight.name.clone(), kind)));
    }
    for layer in &plan.layers {
        let (rate, step) = match &layer.mixer {
            Mixer::Mamba2(mamba) => (&mamba.a_log, mamba.dt_bias.as_ref()),
            Mixer::GatedDelta(delta) => (&delta.a_log, delta.dt_bias.as_ref()),
            _ => continue,
        };
        kinds.insert(rate.name.clone(), Kind::Rate);
        kinds.extend(step.map(|step| (step.name.clone(), Kind::Step)));
    }
    kinds
}

fn tensor(index: usize, weight: &Weight, kind: Kind) -> (Dtype, Vec<usize>, Vec<u8>) {
    let (_, cols) = weight.rows_and_cols();
    let shape = weight.stored_shape();
    let mut noise = SplitMix(index as u64 + 1);
    if weight.is_packed() {
        let mut trit = || (noise.unit() * 1.5 + 1.5) as u8;
        let bytes = (0..shape.iter().product()).map(|_: usize| (0..4).fold(0, |byte, _| byte << 2 | trit()));
        return (Dtype::parse("U8"), shape.to_vec(), bytes.collect());
    }
    // Powers of two keep the scaling exact.
    let values = (0..shape.iter().product()).map(|_: usize| {
        let unit = noise.unit();
        match kind {
            Kind::Offset => unit / 4.0,
            Kind::Rate => unit,
            Kind::Step => unit - 1.0,
            Kind::Norm => 1.0 + unit / 4.0,
            Kind::Usual if weight.shape.len() == 1 => 1.0 + unit / 4.0,
            Kind::Usual => unit * 2.0 / f32::from_bits(((cols as f32).sqrt()).to_bits() & 0xff80_0000),
        }
    });
    let (dtype, bytes) = match index % 3 {
        0 => (Dtype::F32, values.flat_map(f32::to_le_bytes).collect()),
        1 => (Dtype::F16, values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect()),
        _ => (Dtype::BF16, values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect()),
    };
    (dtype, shape.to_vec(), bytes)
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct SplitMix(u64);

impl SplitMix {
    /// A multiple of 2^-23 in -1 .. 1.
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix;

    #[test]
    fn the_noise_is_splitmix64() {
        // The generator's published first outputs for seed 1234567: 6457827717110365317, 3203168211198807973.
        let mut noise = SplitMix(1_234_567);
        for expected in [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973] {
            assert_eq!(noise.unit(), (expected >> 40) as f32 / 8_388_608.0 - 1.0);
        }
    }
}
