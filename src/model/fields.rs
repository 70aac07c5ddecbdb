//! A pack's fields, read from a config.

use super::keys::{Keys, Reported, shown};
use super::pack::{Field, Pack};
use super::rules;
use super::schema;
use crate::checkpoint::Source;
use crate::ops::Activation;
use crate::problem::quote;
use serde_json::Value;
use std::collections::BTreeSet;

/// A pack and the config that it reads.
pub struct Fields<'p, 'k, 'c> {
    pub pack: &'p Pack,
    pub keys: &'k mut Keys<'c>,
    /// The keys of the folder, where the language model's own stand inside it: what both have, the folder's decides.
    pub outer: Option<&'k mut Keys<'c>>,
    pub stored: Stored,
}

/// What the tensors of a checkpoint leave room for.
#[derive(Clone, Copy)]
pub struct Stored {
    /// How many there are, or should be.
    pub tensors: usize,
    /// The largest dimension of any: a router has a row for each expert.
    pub largest: usize,
}

impl Stored {
    pub fn of(source: &dyn Source, unavailable: &BTreeSet<String>) -> Self {
        // A plan without a checkpoint.
        if source.tensors().is_empty() {
            return Self { tensors: usize::MAX, largest: usize::MAX };
        }
        let tensors = source.tensors().len() + unavailable.len();
        let largest = source.tensors().values().flat_map(|info| &info.shape).max().copied().unwrap_or(0);
        Self { tensors, largest: if unavailable.is_empty() { largest } else { usize::MAX } }
    }
}

/// Fields that a folder of several models decides for all of them.
pub const OUTER: [&str; 1] = ["tie_word_embeddings"];

