//! Tensors under the pack's names, with what the converter did to them undone.

use super::rope::TABLES;
use super::table::Common;
use super::{Reading, Undo};
use crate::checkpoint::presented::{Change, Grid, Piece, View};
use crate::checkpoint::{Decoder, Dtype, Source, TensorInfo};
use crate::model::pack::Names;
use crate::problem::{Problem, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Every tensor of a file, as the family's Hugging Face folder has it. One that plays no known part keeps its name.
pub(super) fn translate(reading: &Reading<'_>, problems: &mut Vec<Problem>) -> Vec<(TensorInfo, View)> {
    let mut making = Making { reading, made: Vec::new(), pieces: 0, problems };
    // By the name in the folder: several stored tensors may be one there.
    let mut parts: BTreeMap<String, (Part<'_>, Vec<&TensorInfo>)> = BTreeMap::new();
    for info in reading.gguf.tensors().values().filter(|info| !TABLES.contains(&info.name.as_str())) {
        let beyond = making.beyond(&info.name);
        let Some(part) = making.part(&info.name).filter(|_| beyond.is_none()) else {
            making.plain(info, beyond.unwrap_or_else(|| info.name.clone()), info.shape.clone());
            continue;
        };
        match part.mark() {
            Some(mark) => {
                let made = making.rows(info, &part, mark);
                making.told(info, made);
            }
            None => {
                let name = making.name(&part, &[]);
                parts.entry(name).or_insert((part, Vec::new())).1.push(info);
            }
        }
    }
    for (name, (part, stored)) in parts {
        match stored[..] {
            [info] if !part.is_half(info) => {
                let made = making.single(info, &part, name);
                making.told(info, made);
            }
            _ => {
                if let Err(expected) = making.joined(&stored, &part, name.clone()) {
                    let described: Vec<String> = stored
                        .iter()
                        .map(|info| format!("{} ({} {:?})", quote(&info.name), info.dtype, info.shape))
                        .collect();
                    let message = format!("expected {expected}, found {}", described.join(", "));
                    let place = format!("{}, tensor {}", reading.gguf.path().display(), quote(&name));
                    making.problems.push(Problem::new("gguf-tensor", place, message));
                }
            }
        }
    }
    making.twice();
    making.made
}

/// No model has that many experts or heads.
const MOST_ENTRIES: usize = 65_536;
/// The largest model has a quarter of these, each expert's counted; and of pieces that tensors are put together from.
const MOST_TENSORS: usize = 300_000;

struct Making<'a> {
    reading: &'a Reading<'a>,
    made: Vec<(TensorInfo, View)>,
    /// Parts of stored tensors that those made so far consist of, where they are several.
    pieces: usize,
    problems: &'a mut Vec<Problem>,
}

/// A tensor's part in the model.
struct Part<'a> {
    layer: Option<usize>,
    /// As a pack calls it, `_bias` included.
    role: String,
    names: &'a Names,
}

impl Part<'_> {
    /// Of what the folder has a tensor each, where the file has one for all.
    fn mark(&self) -> Option<&'static str> {
        let marks = ["{expert}", "{head}", "{copy}"];
        marks.into_iter().find(|mark| self.names.0.iter().any(|name| name.contains(mark)))
    }

    /// Whether a stored tensor is only one of several that make this part.
    fn is_half(&self, info: &TensorInfo) -> bool {
        match self.role.strip_suffix("_bias").unwrap_or(&self.role) {
            "experts_gate_up" => !info.name.contains("ffn_gate_up_exps"),
            "shared_gate_up" => true,
            "gate_up" => info.name.contains("ffn_gate."),
            "kv_b" => !info.name.contains("attn_kv_b"),
            "delta_qkvz" => !info.name.contains("ssm_in"),
            _ => false,
        }
    }
}

/// The key/value groups of attention, or of the delta rule.
struct Heads {
    /// Those with a key of their own.
    keys: usize,
    /// Queries, or values, of each.
    each: usize,
}

impl<'a> Making<'a> {
    fn told(&mut self, info: &TensorInfo, made: Result<(), String>) {
        if let Err(message) = made {
            let file = &self.reading.gguf.files()[info.file].path;
            let place = format!("{}, tensor {}", file.display(), quote(&info.name));
            self.problems.push(Problem::new("gguf-tensor", place, message));
        }
    }

