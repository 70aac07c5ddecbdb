//! `--max-memory`: what a run may take, and what it took.

use anyhow::{Result, ensure};
use indicatif::HumanBytes;

/// A number of bytes: `500MB`, `2GiB`, `1.5G`, `160000000`.
///
/// # Errors
/// Not such a text.
pub fn parse(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("expected a number of bytes, such as 500MB or 2GiB".into()),
    };
    match number.parse::<f64>() {
        Ok(n) if n * scale >= 1.0 => Ok((n * scale) as u64),
        _ => Err("expected a number of bytes, such as 500MB or 2GiB".into()),
    }
}

/// # Errors
/// More is needed than may be taken.
pub fn check(needed: u64, most: u64) -> Result<()> {
    ensure!(
        needed <= most,
        "--max-memory {}: this run may need {} ({needed} bytes): give it more, or fewer tokens or prompts at once",
        HumanBytes(most),
        HumanBytes(needed),
    );
    Ok(())
}

/// The process's peak resident memory in bytes, where the system tells (Linux does).
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [("1", 1), ("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5k", 1500), ("3 mib", 3 << 20)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MB", "-1", "1.2.3", "5 apples", "nan"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        check(10, 10).unwrap();
        assert!(check(11, 10).unwrap_err().to_string().contains("11 bytes"));
    }
}
