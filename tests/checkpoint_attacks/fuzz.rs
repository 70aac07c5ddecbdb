//! Damaged files at random: whatever the bytes, no panic, and no allocation out of proportion to the input.

use super::made::{Folder, INDEX, SINGLE};
use proptest::collection::vec;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which remembers the largest allocation of each thread.
struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Does `f`, which makes no large allocation.
pub fn watched<T>(f: impl FnOnce() -> Result<T, TestCaseError>) -> Result<T, TestCaseError> {
    LARGEST.set(0);
    let done = f()?;
    prop_assert!(LARGEST.get() < 1 << 20, "the largest allocation took {} bytes", LARGEST.get());
    Ok(done)
}

/// Opens the folder, reads all tensors that it offers, and hashes; whatever comes of it.
fn use_everything(folder: &Folder) -> Result<(), TestCaseError> {
    watched(|| {
        let opened = folder.open();
        if let Some(source) = &opened.source {
            for tensor in source.tensors().values() {
                let bytes = source.read(tensor, 0..tensor.len);
                prop_assert!(
                    bytes.is_ok_and(|bytes| bytes.len() as u64 == tensor.len),
                    "an offered tensor can be read"
                );
                prop_assert!(!opened.unavailable.contains(&tensor.name));
            }
            prop_assert!(source.headers_sha256().is_ok() && source.full_sha256().is_ok());
        }
        Ok(())
    })
}

fn good_single() -> Vec<u8> {
    let folder = Folder::empty();
    folder.write_good(SINGLE, &["a", "b", "c"]);
    std::fs::read(folder.join(SINGLE)).unwrap()
}

/// Whether the independent reader accepts the file; it doesn't look at the keys of an entry or at duplicates.
fn crate_accepts(bytes: &[u8]) -> bool {
    safetensors::SafeTensors::deserialize(bytes).is_ok()
}

fn ours_accepts(folder: &Folder) -> bool {
    folder.open().into_checkpoint().is_ok()
}

proptest! {
    #[test]
    fn random_bytes_as_weights(bytes in vec(any::<u8>(), 0..400)) {
        let folder = Folder::with_config();
        folder.put(SINGLE, &bytes);
        use_everything(&folder)?;
    }

    #[test]
    fn a_random_header_with_a_right_length(header in r#"\{["a:{}\[\],0-9.e dtypshF32_of-]{0,120}\}"#, data in vec(any::<u8>(), 0..40)) {
        use_everything(&Folder::with_single(&header, &data))?;
    }

    #[test]
    fn random_offsets_and_shapes(
        tensors in vec((0u64..40, 0u64..40, vec(0u64..6, 0..4), prop::sample::select(vec!["F32", "BF16", "U8", "F4", "Q9"])), 0..5),
        data in 0usize..64,
        huge in any::<u64>(),
        use_huge in 0usize..20,
    ) {
        let entries: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(i, (begin, size, shape, dtype))| {
                let size = if i == use_huge { huge } else { *size };
                format!(r#""t{i}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{}]}}"#, begin.saturating_add(size))
            })
            .collect();
        use_everything(&Folder::with_single(&format!("{{{}}}", entries.join(",")), &vec![1; data]))?;
    }

    #[test]
    fn a_flipped_bit(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = good_single();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let folder = Folder::with_config();
        folder.put(SINGLE, &bytes);
        use_everything(&folder)?;
        if ours_accepts(&folder) {
            prop_assert!(crate_accepts(&bytes) || folder.open().source.is_some_and(|source| {
                source.tensors().values().any(|tensor| tensor.dtype.unit().is_none())
            }), "we accept what the independent reader refuses");
        }
    }

    #[test]
    fn a_truncated_file_is_always_refused(at in any::<prop::sample::Index>()) {
        let bytes = good_single();
        let folder = Folder::with_config();
        folder.put(SINGLE, &bytes);
        prop_assert!(ours_accepts(&folder));
        folder.put(SINGLE, &bytes[..at.index(bytes.len())]);
        use_everything(&folder)?;
        prop_assert!(!ours_accepts(&folder));
    }

    #[test]
    fn a_damaged_index_or_config(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(), config in any::<bool>()) {
        let folder = Folder::with_two_shards();
        let name = if config { "config.json" } else { INDEX };
        let mut bytes = std::fs::read(folder.join(name)).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        folder.put(name, &bytes);
        use_everything(&folder)?;
    }

    #[test]
    fn a_random_config(text in r#"\{["a-c:{}\[\],0-9.eNnulInfinity -]{0,80}\}?"#) {
        let folder = Folder::with_two_shards();
        folder.put("config.json", text.as_bytes());
        use_everything(&folder)?;
        // Whatever serde_json refuses, we refuse.
        prop_assert!(folder.open().config.is_none() || serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }
}
