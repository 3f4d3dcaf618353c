//! Runs a program on a pseudo-terminal, presses keys, and shows the screen that a user would see.
//!
//! The emulation supports only the control sequences that Skep writes, and panics at any other
//! control sequence. So each test of a screen also finds wrong control sequences.

use crate::wait::{PATIENCE, wait_for};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

/// A character of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    character: char,
    /// Whether the character is in reverse video: foreground and background are exchanged.
    is_reverse: bool,
}

const BLANK: Cell = Cell { character: ' ', is_reverse: false };

/// The screen of a terminal.
#[derive(Debug)]
pub struct Screen {
    columns: usize,
    lines: Vec<Vec<Cell>>,
    /// The lines of the main screen while the alternate screen is shown.
    main: Option<Vec<Vec<Cell>>>,
    line: usize,
    column: usize,
    is_reverse: bool,
    is_cursor_hidden: bool,
    /// Whether the terminal shows a character beyond the last column on the next line. `false`
    /// means that such a character replaces the last character of its line.
    wraps: bool,
    fits: bool,
    /// Bytes of an incomplete character or control sequence.
    pending: Vec<u8>,
}

impl Screen {
    /// Creates an empty screen.
    pub fn new(columns: usize, lines: usize) -> Self {
        Self {
            columns,
            lines: vec![vec![BLANK; columns]; lines],
            main: None,
            line: 0,
            column: 0,
            is_reverse: false,
            is_cursor_hidden: false,
            wraps: true,
            fits: true,
            pending: Vec::new(),
        }
    }

