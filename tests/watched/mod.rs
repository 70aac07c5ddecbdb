//! A source that is read from memory as if it were a file, and remembers by whom.

// Each test binary uses a part of this.
#![allow(dead_code)]

use checkpoint_oracle::checkpoint::{Source, SourceFile, TensorInfo};
use checkpoint_oracle::model::Plan;
use checkpoint_oracle::model::plan::{FeedForward, Layer, Linear, Mixer};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

pub struct Watched {
    inner: Arc<dyn Source>,
    /// The thread that runs passes: what it reads itself was not read ahead.
    runner: ThreadId,
    reads: Mutex<Vec<(ThreadId, String, Range<u64>)>>,
}

impl Watched {
    pub fn new(inner: Arc<dyn Source>) -> Self {
        Self { inner, runner: thread::current().id(), reads: Mutex::new(Vec::new()) }
    }

    /// After one pass: everything but rows of embeddings was read ahead, each tensor once (but for AltUp's router and its
    /// norm, which are needed twice, and small vectors in a tensor of several), and of the experts only those that are
    /// `chosen`.
    pub fn check(&self, plan: &Plan, chosen: &dyn Fn(usize, usize) -> bool, what: &str) {
        let embeddings: BTreeSet<&str> = std::iter::once(&plan.embed)
            .chain(&plan.position_embed)
            .chain(plan.per_layer_inputs.iter().map(|inputs| &inputs.embed))
            .map(|weight| weight.name.as_str())
            .collect();
        let twice: BTreeSet<&str> = plan
            .layers
            .iter()
            .filter_map(|layer| layer.altup.as_deref())
            .flat_map(|altup| altup.router_norm.weight.iter().chain([&altup.router.weight]))
            .map(|weight| weight.name.as_str())
            .collect();
        // Weights that become ternary on the way are read for their mean first.
        let rounded: BTreeSet<&str> = plan
            .layers
            .iter()
            .flat_map(linears)
            .filter(|l| l.rounds_weights())
            .map(|l| l.weight.name.as_str())
            .collect();
        let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
        let reads = self.reads.lock().unwrap().clone();
        for (thread, name, range) in reads.iter() {
            let embedding = embeddings.contains(name.as_str());
            assert!(embedding || *thread != self.runner, "{what}: {name}, bytes {range:?}, were not read ahead");
            *bytes.entry(name).or_default() += range.end - range.start;
        }
        for (&name, &read) in &bytes {
            let len = self.inner.tensors()[name].len;
            let times = if twice.contains(name) || rounded.contains(name) { 2 } else { 1 };
            let head = embeddings.contains(name);
            assert!(head || read <= times * len, "{what}: {read} bytes of {name} were read, it has {len}");
        }
        for (index, layer) in plan.layers.iter().enumerate() {
            let Some(FeedForward::Moe(moe)) = &layer.mlp else { continue };
            let experts: Vec<BTreeSet<&str>> = moe
                .experts
                .iter()
                .map(|expert| {
                    let mut names = BTreeSet::new();
                    expert.each_weight(&mut |weight| {
                        names.insert(weight.name.as_str());
                    });
                    names
                })
                .collect();
            for (e, names) in experts.iter().enumerate() {
                // Names that no other expert has.
                let own = names.iter().filter(|name| experts.iter().filter(|e| e.contains(**name)).count() == 1);
                for name in own {
                    let read = bytes.contains_key(name);
                    assert_eq!(read, chosen(index, e), "{what}: {name} of expert {e}");
                }
            }
        }
    }
}

impl Source for Watched {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        self.inner.tensors()
    }
    fn files(&self) -> &[SourceFile] {
        self.inner.files()
    }
    fn read_into<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> anyhow::Result<&'a [u8]> {
        self.reads.lock().unwrap().push((thread::current().id(), tensor.name.clone(), range.clone()));
        let bytes = self.inner.read(tensor, range)?;
        *buffer = bytes;
        Ok(buffer)
    }
    fn is_resident(&self) -> bool {
        false
    }
    fn check_unchanged(&self) -> anyhow::Result<()> {
        Ok(())
    }
    fn headers_sha256(&self) -> anyhow::Result<String> {
        self.inner.headers_sha256()
    }
    fn full_sha256(&self) -> anyhow::Result<String> {
        self.inner.full_sha256()
    }
}

/// The linear layers of attention and of a dense MLP.
fn linears(layer: &Layer) -> Vec<&Linear> {
    let mut linears = Vec::new();
    if let Mixer::Attention(a) = &layer.mixer {
        linears.extend([&a.q, &a.o].into_iter().chain(&a.k).chain(&a.v));
    }
    if let Some(FeedForward::Dense(mlp)) = &layer.mlp {
        linears.extend([&mlp.up, &mlp.down].into_iter().chain(&mlp.gate));
    }
    linears
}
