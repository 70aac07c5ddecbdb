//! Every tensor type of GGML: its values are those of gguf-py (oracles/ggml/blocks.safetensors, made by
//! scripts/make_block_goldens.py), and whatever multiplies stored blocks gives the bits of multiplying their values.

mod common;

use checkpoint_oracle::checkpoint::{Block, Decoder, Dtype, MemorySource, Source, TensorInfo};
use checkpoint_oracle::exec::accelerated::{self, Accelerated};
use checkpoint_oracle::exec::reference::{Reference, Vectors};
use checkpoint_oracle::exec::weights::{Steps, Stored, Tile, Transposed, Weights};
use checkpoint_oracle::exec::{Kernels, accelerated::BACKENDS};
use checkpoint_oracle::model::plan::Weight;
use checkpoint_oracle::model::{Pack, close_books};
use checkpoint_oracle::ops::{Float, Level, Matrix};
use common::root;
use proptest::prelude::*;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Name and number in a GGUF file of every tensor type that gguf-py 0.19 knows.
const TYPES: [(&str, u32); 34] = [
    ("F32", 0),
    ("F16", 1),
    ("Q4_0", 2),
    ("Q4_1", 3),
    ("Q5_0", 6),
    ("Q5_1", 7),
    ("Q8_0", 8),
    ("Q8_1", 9),
    ("Q2_K", 10),
    ("Q3_K", 11),
    ("Q4_K", 12),
    ("Q5_K", 13),
    ("Q6_K", 14),
    ("Q8_K", 15),
    ("IQ2_XXS", 16),
    ("IQ2_XS", 17),
    ("IQ3_XXS", 18),
    ("IQ1_S", 19),
    ("IQ4_NL", 20),
    ("IQ3_S", 21),
    ("IQ2_S", 22),
    ("IQ4_XS", 23),
    ("I8", 24),
    ("I16", 25),
    ("I32", 26),
    ("I64", 27),
    ("F64", 28),
    ("IQ1_M", 29),
    ("BF16", 30),
    ("TQ1_0", 34),
    ("TQ2_0", 35),
    ("MXFP4", 39),
    ("NVFP4", 40),
    ("Q1_0", 41),
];

fn dtypes() -> Vec<Dtype> {
    TYPES.iter().map(|&(name, number)| Dtype::of_ggml(number).unwrap_or_else(|| panic!("there is no {name}"))).collect()
}

fn blocks() -> Vec<Dtype> {
    Block::ALL.iter().map(|&block| Dtype::Block(block)).collect()
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.available())
}

/// All NaNs are alike.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

fn decode(decoder: Decoder, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![-1.0; bytes.len() / decoder.block_bytes() * decoder.block_elements()];
    decoder.decode(bytes, &mut out);
    out
}

