//! Folders with quantised weights: each of fixtures/quant is decoded to the bits that the owner of its format gets
//! (oracles/quant, see the scripts that wrote them), runs as the folder of these weights does, and is refused by name where
//! something is wrong with it.

mod common;

use checkpoint_oracle::checkpoint::{Decoder, Dtype, Source};
use checkpoint_oracle::model::{Pack, close_books, open};
use common::{fixture, root};
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn dialects() -> Vec<String> {
    let entries = fs::read_dir(fixture("quant")).expect("the scripts wrote it");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn golden(name: &str) -> PathBuf {
    root("oracles/quant").join(format!("{name}.safetensors"))
}

/// The values of a tensor, by ranges of bytes that don't care about rows.
fn values(source: &dyn Source, name: &str) -> Vec<f32> {
    let info = &source.tensors()[name];
    assert_eq!(info.dtype, Dtype::F32, "{name}");
    let mut bytes = Vec::new();
    let step = info.len / 3 + 1;
    let mut first = 0;
    while first < info.len {
        let end = info.len.min(first + step);
        bytes.extend(source.read(info, first..end).unwrap_or_else(|error| panic!("{name}: {error:#}")));
        first = end;
    }
    assert_eq!(bytes, source.read(info, 0..info.len).expect("it can be read"), "{name}: in pieces and as a whole");
    let mut values = vec![0.0; bytes.len() / 4];
    Decoder::F32.decode(&bytes, &mut values);
    values
}

#[test]
fn every_dialect_decodes_to_the_bits_of_its_owner() {
    assert!(dialects().len() > 20);
    for name in dialects() {
        let folder = fixture("quant").join(&name);
        let opened = open(&folder, Pack::embedded()).into_checkpoint();
        let checkpoint = opened.unwrap_or_else(|problems| panic!("{name}: {problems:#?}"));
        let source = checkpoint.source.as_ref();
        let books = close_books(&checkpoint.config, source, &BTreeSet::new(), Pack::embedded(), &[]);
        assert!(books.problems.is_empty(), "{name}: {:#?}", books.problems);
        let bytes = fs::read(golden(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("safetensors");
        let rounding = header.metadata().as_ref().and_then(|metadata| metadata.get("rounding")).cloned();
        let expected = SafeTensors::deserialize(&bytes).expect("safetensors");
        let made: Vec<&str> = source.tensors().keys().map(String::as_str).collect();
        let plain: BTreeSet<&String> = source.stored().keys().collect();
        for (tensor, view) in expected.tensors() {
            let info = source.tensors().get(&tensor).unwrap_or_else(|| panic!("{name}: {tensor} is not among {made:?}"));
            assert_eq!(info.shape, view.shape(), "{name}: {tensor}");
            let mut wanted = vec![0.0; view.data().len() / 4];
            Decoder::F32.decode(view.data(), &mut wanted);
            let found = values(source, &tensor);
            for (i, (&found, &wanted)) in found.iter().zip(&wanted).enumerate() {
                let found = match rounding.as_deref() {
                    Some("F16") => half::f16::from_f32(found).to_f32(),
                    Some("BF16") => half::bf16::from_f32(found).to_f32(),
                    Some(other) => panic!("{name}: rounding {other}"),
                    None => found,
                };
                assert_eq!(found.to_bits(), wanted.to_bits(), "{name}: {tensor}, element {i}: {found} for {wanted}");
            }
        }
        // What the owner doesn't have among the quantised ones is stored as it is.
        for tensor in made {
            let is_made = source.tensors()[tensor] != source.stored().get(tensor).cloned().unwrap_or(source.tensors()[tensor].clone())
                || !plain.contains(&tensor.to_owned());
            assert!(!is_made || expected.tensor(tensor).is_ok(), "{name}: {tensor} is not in the golden file");
        }
    }
}
