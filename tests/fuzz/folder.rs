//! A folder of Hugging Face in parts, to be changed and written again.

use crate::Edit;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

#[derive(Clone)]
pub struct Folder {
    /// By name: config.json, and what may lie beside it.
    pub documents: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

/// Sizes that a tensor of another shape may have, in bytes.
const MOST: u64 = 1 << 18;
const WEIGHTS: &str = "model.safetensors";
/// Where a quantisation is described.
const DESCRIBED: [&str; 4] = ["quantization_config", "compression_config", "quantization", "text_config"];
const DTYPES: [(&str, u64); 16] = [
    ("U8", 1),
    ("I8", 1),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("F8_E8M0", 1),
    ("BOOL", 1),
    ("F16", 2),
    ("BF16", 2),
    ("I16", 2),
    ("F32", 4),
    ("I32", 4),
    ("U32", 4),
    ("F64", 8),
    ("I64", 8),
    ("U64", 8),
    ("Q9", 1),
];

/// Bytes of an element; of dtypes that there are not, one.
fn width(dtype: &str) -> u64 {
    DTYPES.iter().find(|(name, _)| *name == dtype).map_or(1, |(_, width)| *width)
}

impl Tensor {
    /// As many bytes of data as shape and dtype say, where that is not too much.
    fn fill(&mut self) {
        let elements = self.shape.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
        let bytes = elements.and_then(|n| n.checked_mul(width(&self.dtype))).filter(|&n| n <= MOST);
        if let Some(bytes) = bytes {
            let old: Vec<u8> = self.data.iter().copied().chain([0]).collect();
            self.data = old.into_iter().cycle().take(bytes as usize).collect();
        }
    }

    /// The end of its name behind the module's.
    fn part(&self) -> &str {
        self.name.split_once("_proj.").map_or(&self.name, |(_, part)| part)
    }
}

impl Folder {
    /// One that is sound.
    pub fn read(path: &Path) -> Self {
        let mut documents = Vec::new();
        let mut tensors = Vec::new();
        for entry in fs::read_dir(path).expect("it is there") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let bytes = fs::read(&path).expect("it can be read");
            if name.ends_with(".safetensors") {
                tensors.extend(tensors_in(&bytes));
            } else if !name.ends_with(".index.json") {
                documents.push((name, serde_json::from_slice(&bytes).expect("JSON")));
            }
        }
        documents.sort_by(|a, b| a.0.cmp(&b.0));
        Self { documents, tensors }
    }

    /// The weights' file, and how many bytes are not data.
    pub fn weights(&self) -> (Vec<u8>, usize) {
        let (mut entries, mut data) = (Vec::new(), Vec::new());
        for Tensor { name, dtype, shape, data: own } in &self.tensors {
            let start = data.len();
            data.extend(own);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
            // Names may be there twice.
            entries.push(format!("{}:{entry}", json!(name)));
        }
        let header = format!("{{{}}}", entries.join(","));
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        (bytes, header.len() + 8)
    }

    /// Writes it, with the weights' file changed by `damage`; returns the bytes that this takes.
    pub fn write(&self, path: &Path, damage: impl FnOnce(&mut Vec<u8>, usize)) -> usize {
        let mut size = 0;
        for (name, document) in &self.documents {
            let text = document.to_string();
            size += text.len();
            fs::write(path.join(name), text).expect("a file");
        }
        let (mut weights, header) = self.weights();
        damage(&mut weights, header);
        fs::write(path.join(WEIGHTS), &weights).expect("a file");
        size + weights.len()
    }

    /// Kinds of [`Folder::edit`].
    pub const EDITS: u8 = 20;

    /// One change, which leaves what it doesn't change as it should be; `donor` is another folder.
    pub fn edit(&mut self, edit: &Edit, donor: &Self) {
        match edit.kind {
            0..8 => self.edit_document(edit, donor),
            _ => self.edit_tensor(edit, donor),
        }
    }

