//! Models with everything that a plan can say of attention, norms, branches, MLPs and experts: no bit depends on how
//! their weights lie in the checkpoint, on how they are read, or on how a prompt is cut; and each byte that is needed is
//! read once.

mod watched;

use checkpoint_oracle::checkpoint::{Dtype, MemorySource, Source};
use checkpoint_oracle::exec::accelerated::{Accelerated, by_name};
use checkpoint_oracle::exec::reference::{Reference, Vectors};
use checkpoint_oracle::exec::{Executor, Input, Kernels, Observer, Rows, Session, SessionOptions, Stage};
use checkpoint_oracle::model::Plan;
use checkpoint_oracle::model::plan::{
    AltUp, AltUpEnds, Attention, Clamp, FeedForward, Groups, Head, LatentAttention, Layer, Linear, Mixer, Mlp, Moe,
    MoeNorms, Norm, NormKind, Part, PerLayerInput, PerLayerInputs, QkNorm, Router, Scoring, Temperature, Weight,
};
use checkpoint_oracle::ops::attention::AttentionSpec;
use checkpoint_oracle::ops::rope::{Rope, RopeScaling};
use checkpoint_oracle::ops::{Activation, Level, Matrix};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use watched::Watched;

const VOCAB: usize = 40;
const HIDDEN: usize = 16;
const INNER: usize = 24;
const TOKENS: [u32; 11] = [3, 1, 4, 1, 5, 9, 2, 6, 35, 8, 39];

/// How the weights lie in the checkpoint.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Each is a tensor of its own.
    Plain,
    /// Those that are used together are one tensor.
    Fused,
}

/// Makes the weights of a model as they are asked for: the same values however they lie.
struct Maker {
    lie: Lie,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

/// Where each of some matrices lies in one tensor: its rows' first place, block and stride there.
#[derive(Clone, Copy)]
struct Layout {
    stored: [usize; 3],
    transposed: bool,
    places: &'static [(usize, usize, usize)],
}

/// Values that depend on the name alone.
fn values(name: &str, n: usize, center: f32, scale: f32) -> Vec<f32> {
    let mut state = name.bytes().fold(7u32, |h, byte| h.wrapping_mul(31).wrapping_add(u32::from(byte)));
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            center + scale * ((state >> 8) as f32 / 8_388_608.0 - 1.0)
        })
        .collect()
}

