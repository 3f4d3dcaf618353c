//! The live view of `skep stats` on a terminal: keys, the size of the terminal, and the state of
//! the terminal after the command has ended.

use rustix::process::Signal;
use skep_testkit::cluster;
use skep_testkit::terminal::{Screen, TerminalProgram};
use skep_testkit::{Cluster, Shape};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const BACKSPACE: &str = "\x7f";
const ESCAPE: &str = "\x1b";
const DOWN: &str = "\x1b[B";
const RIGHT: &str = "\x1b[C";
const LEFT: &str = "\x1b[D";

/// Starts a command on a terminal of 80 columns and 24 lines.
fn start(cluster: &Cluster, arguments: &[&str]) -> TerminalProgram {
    start_on(cluster, arguments, 80)
}

fn start_on(cluster: &Cluster, arguments: &[&str], columns: u16) -> TerminalProgram {
    let data = cluster.data().to_str().expect("UTF-8");
    let arguments = [arguments, &["--interval", "200ms", "--cluster", data]].concat();
    TerminalProgram::start(&cluster::program(), &arguments, columns, 24)
}

/// Returns the names in the rows of the table, between the header and the line with the sum.
fn names(screen: &Screen) -> Vec<String> {
    let text = screen.text();
    let rows = text.lines().skip(3).take_while(|line| !line.starts_with("sum "));
    rows.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// Command: skep stats.
#[test]
fn live_view_keys_filter_rows_and_open_a_target() {
    let cluster = Cluster::start(Shape::small());
    for number in 0..16 {
        let path = cluster.path().join(format!("file-{number}"));
        fs::write(path, vec![1; 1 << 20]).expect("the file is written");
    }
    let mut shown = start(&cluster, &["stats", "--by", "node"]);
    shown.wait_for_texts(&["cluster  by node", "SERVICE", "BUSY", "storage-1", "sum ", "? help"]);
    shown.press("/STORAGE");
    shown.wait_for_texts(&["filter: STORAGE_", "1 of "]);
    shown.press("\r");
    shown.wait_for_texts(&["filter 'storage'", "? help"]);
    shown.wait_for_screen("one row is left", |screen| names(screen) == ["storage-1"]);
    shown.press("\r");
    shown.wait_for_texts(&["cluster > storage-1  by target", "TARGET", "2 targets"]);
    shown.press(RIGHT);
    shown.wait_for_texts(&["sorted by TARGET"]);
    assert!(shown.screen().is_marked(3) && !shown.screen().is_marked(4));
    shown.press(DOWN);
    shown.wait_for_screen("the second row is selected", |screen| screen.is_marked(4));
    let target = names(shown.screen()).pop().expect("two targets");
    shown.press("\r");
    let place = format!("cluster > storage-1 > {target}  by operation");
    shown.wait_for_texts(&[&place, "write_chunk"]);
    assert!(!shown.screen().text().contains("heartbeat"), "only requests to a target");
    shown.press(ESCAPE);
    shown.wait_for_texts(&["cluster > storage-1  by target"]);
    shown.press(BACKSPACE);
    shown.wait_for_texts(&["cluster  by node", "filter 'storage'"]);
    shown.press(BACKSPACE);
    shown.wait_for_texts(&["storage-1", "metadata-1"]);
    shown.press("q");
    assert!(shown.wait_for_end().success());
    shown.check_restored();
    cluster.stop_checked(&[]);
}

/// Command: skep target stats, skep client stats.
#[test]
fn live_view_keys_sort_rows_pause_updates_and_change_grouping() {
    let cluster = Cluster::start(Shape::small());
    fs::write(cluster.path().join("file"), vec![1; 1 << 20]).expect("the file is written");
    let mut shown = start(&cluster, &["target", "stats", "--sort", "target"]);
    shown.wait_for_texts(&["by target  every 200ms", "sorted by TARGET", "3 targets"]);
    let in_order = |screen: &Screen| names(screen).is_sorted() && names(screen).len() == 3;
    shown.wait_for_screen("the names are sorted", in_order);
    shown.press("r");
    shown.wait_for_texts(&["sorted by TARGET, reversed"]);
    shown.wait_for_screen("the names are reversed", |screen| {
        names(screen).len() == 3 && names(screen).is_sorted_by(|one, other| one >= other)
    });
    shown.press(RIGHT);
    shown.wait_for_texts(&["sorted by OPS/s"]);
    shown.press(&[LEFT, LEFT].concat());
    shown.wait_for_texts(&["sorted by load"]);
    shown.press("+ ");
    shown.wait_for_texts(&["every 500ms  paused"]);
    shown.press("-p5");
    shown.wait_for_texts(&["by user  every 200ms", "USER", "root"]);
    shown.wait_for_screen("users have no queues", |screen| !screen.text().contains("QUEUED"));
    shown.press("?");
    shown.wait_for_texts(&["Keys", "reverse the order"]);
    shown.press("x");
    shown.wait_for_texts(&["by user"]);
    // On a narrow terminal, the view omits the least important columns. On a terminal with few
    // lines, the view omits rows.
    shown.press("3");
    shown.resize(40, 9);
    shown.wait_for_screen("the screen has the new size", |screen| {
        let text = screen.text();
        let has = |word: &str| text.contains(word);
        screen.fits() && has("OPS/s") && has("sum ") && !has("BUSY") && !has("P99")
    });
    shown.wait_for_screen("four rows are left", |screen| names(screen).len() == 4);
    drop(shown);
    let mut clients = start(&cluster, &["client", "stats", "--filter", "no-such-client"]);
    clients.wait_for_texts(&["by client", "filter 'no-such-client'", "matches the filter"]);
    clients.press(ESCAPE);
    clients.wait_for_screen("the filter is removed", |screen| {
        screen.text().contains("sum ") && !screen.text().contains("filter '")
    });
    clients.press("q");
    assert!(clients.wait_for_end().success());
}

/// Command: skep stats.
#[test]
fn signals_end_the_live_view_with_a_restored_terminal() {
    let cluster = Cluster::start(Shape::small());
    for (signal, key) in [
        (Signal::INT, Some("\x03")),
        (Signal::TERM, None),
        (Signal::HUP, None),
        (Signal::INT, None),
    ] {
        let mut shown = start(&cluster, &["stats", "--node", "storage-1"]);
        shown.wait_for_texts(&["cluster > storage-1  by target", "2 targets"]);
        assert!(shown.screen().is_alternate() && shown.screen().is_cursor_hidden());
        match key {
            Some(key) => shown.press(key),
            None => shown.signal(signal),
        }
        assert_eq!(shown.wait_for_end().signal(), Some(signal.as_raw()), "{signal:?} {key:?}");
        shown.check_restored();
    }
}

/// Regression test: a shell without job control starts its background commands with SIGINT ignored.
/// In such a command, Ctrl-C closed the view, but the exit code was the code of the key `q`.
///
/// Command: skep stats.
#[test]
fn ctrl_c_ends_a_live_view_started_with_sigint_ignored() {
    let cluster = Cluster::start(Shape::small());
    let (program, data) = (cluster::program(), cluster.data().to_str().expect("UTF-8"));
    let program = program.to_str().expect("UTF-8");
    let ignoring = ["-c", "trap '' INT; exec \"$@\"", "sh", program];
    let command = ["stats", "--by", "node", "--interval", "200ms", "--cluster", data];
    let all = [&ignoring[..], &command].concat();
    let mut shown = TerminalProgram::start(Path::new("sh"), &all, 80, 24);
    shown.wait_for_texts(&["cluster  by node", "storage-1", "sum "]);
    shown.press("\x03");
    assert_eq!(shown.wait_for_end().signal(), Some(Signal::INT.as_raw()));
    shown.check_restored();
}

/// A terminal that does not follow control sequences, such as the shell of an editor, shows the
/// reports one below the other.
///
/// Command: skep stats.
#[test]
fn dumb_terminal_gets_reports_without_control_sequences() {
    let cluster = Cluster::start(Shape::small());
    let (program, data) = (cluster::program(), cluster.data().to_str().expect("UTF-8"));
    let command = ["TERM=dumb", program.to_str().expect("UTF-8"), "stats", "--by", "node"];
    let arguments = [&command[..], &["--interval", "200ms", "--cluster", data]].concat();
    let mut shown = TerminalProgram::start(Path::new("env"), &arguments, 100, 40);
    shown.wait_for_screen("two reports are on the screen", |screen| {
        screen.text().matches("\nsum ").count() >= 2
    });
    // The parent of the test may ignore SIGINT, and then Ctrl-C would not end this command.
    shown.signal(Signal::TERM);
    assert_eq!(shown.wait_for_end().signal(), Some(Signal::TERM.as_raw()));
    shown.check_restored();
}

/// Command: skep stats.
#[test]
fn suspended_live_view_restores_the_terminal_until_it_resumes() {
    let cluster = Cluster::start(Shape::small());
    let mut shown = start(&cluster, &["stats", "--by", "node"]);
    shown.wait_for_texts(&["storage-1", "sum "]);
    for _ in 0..2 {
        shown.press("\x1a");
        shown.wait_until_stopped();
        shown.check_restored();
        shown.signal(Signal::CONT);
        shown.wait_for_texts(&["storage-1", "sum ", "? help"]);
        assert!(shown.screen().is_alternate());
    }
    // After a failed request, the view continues, and names the service that did not reply.
    let stopped = cluster.processes("storage").remove(0);
    stopped.signal(Signal::STOP);
    shown.wait_for_texts(&["cannot get statistics from storage-1"]);
    stopped.signal(Signal::CONT);
    shown.wait_for_screen("the service is back", |screen| {
        !screen.text().contains("cannot get") && screen.text().contains("storage-1")
    });
    shown.press("q");
    assert!(shown.wait_for_end().success());
    shown.check_restored();
}

/// For an invalid option, the command ends with an error before it changes the terminal.
#[test]
fn wrong_options_leave_the_terminal_unchanged() {
    let cluster = Cluster::start(Shape::small());
    for (arguments, message) in [
        (&["stats", "--node", "storge-1"][..], "similar: storage-1"),
        (&["stats", "--sort", "queud"], "similar: QUEUED"),
        (&["stats", "--columns", "target,ops"], "similar: OPS/s"),
        (&["stats", "--by", "users"], "a similar value exists: 'user'"),
        (&["stats", "--filter", ""], "a part of a name"),
    ] {
        // On a terminal of this width, no message is wrapped.
        let mut shown = start_on(&cluster, arguments, 400);
        shown.wait_for_texts(&[message]);
        assert!(!shown.wait_for_end().success(), "{arguments:?}");
        assert!(!shown.screen().is_alternate(), "{arguments:?}");
        shown.check_restored();
    }
}

/// A user without the token gets the same view through a mount. Keys have an effect even if the
/// mount hangs.
///
/// Command: skep stats.
#[test]
fn live_view_of_a_mount_reacts_to_keys_while_the_mount_hangs() {
    let cluster = Cluster::start(Shape::small());
    let (mount, file) = (cluster.path().to_str().expect("UTF-8"), cluster.path().join("file"));
    let arguments = ["stats", "--by", "operation", "--interval", "200ms", "--mount", mount];
    let mut shown = TerminalProgram::start(&cluster::program(), &arguments, 80, 24);
    shown.wait_for_texts(&["cluster  by operation", "? help"]);
    // The mount counts requests only while the command asks for its counters. So write to the file
    // before each look at the screen.
    let writes = |screen: &Screen, word: &str| {
        fs::write(&file, vec![1; 1 << 20]).expect("the file is written");
        screen.text().contains(word)
    };
    shown.wait_for_screen("the requests are counted", |screen| writes(screen, "write_chunk"));
    shown.press("5");
    shown.wait_for_texts(&["cluster  by user"]);
    shown.wait_for_screen("the user is counted", |screen| writes(screen, "\nroot "));
    shown.press("1");
    shown.wait_for_screen("the service is counted", |screen| writes(screen, "\nstorage-1 "));
    let hung = cluster.processes("mount").remove(0);
    hung.signal(Signal::STOP);
    shown.wait_for_texts(&["no reply from the mount"]);
    shown.press("b");
    shown.wait_for_texts(&["cluster  by target"]);
    shown.press("q");
    shown.wait_for_screen("the view is closed", |screen| !screen.is_alternate());
    shown.check_restored();
    // The program cannot exit until the suspended mount replies to the request that this mount has
    // received.
    hung.signal(Signal::CONT);
    assert!(shown.wait_for_end().success());
}
