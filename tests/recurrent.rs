//! Short convolutions, Mamba-2, the gated delta rule and Kimi delta attention: their values, and that no bit depends on how
//! a prompt is cut.

mod common;

use checkpoint_oracle::checkpoint::{Dtype, MemorySource, Source};
use checkpoint_oracle::engine::Local;
use checkpoint_oracle::engine::blind::{blind_spots, sizes};
use checkpoint_oracle::engine::equivalence::{Check, Equivalence, Gate, Kind, RunOutcome, Subject, check};
use checkpoint_oracle::exec::faults::{Injection, Probe, Schedule, ShownBy, Trial, catalogue, inject};
use checkpoint_oracle::exec::reference::{Reference, Vectors};
use checkpoint_oracle::exec::state::{CacheFormat, SnapshotError, StateError};
use checkpoint_oracle::exec::{Executor, Input, Observer, Rows, Session, SessionOptions, Stage};
use checkpoint_oracle::model::Plan;
use checkpoint_oracle::model::plan::{
    Attention, CausalConv, FeedForward, GatedDelta, Head, Layer, Linear, Mamba2, Mixer, Mlp, Norm, NormKind, Part,
    ShortConv, Weight,
};
use checkpoint_oracle::ops::attention::AttentionSpec;
use checkpoint_oracle::ops::rope::{Rope, RopeScaling};
use checkpoint_oracle::ops::{Activation, Level, Matrix};
use checkpoint_oracle::oracle::report::Format;
use checkpoint_oracle::oracle::verdict::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const VOCAB: usize = 32;
const HIDDEN: usize = 8;
const TOKENS: usize = 11;

/// Makes the weights of a model as they are asked for.
#[derive(Default)]
struct Maker {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Maker {
    /// Element i is `center + scale * k / 64`, k being between -64 and 64 and depending on i and on the name; exact in
    /// float32.
    fn weight(&mut self, name: &str, shape: &[usize], center: f32, scale: f32) -> Weight {
        let seed: usize = name.bytes().enumerate().map(|(i, byte)| (i + 1) * byte as usize).sum();
        let value = |i: usize| {
            let k = (i * i * 31 + i * 17 + seed * 101) % 129;
            center + scale * (k as f32 - 64.0) / 64.0
        };
        let elements = shape.iter().product();
        let bytes = (0..elements).flat_map(|i| value(i).to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), bytes));
        Weight::whole(name.to_owned(), shape)
    }

    fn vector(&mut self, name: &str, n: usize) -> Weight {
        self.weight(name, &[n], 0.0, 0.5)
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) -> Linear {
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), outputs));
        Linear::new(self.weight(&format!("{name}.weight"), &[outputs, inputs], 0.0, 0.5), bias)
    }

    fn norm(&mut self, name: &str, n: usize, size: usize) -> Norm {
        let weight = Some(self.weight(name, &[n], 1.0, 0.25));
        Norm { weight, further: vec![], bias: None, eps: 1e-5, kind: NormKind::Rms, offset: 0.0, size }
    }

    fn conv(&mut self, name: &str, channels: usize, kernel: usize, bias: bool, act: Option<Activation>) -> CausalConv {
        let bias = bias.then(|| self.vector(&format!("{name}.bias"), channels));
        CausalConv {
            weight: self.weight(&format!("{name}.weight"), &[channels, kernel], 0.0, 1.0),
            bias,
            activation: act,
        }
    }

    fn mlp(&mut self, name: &str) -> Mlp {
        Mlp {
            activation: Activation::Silu,
            gate: Some(self.linear(&format!("{name}.gate"), 12, HIDDEN, false)),
            up: self.linear(&format!("{name}.up"), 12, HIDDEN, false),
            down: self.linear(&format!("{name}.down"), HIDDEN, 12, false),
            clamp: None,
            sparsity: None,
            sub_norm: None,
        }
    }

    fn layer(&mut self, index: usize, mixer: impl Fn(&mut Self, &str) -> Mixer) -> Layer {
        Layer {
            mixer_norm: Some(self.norm(&format!("{index}.mixer_norm"), HIDDEN, HIDDEN)),
            mixer: mixer(self, &index.to_string()),
            mixer_post_norm: None,
            mlp_norm: Some(self.norm(&format!("{index}.mlp_norm"), HIDDEN, HIDDEN)),
            mlp: Some(FeedForward::Dense(self.mlp(&format!("{index}.mlp")))),
            mlp_post_norm: None,
            parallel: false,
            residual_multiplier: 1.0,
            altup: None,
            per_layer_input: None,
            scalar: None,
        }
    }
}