impl Maker {
    fn store(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        // One of the formats, by name alone.
        let (dtype, bytes) = match name.len() % 2 {
            0 => (Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            _ => (Dtype::BF16, values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect()),
        };
        self.tensors.insert(name.to_owned(), (dtype, shape.to_vec(), bytes));
    }

    fn weight(&mut self, name: &str, shape: &[usize], center: f32, scale: f32) -> Weight {
        self.store(name, shape, &values(name, shape.iter().product(), center, scale));
        Weight::whole(name.to_owned(), shape)
    }

    fn vector(&mut self, name: &str, n: usize) -> Weight {
        self.weight(name, &[n], 0.0, 0.5)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Linear {
        let weight = self.weight(&format!("{name}.w"), &[outputs, inputs], 0.0, 1.0 / (inputs as f32).sqrt());
        Linear::new(weight, bias.then(|| self.vector(&format!("{name}.b"), outputs)))
    }

    /// Matrices `[outputs, inputs]` with these names, in one tensor, or each by itself.
    fn fused(&mut self, name: &str, parts: &[(&str, usize)], inputs: usize, layout: Layout) -> Vec<Linear> {
        // All in bfloat16, whatever the names' lengths are.
        let plain = |name: &str, part: &str| format!("{name}.{part}{}", ["_", ""][(name.len() + part.len() + 1) % 2]);
        let scale = 1.0 / (inputs as f32).sqrt();
        if self.lie == Lie::Plain {
            let linear = |(part, outputs): &(&str, usize)| {
                let name = plain(name, part);
                self.store(&name, &[*outputs, inputs], &values(part, outputs * inputs, 0.0, scale));
                Linear::new(Weight::whole(name, &[*outputs, inputs]), None)
            };
            return parts.iter().map(linear).collect();
        }
        let cols = layout.stored[2];
        let stored: Vec<usize> = layout.stored.into_iter().filter(|&n| n > 0).collect();
        // Other experts come before and after it.
        let base = if layout.stored[0] > 0 { layout.stored[1] } else { 0 };
        let mut all = vec![f32::NAN; stored.iter().product()];
        let mut linears = Vec::new();
        let fused = plain(name, "fused");
        for ((part, outputs), &(first, block, stride)) in parts.iter().zip(layout.places) {
            let values = values(part, outputs * inputs, 0.0, scale);
            for o in 0..*outputs {
                let at = first + o / block * stride + o % block;
                for i in 0..inputs {
                    let (row, col) = if layout.transposed { (base + i, at) } else { (base + at, i) };
                    all[row * cols + col] = values[o * inputs + i];
                }
            }
            let part = Part {
                stored: stored.clone(),
                base,
                first,
                block,
                stride,
                transposed: layout.transposed,
                packed: false,
            };
            let weight = Weight { name: fused.clone(), shape: vec![*outputs, inputs], part: Some(Box::new(part)) };
            linears.push(Linear::new(weight, None));
        }
        self.store(&fused, &stored, &all);
        linears
    }

    /// A vector of every other element of a row of a matrix, which counts as elements one after the other, or as rows.
    fn every_other(&mut self, name: &str, n: usize, by_rows: bool) -> Weight {
        if self.lie == Lie::Plain {
            return self.vector(name, n);
        }
        let mut all = vec![f32::NAN; 3 * 2 * n];
        let part = values(name, n, 0.0, 0.5);
        part.iter().enumerate().for_each(|(i, &v)| all[2 * n + 1 + 2 * i] = v);
        self.store(name, &[3, 2 * n], &all);
        let base = if by_rows { 1 } else { 2 * n };
        let part =
            Part { stored: vec![3, 2 * n], base, first: 1, block: 1, stride: 2, transposed: by_rows, packed: false };
        Weight { name: name.to_owned(), shape: vec![n], part: Some(Box::new(part)) }
    }

    fn norm(&mut self, name: &str, n: usize, size: usize) -> Norm {
        let weight = Some(self.weight(name, &[n], 1.0, 0.25));
        Norm { weight, further: vec![], bias: None, eps: 1e-5, kind: NormKind::Rms, offset: 0.0, size }
    }

    /// A LayerNorm whose weights are stored as their difference from one.
    fn layer_norm(&mut self, name: &str) -> Norm {
        Norm {
            weight: Some(self.weight(name, &[HIDDEN], 0.0, 0.25)),
            bias: Some(self.vector(&format!("{name}.b"), HIDDEN)),
            kind: NormKind::Layer,
            offset: 1.0,
            ..self.norm(name, HIDDEN, HIDDEN)
        }
    }

    fn attention(&mut self, name: &str) -> Attention {
        let mut linear = |part: &str, outputs, inputs| self.linear(&format!("{name}.{part}"), outputs, inputs, true);
        Attention {
            spec: AttentionSpec::new(4, 2, 4),
            rope: Some(0),
            q: linear("q", 16, HIDDEN),
            k: Some(linear("k", 8, HIDDEN)),
            v: Some(linear("v", 8, HIDDEN)),
            o: linear("o", HIDDEN, 16),
            qk_norm: None,
            v_norm: None,
            kv_layer: None,
            gate: None,
            sinks: None,
            clip: None,
            temperature: None,
            sub_norm: None,
        }
    }

    fn mlp(&mut self, name: &str, inputs: usize) -> Mlp {
        Mlp {
            activation: Activation::Silu,
            gate: Some(self.linear(&format!("{name}.gate"), INNER, inputs, false)),
            up: self.linear(&format!("{name}.up"), INNER, inputs, false),
            down: self.linear(&format!("{name}.down"), inputs, INNER, false),
            clamp: None,
            sparsity: None,
            sub_norm: None,
        }
    }

    fn layer(&mut self, name: &str, mixer: Mixer, mlp: FeedForward) -> Layer {
        Layer {
            mixer_norm: Some(self.norm(&format!("{name}.norm"), HIDDEN, HIDDEN)),
            mixer,
            mixer_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{name}.mlp_norm"), HIDDEN, HIDDEN)),
            mlp: Some(mlp),
            mlp_post_norm: None,
            parallel: false,
            residual_multiplier: 1.0,
            altup: None,
            per_layer_input: None,
            scalar: None,
        }
    }

    fn plan(&mut self, layers: Vec<Layer>) -> Plan {
        let rope = |dim, interleaved| Rope { dim, rope_theta: 100.0, interleaved, scaling: RopeScaling::Default };
        Plan {
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            max_position_embeddings: 64,
            ropes: vec![rope(4, false), rope(2, true)],
            embed: self.weight("embed", &[VOCAB, HIDDEN], 0.0, 1.0),
            embed_scale: 1.0,
            position_embed: None,
            per_layer_inputs: None,
            altup: None,
            layers,
            norm: self.norm("norm", HIDDEN, HIDDEN),
            head: Head {
                linear: self.linear("head", VOCAB, HIDDEN, true),
                tied: false,
                logit_scale: 1.0,
                logits_scaling: 1.0,
                final_logit_softcapping: None,
            },
            placeholder_tokens: BTreeMap::new(),
        }
    }
}

/// Fused q, k and v group by group (as GPT-NeoX and Falcon have them), LayerNorms, parallel branches, learned positions,
/// an MLP without a gate; then transposed ones side by side (GPT-2) after a serial layer's post norms.
fn dense(make: &mut Maker) -> Plan {
    let mut attention = make.attention("0");
    let layout = Layout { stored: [0, 32, HIDDEN], transposed: false, places: &[(0, 8, 16), (8, 4, 16), (12, 4, 16)] };
    let mut qkv = make.fused("0", &[("q", 16), ("k", 8), ("v", 8)], HIDDEN, layout).into_iter();
    (attention.q.weight, attention.k, attention.v) = (qkv.next().unwrap().weight, qkv.next(), qkv.next());
    attention.qk_norm =
        Some(QkNorm { q: make.norm("q_norm", 16, 16), k: Some(make.norm("k_norm", 8, 4)), after_rope: false });
    attention.clip = Some(0.9);
    attention.spec.sliding_window = Some(4);
    let mlp = Mlp { gate: None, activation: Activation::Relu2, ..make.mlp("0", HIDDEN) };
    let first = make.layer("0", Mixer::Attention(attention), FeedForward::Dense(mlp));
    let first = Layer { mixer_norm: Some(make.layer_norm("0.layer_norm")), mlp_norm: None, parallel: true, ..first };

    let mut attention = make.attention("1");
    let layout = Layout { stored: [0, HIDDEN, 32], transposed: true, places: &[(0, 16, 16), (16, 8, 8), (24, 8, 8)] };
    let mut qkv = make.fused("1", &[("q", 16), ("k", 8), ("v", 8)], HIDDEN, layout).into_iter();
    (attention.q.weight, attention.k, attention.v) = (qkv.next().unwrap().weight, qkv.next(), qkv.next());
    let mut heads = make.norm("head_norm", 4, 4);
    heads.further = (0..3).map(|i| make.weight(&format!("head_norm.{i}"), &[4], 1.0, 0.25)).collect();
    attention.qk_norm = Some(QkNorm { q: heads, k: Some(make.norm("k_norm.1", 4, 4)), after_rope: true });
    attention.rope = Some(1);
    attention.sub_norm = Some(make.norm("sub_norm", 16, 16));
    let mlp = Mlp { sub_norm: Some(make.norm("mlp.sub_norm", INNER, INNER)), ..make.mlp("1", HIDDEN) };
    let second = make.layer("1", Mixer::Attention(attention), FeedForward::Dense(mlp));
    let second = Layer {
        mixer_norm: None,
        mixer_post_norm: Some(make.norm("1.mixer_post", HIDDEN, HIDDEN)),
        mlp_post_norm: Some(make.norm("1.mlp_post", HIDDEN, HIDDEN)),
        residual_multiplier: 0.7,
        ..second
    };
    let mut plan = make.plan(vec![first, second]);
    plan.embed_scale = 4.0;
    plan.position_embed = Some(make.weight("positions", &[64, HIDDEN], 0.0, 1.0));
    plan.head.logit_scale = 0.5;
    plan.head.final_logit_softcapping = Some(2.0);
    plan
}

fn router(make: &mut Maker, name: &str, experts: usize, scoring: Scoring) -> Router {
    Router {
        linear: make.linear(name, experts, HIDDEN, true),
        norm: None,
        input_scale: 1.0,
        scoring,
        num_experts_per_tok: 2,
        selection_bias: None,
        selection_bias_weighs: false,
        groups: None,
        norm_topk_prob: false,
        norm_topk_eps: 0.0,
        routed_scaling_factor: 1.0,
        expert_scale: None,
        weights_input: false,
    }
}

/// gpt-oss: transposed experts with every other column, a clamped gate, sinks; then latent attention with groups of
/// experts and a shared one; then Llama 4's weighted inputs, chunks and temperature; then Gemma 4's norms around both.
fn mixture(make: &mut Maker) -> Plan {
    let mut attention = make.attention("0");
    attention.sinks = Some(make.vector("sinks", 4));
    attention.gate = Some(make.linear("attention_gate", 16, HIDDEN, false));
    attention.spec.attn_logit_softcapping = Some(3.0);
    let experts = (0..4).map(|e| {
        let layout = Layout { stored: [3, HIDDEN, 2 * INNER], transposed: true, places: &[(0, 1, 2), (1, 1, 2)] };
        let parts = [(format!("gate{e}"), INNER), (format!("up{e}"), INNER)];
        let parts: Vec<_> = parts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let mut both = make.fused(&format!("0.expert{e}"), &parts, HIDDEN, layout);
        let clamp = Some(Clamp { alpha: 1.7, limit: 0.8 });
        let mlp = make.mlp(&format!("0.e{e}"), HIDDEN);
        let biases = [false, true].map(|by_rows| make.every_other(&format!("0.e{e}.{by_rows}"), INNER, by_rows));
        both.iter_mut().zip(biases).for_each(|(linear, bias)| linear.bias = Some(bias));
        let mut both = both.into_iter();
        Mlp { gate: both.next(), up: both.next().unwrap(), clamp, ..mlp }
    });
    let experts = experts.collect();
    let router_0 = router(make, "router0", 4, Scoring::SoftmaxOfChosen);
    let moe = Moe { router: router_0, experts, shared: None, shared_gate: None, norms: None };
    let first = make.layer("0", Mixer::Attention(attention), FeedForward::Moe(Box::new(moe)));

    let latent = LatentAttention {
        spec: AttentionSpec { v_head_dim: Some(3), ..AttentionSpec::new(4, 4, 6) },
        rope: Some(1),
        qk_nope_head_dim: 4,
        qk_rope_head_dim: 2,
        q_a: Some((make.linear("q_a", 8, HIDDEN, true), make.norm("q_a_norm", 8, 8))),
        q: make.linear("q_b", 24, 8, false),
        kv_a: make.linear("kv_a", 7 + 2, HIDDEN, false),
        kv_a_norm: make.norm("kv_a_norm", 7, 7),
        kv_b: make.linear("kv_b", 4 * 7, 7, false),
        o: make.linear("mla_o", HIDDEN, 12, false),
        temperature: Some(Temperature { beta: 0.3, floor_scale: 3.0, offset: 0.0, slots: false }),
    };
    let experts = (0..8).map(|e| {
        let layout = Layout { stored: [3, 2 * INNER, HIDDEN], transposed: false, places: &[(0, 24, 24), (24, 24, 24)] };
        let parts = [(format!("gate1{e}"), INNER), (format!("up1{e}"), INNER)];
        let parts: Vec<_> = parts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let mut both = make.fused(&format!("1.expert{e}"), &parts, HIDDEN, layout).into_iter();
        Mlp { gate: both.next(), up: both.next().unwrap(), ..make.mlp(&format!("1.e{e}"), HIDDEN) }
    });
    let experts = experts.collect();
    let mut router_1 = router(make, "router1", 8, Scoring::Sigmoid);
    router_1.selection_bias = Some(make.vector("selection_bias", 8));
    router_1.groups = Some(Groups { n_group: 4, topk_group: 2, sum_of_two: true });
    (router_1.norm_topk_prob, router_1.norm_topk_eps, router_1.routed_scaling_factor) = (true, 1e-20, 2.5);
    let shared_gate = Some(make.linear("shared_gate", 1, HIDDEN, false));
    let moe = Moe { router: router_1, experts, shared: Some(make.mlp("1.shared", HIDDEN)), shared_gate, norms: None };
    let second = make.layer("1", Mixer::LatentAttention(latent), FeedForward::Moe(Box::new(moe)));

    let mut attention = make.attention("2");
    attention.rope = None;
    attention.temperature = Some(Temperature { beta: 0.1, floor_scale: 2.0, offset: 1.0, slots: true });
    attention.spec.attention_chunk_size = Some(4);
    let router_2 =
        Router { weights_input: true, num_experts_per_tok: 1, ..router(make, "router2", 3, Scoring::Sigmoid) };
    let experts = (0..3).map(|e| make.mlp(&format!("2.e{e}"), HIDDEN)).collect();
    let moe =
        Moe { router: router_2, experts, shared: Some(make.mlp("2.shared", HIDDEN)), shared_gate: None, norms: None };
    let third = make.layer("2", Mixer::Attention(attention), FeedForward::Moe(Box::new(moe)));

    let mut attention = make.attention("3");
    attention.v = None;
    attention.v_norm = Some(Norm { weight: None, ..make.norm("unused", 4, 4) });
    let mut router_3 = router(make, "router3", 4, Scoring::Softmax);
    (router_3.norm, router_3.input_scale) = (Some(make.norm("router_norm", HIDDEN, HIDDEN)), 0.25);
    (router_3.norm_topk_prob, router_3.expert_scale) = (true, Some(make.vector("expert_scale", 4)));
    let experts = (0..4).map(|e| make.mlp(&format!("3.e{e}"), HIDDEN)).collect();
    let norms = ["in", "out", "shared"].map(|name| make.norm(&format!("moe_{name}"), HIDDEN, HIDDEN));
    let [experts_in, experts_out, shared_out] = norms;
    let norms = Some(MoeNorms { experts_in, experts_out, shared_out });
    let moe = Moe { router: router_3, experts, shared: Some(make.mlp("3.shared", HIDDEN)), shared_gate: None, norms };
    let fourth = make.layer("3", Mixer::Attention(attention), FeedForward::Moe(Box::new(moe)));
    let fourth = Layer { scalar: Some(make.weight("scalar", &[1], 0.5, 0.1)), ..fourth };
    make.plan(vec![first, second, third, fourth])
}

/// Gemma 3n: four copies of the hidden state, Laurel, the layers' own inputs, sparsity, and keys and values that later
/// layers share, with a window.
fn copies(make: &mut Maker) -> Plan {
    let layers = (0..4).map(|i| {
        let name = i.to_string();
        let mut attention = make.attention(&name);
        attention.spec.scale = 1.0;
        attention.spec.sliding_window = (i % 2 == 0).then_some(3);
        if i >= 2 {
            (attention.k, attention.v, attention.kv_layer) = (None, None, Some(i - 2));
        }
        let mut mlp = make.mlp(&name, HIDDEN);
        (mlp.activation, mlp.sparsity) = (Activation::GeluTanh, (i < 2).then_some(0.5));
        let layer = make.layer(&name, Mixer::Attention(attention), FeedForward::Dense(mlp));
        let mut linear = |part: &str, outputs, inputs| make.linear(&format!("{name}.{part}"), outputs, inputs, false);
        let per_layer = (linear("ple_gate", 5, HIDDEN), linear("ple_projection", HIDDEN, 5));
        let (router, prediction) = (linear("altup_router", 3, HIDDEN), linear("prediction", 9, 3));
        let correction = linear("correction", 3, 3);
        let (laurel_left, laurel_right) = (linear("laurel_l", 4, HIDDEN), linear("laurel_r", HIDDEN, 4));
        let altup = AltUp {
            router_norm: make.norm(&format!("{name}.router_norm"), HIDDEN, HIDDEN),
            router_scale: 0.25,
            router,
            prediction,
            correction,
            output_scale: Some(make.vector(&format!("{name}.output_scale"), HIDDEN)),
            laurel_left,
            laurel_right,
            laurel_norm: make.norm(&format!("{name}.laurel_norm"), HIDDEN, HIDDEN),
        };
        Layer {
            mixer_post_norm: Some(make.norm(&format!("{name}.mixer_post"), HIDDEN, HIDDEN)),
            mlp_post_norm: Some(make.norm(&format!("{name}.mlp_post"), HIDDEN, HIDDEN)),
            altup: Some(Box::new(altup)),
            per_layer_input: Some(PerLayerInput {
                activation: Activation::GeluTanh,
                gate: per_layer.0,
                projection: per_layer.1,
                norm: make.norm(&format!("{name}.ple_norm"), HIDDEN, HIDDEN),
            }),
            ..layer
        }
    });
    let layers = layers.collect();
    let mut plan = make.plan(layers);
    plan.per_layer_inputs = Some(PerLayerInputs {
        dim: 5,
        // The last tokens are beyond it.
        embed: make.weight("ple_embed", &[32, 20], 0.0, 1.0),
        embed_scale: 2.0,
        projection: make.linear("ple", 20, HIDDEN, false),
        projection_scale: 0.25,
        norm: make.norm("ple_norm", 5, 5),
        scale: 0.7,
    });
    let ends = |make: &mut Maker, name: &str| {
        (0..2).map(|i| make.linear(&format!("{name}{i}"), HIDDEN, HIDDEN, false)).collect()
    };
    plan.altup = Some(AltUpEnds { active: 0, projections: ends(make, "in"), unembed_projections: ends(make, "out") });
    plan.head.logits_scaling = 2.0;
    plan
}

type Make = fn(&mut Maker) -> Plan;

const MODELS: [(&str, Make); 3] = [("dense", dense), ("mixture", mixture), ("copies", copies)];

fn model(make: Make, lie: Lie) -> (Plan, MemorySource) {
    let mut maker = Maker { lie, tensors: BTreeMap::new() };
    let plan = make(&mut maker);
    // A maker may have made what the plan doesn't use.
    let mut used = BTreeSet::new();
    plan.each_weight(&mut |weight| {
        used.insert(weight.name.clone());
    });
    maker.tensors.retain(|name, _| used.contains(name));
    (plan, MemorySource::new(maker.tensors).unwrap())
}

/// Some of the tokens, at every third position.
fn input(session: &mut Session<f32>, range: Range<usize>) -> Input<'_, f32> {
    Input { session, tokens: TOKENS[range.clone()].to_vec(), positions: range.map(|p| p as u32 * 3).collect() }
}

/// The last logits when the tokens go through in chunks of these sizes.
fn logits<F: Vectors>(
    executor: &Executor<'_, F>,
    plan: &Plan,
    options: SessionOptions,
    chunks: &[usize],
    see: &mut dyn Observer<F>,
) -> Vec<F> {
    let mut session = Session::with_options(plan, 64, options);
    let mut last = Vec::new();
    let mut first = 0;
    for &n in chunks {
        let tokens = TOKENS[first..first + n].to_vec();
        let positions = (first..first + n).map(|p| p as u32 * 3).collect();
        let input = Input { session: &mut session, tokens, positions };
        last = executor.run(vec![input], Rows::Last, see).unwrap()[0].data().to_vec();
        first += n;
    }
    assert_eq!(first, TOKENS.len());
    last
}

fn whole<F: Vectors>(plan: &Plan, source: &Arc<dyn Source>, kernels: &dyn Kernels<F>) -> Vec<F> {
    let executor = Executor::new(plan, source, kernels);
    let logits = logits(&executor, plan, SessionOptions::default(), &[TOKENS.len()], &mut ());
    let spread = |f: fn(f64, f64) -> f64, start| logits.iter().fold(start, |a, v| f(a, v.to_f64()));
    let (low, high) = (spread(f64::min, f64::MAX), spread(f64::max, f64::MIN));
    assert!(high - low > 0.1 && high < 1e3, "sensible logits, {low} to {high}");
    logits
}

#[test]
fn weights_give_the_same_bits_wherever_they_lie_and_however_they_are_read() {
    for (name, make) in MODELS {
        let (plan, source) = model(make, Lie::Plain);
        let plain: Arc<dyn Source> = Arc::new(source);
        let expected = whole::<f32>(&plan, &plain, &Reference::default());
        let (plan, source) = model(make, Lie::Fused);
        let source: Arc<dyn Source> = Arc::new(source);
        let streamed: Arc<dyn Source> = Arc::new(Watched::new(Arc::clone(&source)));
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for source in [&source, &streamed] {
                for piece_bytes in [1, 100, 1000, usize::MAX] {
                    let kernels = Reference::default();
                    let executor = Executor::<f32>::new(&plan, source, &kernels).with_piece_bytes(piece_bytes);
                    let run = || logits(&executor, &plan, SessionOptions::default(), &[TOKENS.len()], &mut ());
                    let found = pool.install(run);
                    assert_eq!(found, expected, "{name}, {threads} threads, pieces of {piece_bytes}");
                }
            }
        }
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            assert_eq!(whole::<f32>(&plan, &source, &Reference::at(level)), expected, "{name}, {level}");
        }
    }
}