/// `n` bytes of SplitMix64 started at `seed`, as in scripts/make_block_goldens.py.
fn noise(seed: u64, n: usize) -> Vec<u8> {
    let number = |i: u64| {
        let mut z = seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    (1..=n.div_ceil(8) as u64).flat_map(number).take(n).collect()
}

fn goldens() -> Vec<u8> {
    std::fs::read(root("oracles/ggml/blocks.safetensors")).expect("the goldens are there")
}

/// Stored bytes and values of one type.
fn golden(file: &SafeTensors<'_>, name: &str) -> (Vec<u8>, Vec<f32>) {
    let tensor = |what: &str| {
        let tensor = file.tensor(&format!("{name}.{what}")).unwrap_or_else(|_| panic!("no {what} of {name}"));
        (tensor.shape().to_vec(), tensor.data().to_vec())
    };
    let ((shape, bytes), (values_shape, values)) = (tensor("bytes"), tensor("values"));
    assert_eq!(shape[0], values_shape[0]);
    let (values, _) = values.as_chunks::<4>();
    (bytes, values.iter().map(|&v| f32::from_le_bytes(v)).collect())
}

#[test]
fn every_type_of_gguf_py_is_here_with_its_name_and_has_goldens() {
    for ((name, number), dtype) in TYPES.into_iter().zip(dtypes()) {
        assert_eq!(dtype.name(), name, "{number}");
        let (unit, decoder) = (dtype.unit().expect("a size"), dtype.decoder().expect("a decoder"));
        assert_eq!((unit.elements, unit.bytes), (decoder.block_elements(), decoder.block_bytes()), "{name}");
    }
    let known = (0..1000).filter(|&number| Dtype::of_ggml(number).is_some()).count();
    assert_eq!(known, TYPES.len(), "the list above has all of ours");
    let bytes = goldens();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let found: BTreeSet<String> = file.names().into_iter().map(str::to_owned).collect();
    let wanted = TYPES.iter().flat_map(|(name, _)| [format!("{name}.bytes"), format!("{name}.values")]);
    assert_eq!(found, wanted.collect());
}

#[test]
fn each_golden_value_is_met_bit_by_bit_on_every_level() {
    let bytes = goldens();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for dtype in dtypes() {
        let (stored, values) = golden(&file, dtype.name());
        let decoder = dtype.decoder().unwrap();
        let finite = values.iter().filter(|v| v.is_finite() && **v != 0.0).count();
        assert!(finite * 3 > values.len(), "{dtype}: {finite} of {} goldens say something", values.len());
        for level in levels() {
            let mut got = vec![-1.0; values.len()];
            decoder.decode_at(level, &stored, &mut got);
            for (i, (got, want)) in bits(&got).into_iter().zip(bits(&values)).enumerate() {
                assert_eq!(got, want, "{dtype}, {level}, element {i}: {} is not {}", f32::from_bits(got), values[i]);
            }
        }
    }
}

#[test]
fn four_thousand_random_blocks_of_each_type_have_the_hash_of_gguf_pys_values() {
    let bytes = goldens();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let hashes = header.metadata().as_ref().unwrap();
    assert_eq!(hashes.len(), TYPES.len());
    for ((_, number), dtype) in TYPES.into_iter().zip(dtypes()) {
        let decoder = dtype.decoder().unwrap();
        let mut stored = noise(1000 * (1 + u64::from(number)) + 500, 4096 * decoder.block_bytes());
        let hash = |stored: &[u8], level| {
            let mut values = vec![-1.0; 4096 * decoder.block_elements()];
            decoder.decode_at(level, stored, &mut values);
            let bytes: Vec<u8> = bits(&values).into_iter().flat_map(u32::to_le_bytes).collect();
            Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        for level in levels() {
            assert_eq!(hash(&stored, level), hashes[dtype.name()], "{dtype}, {level}");
        }
        // One block in four thousand.
        stored[2000 * decoder.block_bytes()..][..decoder.block_bytes()].iter_mut().for_each(|byte| *byte ^= 0xff);
        assert_ne!(hash(&stored, Level::widest()), hashes[dtype.name()], "{dtype}");
    }
}

#[test]
fn each_stored_byte_matters_except_the_sums_for_dot_products() {
    let bytes = goldens();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for dtype in blocks() {
        let decoder = dtype.decoder().unwrap();
        let (stored, _) = golden(&file, dtype.name());
        let mut block = stored[..decoder.block_bytes()].to_vec();
        let values = bits(&decode(decoder, &block));
        let idle: Vec<usize> = (0..block.len())
            .filter(|&at| {
                let changes = |flip: u8, block: &mut Vec<u8>| {
                    block[at] ^= flip;
                    let other = bits(&decode(decoder, block));
                    block[at] ^= flip;
                    other != values
                };
                ![0xff, 0x80, 0x40, 0x01].into_iter().any(|flip| changes(flip, &mut block))
            })
            .collect();
        let expected = match dtype.name() {
            "Q8_1" => (2..4).collect(),
            "Q8_K" => (260..292).collect(),
            _ => Vec::new(),
        };
        assert_eq!(idle, expected, "{dtype}: bytes that change nothing");
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_and_a_run_decodes_alike_wherever_it_starts(
        which in 0..TYPES.len(),
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        cut in any::<prop::sample::Index>(),
    ) {
        let decoder = dtypes()[which].decoder().unwrap();
        let count = bytes.len() / decoder.block_bytes();
        let bytes = &bytes[..count * decoder.block_bytes()];
        let cut = cut.index(count + 1);
        let whole = bits(&decode(decoder, bytes));
        let (first, second) = bytes.split_at(cut * decoder.block_bytes());
        prop_assert_eq!([bits(&decode(decoder, first)), bits(&decode(decoder, second))].concat(), whole.clone());
        for level in levels() {
            let mut out = vec![-1.0; whole.len()];
            decoder.decode_at(level, bytes, &mut out);
            prop_assert_eq!(bits(&out), whole.clone());
        }
    }
}

/// A matrix of random blocks that hold finite numbers, none so large that a sum would not be; as stored and as values.
fn matrix(dtype: &Dtype, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
    let decoder = dtype.decoder().unwrap();
    let (mut stored, mut values) = (Vec::new(), Vec::new());
    let mut seed = (rows * cols) as u64;
    while values.len() < rows * cols {
        let block = noise(seed, decoder.block_bytes());
        seed += block.len() as u64;
        let some = decode(decoder, &block);
        if some.iter().all(|v| v.abs() < 1e30) {
            stored.extend(block);
            values.extend(some);
        }
    }
    (stored, values)
}

fn activations<F: Float>(tokens: usize, cols: usize) -> Matrix<F> {
    let bytes = noise(7, tokens * cols * 4);
    let numbers = bytes.as_chunks::<4>().0.iter().map(|&word| i32::from_le_bytes(word) as f32 / 2f32.powi(31));
    Matrix::from_vec(tokens, cols, numbers.map(F::from_f32).collect())
}

fn f64_bits<F: Float>(values: &[F]) -> Vec<u64> {
    values.iter().map(|v| if v.partial_cmp(v).is_none() { u64::MAX } else { v.to_f64().to_bits() }).collect()
}

/// `linear` of a tile in cuts of `cut` rows.
fn linear<F: Float>(kernels: &dyn Kernels<F>, x: &Matrix<F>, tile: &Tile<'_>, cut: usize) -> Vec<u64> {
    let mut out = Matrix::filled(x.rows(), tile.rows, F::ZERO);
    let row_bytes = tile.bytes.len() / tile.rows;
    for first in (0..tile.rows).step_by(cut) {
        let rows = cut.min(tile.rows - first);
        let part = Tile { rows, bytes: &tile.bytes[first * row_bytes..][..rows * row_bytes], ..*tile };
        kernels.linear(x, &part, &mut out, first);
    }
    f64_bits(out.data())
}

fn threads<R: Send>(count: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap().install(work)
}

fn tiles<'a>(dtype: &Dtype, rows: usize, cols: usize, stored: &'a [u8], plain: &'a [u8]) -> [Tile<'a>; 2] {
    let tile = |dtype: &Dtype, bytes| Tile { decoder: dtype.decoder().unwrap(), rows, cols, bytes };
    [tile(dtype, stored), tile(&Dtype::F32, plain)]
}

fn check_linear<F: Vectors>(dtype: &Dtype, tokens: &[usize]) {
    // Beyond a slice of columns and beyond whole panels of every level.
    let (rows, cols) = (37, 512 + dtype.unit().unwrap().elements);
    let (stored, values) = matrix(dtype, rows, cols);
    let plain = common::f32s(values);
    let [blocks, plain] = tiles(dtype, rows, cols, &stored, &plain);
    for &tokens in tokens {
        let x = activations::<F>(tokens, cols);
        let wanted = linear(&Reference::at(Level::Portable), &x, &plain, rows);
        for level in levels() {
            let got = linear(&Reference::at(level), &x, &blocks, rows);
            assert!(got == wanted, "{dtype}, {tokens} tokens, {level}");
        }
        for (cut, count) in [(1, 1), (7, 2), (32, 3), (rows, 3)] {
            let got = threads(count, || linear(&Reference::default(), &x, &blocks, cut));
            assert!(got == wanted, "{dtype}, {tokens} tokens, {cut} rows at a time, {count} threads");
        }
    }
}

#[test]
fn linear_over_stored_blocks_has_the_bits_of_linear_over_their_values() {
    for dtype in dtypes() {
        check_linear::<f32>(&dtype, &[1, 3, 64]);
        check_linear::<f64>(&dtype, &[3]);
    }
}

#[test]
fn another_scale_gives_another_product() {
    let dtype = Dtype::of_ggml(2).unwrap();
    let (mut stored, values) = matrix(&dtype, 1, 64);
    let plain = common::f32s(values);
    stored[0] ^= 1;
    let [blocks, plain] = tiles(&dtype, 1, 64, &stored, &plain);
    let x = activations::<f32>(1, 64);
    assert_ne!(linear(&Reference::default(), &x, &blocks, 1), linear(&Reference::default(), &x, &plain, 1));
}

#[test]
fn backends_multiply_the_values_of_blocks() {
    for dtype in blocks() {
        let (rows, cols) = (101, 1024 + dtype.unit().unwrap().elements);
        let (stored, values) = matrix(&dtype, rows, cols);
        let plain = common::f32s(values);
        let [blocks, plain] = tiles(&dtype, rows, cols, &stored, &plain);
        for backend in BACKENDS {
            let kernels = Accelerated::new(accelerated::by_name(backend).unwrap());
            for tokens in [3, 64] {
                let x = activations::<f32>(tokens, cols);
                // The same calls of the same library with the same numbers.
                let (got, wanted) = (linear(&kernels, &x, &blocks, rows), linear(&kernels, &x, &plain, rows));
                assert!(got == wanted, "{dtype}, {backend}, {tokens} tokens");
            }
        }
    }
}

#[test]
fn transposed_blocks_give_the_bits_of_their_values() {
    for dtype in blocks() {
        let (inputs, cols) = (11, 768);
        let (stored, values) = matrix(&dtype, inputs, cols);
        let plain = common::f32s(values);
        let tiles = tiles(&dtype, inputs, cols, &stored, &plain);
        let accelerated = Accelerated::new(accelerated::by_name(BACKENDS[0]).unwrap());
        // All columns, some in the middle of blocks, and groups of three in every five.
        for columns in [
            Steps::contiguous(0, cols),
            Steps::contiguous(45, 300),
            Steps { first: 2, block: 3, stride: 5, count: 450 },
        ] {
            for tokens in [1, 40] {
                let x = activations::<f32>(tokens, inputs);
                let product = |kernels: &dyn Kernels<f32>, tile: Tile<'_>| {
                    let mut out = Matrix::filled(tokens, columns.count, 0.0);
                    kernels.accumulate(&x, &Transposed { tile, input: 0, columns }, &mut out);
                    f64_bits(out.data())
                };
                let wanted = product(&Reference::at(Level::Portable), tiles[1]);
                for level in levels() {
                    assert!(product(&Reference::at(level), tiles[0]) == wanted, "{dtype}, {columns:?}, {level}");
                }
                assert!(product(&accelerated, tiles[0]) == product(&accelerated, tiles[1]), "{dtype}, {columns:?}");
            }
        }
    }
}

#[test]
fn weights_of_blocks_come_in_pieces_of_any_size_and_row_by_row() {
    let (plan, _) = common::load("llama-plain");
    for dtype in blocks() {
        let (rows, cols) = (37, 512);
        let (stored, values) = matrix(&dtype, rows, cols);
        let x = activations::<f32>(3, cols);
        let plain = common::f32s(values.clone());
        let [_, tile] = tiles(&dtype, rows, cols, &stored, &plain);
        let wanted = linear(&Reference::default(), &x, &tile, rows);
        let tensors = BTreeMap::from([("w".to_owned(), (dtype.clone(), vec![rows, cols], stored))]);
        let source: Arc<dyn Source> = Arc::new(MemorySource::new(tensors).unwrap());
        let weight = Weight::whole("w".into(), &[rows, cols]);
        for piece_bytes in [1, 1000, 1 << 20] {
            let mut weights = Weights::of_pass(Arc::clone(&source), &plan, piece_bytes);
            let mut out = Matrix::filled(3, rows, 0.0f32);
            weights
                .each_piece(&[&weight], |_, piece| match piece {
                    Stored::Rows { first, tile } => Reference::default().linear(&x, &tile, &mut out, first),
                    Stored::Columns(_) => panic!("it is not transposed"),
                })
                .unwrap();
            assert!(f64_bits(out.data()) == wanted, "{dtype}, {piece_bytes} bytes");
            assert_eq!(bits(&weights.vector::<f32>(&weight).unwrap()), bits(&values), "{dtype}");
            let some = weights.gather::<f32>(&weight, &[36, 0, 5]).unwrap();
            assert_eq!(bits(some.row(2)), bits(&values[5 * cols..6 * cols]), "{dtype}");
        }
    }
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused_by_tensor_type_and_length() {
    let sentence = "expected a row of a multiple of 32 elements for Q4_0, found 24";
    let q4_0 = Dtype::of_ggml(2).unwrap();
    // As many bytes as the elements would take in one row.
    let tensors = BTreeMap::from([("w".to_owned(), (q4_0.clone(), vec![4, 24], vec![0; 54]))]);
    let Err(error) = MemorySource::new(tensors) else { panic!("it must be refused") };
    assert_eq!(error.to_string(), format!("`w`: {sentence}"));
    // In the books, from a source that does not check.
    let folder = common::fixture("llama-plain");
    let opened = checkpoint_oracle::checkpoint::open(&folder);
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    let name = "model.layers.0.mlp.up_proj.weight";
    let mut infos = source.tensors().clone();
    infos.get_mut(name).unwrap().dtype = q4_0;
    let source = Relabelled { source, infos };
    let books = close_books(&config, &source, &BTreeSet::new(), Pack::embedded(), &[]);
    let problems: Vec<String> = books.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains(&format!("tensor `{name}`: {sentence}")), "{}", problems[0]);
    // And where they are read, if nobody looked before.
    let (plan, _) = common::load("llama-plain");
    let mut weights = Weights::of_pass(Arc::new(source), &plan, 1000);
    let error = weights.vector::<f32>(&Weight::whole(name.into(), &[38, 24])).unwrap_err();
    assert_eq!(error.to_string(), format!("tensor {name}: {sentence}"));
}

/// A source whose headers say something else.
struct Relabelled {
    source: Arc<dyn Source>,
    infos: BTreeMap<String, TensorInfo>,
}

impl Source for Relabelled {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.infos
    }

    fn files(&self) -> &[checkpoint_oracle::checkpoint::SourceFile] {
        self.source.files()
    }

    fn read_into<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: std::ops::Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> anyhow::Result<&'a [u8]> {
        self.source.read_into(tensor, range, buffer)
    }

    fn is_resident(&self) -> bool {
        true
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn headers_sha256(&self) -> anyhow::Result<String> {
        self.source.headers_sha256()
    }

    fn full_sha256(&self) -> anyhow::Result<String> {
        self.source.full_sha256()
    }
}
