//! The terminal of the live view: its modes, its keys and its size.
//!
//! The view uses the alternate screen of the terminal, without echo and without waiting for the
//! Enter key. Dropping the [`Terminal`] restores the previous modes and the previous screen of the
//! terminal. A panic ends the released program without dropping values, so a hook restores the
//! terminal before the panic's message is printed. A signal must not end the process while the
//! process uses the terminal: the caller receives signals with [`skep_env::Signals`], and drops the
//! [`Terminal`] first.
//!
//! The kernel still turns Ctrl-C and Ctrl-Z into signals.
//!
//! A library such as `crossterm` would bring an event loop and signal handlers of its own. The
//! event loop of this program waits for the terminal and for signals already, so this module needs
//! only three system calls and the decoder of [`super::keys`].

use super::keys::{Key, KeyDecoder};
use super::view::Size;
use crate::output::{is_on_screen, write_bytes};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize,
    tcsetattr,
};
use skep_env::File;
use skep_types::{Error, ErrorCode, Result};
use std::io;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// Control sequences that choose the alternate screen, hide the cursor, truncate long lines, and
/// clear the screen.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// Control sequences that undo [`ENTER`].
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Control sequence that clears the screen.
const CLEAR: &str = "\x1b[2J";
/// Time after which a single ESC byte counts as the Escape key, and not as the start of an escape
/// sequence. Terminals send the bytes of a sequence together, but a network may deliver a sequence
/// in parts.
const ESCAPE_TIME: Duration = Duration::from_millis(50);
/// The size of a terminal that does not report its size.
const DEFAULT_SIZE: Size = Size { columns: 80, rows: 24 };
/// Maximum number of bytes of one read. The next read returns further bytes.
const READ_BYTES: usize = 256;

/// The descriptors of a terminal, and its modes before the live view.
struct Modes {
    input: OwnedFd,
    output: OwnedFd,
    saved: Termios,
}

/// The terminal that this process uses. The variable is static, because the panic hook needs the
/// terminal. The lock is held only for a few system calls.
static USED: Mutex<Option<Modes>> = Mutex::new(None);

/// Whether this process can show the live view: input and output are terminals, and the terminal
/// can move its cursor.
pub(in super::super) fn is_available() -> bool {
    is_on_screen() && io::stdin().is_terminal()
}

/// Whether this process may use its terminal. While this process is in the background, a shell uses
/// the terminal with modes of its own. [`restore`] must not set these modes later.
pub(super) fn is_in_foreground() -> bool {
    match tcgetpgrp(io::stdin()) {
        Ok(foreground) => foreground == getpgrp(),
        // This process has no terminal that a shell controls.
        Err(_) => true,
    }
}

/// Changes the modes of a terminal, and saves the previous modes for [`restore`].
fn change_modes(input: OwnedFd, output: OwnedFd) -> io::Result<()> {
    let saved = tcgetattr(&input)?;
    tcsetattr(&input, OptionalActions::Now, &modes_of_view(&saved))?;
    *USED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Modes { input, output, saved });
    Ok(())
}

/// Returns the modes of a terminal for the live view. `saved` are the modes that other programs
/// use.
fn modes_of_view(saved: &Termios) -> Termios {
    let mut modes = saved.clone();
    modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    // Ctrl-C and Ctrl-Z discard no keys and no output. Without this mode, Ctrl-C could discard a
    // key after `poll` has reported the key. The read of this key would then block the event loop
    // until the next key, so Ctrl-C would have no effect. Ctrl-C could also discard the end of a
    // control sequence of a frame, and the terminal would misread the first sequence of `LEAVE`.
    modes.local_modes.insert(LocalModes::NOFLSH);
    // A read returns after one byte, and has no time limit.
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    modes.special_codes[SpecialCodeIndex::VTIME] = 0;
    modes
}

/// Writes [`LEAVE`]. Ignores errors other than an interruption, because the terminal may have been
/// closed.
fn write_leave(output: &OwnedFd) {
    let mut rest = LEAVE;
    while !rest.is_empty() {
        // Retry: while the buffer of the terminal is full, a completion of the event loop can
        // interrupt the write before its end.
        match rustix::io::write(output, rest) {
            Ok(count) if count > 0 => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Restores the terminal if this process uses it. Ignores errors, because the terminal may have
/// been closed.
fn restore() {
    // If another thread holds the lock, that thread restores the terminal at this moment.
    let Ok(mut used) = USED.try_lock() else { return };
    if let Some(Modes { input, output, saved }) = used.take() {
        write_leave(&output);
        let _ = tcsetattr(&input, OptionalActions::Now, &saved);
    }
}

/// Makes panics of all threads restore the terminal before their message is printed.
fn restore_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            print(panic);
        }));
    });
}

/// The terminal during the live view.
#[derive(Debug)]
pub(super) struct Terminal {
    keys: File,
    decoder: KeyDecoder,
    /// The last frame. An equal frame is not drawn again.
    drawn: String,
}

