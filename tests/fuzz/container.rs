//! A GGUF file in parts, to be changed and put together again.

use crate::Edit;
use checkpoint_oracle::checkpoint::Dtype;

/// A key and its value: the type's number, and the bytes.
#[derive(Clone)]
pub struct Key {
    pub name: Vec<u8>,
    pub kind: u32,
    pub value: Vec<u8>,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    /// Innermost first.
    pub dimensions: Vec<u64>,
    pub kind: u32,
    /// The offset that is said to be its, if it isn't.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

#[derive(Clone)]
pub struct Container {
    pub keys: Vec<Key>,
    pub tensors: Vec<Tensor>,
}

pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;
/// What a tensor of another shape may take, in bytes.
const MOST: u64 = 1 << 18;

/// Takes what stands at a file's beginning.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> Vec<u8> {
        let len = self.u64() as usize;
        self.take(len).to_vec()
    }

    fn skip_value(&mut self, kind: u32) {
        match kind {
            TEXT => drop(self.text()),
            ARRAY => {
                let kind = self.u32();
                (0..self.u64()).for_each(|_| self.skip_value(kind));
            }
            kind => drop(self.take(size(kind))),
        }
    }
}

/// Bytes of a number's type.
pub fn size(kind: u32) -> usize {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        _ => 8,
    }
}

/// A text as it stands in a file.
pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// The value of an array.
pub fn array(kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
}

impl Key {
    /// The values of an array, and their type.
    pub fn values(&self) -> Option<(u32, Vec<Vec<u8>>)> {
        let mut reader = Reader(&self.value);
        let kind = (self.kind == ARRAY).then(|| reader.u32())?;
        let values = (0..reader.u64()).map(|_| {
            let start = reader.0;
            reader.skip_value(kind);
            start[..start.len() - reader.0.len()].to_vec()
        });
        Some((kind, values.collect()))
    }
}

impl Tensor {
    /// As many bytes of data as dimensions and type say, where that is not too much.
    fn fill(&mut self) {
        let elements = self.dimensions.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
        let bytes = elements.and_then(|n| Dtype::of_ggml(self.kind)?.bytes(n)).filter(|&n| n <= MOST);
        let Some(bytes) = bytes else { return };
        let old = self.data.clone();
        self.data = old.iter().copied().cycle().take(if old.is_empty() { 0 } else { bytes as usize }).collect();
        self.data.resize(bytes as usize, 0);
    }
}

