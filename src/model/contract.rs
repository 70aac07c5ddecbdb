//! Which tensor plays which part: a pack's names against what the checkpoint has, each used exactly once.

use super::pack::{Names, Tensors};
use super::plan::{Part, Weight};
use crate::checkpoint::{Source, TensorInfo};
use crate::problem::{Problem, quote};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A checkpoint's tensors, with a record of which were taken.
pub struct Contract<'a> {
    /// Where a tensor is missing, for messages.
    folder: &'a str,
    names: &'a Tensors,
    source: &'a dyn Source,
    /// Tensors of files that are broken: wanted, but not to be reported again.
    unavailable: &'a BTreeSet<String>,
    prefix: &'a str,
    /// Layers of the plan.
    layers: usize,
    /// Layers after them that are not of this model.
    beyond: usize,
    used: BTreeSet<String>,
    problems: Vec<Problem>,
}

/// Outputs of a fused tensor that are one part's: `count` of them, `block` together, one block every `stride`.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// Outputs of the whole tensor.
    pub of: usize,
    pub first: usize,
    pub block: usize,
    pub stride: usize,
}

impl Slice {
    /// `count` outputs one after the other.
    pub fn run(of: usize, first: usize, count: usize) -> Self {
        Self { of, first, block: count, stride: count }
    }
}

/// How a part lies in its tensor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Layout {
    pub slice: Option<Slice>,
    /// `(expert, experts)` of a tensor with one more dimension in front.
    pub expert: Option<(usize, usize)>,
    /// Stored as `[in, out]`.
    pub transposed: bool,
}

/// The code of the problem that a checkpoint's names are not those of the pack.
pub const FOREIGN: &str = "tensor-names";

impl<'a> Contract<'a> {
    pub fn new(folder: &'a str, names: &'a Tensors, source: &'a dyn Source, unavailable: &'a BTreeSet<String>) -> Self {
        let exists = |name: &str| source.tensors().contains_key(name) || unavailable.contains(name);
        let embed = names.model.get("embed").map_or(&[][..], |names| &names.0);
        let here = |prefix: &&String| embed.iter().any(|template| exists(&template.replace("{prefix}", prefix)));
        let prefix = names.prefixes.iter().find(here).or(names.prefixes.first()).map_or("", String::as_str);
        let (used, problems) = (BTreeSet::new(), Vec::new());
        Self { folder, names, source, unavailable, prefix, layers: 0, beyond: 0, used, problems }
    }

    /// Says how many layers the plan has, and how many may follow that are not of it.
    pub fn set_layers(&mut self, layers: usize, beyond: usize) {
        (self.layers, self.beyond) = (layers, beyond);
    }

    /// The name of a tensor outside the layers; `None` where the pack has no such part.
    pub fn model_name(&self, role: &str) -> Option<String> {
        self.names.model.get(role).map(|names| self.first(names, |template| self.name(template)))
    }

    /// The first of a part's names that the checkpoint has, else the first.
    fn first(&self, names: &Names, name: impl Fn(&str) -> String) -> String {
        let mut all = names.0.iter().map(|template| name(template));
        let first = all.next().unwrap_or_default();
        let exists = |name: &String| self.has(name) || self.unavailable.contains(name);
        if exists(&first) { first } else { all.find(exists).unwrap_or(first) }
    }

    fn name(&self, template: &str) -> String {
        template.replace("{prefix}", self.prefix)
    }

    /// Takes a tensor outside the layers.
    pub fn model(&mut self, role: &str, shape: &[usize]) -> Weight {
        match self.model_name(role) {
            Some(name) => self.take(name, shape),
            None => self.nameless(role, "the model", shape),
        }
    }

    /// Takes one of several alike outside the layers, `{copy}` being its index.
    pub fn copy(&mut self, role: &str, copy: usize, shape: &[usize]) -> Weight {
        match self.model_name(role) {
            Some(name) => self.take(name.replace("{copy}", &copy.to_string()), shape),
            None => self.nameless(role, "the model", shape),
        }
    }

    /// Whether the pack has a part of this name in its layers.
    pub fn names_role(&self, role: &str) -> bool {
        self.names.layer.contains_key(role)
    }

    /// The name of a tensor of a layer. `marks` are further placeholders with their values.
    pub fn layer_name(&self, layer: usize, role: &str, marks: &[(&str, usize)]) -> Option<String> {
        let names = self.names.layer.get(role)?;
        Some(self.first(names, |template| {
            let name = self.name(template).replace("{layer}", &layer.to_string());
            marks.iter().fold(name, |name, (mark, n)| name.replace(mark, &n.to_string()))
        }))
    }