impl Terminal {
    /// Sets the modes of this process's terminal for the live view.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn enter() -> Result<Self> {
        restore_before_panics();
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let terminal =
            Self { keys: input.into(), decoder: KeyDecoder::default(), drawn: String::new() };
        terminal.take()?;
        Ok(terminal)
    }

    /// Sets the modes of the terminal, for the first time or again after [`Self::release`].
    fn take(&self) -> Result<()> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        change_modes(input, output)?;
        write_bytes(ENTER)
    }

    /// Restores the previous modes and the screen of the terminal, before this process stops.
    pub(super) fn release(&self) {
        restore();
    }

    /// Sets the modes of the terminal again after this process was stopped. Another program may
    /// have changed these modes meanwhile.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn take_again(&mut self) -> Result<()> {
        restore();
        self.drawn.clear();
        self.take()
    }

    /// Returns the size of the terminal.
    pub(super) fn size(&self) -> Size {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
            }
            _ => DEFAULT_SIZE,
        }
    }

    /// Draws a frame, unless the screen already shows an equal frame.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn draw(&mut self, frame: String) -> Result<()> {
        if frame == self.drawn {
            return Ok(());
        }
        write_bytes(frame.as_bytes())?;
        self.drawn = frame;
        Ok(())
    }

    /// Makes the next [`Self::draw`] clear the screen and draw all lines.
    ///
    /// # Errors
    /// The errors of the system.
    pub(super) fn clear(&mut self) -> Result<()> {
        self.drawn.clear();
        write_bytes(CLEAR.as_bytes())
    }

    /// Waits for keys, and returns at least one key. If a caller drops the future, no key is lost,
    /// because the future returns each key immediately after reading it.
    ///
    /// # Errors
    /// `Disconnected` if the terminal was closed, and errors of the system.
    pub(super) async fn keys(&mut self) -> Result<Vec<Key>> {
        loop {
            if self.decoder.is_waiting() {
                match skep_env::timeout(ESCAPE_TIME, self.keys.wait_readable()).await {
                    Some(readable) => readable?,
                    None => match self.decoder.end() {
                        Some(key) => return Ok(vec![key]),
                        None => continue,
                    },
                }
            } else {
                self.keys.wait_readable().await?;
            }
            let mut bytes = [0; READ_BYTES];
            let count = match (&*self.keys.borrow_std()).read(&mut bytes) {
                Ok(0) => return Err(Error::new(ErrorCode::Disconnected, "the terminal is closed")),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            let keys = self.decoder.add(&bytes[..count]);
            if !keys.is_empty() {
                return Ok(keys);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

    /// Returns the two sides of a new pseudo-terminal: the side of the user, and the side of the
    /// program.
    fn pseudo_terminal() -> (OwnedFd, OwnedFd) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let emulator = openpt(flags).unwrap();
        unlockpt(&emulator).unwrap();
        let terminal = ioctl_tiocgptpeer(&emulator, flags).unwrap();
        (emulator, terminal)
    }

    fn modes(terminal: &OwnedFd) -> String {
        format!("{:?}", tcgetattr(terminal).unwrap())
    }

    fn panic_as_expected() {
        panic!("this test expects a panic");
    }

    /// Regression test: before the panic hook existed, a panic in the released program left the
    /// terminal without echo.
    #[test]
    fn panic_restores_the_terminal() {
        let (emulator, terminal) = pseudo_terminal();
        let before = modes(&terminal);
        restore_before_panics();
        change_modes(terminal.try_clone().unwrap(), terminal.try_clone().unwrap()).unwrap();
        assert_ne!(modes(&terminal), before);
        assert!(std::thread::spawn(panic_as_expected).join().is_err());
        assert_eq!(modes(&terminal), before);
        let mut shown = [0; 256];
        let count = rustix::io::read(&emulator, &mut shown).unwrap();
        assert_eq!(&shown[..count], LEAVE);
        restore();
        assert_eq!(modes(&terminal), before);
    }

    /// Regression test: Ctrl-C discarded the keys that the user had pressed before Ctrl-C, even
    /// keys that the program was about to read.
    #[test]
    fn ctrl_c_discards_no_earlier_key() {
        let (emulator, terminal) = pseudo_terminal();
        let view = modes_of_view(&tcgetattr(&terminal).unwrap());
        tcsetattr(&terminal, OptionalActions::Now, &view).unwrap();
        assert_eq!(rustix::io::write(&emulator, b"j\x03k"), Ok(3));
        let mut keys = Vec::new();
        while !keys.ends_with(b"k") {
            let mut bytes = [0; 16];
            let count = rustix::io::read(&terminal, &mut bytes).unwrap();
            keys.extend_from_slice(&bytes[..count]);
        }
        assert_eq!(keys, b"jk");
    }
}
