//! Tests of management's log and snapshots after clean shutdowns, crashes and damage.

use super::*;
use skep_cluster::command::{ClientRegistration, Command};
use skep_testkit::thin::ThinDisk;

const CLUSTER: ClusterId = ClusterId::new([9; 16]);

fn client(number: usize) -> Proposal {
    let host = format!("c{number}");
    Command::RegisterClient(ClientRegistration { host, ..Default::default() }).into()
}

/// Creates a command log with `commands` commands, and returns the state after the last command.
fn command_log(commands: usize) -> (tempfile::TempDir, ClusterState) {
    let directory = tempfile::tempdir().unwrap();
    CommandLog::create(directory.path(), &ClusterState::new(CLUSTER)).unwrap();
    let (mut command_log, mut state) = CommandLog::open(directory.path(), CLUSTER).unwrap();
    for number in 0..commands {
        command_log.append(&client(number)).unwrap();
        state.execute(&client(number)).unwrap();
        command_log.fold(&state).unwrap();
    }
    (directory, state)
}

fn reopen(directory: &tempfile::TempDir) -> Result<ClusterState> {
    CommandLog::open(directory.path(), CLUSTER).map(|(_, state)| state)
}

#[test]
fn restart_restores_commands_with_and_without_snapshots() {
    for commands in [0, 1, 5, COMMANDS_PER_SNAPSHOT - 1, COMMANDS_PER_SNAPSHOT + 3] {
        let (directory, state) = command_log(commands);
        assert_eq!(reopen(&directory).unwrap(), state, "{commands} commands");
    }
}

#[test]
fn commands_in_the_snapshot_are_not_applied_again() {
    let (directory, state) = command_log(5);
    // The state of the files after a crash between the new snapshot and the new log.
    write_snapshot(directory.path(), &state, Lsn::new(5)).unwrap();
    let (mut command_log, mut reopened) = CommandLog::open(directory.path(), CLUSTER).unwrap();
    assert_eq!(reopened, state);
    command_log.append(&client(5)).unwrap();
    reopened.execute(&client(5)).unwrap();
    assert_eq!(reopen(&directory).unwrap(), reopened);
}

#[test]
fn torn_tail_is_truncated_and_the_log_continues() {
    let (directory, _) = command_log(3);
    let path = directory.path().join(LOG_FILE);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (mut command_log, mut state) = CommandLog::open(directory.path(), CLUSTER).unwrap();
    assert_eq!(state.map().nodes.len(), 2);
    let record = (whole.len() - LOG_HEAD_BYTES) / 3;
    let left = std::fs::metadata(&path).unwrap().len() as usize;
    assert_eq!(left, LOG_HEAD_BYTES + 2 * record);
    command_log.append(&client(7)).unwrap();
    state.execute(&client(7)).unwrap();
    drop(command_log);
    assert_eq!(reopen(&directory).unwrap(), state);
}

#[test]
fn damage_before_the_tail_names_file_and_offset() {
    let (directory, _) = command_log(3);
    let path = directory.path().join(LOG_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[LOG_HEAD_BYTES + 40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let error = reopen(&directory).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.context().contains("log") && error.context().contains("at byte 0"), "{error}");
    bytes[3] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(reopen(&directory).unwrap_err().code(), ErrorCode::Corrupt);
}

#[test]
fn foreign_and_missing_files_are_refused() {
    let (directory, _) = command_log(1);
    let other = CommandLog::open(directory.path(), ClusterId::new([1; 16])).unwrap_err();
    assert!(other.context().contains("belongs to cluster"), "{other}");
    std::fs::remove_file(directory.path().join(LOG_FILE)).unwrap();
    let missing = reopen(&directory).unwrap_err();
    assert!(missing.context().contains("put back a copy"), "{missing}");
}

/// Before the fix, management accepted no change until it was restarted.
#[test]
fn commands_are_accepted_again_when_space_is_free() {
    let parent = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        let status =
            std::process::Command::new("mount").args(arguments).arg(parent.path()).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=256k", "log"]) {
        eprintln!("skipped: mounting a file system needs root");
        return;
    }
    /// Unmounts the file system, even if the test fails.
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(parent.path().to_owned());
    let directory = parent.path().join("management");
    std::fs::create_dir(&directory).unwrap();
    let mut state = ClusterState::new(CLUSTER);
    CommandLog::create(&directory, &state).unwrap();
    let (mut command_log, _) = CommandLog::open(&directory, CLUSTER).unwrap();
    let filler = parent.path().join("filler");
    std::fs::write(&filler, vec![0; 128 << 10]).unwrap();
    let long = |number: usize| {
        let mount_point = "x".repeat(900);
        let host = format!("c{number}");
        Command::RegisterClient(ClientRegistration { host, mount_point, ..Default::default() })
            .into()
    };
    let mut number = 0;
    let error = loop {
        assert!(number < 1000, "the disk is small");
        match command_log.append(&long(number)) {
            Ok(()) => state.execute(&long(number)).unwrap(),
            Err(error) => break error,
        };
        number += 1;
    };
    assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
    assert_eq!(command_log.append(&long(number)).unwrap_err().code(), ErrorCode::NoSpace);
    std::fs::remove_file(&filler).unwrap();
    command_log.append(&client(number)).unwrap();
    state.execute(&client(number)).unwrap();
    drop(command_log);
    assert_eq!(CommandLog::open(&directory, CLUSTER).unwrap().1, state);
}

