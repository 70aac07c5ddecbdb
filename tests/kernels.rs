//! The kernels by themselves: the reference's bits are those of the plain definition, on every instruction set that this
//! machine has.

use checkpoint_oracle::checkpoint::Dtype;
use checkpoint_oracle::exec::Kernels;
use checkpoint_oracle::exec::reference::{Reference, Vectors};
use checkpoint_oracle::exec::weights::{Steps, Tile, Transposed};
use checkpoint_oracle::ops::attention::{self, AttentionSpec, Kv};
use checkpoint_oracle::ops::{Float, Level, Matrix};

/// The definition's order, and the one that a mutant has.
#[derive(Clone, Copy)]
enum Sum {
    Ascending,
    Descending,
}

/// A linear congruential generator: values of many magnitudes, signs and, at times, zeros and subnormals.
struct Noise(u32);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn value(&mut self) -> f32 {
        let value = self.next() as f32 / 8_388_608.0 - 1.0;
        match self.next() % 16 {
            0 => -0.0,
            1 => value * 1e-39,
            2 => value * 300.0,
            _ => value,
        }
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.available())
}

/// Weights as stored and as their exact values.
fn stored(dtype: &Dtype, weights: &[f32]) -> (Vec<u8>, Vec<f32>) {
    match dtype {
        Dtype::F16 => {
            let halves: Vec<half::f16> = weights.iter().map(|&w| half::f16::from_f32(w)).collect();
            (halves.iter().flat_map(|h| h.to_le_bytes()).collect(), halves.iter().map(|h| h.to_f32()).collect())
        }
        Dtype::BF16 => {
            let halves: Vec<half::bf16> = weights.iter().map(|&w| half::bf16::from_f32(w)).collect();
            (halves.iter().flat_map(|h| h.to_le_bytes()).collect(), halves.iter().map(|h| h.to_f32()).collect())
        }
        _ => (weights.iter().flat_map(|w| w.to_le_bytes()).collect(), weights.to_vec()),
    }
}

/// One accumulator, multiply, then add.
fn defined<F: Float>(x: &Matrix<F>, weights: &[f32], sum: Sum) -> Vec<F> {
    let cols = x.cols();
    let mut out = Vec::new();
    for t in 0..x.rows() {
        for w in weights.chunks_exact(cols) {
            let mut y = F::ZERO;
            for i in 0..cols {
                let i = if matches!(sum, Sum::Ascending) { i } else { cols - 1 - i };
                y += x.row(t)[i] * F::from_f32(w[i]);
            }
            out.push(y);
        }
    }
    out
}

/// Bits, all NaNs being alike: which of two NaNs an addition keeps is the processor's choice.
fn bits<F: Float>(values: &[F]) -> Vec<u64> {
    values.iter().map(|v| if v.partial_cmp(v).is_none() { u64::MAX } else { v.to_f64().to_bits() }).collect()
}

const SENTINEL: f32 = 12345.0;

/// The kernel's result for a tile that is put at column 3 of a wider output, whose other columns must stay.
fn computed<F: Vectors>(level: Level, x: &Matrix<F>, tile: &Tile<'_>) -> Vec<F> {
    let mut out = Matrix::filled(x.rows(), tile.rows + 5, F::from_f32(SENTINEL));
    Reference::at(level).linear(x, tile, &mut out, 3);
    let mut values = Vec::new();
    for row in out.iter_rows() {
        let (before, rest) = row.split_at(3);
        let (inside, after) = rest.split_at(tile.rows);
        assert!(before.iter().chain(after).all(|&v| v == F::from_f32(SENTINEL)), "other columns stay as they are");
        values.extend_from_slice(inside);
    }
    values
}

/// Token counts that issue from the kernels' blocks: all up to 20, and around 32 and 64.
fn token_counts() -> impl Iterator<Item = usize> {
    (1..=20).chain(31..=33).chain([64, 65])
}

fn check_linear<F: Vectors>(dtype: &Dtype, rows: usize, cols: usize, tokens: impl Iterator<Item = usize>) {
    let mut noise = Noise((rows * 31 + cols) as u32);
    let (bytes, exact) = stored(dtype, &noise.values(rows * cols));
    let tile = Tile { decoder: dtype.decoder().unwrap(), rows, cols, bytes: &bytes };
    for tokens in tokens {
        let x = noise.values(tokens * cols).into_iter().map(F::from_f32).collect();
        let x = Matrix::from_vec(tokens, cols, x);
        let expected = bits(&defined(&x, &exact, Sum::Ascending));
        for level in levels() {
            let got = bits(&computed(level, &x, &tile));
            assert_eq!(got, expected, "{dtype} {cols} -> {rows}, {tokens} tokens, {level}");
        }
    }
}