fn attention(make: &mut Maker, name: &str) -> Mixer {
    let mut linear = |part: &str, outputs| make.linear(&format!("{name}.{part}"), outputs, HIDDEN, false);
    Mixer::Attention(Attention {
        spec: AttentionSpec::new(2, 1, 4),
        rope: Some(0),
        q: linear("q", 8),
        k: Some(linear("k", 4)),
        v: Some(linear("v", 4)),
        o: linear("o", HIDDEN),
        qk_norm: None,
        v_norm: None,
        kv_layer: None,
        gate: None,
        sinks: None,
        clip: None,
        temperature: None,
        sub_norm: None,
    })
}

fn short_conv(make: &mut Maker, name: &str) -> Mixer {
    let mut linear = |part: &str| make.linear(&format!("{name}.{part}"), HIDDEN, HIDDEN, true);
    let (b, c, x, out) = (linear("b"), linear("c"), linear("x"), linear("out"));
    Mixer::ShortConv(ShortConv { b, c, x, conv: make.conv(&format!("{name}.conv"), HIDDEN, 3, true, None), out })
}

fn mamba2(make: &mut Maker, name: &str) -> Mixer {
    let of = |part: &str| format!("{name}.{part}");
    Mixer::Mamba2(Mamba2 {
        num_heads: 4,
        head_dim: 4,
        n_groups: 2,
        state_size: 3,
        time_step_limit: (0.25, 1.5),
        z: make.linear(&of("z"), 16, HIDDEN, true),
        xbc: make.linear(&of("xbc"), 28, HIDDEN, true),
        dt: make.linear(&of("dt"), 4, HIDDEN, true),
        conv: make.conv(&of("conv"), 28, 4, true, Some(Activation::Silu)),
        dt_bias: Some(make.vector(&of("dt_bias"), 4)),
        a_log: make.vector(&of("a_log"), 4),
        d: Some(make.vector(&of("d"), 4)),
        norm: make.norm(&of("norm"), 16, 8),
        norm_before_gate: false,
        out: make.linear(&of("out"), HIDDEN, 16, true),
    })
}

fn gated_delta(make: &mut Maker, name: &str) -> Mixer {
    let of = |part: &str| format!("{name}.{part}");
    let silu = Some(Activation::Silu);
    Mixer::GatedDelta(GatedDelta {
        num_k_heads: 2,
        num_v_heads: 4,
        head_k_dim: 3,
        head_v_dim: 5,
        q: make.linear(&of("q"), 6, HIDDEN, false),
        k: make.linear(&of("k"), 6, HIDDEN, false),
        v: make.linear(&of("v"), 20, HIDDEN, false),
        conv: vec![make.conv(&of("conv"), 32, 4, false, silu)],
        qk_l2_norm_eps: Some(1e-6),
        beta: make.linear(&of("beta"), 4, HIDDEN, false),
        decay: vec![make.linear(&of("decay"), 4, HIDDEN, false)],
        dt_bias: Some(make.vector(&of("dt_bias"), 4)),
        a_log: make.vector(&of("a_log"), 4),
        gate: vec![make.linear(&of("gate"), 20, HIDDEN, false)],
        gate_activation: Activation::Silu,
        norm: make.norm(&of("norm"), 5, 5),
        out: make.linear(&of("out"), HIDDEN, 20, false),
    })
}

fn kimi_delta(make: &mut Maker, name: &str) -> Mixer {
    let of = |part: &str| format!("{name}.{part}");
    let silu = Some(Activation::Silu);
    Mixer::GatedDelta(GatedDelta {
        num_k_heads: 2,
        num_v_heads: 2,
        head_k_dim: 4,
        head_v_dim: 4,
        q: make.linear(&of("q"), 8, HIDDEN, false),
        k: make.linear(&of("k"), 8, HIDDEN, false),
        v: make.linear(&of("v"), 8, HIDDEN, false),
        conv: ["q_conv", "k_conv", "v_conv"].map(|part| make.conv(&of(part), 8, 4, false, silu)).to_vec(),
        qk_l2_norm_eps: Some(1e-6),
        beta: make.linear(&of("beta"), 2, HIDDEN, false),
        decay: vec![make.linear(&of("f_a"), 4, HIDDEN, false), make.linear(&of("f_b"), 8, 4, false)],
        dt_bias: Some(make.vector(&of("dt_bias"), 8)),
        a_log: make.vector(&of("a_log"), 2),
        gate: vec![make.linear(&of("g_a"), 4, HIDDEN, false), make.linear(&of("g_b"), 8, 4, false)],
        gate_activation: Activation::Sigmoid,
        norm: make.norm(&of("norm"), 4, 4),
        out: make.linear(&of("out"), HIDDEN, 8, false),
    })
}

