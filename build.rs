//! Lists packs/*.toml for the binary, so that a new family is a new file and nothing else.

use std::fmt::Write;
use std::{env, fs, path::Path};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let folder = Path::new(&root).join("packs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = fs::read_dir(&folder).expect("packs/ can be read");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("packs/ can be read").file_name().into_string().expect("a pack's name is text"))
        .filter(|name| name.ends_with(".toml") && !["inert.toml", "gguf.toml"].contains(&name.as_str()))
        .collect();
    names.sort();
    let mut list = format!("[(&str, &str); {}] = [\n", names.len());
    for name in &names {
        let path = folder.join(name);
        writeln!(list, "    ({:?}, include_str!({path:?})),", name.trim_end_matches(".toml")).expect("text grows");
    }
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("packs.rs"), format!("const EMBEDDED: {list}];\n")).expect("OUT_DIR can be written");
}
