//! Text and numbers as people see them.

/// The text with its control characters escaped: a name taken from a file must not steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            result.extend(character.escape_default());
        } else {
            result.push(character);
        }
    }
    result
}

/// The shortest digits that read back as the same number.
pub(crate) fn exact(value: f64) -> String {
    if in_reach(value) { value.to_string() } else { format!("{value:e}") }
}

/// The shortest digits that read back as the same f32, where the number is one; else as [`exact`].
pub(crate) fn exact_logit(value: f64) -> String {
    let narrow = value as f32;
    match f64::from(narrow) == value {
        true if in_reach(value) => narrow.to_string(),
        true => format!("{narrow:e}"),
        false => exact(value),
    }
}

/// Seven significant digits.
pub(crate) fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        value.to_string()
    } else if in_reach(value) {
        let decimals = (6.0 - value.abs().log10().floor()).max(0.0);
        format!("{value:.*}", decimals as usize)
    } else {
        format!("{value:.6e}")
    }
}

/// "0-2, 5": ascending numbers, runs in short.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let texts = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Whether a number reads well without an exponent.
fn in_reach(value: f64) -> bool {
    value == 0.0 || !value.is_finite() || (1e-3..1e7).contains(&value.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31m\tb"), "a\\u{1b}[31m\\tb");
    }

    #[test]
    fn numbers_are_short_or_exact() {
        assert_eq!(
            [short(0.0), short(1.5), short(-1234.5678), short(4.5e-5)],
            ["0", "1.500000", "-1234.568", "4.500000e-5"]
        );
        assert_eq!([exact(0.005), exact(1e-4), exact(0.0)], ["0.005", "1e-4", "0"]);
        assert_eq!(exact_logit(f64::from(0.1f32)), "0.1");
        assert_eq!([exact_logit(0.1), exact_logit(f64::NEG_INFINITY), exact_logit(f64::NAN)], ["0.1", "-inf", "NaN"]);
    }

    #[test]
    fn layers_are_listed_in_runs() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges(&[3]), "3");
    }
}
