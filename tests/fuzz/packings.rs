//! Codes that are packed here, bit by bit as each format says, come out as what they were; with every layout of scales.

use crate::bounded::bounded;
use crate::cases;
use crate::common::f32s;
use checkpoint_oracle::checkpoint::presented::{Piece, View};
use checkpoint_oracle::checkpoint::quantized::{
    Codes, Further, Groups, Numbers, Offset, Packing, Quantized, Scale, Sign, Values,
};
use checkpoint_oracle::checkpoint::{Decoder, Dtype, MemorySource, Presented, Source, TensorInfo};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers without a pattern.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (1 + self.below(1 << 20)) as f32 / 65536.0).collect()
    }
}

/// Writes a code of `bits` bits at a place that is counted in bits, lowest first.
fn put(bytes: &mut Vec<u8>, at: usize, code: u8, bits: u32) {
    for bit in 0..bits as usize {
        let at = at + bit;
        bytes.resize(bytes.len().max(at / 8 + 1), 0);
        bytes[at / 8] |= (code >> bit & 1) << (at % 8);
    }
}

/// AutoAWQ's `pack_intweight`, step by step: where column `col` of 64 comes to lie.
fn quartet_place(col: usize) -> usize {
    // reshape(.., 4, 4, 2) and transpose to (1, 0, 2), of each 32.
    let (a, b, c) = (col % 32 / 8, col % 8 / 2, col % 2);
    let place = b * 8 + a * 2 + c;
    // reshape(.., 4, 2) and transpose, of each 8: 0 2 4 6 1 3 5 7.
    col / 32 * 32 + place / 8 * 8 + place % 2 * 4 + place % 8 / 2
}

fn packed(packing: Packing, [rows, cols]: [usize; 2], codes: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, &code) in codes.iter().enumerate() {
        let (row, col) = (i / cols, i % cols);
        match packing {
            Packing::Stream { bits, align } => {
                let line = (cols * bits as usize).div_ceil(align) * align;
                put(&mut bytes, row * line + col * bits as usize, code, bits);
                bytes.resize((row + 1) * line / 8, 0);
            }
            Packing::UpperFirst => put(&mut bytes, (i ^ 1) * 4, code, 4),
            Packing::RowPairs => put(&mut bytes, (row / 2 * cols + col) * 8 + row % 2 * 4, code, 4),
            Packing::Words { bits } => {
                let each = 32 / bits as usize;
                put(&mut bytes, (row * cols.div_ceil(each) + col / each) * 32 + col % each * bits as usize, code, bits);
            }
            // Bit by bit: a code may be in two words.
            Packing::Down { bits } => {
                for bit in 0..bits as usize {
                    let place = col * bits as usize + bit;
                    put(&mut bytes, (place / 32 * rows + row) * 32 + place % 32, code >> bit & 1, 1);
                }
            }
            Packing::Interleaved => {
                const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
                let place = ORDER.iter().position(|&other| other == row % 8).expect("one of eight");
                put(&mut bytes, (col * rows.div_ceil(8) + row / 8) * 32 + place * 4, code, 4);
            }
            // reshape(N/4, 4, K/64, 64), transpose to (0, 2, 1, 3), and four neighbours in two bytes.
            Packing::Quartets => {
                let place = (row / 4 * cols / 64 + col / 64) * 256 + row % 4 * 64 + quartet_place(col % 64);
                put(&mut bytes, place * 4, code, 4);
            }
            Packing::Planes { bits, width, height } => {
                let (each, size) = if bits == 3 { (10, 32) } else { (8 / bits as usize, 8) };
                let deep = height.div_ceil(each);
                let (y, x) = (i / width, i % width);
                put(&mut bytes, (y % deep * width + x) * size + (each - 1 - y / deep) * bits as usize, code, bits);
            }
        }
    }
    let len = packing.bytes(rows, cols).expect("it fits") as usize;
    assert!(bytes.len() <= len, "{packing:?}: {} bytes of {len}", bytes.len());
    bytes.resize(len, 0);
    bytes
}