type Make = fn(&mut Maker, &str) -> Mixer;

const MIXERS: [(&str, Make); 4] =
    [("short convolution", short_conv), ("Mamba-2", mamba2), ("gated delta", gated_delta), ("Kimi delta", kimi_delta)];

struct Model {
    plan: Plan,
    source: Arc<dyn Source>,
}

impl Model {
    /// Layers with these mixers.
    fn of(mixers: &[Make]) -> Self {
        let mut make = Maker::default();
        let layers: Vec<Layer> = mixers.iter().enumerate().map(|(index, mixer)| make.layer(index, mixer)).collect();
        let rope = Rope { dim: 4, rope_theta: 100.0, interleaved: false, scaling: RopeScaling::Default };
        let attends = layers.iter().any(|layer| layer.mixer.attention_spec().is_some());
        let plan = Plan {
            vocab_size: VOCAB,
            hidden_size: HIDDEN,
            max_position_embeddings: 64,
            ropes: if attends { vec![rope] } else { vec![] },
            embed: make.weight("embed", &[VOCAB, HIDDEN], 0.0, 1.0),
            embed_scale: 1.0,
            position_embed: None,
            per_layer_inputs: None,
            altup: None,
            layers,
            norm: make.norm("norm", HIDDEN, HIDDEN),
            head: Head {
                linear: make.linear("head", VOCAB, HIDDEN, false),
                tied: false,
                logit_scale: 1.0,
                logits_scaling: 1.0,
                final_logit_softcapping: None,
            },
            placeholder_tokens: BTreeMap::new(),
        };
        Self { plan, source: Arc::new(MemorySource::new(make.tensors).unwrap()) }
    }

    /// Two layers of the mixer and attention between them.
    fn hybrid(mixer: Make) -> Self {
        Self::of(&[mixer, attention, mixer])
    }

    fn session<F: Vectors>(&self) -> Session<F> {
        Session::new(&self.plan, 40)
    }

    fn run<F: Vectors>(&self, inputs: Vec<Input<'_, F>>, see: &mut dyn Observer<F>) -> Vec<Vec<f64>> {
        let kernels = Reference::default();
        let logits = Executor::new(&self.plan, &self.source, &kernels).run(inputs, Rows::All, see).unwrap();
        logits.iter().map(|logits| logits.data().iter().map(|v| v.to_f64()).collect()).collect()
    }

    fn input<'s, F: Vectors>(session: &'s mut Session<F>, n: usize, shift: usize) -> Input<'s, F> {
        let first = session.len();
        let tokens = (first..first + n).map(|i| ((i * 7 + 3 + shift) % VOCAB) as u32).collect();
        Input { session, tokens, positions: (first as u32..(first + n) as u32).collect() }
    }

    /// The next `n` tokens of one fixed sequence, or those of another; the logits of all.
    fn feed_from<F: Vectors>(&self, session: &mut Session<F>, n: usize, shift: usize) -> Vec<f64> {
        self.run(vec![Self::input(session, n, shift)], &mut ()).remove(0)
    }

    fn feed<F: Vectors>(&self, session: &mut Session<F>, n: usize) -> Vec<f64> {
        self.feed_from(session, n, 0)
    }

    /// The last `rows` of the logits of `n` tokens in one pass.
    fn whole<F: Vectors>(&self, n: usize, rows: usize) -> Vec<f64> {
        self.feed::<F>(&mut self.session(), n)[(n - rows) * VOCAB..].to_vec()
    }

    /// The logits of all tokens with weights that are read in pieces, and how many bytes were read.
    fn streamed(&self, piece_bytes: usize) -> (Vec<f64>, u64) {
        let source = Arc::new(common::Streamed(Arc::clone(&self.source), AtomicU64::new(0)));
        let streamed: Arc<dyn Source> = Arc::clone(&source) as _;
        let kernels = Reference::at(Level::Portable);
        let executor = Executor::new(&self.plan, &streamed, &kernels).with_piece_bytes(piece_bytes);
        let mut session = self.session::<f32>();
        let logits = executor.run(vec![Self::input(&mut session, TOKENS, 0)], Rows::All, &mut ()).unwrap();
        (logits[0].data().iter().map(|&v| f64::from(v)).collect(), source.1.load(Ordering::Relaxed))
    }

    /// Bytes that a pass needs: each weight once, of the embedding a row for each token.
    fn bytes(&self) -> u64 {
        let tensors = self.source.tensors().values();
        let weights: u64 = tensors.filter(|info| info.name != "embed").map(|info| info.len).sum();
        weights + (TOKENS * HIDDEN * size_of::<f32>()) as u64
    }

    fn snapshot<F: Vectors>(&self, session: &Session<F>) -> Vec<u8> {
        let mut bytes = Vec::new();
        session.snapshot(&self.plan, &mut bytes).unwrap();
        bytes
    }

    fn restore(&self, bytes: &[u8]) -> Result<Session<f32>, SnapshotError> {
        Session::restore(&self.plan, SessionOptions::default(), &mut &*bytes)
    }
}

