//! Where two plans differ apart from their weights.

use crate::model::Plan;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What one place of two plans says, in layers that say the same of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanDifference {
    /// In the plan's JSON, as `oracle check --format json` prints it: `ropes.0.rope_theta`. That of a layer is counted from
    /// the layer on, that of an expert from the expert on.
    pub key: String,
    /// In which layers; empty where it is outside of them.
    pub layers: Vec<usize>,
    /// `null` where there is no such thing. A weight is `"weight"`, a list of another length `"N of them"`.
    pub reference: Value,
    pub candidate: Value,
}

/// Every difference, in the order of the plan's places.
pub fn differences(reference: &Plan, candidate: &Plan) -> Vec<PlanDifference> {
    let values = [reference, candidate].map(|plan| {
        let mut value = serde_json::to_value(plan).expect("a plan holds nothing that JSON can't");
        hide_weights(&mut value);
        value
    });
    let mut walk = Walk::default();
    walk.compare(&mut Vec::new(), None, &values[0], &values[1]);
    walk.found
}

/// Puts a word in the place of every weight: its name and layout mean nothing, and its shape is compared apart.
fn hide_weights(value: &mut Value) {
    match value {
        Value::Object(map) if map.contains_key("name") && map.contains_key("shape") => *value = Value::from("weight"),
        Value::Object(map) => map.values_mut().for_each(hide_weights),
        Value::Array(list) => list.iter_mut().for_each(hide_weights),
        _ => {}
    }
}

#[derive(Default)]
struct Walk {
    found: Vec<PlanDifference>,
    /// Where in `found` the same is said of a layer.
    places: BTreeMap<(String, String, String), usize>,
}

impl Walk {
    fn compare(&mut self, path: &mut Vec<String>, layer: Option<usize>, reference: &Value, candidate: &Value) {
        match (reference, candidate) {
            (Value::Object(r), Value::Object(c)) => self.objects(path, layer, r, c),
            (Value::Array(r), Value::Array(c)) if !r.iter().chain(c).all(Value::is_number) => {
                if r.len() != c.len() {
                    let count = |list: &[Value]| Value::from(format!("{} of them", list.len()));
                    self.differ(path, layer, count(r), count(c));
                }
                for (i, (r, c)) in r.iter().zip(c).enumerate() {
                    match path.last().map(String::as_str) {
                        Some("layers") => self.compare(&mut Vec::new(), Some(i), r, c),
                        // All alike but for their weights.
                        Some("experts") => self.compare(path, layer, r, c),
                        _ => self.within(path, i.to_string(), layer, r, c),
                    }
                }
            }
            _ if reference != candidate => self.differ(path, layer, reference.clone(), candidate.clone()),
            _ => {}
        }
    }

    fn objects(
        &mut self,
        path: &mut Vec<String>,
        layer: Option<usize>,
        r: &Map<String, Value>,
        c: &Map<String, Value>,
    ) {
        for key in r.keys().chain(c.keys().filter(|key| !r.contains_key(*key))) {
            let [of_r, of_c] = [r, c].map(|map| map.get(key).unwrap_or(&Value::Null));
            self.within(path, key.clone(), layer, of_r, of_c);
        }
    }

    fn within(&mut self, path: &mut Vec<String>, step: String, layer: Option<usize>, r: &Value, c: &Value) {
        path.push(step);
        self.compare(path, layer, r, c);
        path.pop();
    }

    fn differ(&mut self, path: &[String], layer: Option<usize>, reference: Value, candidate: Value) {
        let key = path.join(".");
        let Some(layer) = layer else {
            self.found.push(PlanDifference { key, layers: Vec::new(), reference, candidate });
            return;
        };
        let place = (key.clone(), reference.to_string(), candidate.to_string());
        let at = *self.places.entry(place).or_insert(self.found.len());
        match self.found.get_mut(at) {
            Some(found) if found.layers.last() == Some(&layer) => {}
            Some(found) => found.layers.push(layer),
            None => self.found.push(PlanDifference { key, layers: vec![layer], reference, candidate }),
        }
    }
}
