//! SQLite: several processes transfer amounts between accounts. The transfers must not change the
//! total of all accounts, and the database must contain every committed transfer.

use crate::{Places, text};
use skep_testkit::program::{finish, run};
use skep_testkit::wait_for;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/applications/sqlite.py");
/// Time limit of a process. The limit is longer than in other tests, because each commit of the
/// database waits for stable storage.
const PATIENCE: Duration = Duration::from_secs(240);

fn sqlite(arguments: &[&str]) {
    run("python3", [&[PROGRAM], arguments].concat());
}

fn base(directory: &Path) -> String {
    text(&directory.join("base.db")).to_owned()
}

/// Starts one writer for each pair of name and directory in `of`. All writers run at the same time.
fn writers(count: &str, of: &[(&str, &Path)]) {
    std::thread::scope(|scope| {
        for (name, directory) in of {
            scope.spawn(move || sqlite(&["run", &base(directory), name, count]));
        }
    });
}

/// With a rollback journal, SQLite on several hosts requires only correct file locks and a correct
/// `fsync`.
pub(crate) fn sqlite_writers_on_both_mounts_lose_no_transfer(places: &Places) {
    sqlite(&["make", &base(&places.one), "delete"]);
    writers("60", &[("a", &places.one), ("b", &places.other), ("c", &places.one)]);
    for directory in [&places.one, &places.other] {
        sqlite(&["check", &base(directory), "a:60", "b:60", "c:60"]);
    }
}

/// The killed writer leaves a partly written database with a journal. The next process that opens
/// the database on any mount gets the lock, and rolls back the transaction.
pub(crate) fn sqlite_rolls_back_the_journal_of_a_killed_writer(places: &Places) {
    sqlite(&["make", &base(&places.one), "delete"]);
    writers("5", &[("a", &places.other)]);
    let mut command = Command::new("python3");
    command.args([PROGRAM, "die", &base(&places.one)]).stdin(Stdio::piped());
    let mut writer = command.stdout(Stdio::piped()).spawn().expect("python3 is installed");
    let mut printed = String::new();
    let stdout = writer.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut printed)
        .expect("the program prints a line when it begins");
    assert_eq!(printed, "begun\n");
    writer.kill().expect("our own child");
    writer.wait().expect("our own child");
    let journal = places.other.join("base.db-journal");
    wait_for("the journal of the killed writer", PATIENCE, || {
        journal.metadata().is_ok_and(|it| it.len() > 512).then_some(())
    });
    sqlite(&["check", &base(&places.other), "a:5"]);
    assert!(!journal.exists(), "rolled back");
    writers("5", &[("b", &places.one)]);
    sqlite(&["check", &base(&places.one), "a:5", "b:5"]);
}

/// In WAL mode, the processes of SQLite share memory through a mapped file. So all these processes
/// must use the same mount, as SQLite requires on network file systems. After the last close of the
/// database, the other mount must show all data.
pub(crate) fn sqlite_wal_of_one_mount_is_complete_on_the_other_mount(places: &Places) {
    sqlite(&["make", &base(&places.one), "wal"]);
    writers("100", &[("a", &places.one), ("b", &places.one), ("c", &places.one)]);
    sqlite(&["check", &base(&places.one), "a:100", "b:100", "c:100"]);
    writers("20", &[("d", &places.other)]);
    sqlite(&["check", &base(&places.one), "a:100", "b:100", "c:100", "d:20"]);
    // Readers on the same mount can continue during a write.
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| writers("100", &[("e", &places.one)]));
        let total = "select sum(sum) from account;";
        while !writer.is_finished() {
            let mut reader = Command::new("python3");
            let script = format!(
                "import sqlite3; print(sqlite3.connect('{}', timeout=60)\
                 .execute('{total}').fetchone()[0])",
                base(&places.one)
            );
            let printed = finish(reader.args(["-c", &script]), PATIENCE).expect_success();
            assert_eq!(printed, "200000\n");
        }
    });
    sqlite(&["check", &base(&places.other), "a:100", "b:100", "c:100", "d:20", "e:100"]);
}
