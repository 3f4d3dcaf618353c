//! The return of a member that was away while the primary logged more records than the primary
//! keeps in memory. The member gets the missing changes from the log on the primary's disk, and
//! keeps its store. `cargo xtask external --only return-by-log` creates many files while the member
//! is away.

use crate::copies::{LOGGED_BYTES, check_attributes, check_files, make_files, write_attributes};
use crate::pair::{Pair, after};
use skep_testkit::{PATIENCE, files, schema, wait_for};
use std::time::{Duration, Instant};

/// Number of files that programs create while the member is away, unless `SKEP_LOGGED_FILES` sets
/// it. Without other changes, the primary can keep the records of almost 40,000 new files in
/// memory.
const FILES: usize = if cfg!(debug_assertions) { 4_000 } else { 50_000 };
/// Minimum time for which the member is away if `SKEP_LOGGED_FILES` is set.
const AWAY: Duration = Duration::from_secs(10);
/// Minimum length in bytes of the log records of a new file. The inode of the file alone is longer
/// than this length.
const LOGGED_BYTES_OF_FILE: usize = 64;

/// The changes that programs make while the member is away.
struct Changes {
    /// Number of files that the programs create.
    files: usize,
    /// Bytes of attributes that the programs write.
    attributes: usize,
    /// Minimum length of the log records of all changes in bytes.
    logged: usize,
    /// Minimum time for which the member is away.
    away: Duration,
}

impl Changes {
    /// Returns the changes of this run. In CI, attributes make the log long, because the creation
    /// of as many files as in the external suite would take too long.
    fn of_run() -> Self {
        match std::env::var("SKEP_LOGGED_FILES") {
            Ok(files) => {
                let files: usize = files.parse().expect("a number");
                Self { files, attributes: 0, logged: files * LOGGED_BYTES_OF_FILE, away: AWAY }
            }
            Err(_) => Self {
                files: FILES,
                attributes: LOGGED_BYTES,
                logged: LOGGED_BYTES,
                away: Duration::ZERO,
            },
        }
    }

    fn make(&self, pair: &Pair) {
        let began = Instant::now();
        make_files(pair, self.files);
        if self.attributes > 0 {
            write_attributes(&pair.mount_point(), self.attributes);
        }
        after(self.away.saturating_sub(began.elapsed()));
        eprintln!("the member was away for {:?}", began.elapsed());
    }

    fn check(&self, pair: &Pair) {
        check_files(pair, self.files);
        if self.attributes > 0 {
            check_attributes(&pair.mount_point());
        }
    }
}

/// Returns the number of KiB in the line that the primary logs at the beginning of a read of its
/// log.
fn logged_kib(pair: &Pair, primary: &str) -> usize {
    let log = files::read_to_string(pair.scratch.join(&format!("{primary}.log")));
    let words = "gets the changes that it lacks from the log on disk: ";
    let (_, after) = log.split_once(words).expect("the line of the primary");
    let number = after.split_once(" KiB").expect("a number of KiB").0;
    number.parse().expect("a number")
}

#[test]
fn restarted_member_catches_up_by_the_log_without_a_copy() {
    let mut pair = Pair::begin();
    let (primary, backup) = pair.roles();
    let changes = Changes::of_run();
    pair.kill(backup);
    pair.wait_for_serving(1);
    changes.make(&pair);
    // A file in the store shows whether a copy has replaced this store.
    let former = pair.store_of(backup).join("former");
    files::write(&former, "");
    let began = Instant::now();
    pair.start_service("metadata", backup);
    let (mut missing, mut listed) = (0, 0);
    wait_for("the member serves", PATIENCE, || {
        let status = pair.json(&["group", "status"]);
        schema::check("group-status", &status);
        for member in status[0]["members"].as_array()? {
            assert!(member["copy"].is_null(), "{member}");
            missing = missing.max(member["missing_bytes"].as_u64().unwrap_or(0));
        }
        for member in pair.group()["members"].as_array()? {
            listed = listed.max(member["lag"]["records"].as_u64().unwrap_or(0));
        }
        (pair.serving() == 2).then_some(())
    });
    let took = began.elapsed();
    assert!(former.exists(), "the store is not a copy");
    let logged = logged_kib(&pair, primary);
    eprintln!(
        "the log had {logged} KiB for the member, which served {took:?} after its start; the \
         status showed up to {missing} bytes"
    );
    assert!(logged >= changes.logged >> 10, "{logged} KiB");
    assert!(missing > 0, "the status shows what the member lacks");
    assert!(listed > 0, "the list of groups shows what the member lacks");

    pair.kill(primary);
    pair.wait_for_primary(backup);
    changes.check(&pair);
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
}
