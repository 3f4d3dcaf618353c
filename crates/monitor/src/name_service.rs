//! Finds the names of users and groups that are not in the files of the host. `getent` asks the
//! name services of the host, such as LDAP, SSSD or Active Directory.
//!
//! The monitor asks only for ids whose names the page or another reader shows
//! ([`crate::names::Names`]), and each id at most once an hour. A name service that does not answer
//! delays nothing else.

use crate::child_program::run_limited;
use crate::frame::Dimension;
use crate::limits::SEND_PATIENCE;
use crate::live::MonitorState;
use crate::names::names_of_lines;
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the monitor looks for ids without a name.
const EVERY: Duration = Duration::from_secs(5);
/// Time after which the monitor asks for the same id again.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);
/// Maximum number of ids in one question.
const MAX_IDS: usize = 64;
/// Maximum number of ids for which the monitor remembers that it has asked. Ids beyond this number
/// stay without a name for an hour.
const MAX_ASKED: usize = 10_000;
/// Maximum length of an answer. A line about a group contains all its members.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// The dimensions whose ids have names on the host, each with the database of `getent`.
const DATABASES: [(Dimension, &str); 2] =
    [(Dimension::User, "passwd"), (Dimension::Group, "group")];

/// Searches for names until this future is dropped.
pub(crate) async fn follow(state: Rc<RefCell<MonitorState>>) {
    let mut asked: BTreeMap<(Dimension, String), Duration> = BTreeMap::new();
    // Retry: the monitor looks for ids without a name every five seconds, without limit. The
    // monitor asks for the same id only once an hour.
    loop {
        skep_env::sleep(EVERY).await;
        let now = skep_env::now();
        asked.retain(|_, at| now.saturating_sub(*at) < AGAIN_AFTER);
        for (dimension, database) in DATABASES {
            let mut ids = state.borrow().names.take_unnamed(dimension);
            ids.retain(|id| !asked.contains_key(&(dimension, id.clone())));
            ids.truncate(MAX_IDS.min(MAX_ASKED.saturating_sub(asked.len())));
            if ids.is_empty() {
                continue;
            }
            if let Some(text) = getent(database, &ids).await {
                state.borrow_mut().names.add(dimension, names_of_lines(&text));
            }
            asked.extend(ids.into_iter().map(|id| ((dimension, id), now)));
        }
    }
}

/// Returns the lines of a database with these ids. `None` means that `getent` cannot be run, or has
/// not ended in time. Ids without a name on the host have no line.
async fn getent(database: &str, ids: &[String]) -> Option<String> {
    // A file in memory has space for any answer, so the program never waits for the monitor.
    let mut output = File::from(memfd_create("skep-names", MemfdFlags::CLOEXEC).ok()?);
    let mut command = Command::new("getent");
    command.arg(database).args(ids).stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(output.try_clone().ok()?);
    // The status is not checked, because `getent` also reports an error if only one of the ids has
    // no name.
    run_limited(&mut command, SEND_PATIENCE).await.ok()?;
    output.rewind().ok()?;
    let mut answer = Vec::new();
    output.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_names_of_the_ids_that_the_host_knows() {
        let ids = ["0".to_owned(), "4294967294".to_owned()];
        let (users, groups) = skep_env::block_on(async move {
            (getent("passwd", &ids).await, getent("group", &ids).await)
        })
        .unwrap();
        for answer in [users, groups] {
            assert_eq!(names_of_lines(&answer.unwrap())["0"], "root");
        }
    }
}
