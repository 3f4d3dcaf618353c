//! The users of this host, as arguments of commands name them.

use skep_monitor::names::names_in;
use skep_types::{Error, ErrorCode, Result};
use std::collections::HashMap;

/// Returns the id of a user. `name` is the user's name on this host, or the id as text.
///
/// # Errors
/// `InvalidArgument` if this host has no such user.
pub(crate) fn user_named(name: &str) -> Result<u32> {
    id_of_user(name, &names_in("/etc/passwd"))
}

/// Returns the id of a user. `names` contains the names of this host's users by their ids.
fn id_of_user(name: &str, names: &HashMap<String, String>) -> Result<u32> {
    let named = names.iter().find(|(_, it)| *it == name).map(|(id, _)| id.as_str());
    named.unwrap_or(name).parse().map_err(|_| {
        let what = format!(
            "cannot find the user '{name}': /etc/passwd of this host has no such name; use the user \
             id, as `id -u {name}` prints it on a host that knows the user"
        );
        Error::new(ErrorCode::InvalidArgument, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_option_accepts_a_local_name_or_a_user_id() {
        let names = HashMap::from([("1000".to_owned(), "ada".to_owned())]);
        assert_eq!(id_of_user("ada", &names).ok(), Some(1000));
        assert_eq!(id_of_user("2000", &names).ok(), Some(2000));
        let refused = id_of_user("eve", &names).unwrap_err();
        assert!(refused.context().contains("id -u eve"), "{refused}");
    }
}