#[test]
fn linear_has_the_bits_of_the_definition_for_every_dtype_token_count_and_level() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        // More than one slice of columns, and rows beyond a whole panel of every level.
        check_linear::<f32>(&dtype, 37, 270, token_counts());
        check_linear::<f64>(&dtype, 37, 270, token_counts());
    }
}

#[test]
fn linear_has_the_bits_of_the_definition_at_odd_sizes() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for (rows, cols) in
            [(1, 1), (1, 2), (2, 1), (5, 3), (33, 255), (32, 256), (64, 257), (31, 511), (96, 512), (129, 31), (70, 34)]
        {
            check_linear::<f32>(&dtype, rows, cols, [1, 2, 13].into_iter());
            check_linear::<f64>(&dtype, rows, cols, [1, 13].into_iter());
        }
    }
}

#[test]
fn the_same_numbers_summed_from_the_other_end_are_other_bits() {
    let mut noise = Noise(7);
    let weights = noise.values(40 * 270);
    let x = Matrix::from_vec(3, 270, noise.values(3 * 270));
    let (ascending, descending) = (defined(&x, &weights, Sum::Ascending), defined(&x, &weights, Sum::Descending));
    assert_ne!(bits(&ascending), bits(&descending));
}

#[test]
fn zeros_subnormals_and_what_is_not_finite_are_those_of_the_definition() {
    let tiny = f32::from_bits(1);
    let special =
        [0.0, -0.0, tiny, -tiny, f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1.0];
    // Every special value meets every other one, by itself and among ordinary numbers.
    let (rows, cols) = (special.len(), 40);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for filler in [0.0, -0.0, 0.5] {
            let mut weights = vec![filler; rows * cols];
            for (r, row) in weights.chunks_exact_mut(cols).enumerate() {
                row[17] = special[r];
            }
            let (bytes, exact) = stored(&dtype, &weights);
            let tile = Tile { decoder: dtype.decoder().unwrap(), rows, cols, bytes: &bytes };
            let mut x = Matrix::filled(special.len(), cols, 1.0f32);
            for (t, &value) in special.iter().enumerate() {
                x.row_mut(t)[17] = value;
            }
            let expected = bits(&defined(&x, &exact, Sum::Ascending));
            for level in levels() {
                assert_eq!(bits(&computed(level, &x, &tile)), expected, "{dtype} among {filler}, {level}");
            }
        }
    }
    // A sum of subnormals stays one: nothing is flushed to zero.
    let (bytes, _) = stored(&Dtype::F32, &[tiny, tiny, tiny]);
    let tile = Tile { decoder: Dtype::F32.decoder().unwrap(), rows: 1, cols: 3, bytes: &bytes };
    for level in levels() {
        assert_eq!(computed(level, &Matrix::filled(1, 3, 1.0f32), &tile)[0].to_bits(), 3, "{level}");
    }
}

/// The kernel's result for weights that are stored as `[in, out]`, in tiles of `tile` inputs: `columns` of a matrix of
/// `cols`, whose other columns hold what would be noticed.
fn accumulated<F: Vectors>(
    level: Level,
    dtype: &Dtype,
    x: &Matrix<F>,
    weights: &[f32],
    (columns, cols): (Steps, usize),
    tile: usize,
) -> Vec<F> {
    let inputs = x.cols();
    let mut out = Matrix::filled(x.rows(), columns.count, F::ZERO);
    for input in (0..inputs).step_by(tile) {
        let rows = tile.min(inputs - input);
        let mut values = vec![f32::NAN; rows * cols];
        for (i, row) in values.chunks_exact_mut(cols).enumerate() {
            (0..columns.count).for_each(|o| row[columns.at(o)] = weights[o * inputs + input + i]);
        }
        let (bytes, _) = stored(dtype, &values);
        let tile = Tile { decoder: dtype.decoder().unwrap(), rows, cols, bytes: &bytes };
        Reference::at(level).accumulate(x, &Transposed { tile, input, columns }, &mut out);
    }
    out.data().to_vec()
}

