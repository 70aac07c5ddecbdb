//! Folders whose weights are quantised: what `quantization_config` and the names of the tensors say is undone, so that the
//! family's pack finds float32 weights under their usual names.
//!
//! The tensors decide how a module is stored, the config what can't be seen on them. Nothing is done to activations: keys
//! and scales for these are left out, with a note.

mod awq;
mod bitsandbytes;
mod compressed;
mod float4;
mod float8;
mod gptq;
mod hqq;
mod mlx;
mod taking;

use super::keys::{Keys, Reported, shown};
use super::open::refused;
use crate::checkpoint::{Config, Opened, Source};
use crate::problem::{Problem, quote};
use serde_json::{Map, Value};
use std::sync::Arc;
use taking::Taking;

/// Where a config says how weights are stored, the first one that is there: transformers' key, that of folders made by
/// older tools, MLX's.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];
const METHOD: &str = "quant_method";

/// What a method's keys and tensors become.
type Undo = fn(&mut Keys<'_>, &mut Taking<'_>) -> Result<(), Reported>;

/// The methods, by `quant_method`.
const METHODS: [(&str, Undo); 19] = [
    ("fp8", float8::fp8),
    ("fbgemm_fp8", float8::fbgemm),
    ("modelopt", float4::modelopt),
    ("modelopt_fp4", float4::modelopt),
    ("quark", float4::quark),
    ("mxfp4", float4::mxfp4),
    ("compressed-tensors", compressed::undo),
    ("sparseml", compressed::undo),
    ("gptq", gptq::undo),
    ("gptqmodel", gptq::undo),
    ("auto-round", gptq::auto_round),
    ("auto_round", gptq::auto_round),
    ("intel/auto-round", gptq::auto_round),
    ("awq", awq::undo),
    ("bitsandbytes", bitsandbytes::undo),
    ("bitsandbytes_4bit", bitsandbytes::undo),
    ("bitsandbytes_8bit", bitsandbytes::undo),
    ("hqq", hqq::undo),
    ("mlx", mlx::undo),
];

/// What an opened folder is once its weights are read as float32; the same where none is quantised, or where the family's
/// pack knows what to do.
///
/// The codes of its problems: `config-*` for keys, `tensor-missing`, `tensor-shape`, `tensor-dtype`, `tensor-row`,
/// `tensor-value`, `tensor-ambiguous`, `tensor-surplus`, `unreadable` for a module's tensors. Of its notes: `activations`.
pub fn undo(opened: Opened) -> Opened {
    let Some(config) = &opened.config else { return opened };
    let found = find(&config.root).map(|(key, object)| (config.path.display().to_string(), format!("{key}."), object));
    let found = match found.map_or_else(|| beside(config), |found| Ok(Some(found))) {
        Ok(found) => found,
        Err(problem) => return Opened { source: opened.source, ..refused(vec![problem]) },
    };
    let Some((file, path, quantization)) = found.or_else(|| told_by_tensors(&opened, config)) else {
        return match unexplained(&opened, config) {
            Some(problem) => Opened { source: opened.source, ..refused(vec![problem]) },
            None => opened,
        };
    };
    if method(&quantization) == Some("bitnet") {
        return opened;
    }
    match (&opened.source, opened.problems.is_empty()) {
        (Some(source), true) => {
            let (config, source) = (config.clone(), Arc::clone(source));
            present(opened, config, source, &file, &path, &quantization)
        }
        // What isn't whole can't be translated.
        _ => Opened { config: None, ..opened },
    }
}

fn method(quantization: &Map<String, Value>) -> Option<&str> {
    quantization.get(METHOD).and_then(Value::as_str)
}

/// The object that says how weights are stored, and the keys that lead to it. Folders of several models may have it with
/// the language model's.
fn find(root: &Map<String, Value>) -> Option<(String, Map<String, Value>)> {
    let here = |map: &Map<String, Value>, before: &str| {
        let found = KEYS.iter().find_map(|key| Some((key, map.get(*key)?.as_object()?)));
        found.map(|(key, object)| (format!("{before}{key}"), object.clone()))
    };
    here(root, "").or_else(|| here(root.get("text_config")?.as_object()?, "text_config."))
}

/// What older tools wrote beside config.json instead, with the method that it means.
const BESIDE: [(&str, &str); 3] =
    [("hf_quant_config.json", "modelopt"), ("quantize_config.json", "gptq"), ("quant_config.json", "awq")];

/// File, what comes before its keys, and the object.
type Found = (String, String, Map<String, Value>);

fn beside(config: &Config) -> Result<Option<Found>, Problem> {
    let Some(folder) = config.path.parent() else { return Ok(None) };
    for (name, method) in BESIDE {
        let Some(Config { path: file, mut root, .. }) = Config::read_beside(folder, name)? else { continue };
        let mut path = String::new();
        if let Some(Value::Object(inner)) = root.get_mut("quantization") {
            // ModelOpt has the producer beside it.
            root = std::mem::take(inner);
            path = "quantization.".to_owned();
        }
        root.entry(METHOD).or_insert_with(|| method.into());
        return Ok(Some((file.display().to_string(), path, root)));
    }
    Ok(None)
}

/// HQQ's own folders have no key, and all that it would say in tensors.
fn told_by_tensors(opened: &Opened, config: &Config) -> Option<Found> {
    let source = opened.source.as_ref()?;
    source.tensors().keys().any(|name| name.ends_with(".W_q")).then(|| {
        let says = Map::from_iter([(METHOD.to_owned(), "hqq".into())]);
        (config.path.display().to_string(), "quantization_config.".to_owned(), says)
    })
}

