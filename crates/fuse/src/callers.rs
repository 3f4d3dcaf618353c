//! Finds out from `/proc` whether the thread that sent a request is being killed.
//!
//! # Threads that have ended
//! A thread that waits for the reply to its own request cannot end before the reply. Only an
//! asynchronous request can outlive its thread. An asynchronous request is read-ahead of the
//! kernel, or a program has submitted the request with io_uring or `io_submit`. The program may
//! still wait for the reply, so the worker examines the state of the *process* instead. The worker
//! notes the process at the first check of the request. If the thread had already ended before this
//! check, the worker cannot find the process. The request then continues if a program may wait for
//! its reply.

/// The state of a thread or process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The thread exists. `is_killed` means that a signal that will end its process is pending.
    Exists {
        process: u32,
        is_killed: bool,
    },
    /// The thread exists, but this mount may not read its state (`hidepid=2`).
    Hidden,
    Ended,
}

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// Zero means a thread of another container. Its state cannot be read, so it counts as alive.
    thread: u32,
    process: Option<u32>,
}

impl Sender {
    /// Returns the sender of a request that the thread `thread` has sent. Looks up the process of
    /// this thread.
    pub(crate) fn of(thread: u32) -> Self {
        let process = match state(thread) {
            State::Exists { process, .. } => Some(process),
            State::Hidden | State::Ended => None,
        };
        Self { thread, process }
    }

    /// Returns whether no program waits for the reply: the sender is being killed or has ended.
    /// `may_be_asynchronous` means that a program may wait for the reply although the thread has
    /// ended.
    pub(crate) fn is_being_killed(self, may_be_asynchronous: bool) -> bool {
        let is_of_another = |process| self.process.is_some_and(|noted| noted != process);
        match state(self.thread) {
            // The sending thread has ended, and the kernel has given its id to a thread of another
            // process. So check the sender's process instead.
            State::Exists { process, .. } if is_of_another(process) => self.has_ended_process(),
            State::Exists { is_killed, .. } => is_killed,
            State::Hidden => false,
            State::Ended if self.process.is_none() => !may_be_asynchronous,
            State::Ended => self.has_ended_process(),
        }
    }

    /// Returns whether the process that [`Self::of`] found is being killed or has ended.
    fn has_ended_process(self) -> bool {
        match self.process.map(state) {
            Some(State::Exists { is_killed, .. }) => is_killed,
            Some(State::Ended) => true,
            Some(State::Hidden) | None => false,
        }
    }
}

