//! Tensors under the pack's names, with what the converter did to them undone.

use super::rope::TABLES;
use super::table::Common;
use super::{Reading, Undo};
use crate::checkpoint::presented::{Piece, View};
use crate::checkpoint::{Dtype, Source, TensorInfo};
use crate::model::pack::Names;
use crate::problem::{Problem, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Every tensor of a file, as the family's Hugging Face folder has it. One that plays no known part keeps its name.
pub(super) fn translate(reading: &Reading<'_>, problems: &mut Vec<Problem>) -> Vec<(TensorInfo, View)> {
    let mut making = Making { reading, made: Vec::new(), fused: BTreeMap::new(), problems };
    for info in reading.gguf.tensors().values().filter(|info| !TABLES.contains(&info.name.as_str())) {
        if let Err(message) = making.tensor(info) {
            let place = format!("{}, tensor {}", reading.gguf.files()[info.file].path.display(), quote(&info.name));
            making.problems.push(Problem::new("gguf-tensor", place, message));
        }
    }
    making.fuse();
    making.twice();
    making.made
}

/// No model has that many experts or heads.
const MOST_ENTRIES: usize = 65_536;
/// The largest model has a quarter of these, each expert's counted.
const MOST_TENSORS: usize = 300_000;

struct Making<'a> {
    reading: &'a Reading<'a>,
    made: Vec<(TensorInfo, View)>,
    /// Gates and ups of the experts that are one tensor in the folder, by layer.
    fused: BTreeMap<String, Vec<&'a TensorInfo>>,
    problems: &'a mut Vec<Problem>,
}

/// A tensor's part in the model.
struct Part<'a> {
    layer: Option<usize>,
    /// As a pack calls it, `_bias` included.
    role: String,
    names: &'a Names,
}

impl<'a> Making<'a> {
    fn tensor(&mut self, info: &'a TensorInfo) -> Result<(), String> {
        let Some(part) = self.part(&info.name) else {
            let name = self.beyond(&info.name).unwrap_or_else(|| info.name.clone());
            self.plain(info, name, info.shape.clone());
            return Ok(());
        };
        let name = self.name(&part, &[]);
        let role = part.role.as_str();
        match role {
            "embed" | "head" | "head_bias" => self.vocabulary(info, name)?,
            _ if self.reading.undoes(Undo::Pairs) && matches!(role, "q" | "k" | "q_bias" | "k_bias") => {
                self.pairs(info, &part, name)?;
            }
            _ if self.reading.undoes(Undo::PlusOne) && info.name.ends_with("norm.weight") => {
                self.minus_one(info, name)?;
            }
            _ if self.reading.undoes(Undo::Squeezed) && role == "conv" && info.shape.len() == 2 => {
                self.plain(info, name, vec![info.shape[0], 1, info.shape[1]]);
            }
            "shared_expert_gate" if info.shape.len() == 1 => self.plain(info, name, vec![1, info.shape[0]]),
            "expert_gate" | "expert_up" | "expert_down" | "expert_gate_bias" | "expert_up_bias"
            | "expert_down_bias" => {
                self.rows(info, &part, "{expert}")?;
            }
            "q_norm" | "k_norm" if part.names.0.iter().any(|name| name.contains("{head}")) => {
                self.rows(info, &part, "{head}")?;
            }
            "experts_gate_up" if !info.name.contains("ffn_gate_up_exps") => {
                self.fused.entry(name).or_default().push(info);
            }
            _ => self.plain(info, name, info.shape.clone()),
        }
        Ok(())
    }