    /// Takes the tensor that plays `role` in layer `layer`.
    pub fn layer(&mut self, layer: usize, role: &str, shape: &[usize]) -> Weight {
        self.layer_marked(layer, role, &[], shape)
    }

    /// As [`Contract::layer`], with further placeholders.
    pub fn layer_marked(&mut self, layer: usize, role: &str, marks: &[(&str, usize)], shape: &[usize]) -> Weight {
        match self.layer_name(layer, role, marks) {
            Some(name) => self.take(name, shape),
            None => self.nameless(role, &format!("layer {layer}"), shape),
        }
    }

    /// Takes a weight that is a part of the tensor that plays `role`.
    pub fn part(&mut self, layer: usize, role: &str, shape: &[usize], layout: Layout) -> Weight {
        let outputs = layout.slice.map_or(shape[0], |slice| slice.of);
        let mut stored = vec![outputs];
        stored.extend(&shape[1..]);
        if layout.transposed {
            stored.reverse();
        }
        let mut base = 0;
        if let Some((expert, experts)) = layout.expert {
            base = expert * if shape.len() == 1 { outputs } else { stored[0] };
            stored.insert(0, experts);
        }
        let whole = layout.slice.is_none() && layout.expert.is_none() && !layout.transposed;
        let taken = self.layer(layer, role, &stored);
        if whole {
            return taken;
        }
        // Elements of a vector are taken one by one.
        if shape.len() == 1
            && !layout.transposed
            && let Some(info) = self.source.tensors().get(&taken.name)
            && let Err(message) = info.dtype.check_row(1)
        {
            let problem = Problem::new("tensor-row", self.place(info), format!("{message}: it is taken apart"));
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        let slice = layout.slice.unwrap_or(Slice::run(outputs, 0, shape[0]));
        let part = Part {
            stored,
            base,
            first: slice.first,
            block: slice.block,
            stride: slice.stride,
            transposed: layout.transposed,
            packed: false,
        };
        Weight { name: taken.name, shape: shape.to_vec(), part: Some(Box::new(part)) }
    }

    /// Takes a tensor stored with another shape of as many elements: `[channels, 1, kernel]` for `[channels, kernel]`.
    pub fn reshaped(&mut self, layer: usize, role: &str, shape: &[usize], stored: &[usize]) -> Weight {
        let taken = self.layer(layer, role, stored);
        let rows = shape[0];
        let part = Part {
            stored: stored.to_vec(),
            base: 0,
            first: 0,
            block: rows,
            stride: rows,
            transposed: false,
            packed: false,
        };
        Weight { name: taken.name, shape: shape.to_vec(), part: Some(Box::new(part)) }
    }

    /// Takes a matrix `[out, in]` of which four rows lie in each stored row of bytes.
    pub fn packed(&mut self, layer: usize, role: &str, [rows, cols]: [usize; 2]) -> Weight {
        let Some(name) = self.layer_name(layer, role, &[]) else {
            return self.nameless(role, &format!("layer {layer}"), &[rows, cols]);
        };
        let stored = vec![rows / 4, cols];
        if rows.is_multiple_of(4) {
            self.take_as(name.clone(), &stored, true);
        } else {
            let message = format!("{rows} rows can't be packed: four of them lie in one");
            self.problems.push(Problem::new("tensor-shape", tensor_place(self.folder, &name), message));
            self.used.insert(name.clone());
        }
        let part = Part { stored, base: 0, first: 0, block: rows, stride: rows, transposed: false, packed: true };
        Weight { name, shape: vec![rows, cols], part: Some(Box::new(part)) }
    }

    /// Takes a tensor `[1]` that others are multiplied or divided by. Its value is looked at: it must be finite and above
    /// zero.
    pub fn scale(&mut self, layer: usize, role: &str) -> Weight {
        let weight = self.layer(layer, role, &[1]);
        let info = self.source.tensors().get(&weight.name).filter(|info| info.shape == [1]);
        if let Some(info) = info
            && let Some(decoder) = info.dtype.decoder().filter(|decoder| decoder.block_bytes() as u64 == info.len)
        {
            let wrong = match self.source.read(info, 0..info.len) {
                Ok(bytes) => {
                    let mut value = [0.0];
                    decoder.decode(&bytes, &mut value);
                    let [value] = value;
                    let message = || format!("expected a number greater than zero, found {value}");
                    (!value.is_finite() || value <= 0.0).then(|| ("tensor-value", message()))
                }
                Err(error) => Some(("unreadable", format!("{error:#}"))),
            };
            if let Some((code, message)) = wrong {
                self.problems.push(Problem::new(code, self.place(info), message));
            }
        }
        weight
    }

    fn nameless(&mut self, role: &str, place: &str, shape: &[usize]) -> Weight {
        let message = format!("the pack names no tensor for {role}, which this config makes necessary");
        self.problems.push(Problem::new("pack", format!("{}, {place}", self.folder), message));
        Weight::whole(role.to_owned(), shape)
    }

    /// Takes a tensor: it must exist, with this shape and a dtype that can be decoded.
    pub fn take(&mut self, name: String, shape: &[usize]) -> Weight {
        self.take_as(name.clone(), shape, false);
        Weight::whole(name, shape)
    }

    /// `packed` ones are bytes, whatever else they were.
    fn take_as(&mut self, name: String, shape: &[usize], packed: bool) {
        match self.source.tensors().get(&name) {
            // Several parts of one tensor: judged the first time.
            _ if self.used.contains(&name) => {}
            Some(info) => self.judge(info, shape, packed),
            None if self.unavailable.contains(&name) => {}
            None => {
                let message = format!("missing; the plan needs it with shape {}", shown(shape));
                self.problems.push(Problem::new("tensor-missing", tensor_place(self.folder, &name), message));
            }
        }
        self.used.insert(name);
    }

    pub fn has(&self, name: &str) -> bool {
        self.source.tensors().contains_key(name)
    }

    /// The shape of a stored tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.source.tensors().get(name).map(|info| info.shape.as_slice())
    }

