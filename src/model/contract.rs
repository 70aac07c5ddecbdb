//! Which tensor plays which part: a pack's names against what the checkpoint has, each used exactly once.

use super::pack::Tensors;
use super::plan::Weight;
use crate::checkpoint::{Source, TensorInfo};
use crate::problem::{Problem, quote};
use std::collections::BTreeSet;

/// A checkpoint's tensors, with a record of which were taken.
pub struct Contract<'a> {
    /// Where a tensor is missing, for messages.
    folder: &'a str,
    names: &'a Tensors,
    source: &'a dyn Source,
    /// Tensors of files that are broken: wanted, but not to be reported again.
    unavailable: &'a BTreeSet<String>,
    prefix: &'a str,
    used: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl<'a> Contract<'a> {
    pub fn new(folder: &'a str, names: &'a Tensors, source: &'a dyn Source, unavailable: &'a BTreeSet<String>) -> Self {
        let exists = |name: &str| source.tensors().contains_key(name) || unavailable.contains(name);
        let prefix = names.prefixes.iter().find(|p| exists(&names.embed.replace("{prefix}", p)));
        let prefix = prefix.or(names.prefixes.first()).map_or("", String::as_str);
        Self { folder, names, source, unavailable, prefix, used: BTreeSet::new(), problems: Vec::new() }
    }

    /// The name of a tensor outside the layers.
    pub fn name(&self, template: &str) -> String {
        template.replace("{prefix}", self.prefix)
    }

    /// Takes the tensor that plays `role` in layer `layer`.
    pub fn layer(&mut self, layer: usize, role: &str, shape: &[usize]) -> Weight {
        match self.names.layer.get(role) {
            Some(template) => {
                let name = self.name(template).replace("{layer}", &layer.to_string());
                self.take(name, shape)
            }
            None => {
                let message = format!("the pack names no tensor for {role}, which this config makes necessary");
                self.problems.push(Problem::new("pack", format!("{}, layer {layer}", self.folder), message));
                Weight::whole(role.to_owned(), shape)
            }
        }
    }

    /// Takes a tensor: it must exist, with this shape and a dtype that can be decoded.
    pub fn take(&mut self, name: String, shape: &[usize]) -> Weight {
        match self.source.tensors().get(&name) {
            Some(info) => self.judge(info, shape),
            None if self.unavailable.contains(&name) => {}
            None => {
                let message = format!("missing; the plan needs it with shape {}", shown(shape));
                self.problems.push(Problem::new("tensor-missing", tensor_place(self.folder, &name), message));
            }
        }
        self.used.insert(name.clone());
        Weight::whole(name, shape)
    }

    pub fn has(&self, name: &str) -> bool {
        self.source.tensors().contains_key(name)
    }

    /// File and tensor, for messages.
    pub fn place(&self, info: &TensorInfo) -> String {
        tensor_place(&self.source.files()[info.file].path.display().to_string(), &info.name)
    }

    fn judge(&mut self, info: &TensorInfo, shape: &[usize]) {
        let place = self.place(info);
        if info.shape != shape {
            let transposed = shape.len() == 2 && info.shape.iter().rev().eq(shape);
            let hint = if transposed { " (transposed)" } else { "" };
            let message = format!("expected shape {}, found {}{hint}", shown(shape), shown(&info.shape));
            self.problems.push(Problem::new("tensor-shape", &place, message));
        }
        if info.dtype.decoder().is_none() {
            let message = format!("dtype {} can't be decoded here; F32, F16 and BF16 can", info.dtype);
            self.problems.push(Problem::new("tensor-dtype", &place, message));
        }
    }

    /// Accounts for the tensors that nothing took: each is ignorable, or reported as surplus. Returns the problems and
    /// the ignored names.
    pub fn close(mut self) -> (Vec<Problem>, Vec<String>) {
        let mut ignored = Vec::new();
        let mut surplus = Vec::new();
        let templates: Vec<String> = self.names.ignorable.iter().map(|t| self.name(t)).collect();
        for (name, info) in self.source.tensors() {
            if self.used.contains(name) {
                continue;
            }
            if templates.iter().any(|t| matches_template(t, name)) {
                ignored.push(name.clone());
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

/// Whether `name` is `template` with a number for `{layer}`.
fn matches_template(template: &str, name: &str) -> bool {
    match template.split_once("{layer}") {
        None => template == name,
        Some((before, after)) => name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .is_some_and(|index| !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_matches_numbers_only() {
        let template = "model.layers.{layer}.rotary.inv_freq";
        assert!(matches_template(template, "model.layers.12.rotary.inv_freq"));
        for other in ["model.layers..rotary.inv_freq", "model.layers.x.rotary.inv_freq", "layers.1.rotary.inv_freq"] {
            assert!(!matches_template(template, other), "{other}");
        }
    }
}