fn state(thread: u32) -> State {
    if thread == 0 {
        return State::Hidden;
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    let shown = status.ok().and_then(|status| Some((process_of(&status)?, status)));
    match shown {
        Some((process, status)) => State::Exists { process, is_killed: has_fatal_signal(&status) },
        None if exists(thread) => State::Hidden,
        None => State::Ended,
    }
}

/// Whether a thread or process exists, even if `/proc` hides it from this user.
fn exists(thread: u32) -> bool {
    let Ok(thread) = i32::try_from(thread) else { return false };
    // SAFETY: the call takes no pointers. Signal 0 is never delivered, so the call only checks that
    // the thread exists.
    let result = unsafe { libc::kill(thread, 0) };
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

fn process_of(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Whether a signal that will end the process is pending: SIGKILL, or one of SIGHUP, SIGINT,
/// SIGQUIT and SIGTERM that the process neither handles nor ignores nor blocks.
///
/// The kernel turns such a signal into SIGKILL, unless another signal is already pending for the
/// thread. An example is the SIGINT of Ctrl-C in a program that handles SIGINT. Even then the
/// process ends when its call returns, so the program never sees the `EINTR` of the call. A
/// debugger may discard the signal, so for a traced process only SIGKILL counts.
fn has_fatal_signal(status: &str) -> bool {
    const fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    const REQUESTS: u64 =
        bit(libc::SIGHUP) | bit(libc::SIGINT) | bit(libc::SIGQUIT) | bit(libc::SIGTERM);
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.map(str::trim)
    };
    // An unreadable mask of pending signals counts as empty, and any other unreadable mask counts
    // as full.
    let mask = |name: &str, otherwise| {
        field(name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(otherwise)
    };
    let pending = mask("SigPnd:", 0) | mask("ShdPnd:", 0);
    let kept = ["SigBlk:", "SigIgn:", "SigCgt:"].into_iter().map(|name| mask(name, u64::MAX));
    let ending = match field("TracerPid:") {
        Some("0") => REQUESTS & !kept.fold(0, |all, one| all | one),
        _ => 0,
    };
    pending & (bit(libc::SIGKILL) | ending) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn process_counts_as_killed_if_sigkill_is_pending() {
        assert!(has_fatal_signal("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0\n"));
        assert!(has_fatal_signal("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000102\n"));
        assert!(!has_fatal_signal("SigPnd:\t0000000000000002\nShdPnd:\t0000000000004000\n"));
        assert!(!has_fatal_signal(""));
    }

    /// docs/semantics.md 4.4.
    #[test]
    fn unhandled_hup_int_quit_or_term_counts_as_a_kill() {
        const HUP: u64 = 1;
        const INT: u64 = 1 << 1;
        const QUIT: u64 = 1 << 2;
        const TERM: u64 = 1 << 14;
        let is_fatal = |pending: u64, blocked: u64, ignored: u64, caught: u64, tracer: u32| {
            has_fatal_signal(&format!(
                "TracerPid:\t{tracer}\nSigPnd:\t0\nShdPnd:\t{pending:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            ))
        };
        for signal in [HUP, INT, QUIT, TERM] {
            assert!(is_fatal(signal, 0, 0, 0, 0), "{signal:x}");
            assert!(!is_fatal(signal, signal, 0, 0, 0), "{signal:x} is blocked");
            assert!(!is_fatal(signal, 0, signal, 0, 0), "{signal:x} is ignored");
            assert!(!is_fatal(signal, 0, 0, signal, 0), "{signal:x} is handled");
        }
        assert!(is_fatal(INT | TERM, 0, 0, INT, 0), "dd handles SIGINT only");
        assert!(!is_fatal(TERM, 0, 0, 0, 7), "a debugger may discard the signal");
        assert!(!is_fatal(1 << 9, 0, 0, 0, 0), "SIGUSR1 seldom asks a program to end");
    }

    #[test]
    fn a_process_that_has_ended_counts_as_killed() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let sender = Sender::of(child.id());
        assert!(!sender.is_being_killed(true));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(sender.is_being_killed(true));
        assert!(sender.is_being_killed(false));
        assert!(!Sender::of(std::process::id()).is_being_killed(false));
    }

    /// docs/semantics.md 4.1: a program may submit asynchronous I/O on a thread that then ends.
    #[test]
    fn a_thread_that_has_ended_is_not_a_killed_process() {
        let (send, receive) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the call has no arguments and always succeeds.
            send.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let number = receive.recv().unwrap() as u32;
        let sender = Sender::of(number);
        assert_eq!(sender.process, Some(std::process::id()));
        drop(end);
        thread.join().unwrap();
        while state(number) != State::Ended {
            std::thread::yield_now();
        }
        assert!(!sender.is_being_killed(true) && !sender.is_being_killed(false));
        let seen_too_late = Sender::of(number);
        assert_eq!(seen_too_late.process, None);
        assert!(!seen_too_late.is_being_killed(true), "a program may wait for the reply");
        assert!(seen_too_late.is_being_killed(false), "the kernel read ahead");
    }

    /// With `hidepid=2`, `/proc` does not show the processes of other users.
    #[test]
    fn thread_with_an_unreadable_state_counts_as_alive() {
        assert!(exists(1), "process 1 exists, even if this test must not signal it");
        assert!(!exists(u32::MAX) && !exists(i32::MAX as u32));
        assert!(!Sender { thread: 0, process: None }.is_being_killed(false));
    }
}
