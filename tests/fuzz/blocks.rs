//! Every decoder, over bytes that make numbers of no sense.

use crate::bounded::bounded;
use crate::cases;
use checkpoint_oracle::checkpoint::{Block, Decoder, Dtype};
use checkpoint_oracle::ops::Level;
use proptest::collection::vec;
use proptest::prelude::*;

/// What NaNs, infinities, the largest and the smallest float16, bfloat16 and E4M3 are made of, or anything.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![prop::sample::select(vec![0, 1, 0x7b, 0x7c, 0x7e, 0x7f, 0x80, 0xfc, 0xff]), any::<u8>()]
}

fn decoders() -> Vec<(String, Decoder)> {
    let stored = (0..64).filter_map(Dtype::of_ggml);
    let mut decoders: Vec<(String, Decoder)> =
        stored.map(|dtype| (dtype.to_string(), dtype.decoder().expect("a decoder"))).collect();
    assert_eq!(decoders.len(), Block::ALL.len() + 8, "and the plain ones");
    decoders.extend([Decoder::E4M3, Decoder::E5M2, Decoder::E8M0].map(|decoder| (format!("{decoder:?}"), decoder)));
    decoders
}

/// All NaNs are alike.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_block_has_the_same_bits_on_every_level(bytes in vec(byte(), 292 * 9), blocks in 1usize..9, start in 0usize..64) {
        bounded(bytes.len(), || {
            for (name, decoder) in decoders() {
                let bytes = &bytes[start..start + blocks * decoder.block_bytes()];
                let decode = |level| {
                    let mut values = vec![-1.0; blocks * decoder.block_elements()];
                    decoder.decode_at(level, bytes, &mut values);
                    bits(&values)
                };
                let wanted = decode(Level::Portable);
                for level in Level::ALL.into_iter().filter(|level| level.available()) {
                    assert!(decode(level) == wanted, "{name}, {level}");
                }
                let mut first = vec![-1.0; decoder.block_elements()];
                decoder.decode(&bytes[..decoder.block_bytes()], &mut first);
                assert!(bits(&first) == wanted[..first.len()], "{name}: the first block by itself");
            }
        });
    }
}