    /// Returns the lines without spaces at their ends, and without empty lines at the end.
    pub fn text(&self) -> String {
        let line = |cells: &Vec<Cell>| {
            let text: String = cells.iter().map(|cell| cell.character).collect();
            text.trim_end().to_owned()
        };
        self.lines.iter().map(line).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    /// Whether the first character of a line is in reverse video, as in the selected line of a
    /// table.
    pub fn is_marked(&self, line: usize) -> bool {
        let first = self.lines.get(line).and_then(|cells| cells.first());
        first.is_some_and(|cell| cell.is_reverse)
    }

    /// Whether the alternate screen is shown.
    pub fn is_alternate(&self) -> bool {
        self.main.is_some()
    }

    /// Whether the cursor is hidden.
    pub fn is_cursor_hidden(&self) -> bool {
        self.is_cursor_hidden
    }

    /// Whether all text since the last clearing of the screen was within the lines and columns of
    /// the screen.
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// Changes the size of the screen, as a user does with the window of a terminal. The screen
    /// loses lines below its new last line and characters beyond its new last column.
    pub fn resize(&mut self, columns: usize, lines: usize) {
        self.columns = columns;
        for screen in [Some(&mut self.lines), self.main.as_mut()].into_iter().flatten() {
            screen.resize(lines, Vec::new());
            screen.iter_mut().for_each(|line| line.resize(columns, BLANK));
        }
        (self.line, self.column) = (self.line.min(lines - 1), self.column.min(columns));
    }

    /// Shows the bytes that a program has written.
    ///
    /// # Panics
    /// Panics at a control sequence that Skep does not write.
    pub fn write(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let pending = std::mem::take(&mut self.pending);
        let valid = match std::str::from_utf8(&pending) {
            Ok(text) => text,
            Err(error) => {
                assert!(error.error_len().is_none(), "the output is not UTF-8: {pending:?}");
                std::str::from_utf8(&pending[..error.valid_up_to()]).expect("checked")
            }
        };
        let mut rest = valid;
        while let Some(first) = rest.chars().next() {
            let len = match first {
                '\x1b' => match self.control(rest) {
                    Some(len) => len,
                    None => break,
                },
                '\r' => {
                    self.column = 0;
                    1
                }
                '\n' => {
                    self.next_line();
                    1
                }
                character => {
                    self.put(character);
                    character.len_utf8()
                }
            };
            rest = &rest[len..];
        }
        let done = valid.len() - rest.len();
        self.pending = pending[done..].to_vec();
    }

    fn put(&mut self, character: char) {
        assert!(!character.is_control(), "the program wrote the unknown character {character:?}");
        match (self.column == self.columns, self.wraps) {
            (false, _) => {}
            (true, true) => {
                self.column = 0;
                self.next_line();
            }
            (true, false) => {
                self.column -= 1;
                self.fits = false;
            }
        }
        self.lines[self.line][self.column] = Cell { character, is_reverse: self.is_reverse };
        self.column += 1;
    }

    fn next_line(&mut self) {
        if self.line + 1 < self.lines.len() {
            self.line += 1;
            return;
        }
        self.fits = false;
        self.lines.remove(0);
        self.lines.push(vec![BLANK; self.columns]);
    }

    /// Executes the control sequence at the start of `text`, and returns its length. Returns `None`
    /// if the control sequence is not complete.
    fn control(&mut self, text: &str) -> Option<usize> {
        let Some(inner) = text.strip_prefix("\x1b[") else {
            assert!(text.len() == 1, "the program wrote an unknown control sequence: {text:?}");
            return None;
        };
        let len = inner.find(|it: char| ('@'..='~').contains(&it))?;
        let end = inner[len..].chars().next()?;
        self.execute(&inner[..len], end);
        Some("\x1b[".len() + len + 1)
    }

    fn execute(&mut self, parameters: &str, end: char) {
        let columns = self.columns;
        match (parameters, end) {
            ("", 'H') => (self.line, self.column) = (0, 0),
            ("" | "0", 'K') => self.lines[self.line][self.column..].fill(BLANK),
            ("" | "0", 'J') => {
                self.lines[self.line][self.column..].fill(BLANK);
                self.lines[self.line + 1..].fill(vec![BLANK; columns]);
            }
            ("2", 'J') => {
                self.lines.fill(vec![BLANK; columns]);
                self.fits = true;
            }
            ("0", 'm') => self.is_reverse = false,
            ("7", 'm') => self.is_reverse = true,
            // Ignore bold and underlined text, and the colours of error messages.
            ("1" | "4" | "31" | "32" | "33", 'm') => {}
            ("?25", 'h' | 'l') => self.is_cursor_hidden = end == 'l',
            ("?7", 'h' | 'l') => self.wraps = end == 'h',
            ("?1049", 'h') => {
                let blank = vec![vec![BLANK; columns]; self.lines.len()];
                let main = std::mem::replace(&mut self.lines, blank);
                self.main.get_or_insert(main);
            }
            ("?1049", 'l') => {
                if let Some(main) = self.main.take() {
                    self.lines = main;
                }
            }
            _ => panic!("the program wrote the unknown control sequence ESC [{parameters}{end}"),
        }
    }
}

/// A program that runs on a pseudo-terminal. Dropping this value kills the program.
#[derive(Debug)]
pub struct TerminalProgram {
    child: Child,
    /// The master side of the pseudo-terminal. The test writes keys to this side and reads output
    /// from this side.
    user: OwnedFd,
    /// The program's side of the pseudo-terminal. The test keeps this side open to read the
    /// terminal modes after the program's end.
    terminal: OwnedFd,
    screen: Screen,
    /// The terminal modes (termios) before the program started.
    modes: String,
}

impl TerminalProgram {
    /// Starts `program` on a new terminal of this size, which becomes its controlling terminal.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn start(program: &Path, arguments: &[&str], columns: u16, lines: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let user = openpt(flags).expect("a pseudo-terminal");
        unlockpt(&user).expect("the pseudo-terminal is unlocked");
        let terminal = ioctl_tiocgptpeer(&user, flags).expect("the side of the program");
        fcntl_setfl(&user, OFlags::RDWR | OFlags::NONBLOCK).expect("reads do not wait");
        set_size(&user, columns, lines);
        let standard = || terminal.try_clone().expect("a descriptor");
        // `setsid` executes the program in its own process, so the child is the program.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(arguments).env("TERM", "xterm");
        command.stdin(standard()).stdout(standard()).stderr(standard());
        let modes = modes(&terminal);
        let child = command.spawn().expect("setsid starts");
        let screen = Screen::new(columns.into(), lines.into());
        Self { child, user, terminal, screen, modes }
    }

    /// Types the characters `keys`. Special keys are the control sequences that a terminal sends.
    ///
    /// # Panics
    /// Panics if the terminal does not accept the characters immediately.
    pub fn press(&self, keys: &str) {
        let written = rustix::io::write(&self.user, keys.as_bytes());
        assert_eq!(written, Ok(keys.len()), "the terminal accepts {keys:?}");
    }

    /// Changes the size of the terminal. The kernel sends the program a signal.
    ///
    /// # Panics
    /// Panics if the kernel refuses the size.
    pub fn resize(&mut self, columns: u16, lines: u16) {
        self.screen.resize(columns.into(), lines.into());
        set_size(&self.user, columns, lines);
    }

