//! Lists of CPUs in the form of the kernel: numbers and ranges, such as `0-7,16`.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Highest number of a CPU in a list. This limit bounds the size of a set of CPUs. No kernel
/// supports a CPU with a higher number.
const MAX_CPU: usize = (1 << 16) - 1;

/// Returns the numbers of the CPUs in a list. The parser ignores spaces around numbers. `None`
/// means that the text is not a list of CPUs: the text is empty, has other characters, or has a
/// range that ends before its begin.
pub fn parse(text: &str) -> Option<BTreeSet<usize>> {
    let number = |text: &str| {
        let text = text.trim();
        let is_number = text.bytes().all(|it| it.is_ascii_digit());
        text.parse::<usize>().ok().filter(|number| is_number && *number <= MAX_CPU)
    };
    let mut cpus = BTreeSet::new();
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns the list of `cpus` as text, with ranges where possible. The text is empty if `cpus` is
/// empty.
pub fn show(cpus: &BTreeSet<usize>) -> String {
    let mut text = String::new();
    let mut rest = cpus.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while rest.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        let separator = if text.is_empty() { "" } else { "," };
        // Writing to a `String` cannot fail.
        let _ = match first == last {
            true => write!(text, "{separator}{first}"),
            false => write!(text, "{separator}{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed_and_shown_as_ranges() {
        let check = |text: &str, shown: &str| {
            assert_eq!(parse(text).as_ref().map(show).as_deref(), Some(shown), "{text}");
        };
        check("0", "0");
        check("0-7,16", "0-7,16");
        check(" 3, 1-2 ,2-4\n", "1-4");
        check("65535", "65535");
        assert_eq!(show(&BTreeSet::new()), "");
    }

    #[test]
    fn invalid_cpu_lists_are_refused() {
        for text in ["", "3-1", "a", "1,", "-1", "1-", "+1", "1-2-3", "65536", "0x1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