    /// One stored tensor that is one in the folder.
    fn single(&mut self, info: &TensorInfo, part: &Part<'_>, name: String) -> Result<(), String> {
        let role = part.role.as_str();
        // The steps' bias is no bias of a matrix.
        let weight = role.strip_suffix("_bias").filter(|rest| !rest.ends_with("_dt")).unwrap_or(role);
        let undoes = |undo| self.reading.undoes(undo);
        let delta = role.starts_with("delta_");
        match weight {
            "embed" | "head" => self.vocabulary(info, name),
            "q" | "k" if undoes(Undo::Pairs) => self.pairs(info, part, name),
            "qkv" if self.says("qkv_layout", "by key/value head") => self.by_group(info, part, name),
            "mamba_a_log" | "delta_a_log" => {
                let rows = info.shape.iter().product::<usize>();
                let axes = match self.turned(weight, rows)? {
                    Some(Heads { keys, each }) => {
                        // One entry of each head; where there are more, the books refuse the shape.
                        let dim = rows / keys / each;
                        [(keys, dim), (each, keys * dim), (dim, 1)].map(|(n, step)| (n as u64, step as u64)).to_vec()
                    }
                    None => vec![(rows as u64, 1)],
                };
                // Where its decay is per channel, the delta rule has it as its heads broadcast.
                let broadcast = self.reading.pack.tensors.layer.contains_key("delta_f_a");
                let shape = if broadcast { vec![1, 1, rows, 1] } else { vec![rows] };
                self.values(info, name, shape, axes, Change::LogOfNegative)
            }
            "delta_out" if undoes(Undo::Turns) => self.turned_columns(info, name),
            "delta_qkv" | "delta_z" | "delta_a" | "delta_b" | "delta_conv" | "delta_dt_bias" if undoes(Undo::Turns) => {
                self.turned_rows(info, part, name)
            }
            // A vector, of which a file makes a matrix.
            "mamba_d" | "mamba_norm" => {
                self.plain(info, name, vec![info.shape.iter().product()]);
                Ok(())
            }
            "conv" | "mamba_conv" | "delta_conv" | "delta_q_conv" | "delta_k_conv" | "delta_v_conv"
                if role == weight =>
            {
                let shape = self.convolution(info);
                self.plain(info, name, shape);
                Ok(())
            }
            _ if undoes(Undo::PlusOne) && info.name.ends_with("norm.weight") && !delta => {
                let elements = info.shape.iter().product::<usize>() as u64;
                self.values(info, name, info.shape.clone(), vec![(elements, 1)], Change::MinusOne)
            }
            "shared_expert_gate" if info.shape.len() == 1 => {
                self.plain(info, name, vec![1, info.shape[0]]);
                Ok(())
            }
            "experts_down" if role == weight && self.experts_transposed() => self.transposed(info, name),
            "qkv" | "o" | "gate" | "up" | "down" if role == weight && self.flag("transposed") => {
                self.transposed(info, name)
            }
            _ => {
                self.plain(info, name, info.shape.clone());
                Ok(())
            }
        }
    }