    /// Reads all output that the program has written so far, and returns the screen.
    ///
    /// # Panics
    /// Panics at output that [`Screen::write`] refuses.
    pub fn screen(&mut self) -> &Screen {
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(&self.user, &mut bytes) {
                Ok(0) | Err(Errno::AGAIN) => return &self.screen,
                Ok(count) => self.screen.write(&bytes[..count]),
                Err(Errno::INTR) => {}
                Err(error) => panic!("cannot read the terminal: {error}"),
            }
        }
    }

    /// Waits until `is_expected` returns true for the screen.
    ///
    /// # Panics
    /// Panics with the screen if the wait takes longer than a minute.
    #[track_caller]
    pub fn wait_for_screen(&mut self, what: &str, mut is_expected: impl FnMut(&Screen) -> bool) {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !is_expected(self.screen()) {
            let text = self.screen.text();
            assert!(std::time::Instant::now() < deadline, "{what}, but the screen is:\n{text}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Waits until the screen contains all of `texts`, and all its text is within the screen.
    ///
    /// # Panics
    /// Panics with the screen if the wait takes longer than a minute.
    #[track_caller]
    pub fn wait_for_texts(&mut self, texts: &[&str]) {
        self.wait_for_screen(&format!("expected {texts:?}"), |screen| {
            let shown = screen.text();
            screen.fits() && texts.iter().all(|text| shown.contains(*text))
        });
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// Panics if the program has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("the program runs");
    }

    /// Waits until the program is stopped, as by Ctrl-Z.
    ///
    /// # Panics
    /// Panics if the program is not stopped within a minute.
    pub fn wait_until_stopped(&self) {
        let file = format!("/proc/{}/stat", self.child.id());
        wait_for("the program stops", PATIENCE, || {
            let stat = fs::read_to_string(&file).ok()?;
            stat.rsplit_once(") ")?.1.starts_with('T').then_some(())
        });
    }

    /// Waits until the program ends.
    ///
    /// # Panics
    /// Panics if the program runs longer than a minute.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        wait_for("the program ends", PATIENCE, || {
            // Read the output, because a program does not end while its output fills the terminal's
            // buffer.
            self.screen();
            self.child.try_wait().expect("the child can be awaited")
        })
    }

    /// Checks that the terminal is as it was before the program started: its modes, the main
    /// screen, and a visible cursor.
    ///
    /// # Panics
    /// Panics with the difference.
    #[track_caller]
    pub fn check_restored(&mut self) {
        let screen = self.screen();
        assert!(!screen.is_alternate(), "the main screen is shown:\n{}", screen.text());
        assert!(!screen.is_cursor_hidden() && screen.wraps, "the cursor is visible");
        assert_eq!(modes(&self.terminal), self.modes, "the modes of the terminal");
    }
}

impl Drop for TerminalProgram {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn set_size(terminal: &OwnedFd, columns: u16, lines: u16) {
    let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("the terminal takes the size");
}

fn modes(terminal: &OwnedFd) -> String {
    format!("{:?}", tcgetattr(terminal).expect("the modes of the terminal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_shows_the_result_of_control_sequences() {
        let mut screen = Screen::new(6, 3);
        screen.write(b"prompt");
        screen.write(b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J\x1b[H\x1b[7mabc");
        screen.write("\x1b[0m\r\n\u{f6}".as_bytes());
        assert!(screen.is_alternate() && screen.is_cursor_hidden());
        assert_eq!(screen.text(), "abc\n\u{f6}");
        assert!(screen.is_marked(0) && !screen.is_marked(1) && !screen.is_marked(9));
        screen.write(b"\x1b[");
        screen.write(b"H");
        screen.write(b"xy\x1b[K\x1b[J");
        assert_eq!(screen.text(), "xy");
        screen.write(b"\x1b[?7h\x1b[?25h\x1b[?1049l");
        assert!(!screen.is_alternate() && !screen.is_cursor_hidden());
        assert_eq!(screen.text(), "prompt");
        screen.resize(3, 2);
        assert_eq!(screen.text(), "pro");
    }

    #[test]
    fn text_outside_of_the_screen_is_detected() {
        for (text, fits) in [
            ("\x1b[?7labcdef", true),
            ("\x1b[?7labcdefg", false),
            ("\x1b[?7labcdefg\x1b[2J", true),
            ("abcdefghi", true),
            ("a\n\n", true),
            ("a\n\n\n", false),
        ] {
            let mut screen = Screen::new(6, 3);
            screen.write(text.as_bytes());
            assert_eq!(screen.fits(), fits, "{text:?}");
        }
    }

    #[test]
    fn unknown_control_sequences_are_refused() {
        for wrong in ["\x1b[5;5H", "\x07", "\x1bc", "\u{9b}2J"] {
            let shown = std::panic::catch_unwind(|| Screen::new(6, 3).write(wrong.as_bytes()));
            assert!(shown.is_err(), "{wrong:?}");
        }
    }
}
