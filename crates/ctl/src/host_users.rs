//! The users and groups of this host, from its files and from its name services, such as LDAP or
//! SSSD.
//!
//! A statically linked program cannot load the name services. The program `getent` asks these
//! services.

use skep_monitor::names::{names_in, names_of_lines};
use skep_types::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Time limit for an answer of the name services in seconds. If the name services do not answer in
/// time, this process sends no further query to the name services.
const PATIENCE_S: &str = "2";
/// Maximum number of names or ids in one question.
const MAX_KEYS: usize = 256;

/// A database with names of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Database {
    Users,
    Groups,
}

impl Database {
    /// Returns the name of the database for `getent`.
    fn word(self) -> &'static str {
        match self {
            Self::Users => "passwd",
            Self::Groups => "group",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Users => "/etc/passwd",
            Self::Groups => "/etc/group",
        }
    }
}

/// The answers of the name services in this process.
#[derive(Debug)]
struct Answers {
    /// The names by id. An empty name means that the name services have no name for the id.
    names: BTreeMap<(Database, String), String>,
    /// Whether the name services did not answer in time.
    are_silent: bool,
}

/// The lock protects the answers. No thread that holds this lock waits for another lock.
static ANSWERS: Mutex<Answers> = Mutex::new(Answers { names: BTreeMap::new(), are_silent: false });

/// Returns the names of the users or groups with these ids, by id. A text that is not a number has
/// no name.
pub(crate) fn names_of<'a>(
    database: Database,
    ids: impl Iterator<Item = &'a str>,
) -> HashMap<String, String> {
    let local = names_in(database.file());
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut found, mut unknown) = (HashMap::new(), Vec::new());
    for id in ids.filter(|id| is_id(id)) {
        let name = local.get(id).or_else(|| answers.names.get(&(database, id.to_owned())));
        match name {
            Some(name) => drop(found.insert(id.to_owned(), name.clone())),
            None => unknown.push(id),
        }
    }
    unknown.truncate(MAX_KEYS);
    let answer = answers.ask(database, &unknown);
    for id in unknown {
        let name = answer.get(id).cloned().unwrap_or_default();
        answers.names.insert((database, id.to_owned()), name.clone());
        found.insert(id.to_owned(), name);
    }
    found.retain(|_, name| !name.is_empty());
    found
}

/// Returns the id of a user. `name` is the user's name on this host, or the id as text.
///
/// # Errors
/// `InvalidArgument` if this host has no such user.
pub(crate) fn user_named(name: &str) -> Result<u32> {
    let mut names = names_in(Database::Users.file());
    let is_option = name.starts_with('-');
    if !is_id(name) && !is_option && !names.values().any(|it| it == name) {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        // The name services may also find a user for another form of the name, such as upper case.
        let found = answers.ask(Database::Users, &[name]).into_keys();
        names.extend(found.map(|id| (id, name.to_owned())));
    }
    id_of_user(name, &names)
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the id of a user. `names` contains the names of users by their ids.
fn id_of_user(name: &str, names: &HashMap<String, String>) -> Result<u32> {
    let named = names.iter().find(|(_, it)| *it == name).map(|(id, _)| id.as_str());
    named.unwrap_or(name).parse().map_err(|_| {
        let what = format!(
            "cannot find the user '{name}': this host does not know the name; use the user id, as \
             `id -u {name}` prints it on a host that knows the user"
        );
        Error::new(ErrorCode::InvalidArgument, what)
    })
}

impl Answers {
    /// Asks the name services for the entries with these names or ids. Returns the names by id.
    /// Returns no names if the name services cannot be asked.
    fn ask(&mut self, database: Database, keys: &[&str]) -> HashMap<String, String> {
        if keys.is_empty() || self.are_silent {
            return HashMap::new();
        }
        let mut command = Command::new("timeout");
        // The `timeout` of BusyBox has only the short form of the option.
        command.args(["-s", "KILL", PATIENCE_S, "getent", database.word()]).args(keys);
        let Ok(output) = command.stdin(Stdio::null()).stderr(Stdio::null()).output() else {
            self.are_silent = true;
            return HashMap::new();
        };
        // The exit code 2 means that a key is unknown on this host. A command that was killed has
        // another status.
        self.are_silent = !matches!(output.status.code(), Some(0 | 2));
        names_of_lines(&String::from_utf8_lossy(&output.stdout))
    }
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
        assert_eq!(user_named("root").ok(), Some(0));
        for wrong in ["no-such-user-here", "--help", ""] {
            assert!(user_named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn user_names_are_found_in_files_and_name_services() {
        let ids = ["0", "4294967294", "other", "-h"];
        for database in [Database::Users, Database::Groups] {
            let found = names_of(database, ids.into_iter());
            assert_eq!(found.get("0").map(String::as_str), Some("root"), "{database:?}");
            assert!(!found.contains_key("other") && !found.contains_key("-h"), "{found:?}");
        }
        // This call asks `getent` even if the files have the entry.
        let mut answers = Answers { names: BTreeMap::new(), are_silent: false };
        assert_eq!(answers.ask(Database::Users, &["0"])["0"], "root");
        answers.are_silent = true;
        assert!(
            answers.ask(Database::Users, &["0"]).is_empty(),
            "the name services are not asked again"
        );
    }
}
