//! A Python program that locks files on command.

use skep_testkit::PATIENCE;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const PROGRAM: &str = include_str!("program.py");

/// A running program with at most one command in progress.
pub(crate) struct Program {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    /// Starts a program that opens the file `path`. In commands, the key `f` stands for this file.
    pub(crate) fn on(path: &Path) -> Self {
        let mut program = Self::start();
        program.open("f", path, "write");
        program
    }

    pub(crate) fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let commands = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
        });
        Self { child, commands, answers }
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command without waiting for the reply.
    pub(crate) fn begin(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the program runs");
    }

    /// Waits for the reply to the last command, and returns this reply.
    #[track_caller]
    pub(crate) fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("the program answers")
    }

    /// Returns the reply to the last command, or `None` if the reply has not arrived yet.
    pub(crate) fn try_answer(&self) -> Option<String> {
        self.answers.try_recv().ok()
    }

    /// Returns true if the last command still has no reply after 300 ms. Panics if the reply has
    /// arrived.
    #[track_caller]
    pub(crate) fn is_waiting(&self) -> bool {
        match self.answers.recv_timeout(Duration::from_millis(300)) {
            Err(RecvTimeoutError::Timeout) => true,
            Err(error) => panic!("the program ended: {error}"),
            Ok(answer) => panic!("the program must wait, but it answered {answer}"),
        }
    }

    /// Runs a command, and returns its reply.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, command: &str) {
        assert_eq!(self.run(command), "ok", "{command}");
    }

    #[track_caller]
    pub(crate) fn open(&mut self, key: &str, path: &Path, mode: &str) {
        self.ok(&format!("open {key} {} {mode}", path.display()));
    }

    /// Tries to lock all bytes of the file, and returns the reply.
    #[track_caller]
    pub(crate) fn try_lock(&mut self, kind: &str, mode: &str) -> String {
        self.run(&format!("lock f {kind} {mode} 0 0 try"))
    }

    /// Unlocks all bytes of the file.
    #[track_caller]
    pub(crate) fn unlock(&mut self, kind: &str) {
        assert_eq!(self.try_lock(kind, "unlock"), "ok");
    }

    /// Requests a lock of all bytes of the file, and checks that the program waits for the lock.
    #[track_caller]
    pub(crate) fn wait(&mut self, kind: &str, mode: &str) {
        self.begin(&format!("lock f {kind} {mode} 0 0 wait"));
        assert!(self.is_waiting());
    }

    /// Kills the program with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
