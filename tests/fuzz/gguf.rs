//! GGUF files, of each architecture.

use crate::bounded::bounded;
use crate::checkpoint::{Outcome, use_all};
use crate::common::fixture;
use crate::container::{Container, Key};
use crate::{Edit, cases, edits};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// Each fixture's name and bytes.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let entries = fs::read_dir(fixture("gguf")).expect("it is there").map(|entry| entry.expect("an entry").path());
    let files = entries.filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut files: Vec<(String, Vec<u8>)> =
        files.map(|path| (name(&path), fs::read(&path).expect("it can be read"))).collect();
    files.sort();
    assert!(files.len() > 50);
    files
});

/// Uses the file, with the others of a split model as they are.
fn use_file(name: &str, bytes: &[u8], step: u64) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(name), bytes).expect("a file");
    let mut first = name;
    if name.contains("-of-") {
        for (other, bytes) in FILES.iter().rev().filter(|(other, _)| other.contains("-of-")) {
            if other != name {
                fs::write(folder.path().join(other), bytes).expect("a file");
            }
            first = other;
        }
    }
    let place = folder.path().file_name().expect("a name").to_string_lossy().into_owned();
    bounded(bytes.len(), || use_all(&folder.path().join(first), &place, step))
}

#[test]
fn files_that_nothing_was_done_to_run() {
    for (name, bytes) in FILES.iter().step_by(7).chain(FILES.iter().filter(|(name, _)| name.contains("-of-"))) {
        assert_eq!(use_file(name, bytes, 0), Outcome::Ran, "{name}");
        assert!(Container::read(bytes).write().0 == *bytes, "{name} in parts");
    }
}

#[test]
fn numbers_that_nothing_can_have_are_refused() {
    for (file, key, number) in [
        ("llama-plain.gguf", "llama.attention.head_count", 1 << 63),
        ("deepseek_v2-lite.gguf", "deepseek2.attention.kv_lora_rank", u64::MAX),
        // Layers and experts for which there are no tensors: a plan of them would take hundreds of megabytes.
        ("qwen3_5_moe-experts.gguf", "qwen35moe.expert_count", 31_836),
        ("qwen3_5_moe-experts.gguf", "qwen35moe.block_count", 10_000),
    ] {
        let (_, bytes) = FILES.iter().find(|(name, _)| name == file).expect("a fixture");
        let mut container = Container::read(bytes);
        let place = container.keys.iter_mut().find(|other| other.name == key.as_bytes()).expect("a key");
        *place = Key { kind: 10, value: u64::to_le_bytes(number).to_vec(), ..place.clone() };
        match use_file(file, &container.write().0, 0) {
            Outcome::Refused(sentences) => assert!(sentences.iter().any(|s| s.contains(key)), "{sentences:?}"),
            other => panic!("{key}: {other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn a_file_with_other_bytes(
        file in any::<Index>(),
        edits in edits(8),
        donor in any::<Index>(),
        splice in prop::option::weighted(0.1, (any::<Index>(), any::<Index>())),
        step in any::<u64>(),
    ) {
        let (name, bytes) = file.get(&FILES);
        let (mut bytes, header) = (bytes.clone(), Container::read(bytes).write().1);
        for edit in &edits {
            edit.damage(&mut bytes, header);
        }
        if let Some((here, there)) = splice {
            let (_, other) = donor.get(&FILES);
            bytes.truncate(here.index(bytes.len() + 1));
            bytes.extend(&other[there.index(other.len())..]);
        }
        use_file(name, &bytes, step);
    }

    #[test]
    fn a_file_of_other_parts(
        file in any::<Index>(),
        donor in any::<Index>(),
        edits in edits(Container::EDITS),
        damage in vec((0u8..8, any::<Index>(), any::<Index>(), any::<u64>()), 0..2),
        damaged in 0..8,
        step in any::<u64>(),
    ) {
        let (name, bytes) = file.get(&FILES);
        let (mut container, donor) = (Container::read(bytes), Container::read(&donor.get(&FILES).1));
        for edit in &edits {
            container.edit(edit, &donor);
        }
        let (mut bytes, header) = container.write();
        for (kind, at, other, number) in damage.into_iter().filter(|_| damaged == 0) {
            Edit { kind, at, other, number }.damage(&mut bytes, header);
        }
        use_file(name, &bytes, step);
    }
}