/// Keeps the last row of the first layer's mixer.
struct MixerOut(Vec<f64>);

impl Observer<f64> for MixerOut {
    fn see(&mut self, stage: Stage, rows: &Matrix<f64>) {
        if stage.layer == Some(0) && stage.name == "mixer.out" {
            self.0 = rows.row(rows.rows() - 1).to_vec();
        }
    }
}

/// The first layer's mixer after 11 tokens, from the modules of transformers 5.24 (Lfm2ShortConv, Mamba2Mixer,
/// Qwen3_5GatedDeltaNet, KimiLinearDeltaAttention; the chunked forms) in float64 with the weights of [`Maker`].
#[test]
fn each_mixer_gives_what_its_module_in_transformers_gives() {
    let expected: [[f64; HIDDEN]; 4] = [
        [
            0.107_694_889_857_897_12,
            -0.654_083_822_377_881_5,
            0.343_743_720_501_253_24,
            -0.467_333_320_402_306_74,
            -0.428_035_557_275_552_4,
            -0.171_074_584_532_990_5,
            -0.544_986_340_627_442_7,
            -0.089_053_794_000_823_36,
        ],
        [
            1.144_730_376_412_661,
            0.739_225_098_161_746_5,
            -0.632_983_479_343_797_5,
            -0.305_530_490_113_053_55,
            0.898_208_446_220_612_1,
            -1.541_466_199_792_051_6,
            0.771_525_488_864_401_2,
            1.347_524_125_665_685,
        ],
        [
            0.773_571_204_020_093_7,
            0.138_785_079_380_406_52,
            -0.404_935_645_685_439_9,
            0.396_884_775_030_525_77,
            0.452_854_141_405_494_9,
            -0.726_646_500_724_757_8,
            0.206_256_520_606_571_99,
            0.209_163_376_060_971_05,
        ],
        [
            0.464_732_089_682_561_24,
            0.740_434_193_927_870_5,
            0.020_237_480_088_444_906,
            0.334_488_818_813_451,
            0.164_270_214_608_827_35,
            0.210_143_964_257_311_63,
            0.185_602_778_762_572_42,
            -0.142_487_390_051_555_1,
        ],
    ];
    for ((name, mixer), expected) in MIXERS.into_iter().zip(expected) {
        let model = Model::of(&[mixer]);
        let mut seen = MixerOut(vec![]);
        model.run::<f64>(vec![Model::input(&mut model.session(), TOKENS, 0)], &mut seen);
        for (found, expected) in seen.0.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{name}: {:?}", seen.0);
        }
        assert_eq!(seen.0.len(), HIDDEN, "{name}");
    }
}

fn chunked<F: Vectors>(model: &Model, chunks: &[usize]) -> Vec<f64> {
    let mut session = model.session::<F>();
    chunks.iter().flat_map(|&n| model.feed(&mut session, n)).collect()
}

#[test]
fn no_bit_depends_on_how_a_prompt_is_cut() {
    for (name, mixer) in MIXERS {
        let model = Model::hybrid(mixer);
        let whole = model.whole::<f32>(TOKENS, TOKENS);
        let ways: [&[usize]; 6] = [&[1; TOKENS], &[10, 1], &[1, 10], &[2, 3, 6], &[3, 3, 3, 2], &[4, 1, 6]];
        for chunks in ways {
            assert_eq!(chunked::<f32>(&model, chunks), whole, "{name}: {chunks:?}");
        }
        assert_eq!(chunked::<f64>(&model, &[2, 1, 8]), model.whole::<f64>(TOKENS, TOKENS), "{name}");
        assert_ne!(whole, model.whole::<f64>(TOKENS, TOKENS), "{name}: float32 rounds");
    }
}