/// All columns; those of the right half; every other one; blocks of three in five.
fn layouts(outputs: usize) -> [(Steps, usize); 4] {
    [
        (Steps::contiguous(0, outputs), outputs),
        (Steps::contiguous(outputs, outputs), 2 * outputs),
        (Steps { first: 1, block: 1, stride: 2, count: outputs }, 2 * outputs),
        (Steps { first: 2, block: 3, stride: 5, count: outputs }, 2 * outputs + 7),
    ]
}

fn check_accumulate<F: Vectors>(dtype: &Dtype, outputs: usize, inputs: usize, tokens: usize) {
    let mut noise = Noise((outputs * 31 + inputs) as u32);
    let weights = noise.values(outputs * inputs);
    let (_, exact) = stored(dtype, &weights);
    let x = noise.values(tokens * inputs).into_iter().map(F::from_f32).collect();
    let x = Matrix::from_vec(tokens, inputs, x);
    let expected = bits(&defined(&x, &exact, Sum::Ascending));
    for level in levels() {
        for layout in layouts(outputs) {
            for tile in [1, 7, 256, inputs] {
                let got = bits(&accumulated(level, dtype, &x, &weights, layout, tile));
                assert_eq!(
                    got, expected,
                    "{dtype} {inputs} -> {outputs}, {tokens} tokens, {layout:?}, {tile}, {level}"
                );
            }
        }
    }
}

#[test]
fn transposed_weights_give_the_bits_of_the_definition_in_every_layout_and_cut() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for (outputs, inputs) in [(1, 1), (37, 30), (129, 270), (300, 31)] {
            check_accumulate::<f32>(&dtype, outputs, inputs, 1);
            check_accumulate::<f32>(&dtype, outputs, inputs, 14);
        }
        check_accumulate::<f64>(&dtype, 37, 270, 3);
    }
}

#[test]
fn tiles_in_another_order_give_other_bits() {
    let mut noise = Noise(9);
    let (outputs, inputs) = (20, 64);
    let x = Matrix::from_vec(2, inputs, noise.values(2 * inputs));
    let (bytes, _) = stored(&Dtype::F32, &noise.values(outputs * inputs));
    let columns = Steps::contiguous(0, outputs);
    let sum = |order: [usize; 2]| {
        let mut out = Matrix::filled(2, outputs, 0.0f32);
        for input in order {
            let tile = Tile { decoder: Dtype::F32.decoder().unwrap(), rows: 32, cols: outputs, bytes: &[] };
            let tile = Tile { bytes: &bytes[input * outputs * 4..][..32 * outputs * 4], ..tile };
            Reference::default().accumulate(&x, &Transposed { tile, input, columns }, &mut out);
        }
        bits(out.data())
    };
    assert_ne!(sum([0, 32]), sum([32, 0]));
}

fn attention_matrix<F: Float>(noise: &mut Noise, rows: usize, cols: usize) -> Matrix<F> {
    Matrix::from_vec(rows, cols, noise.values(rows * cols).into_iter().map(F::from_f32).collect())
}

/// Every head of every query by the definition.
fn attended<F: Float>(spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>, sinks: Option<&[F]>) -> Matrix<F> {
    let v_dim = spec.v_head_dim();
    let mut out = Matrix::filled(q.rows(), spec.num_attention_heads * v_dim, F::ZERO);
    for t in 0..q.rows() {
        for head in 0..spec.num_attention_heads {
            let query = &q.row(t)[head * spec.head_dim..][..spec.head_dim];
            let out = &mut out.row_mut(t)[head * v_dim..][..v_dim];
            let sink = sinks.map(|sinks| sinks[head]);
            attention::attend(spec, head, past + t, query, kv, sink, &mut Vec::new(), out);
        }
    }
    out
}

fn check_attend<F: Vectors>(heads: (usize, usize), dim: usize, window: Option<usize>, past: usize, tokens: usize) {
    let spec = AttentionSpec { sliding_window: window, ..AttentionSpec::new(heads.0, heads.1, dim) };
    check_spec::<F>(&spec, past, tokens, false);
}

