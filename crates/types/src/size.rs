//! Sizes as text: `4096`, `64k`, `1M`, `512KiB`, `1 MB`, `1 TiB`.
//!
//! The suffixes follow GNU coreutils (`dd`, `head`, `truncate`), and agree with the suffixes of IOR
//! and Lustre. `K`, `M`, `G` and `T` in either case and `KiB`, `MiB`, ... are powers of 1024; `kB`,
//! `MB`, `GB` and `TB` are powers of 1000.

/// The accepted suffixes, as text for messages and help texts.
pub const SUFFIXES: &str = "K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024), or KB, MB, GB, TB \
                            (powers of 1000)";

const UNITS: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Parses a size: a number of bytes, or a number with a suffix. `None` if the text is invalid or
/// the size exceeds 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse::<u64>().ok()?;
    number.checked_mul(factor(text[end..].trim())?)
}

/// Returns the number of bytes that a suffix stands for.
fn factor(suffix: &str) -> Option<u64> {
    let suffix = suffix.to_ascii_lowercase();
    let (letter, rest) = match suffix.as_str() {
        "" | "b" => return Some(1),
        other => other.split_at_checked(1)?,
    };
    let power = 1 + "kmgt".find(letter)? as u32;
    match rest {
        "" | "ib" => Some(1024_u64.pow(power)),
        "b" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// Returns the size as a whole number of the largest unit that divides it, and the name of that
/// unit.
pub fn whole(bytes: u64) -> (u64, &'static str) {
    let is_whole = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    let (name, factor) = UNITS.iter().rev().find(is_whole).unwrap_or(&UNITS[0]);
    (bytes / factor, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_suffixes_are_parsed_like_in_coreutils() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4 KiB", 4096),
            ("1m", 1 << 20),
            ("1M", 1 << 20),
            ("1MiB", 1 << 20),
            ("1mib", 1 << 20),
            ("1MB", 1_000_000),
            ("16kB", 16_000),
            ("2 TiB", 2 << 40),
            ("3G", 3 << 30),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in
            ["", "k", "1x", "-1", "1.5m", "1 M B", "1Mi", "1kk", "99999999999999t", "1\u{e9}"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
