//! Builds the program for the packages. Reads the architecture and the required version of the C
//! library from the built file.

use crate::repository::{Outcome, output, root, run as call};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};

/// A kind of machine for which Skep has a static program, which needs no library of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Computers with Intel and AMD processors.
    #[value(name = "x86_64-unknown-linux-musl")]
    X86,
    /// Computers with 64-bit ARM processors.
    #[value(name = "aarch64-unknown-linux-musl")]
    Arm,
}

impl Target {
    /// Returns the kind of this machine.
    ///
    /// # Errors
    /// Fails on machines for which Skep has no static program.
    pub(super) fn here() -> Outcome<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::X86),
            "aarch64" => Ok(Self::Arm),
            other => Err(format!("cannot build a static program for {other}; use --forms deb,rpm")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64-unknown-linux-musl",
            Self::Arm => "aarch64-unknown-linux-musl",
        }
    }
}

/// A program that can be packaged.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The kernel's name of the machine architecture, such as `x86_64`.
    pub(super) machine: &'static str,
    /// Oldest version of the GNU C library that the program needs. `None` means that the program is
    /// static.
    pub(super) glibc: Option<String>,
}

impl Program {
    /// Builds the program without symbols. If `target` is `None`, builds the program for the C
    /// library of this machine.
    ///
    /// # Errors
    /// Fails if the program cannot be built.
    pub(super) fn build(target: Option<Target>) -> Outcome<Self> {
        let strip = "profile.release.strip=true";
        let mut arguments = vec!["build", "--release", "--package", "skep-ctl", "--config", strip];
        // The program must not contain paths of the build host.
        let mut flags = format!("--remap-path-prefix={}=/skep", root().display());
        if let Some(home) = cargo_home() {
            flags = format!("{flags} --remap-path-prefix={}=/cargo", home.display());
        }
        let mut directory = root().join("target");
        if let Some(target) = target {
            arguments.extend(["--target", target.name()]);
            // Use the linker and the C library that the compiler includes. The included linker and
            // C library are the same on all build hosts.
            flags.push_str(" -Clinker=rust-lld -Clink-self-contained=yes");
            directory.push(target.name());
        }
        call(env!("CARGO"), &arguments, &[("RUSTFLAGS", &flags)]).map_err(
            |error| match target {
                Some(it) => {
                    format!("{error}; `rustup target add {}` installs the target", it.name())
                }
                None => error,
            },
        )?;
        Self::open(&directory.join("release/skep"))
    }

    /// Examines the file of a program.
    ///
    /// # Errors
    /// Fails if the file is not a program for a machine that Skep supports.
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let bytes = fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        let machine = match number(&bytes, 18, 2) {
            Some(0x3e) if bytes.starts_with(b"\x7fELF\x02\x01") => "x86_64",
            Some(0xb7) if bytes.starts_with(b"\x7fELF\x02\x01") => "aarch64",
            _ => {
                return Err(format!(
                    "cannot package {shown}: it is not a program for x86_64 or aarch64"
                ));
            }
        };
        let glibc = if has_interpreter(&bytes) {
            let symbols = output("objdump", &["-T", &shown.to_string()])?;
            let missing = format!(
                "cannot package {shown}: the program needs a C library other than the GNU C library"
            );
            Some(newest_glibc_symbol(&symbols).ok_or(missing)?)
        } else {
            None
        };
        Ok(Self { path: path.to_owned(), machine, glibc })
    }

    /// Runs the program, and returns its output. A program for another machine runs under an
    /// emulator.
    ///
    /// # Errors
    /// Fails if the program fails, or if the emulator is missing.
    pub(super) fn output(&self, arguments: &[&str]) -> Outcome<String> {
        let shown = self.path.display().to_string();
        if self.machine == std::env::consts::ARCH {
            return output(&shown, arguments);
        }
        let emulator = format!("qemu-{}-static", self.machine);
        output(&emulator, &[&[shown.as_str()], arguments].concat()).map_err(|error| {
            format!("cannot run a program for {}: {error}; install qemu-user-static", self.machine)
        })
    }
}

/// Returns the directory in which cargo stores the sources of libraries.
fn cargo_home() -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(usual)
}

/// Returns the little-endian number in the `len` bytes at an offset.
fn number(bytes: &[u8], offset: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(offset..offset.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Whether a dynamic linker loads the program (`PT_INTERP`).
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    let (start, len, count) = (number(elf, 32, 8), number(elf, 54, 2), number(elf, 56, 2));
    let (Some(start), Some(len), Some(count)) = (start, len, count) else { return false };
    let kind = |index: usize| number(elf, start.checked_add(index * len)?, 4);
    (0..count).any(|index| kind(index) == Some(PT_INTERP))
}

/// Returns the highest version of the GNU C library in the symbols that `objdump -T` has printed.
fn newest_glibc_symbol(symbols: &str) -> Option<String> {
    let words = symbols.split(|it: char| it.is_whitespace() || it == '(' || it == ')');
    let versions = words.filter_map(|word| word.strip_prefix("GLIBC_"));
    let number = |version: &&str| {
        version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    };
    versions.max_by_key(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_glibc_symbol_sets_the_required_glibc_version() {
        let symbols =
            "0000 DF *UND* 0 (GLIBC_2.9)  a\n0 DF *UND* 0 (GLIBC_2.34) b\n0 GLIBC_2.5 c\n";
        assert_eq!(newest_glibc_symbol(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc_symbol("not a dynamic object"), None);
    }

    #[test]
    fn static_programs_have_no_interpreter() {
        let mut elf = vec![0; 64 + 2 * 56];
        let place = |elf: &mut Vec<u8>, offset: usize, value: u8| elf[offset] = value;
        for (offset, value) in [(32, 64), (54, 56), (56, 2), (64, 1), (64 + 56, 2)] {
            place(&mut elf, offset, value);
        }
        assert!(!has_interpreter(&elf));
        place(&mut elf, 64 + 56, 3);
        assert!(has_interpreter(&elf));
        assert!(!has_interpreter(&elf[..64]));
    }

    #[test]
    fn architecture_is_read_from_the_program_file() {
        let program = Program::open(&std::env::current_exe().expect("a test is a program"));
        let program = program.expect("the test program can be packaged");
        assert_eq!(program.machine, std::env::consts::ARCH);
        assert!(program.glibc.is_none_or(|it| it.starts_with("2.")));
    }
}