/// A part of a quantised weight, in a folder that doesn't say how it is one.
fn unexplained(opened: &Opened, config: &Config) -> Option<Problem> {
    const PARTS: [(&str, &str); 6] = [
        (".qweight", "gptq or awq"),
        (".weight_packed", "compressed-tensors"),
        (".weight.absmax", "bitsandbytes"),
        (".SCB", "bitsandbytes"),
        (".weight_scale_inv", "fp8"),
        (".weight_scale_2", "modelopt"),
    ];
    let tensors = opened.source.as_ref()?.tensors();
    let (name, method) = PARTS.iter().find_map(|(ending, method)| {
        let name = tensors.keys().find(|name| name.ends_with(ending))?;
        Some((name, method))
    })?;
    let place = format!("{}, key `quantization_config`", config.path.display());
    let found = match config.root.get(KEYS[0]) {
        Some(value) => format!("expected an object, found {}", shown(value)),
        None => "missing".to_owned(),
    };
    let message = format!(
        "{found}; tensor {} is a part of a quantised weight, most likely of {method}, and nothing says how",
        quote(name)
    );
    Some(Problem::new("config-key-missing", place, message))
}

fn present(
    opened: Opened,
    mut config: Config,
    source: Arc<dyn Source>,
    file: &str,
    path: &str,
    quantization: &Map<String, Value>,
) -> Opened {
    let mut keys = Keys::new(file, path, quantization);
    let named = keys.text(METHOD).map(|method| method.or(mlx::is_meant(&config.root, quantization).then_some("mlx")));
    let both = [KEYS[0], KEYS[2]].map(|key| config.root.get(key).and_then(Value::as_object));
    let named = match both {
        [Some(one), Some(other)] if one != other => {
            let message = "has other values than quantization, and both say how weights are stored";
            Err(keys.report("config-contradiction", METHOD, message))
        }
        _ => named,
    };
    let undo = named.and_then(|method| match METHODS.iter().find(|(name, _)| Some(*name) == method) {
        Some((_, undo)) => Ok(undo),
        None => Err(unknown(&mut keys, method)),
    });
    // Its matrices are stored as [in, out], and no library agrees with another on what becomes of them.
    let undo = match config.root.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => Err(keys.report("config-value", METHOD, "quantised weights of gpt2 can't be decoded here")),
        _ => undo,
    };
    let undo = match undo {
        Ok(undo) => undo,
        Err(Reported) => {
            // What its keys and the tensors mean can't be known.
            keys.read_all();
            return Opened { source: Some(source), ..refused(keys.close()) };
        }
    };
    let mut taking = Taking::new(source.as_ref());
    let mut done = undo(&mut keys, &mut taking);
    if done.is_ok() && taking.found_nothing() {
        // A file that was left beside weights of another kind says nothing.
        if file != config.path.display().to_string() {
            return opened;
        }
        let method = keys.text(METHOD).ok().flatten().unwrap_or("mlx");
        let message = format!(
            "{}, but no tensor of the folder is stored so; weights that are quantised while they are loaded are not known here",
            quote(method)
        );
        done = Err(keys.report("config-value", METHOD, message));
    }
    let mut taken = taking.close();
    let mut problems = std::mem::take(&mut taken.problems);
    let mut notes = opened.notes;
    notes.extend(taken.note(file));
    if done.is_err() {
        keys.read_all();
    }
    // Keys that nothing reads stay for the books to report.
    let unread: Vec<(String, Value)> = keys.unread().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    keys.read_all();
    problems.extend(keys.close());
    if !problems.is_empty() {
        return Opened { source: Some(source), notes, ..refused(problems) };
    }
    drop_keys(&mut config.root, quantization);
    for (key, value) in unread {
        config.root.insert(format!("{path}{key}"), value);
    }
    let source = Arc::new(taken.over(source));
    Opened { config: Some(config), source: Some(source), notes, ..opened }
}

/// Takes the object out wherever it stands: MLX's folders have it twice.
fn drop_keys(root: &mut Map<String, Value>, quantization: &Map<String, Value>) {
    let drop = |map: &mut Map<String, Value>| {
        for key in KEYS {
            if map.get(key).and_then(Value::as_object) == Some(quantization) {
                map.shift_remove(key);
            }
        }
    };
    drop(root);
    if let Some(inner) = root.get_mut("text_config").and_then(Value::as_object_mut) {
        drop(inner);
    }
}

fn unknown(keys: &mut Keys<'_>, method: Option<&str>) -> Reported {
    let Some(method) = method else {
        return keys.report("config-key-missing", METHOD, "missing; it says how weights are quantised");
    };
    let why = match method {
        "eetq" => "its weights lie in an order that depends on the GPU they were made for",
        "higgs" | "spqr" | "vptq" | "aqlm" | "quip" | "exl2" | "exl3" | "fp_quant" | "sinq" => {
            "its codebooks and transforms are not known here"
        }
        "torchao" | "quanto" => "its tensors are Python objects, taken apart in ways of their own",
        _ => "it is not known here",
    };
    let mut known: Vec<&str> = METHODS.iter().map(|(name, _)| *name).collect();
    known.insert(0, "bitnet");
    let message = format!("{} can't be decoded: {why}. Those that can: {}", quote(method), known.join(", "));
    keys.report("config-value", METHOD, message)
}
