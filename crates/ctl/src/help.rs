//! Examples below the help of a command. Each command names its own, next to its arguments.

/// A purpose, and the command line for it.
pub(crate) type Example = (&'static str, &'static str);

/// Title of the examples of a command.
pub(crate) const TITLE: &str = "Examples:\n";

/// The text below the help of a command.
pub(crate) fn examples(examples: &[Example]) -> String {
    let lines = examples.iter().map(|(what, line)| format!("  # {what}\n  {line}"));
    TITLE.to_owned() + &lines.collect::<Vec<_>>().join("\n")
}