/// A packing, and a matrix that it can be of.
fn packings() -> impl Strategy<Value = (Packing, [usize; 2])> {
    let sides = || (1usize..20, 1usize..80);
    let bits = || 1u32..=8;
    prop_oneof![
        (bits(), prop::sample::select(vec![8, 16, 32, 64]), sides())
            .prop_map(|(bits, align, (rows, cols))| (Packing::Stream { bits, align }, [rows, cols])),
        sides().prop_map(|(rows, cols)| (Packing::UpperFirst, [rows, cols])),
        sides().prop_map(|(rows, cols)| (Packing::RowPairs, [rows, cols])),
        (bits(), sides()).prop_map(|(bits, (rows, cols))| (Packing::Words { bits }, [rows, cols])),
        (bits(), sides()).prop_map(|(bits, (rows, cols))| (Packing::Down { bits }, [rows, cols])),
        sides().prop_map(|(rows, cols)| (Packing::Interleaved, [rows, cols])),
        (1usize..4, 1usize..4).prop_map(|(rows, cols)| (Packing::Quartets, [rows * 4, cols * 64])),
        (prop::sample::select(vec![1, 2, 3, 4, 8]), sides(), any::<bool>()).prop_map(|(bits, (rows, cols), across)| {
            let (width, height) = if across { (cols, rows) } else { (rows, cols) };
            (Packing::Planes { bits, width, height }, [rows, cols])
        }),
    ]
}

fn width(packing: Packing) -> u32 {
    match packing {
        Packing::Stream { bits, .. } | Packing::Words { bits } | Packing::Down { bits } => bits,
        Packing::Planes { bits, .. } => bits,
        Packing::UpperFirst | Packing::RowPairs | Packing::Interleaved | Packing::Quartets => 4,
    }
}