#[test]
fn no_bit_depends_on_threads_vectors_streaming_or_company() {
    for (name, mixer) in MIXERS {
        let model = Model::hybrid(mixer);
        let whole = model.whole::<f32>(TOKENS, TOKENS);
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(|| model.whole::<f32>(TOKENS, TOKENS)), whole, "{name}: {threads} threads");
        }
        for bytes in [1, usize::MAX] {
            let (logits, read) = model.streamed(bytes);
            assert_eq!(logits, whole, "{name}: read in pieces of {bytes} bytes");
            assert_eq!(read, model.bytes(), "{name}: in pieces of {bytes} bytes everything is read once");
        }
        // Three sequences at once, one of which goes on.
        let (mut first, mut second, mut third) = (model.session::<f32>(), model.session(), model.session());
        let begun = model.feed(&mut second, 4);
        let inputs = vec![
            Model::input(&mut first, 6, 5),
            Model::input(&mut second, TOKENS - 4, 0),
            Model::input(&mut third, TOKENS, 0),
        ];
        let together = model.run(inputs, &mut ());
        assert_eq!(together[0], model.feed_from::<f32>(&mut model.session(), 6, 5), "{name}");
        assert_eq!([begun, together[1].clone()].concat(), whole, "{name}");
        assert_eq!(together[2], whole, "{name}");
    }
}

/// Qwen3-Next's projections: for each key head its query, its key, its value heads and their gates in one tensor, and the
/// steps and decays of its value heads in another.
#[test]
fn a_fused_projection_is_read_once_and_gives_the_same_bits() {
    let separate = Model::of(&[gated_delta]);
    let mut fused = Model::of(&[gated_delta]);
    let mut tensors = BTreeMap::new();
    for (name, info) in separate.source.tensors() {
        let bytes = separate.source.read(info, 0..info.len).unwrap();
        tensors.insert(name.clone(), (info.dtype.clone(), info.shape.clone(), bytes));
    }
    let Mixer::GatedDelta(delta) = &mut fused.plan.layers[0].mixer else { panic!("it is one") };
    for (name, parts) in [
        ("0.qkvz", vec![(&mut delta.q, 3), (&mut delta.k, 3), (&mut delta.v, 10), (&mut delta.gate[0], 10)]),
        ("0.ba", vec![(&mut delta.beta, 2), (&mut delta.decay[0], 2)]),
    ] {
        let stride: usize = parts.iter().map(|(_, block)| block).sum();
        let row = HIDDEN * size_of::<f32>();
        let stored = vec![2 * stride, HIDDEN];
        let mut bytes = vec![0; 2 * stride * row];
        let mut first = 0;
        for (linear, block) in parts {
            let (_, _, own) = tensors.remove(&linear.weight.name).unwrap();
            for (head, rows) in own.chunks_exact(block * row).enumerate() {
                bytes[(head * stride + first) * row..][..block * row].copy_from_slice(rows);
            }
            linear.weight.name = name.to_owned();
            let part = Part { stored: stored.clone(), base: 0, first, block, stride, transposed: false, packed: false };
            linear.weight.part = Some(Box::new(part));
            first += block;
        }
        tensors.insert(name.to_owned(), (Dtype::F32, stored, bytes));
    }
    fused.source = Arc::new(MemorySource::new(tensors).unwrap());
    let whole = separate.whole::<f32>(TOKENS, TOKENS);
    assert_eq!(fused.whole::<f32>(TOKENS, TOKENS), whole);
    for bytes in [1, usize::MAX] {
        assert_eq!(fused.streamed(bytes), (whole.clone(), separate.bytes()));
    }
}

#[test]
fn a_fork_and_its_origin_do_not_see_each_other() {
    for (name, mixer) in MIXERS {
        let model = Model::hybrid(mixer);
        let mut origin = model.session::<f32>();
        model.feed(&mut origin, 5);
        let mut fork = origin.fork();
        model.feed_from(&mut origin, 3, 9);
        assert_eq!(model.feed(&mut fork, TOKENS - 5), model.whole::<f32>(TOKENS, TOKENS - 5), "{name}");
    }
}

