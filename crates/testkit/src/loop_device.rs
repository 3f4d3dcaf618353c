//! Loop devices, which play the role of disks. A device is detached at the end of its test, even if
//! the test fails.

use crate::program::{clean_up, run};
use crate::{Scratch, files};
use std::process::Command;

/// A loop device over a sparse file. Dropping this value detaches the device.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
    _scratch: Scratch,
}

impl LoopDevice {
    /// Attaches a blank device with a size of `bytes`.
    ///
    /// # Panics
    /// Panics if the test does not run as root, or if the device cannot be attached.
    pub fn with_size(bytes: u64) -> Self {
        let scratch = Scratch::new();
        let file = scratch.directory("disk").join("image");
        files::set_len(&files::create(&file), bytes);
        let path = run("losetup", ["--find", "--show", &file.display().to_string()]);
        Self { path: path.trim().to_owned(), _scratch: scratch }
    }

    /// Returns the path of the device, such as `/dev/loop0`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the number of the device as text.
    pub fn number(&self) -> &str {
        self.path.trim_start_matches("/dev/loop")
    }

    /// Returns the kinds of data on the device that `wipefs` recognises.
    ///
    /// # Panics
    /// Panics if `wipefs` fails.
    pub fn signatures(&self) -> String {
        run("wipefs", ["--no-act", &self.path])
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        clean_up(Command::new("losetup").args(["--detach", &self.path]));
    }
}
