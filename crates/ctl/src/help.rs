//! Formats the examples below the help of a command. Each command declares its examples next to its
//! arguments.

/// The purpose of an example, and its command line.
pub(crate) type Example = (&'static str, &'static str);

/// Heading of the examples of a command.
pub(crate) const TITLE: &str = "Examples:\n";

/// Returns the text that follows the help of a command.
pub(crate) fn examples(examples: &[Example]) -> String {
    let lines = examples.iter().map(|(what, line)| format!("  # {what}\n  {line}"));
    TITLE.to_owned() + &lines.collect::<Vec<_>>().join("\n")
}