#[test]
fn a_restored_session_goes_on_with_the_same_bits() {
    for (name, mixer) in MIXERS {
        let model = Model::hybrid(mixer);
        for n in [0, 1, 2, 3, 7] {
            let mut session = model.session::<f32>();
            if n > 0 {
                model.feed(&mut session, n);
            }
            let bytes = model.snapshot(&session);
            let mut restored = model.restore(&bytes).unwrap();
            assert_eq!(model.snapshot(&restored), bytes, "{name}");
            assert_eq!(restored.shape(), session.shape(), "{name}");
            assert_eq!(
                model.feed(&mut restored, TOKENS - n),
                model.whole::<f32>(TOKENS, TOKENS - n),
                "{name} after {n}"
            );
        }
    }
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let model = Model::hybrid(mamba2);
    let mut session = model.session::<f32>();
    model.feed(&mut session, 5);
    let sound = model.snapshot(&session);
    let at = sound.iter().position(|&b| b == b'\n').unwrap();
    let set = |path: &str, value: serde_json::Value| {
        let mut header: serde_json::Value = serde_json::from_slice(&sound[..at]).unwrap();
        *header.pointer_mut(path).unwrap() = value;
        [header.to_string().as_bytes(), &sound[at..]].concat()
    };
    let null = serde_json::Value::Null;
    for (bytes, wanted) in [
        (set("/layers/0/0/first", null.clone()), "expected the inputs of a convolution over 28 channels"),
        (set("/layers/0/0/name", "keys".into()), "expected the inputs of a convolution over 28 channels"),
        (set("/layers/0/0/first", 3.into()), "expected conv up to token 5, found 3 rows from token 3 on"),
        (set("/layers/0/1/name", "conv".into()), "expected the state of a scan, 12 x 4"),
        (set("/layers/2/1/first", (5i64 - 12).into()), "not a session snapshot"),
        (set("/layers/1/0/first", null), "expected keys and values of tokens"),
    ] {
        let error = model.restore(&bytes).map(|s| s.len()).unwrap_err().to_string();
        common::assert_says(&error, &[wanted]);
    }
    // The last of the three inputs that the next token needs is not there: it is another session's.
    let bytes = set("/len", 3.into());
    let error = model.restore(&bytes).map(|s| s.len()).unwrap_err().to_string();
    common::assert_says(&error, &["expected conv up to token 3, found 3 rows from token 2 on"]);
}

#[test]
fn a_recurrent_state_goes_back_to_the_start_only() {
    for (name, mixer) in MIXERS {
        let model = Model::hybrid(mixer);
        let mut session = model.session::<f32>();
        let new = model.snapshot(&session);
        model.feed_from(&mut session, 6, 2);
        let before = model.snapshot(&session);
        for wanted in [1, 4, 5] {
            let refused = session.trim(wanted).unwrap_err();
            assert_eq!(refused, StateError::Recurrent { len: 6, wanted }, "{name}");
            assert_eq!(model.snapshot(&session), before, "{name}: nothing has changed");
        }
        session.trim(6).unwrap();
        assert_eq!(model.snapshot(&session), before, "{name}");
        session.trim(0).unwrap();
        assert_eq!(model.snapshot(&session), new, "{name}");
        assert_eq!(model.feed(&mut session, TOKENS), model.whole::<f32>(TOKENS, TOKENS), "{name}");
        session.reset();
        assert_eq!(model.snapshot(&session), new, "{name}");
        assert_eq!(model.feed(&mut session, TOKENS), model.whole::<f32>(TOKENS, TOKENS), "{name}");
    }
    let refused = StateError::Recurrent { len: 6, wanted: 4 }.to_string();
    common::assert_says(&refused, &["a session of 6 tokens can't be cut to 4", "a recurrent state can't go back"]);
}