    /// File and tensor, for messages.
    pub fn place(&self, info: &TensorInfo) -> String {
        tensor_place(&self.source.files()[info.file].path.display().to_string(), &info.name)
    }

    fn judge(&mut self, info: &TensorInfo, shape: &[usize], packed: bool) {
        let place = self.place(info);
        if info.shape != shape {
            let transposed = shape.len() == 2 && info.shape.iter().rev().eq(shape);
            let hint = if transposed { " (transposed)" } else { "" };
            let message = format!("expected shape {}, found {}{hint}", shown(shape), shown(&info.shape));
            self.problems.push(Problem::new("tensor-shape", &place, message));
        }
        if packed {
            if info.dtype.name() != "U8" {
                let message = format!("expected U8, four ternary rows in one, found {}", info.dtype);
                self.problems.push(Problem::new("tensor-dtype", &place, message));
            }
        } else if info.dtype.decoder().is_none() {
            let message = format!(
                "dtype {} can't be decoded here; F64, F32, F16, BF16, I8 to I64 and GGUF's block formats can, others where \
                 the config's quantization_config says how",
                info.dtype
            );
            self.problems.push(Problem::new("tensor-dtype", &place, message));
        }
        if let Err(message) = info.dtype.check_row(info.shape.last().copied().unwrap_or(1)) {
            self.problems.push(Problem::new("tensor-row", &place, message));
        }
    }

    /// What is wrong where the checkpoint has no tensor under any prefix of the pack.
    fn foreign_names(&self) -> Option<Problem> {
        let templates = self.names.model.iter().chain(&self.names.layer).flat_map(|(_, names)| &names.0);
        let fixed: BTreeSet<&str> = templates.map(String::as_str).filter(|name| !name.contains("{prefix}")).collect();
        let prefixed = |name: &&String| !fixed.contains(name.as_str());
        let found = self.used.iter().filter(prefixed).any(|name| self.has(name) || self.unavailable.contains(name));
        let wanted = self.model_name("embed").filter(|name| prefixed(&name))?;
        let there = self.source.tensors().keys().find(prefixed)?;
        if found || self.names.prefixes.is_empty() {
            return None;
        }
        let prefixes: Vec<String> = self.names.prefixes.iter().map(|prefix| prefix_name(prefix)).collect();
        let message = format!(
            "no tensor has a name that the pack knows, under any of its prefixes ({}): expected such as {}, found such as {}",
            prefixes.join(", "),
            quote(&wanted),
            quote(there)
        );
        Some(Problem::new(FOREIGN, self.folder, message))
    }

