//! The stored tensors of a folder, taken by the modules whose weights they make.

use crate::checkpoint::presented::{Piece, View};
use crate::checkpoint::quantized::{Codes, Numbers, Packing, Quantized, Values};
use crate::checkpoint::{Decoder, Dtype, Presented, Source, TensorInfo};
use crate::model::contract::{shown, tensor_name};
use crate::problem::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Says that what is wrong with a module has been added to the problems.
#[derive(Debug, Clone, Copy)]
pub struct Failed;

/// The stored tensors, with a record of which were taken.
pub struct Taking<'a> {
    source: &'a dyn Source,
    made: BTreeMap<String, (TensorInfo, View)>,
    taken: BTreeSet<&'a str>,
    ignorable: BTreeMap<String, &'static str>,
    /// How activations would be quantised.
    activations: Option<String>,
    problems: Vec<Problem>,
}

/// What became of the tensors.
pub struct Taken {
    /// Those that are made, and those that are as they are stored.
    tensors: Vec<(TensorInfo, View)>,
    ignorable: Vec<(&'static str, String)>,
    activations: Option<String>,
    pub problems: Vec<Problem>,
}

/// What scales of activations, and of keys and values, are called in `check`.
pub const ACTIVATIONS: &str = "scales of activations";

impl<'a> Taking<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        let (made, taken, ignorable) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { source, made, taken, ignorable, activations: None, problems: Vec::new() }
    }

    /// The tensors whose names end so.
    pub fn ending(&self, suffix: &str) -> Vec<(&'a str, &'a TensorInfo)> {
        let all = self.source.tensors().iter();
        all.filter_map(|(name, info)| Some((name.strip_suffix(suffix)?, info))).collect()
    }

    /// A stored tensor that may be missing.
    pub fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        self.source.tensors().get(name)
    }

    pub fn is_taken(&self, info: &TensorInfo) -> bool {
        self.taken.contains(info.name.as_str())
    }

    /// The bytes of a small tensor.
    pub fn peek(&mut self, info: &TensorInfo) -> Result<Vec<u8>, Failed> {
        const MOST: u64 = 1 << 24;
        if info.len > MOST {
            return Err(self.fail("tensor-shape", info, format!("expected at most {MOST} bytes, found {}", info.len)));
        }
        let read = self.source.read(info, 0..info.len);
        read.map_err(|error| self.fail("unreadable", info, format!("{error:#}")))
    }

    /// Takes a small tensor and reads it.
    pub fn read(&mut self, info: &'a TensorInfo) -> Result<Vec<u8>, Failed> {
        self.taken.insert(&info.name);
        self.peek(info)
    }

    /// Takes a tensor that another one needs.
    pub fn need(&mut self, name: &str, of: &'a TensorInfo) -> Result<&'a TensorInfo, Failed> {
        match self.find(name) {
            Some(info) => {
                self.taken.insert(&info.name);
                Ok(info)
            }
            None => {
                self.taken.insert(&of.name);
                let place = format!("{}, {}", self.file(of), tensor_name(name));
                let message = format!("missing; {} ({}) can't be decoded without it", tensor_name(&of.name), of.dtype);
                self.problems.push(Problem::new("tensor-missing", place, message));
                Err(Failed)
            }
        }
    }

    /// Takes a tensor that may be missing.
    pub fn take(&mut self, name: &str) -> Option<&'a TensorInfo> {
        let info = self.find(name)?;
        self.taken.insert(&info.name);
        Some(info)
    }

    fn file(&self, info: &TensorInfo) -> String {
        self.source.files()[info.file].path.display().to_string()
    }

    pub fn fail(&mut self, code: &'static str, info: &TensorInfo, message: impl Into<String>) -> Failed {
        let place = format!("{}, {}", self.file(info), tensor_name(&info.name));
        self.problems.push(Problem::new(code, place, message));
        Failed
    }

    /// One of these shapes; which one.
    pub fn shape(&mut self, info: &TensorInfo, shapes: &[&[usize]]) -> Result<usize, Failed> {
        if let Some(at) = shapes.iter().position(|shape| info.shape == *shape) {
            return Ok(at);
        }
        let expected: Vec<String> = shapes.iter().map(|shape| shown(shape)).collect();
        let message = format!("expected shape {}, found {}", expected.join(" or "), shown(&info.shape));
        Err(self.fail("tensor-shape", info, message))
    }

    /// One of these dtypes, by a safetensors header's names.
    pub fn dtype(&mut self, info: &TensorInfo, names: &[&str]) -> Result<(), Failed> {
        if names.contains(&info.dtype.name()) {
            return Ok(());
        }
        let message = format!("expected dtype {}, found {}", names.join(" or "), info.dtype);
        Err(self.fail("tensor-dtype", info, message))
    }

    /// A matrix.
    pub fn matrix(&mut self, info: &TensorInfo) -> Result<[usize; 2], Failed> {
        match info.shape[..] {
            [rows, cols] if rows > 0 && cols > 0 => Ok([rows, cols]),
            _ => {
                let message = format!("expected a matrix with elements, found shape {}", shown(&info.shape));
                Err(self.fail("tensor-shape", info, message))
            }
        }
    }

    /// The numbers in a tensor, of one of these dtypes.
    pub fn numbers(&mut self, info: &TensorInfo, dtypes: &[&str]) -> Result<Numbers, Failed> {
        self.dtype(info, dtypes)?;
        let decoder = match info.dtype.name() {
            "U8" => Decoder::U8,
            "F8_E4M3" => Decoder::E4M3,
            "F8_E5M2" => Decoder::E5M2,
            "F8_E8M0" => Decoder::E8M0,
            _ => match info.dtype.decoder() {
                Some(decoder) => decoder,
                None => return Err(self.fail("tensor-dtype", info, format!("dtype {} can't be decoded", info.dtype))),
            },
        };
        Ok(Numbers { stored: whole(info), decoder })
    }

    /// The codes of a matrix `[rows, cols]`, which take all of a tensor.
    pub fn codes(
        &mut self,
        info: &TensorInfo,
        [rows, cols]: [usize; 2],
        packing: Packing,
        values: Values,
    ) -> Result<Codes, Failed> {
        match packing.bytes(rows, cols) {
            Some(bytes) if bytes == info.len => Ok(Codes { stored: whole(info), packing, values }),
            _ => {
                let message = format!(
                    "expected the packed codes of a matrix [{rows}, {cols}], found shape {}",
                    shown(&info.shape)
                );
                Err(self.fail("tensor-shape", info, message))
            }
        }
    }

    /// Makes the weight `name` of `shape` from the codes in `info` and what goes with them: matrices one below the other.
    pub fn make(
        &mut self,
        format: impl Into<String>,
        name: String,
        info: &'a TensorInfo,
        shape: Vec<usize>,
        matrices: Vec<Quantized>,
    ) {
        self.taken.insert(&info.name);
        let unpacked = self.find(&name).filter(|other| other.name != info.name);
        if let Some(unpacked) = unpacked {
            let message = format!("stored beside {}, which is this weight too", tensor_name(&info.name));
            self.fail("tensor-ambiguous", unpacked, message);
        }
        let bytes = Dtype::F32.shape_bytes(&shape).filter(|_| info.len > 0);
        let Some(len) = bytes else {
            self.fail(
                "tensor-shape",
                info,
                format!("expected a matrix that fits 64 bits, found shape {}", shown(&shape)),
            );
            return;
        };
        let made = TensorInfo { name: name.clone(), dtype: Dtype::F32, shape, len, ..info.clone() };
        if self.made.insert(name.clone(), (made, View::Quantized { format: format.into(), matrices })).is_some() {
            self.fail("tensor-ambiguous", info, format!("a second one that would be {}", tensor_name(&name)));
        }
    }

    /// Lets tensors stay unused, by their ending.
    pub fn ignore(&mut self, what: &'static str, suffixes: &[&str]) {
        for suffix in suffixes {
            for (_, info) in self.ending(suffix) {
                self.ignorable.insert(info.name.clone(), what);
            }
        }
    }

    /// Lets a tensor stay unused.
    pub fn ignore_one(&mut self, what: &'static str, name: &str) {
        self.ignorable.insert(name.to_owned(), what);
    }

    /// Says how an engine would quantise activations.
    pub fn activations(&mut self, how: impl Into<String>) {
        self.activations = Some(how.into());
    }

    /// Whether nothing was found that is quantised, rightly or not.
    pub fn found_nothing(&self) -> bool {
        self.made.is_empty() && self.problems.is_empty()
    }

    pub fn close(self) -> Taken {
        let rest = self.source.tensors().values().filter(|info| !self.taken.contains(info.name.as_str()));
        let rest = rest.map(|info| (info.clone(), View::Pieces(vec![whole(info)])));
        let ignorable = self.ignorable.into_iter().filter(|(name, _)| !self.taken.contains(name.as_str()));
        Taken {
            tensors: rest.chain(self.made.into_values()).collect(),
            ignorable: ignorable.map(|(name, what)| (what, name)).collect(),
            activations: self.activations,
            problems: self.problems,
        }
    }
}

impl Taken {
    /// What is computed otherwise than by an engine that quantises activations too.
    pub fn note(&self, place: &str) -> Option<Problem> {
        let how = self.activations.as_ref()?;
        let message = format!("activations would be quantised as well ({how}); here they are not, only weights are");
        Some(Problem::new("activations", place, message))
    }

    /// The tensors of `source` as they were taken.
    pub fn over(self, source: Arc<dyn Source>) -> Presented {
        Presented::new(source, self.tensors).with_ignorable(self.ignorable)
    }
}

/// All bytes of a tensor.
pub fn whole(info: &TensorInfo) -> Piece {
    Piece { stored: info.name.clone(), range: 0..info.len }
}