impl<'p> Fields<'p, '_, '_> {
    pub fn field(&self, name: &str) -> Option<&'p Field> {
        self.pack.fields.get(name)
    }

    /// The rule that gives a field.
    pub fn rule(&self, name: &str) -> Option<&'p str> {
        self.field(name)?.rule.as_deref()
    }

    /// The key that a field is read from, for messages.
    pub fn key(&self, name: &str) -> String {
        self.field(name).and_then(|field| field.keys.first()).map_or_else(|| name.to_owned(), String::clone)
    }

    /// Says that something is wrong with a field's value.
    pub fn wrong(&mut self, name: &str, message: impl Into<String>) -> Reported {
        let key = self.key(name);
        self.keys.report("config-value", &key, message)
    }

    fn missing(&mut self, name: &str) -> Reported {
        if self.field(name).is_none() {
            let message = format!("the pack says nothing about {name}, which this config makes necessary");
            return self.keys.report("pack", name, message);
        }
        let key = self.key(name);
        self.keys.report("config-key-missing", &key, format!("missing; it gives the plan's {name}"))
    }

    /// The value of a field, or nothing where neither config nor pack gives one.
    pub fn get<T: PartialEq>(
        &mut self,
        name: &str,
        expected: &str,
        parse: &dyn Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Reported> {
        let Some(field) = self.field(name) else { return Ok(None) };
        let constant = |value: &Option<toml::Value>| {
            let value = value.as_ref().and_then(|value| serde_json::to_value(value).ok());
            value.and_then(|value| parse(&value))
        };
        if field.value.is_some() {
            return Ok(constant(&field.value));
        }
        let mut found: Option<(T, &str)> = None;
        let mut null = false;
        let outer = self.outer.as_deref_mut().filter(|_| OUTER.contains(&name));
        let places = outer.into_iter().chain([&mut *self.keys]);
        for keys in places {
            // An outer value is the one that holds, whatever the inner one is.
            let settled = found.is_some();
            for key in &field.keys {
                null |= keys.is_null(key);
                let Some(value) = keys.read(key, expected, parse)? else { continue };
                match &found {
                    _ if settled => {}
                    Some((first, other)) if *first != value => {
                        let message = format!("differs from {other}, which is also there and means the same");
                        return Err(keys.report("config-contradiction", key, message));
                    }
                    Some(_) => {}
                    None => found = Some((value, key)),
                }
            }
        }
        if let Some((value, _)) = found {
            return Ok(Some(value));
        }
        if null && field.null_is_none {
            return Ok(None);
        }
        match (&field.null_from, constant(&field.default), &field.default_from) {
            (Some(other), ..) if null => self.get(other, expected, parse),
            (_, Some(value), _) => Ok(Some(value)),
            (_, _, Some(other)) => self.get(other, expected, parse),
            _ => Ok(None),
        }
    }

    /// As [`Fields::get`], for a field that the plan can't do without.
    pub fn need<T: PartialEq>(
        &mut self,
        name: &str,
        expected: &str,
        parse: &dyn Fn(&Value) -> Option<T>,
    ) -> Result<T, Reported> {
        self.get(name, expected, parse)?.ok_or_else(|| self.missing(name))
    }

    pub fn count(&mut self, name: &str) -> Result<usize, Reported> {
        self.need(name, schema::COUNT, &super::keys::count)
    }

    /// A count, or nothing where the key is absent, null or zero.
    pub fn some_count(&mut self, name: &str) -> Result<Option<usize>, Reported> {
        Ok(self.get(name, schema::COUNT_OR_ZERO, &schema::count_or_zero)?.filter(|&n| n > 0))
    }

    /// A number that may be zero.
    pub fn whole(&mut self, name: &str) -> Result<usize, Reported> {
        self.need(name, schema::COUNT_OR_ZERO, &schema::count_or_zero)
    }

    /// One count per layer: the config has a number for all of them, or a list.
    pub fn counts(&mut self, name: &str, layers: usize) -> Result<Vec<usize>, Reported> {
        let expected = format!("{}, or a list of {layers} of them (one per layer)", schema::COUNT);
        self.need(name, &expected, &|value| per_layer(value, layers, super::keys::count))
    }

    /// As [`Fields::counts`], with zeros: all are where the key is absent.
    pub fn counts_or_zero(&mut self, name: &str, layers: usize) -> Result<Vec<usize>, Reported> {
        let expected = format!("{}, or a list of {layers} of them (one per layer)", schema::COUNT_OR_ZERO);
        let found = self.get(name, &expected, &|value| per_layer(value, layers, schema::count_or_zero))?;
        Ok(found.unwrap_or_else(|| vec![0; layers]))
    }

    /// One number per layer, as [`Fields::counts`]; nothing where the key is absent.
    pub fn numbers(&mut self, name: &str, layers: usize) -> Result<Option<Vec<f64>>, Reported> {
        let expected = format!("{}, or a list of {layers} of them (one per layer)", schema::NUMBER);
        self.get(name, &expected, &|value| per_layer(value, layers, schema::number))
    }

    pub fn flag(&mut self, name: &str) -> Result<bool, Reported> {
        Ok(self.get(name, schema::FLAG, &Value::as_bool)?.unwrap_or(false))
    }

    /// A number, or nothing.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, Reported> {
        self.get(name, schema::NUMBER, &schema::number)
    }

    /// A factor: one where nothing is said.
    pub fn factor(&mut self, name: &str) -> Result<f64, Reported> {
        Ok(self.get(name, schema::POSITIVE, &super::keys::positive)?.unwrap_or(1.0))
    }

    /// A number greater than zero, or nothing.
    pub fn positive(&mut self, name: &str) -> Result<Option<f64>, Reported> {
        self.get(name, schema::POSITIVE, &super::keys::positive)
    }

    pub fn eps(&mut self, name: &str) -> Result<f64, Reported> {
        self.need(name, schema::EPS, &schema::eps)
    }

    /// One of the words that [`schema`] knows for this field.
    pub fn choice(&mut self, name: &str) -> Result<Option<String>, Reported> {
        let words = schema::words(name);
        let expected = format!("one of {}", words.join(", "));
        self.get(name, &expected, &|value| value.as_str().filter(|w| words.contains(w)).map(str::to_owned))
    }

    pub fn activation(&mut self, name: &str) -> Result<Activation, Reported> {
        let word = self.need(name, "a text", &|value| value.as_str().map(str::to_owned))?;
        match Activation::parse(&word) {
            Some(activation) => Ok(activation),
            None => {
                let key = self.key(name);
                let known = Activation::NAMES.map(|(n, _)| n).join(", ");
                let message = format!("unsupported activation {}; supported are {known}", quote(&word));
                Err(self.keys.report("activation", &key, message))
            }
        }
    }

    /// The pack's default of a field that a rule reads.
    pub fn default(&self, name: &str) -> Option<Value> {
        serde_json::to_value(self.field(name)?.default.as_ref()?).ok()
    }

    /// Whether a router's groups count: DeepSeek-V2's `topk_method` may switch them off.
    pub fn group_limited(&mut self) -> Result<bool, Reported> {
        Ok(self.choice("topk_method")?.is_none_or(|method| method != "greedy"))
    }

    /// Marks the keys of fields as read that have no effect because of another.
    pub fn read_all_of(&mut self, names: &[&str]) {
        let pack = self.pack;
        for key in names.iter().filter_map(|name| pack.fields.get(*name)).flat_map(|field| &field.keys) {
            self.keys.raw(key);
        }
    }

    /// Leaves every key unjudged that the pack reads, since what they mean hangs on one that is reported already.
    pub fn read_all(&mut self) {
        let pack = self.pack;
        for field in pack.fields.values() {
            for key in rules::keys(field.rule.as_deref()) {
                self.keys.raw(key);
            }
            for key in &field.keys {
                self.keys.raw(key);
                if let Some(outer) = self.outer.as_deref_mut() {
                    outer.raw(key);
                }
            }
        }
    }
}

/// One value for all layers, or a list with one for each.
fn per_layer<T: Clone>(value: &Value, layers: usize, parse: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    match value.as_array() {
        Some(list) if list.len() == layers => list.iter().map(parse).collect(),
        Some(_) => None,
        None => Some(vec![parse(value)?; layers]),
    }
}

/// "layer 3: expected ..., found ..."
pub fn layer_expected(layer: usize, expected: &str, found: &Value) -> String {
    format!("layer {layer}: expected {expected}, found {}", shown(found))
}
