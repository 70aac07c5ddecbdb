//! Tokenizers of GGUF files.

use crate::bounded::bounded;
use crate::checkpoint::assert_named;
use crate::common::root;
use crate::container::{ARRAY, Container, Key, TEXT, array, text};
use crate::{Edit, cases, edits};
use checkpoint_oracle::engine::Tokenizer;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::sync::LazyLock;

const NAMES: [&str; 3] = ["bytes", "characters", "spm"];

static FILES: LazyLock<Vec<Container>> = LazyLock::new(|| {
    let path = |name: &str| root("fixtures/tokenizers").join(name).with_extension("gguf");
    NAMES.iter().map(|name| Container::read(&fs::read(path(name)).expect("it is there"))).collect()
});

/// The ways to cut a text that the variants of a file have.
static CUTS: LazyLock<Vec<Vec<String>>> = LazyLock::new(|| {
    let of = |name: &&str| {
        let text = fs::read_to_string(root("oracles/tokenizers").join(name).with_extension("json"));
        let captured: Value = serde_json::from_str(&text.expect("it is there")).expect("JSON");
        let variants = captured["variants"].as_array().expect("a list").iter();
        let cuts: BTreeSet<String> =
            variants.filter_map(|variant| Some(variant["tokenizer.ggml.pre"].as_str()?.to_owned())).collect();
        cuts.into_iter().collect()
    };
    NAMES.iter().map(of).collect()
});

const WORDS: [&str; 24] = [
    "",
    " ",
    "a",
    "b",
    "ab",
    "a b",
    " a",
    "a ",
    "\u{2581}",
    "\u{2581} \u{2581}",
    "<0x41>",
    "<0xZZ>",
    "<0x+1>",
    "<s>",
    "</s>",
    "<unk>",
    "<|im_end|>",
    "\u{120}",
    "\u{120} a",
    "\u{10ffff}",
    "e\u{301}",
    "\n\n",
    "[EMPTY_3]",
    "\u{0}",
];

fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        proptest::collection::vec(any::<char>(), 0..12).prop_map(String::from_iter),
        proptest::collection::vec(prop::char::range(' ', '~'), 0..12).prop_map(String::from_iter),
        prop::sample::select(WORDS.to_vec()).prop_map(str::to_owned),
        "[ \n\r\t]{0,4}[0-9]{0,5}['a-zA-Z]{0,5}",
    ];
    proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

fn set(container: &mut Container, name: &str, kind: u32, value: Vec<u8>) {
    container.keys.retain(|key| key.name != name.as_bytes());
    container.keys.push(Key { name: name.into(), kind, value });
}

/// The tokenizer of a file of these parts, if it has one.
fn with_tokenizer<T>(container: &Container, f: impl FnOnce(Result<Tokenizer, String>, &str) -> T) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let (bytes, _) = container.write();
    fs::write(&path, &bytes).expect("a file");
    let place = path.display().to_string();
    bounded(bytes.len(), || f(Tokenizer::of(&path).map_err(|error| format!("{error:#}")), &place))
}

/// Changes one of the tokenizer's keys, or what one of its tokens or merges is.
fn edit_vocabulary(container: &mut Container, edit: &Edit, donor: &Container) {
    let own: Vec<usize> =
        (0..container.keys.len()).filter(|&i| container.keys[i].name.starts_with(b"tokenizer.")).collect();
    if own.is_empty() || edit.kind < 3 {
        return container.edit(&Edit { kind: edit.number as u8 % 10, ..edit.clone() }, donor);
    }
    let key = &mut container.keys[*edit.at.get(&own)];
    let Some((kind, mut values)) = key.values().filter(|(_, values)| !values.is_empty()) else {
        return container.edit(&Edit { kind: 2, ..edit.clone() }, donor);
    };
    let at = edit.other.index(values.len());
    let word = WORDS[edit.number as usize % WORDS.len()].as_bytes();
    values[at] = match (kind, edit.kind) {
        (TEXT, 3) => text(word),
        (TEXT, 4) => values[edit.number as usize % values.len()].clone(),
        (TEXT, _) => text(&[&values[at][8..], word].concat()),
        (6, _) => {
            [f32::NAN, f32::INFINITY, -0.0, f32::MAX, -1e30, 0.5][edit.number as usize % 6].to_le_bytes().to_vec()
        }
        (_, 3) => [&(edit.number as u32 % 8).to_le_bytes()[..], &[0; 4]].concat()[..values[at].len()].to_vec(),
        _ => edit.extreme().to_le_bytes()[..values[at].len()].to_vec(),
    };
    key.value = array(kind, &values);
    assert_eq!(key.kind, ARRAY);
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_damaged_vocabulary_is_refused_or_has_tokens(
        file in any::<Index>(),
        edits in edits(8),
        cut in prop::option::of(any::<Index>()),
        texts in proptest::collection::vec(texts(), 1..4),
        ids in proptest::collection::vec(any::<u32>(), 0..4),
    ) {
        let which = file.index(NAMES.len());
        let mut container = FILES[which].clone();
        if let Some(cut) = cut.filter(|_| !CUTS[which].is_empty()) {
            set(&mut container, "tokenizer.ggml.pre", TEXT, text(cut.get(&CUTS[which]).as_bytes()));
        }
        for edit in &edits {
            edit_vocabulary(&mut container, edit, &FILES[file.index(7) % 3]);
        }
        with_tokenizer(&container, |tokenizer, place| {
            let tokenizer = match tokenizer {
                Ok(tokenizer) => tokenizer,
                Err(error) => return assert_named(&error, place),
            };
            for text in &texts {
                match tokenizer.tokenize(text) {
                    Ok(found) => {
                        let back = tokenizer.detokenize(&found.tokens);
                        assert!(back.is_ok(), "{text:?} gives {:?}, which is no text", found.tokens);
                    }
                    Err(error) => assert_named(&format!("{error:#}"), place),
                }
            }
            if let Err(error) = tokenizer.detokenize(&ids) {
                assert_named(&format!("{error:#}"), place);
            }
        });
    }

    #[test]
    fn any_text_comes_back(which in 0..NAMES.len(), cut in any::<Index>(), texts in proptest::collection::vec(texts(), 1..8)) {
        let mut container = FILES[which].clone();
        if !CUTS[which].is_empty() {
            set(&mut container, "tokenizer.ggml.pre", TEXT, text(cut.get(&CUTS[which]).as_bytes()));
        }
        with_tokenizer(&container, |tokenizer, _| {
            let tokenizer = tokenizer.expect("it is sound");
            for text in texts.iter().filter(|text| !text.is_empty()) {
                // U+2581 is a space, bytes written out are bytes, and a space comes back after each special token.
                if which > 0 && text.contains(['\u{2581}', '<', '[']) {
                    continue;
                }
                let found = tokenizer.tokenize(text).expect("every byte has a token");
                let back = tokenizer.detokenize(&found.tokens).expect("they are its own");
                let bos = found.added_bos.map_or("", |_| "<s>");
                // SentencePiece puts a space before a text.
                let space = if bos.is_empty() || which < 2 { "" } else { " " };
                assert_eq!(back, format!("{bos}{space}{text}"), "{}", NAMES[which]);
            }
        });
    }
}