/// Stored tensors, and what of them a matrix takes.
#[derive(Default)]
struct Stored(BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Stored {
    /// Bytes behind others that are not meant.
    fn add(&mut self, name: String, lead: usize, bytes: &[u8]) -> Piece {
        let all = [&vec![0xa5; lead][..], bytes].concat();
        let range = lead as u64..all.len() as u64;
        self.0.insert(name.clone(), (Dtype::I8, vec![all.len()], all));
        Piece { stored: name, range }
    }

    fn numbers(&mut self, name: String, lead: usize, numbers: &[f32]) -> Numbers {
        Numbers { stored: self.add(name, lead, &f32s(numbers.iter().copied())), decoder: Decoder::F32 }
    }
}

/// A matrix and its values, worked out one by one.
fn matrix(
    stored: &mut Stored,
    number: usize,
    packing: Packing,
    [rows, cols]: [usize; 2],
    noise: &mut Noise,
) -> (Quantized, Vec<f32>) {
    let bits = width(packing);
    let lead = noise.below(3) * 4;
    let codes: Vec<u8> = (0..rows * cols).map(|_| (noise.next() & ((1 << bits) - 1)) as u8).collect();
    let bytes = packed(packing, [rows, cols], &codes);
    let own = stored.add(format!("codes {number}"), lead, &bytes);
    let half = noise.below(1 << bits) as i32;

    let size = 1 + noise.below(cols);
    let per_row = cols.div_ceil(size);
    let map: Vec<usize> = (0..cols).map(|_| noise.below(per_row)).collect();
    let high = 1 + noise.below(rows);
    let count = 1 + noise.below(rows * cols);
    let below = noise.below(2) == 0;
    let groups = match noise.below(6) {
        0 => Groups::Blocks { rows: high, cols: size, across: per_row },
        1 => Groups::Blocks { rows: 1, cols: size, across: per_row },
        2 => Groups::Below { cols: size },
        3 => {
            let words: Vec<u8> = map.iter().flat_map(|&group| (group as i32).to_le_bytes()).collect();
            Groups::Mapped { map: stored.add(format!("map {number}"), lead, &words), groups: per_row, below }
        }
        4 => Groups::Line { size: count },
        _ => Groups::Modulo { count },
    };
    // Of an element: its group in its row, where there are such, and its scale.
    let place = |row: usize, col: usize| match groups {
        Groups::Blocks { rows, cols, .. } => (col / cols, row / rows * per_row + col / cols),
        Groups::Below { cols } => (col / cols, col / cols * rows + row),
        Groups::Mapped { below: true, .. } => (map[col], map[col] * rows + row),
        Groups::Mapped { .. } => (map[col], row * per_row + map[col]),
        Groups::Line { size } => (0, (row * cols + col) / size),
        Groups::Modulo { count } => (0, (row * cols + col) % count),
    };
    let scales = 1 + (0..rows * cols).map(|i| place(i / cols, i % cols).1).max().expect("it has elements");
    // A map may leave out the last groups.
    let scales = if matches!(groups, Groups::Mapped { .. }) { per_row * rows } else { scales };
    let numbers = noise.floats(scales);
    let one = noise.floats(1)[0];
    let further = match noise.below(4) {
        0 => Further::Times(stored.numbers(format!("one {number}"), lead, &[one])),
        1 => Further::Over(stored.numbers(format!("one {number}"), lead, &[one])),
        _ => Further::Nothing,
    };
    let offsets = noise.floats(scales);
    let has_rows = matches!(groups, Groups::Below { .. } | Groups::Mapped { .. } | Groups::Blocks { rows: 1, .. });
    let by_group = noise.below(2) == 0;
    let zeros: Vec<u8> = (0..rows * per_row).map(|_| noise.next() as u8 & 15).collect();
    let offset = match noise.below(4) {
        0 => Offset::None,
        1 => Offset::Zero(stored.numbers(format!("zeros {number}"), lead, &offsets)),
        2 if has_rows => {
            let packing = Packing::Stream { bits: 4, align: 32 };
            let sides = if by_group { [per_row, rows] } else { [rows, per_row] };
            let bytes = packed(packing, sides, &zeros);
            let codes = Codes {
                stored: stored.add(format!("zeros {number}"), lead, &bytes),
                packing,
                values: Values::less(-1),
            };
            Offset::Packed { codes, by_group }
        }
        _ => Offset::Bias(stored.numbers(format!("biases {number}"), lead, &offsets)),
    };
    let value = |row: usize, col: usize| {
        let (group, at) = place(row, col);
        let code = (i32::from(codes[row * cols + col]) - half) as f32;
        let scale = match further {
            Further::Times(_) => numbers[at] * one,
            Further::Over(_) => numbers[at] / one,
            _ => numbers[at],
        };
        match offset {
            Offset::None => code * scale,
            Offset::Zero(_) => (code - offsets[at]) * scale,
            Offset::Bias(_) => code * scale + offsets[at],
            Offset::Packed { by_group, .. } => {
                let zero = zeros[if by_group { group * rows + row } else { row * per_row + group }];
                (code - (f32::from(zero) + 1.0)) * scale
            }
        }
    };
    let values = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
    let scale = Scale {
        numbers: stored.numbers(format!("scales {number}"), lead, &numbers),
        further: further.clone(),
        sign: Sign::Any,
    };
    let codes = Codes { stored: own, packing, values: Values::less(half) };
    (Quantized { rows, cols, codes, groups: groups.clone(), scale, offset: offset.clone(), transposed: false }, values)
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn codes_come_out_as_they_were_packed(
        (packing, [rows, cols]) in packings(),
        matrices in 1usize..4,
        transposed in any::<bool>(),
        cut in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        seed in any::<u64>(),
    ) {
        let mut noise = Noise(seed);
        let (mut stored, mut values, mut made) = (Stored::default(), Vec::new(), Vec::new());
        for number in 0..matrices {
            let (quantized, own) = matrix(&mut stored, number, packing, [rows, cols], &mut noise);
            let turned = (0..rows * cols).map(|i| own[i % rows * cols + i / rows]);
            values.extend(if transposed { turned.collect() } else { own });
            made.push(Quantized { transposed, ..quantized });
        }
        let wanted = f32s(values);
        let (rows, cols) = made[0].presented();
        let info = TensorInfo {
            name: "w".into(),
            dtype: Dtype::F32,
            shape: vec![matrices, rows, cols],
            file: 0,
            offset: 0,
            len: wanted.len() as u64,
        };
        let view = View::Quantized { format: "packed".into(), matrices: made };
        bounded(wanted.len(), || {
            let source = Presented::new(Arc::new(MemorySource::new(stored.0).unwrap()), [(info.clone(), view)]);
            assert!(source.read(&info, 0..info.len).unwrap() == wanted, "as a whole");
            let ends = [cut.0, cut.1].map(|cut| cut.index(wanted.len() + 1));
            let (first, last) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            let part = source.read(&info, first as u64..last as u64).unwrap();
            assert!(part == wanted[first..last], "bytes {first} to {last}");
            assert!(source.read(&info, 0..info.len + 1).is_err());
        });
    }
}

#[test]
fn another_bit_is_another_value() {
    let mut stored = Stored::default();
    let packing = Packing::Down { bits: 3 };
    let (quantized, values) = matrix(&mut stored, 0, packing, [3, 40], &mut Noise(1));
    let (_, _, bytes) = stored.0.get_mut("codes 0").unwrap();
    bytes[20] ^= 1;
    let source = MemorySource::new(stored.0).unwrap();
    let mut found = Vec::new();
    let loaded = quantized.load(&source, 0..3).unwrap();
    quantized.decode(&source, &loaded, 0..3, &mut found).unwrap();
    assert!(found != f32s(values));
}
