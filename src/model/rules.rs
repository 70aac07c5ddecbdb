//! Named rules: what a family derives from more than one config key. A pack refers to them by name.

use super::keys::{Keys, Reported, shown};
use serde_json::Value;

/// The keys that the rules for windows read.
pub const WINDOW_KEYS: [&str; 4] = ["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"];

/// `sliding_window everywhere`: one window for all layers (`null`: none).
pub fn window_everywhere(keys: &mut Keys<'_>, default: usize, layers: usize) -> Result<Vec<Option<usize>>, Reported> {
    let none = keys.is_null("sliding_window");
    let window = keys.count("sliding_window")?;
    Ok(vec![if none { None } else { Some(window.unwrap_or(default)) }; layers])
}

/// `sliding_window by layer`: a window where `use_sliding_window` is true, on the layers that `layer_types` calls
/// `sliding_attention`; without `layer_types`, on those from `max_window_layers` on.
pub fn window_by_layer(keys: &mut Keys<'_>, default: usize, layers: usize) -> Result<Vec<Option<usize>>, Reported> {
    /// transformers' default of `max_window_layers`.
    const MAX_WINDOW_LAYERS: usize = 28;
    let on = keys.flag("use_sliding_window");
    let none = keys.is_null("sliding_window");
    let window = keys.count("sliding_window");
    let first = keys.read("max_window_layers", "a whole number", |v| v.as_u64().map(|n| n as usize));
    let types = keys.read("layer_types", "a list of texts", |v| {
        v.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>()
    });
    let (on, window, first, types) = (on?.unwrap_or(false), window?, first?.unwrap_or(MAX_WINDOW_LAYERS), types?);
    let window = if on && !none { Some(window.unwrap_or(default)) } else { None };
    let Some(types) = types else {
        return Ok((0..layers).map(|i| window.filter(|_| i >= first)).collect());
    };
    if types.len() != layers {
        let message = format!("expected one entry per layer ({layers}), found {}", types.len());
        return Err(keys.report("config-value", "layer_types", message));
    }
    let mut windows = Vec::with_capacity(layers);
    for (i, kind) in types.into_iter().enumerate() {
        windows.push(match (kind, window) {
            ("full_attention", _) => None,
            ("sliding_attention", Some(w)) => Some(w),
            ("sliding_attention", None) => {
                let message =
                    format!("layer {i} is sliding_attention, but use_sliding_window and sliding_window give no window");
                return Err(keys.report("config-contradiction", "layer_types", message));
            }
            (other, _) => {
                let other = shown(&Value::from(other));
                let message = format!("layer {i}: expected full_attention or sliding_attention, found {other}");
                return Err(keys.report("config-value", "layer_types", message));
            }
        });
    }
    Ok(windows)
}
