//! JSON, read strictly: what another reader would pass over in silence (a key given twice, a byte order mark, Python's
//! `NaN`) is refused by name.

use crate::problem::{Problem, quote};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Map, Value};
use std::fmt;

/// Values (of any kind, at any level) of one text. The largest real header has about a tenth; a hostile text of the
/// largest size that is read would otherwise take gigabytes as a tree.
const VALUES: usize = 4_000_000;

/// Reads `bytes` as one JSON object; `place` is the file (or part of one) that a problem names.
///
/// # Errors
/// Empty, not UTF-8, not JSON, cut off, a number beyond float64, nesting beyond 128 levels, more than
/// four million values, a key given twice at any level, or a value that is not an object. Line and column say where.
pub(super) fn parse_object(bytes: &[u8], place: &str) -> Result<Map<String, Value>, Problem> {
    let problem = |code, message: String| Problem::new(code, place, message);
    let text = utf8(bytes).map_err(|message| problem("json-encoding", message))?;
    if text.trim_ascii().is_empty() {
        let message = format!("expected a JSON object, found nothing ({} bytes)", bytes.len());
        return Err(problem("json-empty", message));
    }
    let mut walk = Walk { path: Vec::new(), values: 0, raised: "" };
    match parse_value(text, &mut walk) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(problem("json-not-object", format!("expected a JSON object, found {}", kind(&other)))),
        Err(error) => {
            let (code, message) = explain(&error, text, &walk);
            Err(problem(code, message))
        }
    }
}

/// As [`parse_object`], but Python's `Infinity` becomes the text "Infinity": transformers writes it for a limit that there
/// isn't (Mamba-2's `time_step_limit`). A key that must be a number refuses it as any other text.
///
/// # Errors
/// As [`parse_object`].
pub(super) fn parse_config(bytes: &[u8], place: &str) -> Result<Map<String, Value>, Problem> {
    match parse_object(bytes, place) {
        Err(problem) if problem.code == "json-nonfinite" => {
            let quoted = std::str::from_utf8(bytes).map(quote_infinities).unwrap_or_default();
            parse_object(quoted.as_bytes(), place)
                .map_err(|other| if other.code == problem.code { problem } else { other })
        }
        read => read,
    }
}

/// Quotes every `Infinity` that stands outside a string and has no sign.
fn quote_infinities(text: &str) -> String {
    const LITERAL: &str = "Infinity";
    let mut quoted = String::with_capacity(text.len() + 16);
    let (mut inside, mut escaped, mut before, mut rest) = (false, false, ' ', text);
    while let Some(next) = rest.chars().next() {
        if !inside && before != '-' && rest.starts_with(LITERAL) {
            quoted.extend(["\"", LITERAL, "\""]);
            rest = &rest[LITERAL.len()..];
            continue;
        }
        (inside, escaped) = match next {
            '"' if !escaped => (!inside, false),
            '\\' if inside => (true, !escaped),
            _ => (inside, false),
        };
        quoted.push(next);
        before = next;
        rest = &rest[next.len_utf8()..];
    }
    quoted
}

/// What a JSON value is, with its article: for sentences like "expected a string, found a number".
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, String> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err("starts with a UTF-8 byte order mark, which JSON does not allow: save it without one".into());
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Err("is UTF-16, expected UTF-8: save it as UTF-8".into());
    }
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let line = 1 + bytes[..at].iter().filter(|&&b| b == b'\n').count();
        format!("is not UTF-8: byte {at} (line {line}) is 0x{:02x}", bytes[at])
    })
}

fn parse_value(text: &str, walk: &mut Walk) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict(walk).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

fn explain(error: &serde_json::Error, text: &str, walk: &Walk) -> (&'static str, String) {
    let (line, column) = (error.line(), error.column());
    let place = format!("line {line}, column {column}");
    let key = match &walk.path[..] {
        [] => String::new(),
        keys => format!(" (at the key {})", quote(&keys.join("."))),
    };
    let detail = error.to_string();
    let detail = detail.rsplit_once(" at line ").map_or(detail.as_str(), |(what, _)| what);
    match error.classify() {
        // What `Strict` itself raises.
        Category::Data => (walk.raised, format!("{detail} at {place}")),
        Category::Eof => {
            ("json-truncated", format!("expected a whole JSON object, found its end at {place}{key}: it is cut off"))
        }
        _ if detail == "recursion limit exceeded" => {
            ("json-too-deep", format!("nests deeper than 128 levels at {place}{key}"))
        }
        _ => match nonfinite_literal(text, line, column) {
            Some(literal) => (
                "json-nonfinite",
                format!("holds `{literal}` at {place}{key}: JSON has no such number, write a finite one"),
            ),
            None => ("json-syntax", format!("is not JSON: {detail} at {place}{key}")),
        },
    }
}