#[test]
fn states_have_the_stated_shapes_and_no_cache_format() {
    type Shape = (&'static str, Option<usize>, usize, usize);
    let expected: [&[Shape]; 4] = [
        &[("conv", Some(4), 2, 8)],
        &[("conv", Some(3), 3, 28), ("scan", None, 12, 4)],
        &[("conv", Some(3), 3, 32), ("scan", None, 12, 5)],
        &[("conv", Some(3), 3, 24), ("scan", None, 8, 4)],
    ];
    for ((name, mixer), expected) in MIXERS.into_iter().zip(expected) {
        let model = Model::of(&[mixer]);
        let options = SessionOptions { cache: CacheFormat::Q4_0, rolling: true, ..SessionOptions::default() };
        let mut session = Session::with_options(&model.plan, 40, options);
        let logits = [model.feed::<f32>(&mut session, 4), model.feed(&mut session, 2)].concat();
        assert_eq!(logits, model.whole::<f32>(6, 6), "{name}");
        let shape = session.shape();
        let shape: Vec<_> = shape.iter().map(|part| (part.name, part.first, part.rows, part.cols)).collect();
        assert_eq!(shape, expected, "{name}");
    }
}

/// The logits of the last token after a probe with a fault, in each way that can show it.
fn broken(model: &Model, injection: &Injection, probe: &Probe, shown_by: ShownBy) -> Vec<Vec<f32>> {
    let reference = Reference::default();
    let kernels = injection.wrap::<f32>(&reference);
    let trial = Trial::with_fault(injection, &model.source, kernels.as_ref());
    let schedules = shown_by.schedules(probe.tokens.len());
    schedules.iter().map(|schedule| trial.logits(probe, schedule).unwrap()).collect()
}

#[test]
fn every_fault_that_applies_changes_the_logits_and_no_other_schedule_does() {
    let mut applied = BTreeSet::new();
    for (name, mixer) in MIXERS {
        for model in [Model::hybrid(mixer), Model::of(&[mixer])] {
            let probe = &Probe::recommended(&model.plan)[0];
            let reference = Reference::default();
            let trial = Trial::<f32>::new(&model.plan, &model.source, &reference);
            let right = trial.logits(probe, &Schedule::Whole).unwrap();
            for shown_by in [ShownBy::Chunks, ShownBy::Trim, ShownBy::Fork, ShownBy::Restore] {
                for schedule in shown_by.schedules(probe.tokens.len()) {
                    assert_eq!(trial.logits(probe, &schedule).unwrap(), right, "{name}: {schedule}");
                }
            }
            for injection in catalogue().iter().filter_map(|fault| fault.inject(&model.plan).ok()) {
                let shown_by = injection.fault().shown_by();
                let found = broken(&model, &injection, probe, shown_by);
                assert!(found.iter().any(|logits| *logits != right), "{name}: {injection}");
                if shown_by != ShownBy::Pass {
                    let whole = broken(&model, &injection, probe, ShownBy::Pass);
                    assert!(whole.iter().all(|logits| *logits == right), "{name}: {injection} in one pass");
                }
                applied.insert(injection.fault().name);
            }
        }
    }
    for name in [
        "conv-state-dropped",
        "scan-state-reset",
        "conv-bias-dropped",
        "conv-activation-dropped",
        "conv-gates-swapped",
        "dt-bias-dropped",
        "dt-limit-dropped",
        "scan-skip-dropped",
        "scan-gate-order",
        "scan-norm-joined",
        "l2-norm-dropped",
        "delta-gate-dropped",
        "delta-gate-activation",
    ] {
        assert!(applied.contains(name), "{name}");
    }
}

#[test]
fn a_state_that_is_dropped_at_a_border_gives_other_bits_at_every_border() {
    for (fault, mixers) in [("conv-state-dropped", &MIXERS[..]), ("scan-state-reset", &MIXERS[1..])] {
        for &(name, mixer) in mixers {
            let model = Model::hybrid(mixer);
            let injection = inject(fault, &model.plan).unwrap();
            let probe = Probe::new("plain", (0..TOKENS as u32).map(|i| i * 7 + 3).map(|t| t % 32).collect());
            let right: Vec<f32> = model.whole::<f32>(TOKENS, 1).iter().map(|&v| v as f32).collect();
            for found in broken(&model, &injection, &probe, ShownBy::Chunks) {
                assert_ne!(found, right, "{name}: {fault}");
            }
        }
    }
}

#[test]
fn what_a_plan_without_attention_has_no_place_for_says_so() {
    let model = Model::of(&[mamba2]);
    for (fault, reason) in [
        ("kv-not-appended", "no layer keeps keys and values"),
        ("kv-swapped", "no layer keeps keys and values"),
        ("causal-mask-missing", "no layer keeps keys and values"),
        ("kv-quantized", "no layer keeps keys and values"),
        ("kv-layer-mixup", "no layer keeps keys and values"),
        ("decode-position-off-by-one", "positions play no part"),
        ("conv-gates-swapped", "no layer is a gated short convolution"),
        ("l2-norm-dropped", "no layer has a gated delta rule"),
    ] {
        let error = inject(fault, &model.plan).map(|injection| injection.to_string()).unwrap_err().to_string();
        common::assert_says(&error, &[fault, reason]);
    }
    let hybrid = Model::hybrid(short_conv);
    for (fault, reason) in [
        ("kv-trim", "a session is never trimmed"),
        // One layer of attention has no twin, wherever it stands.
        ("kv-layer-mixup", "no two layers keep keys and values of one kind"),
        ("scan-state-reset", "no layer scans"),
    ] {
        let error = inject(fault, &hybrid.plan).map(|injection| injection.to_string()).unwrap_err().to_string();
        common::assert_says(&error, &[fault, reason]);
    }
    assert!(inject("kv-layer-mixup", &Model::of(&[attention, short_conv, attention]).plan).is_ok());
}

fn equivalence(model: &Model, tokens: usize, fault: Option<&Injection>) -> Equivalence {
    let reference = Reference::default();
    let engine = |options| {
        Local::<f32>::new("reference", &model.plan, &model.source, &reference).with_options(options).with_fault(fault)
    };
    let (usual, full) =
        (engine(SessionOptions::default()), Local::<f32>::new("full", &model.plan, &model.source, &reference));
    let exactly = engine(SessionOptions { capacity: Some(tokens), ..SessionOptions::default() });
    let subject = |engine, full_at| Subject { name: String::new(), engine, exact: true, full_at };
    check(&Check {
        tokens: &(0..tokens as u32).map(|i| (i * 7 + 3) % 32).collect::<Vec<_>>(),
        positions: &(0..tokens as u32).collect::<Vec<_>>(),
        full: &full,
        subjects: &[subject(&usual, None), subject(&exactly, Some(tokens))],
        gate: Gate::Bits,
        windows: sizes(&model.plan),
        chunks: None,
    })
    .unwrap()
}

#[test]
fn equivalence_holds_and_names_what_can_not_be_trimmed() {
    for (name, mixer) in MIXERS {
        for (model, tokens) in [(Model::hybrid(mixer), 6), (Model::hybrid(mixer), 14), (Model::of(&[mixer]), 5)] {
            let report = equivalence(&model, tokens, None);
            assert_eq!(report.verdict, Verdict::Identical, "{name}: {:?}", report.first_difference());
            for run in &report.runs {
                let cut = run.what.contains("trimmed to") && !run.what.ends_with("trimmed to none, and again");
                let whole = run.what.contains("trimmed to as many");
                let expected = if cut && !whole { RunOutcome::NotChecked } else { RunOutcome::Same };
                assert_eq!(run.outcome, expected, "{name}: {} {}", run.kind, run.what);
            }
            let text = {
                let mut bytes = Vec::new();
                Format::Text.write(&report, &mut bytes).unwrap();
                String::from_utf8(bytes).unwrap()
            };
            let reason = "trim and redo; prefix reuse: a recurrent state can't be cut: it goes back to the start only";
            common::assert_says(&text, &["identical: ", "6 runs could not be checked", reason, "conv  "]);
            assert_eq!(text.matches("can't be cut").count(), 1, "{text}");
            let kernel = if name == "short convolution" { 3 } else { 4 };
            assert!(report.coverage[0].contains(if tokens > 12 { "schedules" } else { "every chunk" }), "{name}");
            let around = format!("{kernel} + {kernel} + ");
            assert!(tokens < 13 || report.runs.iter().any(|run| run.what.starts_with(&around)), "{name}");
        }
    }
}

#[test]
fn equivalence_catches_a_dropped_state() {
    for (fault, mixers) in [("conv-state-dropped", &MIXERS[..]), ("scan-state-reset", &MIXERS[1..])] {
        for &(name, mixer) in mixers {
            let model = Model::hybrid(mixer);
            for tokens in [2, 6, 14] {
                let report = equivalence(&model, tokens, Some(&inject(fault, &model.plan).unwrap()));
                assert_eq!(report.verdict, Verdict::Different, "{name}: {fault}");
                let (run, difference) = report.first_difference().unwrap();
                assert_eq!((run.kind, difference.layer), (Kind::Chunks, Some(0)), "{name}: {fault}");
            }
        }
    }
}

#[test]
fn a_prompt_that_is_shorter_than_a_convolution_has_a_blind_spot() {
    let model = Model::of(&[mamba2]);
    let spots = |n: u32| {
        let positions: Vec<u32> = (0..n).collect();
        blind_spots(&model.plan, &positions, &positions).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(spots(3), ["the first of 4 tokens in a convolution (needs at least 4 tokens)"]);
    assert!(spots(4).is_empty());
}
