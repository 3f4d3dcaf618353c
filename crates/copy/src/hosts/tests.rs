//! Tests in which shell commands replace the processes on the hosts.

use super::*;
use crate::outcome::Problem;
use std::sync::Mutex;

/// The parts of the copy that ran, each with the host on which it ran.
type Log = Mutex<Vec<(String, String)>>;

/// Returns a command that prints messages, after a line that a login shell might print.
fn prints(messages: &[Message]) -> Command {
    let lines = messages.iter().map(|it| serde_json::to_string(it).unwrap() + "\n");
    let mut command = Command::new("printf");
    command.arg("a line of the login shell\n%s").arg(lines.collect::<String>());
    command
}

fn ended(files: u64, skipped: u64) -> Message {
    Message::Ended(Outcome { files, bytes: files * 10, skipped, ..Outcome::default() })
}

/// Copies with hosts whose processes are the commands that `answer` returns. Also returns the parts
/// that ran.
fn run(
    names: &[&str],
    answer: &(dyn Fn(&str, Part) -> Command + Sync),
) -> (Result<HostsOutcome>, Vec<(String, String)>) {
    let log = Log::default();
    let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
    let command = |host: &str, part: Part| {
        log.lock().unwrap().push((host.to_owned(), part.to_string()));
        answer(host, part)
    };
    let explain = |host: &str, status: ExitStatus, errors: &str| Lost {
        problem: format!("{host} {status}: {}", errors.trim()),
        has_ended: true,
    };
    let hosts = Hosts { names: &names, command: &command, explain: &explain, line: &String::new };
    let result = copy(&hosts, &|_| ());
    let mut log = log.into_inner().unwrap();
    // The parts of a round start at the same time and are logged in any order, so sort their log
    // entries.
    let shares = log.iter().filter(|(_, part)| part.contains('/')).count();
    log[1..=shares.min(names.len())].sort();
    (result, log)
}

fn fails(text: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "echo \"$1\" >&2; exit 3", "sh", text]);
    command
}

fn log_of(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(host, part)| ((*host).to_owned(), (*part).to_owned())).collect()
}

#[test]
fn hosts_copy_their_shares_after_prepare_and_before_finish() {
    let (result, log) = run(&["a", "b", "c"], &|_, part| match part {
        Part::Share(_) => prints(&[ended(5, 2)]),
        Part::Finish => prints(&[ended(1, 25)]),
        _ => prints(&[
            Message::Progress(Progress { found: 26, large: 1, ..Progress::default() }),
            ended(0, 0),
        ]),
    });
    let expected = [("a", "prepare"), ("a", "0/3+"), ("b", "1/3+"), ("c", "2/3+"), ("a", "finish")];
    assert_eq!(log, log_of(&expected));
    let HostsOutcome { outcome, hosts } = result.unwrap();
    // The last part has skipped 25 entries. 15 of them are files that the shares have copied, so
    // only 10 count as skipped.
    assert_eq!((outcome.files, outcome.bytes, outcome.skipped), (16, 160, 10));
    assert!(hosts.iter().all(|it| (it.shares, it.files, it.bytes) == (1, 5, 50)), "{hosts:?}");
}

#[test]
fn share_of_a_lost_host_is_copied_by_another_host() {
    // The host that has run the first part fails later, while it copies a share.
    let (result, log) = run(&["a", "b"], &|host, part| match (host, part) {
        ("a", Part::Share(_)) => fails("killed"),
        _ => prints(&[ended(1, 0)]),
    });
    let expected = [("a", "prepare"), ("a", "0/2"), ("b", "1/2"), ("b", "0/2"), ("b", "finish")];
    assert_eq!(log, log_of(&expected));
    let hosts = result.unwrap().hosts;
    let problem = hosts[0].problem.as_deref();
    assert_eq!(problem, Some("a exit status: 3: killed"));
    assert_eq!((hosts[1].shares, hosts[1].problem.is_none()), (2, true));
}

#[test]
fn copy_that_loses_all_hosts_names_the_reason_of_each_loss() {
    let (result, log) = run(&["a", "b"], &|_, part| match part {
        Part::Share(_) => fails("no memory"),
        _ => prints(&[ended(1, 0)]),
    });
    let error = result.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Disconnected);
    for word in ["a: a exit status: 3: no memory", "\n  b: ", "--resume"] {
        assert!(error.context().contains(word), "{word}: {error}");
    }
    // The last part never runs.
    assert_eq!(log.len(), 3, "{log:?}");
    let (result, _) = run(&["a"], &|_, _| Command::new("/nowhere/program"));
    assert!(result.unwrap_err().context().contains("cannot run /nowhere/program"));
}

#[test]
fn error_during_prepare_ends_the_copy_with_its_error_code() {
    let (result, log) = run(&["a", "b"], &|_, _| {
        let context = "cannot copy /x: it does not exist".to_owned();
        prints(&[Message::Failed { code: ErrorCode::NotFound as u16, context }])
    });
    let error = result.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.context().contains("host a: cannot copy /x"), "{error}");
    assert_eq!(log.len(), 1, "{log:?}");
}

#[test]
fn copy_by_hosts_to_a_full_destination_skips_the_finish_part() {
    let problem = |path: &str| Problem { path: path.to_owned(), problem: "full".to_owned() };
    let (result, log) = run(&["a", "b"], &|host, part| match (host, part) {
        ("b", Part::Share(_)) => prints(&[Message::Ended(Outcome {
            is_full: true,
            has_ended_early: true,
            problem_count: 2,
            problems: vec![problem("x"), problem("y")],
            ..Outcome::default()
        })]),
        (_, Part::Share(_)) => prints(&[Message::Ended(Outcome {
            problem_count: 1,
            problems: vec![problem("x")],
            ..Outcome::default()
        })]),
        _ => prints(&[ended(0, 0)]),
    });
    let outcome = result.unwrap().outcome;
    assert!(outcome.is_full && outcome.has_ended_early);
    // Both hosts have reported the same entry, which counts once.
    assert_eq!((outcome.problem_count, outcome.problems.len()), (2, 2), "{outcome:?}");
    assert_eq!(log.len(), 3, "{log:?}");
}

#[test]
fn coordinator_sends_heartbeat_lines_until_the_process_ends() {
    // The command ends when it has read two lines. The coordinator writes the first line
    // immediately, and the second line after `HEARTBEAT`.
    let mut reads = Command::new("sh");
    let text = serde_json::to_string(&ended(7, 0)).unwrap();
    reads.args(["-c", "read one; read two; echo \"$1\"", "sh", &text]);
    let names = ["a".to_owned()];
    let command = |_: &str, _: Part| {
        let mut copy = Command::new("sh");
        copy.args(reads.get_args());
        copy
    };
    let explain =
        |_: &str, _: ExitStatus, _: &str| Lost { problem: String::new(), has_ended: true };
    let hosts = Hosts { names: &names, command: &command, explain: &explain, line: &String::new };
    let (sender, receiver) = sync_channel(1);
    let end = process(&hosts, "a", Part::Whole, &(0, sender));
    drop(receiver);
    assert!(matches!(end, End::Done(Outcome { files: 7, .. })));
}