impl Container {
    /// Of a file that is sound.
    pub fn read(bytes: &[u8]) -> Self {
        let mut reader = Reader(bytes);
        assert_eq!(reader.take(8), b"GGUF\x03\0\0\0");
        let (tensors, keys) = (reader.u64(), reader.u64());
        let key = |reader: &mut Reader<'_>| {
            let (name, kind, start) = (reader.text(), reader.u32(), reader.0);
            reader.skip_value(kind);
            Key { name, kind, value: start[..start.len() - reader.0.len()].to_vec() }
        };
        let keys: Vec<Key> = (0..keys).map(|_| key(&mut reader)).collect();
        let mut described = Vec::new();
        for _ in 0..tensors {
            let name = reader.text();
            let dimensions: Vec<u64> = (0..reader.u32()).map(|_| reader.u64()).collect();
            described.push((name, dimensions, reader.u32(), reader.u64()));
        }
        let mut container = Self { keys, tensors: Vec::new() };
        let start = (bytes.len() - reader.0.len()).next_multiple_of(container.alignment());
        for (name, dimensions, kind, offset) in described {
            let dtype = Dtype::of_ggml(kind).expect("a known type");
            let len = dtype.bytes(dimensions.iter().product()).expect("whole blocks") as usize;
            let data = bytes[start + offset as usize..][..len].to_vec();
            container.tensors.push(Tensor { name, dimensions, kind, offset: None, data });
        }
        container
    }

    fn alignment(&self) -> usize {
        let key = self.keys.iter().find(|key| key.name == b"general.alignment" && key.kind == 4);
        let number = key.map(|key| u32::from_le_bytes(key.value[..4].try_into().expect("four bytes")));
        number.filter(|number| (1..=4096).contains(number)).unwrap_or(32) as usize
    }

    /// The file, and how many bytes are not data.
    pub fn write(&self) -> (Vec<u8>, usize) {
        let alignment = self.alignment();
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for Key { name, kind, value } in &self.keys {
            bytes.extend([text(name), kind.to_le_bytes().to_vec(), value.clone()].concat());
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            data.resize(data.len().next_multiple_of(alignment), 0);
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        let header = bytes.len();
        data.resize(data.len().next_multiple_of(alignment), 0);
        bytes.resize(header.next_multiple_of(alignment), 0);
        bytes.extend(data);
        (bytes, header)
    }

    pub fn architecture(&self) -> Vec<u8> {
        let key = self.keys.iter().find(|key| key.name == b"general.architecture");
        key.map_or(b"llama".to_vec(), |key| key.value.get(8..).unwrap_or_default().to_vec())
    }

    /// Kinds of [`Container::edit`].
    pub const EDITS: u8 = 22;

    /// One change, which leaves what it doesn't change as it should be; `donor` is another model.
    pub fn edit(&mut self, edit: &Edit, donor: &Self) {
        if edit.kind < 10 { self.edit_key(edit, donor) } else { self.edit_tensor(edit, donor) }
    }

    fn edit_key(&mut self, edit: &Edit, donor: &Self) {
        const WORDS: [&str; 14] = [
            "",
            "model",
            "mmproj",
            "llama",
            "gemma4",
            "qwen35moe",
            "deepseek2",
            "none",
            "linear",
            "yarn",
            "longrope",
            "su",
            "\u{1b}[31m",
            "\u{2581}\u{0}",
        ];
        const NAMES: [&str; 8] = [
            "general.alignment",
            "general.type",
            "split.no",
            "split.count",
            "split.tensors.count",
            "tokenizer.ggml.tokens",
            "general.architecture",
            "\u{1b}[31m",
        ];
        let number = edit.extreme();
        // Types that there are, and some that there are not.
        let kind = (number % 15) as u32;
        let value = |kind: u32| match kind {
            TEXT => text(WORDS[edit.other.index(WORDS.len())].as_bytes()),
            ARRAY => {
                let kind = (edit.number >> 8) as u32 % 7;
                array(kind, &vec![number.to_le_bytes()[..size(kind)].to_vec(); edit.other.index(40)])
            }
            6 => {
                const FLOATS: [f32; 8] = [0., -1., 1e-30, 1e30, f32::MAX, f32::NAN, f32::INFINITY, 1.0];
                FLOATS[edit.other.index(FLOATS.len())].to_le_bytes().to_vec()
            }
            kind => number.to_le_bytes()[..size(kind)].to_vec(),
        };
        let stolen = || {
            let mut key = edit.other.get(&donor.keys).clone();
            if let Some(rest) = key.name.strip_prefix(&donor.architecture()[..]) {
                key.name = [self.architecture().as_slice(), rest].concat();
            }
            key
        };
        if self.keys.is_empty() {
            return self.keys.push(stolen());
        }
        let at = edit.at.index(self.keys.len());
        match edit.kind {
            0 => drop(self.keys.remove(at)),
            1 => self.keys[at] = Key { value: value(kind), kind, ..self.keys[at].clone() },
            // One of the same type, or of an array some values.
            2 | 3 => match self.keys[at].values() {
                // A number of the widest type: as large as numbers are.
                None if edit.number & 8 == 0 && self.keys[at].kind < 6 => {
                    self.keys[at] = Key { kind: 10, value: value(10), ..self.keys[at].clone() };
                }
                None => self.keys[at].value = value(self.keys[at].kind),
                Some((kind, mut values)) => {
                    match edit.number >> 3 & 3 {
                        0 => values.truncate(edit.other.index(values.len() + 1)),
                        1 => values.extend(values.first().cloned()),
                        _ if values.is_empty() => {}
                        2 => {
                            let len = values.len();
                            values[edit.other.index(len)] = value(kind);
                        }
                        _ => values.reverse(),
                    }
                    self.keys[at].value = array(kind, &values);
                }
            },
            4 => self.keys.push(self.keys[at].clone()),
            5 => self.keys[at].name = edit.other.get(&self.keys).name.clone(),
            6 => {
                let name = edit.other.get(&NAMES).as_bytes().to_vec();
                self.keys.retain(|key| key.name != name);
                let kind = if edit.number & 8 == 0 { 4 } else { kind };
                self.keys.push(Key { name, kind, value: value(kind) });
            }
            7 => {
                let other = edit.other.index(self.keys.len());
                let (a, b) = (self.keys[at].clone(), self.keys[other].clone());
                self.keys[at] = Key { name: a.name, ..b.clone() };
                self.keys[other] = Key { name: b.name, ..a };
            }
            _ => {
                let key = stolen();
                self.keys.retain(|other| other.name != key.name);
                self.keys.push(key);
            }
        }
    }

    fn edit_tensor(&mut self, edit: &Edit, donor: &Self) {
        if self.tensors.is_empty() {
            return self.tensors.push(edit.other.get(&donor.tensors).clone());
        }
        let number = edit.extreme();
        let at = edit.at.index(self.tensors.len());
        let other = edit.other.get(&self.tensors).clone();
        let tensor = &mut self.tensors[at];
        let axis = edit.other.index(tensor.dimensions.len().max(1));
        match edit.kind {
            10 => drop(self.tensors.remove(at)),
            11 => tensor.name = other.name,
            12 => tensor.name = edit.other.get(&donor.tensors).name.clone(),
            13 => {
                let copy = Tensor { name: edit.other.get(&donor.tensors).name.clone(), ..tensor.clone() };
                self.tensors.push(copy);
            }
            // With the data that such a tensor has, if that is not too much.
            14 | 15 => {
                if let Some(size) = tensor.dimensions.get_mut(axis) {
                    *size = if edit.kind == 14 { number } else { size.wrapping_add(number % 65).saturating_sub(32) };
                }
                tensor.fill();
            }
            16 => {
                tensor.kind = (number % 43) as u32;
                tensor.fill();
            }
            17 => tensor.dimensions.reverse(),
            18 => {
                if number.is_multiple_of(2) {
                    tensor.dimensions.insert(axis, number >> 1 & 3);
                } else if !tensor.dimensions.is_empty() {
                    tensor.dimensions.remove(axis);
                }
                tensor.fill();
            }
            19 => tensor.offset = Some(number),
            20 => {
                for byte in tensor.data.iter_mut().skip(edit.other.index(1000)).take(64) {
                    *byte = number as u8;
                }
            }
            // No elements, in a large shape.
            _ => {
                tensor.dimensions = vec![number, other.dimensions.first().copied().unwrap_or(1), number];
                if let Some(size) = tensor.dimensions.get_mut(edit.other.index(3)) {
                    *size = 0;
                }
                tensor.fill();
            }
        }
    }
}
