//! An archive in the format `ustar`, which every version of `tar` can read.

use skep_types::Result;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

/// Length of a block of the archive in bytes.
const BLOCK: usize = 512;
/// Maximum length of the name of a file in the archive, in bytes.
const MAX_NAME: usize = 100;

/// An archive that is being written.
#[derive(Debug)]
pub(super) struct Archive {
    file: File,
    modified_s: u64,
    pub(super) members: Vec<String>,
    pub(super) bytes: u64,
}

impl Archive {
    /// Begins an archive in an empty file. `modified_s` is the modification time of all files in
    /// the archive, in seconds since 1970.
    pub(super) fn new(file: File, modified_s: u64) -> Self {
        Self { file, modified_s, members: Vec::new(), bytes: 0 }
    }

    /// Creates an archive that this process writes to its standard output.
    ///
    /// # Errors
    /// The errors of the system call that duplicates the descriptor.
    pub(super) fn to_standard_output(modified_s: u64) -> Result<Self> {
        let output = std::io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self::new(File::from(output), modified_s))
    }

    /// Adds a file to the archive. In its name, characters other than letters, digits and `/._-`
    /// become `_`.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        let name: String = name
            .chars()
            .map(|c| if is_plain(c) { c } else { '_' })
            .take(MAX_NAME)
            .collect::<String>()
            .replace("..", "__");
        self.file.write_all(&header(&name, content.len(), self.modified_s))?;
        self.file.write_all(content)?;
        self.file.write_all(&vec![0; content.len().next_multiple_of(BLOCK) - content.len()])?;
        self.bytes += content.len() as u64;
        self.members.push(name);
        Ok(())
    }

    /// Writes the end of the archive.
    ///
    /// # Errors
    /// The errors of the file system.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.file.write_all(&[0; 2 * BLOCK])?;
        // A pipe cannot be synced.
        if self.file.metadata()?.is_file() {
            self.file.sync_all()?;
        }
        Ok(())
    }
}

fn header(name: &str, len: usize, modified_s: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{len:011o}\0"));
    put(136, &format!("{:011o}\0", modified_s & 0o77_777_777_777));
    // The checksum of the header is computed with spaces in the checksum field.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_can_extract_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        let mut archive = Archive::new(File::create(&path).unwrap(), 1_800_000_000);
        let long = vec![b'x'; 1500];
        archive.add("one/a.txt", b"text").unwrap();
        archive.add("../two b\n", &long).unwrap();
        archive.add("empty", b"").unwrap();
        archive.finish().unwrap();
        let status =
            Command::new("tar").arg("xf").arg(&path).current_dir(directory.path()).status();
        assert!(status.unwrap().success());
        let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
        assert_eq!(read("one/a.txt"), b"text");
        assert_eq!(read("__/two_b_"), long);
        assert_eq!(read("empty"), b"");
    }
}