#[test]
fn a_prompt_gives_the_same_bits_however_it_is_cut_and_whatever_else_is_in_the_pass() {
    for (name, make) in MODELS {
        let (plan, source) = model(make, Lie::Fused);
        let source: Arc<dyn Source> = Arc::new(source);
        let kernels = Reference::default();
        let expected = whole::<f32>(&plan, &source, &kernels);
        let executor = Executor::<f32>::new(&plan, &source, &kernels);
        for rolling in [false, true] {
            let options = SessionOptions { rolling, ..SessionOptions::default() };
            for chunks in [&[1; 11][..], &[10, 1], &[5, 6], &[1, 9, 1]] {
                let found = logits(&executor, &plan, options, chunks, &mut ());
                assert_eq!(found, expected, "{name} in chunks {chunks:?}, rolling {rolling}");
            }
        }
        let (mut a, mut b) = (Session::new(&plan, 64), Session::new(&plan, 64));
        let inputs = vec![
            Input { session: &mut a, tokens: vec![7, 7, 2], positions: vec![0, 1, 2] },
            input(&mut b, 0..TOKENS.len()),
        ];
        let both = executor.run(inputs, Rows::Last, &mut ()).unwrap();
        assert_eq!(both[1].data(), expected, "{name} beside another prompt");
        // A snapshot goes on where it was taken.
        let mut snapshot = Vec::new();
        let mut session = Session::<f32>::new(&plan, 64);
        executor.run(vec![input(&mut session, 0..6)], Rows::Last, &mut ()).unwrap();
        session.snapshot(&plan, &mut snapshot).unwrap();
        let mut session = Session::restore(&plan, SessionOptions::default(), &mut &snapshot[..]).unwrap();
        let last = executor.run(vec![input(&mut session, 6..11)], Rows::Last, &mut ()).unwrap();
        assert_eq!(last[0].data(), expected, "{name} after a snapshot");
    }
}

