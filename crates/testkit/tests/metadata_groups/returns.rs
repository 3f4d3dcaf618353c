//! The return of a member that was away while the primary logged more than it keeps in memory. The
//! member gets the missing changes from the log on the primary's disk, and keeps its store.

use crate::copies::{LOGGED_BYTES, check_attributes, check_files, make_files, write_attributes};
use crate::pair::Pair;
use skep_testkit::{PATIENCE, files, schema, wait_for};

/// Number of files that programs create while the member is away.
const FILES: usize = if cfg!(debug_assertions) { 4_000 } else { 50_000 };

/// Returns the number of KiB in the line that the primary logs when it begins to read its log.
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
    let root = pair.mount_point();
    pair.kill(backup);
    pair.wait_for_serving(1);
    make_files(&pair, FILES);
    write_attributes(&root, LOGGED_BYTES);
    // A file in the store shows whether a copy has replaced this store.
    let former = pair.store_of(backup).join("former");
    files::write(&former, "");
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
    assert!(former.exists(), "the store is not a copy");
    let logged = logged_kib(&pair, primary);
    eprintln!("the log had {logged} KiB for the member; the status showed up to {missing} bytes");
    assert!(logged >= LOGGED_BYTES >> 10, "{logged} KiB");
    assert!(missing > 0, "the status shows what the member lacks");
    assert!(listed > 0, "the list of groups shows what the member lacks");

    pair.kill(primary);
    pair.wait_for_primary(backup);
    check_files(&pair, FILES);
    check_attributes(&root);
    pair.start_service("metadata", primary);
    pair.wait_for_serving(2);
}