/// Before the fix, later commands went to a file without a name.
#[test]
fn a_log_that_cannot_be_replaced_accepts_no_commands() {
    let (directory, mut state) = command_log(COMMANDS_PER_SNAPSHOT - 1);
    let (mut command_log, _) = CommandLog::open(directory.path(), CLUSTER).unwrap();
    // A directory cannot be replaced by a file.
    let path = directory.path().join(LOG_FILE);
    let kept = directory.path().join("kept");
    std::fs::rename(&path, &kept).unwrap();
    std::fs::create_dir_all(path.join("x")).unwrap();
    let last = client(COMMANDS_PER_SNAPSHOT);
    command_log.append(&last).unwrap();
    state.execute(&last).unwrap();
    command_log.fold(&state).unwrap_err();
    assert_eq!(command_log.append(&client(0)).unwrap_err().code(), ErrorCode::DeviceFailed);
}

/// Semantics 3.1.
#[test]
fn command_of_a_failed_sync_is_on_the_device_after_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(thin) = ThinDisk::new(scratch.path(), 24) else { return };
    let directory = thin.path();
    let mut state = ClusterState::new(CLUSTER);
    CommandLog::create(&directory, &state).unwrap();
    let (mut command_log, _) = CommandLog::open(&directory, CLUSTER).unwrap();
    let near_end_of_block = 4096 - 200;
    for number in 0.. {
        if command_log.end > near_end_of_block {
            break;
        }
        command_log.append(&client(number)).unwrap();
        state.execute(&client(number)).unwrap();
    }
    assert!(command_log.end < 4096);
    thin.trim();
    let stranger = std::fs::File::create(thin.path().join("stranger")).unwrap();
    let fill = |number: u64| {
        stranger.write_all_at(&[7; 4096], number << 12)?;
        stranger.sync_all()
    };
    assert!((0..10_000).any(|number| fill(number).is_err()), "the device is full");
    // The process ends between the failed sync of a command and its next step. The command needs a
    // new block, for which the device has no space.
    let registration = ClientRegistration { mount_point: "m".repeat(900), ..Default::default() };
    let long = Proposal::from(Command::RegisterClient(registration));
    let number = next(command_log.last);
    let record =
        encode_record(owner(CLUSTER), Epoch::default(), number, command_log.last, &long.to_bytes())
            .unwrap();
    command_log.log.write_all_at(&record, command_log.end).unwrap();
    assert!(command_log.log.sync_data().is_err(), "the device is full");
    drop(command_log);
    thin.resize(200);
    state.execute(&long).unwrap();
    assert_eq!(CommandLog::open(&directory, CLUSTER).unwrap().1, state);
    ThinDisk::drop_page_cache();
    assert_eq!(CommandLog::open(&directory, CLUSTER).unwrap().1, state);
}

#[test]
fn a_copy_of_a_running_log_has_all_commands() {
    for commands in [0, 5, COMMANDS_PER_SNAPSHOT + 3] {
        let (directory, mut state) = command_log(commands);
        let (read, last) = read(directory.path(), CLUSTER).unwrap();
        assert_eq!((&read, last.raw()), (&state, commands as u64));
        let copy = tempfile::tempdir().unwrap();
        CommandLog::create_at(copy.path(), &read, last).unwrap();
        // The copy goes on after its last command, also across a restart.
        let (mut command_log, _) = CommandLog::open(copy.path(), CLUSTER).unwrap();
        command_log.append(&client(commands)).unwrap();
        state.execute(&client(commands)).unwrap();
        assert_eq!(reopen(&copy).unwrap(), state);
    }
}