/// Which experts were chosen, per layer.
#[derive(Default)]
struct Chosen(BTreeMap<usize, (BTreeSet<usize>, usize)>);

impl Observer<f32> for Chosen {
    fn see(&mut self, _: Stage, rows: &Matrix<f32>) {
        assert!(rows.data().iter().all(|v| v.is_finite()), "weights of other experts are not finite");
    }

    fn experts(&mut self, layer: usize, chosen: &[Vec<(usize, f32)>], count: usize) {
        assert_eq!(chosen.len(), TOKENS.len());
        let indices = chosen.iter().flatten().map(|&(e, _)| e).collect();
        self.0.insert(layer, (indices, count));
    }
}

#[test]
fn each_needed_byte_is_read_once_and_ahead_of_time_and_experts_that_no_token_chose_are_not_read() {
    for (name, make) in MODELS {
        let (plan, source) = model(make, Lie::Fused);
        let watched = Arc::new(Watched::new(Arc::new(source)));
        let source: Arc<dyn Source> = Arc::<Watched>::clone(&watched);
        let kernels = Reference::default();
        let executor = Executor::new(&plan, &source, &kernels).with_piece_bytes(200);
        let mut chosen = Chosen::default();
        let options = SessionOptions::default();
        logits(&executor, &plan, options, &[TOKENS.len()], &mut chosen);
        watched.check(&plan, &|layer, expert| chosen.0[&layer].0.contains(&expert), name);
        for (layer, (indices, count)) in &chosen.0 {
            assert!(!indices.is_empty() && indices.last() < Some(count), "{name}, layer {layer}: {indices:?}");
        }
        if name == "mixture" {
            assert_eq!(chosen.0.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert!(chosen.0.values().any(|(indices, count)| indices.len() < *count), "some experts stay unread");
        }
    }
}

#[test]
fn what_is_read_twice_or_not_at_all_is_noticed() {
    let (plan, source) = model(mixture, Lie::Fused);
    let watched = Arc::new(Watched::new(Arc::new(source)));
    let source: Arc<dyn Source> = Arc::<Watched>::clone(&watched);
    let kernels = Reference::default();
    let executor = Executor::new(&plan, &source, &kernels);
    let run = || logits::<f32>(&executor, &plan, SessionOptions::default(), &[TOKENS.len()], &mut ());
    let message = |chosen: fn(usize, usize) -> bool| {
        let check = || watched.check(&plan, &chosen, "mixture");
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_err();
        panic.downcast_ref::<String>().unwrap().clone()
    };
    run();
    assert!(message(|_, _| true).contains("of expert"), "{}", message(|_, _| true));
    run();
    assert!(message(|_, _| true).contains("were read, it has"), "{}", message(|_, _| true));
}

#[test]
fn the_accelerated_executor_is_near_the_truth_as_the_reference_is() {
    for (name, make) in MODELS {
        let (plan, source) = model(make, Lie::Fused);
        let source: Arc<dyn Source> = Arc::new(source);
        let truth = whole::<f64>(&plan, &source, &Reference::default());
        let distance =
            |logits: &[f32]| logits.iter().zip(&truth).map(|(&l, t)| (f64::from(l) - t).abs()).fold(0.0, f64::max);
        let reference = distance(&whole(&plan, &source, &Reference::default()));
        let fast = distance(&whole(&plan, &source, &Accelerated::new(by_name("gemm").unwrap())));
        assert!(reference < 1e-4 && fast < 8.0 * reference + 1e-6, "{name}: {fast:e} against {reference:e}");
    }
}