    /// Accounts for the tensors that nothing took: each is ignorable, or reported as surplus. Returns the problems and
    /// the ignored names by what they are.
    pub fn close(mut self) -> (Vec<Problem>, BTreeMap<String, Vec<String>>) {
        if let Some(problem) = self.foreign_names() {
            // Each missing and each surplus tensor would only repeat it.
            self.problems.retain(|problem| problem.code != "tensor-missing");
            self.problems.push(problem);
            return (self.problems, BTreeMap::new());
        }
        let mut ignored: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut surplus = Vec::new();
        let templates: Vec<(&String, String)> = self
            .names
            .ignorable
            .iter()
            .flat_map(|(what, templates)| templates.iter().map(move |template| (what, template)))
            .map(|(what, template)| (what, self.name(template)))
            .collect();
        let ignorable = self.source.ignorable().iter().map(|(what, name)| (name.as_str(), *what));
        let ignorable: BTreeMap<&str, &str> = ignorable.collect();
        let beyond = self.layers..self.layers.saturating_add(self.beyond);
        for (name, info) in self.source.tensors() {
            if self.used.contains(name) {
                continue;
            }
            let template = templates.iter().find(|(_, t)| matches_template(t, name, &beyond));
            let what = template.map(|(what, _)| what.as_str());
            if let Some(what) = what.or(ignorable.get(name.as_str()).copied()) {
                ignored.entry(what.to_owned()).or_default().push(name.clone());
            } else {
                let message = format!(
                    "surplus ({} {}); nothing in the plan uses it. If it does not matter, --allow-unused with this \
                     name lets it pass",
                    info.dtype,
                    shown(&info.shape),
                );
                surplus.push(Problem::new("tensor-surplus", self.place(info), message));
            }
        }
        self.problems.extend(surplus);
        (self.problems, ignored)
    }
}

/// How messages name a prefix.
fn prefix_name(prefix: &str) -> String {
    if prefix.is_empty() { "none".to_owned() } else { quote(prefix) }
}

/// How messages name a tensor.
pub fn tensor_name(name: &str) -> String {
    format!("tensor {}", quote(name))
}

fn tensor_place(file: &str, name: &str) -> String {
    format!("{file}, {}", tensor_name(name))
}

/// `[48, 32]`
pub fn shown(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// Whether `name` is `template`, with any number for `{layer}`, one of `beyond` for `{beyond}`, and anything for a final
/// `*`.
fn matches_template(template: &str, name: &str, beyond: &Range<usize>) -> bool {
    let (template, open) = template.strip_suffix('*').map_or((template, false), |template| (template, true));
    let ends = |rest: &str, template: &str| if open { rest.starts_with(template) } else { rest == template };
    let number = |mark: &str, range: &Range<usize>| {
        let (before, after) = template.split_once(mark)?;
        let rest = name.strip_prefix(before)?;
        let (index, rest) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
        Some(index.parse().is_ok_and(|n: usize| range.contains(&n)) && ends(rest, after))
    };
    number("{layer}", &(0..usize::MAX))
        .or_else(|| number("{beyond}", beyond))
        .unwrap_or_else(|| !template.contains(['{', '}']) && ends(name, template))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_matches_numbers_only() {
        let template = "model.layers.{layer}.rotary.inv_freq";
        assert!(matches_template(template, "model.layers.12.rotary.inv_freq", &(3..3)));
        for other in ["model.layers..rotary.inv_freq", "model.layers.x.rotary.inv_freq", "layers.1.rotary.inv_freq"] {
            assert!(!matches_template(template, other, &(3..3)), "{other}");
        }
    }

    #[test]
    fn a_layer_beyond_the_last_and_anything_after() {
        let template = "model.layers.{beyond}.*";
        assert!(matches_template(template, "model.layers.3.eh_proj.weight", &(3..5)));
        assert!(matches_template(template, "model.layers.4.x", &(3..5)));
        let others =
            ["model.layers.2.eh_proj.weight", "model.layers.5.x", "model.layers.3", "model.layers.x.y", "layers.3.x"];
        for other in others {
            assert!(!matches_template(template, other, &(3..5)), "{other}");
        }
        assert!(matches_template("visual.*", "visual.blocks.0.w", &(3..3)));
        assert!(!matches_template("visual.*", "visuals.blocks.0.w", &(3..3)));
        // A number is taken as a whole.
        assert!(matches_template("layers.{beyond}*", "layers.3.x", &(3..5)));
        assert!(!matches_template("layers.{beyond}*", "layers.31.x", &(3..5)));
    }
}
