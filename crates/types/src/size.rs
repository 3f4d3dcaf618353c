//! Sizes as text: `4096`, `512KiB`, `1 TiB`.

const UNITS: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Parses a size: a number of bytes, or a number with a unit. `None` if the text is invalid or the
/// size exceeds 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<u64>().ok()?, text[end..].trim());
    let factor = match unit {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    number.checked_mul(factor)
}

/// Returns the size as a whole number of the largest unit that divides it, and the name of that
/// unit.
pub fn whole(bytes: u64) -> (u64, &'static str) {
    let is_whole = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    let (name, factor) = UNITS.iter().rev().find(is_whole).unwrap_or(&UNITS[0]);
    (bytes / factor, name)
}
