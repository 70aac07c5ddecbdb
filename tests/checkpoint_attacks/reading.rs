//! Reading bytes and hashing: from files, from memory, and from files that change under way.

use super::made::{Folder, INDEX, SINGLE, shard};
use checkpoint_oracle::checkpoint::{Dtype, MemorySource, SafetensorsFolder, Source, load_resident};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

const HEADER: &str =
    r#"{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}}"#;

fn counted() -> Folder {
    Folder::with_single(HEADER, &[10, 11, 12, 13, 14, 15, 16, 17])
}

fn source(folder: &Path) -> SafetensorsFolder {
    let opened = SafetensorsFolder::open(folder);
    assert_eq!(opened.problems, []);
    opened.source.unwrap()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn ranges_are_relative_to_the_tensor() {
    let folder = counted();
    let source = source(folder.path());
    let b = &source.tensors()["b"];
    assert_eq!(source.read(b, 0..3).unwrap()[..], [15, 16, 17]);
    assert_eq!(source.read(b, 1..2).unwrap()[..], [16]);
    assert_eq!(source.read(b, 3..3).unwrap().len(), 0);
}

#[test]
fn a_range_beyond_the_tensor_does_not_reach_its_neighbour() {
    let folder = counted();
    let source = source(folder.path());
    let resident = load_resident(&source).unwrap();
    for source in [&source as &dyn Source, &resident] {
        let a = &source.tensors()["a"];
        #[expect(clippy::reversed_empty_ranges)]
        for range in [0..6, 5..6, 3..2, 0..u64::MAX] {
            let error = source.read(a, range).unwrap_err();
            assert!(format!("{error:#}").contains("`a`"), "{error:#}");
        }
    }
}

#[test]
fn a_tensor_of_another_checkpoint_is_an_error() {
    let folder = counted();
    let source = source(folder.path());
    let mut foreign = source.tensors()["a"].clone();
    foreign.file = 9;
    assert!(source.read(&foreign, 0..1).is_err());
    foreign.file = 0;
    foreign.offset = u64::MAX - 2;
    assert!(source.read(&foreign, 0..5).is_err());
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_with_both_lengths() {
    let folder = counted();
    let source = source(folder.path());
    let len = source.files()[0].len;
    std::fs::File::options().write(true).open(folder.join(SINGLE)).unwrap().set_len(len - 2).unwrap();
    assert!(source.read(&source.tensors()["a"], 0..5).is_ok(), "what is left can be read");
    let error = format!("{:#}", source.read(&source.tensors()["b"], 0..3).unwrap_err());
    for word in ["`b`", SINGLE, &format!("expected {len} bytes"), &format!("found {}", len - 2)] {
        assert!(error.contains(word), "expected {word:?} in: {error}");
    }
    assert!(source.full_sha256().is_err());
}

#[test]
fn the_full_hash_is_that_of_the_files_one_after_the_other() {
    let single = counted();
    assert_eq!(source(single.path()).full_sha256().unwrap(), hex(&std::fs::read(single.join(SINGLE)).unwrap()));
    let folder = Folder::with_two_shards();
    let mut bytes = std::fs::read(folder.join("a.safetensors")).unwrap();
    bytes.extend(std::fs::read(folder.join("b.safetensors")).unwrap());
    assert_eq!(source(folder.path()).full_sha256().unwrap(), hex(&bytes));
    let large =
        Folder::with_single(r#"{"a":{"dtype":"U8","shape":[3000000],"data_offsets":[0,3000000]}}"#, &[9; 3_000_000]);
    assert_eq!(source(large.path()).full_sha256().unwrap(), hex(&std::fs::read(large.join(SINGLE)).unwrap()));
}

#[test]
fn the_headers_hash_does_not_depend_on_the_folder_or_the_weights() {
    let hash = |folder: &Folder| source(folder.path()).headers_sha256().unwrap();
    let expected = hash(&counted());
    assert_eq!(hash(&counted()), expected);
    assert_eq!(hash(&Folder::with_single(HEADER, &[0; 8])), expected);
    assert_ne!(hash(&Folder::with_single(&HEADER.replace("U8", "I8"), &[0; 8])), expected);
    assert_ne!(hash(&Folder::with_single(&format!("{HEADER} "), &[0; 8])), expected);
    // The text that the documentation describes, by hand.
    let header = hex(HEADER.as_bytes());
    let len = 8 + HEADER.len() + 8;
    let text = format!(
        "safetensors\nmodel.safetensors\n{len}\n{}\n{header}\n1 a\nmodel.safetensors\n1 b\nmodel.safetensors\n",
        HEADER.len()
    );
    assert_eq!(expected, hex(text.as_bytes()));
}

#[test]
fn the_headers_hash_tells_which_copy_of_a_tensor_is_read() {
    let folder = Folder::with_two_shards();
    folder.write_good("b.safetensors", &["b", "c"]);
    let first = source(folder.path()).headers_sha256().unwrap();
    folder.put_index(r#"{"a":"a.safetensors","b":"b.safetensors","c":"b.safetensors"}"#);
    assert_ne!(source(folder.path()).headers_sha256().unwrap(), first);
}

#[test]
fn a_folder_of_very_many_files_is_read_without_keeping_them_open() {
    let folder = Folder::with_config();
    let mut map = Vec::new();
    for i in 0..300 {
        folder.put(
            &format!("{i:03}.safetensors"),
            &shard(
                &HEADER.replace("\"a\"", &format!("\"a{i:03}\"")).replace("\"b\"", &format!("\"b{i:03}\"")),
                &[i as u8; 8],
            ),
        );
        map.push(format!(r#""a{i:03}":"{i:03}.safetensors","b{i:03}":"{i:03}.safetensors""#));
    }
    folder.put_index(&format!("{{{}}}", map.join(",")));
    folder.assert_sound();
    let source = source(folder.path());
    for (name, value) in [("a000", 0u8), ("b127", 127), ("a128", 128), ("b299", 43)] {
        let tensor = &source.tensors()[name];
        assert!(source.read(tensor, 0..tensor.len).unwrap().iter().all(|&byte| byte == value), "{name}");
    }
    folder.put("299.safetensors", b"another file");
    let error = format!("{:#}", source.read(&source.tensors()["a299"], 0..1).unwrap_err());
    assert!(error.contains("299.safetensors") && error.contains("changed since it was opened"), "{error}");
}

#[test]
fn a_file_that_has_changed_is_noticed() {
    let folder = counted();
    let source = source(folder.path());
    source.check_unchanged().unwrap();
    let path = folder.join(SINGLE);
    let original = std::fs::read(&path).unwrap();
    let refused = |what: &str| {
        let error = format!("{:#}", source.check_unchanged().unwrap_err());
        assert!(error.contains(SINGLE) && error.contains(what), "{error}");
    };
    // One byte more, and in place: the handle still reads what was asked for.
    std::fs::write(&path, [&original[..], &[0]].concat()).unwrap();
    refused("has changed");
    // The old length and another time.
    std::fs::write(&path, &original).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    std::fs::File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    refused("modification time");
    std::fs::remove_file(&path).unwrap();
    refused("can't be found again");
}

#[test]
fn a_resident_copy_holds_the_same_tensors_and_borrows_them() {
    let folder = Folder::with_two_shards();
    assert!(folder.join(INDEX).is_file());
    let source = source(folder.path());
    let resident = load_resident(&source).unwrap();
    assert_eq!(resident.tensors().keys().collect::<Vec<_>>(), source.tensors().keys().collect::<Vec<_>>());
    for (name, tensor) in source.tensors() {
        let copy = &resident.tensors()[name];
        assert_eq!((&copy.dtype, &copy.shape, copy.len), (&tensor.dtype, &tensor.shape, tensor.len));
        let bytes = resident.read(copy, 4..tensor.len).unwrap();
        let mut buffer = Vec::new();
        resident.read_into(copy, 4..tensor.len, &mut buffer).unwrap();
        assert!(buffer.is_empty(), "the bytes are where they were");
        assert_eq!(bytes, source.read(tensor, 4..tensor.len).unwrap());
        // The original's description finds the copy's bytes as well.
        assert_eq!(bytes, resident.read(tensor, 4..tensor.len).unwrap());
    }
}

#[test]
fn memory_refuses_bytes_that_do_not_fit_the_shape() {
    let made = |shape: &[usize], bytes: usize| {
        MemorySource::new(BTreeMap::from([("w".to_owned(), (Dtype::BF16, shape.to_vec(), vec![0; bytes]))]))
    };
    assert!(made(&[2, 3], 12).is_ok());
    assert!(made(&[], 2).is_ok());
    assert!(made(&[0], 0).is_ok());
    for (shape, bytes) in [(&[2, 3][..], 11), (&[2, 3], 24), (&[], 0), (&[usize::MAX, 2], 0)] {
        let error = made(shape, bytes).err().unwrap().to_string();
        assert!(error.contains("`w`") && error.contains(&format!("found {bytes}")), "{error}");
    }
}

#[test]
fn memory_hashes_what_it_holds() {
    let made = |dtype: Dtype, fill: u8| {
        let tensors = [("a", vec![1, 2], vec![fill; 4]), ("b", vec![3], vec![2; 6])];
        let tensors = tensors.map(|(name, shape, bytes)| (name.to_owned(), (dtype.clone(), shape, bytes)));
        MemorySource::new(BTreeMap::from(tensors)).unwrap()
    };
    let source = made(Dtype::F16, 1);
    assert_eq!(source.full_sha256().unwrap(), hex(&[1, 1, 1, 1, 2, 2, 2, 2, 2, 2]));
    assert_eq!(source.files()[0].len, 10);
    assert_eq!(source.headers_sha256().unwrap(), made(Dtype::F16, 9).headers_sha256().unwrap());
    assert_ne!(source.headers_sha256().unwrap(), made(Dtype::BF16, 1).headers_sha256().unwrap());
}
