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

/// What differs from the owner's values.
fn differences(name: &str) -> Result<(), String> {
    let opened = open(&fixture("quant").join(name), Pack::embedded()).into_checkpoint();
    let checkpoint = opened.map_err(|problems| format!("{problems:#?}"))?;
    let source = checkpoint.source.as_ref();
    let books = close_books(&checkpoint.config, source, &BTreeSet::new(), Pack::embedded(), &[]);
    if !books.problems.is_empty() {
        return Err(format!("{:#?}", books.problems));
    }
    let bytes = fs::read(golden(name)).map_err(|error| error.to_string())?;
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("safetensors");
    let rounding = header.metadata().as_ref().and_then(|metadata| metadata.get("rounding"));
    let round: fn(f32) -> f32 = match rounding.map(String::as_str) {
        None | Some("F32") => |value| value,
        Some("F16") => |value| half::f16::from_f32(value).to_f32(),
        Some("BF16") => |value| half::bf16::from_f32(value).to_f32(),
        Some(other) => return Err(format!("rounding {other}")),
    };
    let expected = SafeTensors::deserialize(&bytes).expect("safetensors");
    for (tensor, view) in expected.tensors() {
        let Some(info) = source.tensors().get(&tensor) else { return Err(format!("there is no {tensor}")) };
        if info.shape != view.shape() {
            return Err(format!("{tensor}: {:?} for {:?}", info.shape, view.shape()));
        }
        let mut wanted = vec![0.0; view.data().len() / 4];
        Decoder::F32.decode(view.data(), &mut wanted);
        let found = values(source, &tensor);
        let other = |(found, wanted): (&f32, &f32)| round(*found).to_bits() != wanted.to_bits();
        if let Some(at) = found.iter().zip(&wanted).position(other) {
            let count = found.iter().zip(&wanted).filter(|pair| other(*pair)).count();
            return Err(format!("{tensor}: {count} differ, element {at} is {} for {}", found[at], wanted[at]));
        }
    }
    // What is not among the owner's quantised weights is stored as it is.
    for (tensor, info) in source.tensors() {
        if source.stored().get(tensor) != Some(info) && expected.tensor(tensor).is_err() {
            return Err(format!("{tensor} is not in the golden file"));
        }
    }
    Ok(())
}

#[test]
fn every_dialect_decodes_to_the_bits_of_its_owner() {
    let all = dialects();
    assert!(all.len() > 20, "{all:?}");
    let wrong: Vec<String> =
        all.iter().filter_map(|name| differences(name).err().map(|error| format!("{name}: {error}"))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