    /// Several stored tensors that are one in the folder. The error is what was expected.
    fn joined(&mut self, stored: &[&TensorInfo], part: &Part<'_>, name: String) -> Result<(), String> {
        let weight = part.role.strip_suffix("_bias").unwrap_or(&part.role);
        // By name: the gate comes before the up, the key before the value.
        match (weight, stored) {
            ("experts_gate_up", [gate, up]) if alike(gate, up) && gate.shape.len() >= 2 => {
                self.experts_gate_up(gate, up, name)
            }
            ("experts_gate_up", _) => {
                Err("ffn_gate_exps and ffn_up_exps of one storage type and shape, which are one \
                                           tensor in this family's folders"
                    .into())
            }
            ("gate_up" | "shared_gate_up", [gate, up]) if alike(gate, up) && !gate.shape.is_empty() => {
                self.made.push((
                    TensorInfo { name, shape: doubled(&gate.shape, 0), len: gate.len + up.len, ..(*gate).clone() },
                    View::Pieces(vec![whole(gate), whole(up)]),
                ));
                Ok(())
            }
            ("gate_up" | "shared_gate_up", _) => {
                Err("a gate and an up of one storage type and shape, which are one tensor in this family's folders"
                    .into())
            }
            ("kv_b", [key, value]) => self.keys_and_values(key, value, name),
            ("kv_b", _) => Err(KEYS_AND_VALUES.into()),
            ("delta_qkvz", [gate, qkv]) => self.delta_by_group(qkv, gate, name),
            ("delta_qkvz", _) => Err(DELTA.into()),
            _ => Err("one stored tensor that is this one in the family's folders".into()),
        }
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
        let own = |stem: &str| self.reading.table.tensors.get(stem).map(std::slice::from_ref);
        let beside = |stem: &str| {
            let start = format!("{stem} beside ");
            let mut beside = table.iter().filter_map(|(key, roles)| Some((key.strip_prefix(&start)?, roles)));
            let there = |other: &str| {
                layer.is_some_and(|i: usize| {
                    self.reading.gguf.tensors().contains_key(&format!("blk.{i}.{other}.weight"))
                })
            };
            beside.find(|(other, _)| there(other)).map(|(_, roles)| roles.as_slice())
        };
        let of = |stem: &str| own(stem).or_else(|| beside(stem)).or_else(|| table.get(stem).map(Vec::as_slice));
        let (roles, suffix) = match of(rest) {
            Some(roles) => (roles, ""),
            None => {
                let (stem, ending) = rest.rsplit_once('.')?;
                let suffix = match ending {
                    "weight" => "",
                    "bias" => "_bias",
                    _ => return None,
                };
                (of(stem)?, suffix)
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
        if layer.parse::<u64>().ok()? < self.reading.layers()? {
            return None;
        }
        let prefix = self.reading.pack.tensors.prefixes.first().map_or("", String::as_str);
        let start = self.reading.further()?.trim_end_matches('*').replace("{prefix}", prefix);
        let numbered = start.contains("{beyond}");
        Some(if numbered { start.replace("{beyond}", layer) + rest } else { format!("{start}{layer}.{rest}") })
    }

    /// The first of a part's names.
    fn name(&self, part: &Part<'_>, marks: &[(&str, usize)]) -> String {
        let template = part.names.0.first().map_or("", String::as_str);
        let prefix = self.reading.pack.tensors.prefixes.first().map_or("", String::as_str);
        let layer = part.layer.map_or(String::new(), |layer| layer.to_string());
        let name = template.replace("{prefix}", prefix).replace("{layer}", &layer);
        marks.iter().fold(name, |name, (mark, n)| name.replace(mark, &n.to_string()))
    }

    /// Whether a field of the pack has this value for the whole family.
    fn says(&self, field: &str, value: &str) -> bool {
        let field = self.reading.pack.fields.get(field).and_then(|field| field.value.as_ref());
        field.and_then(toml::Value::as_str) == Some(value)
    }

    fn flag(&self, field: &str) -> bool {
        let field = self.reading.pack.fields.get(field).and_then(|field| field.value.as_ref());
        field.and_then(toml::Value::as_bool) == Some(true)
    }

    fn experts_transposed(&self) -> bool {
        self.says("experts_layout", "in, out") || self.says("experts_layout", "in, out in turn")
    }

    /// A tensor as it is, but for name and shape.
    fn plain(&mut self, info: &TensorInfo, name: String, shape: Vec<usize>) {
        self.made.push((TensorInfo { name, shape, ..info.clone() }, View::Pieces(vec![whole(info)])));
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

    /// A number of heads, in a layer where there is one for each.
    fn heads(&self, key: &str, part: &Part<'_>) -> Option<usize> {
        let count = match self.reading.get(key)? {
            crate::checkpoint::gguf::Value::List(list) => list.get(part.layer?)?.as_count(),
            value => value.as_count(),
        };
        count.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0)
    }

    /// Rows of each head back into two halves: row `half * d/2 + i` of a head is stored as its row `2 i + half`.
    fn pairs(&mut self, info: &TensorInfo, part: &Part<'_>, name: String) -> Result<(), String> {
        let kv = part.role.starts_with('k') && self.reading.get(KV_HEADS).is_some();
        let key = if kv { KV_HEADS } else { HEADS };
        let rows = info.shape.first().copied().unwrap_or(0);
        let heads =
            self.heads(key, part).filter(|&n| rows.is_multiple_of(n) && (rows / n).is_multiple_of(2) && rows > 0);
        let Some(heads) = heads else {
            let found = self.reading.get(key).map_or("none".to_owned(), ToString::to_string);
            let key = format!("{}.{key}", self.reading.architecture);
            return Err(format!("expected rows of whole pairs for each head, found {rows} rows and {key} {found}"));
        };
        let half = rows / heads / 2;
        self.shuffled(info, name, (0..2 * half).map(|row| row % half * 2 + row / half))
    }

    /// Rows of queries, then keys, then values back to those of each key/value head.
    fn by_group(&mut self, info: &TensorInfo, part: &Part<'_>, name: String) -> Result<(), String> {
        let rows = info.shape.first().copied().unwrap_or(0);
        let heads = self.heads(HEADS, part);
        let kv = self.heads(KV_HEADS, part).or(heads);
        let sound = heads.zip(kv).filter(|&(heads, kv)| {
            heads <= MOST_ENTRIES && kv <= heads && heads.is_multiple_of(kv) && rows.is_multiple_of(heads + 2 * kv)
        });
        let Some((heads, kv)) = sound.filter(|_| rows > 0) else {
            return Err(format!(
                "expected rows of queries, keys and values for whole groups of heads, found {rows} rows"
            ));
        };
        let (dim, each) = (rows / (heads + 2 * kv), heads / kv);
        let order = (0..rows).map(|row| {
            let (group, head, i) = (row / dim / (each + 2), row / dim % (each + 2), row % dim);
            let stored = match head {
                head if head < each => group * each + head,
                head => heads + (head - each) * kv + group,
            };
            stored * dim + i
        });
        self.shuffled(info, name, order)
    }

    /// Rows in another order: each block of as many as `order` has, alike.
    fn shuffled(&mut self, info: &TensorInfo, name: String, order: impl Iterator<Item = usize>) -> Result<(), String> {
        let rows = info.shape.first().copied().unwrap_or(0);
        let row_bytes = info.len.checked_div(rows as u64).unwrap_or(0);
        let apart = info.shape.len() > 1 || info.dtype.unit().is_some_and(|unit| unit.elements == 1);
        if row_bytes == 0 || !apart {
            return Err(format!("expected rows that lie by themselves, found {} {:?}", info.dtype, info.shape));
        }
        let order: Arc<[u32]> = order.map(|row| row as u32).collect();
        let view = View::Shuffled { stored: info.name.clone(), row_bytes, order };
        self.made.push((TensorInfo { name, ..info.clone() }, view));
        Ok(())
    }

    /// float32 values of one stored tensor, along other axes.
    fn values(
        &mut self,
        info: &TensorInfo,
        name: String,
        shape: Vec<usize>,
        axes: Vec<(u64, u64)>,
        change: Change,
    ) -> Result<(), String> {
        let grid = Grid { stored: vec![decoded(info)?], turn: None, first: 0, axes };
        self.grids(info, name, shape, vec![grid], change)
    }

    /// float32 values; `info` is the first stored tensor.
    fn grids(
        &mut self,
        info: &TensorInfo,
        name: String,
        shape: Vec<usize>,
        grids: Vec<Grid>,
        change: Change,
    ) -> Result<(), String> {
        let elements = shape.iter().try_fold(size_of::<f32>() as u64, |n, &size| n.checked_mul(size as u64));
        let Some(len) = elements else { return Err(format!("fewer elements than {shape:?} has")) };
        let described = TensorInfo { name, dtype: Dtype::F32, shape, len, ..info.clone() };
        self.made.push((described, View::Values { grids, change }));
        Ok(())
    }

    /// The last two dimensions the other way round.
    fn transposed(&mut self, info: &TensorInfo, name: String) -> Result<(), String> {
        let Some(&[ref outer @ .., rows, cols]) = info.shape.get(..).filter(|_| info.len > 0) else {
            return Err(format!("expected a matrix, found shape {:?}", info.shape));
        };
        let outer: usize = outer.iter().product();
        let axes = [(outer, rows * cols), (cols, 1), (rows, cols)].map(|(n, step)| (n as u64, step as u64)).to_vec();
        let mut shape = info.shape.clone();
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        self.values(info, name, shape, axes, Change::Nothing)
    }

    /// `[channels, 1, kernel]`, whatever dimensions of one a file has.
    fn convolution(&self, info: &TensorInfo) -> Vec<usize> {
        match info.shape.split_last() {
            Some((&kernel, outer)) if self.reading.undoes(Undo::Squeezed) => vec![outer.iter().product(), 1, kernel],
            _ => info.shape.clone(),
        }
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

    /// Counts pieces that a tensor is put together from.
    fn count(&mut self, pieces: usize) -> Result<(), String> {
        self.pieces = self.pieces.saturating_add(pieces);
        if self.pieces > MOST_TENSORS {
            return Err(format!("at most {MOST_TENSORS} pieces of tensors in all"));
        }
        Ok(())
    }

    /// Of each expert the gate and the up in one tensor, as the pack lays them out.
    fn experts_gate_up(&mut self, gate: &TensorInfo, up: &TensorInfo, name: String) -> Result<(), String> {
        let (experts, rest) = (gate.shape[0], &gate.shape[1..]);
        if !(1..=MOST_ENTRIES).contains(&experts) || gate.len == 0 {
            return Err(format!("an entry for each of 1 to {MOST_ENTRIES} experts"));
        }
        let each: usize = rest.iter().product();
        if !self.experts_transposed() {
            self.count(2 * experts)?;
            let len = gate.len / experts as u64;
            let piece = |info: &TensorInfo, i: u64| Piece { stored: info.name.clone(), range: i * len..(i + 1) * len };
            let pieces = (0..experts as u64).flat_map(|i| [piece(gate, i), piece(up, i)]).collect();
            let shape = doubled(&gate.shape, 1);
            let described = TensorInfo { name, shape, len: gate.len + up.len, ..gate.clone() };
            self.made.push((described, View::Pieces(pieces)));
            return Ok(());
        }
        // [in, out]: the outputs are a row's columns, gate and up by turns or one behind the other.
        let outputs = rest[0];
        let inputs = each / outputs;
        let mut shape = vec![experts, inputs, outputs * 2];
        let mut axes = vec![(experts, each), (inputs, 1), (outputs, inputs)];
        if rest.len() == 1 {
            shape.remove(1);
            axes.remove(1);
        }
        let turn = if self.says("experts_layout", "in, out in turn") { axes.len() } else { axes.len() - 1 };
        axes.insert(turn, (2, 0));
        let axes = axes.into_iter().map(|(n, step)| (n as u64, step as u64)).collect();
        let stored = vec![decoded(gate)?, decoded(up)?];
        let grid = Grid { stored, turn: Some(turn), first: 0, axes };
        self.grids(gate, name, shape, vec![grid], Change::Nothing)
    }

    /// Latent attention: of each head the rows of its key part, stored as columns, and of its values.
    fn keys_and_values(&mut self, key: &TensorInfo, value: &TensorInfo, name: String) -> Result<(), String> {
        let (&[heads, rank, nope], &[value_heads, width, value_rank]) = (&key.shape[..], &value.shape[..]) else {
            return Err(KEYS_AND_VALUES.into());
        };
        let sound = heads == value_heads && rank == value_rank && heads <= MOST_ENTRIES;
        if !sound || key.len == 0 || value.len == 0 {
            return Err(KEYS_AND_VALUES.into());
        }
        self.count(2 * heads)?;
        let (keys, values) = (decoded(key)?, decoded(value)?);
        let (n, r, w) = (nope as u64, rank as u64, width as u64);
        let of_head = |head: u64| {
            let key = vec![(n, 1), (r, n)];
            let key = Grid { stored: vec![keys.clone()], turn: None, first: head * r * n, axes: key };
            let value = vec![(w * r, 1)];
            [key, Grid { stored: vec![values.clone()], turn: None, first: head * w * r, axes: value }]
        };
        let grids = (0..heads as u64).flat_map(of_head).collect();
        self.grids(key, name, vec![heads * (nope + width), rank], grids, Change::Nothing)
    }

    /// The heads of the delta rule.
    fn delta_heads(&self) -> Result<Heads, String> {
        const KEYS: &str = "ssm.group_count";
        const VALUES: &str = "ssm.time_step_rank";
        let count = |key| self.reading.count(key).and_then(|n| usize::try_from(n).ok());
        match (count(KEYS), count(VALUES)) {
            (Some(keys @ 1..=MOST_ENTRIES), Some(values @ 1..=MOST_ENTRIES)) if values.is_multiple_of(keys) => {
                Ok(Heads { keys, each: values / keys })
            }
            _ => {
                let found = |key| self.reading.get(key).map_or("none".to_owned(), ToString::to_string);
                let (keys, values) = (found(KEYS), found(VALUES));
                Err(format!("expected {VALUES} to be a multiple of {KEYS}, found {values} and {keys}"))
            }
        }
    }

    /// The rows of the delta rule's queries, keys, values and gates back to those of each key head.
    fn delta_by_group(&mut self, qkv: &TensorInfo, gate: &TensorInfo, name: String) -> Result<(), String> {
        let Heads { keys, each } = self.delta_heads()?;
        let (&[rows, cols], &[gates, gate_cols]) = (&qkv.shape[..], &gate.shape[..]) else {
            return Err(DELTA.into());
        };
        let dim = rows.saturating_sub(gates) / keys / 2;
        let group = gates / keys;
        let whole = gates == group * keys && rows == gates + 2 * keys * dim && group.is_multiple_of(each);
        if !whole || cols != gate_cols || qkv.dtype != gate.dtype || dim == 0 || group == 0 || gate.len == 0 {
            return Err(DELTA.into());
        }
        self.count(4 * keys)?;
        let width = gate.len / gates as u64;
        let piece = |info: &TensorInfo, first: usize, count: usize| Piece {
            stored: info.name.clone(),
            range: first as u64 * width..(first + count) as u64 * width,
        };
        let pieces = (0..keys).flat_map(|i| {
            [
                piece(qkv, i * dim, dim),
                piece(qkv, (keys + i) * dim, dim),
                piece(qkv, 2 * keys * dim + i * group, group),
                piece(gate, i * group, group),
            ]
        });
        let view = View::Pieces(pieces.collect());
        let described = TensorInfo { name, shape: vec![rows + gates, cols], len: qkv.len + gate.len, ..qkv.clone() };
        self.made.push((described, view));
        Ok(())
    }

    /// Where value heads of the delta rule take turns by their key heads: how they stand. None where they don't.
    fn turned(&self, role: &str, entries: usize) -> Result<Option<Heads>, String> {
        if !self.reading.undoes(Undo::Turns) || !role.starts_with("delta_") {
            return Ok(None);
        }
        let heads = self.delta_heads()?;
        if !entries.is_multiple_of(heads.keys * heads.each) || entries == 0 {
            return Err(format!("expected entries for each of {} heads, found {entries}", heads.keys * heads.each));
        }
        Ok(Some(heads))
    }

    /// Rows of value heads, behind those of queries and keys if there are any.
    fn turned_rows(&mut self, info: &TensorInfo, part: &Part<'_>, name: String) -> Result<(), String> {
        let all = info.shape.first().copied().unwrap_or(0);
        let values = match part.role.as_str() {
            "delta_qkv" | "delta_conv" => self.reading.count("ssm.inner_size").and_then(|n| usize::try_from(n).ok()),
            _ => Some(all),
        };
        let rows = values.filter(|&rows| rows <= all).unwrap_or(0);
        let Some(Heads { keys, each }) = self.turned("delta_", rows)? else { return Ok(()) };
        let (before, dim) = (all - rows, rows / keys / each);
        let order = (0..all).map(|row| match row.checked_sub(before) {
            None => row,
            Some(row) => before + (row / dim % each * keys + row / dim / each) * dim + row % dim,
        });
        self.shuffled(info, name, order)?;
        let convolution = self.convolution(info);
        if let Some((described, _)) = self.made.last_mut().filter(|_| part.role == "delta_conv") {
            described.shape = convolution;
        }
        Ok(())
    }

    /// Columns of value heads.
    fn turned_columns(&mut self, info: &TensorInfo, name: String) -> Result<(), String> {
        let &[rows, cols] = &info.shape[..] else {
            return Err(format!("expected a matrix, found shape {:?}", info.shape));
        };
        let Some(Heads { keys, each }) = self.turned("delta_", cols)? else { return Ok(()) };
        let dim = cols / keys / each;
        let axes = [(rows, cols), (keys, dim), (each, keys * dim), (dim, 1)];
        let axes = axes.map(|(n, step)| (n as u64, step as u64)).to_vec();
        self.values(info, name, info.shape.clone(), axes, Change::Nothing)
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
}

const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const KEYS_AND_VALUES: &str = "attn_k_b [heads, rank, key] and attn_v_b [heads, value, rank], which are one tensor in this \
                               family's folders";
const DELTA: &str = "attn_qkv and attn_gate of one storage type, with rows of whole heads, which are one tensor in this \
                     family's folders";

/// All bytes of a stored tensor.
fn whole(info: &TensorInfo) -> Piece {
    Piece { stored: info.name.clone(), range: 0..info.len }
}

fn alike(a: &TensorInfo, b: &TensorInfo) -> bool {
    a.dtype == b.dtype && a.shape == b.shape
}

/// A shape with twice as many entries along one axis.
fn doubled(shape: &[usize], axis: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[axis] = shape[axis].saturating_mul(2);
    shape
}

/// A stored tensor whose values are needed.
fn decoded(info: &TensorInfo) -> Result<(String, Decoder), String> {
    let decoder = info.dtype.decoder();
    decoder
        .map(|decoder| (info.name.clone(), decoder))
        .ok_or_else(|| format!("a dtype with a decoder, not {}", info.dtype))
}