fn check_spec<F: Vectors>(spec: &AttentionSpec, past: usize, tokens: usize, with_sinks: bool) {
    let (heads, kv_heads) = (spec.num_attention_heads, spec.num_key_value_heads);
    let mut noise = Noise((spec.head_dim + tokens * 7 + past) as u32);
    let q = attention_matrix::<F>(&mut noise, tokens, heads * spec.head_dim);
    let kv = Kv {
        first: 0,
        keys: attention_matrix(&mut noise, past + tokens, kv_heads * spec.head_dim),
        values: attention_matrix(&mut noise, past + tokens, kv_heads * spec.v_head_dim()),
    };
    let sinks: Vec<F> = noise.values(heads).into_iter().map(F::from_f32).collect();
    let sinks = with_sinks.then_some(&sinks[..]);
    let expected = bits(attended(spec, &q, past, &kv, sinks).data());
    for level in levels() {
        let got = Reference::at(level).attend(spec, &q, past, &kv, sinks);
        assert_eq!(bits(got.data()), expected, "{spec:?}, sinks {with_sinks}, {past} + {tokens}, {level}");
    }
}

#[test]
fn attend_has_the_bits_of_the_definition_with_chunks_caps_sinks_and_other_widths_of_values() {
    for (past, tokens) in [(0, 1), (0, 13), (7, 1), (9, 40)] {
        for v_head_dim in [None, Some(2), Some(40)] {
            for (chunk, window) in [(None, None), (Some(1), None), (Some(8), None), (Some(16), Some(5))] {
                for cap in [None, Some(0.5)] {
                    let spec = AttentionSpec {
                        attention_chunk_size: chunk,
                        sliding_window: window,
                        v_head_dim,
                        attn_logit_softcapping: cap,
                        ..AttentionSpec::new(6, 2, 10)
                    };
                    check_spec::<f32>(&spec, past, tokens, false);
                    check_spec::<f32>(&spec, past, tokens, true);
                    check_spec::<f64>(&spec, past, tokens, true);
                }
            }
        }
    }
}

#[test]
fn each_of_them_changes_the_result() {
    let plain = AttentionSpec::new(2, 1, 6);
    let mut noise = Noise(5);
    let q = attention_matrix::<f32>(&mut noise, 20, 12);
    let kv = Kv { first: 0, keys: attention_matrix(&mut noise, 20, 6), values: attention_matrix(&mut noise, 20, 6) };
    let attend =
        |spec: &AttentionSpec, sinks: Option<&[f32]>| bits(Reference::default().attend(spec, &q, 0, &kv, sinks).data());
    let expected = attend(&plain, None);
    assert_ne!(attend(&AttentionSpec { attention_chunk_size: Some(8), ..plain.clone() }, None), expected);
    assert_ne!(attend(&AttentionSpec { attn_logit_softcapping: Some(1.0), ..plain.clone() }, None), expected);
    assert_ne!(attend(&plain, Some(&[0.0, 0.0])), expected);
    assert_ne!(attend(&plain, Some(&[0.0, 1.0])), attend(&plain, Some(&[1.0, 0.0])));
}

#[test]
fn attend_has_the_bits_of_the_definition_for_every_token_count() {
    for tokens in token_counts() {
        check_attend::<f32>((4, 2), 10, None, 0, tokens);
        check_attend::<f32>((4, 2), 10, Some(5), 9, tokens);
        check_attend::<f64>((4, 2), 10, Some(5), 9, tokens);
    }
}

#[test]
fn attend_has_the_bits_of_the_definition_for_every_grouping_window_and_head_size() {
    for heads in [(1, 1), (3, 3), (6, 2), (5, 1)] {
        for dim in [2, 6, 10, 64, 128] {
            for window in [None, Some(1), Some(4), Some(40)] {
                for (past, tokens) in [(0, 1), (0, 13), (21, 1), (3, 34)] {
                    check_attend::<f32>(heads, dim, window, past, tokens);
                }
                check_attend::<f64>(heads, dim, window, 3, 14);
            }
        }
    }
}

#[test]
fn a_window_of_another_size_gives_other_bits() {
    let spec = |window| AttentionSpec {
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 6,
        scale: 0.4,
        sliding_window: Some(window),
        ..AttentionSpec::new(1, 1, 1)
    };
    let mut noise = Noise(3);
    let q = attention_matrix::<f32>(&mut noise, 20, 12);
    let kv = Kv { first: 0, keys: attention_matrix(&mut noise, 20, 6), values: attention_matrix(&mut noise, 20, 6) };
    let got = Reference::default().attend(&spec(5), &q, 0, &kv, None);
    assert_ne!(bits(got.data()), bits(attended(&spec(6), &q, 0, &kv, None).data()));
}