/// Python's `json` writes these for numbers that JSON can't hold.
fn nonfinite_literal(text: &str, line: usize, column: usize) -> Option<&'static str> {
    let line = text.split('\n').nth(line.checked_sub(1)?)?.as_bytes();
    // The parser stops at the literal's first byte, or at its second when the first is a minus sign.
    [2, 1].into_iter().find_map(|back| {
        let found = line.get(column.checked_sub(back)?..)?;
        ["NaN", "Infinity", "-Infinity"].into_iter().find(|literal| found.starts_with(literal.as_bytes()))
    })
}

/// Where the reader is, and after an error, where it happened.
struct Walk {
    /// The keys down to the current value.
    path: Vec<String>,
    /// How many values there were so far.
    values: usize,
    /// The code of the problem that [`Strict`] has raised.
    raised: &'static str,
}

/// Builds a [`Value`], and refuses an object that gives a key twice, and too many values.
struct Strict<'a>(&'a mut Walk);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.values += 1;
        if self.0.values > VALUES {
            self.0.raised = "json-too-large";
            return Err(D::Error::custom(format!("passes the limit of {VALUES} values")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(value) = access.next_element_seed(Strict(&mut *self.0))? {
            array.push(value);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.path.push(key.clone());
            if object.contains_key(&key) {
                self.0.raised = "json-duplicate-key";
                let key = quote(&self.0.path.join("."));
                return Err(A::Error::custom(format!("gives the key {key} twice, the second time")));
            }
            object.insert(key, access.next_value_seed(Strict(&mut *self.0))?);
            self.0.path.pop();
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let problem = parse_object(text.as_bytes(), "f.json").expect_err(text);
        format!("{} {problem}", problem.code)
    }

    #[test]
    fn what_is_valid_is_what_serde_json_reads() {
        let text = r#" {"a": [1, -2, 0.1, 1e300, 18446744073709551615, true, null, "\u00e9\n"], "b": {"a": {}}} "#;
        let ours = parse_object(text.as_bytes(), "f.json").unwrap();
        assert_eq!(Value::Object(ours), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_key_given_twice_is_named_at_any_level() {
        assert_eq!(
            refused(r#"{"a":1,"a":1}"#),
            "json-duplicate-key f.json: gives the key `a` twice, the second time at line 1, column 10"
        );
        assert!(refused("{\"r\":[{\"f\":1,\n\"f\":2}]}").contains("the key `r.f` twice, the second time at line 2"));
        assert!(parse_object(br#"{"a":{"a":1},"b":{"a":1}}"#, "f.json").is_ok());
    }

    #[test]
    fn python_literals_are_named_with_line_and_key() {
        for literal in ["NaN", "Infinity", "-Infinity"] {
            for text in
                [format!("{{\n  \"r\": {{\"f\": {literal}}}}}"), format!("{{\n\"r\": {{\"f\": [1,{literal}]}}}}")]
            {
                let message = refused(&text);
                assert!(
                    message.starts_with(&format!("json-nonfinite f.json: holds `{literal}` at line 2")),
                    "{message}"
                );
                assert!(message.contains("`r.f`"), "{message}");
            }
        }
        assert!(refused(r#"{"a": nan}"#).starts_with("json-syntax"));
    }

    #[test]
    fn a_config_may_hold_infinity_as_a_text() {
        let read = |text: &str| parse_config(text.as_bytes(), "f.json");
        let text = r#"{"limit": [0.0, Infinity], "note \\\" Infinity": "Infinity, \\"}"#;
        assert_eq!(
            Value::Object(read(text).unwrap()),
            serde_json::json!({"limit": [0.0, "Infinity"], "note \\\" Infinity": "Infinity, \\"})
        );
        for other in [r#"{"a": -Infinity}"#, r#"{"a": [Infinity, NaN]}"#] {
            assert_eq!(read(other).unwrap_err().code, "json-nonfinite", "{other}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_overflowing_the_stack() {
        let nested = |levels: usize| format!("{{\"a\":{}1{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse_object(nested(100).as_bytes(), "f.json").is_ok());
        assert!(refused(&nested(1_000_000)).starts_with("json-too-deep f.json: nests deeper than 128 levels"));
    }

    #[test]
    fn a_text_of_too_many_values_is_refused() {
        let zeros = |n: usize| format!("{{\"a\":[{}0]}}", "0,".repeat(n - 1));
        assert!(parse_object(zeros(VALUES - 2).as_bytes(), "f.json").is_ok());
        let message = refused(&zeros(VALUES - 1));
        assert!(
            message.starts_with("json-too-large f.json: passes the limit of 4000000 values at line 1"),
            "{message}"
        );
    }

    #[test]
    fn numbers_beyond_float64_are_refused() {
        assert!(refused(r#"{"eps": 1e999}"#).contains("number out of range"));
    }
}