    /// What is known to describe how weights are stored; one time of eight all of it.
    fn edit_document(&mut self, edit: &Edit, donor: &Self) {
        let which = edit.other.index(self.documents.len());
        let (name, document) = &mut self.documents[which];
        let whole = edit.number.is_multiple_of(8) || name != "config.json";
        let mut places = Vec::new();
        if whole {
            pointers(document, String::new(), &mut places);
        } else {
            for key in DESCRIBED {
                if let Some(described) = document.get(key) {
                    pointers(described, format!("/{key}"), &mut places);
                }
            }
        }
        let theirs =
            donor.documents.iter().flat_map(|(_, document)| DESCRIBED.iter().find_map(|key| document.get(key)));
        let theirs = theirs.filter_map(Value::as_object).next();
        if places.is_empty() {
            return;
        }
        let place = edit.at.get(&places);
        match edit.kind {
            0 | 1 => {
                let (parent, key) = place.rsplit_once('/').unwrap_or(("", ""));
                match document.pointer_mut(parent) {
                    Some(Value::Object(map)) => drop(map.remove(&unescaped(key))),
                    Some(Value::Array(list)) if !list.is_empty() => drop(list.remove(edit.other.index(list.len()))),
                    _ => {}
                }
            }
            // A key of another folder: with its own value, or in a place of ours.
            2 => {
                let here = DESCRIBED.iter().find(|key| document.get(**key).is_some_and(Value::is_object));
                if let (Some(here), Some(theirs)) = (here, theirs.filter(|map| !map.is_empty())) {
                    let (key, value) = theirs.iter().nth(edit.at.index(theirs.len())).expect("it has so many");
                    document[*here][key] = value.clone();
                }
            }
            3 => {
                let theirs: Vec<&Value> = theirs.into_iter().flat_map(Map::values).collect();
                if let (Some(value), false) = (document.pointer_mut(place), theirs.is_empty()) {
                    *value = (*edit.other.get(&theirs)).clone();
                }
            }
            _ => {
                if let Some(value) = document.pointer_mut(place) {
                    *value = other_value(edit);
                }
            }
        }
    }

    fn edit_tensor(&mut self, edit: &Edit, donor: &Self) {
        if self.tensors.is_empty() {
            return self.tensors.push(edit.other.get(&donor.tensors).clone());
        }
        // Those that make a quantised one, more often than others.
        let parts: Vec<usize> = (0..self.tensors.len())
            .filter(|&i| self.tensors[i].part() != "weight" || edit.number.is_multiple_of(3))
            .collect();
        let all: Vec<usize> = (0..self.tensors.len()).collect();
        let at = *edit.at.get(if parts.is_empty() { &all } else { &parts });
        let number = edit.extreme();
        let other = edit.other.get(&self.tensors).clone();
        let theirs = edit.other.get(&donor.tensors).clone();
        let tensor = &mut self.tensors[at];
        let axis = edit.other.index(tensor.shape.len().max(1));
        match edit.kind {
            8 => drop(self.tensors.remove(at)),
            9 => tensor.name = other.name,
            10 => {
                let module = tensor.name.strip_suffix(tensor.part()).unwrap_or_default();
                tensor.name =
                    format!("{module}{}", if number.is_multiple_of(2) { other.part() } else { theirs.part() });
            }
            11 => {
                let module = tensor.name.strip_suffix(tensor.part()).unwrap_or_default();
                let name = format!("{module}{}", if number.is_multiple_of(2) { other.part() } else { theirs.part() });
                let copy = Tensor { name, ..tensor.clone() };
                self.tensors.push(copy);
            }
            // With the data that such a tensor has, if that is not too much.
            12 | 13 => {
                if let Some(size) = tensor.shape.get_mut(axis) {
                    *size = match edit.number >> 5 & 3 {
                        0 => number,
                        1 => *size * 2,
                        2 => *size / 2,
                        _ => size.saturating_add(number % 5).saturating_sub(2),
                    };
                }
                tensor.fill();
            }
            14 => tensor.shape.reverse(),
            15 => match edit.number & 3 {
                0 => tensor.shape.push(1),
                1 => tensor.shape = vec![tensor.shape.iter().product()],
                2 => tensor.shape.insert(0, 1),
                _ => {
                    tensor.shape.pop();
                    tensor.fill();
                }
            },
            // The same bytes as numbers of another type, or as many numbers.
            16 => {
                let same: Vec<&str> =
                    DTYPES.iter().filter(|(_, n)| *n == width(&tensor.dtype)).map(|(n, _)| *n).collect();
                tensor.dtype = edit.other.get(&same).to_string();
            }
            17 => {
                tensor.dtype = edit.other.get(&DTYPES).0.to_owned();
                tensor.fill();
            }
            18 => {
                const BYTES: [u8; 8] = [0, 0xff, 0x7f, 0x80, 0x7c, 0x7e, 1, 0x3c];
                let (start, len) = (edit.other.index(tensor.data.len() + 1), 1 + number as usize % 64);
                for byte in tensor.data.iter_mut().skip(if number.is_multiple_of(2) { 0 } else { start }).take(len) {
                    *byte = BYTES[(edit.number >> 8) as usize % 8];
                }
            }
            _ => match serde_json::from_slice::<Value>(&tensor.data) {
                // Settings in a tensor.
                Ok(mut value) if value.is_object() => {
                    let mut places = Vec::new();
                    pointers(&value, String::new(), &mut places);
                    if !places.is_empty() {
                        let place = edit.other.get(&places);
                        value.pointer_mut(place).into_iter().for_each(|value| *value = other_value(edit));
                    }
                    tensor.data = value.to_string().into_bytes();
                    tensor.shape = vec![tensor.data.len() as u64];
                }
                _ => tensor.data.reverse(),
            },
        }
    }
}

