//! The note about an address of the command line at which management has not answered.

use crate::output::warn;
use skep_rpc::Management;
use std::sync::Once;

static NOTE: Once = Once::new();

/// Prints a note, once in a command, if management has answered at none of the addresses `named` of
/// the command line, and the command has used an address that this host has learned.
pub(crate) fn print(named: &[String], management: &Management) {
    if let Some(text) = management.first_answer().and_then(|used| text(named, used)) {
        NOTE.call_once(|| warn(&text));
    }
}

/// Returns the note if `used`, the address that answered first, is not in `named`.
fn text(named: &[String], used: &str) -> Option<String> {
    if named.iter().any(|address| address == used) {
        return None;
    }
    Some(format!(
        "management has not answered at {}; this command uses {used}, an address of this cluster \
         that this host has learned earlier",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_the_silent_address_and_the_used_address() {
        let named = ["10.0.0.7:7400".to_owned()];
        assert_eq!(text(&named, "10.0.0.7:7400"), None);
        let note = text(&named, "10.0.0.1:7400").unwrap();
        assert!(note.contains("not answered at 10.0.0.7:7400; "), "{note}");
        assert!(note.contains("uses 10.0.0.1:7400"), "{note}");
    }
}
