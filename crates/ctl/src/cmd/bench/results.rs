//! Writes each result of a run to a file immediately after its measurement: one line of JSON per
//! result.
//!
//! The first line describes the benchmark, the next lines are results, and the last line marks the
//! end of the run. If the file system supports allocation, the command allocates disk space for all
//! lines before the first measurement. So a disk that fills up during the run causes no loss of
//! results. If the write of a line fails nevertheless, the file keeps the earlier lines, and the
//! run continues.
//!
//! If the run had no result, the file is removed at the end.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use skep_bench::limits::SAMPLE_BYTES;
use skep_types::{Error, ErrorCode, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Maximum length in bytes of a line of the results file. The records of the processes are not
/// included. A line contains one result, mainly the histogram of latencies.
const LINE_BYTES: u64 = 4 << 10;
/// Maximum size of the record of one process, stream or round trip, in bytes.
const PART_BYTES: u64 = 512;
/// Maximum size of the record of one process in bytes, if an external program writes the record.
const REPORT_BYTES: u64 = 16 << 10;

/// Upper bounds for the number and the lengths of the results of a run. The command allocates disk
/// space for the maximum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Number of results, each on one line.
    pub(super) lines: u64,
    /// Maximum number of records in one result.
    pub(super) parts: u64,
    /// Maximum number of samples of the progress in one record.
    pub(super) samples: u64,
    /// Whether an external program runs the benchmark. The records of an external program are
    /// longer than the records of `skep`.
    pub(super) is_reported: bool,
}

impl Size {
    fn bytes(self) -> u64 {
        let part = if self.is_reported { REPORT_BYTES } else { PART_BYTES };
        let part = part.saturating_add(self.samples.saturating_mul(SAMPLE_BYTES));
        self.lines.saturating_mul(LINE_BYTES.saturating_add(self.parts.saturating_mul(part)))
    }
}

/// The file to which a run writes its results.
#[derive(Debug)]
pub(super) struct ResultFile {
    path: PathBuf,
    file: File,
    len: u64,
    results: usize,
    /// The first error of a write. Results after this error are missing in the file. `None` if all
    /// writes succeeded.
    failure: Option<Error>,
}

impl ResultFile {
    /// Creates the file, writes its first line, and allocates disk space for the results.
    ///
    /// # Errors
    /// - `Exists` if the file exists, because the benchmark overwrites nothing.
    /// - `NoSpace` if the results do not fit on the disk. After this error, the command removes the
    ///   file.
    pub(super) fn create(path: &Path, of: &str, plan: &impl Serialize, size: Size) -> Result<Self> {
        let file = match File::options().append(true).create_new(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let what = format!(
                    "cannot create result file {}: the file exists already; name another file with \
                     --result-file",
                    path.display()
                );
                return Err(Error::new(ErrorCode::Exists, what));
            }
            opened => opened.map_err(|error| {
                Error::from(error)
                    .within(format_args!("cannot create the result file {}", path.display()))
            })?,
        };
        let mut made = Self { path: path.to_owned(), file, len: 0, results: 0, failure: None };
        let begin = json!({
            "kind": "benchmark",
            "of": of,
            "skep_version": skep_service::PROGRAM_VERSION,
            "started_unix_s": skep_env::wall_time().seconds,
            "plan": plan,
        });
        made.append(&begin)?;
        made.reserve(size.bytes())?;
        // Syncs the directory, so that the name of the new file also survives a power loss.
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new("."))).and_then(|it| it.sync_all())?;
        Ok(made)
    }

    /// Appends a result to the file. After the first failed write, this method writes no further
    /// result.
    pub(super) fn keep(&mut self, result: &impl Serialize) {
        if self.failure.is_none() {
            match self.append(result) {
                Ok(()) => self.results += 1,
                Err(error) => self.failure = Some(error),
            }
        }
    }

    /// Writes the last line, and frees the allocated space that was not used.
    ///
    /// # Errors
    /// The first error of a write to the file, with the number of results that the file contains.
    pub(super) fn finish(&mut self, end: &Value) -> Result<()> {
        let ended = match self.failure.take() {
            Some(error) => Err(error),
            None => self.append(end),
        };
        let _ = self.cut();
        ended.map_err(|error| {
            let what = format!(
                "{}; the result file has only the first {} results",
                error.context(),
                self.results
            );
            Error::new(error.code(), what)
        })
    }

    /// Returns a sentence for people with the number of results and the path of their file.
    pub(super) fn place(&self) -> String {
        format!("all {} results are in {}", self.results, self.path.display())
    }

    fn reserve(&self, bytes: u64) -> Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, bytes) {
            // On a file system without allocation, the command detects a full disk only when it
            // writes a result.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => Ok(()),
            Err(errno) => {
                let what =
                    format!("cannot allocate {bytes} bytes for results in {}", self.path.display());
                Err(Error::from(std::io::Error::from(errno)).within(what))
            }
        }
    }

    /// Writes and syncs a line. After an error, removes the partly written line from the file.
    fn append(&mut self, what: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(what)
            .map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.cut();
            return Err(Error::from(error)
                .within(format_args!("cannot write to the result file {}", self.path.display())));
        }
        self.len += line.len() as u64;
        Ok(())
    }

    fn cut(&self) -> Result<()> {
        Ok(self.file.set_len(self.len)?)
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        if self.results == 0 {
            // If the empty file stayed, the next run with this file name would fail with `Exists`.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { lines: 4, parts: 2, samples: 0, is_reported: false };

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).expect("a file");
        assert!(text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    #[test]
    fn result_file_has_each_result_before_the_run_ends() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("results");
        let mut file = ResultFile::create(&path, "io", &json!({"a": 1}), SIZE).expect("a new file");
        let found = lines(&path);
        assert_eq!((&found[0]["of"], &found[0]["plan"]["a"]), (&"io".into(), &1.into()));
        for number in 1..=2 {
            file.keep(&json!({ "number": number }));
            assert_eq!(lines(&path)[number]["number"], number);
        }
        let refused =
            ResultFile::create(&path, "io", &(), SIZE).expect_err("an existing file is refused");
        assert_eq!(refused.code(), ErrorCode::Exists);
        file.finish(&json!({"kind": "end"})).expect("written");
        assert!(file.place().contains("all 2 results are in"), "{}", file.place());
        drop(file);
        assert_eq!(lines(&path).len(), 4);
    }

    #[test]
    fn result_file_without_results_is_removed() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("results");
        drop(ResultFile::create(&path, "io", &(), SIZE).expect("a new file"));
        assert!(!path.exists());
        let nowhere = scratch.path().join("none/results");
        let error = ResultFile::create(&nowhere, "io", &(), SIZE).expect_err("no directory");
        assert!(error.context().contains("none/results"), "{error}");
    }
}