/// Every place inside of a document.
fn pointers(value: &Value, here: String, places: &mut Vec<String>) {
    let mut inside = |key: &str, value: &Value| {
        let place = format!("{here}/{}", key.replace('~', "~0").replace('/', "~1"));
        places.push(place.clone());
        pointers(value, place, places);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| inside(key, value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| inside(&i.to_string(), value)),
        _ => {}
    }
}

fn unescaped(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

/// A value of another type, of no sense, or of another format.
fn other_value(edit: &Edit) -> Value {
    const WORDS: [&str; 36] = [
        "",
        "fp8",
        "e4m3",
        "fbgemm_fp8",
        "gptq",
        "gptq_v2",
        "awq",
        "gemm",
        "gemv",
        "gemv_fast",
        "auto-round",
        "auto_round:auto_gptq",
        "bitsandbytes",
        "nf4",
        "fp4",
        "hqq",
        "mlx",
        "affine",
        "mxfp4",
        "mxfp8",
        "nvfp4",
        "NVFP4",
        "FP8",
        "compressed-tensors",
        "pack-quantized",
        "int-quantized",
        "float-quantized",
        "nvfp4-pack-quantized",
        "tensor",
        "channel",
        "group",
        "block",
        "float",
        "bfloat16",
        "re:.*",
        "\u{1b}[31m",
    ];
    let number = edit.extreme();
    match edit.number >> 9 & 15 {
        0 => Value::Null,
        1 => json!(number.is_multiple_of(2)),
        2 | 3 => json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, 33, 48, 64, 96, 128, 1 << 20][number as usize % 17]),
        4 | 5 => json!(number),
        6 => json!(-(i64::try_from(number).unwrap_or(i64::MAX))),
        7 => json!([0.5, -1.0, 1e-300, 1e300, 4.0][number as usize % 5]),
        8 => json!([]),
        9 => json!({}),
        10 => json!([number % 200, number]),
        _ => json!(edit.other.get(&WORDS)),
    }
}

fn tensors_in(bytes: &[u8]) -> Vec<Tensor> {
    let file = safetensors::SafeTensors::deserialize(bytes).expect("it is sound");
    let mut tensors: Vec<Tensor> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| Tensor {
            name,
            dtype: view.dtype().to_string(),
            shape: view.shape().iter().map(|&size| size as u64).collect(),
            data: view.data().to_vec(),
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}