    /// What a stored name stands for in this family; `None` where it isn't known.
    fn part(&self, stored: &str) -> Option<Part<'a>> {
        let common = Common::embedded();
        let tensors = &self.reading.pack.tensors;
        let (layer, rest, table, names) = match stored.strip_prefix("blk.") {
            Some(rest) => {
                let (layer, rest) = rest.split_once('.')?;
                (Some(layer.parse().ok()?), rest, &common.layer, &tensors.layer)
            }
            None => (None, stored, &common.model, &tensors.model),
        };
        let (roles, suffix) = match table.get(rest) {
            Some(roles) => (roles, ""),
            None => {
                let (stem, ending) = rest.rsplit_once('.')?;
                let suffix = match ending {
                    "weight" => "",
                    "bias" => "_bias",
                    _ => return None,
                };
                (table.get(stem)?, suffix)
            }
        };
        roles.iter().find_map(|role| {
            let role = format!("{role}{suffix}");
            let names = names.get(&role)?;
            Some(Part { layer, role, names })
        })
    }

    /// The name of something in a layer after the last, which predicts further tokens: one that the pack ignores.
    fn beyond(&self, stored: &str) -> Option<String> {
        let (layer, rest) = stored.strip_prefix("blk.")?.split_once('.')?;
        let layers = self.reading.count("block_count")?.checked_sub(self.reading.count("nextn_predict_layers")?)?;
        if layer.parse::<u64>().ok()? < layers {
            return None;
        }
        let tensors = &self.reading.pack.tensors;
        let mut templates = tensors.ignorable.values().flatten();
        let start = templates.find_map(|template| template.strip_suffix('*').filter(|t| t.contains("{beyond}")))?;
        let prefix = tensors.prefixes.first().map_or("", String::as_str);
        Some(start.replace("{prefix}", prefix).replace("{beyond}", layer) + rest)
    }

    /// The first of a part's names.
    fn name(&self, part: &Part<'_>, marks: &[(&str, usize)]) -> String {
        let template = part.names.0.first().map_or("", String::as_str);
        let prefix = self.reading.pack.tensors.prefixes.first().map_or("", String::as_str);
        let layer = part.layer.map_or(String::new(), |layer| layer.to_string());
        let name = template.replace("{prefix}", prefix).replace("{layer}", &layer);
        marks.iter().fold(name, |name, (mark, n)| name.replace(mark, &n.to_string()))
    }

    /// A tensor as it is, but for name and shape.
    fn plain(&mut self, info: &TensorInfo, name: String, shape: Vec<usize>) {
        let piece = Piece { stored: info.name.clone(), range: 0..info.len };
        self.made.push((TensorInfo { name, shape, ..info.clone() }, View::Pieces(vec![piece])));
    }

    /// As many rows as there are tokens.
    fn vocabulary(&mut self, info: &TensorInfo, name: String) -> Result<(), String> {
        let tokens = self.reading.gguf.metadata().get("tokenizer.ggml.tokens").and_then(|tokens| tokens.list_len());
        let tokens = tokens.and_then(|n| usize::try_from(n).ok());
        let rows = info.shape.first().copied().unwrap_or(1);
        let kept = tokens.filter(|&tokens| tokens > 0).map_or(rows, |tokens| tokens.min(rows));
        if kept != rows && info.shape.len() == 1 && info.dtype.unit().is_none_or(|unit| unit.elements != 1) {
            return Err(format!("expected as many values as tokens ({kept}), found {rows} of {}", info.dtype));
        }
        let mut shape = info.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = kept;
        }
        let len = if rows == kept { info.len } else { info.len / rows as u64 * kept as u64 };
        let piece = Piece { stored: info.name.clone(), range: 0..len };
        self.made.push((TensorInfo { name, shape, len, ..info.clone() }, View::Pieces(vec![piece])));
        Ok(())
    }

    /// Rows of each head back into two halves: row `half * d/2 + i` of a head is stored as its row `2 i + half`.
    fn pairs(&mut self, info: &TensorInfo, part: &Part<'_>, name: String) -> Result<(), String> {
        let heads = "attention.head_count";
        let kv = "attention.head_count_kv";
        let key = if part.role.starts_with('q') || self.reading.get(kv).is_none() { heads } else { kv };
        let count = self.reading.get(key).and_then(|value| match value {
            crate::checkpoint::gguf::Value::List(list) => list.get(part.layer?)?.as_count(),
            value => value.as_count(),
        });
        let rows = info.shape.first().copied().unwrap_or(0);
        let row_bytes = info.len.checked_div(rows as u64).unwrap_or(0);
        let whole = info.shape.len() > 1 || info.dtype.unit().is_some_and(|unit| unit.elements == 1);
        if row_bytes == 0 || !whole {
            return Err(format!("expected rows that lie by themselves, found {} {:?}", info.dtype, info.shape));
        }
        let heads = count.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0 && rows % (2 * n) == 0 && rows > 0);
        let Some(heads) = heads else {
            let found = self.reading.get(key).map_or("none".to_owned(), ToString::to_string);
            let key = format!("{}.{key}", self.reading.architecture);
            return Err(format!("expected rows of whole pairs for each head, found {rows} rows and {key} {found}"));
        };
        let half = rows / heads / 2;
        let order: Arc<[u32]> = (0..2 * half).map(|row| (row % half * 2 + row / half) as u32).collect();
        let view = View::Shuffled { stored: info.name.clone(), row_bytes, order };
        self.made.push((TensorInfo { name, ..info.clone() }, view));
        Ok(())
    }

    /// float32 values that are one less.
    fn minus_one(&mut self, info: &TensorInfo, name: String) -> Result<(), String> {
        let Some(decoder) = info.dtype.decoder() else {
            return Err(format!("dtype {} can't be decoded here, so that one can't be taken from it", info.dtype));
        };
        let elements: u64 = info.shape.iter().map(|&n| n as u64).product();
        let Some(len) = elements.checked_mul(size_of::<f32>() as u64) else {
            return Err(format!("expected the weights of a norm, found shape {:?}", info.shape));
        };
        let described = TensorInfo { name, dtype: Dtype::F32, len, ..info.clone() };
        self.made.push((described, View::MinusOne { stored: info.name.clone(), decoder }));
        Ok(())
    }

    /// A tensor for each entry of the outermost dimension.
    fn rows(&mut self, info: &TensorInfo, part: &Part<'_>, mark: &str) -> Result<(), String> {
        let (count, shape) = match info.shape.split_first() {
            Some((&count, shape)) if (1..=MOST_ENTRIES).contains(&count) && !shape.is_empty() && info.len > 0 => {
                (count, shape)
            }
            _ => {
                let mark = mark.trim_matches(['{', '}']);
                return Err(format!("expected an entry for each {mark}, found shape {:?}", info.shape));
            }
        };
        if self.made.len() + count > MOST_TENSORS {
            return Err(format!("expected at most {MOST_TENSORS} tensors with those of each expert, found more"));
        }
        let len = info.len / count as u64;
        for i in 0..count {
            let first = i as u64 * len;
            let described = TensorInfo {
                name: self.name(part, &[(mark, i)]),
                shape: shape.to_vec(),
                offset: info.offset + first,
                len,
                ..info.clone()
            };
            let piece = Piece { stored: info.name.clone(), range: first..first + len };
            self.made.push((described, View::Pieces(vec![piece])));
        }
        Ok(())
    }

    /// Reports what two stored tensors would be.
    fn twice(&mut self) {
        let mut seen = BTreeSet::new();
        for (info, _) in &self.made {
            if !seen.insert(&info.name) {
                let place = format!("{}, tensor {}", self.reading.gguf.path().display(), quote(&info.name));
                let message = "expected one stored tensor that is this one in the family's folders, found two";
                self.problems.push(Problem::new("gguf-tensor", place, message));
            }
        }
    }

    /// Of each expert the gate's rows and then the up's, where the folder has both in one tensor.
    fn fuse(&mut self) {
        for (name, stored) in std::mem::take(&mut self.fused) {
            let sound = match stored[..] {
                // By name, so that the gate comes first.
                [gate, up] => {
                    let experts = gate.shape.first().is_some_and(|n| (1..=MOST_ENTRIES).contains(n));
                    gate.dtype == up.dtype && gate.shape == up.shape && gate.shape.len() >= 2 && experts
                }
                _ => false,
            };
            if !sound {
                let described: Vec<String> = stored
                    .iter()
                    .map(|info| format!("{} ({} {:?})", quote(&info.name), info.dtype, info.shape))
                    .collect();
                let message = format!(
                    "expected ffn_gate_exps and ffn_up_exps of one storage type and shape, which are one tensor in this \
                     family's folders, found {}",
                    described.join(", ")
                );
                let place = self.reading.gguf.path().display().to_string();
                self.problems.push(Problem::new("gguf-tensor", format!("{place}, tensor {}", quote(&name)), message));
                continue;
            }
            let (gate, up) = (stored[0], stored[1]);
            let experts = gate.shape[0] as u64;
            let len = gate.len / experts;
            let piece = |info: &TensorInfo, i: u64| Piece { stored: info.name.clone(), range: i * len..(i + 1) * len };
            let pieces = (0..experts).flat_map(|i| [piece(gate, i), piece(up, i)]).collect();
            let mut shape = gate.shape.clone();
            shape[1] = shape[1].saturating_mul(2);
            let described = TensorInfo { name, shape, len: gate.len + up.len, ..gate.clone() };
            self.made.push((described, View::Pieces(pieces)));
        }
    }
}
