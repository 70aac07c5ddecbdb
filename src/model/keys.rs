//! Reading a config so that nothing in it stays unread.

use crate::problem::{Problem, quote, visible};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The code of a key that nothing reads.
pub const UNKNOWN_KEY: &str = "config-unknown-key";

/// Says that what is wrong has been added to the problems already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported;

/// A value of a config, or nothing where the key is absent or null.
pub type Found<T> = Result<Option<T>, Reported>;

/// One object of a config, with a record of which keys were read.
#[derive(Debug)]
pub struct Keys<'a> {
    file: &'a str,
    /// In front of a key in messages: empty, or `rope_scaling.`.
    path: String,
    map: &'a Map<String, Value>,
    used: BTreeSet<&'a str>,
    /// Of objects in this one that weren't read as a whole, the keys that were read as `object.key`.
    used_inside: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// Keys that were looked for and are not there.
    absent: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl<'a> Keys<'a> {
    pub fn new(file: &'a str, path: &str, map: &'a Map<String, Value>) -> Self {
        Self {
            file,
            path: path.to_owned(),
            map,
            used: BTreeSet::new(),
            used_inside: BTreeMap::new(),
            absent: BTreeSet::new(),
            problems: Vec::new(),
        }
    }

    /// The keys of an object inside this one.
    pub fn nested(&self, key: &str, map: &'a Map<String, Value>) -> Self {
        Self::new(self.file, &format!("{}{key}.", self.path), map)
    }

    /// Object and key, for messages.
    fn place(&self, key: &str) -> String {
        format!("{}, {}", self.file, key_name(&format!("{}{key}", self.path)))
    }

    /// Adds a problem; one that is there already (two fields may share a key) is not repeated.
    pub fn report(&mut self, code: &'static str, key: &str, message: impl Into<String>) -> Reported {
        let problem = Problem::new(code, self.place(key), message);
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        Reported
    }

    pub fn add_problems(&mut self, problems: Vec<Problem>) {
        self.problems.extend(problems);
    }

    /// Marks a key as read; `a.b` is key b of object a, where no key has that name itself.
    pub fn raw(&mut self, key: &str) -> Option<&'a Value> {
        if let Some((name, value)) = self.map.get_key_value(key) {
            self.used.insert(name);
            return Some(value);
        }
        let Some((object, key)) = key.split_once('.') else {
            self.absent.insert(key.to_owned());
            return None;
        };
        let (name, inside) = self.map.get_key_value(object)?;
        let inside = inside.as_object()?;
        let used = self.used_inside.entry(name).or_default();
        let (key, value) = inside.get_key_value(key)?;
        used.insert(key);
        Some(value)
    }

    /// Marks every key as read, for when what they mean can't be known.
    pub fn read_all(&mut self) {
        self.used.extend(self.map.keys().map(String::as_str));
    }

    /// Marks these keys as read.
    pub fn read_all_of(&mut self, names: &[&str]) {
        for name in names {
            self.raw(name);
        }
    }

    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn read<T>(&mut self, key: &str, expected: &str, parse: impl FnOnce(&'a Value) -> Option<T>) -> Found<T> {
        match self.raw(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match parse(value) {
                Some(parsed) => Ok(Some(parsed)),
                None => Err(self.report("config-value", key, format!("expected {expected}, found {}", shown(value)))),
            },
        }
    }

    /// A count between 1 and 2^31 - 1.
    pub fn count(&mut self, key: &str) -> Found<usize> {
        self.read(key, "a whole number from 1 to 2147483647", count)
    }

    /// A number greater than zero.
    pub fn positive(&mut self, key: &str) -> Found<f64> {
        self.read(key, POSITIVE, positive)
    }

    /// A number that is not negative, and small enough to compute with.
    pub fn non_negative(&mut self, key: &str) -> Found<f64> {
        self.read(key, "a number from 0 to 1e30", |v| v.as_f64().filter(|n| (0.0..=LARGEST).contains(n)))
    }

    pub fn flag(&mut self, key: &str) -> Found<bool> {
        self.read(key, "true or false", Value::as_bool)
    }

    pub fn text(&mut self, key: &str) -> Found<&'a str> {
        self.read(key, "a text", Value::as_str)
    }

    pub fn object(&mut self, key: &str) -> Found<&'a Map<String, Value>> {
        self.read(key, "an object", Value::as_object)
    }

    /// Keys that were not read.
    pub fn unread(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let unread = |key: &str| !self.used.contains(key) && !self.used_inside.contains_key(key);
        self.map.iter().map(|(k, v)| (k.as_str(), v)).filter(move |(k, _)| unread(k))
    }

    /// The key that was looked for in vain and that `key` is most likely a slip of the pen for.
    fn nearest(&self, key: &str) -> Option<&str> {
        /// Two letters changed, left out, added or swapped in ten.
        const SIMILAR: f64 = 0.79;
        let similar = |other: &str| strsim::normalized_damerau_levenshtein(key, other);
        let known = self.absent.iter().map(|other| (similar(other), other.as_str()));
        known.filter(|(similar, _)| *similar >= SIMILAR).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
    }

    /// Reports each unread key as one that might change the result.
    pub fn close(mut self) -> Vec<Problem> {
        let mut unread: Vec<(String, &Value)> = self.unread().map(|(key, value)| (key.to_owned(), value)).collect();
        for (object, used) in self.used_inside.iter().filter(|(object, _)| !self.used.contains(*object)) {
            let inside = self.map.get(*object).and_then(Value::as_object).into_iter().flatten();
            let left = inside.filter(|(key, _)| !used.contains(key.as_str()));
            unread.extend(left.map(|(key, value)| (format!("{object}.{key}"), value)));
        }
        for (key, value) in &unread {
            let meant = self.nearest(key).map_or(String::new(), |meant| format!(" (did you mean {}?)", quote(meant)));
            let message = format!(
                "unknown key (value {}): it could change the numbers, and nothing here reads it{meant}. If it does not \
                 matter, --allow-unused with this name lets it pass",
                shown(value),
            );
            self.report(UNKNOWN_KEY, key, message);
        }
        self.problems
    }
}

pub fn count(value: &Value) -> Option<usize> {
    value.as_u64().filter(|n| (1..=i32::MAX as u64).contains(n)).map(|n| n as usize)
}

/// A float32 holds it, its square root and its inverse.
pub const LARGEST: f64 = 1e30;

/// What [`positive`] takes, for messages.
pub const POSITIVE: &str = "a number greater than zero (1e-30 to 1e30)";

pub fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| (1.0 / LARGEST..=LARGEST).contains(n))
}

/// How messages name a key.
pub fn key_name(key: &str) -> String {
    format!("key {}", quote(key))
}

/// A value as it stands in the file, shortened.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{} ...", visible(&text[..at])),
        None => visible(&text),
    }
}
