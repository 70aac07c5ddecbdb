//! Folders with quantised weights, of every dialect.

use crate::bounded::bounded;
use crate::checkpoint::{Outcome, use_all};
use crate::common::fixture;
use crate::folder::Folder;
use crate::{Edit, cases, edits};
use proptest::prelude::*;
use proptest::sample::Index;
use std::fs;
use std::sync::LazyLock;

/// Each dialect's name and folder.
static DIALECTS: LazyLock<Vec<(String, Folder)>> = LazyLock::new(|| {
    let entries = fs::read_dir(fixture("quant")).expect("it is there").map(|entry| entry.expect("an entry").path());
    let folders = entries.filter(|path| path.is_dir());
    let mut dialects: Vec<(String, Folder)> = folders
        .map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), Folder::read(&path)))
        .collect();
    dialects.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(dialects.len() > 50);
    dialects
});

fn use_folder(folder: &Folder, damage: impl FnOnce(&mut Vec<u8>, usize), step: u64) -> Outcome {
    let temp = tempfile::tempdir().expect("a folder");
    let bytes = folder.write(temp.path(), damage);
    let place = temp.path().file_name().expect("a name").to_string_lossy().into_owned();
    let outcome = bounded(bytes, || use_all(temp.path(), &place, step));
    if let Outcome::Refused(sentences) = &outcome {
        for sentence in sentences {
            // What of the file, unless it is the file as such.
            let told = ["key `", "tensor `", "model.safetensors: ", "header: ", ".json: "]
                .iter()
                .any(|what| sentence.contains(what));
            assert!(told, "neither key nor tensor is named: {sentence}");
        }
    }
    outcome
}

#[test]
fn folders_that_nothing_was_done_to_run() {
    for (name, folder) in DIALECTS.iter().step_by(7) {
        assert_eq!(use_folder(folder, |_, _| (), 0), Outcome::Ran, "{name}");
    }
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn a_folder_of_other_parts(
        folder in any::<Index>(),
        donor in any::<Index>(),
        edits in edits(Folder::EDITS),
        damage in prop::option::weighted(0.1, (0u8..8, any::<Index>(), any::<Index>(), any::<u64>())),
        step in any::<u64>(),
    ) {
        let (mut folder, donor) = (folder.get(&DIALECTS).1.clone(), &donor.get(&DIALECTS).1);
        for edit in &edits {
            folder.edit(edit, donor);
        }
        use_folder(&folder, |bytes, head| {
            if let Some((kind, at, other, number)) = damage {
                Edit { kind, at, other, number }.damage(bytes, head);
            }
        }, step);
    }
}
