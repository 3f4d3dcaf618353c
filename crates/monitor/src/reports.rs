//! Serves the reports of studies and benchmarks from a directory in the settings. The web page
//! shows a list of all reports, and opens their files.
//!
//! The directory may be on any file system, which may hang. So a thread reads the directory, and
//! the event loop waits for the thread with a time limit. The monitor opens a file only below the
//! directory, and follows no symbolic links (`openat2`), so no path leads to a file outside of the
//! directory. Any user may have written a report, so the browser shows it in a sandbox: the report
//! runs no program, and loads nothing from other servers.

use crate::limits::{
    MAX_REPORT_BYTES, MAX_REPORT_DEPTH, MAX_REPORT_ENTRIES, MAX_REPORT_READERS, MAX_REPORTS,
    MAX_SENT_REPORTS, REPORT_PATIENCE,
};
use crate::names::printable;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Serialize;
use serde_json::{Value, json};
use skep_env::local::{Semaphore, oneshot};
use skep_env::{Mailbox, spawn_thread};
use skep_exporter::http::{HeldReply, Reply, plain};
use skep_types::text::shorten;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

/// Headers of the replies with a file of a report. The browser shows such a file only in a frame of
/// the page or alone, and runs no program in it.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'self'; sandbox",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
];

/// The extensions of the files that are served, with their content types. All kinds of text files
/// other than HTML are served as plain text.
const TYPES: [(&str, &str); 13] = [
    ("html", "text/html; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("webp", "image/webp"),
    ("md", PLAIN),
    ("txt", PLAIN),
    ("csv", PLAIN),
    ("json", PLAIN),
    ("ndjson", PLAIN),
    ("toml", PLAIN),
];
const PLAIN: &str = "text/plain; charset=utf-8";
/// The extensions of the files that the list contains. Files with other extensions are parts of a
/// report.
const LISTED: [&str; 3] = ["html", "htm", "md"];
/// Length of the start of a file in which its title is searched, in bytes.
const TITLE_BYTES: u64 = 8 << 10;
/// Maximum length of a title in bytes.
const MAX_TITLE_BYTES: usize = 200;

/// The directory with the reports.
#[derive(Debug)]
pub(crate) struct Reports {
    /// `None` means that the settings name no directory.
    directory: Option<PathBuf>,
    /// Limits the number of threads that read the directory at the same time.
    readers: Rc<Semaphore>,
    /// Limits the number of files that are in memory at the same time.
    sent: Rc<Semaphore>,
}

/// An entry of the list.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Report {
    /// The path below the directory.
    path: String,
    title: String,
    modified_ms: u64,
    bytes: u64,
}

/// The reason why a file is not served.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The directory has no such file, or the file is of no served type.
    Missing,
    TooLarge,
    Failed(String),
}

impl Reports {
    /// Creates the access to the reports in a directory. Reads nothing yet. An empty path means
    /// that the settings name no directory.
    pub(crate) fn new(directory: &Path) -> Rc<Self> {
        let directory = (!directory.as_os_str().is_empty()).then(|| directory.to_owned());
        let (readers, sent) = (MAX_REPORT_READERS, MAX_SENT_REPORTS);
        let [readers, sent] = [readers, sent].map(Semaphore::new);
        Rc::new(Self { directory, readers, sent })
    }

    /// Returns the list of the reports, the newest first.
    pub(crate) async fn list(self: Rc<Self>) -> Result<Value, Reply> {
        let Some(directory) = self.directory.clone() else {
            return Ok(json!({ "is_configured": false, "reports": [], "has_more": false }));
        };
        match self.on_thread(move || listed(&directory)).await? {
            Ok((reports, has_more)) => {
                Ok(json!({ "is_configured": true, "reports": reports, "has_more": has_more }))
            }
            Err(problem) => Err(failed(&problem)),
        }
    }

    /// Returns the reply with a file, and a permit for its memory. `path` is the path below the
    /// directory.
    pub(crate) async fn file(self: Rc<Self>, path: String) -> HeldReply {
        let missing = || plain("404 Not Found", "The monitor has no report at this address.\n");
        let content_type = type_of(&path).filter(|_| is_plain(&path));
        let Some((directory, content_type)) = self.directory.clone().zip(content_type) else {
            return (missing(), None);
        };
        let waiting = skep_env::timeout(REPORT_PATIENCE, self.sent.acquire());
        let Some(permit) = waiting.await else {
            return (failed("the monitor is sending too many other files; try again later"), None);
        };
        let reply = match self.on_thread(move || read(&directory, &path)).await {
            Ok(Ok(body)) => Reply { status: "200 OK", content_type, headers: HEADERS, body },
            Ok(Err(Refusal::Missing)) => missing(),
            Ok(Err(Refusal::TooLarge)) => plain(
                "413 Content Too Large",
                "The monitor shows files of at most 32 MiB. Open this file on its host.\n",
            ),
            Ok(Err(Refusal::Failed(problem))) => failed(&problem),
            Err(refusal) => refusal,
        };
        (reply, Some(permit))
    }

    /// Runs `body` on a thread, and waits for its result. If the file system hangs, the thread
    /// keeps its permit until the thread ends.
    ///
    /// # Errors
    /// The reply to the request, if the thread has no result in time.
    async fn on_thread<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Reply> {
        let working = async {
            let permit = self.readers.acquire().await;
            let (sender, results) = Mailbox::new(1).map_err(|error| error.to_string())?;
            let run = move || {
                // The send does not fail, because the mailbox has space for one result.
                let _ = sender.send(body());
            };
            spawn_thread("skep-reports".into(), None, run).map_err(|error| error.to_string())?;
            let (done, result) = oneshot();
            let waiting = async move {
                let received = results.receive().await;
                drop(permit);
                done.send(received);
            };
            skep_env::spawn(waiting).detach();
            match result.await {
                Some(Ok(result)) => Ok(result),
                Some(Err(error)) => Err(error.to_string()),
                None => Err("the thread has ended".to_owned()),
            }
        };
        let late = || Err("the directory of the reports does not answer".to_owned());
        let outcome = skep_env::timeout(REPORT_PATIENCE, working).await;
        outcome.unwrap_or_else(late).map_err(|problem: String| failed(&problem))
    }
}

fn failed(problem: &str) -> Reply {
    plain("503 Service Unavailable", &format!("The monitor cannot read the reports: {problem}\n"))
}

/// Whether a path is permitted: no name in it is empty or begins with a dot, and the path is at
/// most as deep as the paths in the list.
fn is_plain(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\0');
    path.split('/').count() <= MAX_REPORT_DEPTH && parts.all(is_plain)
}

fn extension(path: &str) -> Option<String> {
    Some(Path::new(path).extension()?.to_str()?.to_ascii_lowercase())
}

/// Returns the type of the file at a path. `None` means that such files are not served.
fn type_of(path: &str) -> Option<&'static str> {
    let extension = extension(path)?;
    TYPES.iter().find(|(known, _)| *known == extension).map(|(_, content_type)| *content_type)
}

/// Opens a file below the directory, without following symbolic links.
fn open(directory: &File, path: &Path) -> std::io::Result<File> {
    // If the path names a pipe, `NONBLOCK` makes the call return immediately.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)?;
    Ok(File::from(file))
}

/// Opens the directory with the reports, as [`open`] opens the files in it. If the kernel refuses
/// `openat2`, as old kernels and some containers do, this call fails with an error that names the
/// cause. Without this error, all files would seem to be missing.
fn open_top(directory: &Path) -> std::io::Result<File> {
    open(&File::open(directory)?, Path::new("."))
}

fn read(directory: &Path, path: &str) -> Result<Vec<u8>, Refusal> {
    let other = |error: std::io::Error| Refusal::Failed(error.to_string());
    let top = open_top(directory).map_err(other)?;
    // Do not distinguish the reasons of a refusal, so that a request cannot find out which other
    // files exist.
    let file = open(&top, Path::new(path)).map_err(|_| Refusal::Missing)?;
    let metadata = file.metadata().map_err(other)?;
    if !metadata.is_file() {
        return Err(Refusal::Missing);
    }
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    file.take(MAX_REPORT_BYTES + 1).read_to_end(&mut bytes).map_err(other)?;
    if bytes.len() as u64 > MAX_REPORT_BYTES { Err(Refusal::TooLarge) } else { Ok(bytes) }
}

/// Returns the newest reports below the directory, the newest first, and whether the directory has
/// more reports.
fn listed(directory: &Path) -> Result<(Vec<Report>, bool), String> {
    let named = |error: std::io::Error| error.to_string();
    let top = open_top(directory).map_err(named)?;
    let (mut found, mut seen) = (Vec::new(), 0);
    let mut waiting = vec![(String::new(), 0)];
    let mut has_more = false;
    while let Some((place, depth)) = waiting.pop() {
        let entries = match std::fs::read_dir(directory.join(&place)) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(named(error)),
            // The directory was removed meanwhile, or the monitor may not read it.
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_REPORT_ENTRIES {
                has_more = true;
                waiting.clear();
                break;
            }
            // For a symbolic link, `file_type` returns the type of the link itself.
            let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else {
                continue;
            };
            let path = if place.is_empty() { name } else { format!("{place}/{name}") };
            if !is_plain(&path) {
                continue;
            }
            if kind.is_dir() && depth + 1 < MAX_REPORT_DEPTH {
                waiting.push((path, depth + 1));
            } else if kind.is_file() && extension(&path).is_some_and(|it| LISTED.contains(&&*it)) {
                found.push(path);
            }
        }
    }
    let mut reports: Vec<Report> = found.into_iter().filter_map(|it| report(&top, it)).collect();
    reports
        .sort_by(|one, other| (other.modified_ms, &one.path).cmp(&(one.modified_ms, &other.path)));
    has_more |= reports.len() > MAX_REPORTS;
    reports.truncate(MAX_REPORTS);
    Ok((reports, has_more))
}

/// Returns the entry of a report. `None` means that the file is gone or unreadable.
fn report(top: &File, path: String) -> Option<Report> {
    let file = open(top, Path::new(&path)).ok()?;
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut start = Vec::new();
    file.take(TITLE_BYTES).read_to_end(&mut start).ok()?;
    let title = title(&String::from_utf8_lossy(&start)).unwrap_or_else(|| path.clone());
    let modified_ms = u64::try_from(modified.as_millis()).unwrap_or(0);
    Some(Report { title, modified_ms, bytes: metadata.len(), path })
}

/// Returns the title of a page of HTML or of Markdown, from the start of its file.
fn title(start: &str) -> Option<String> {
    let of_html = || {
        let (_, rest) = start.split_once("<title>")?;
        let text = rest.split_once("</title>")?.0;
        let escapes =
            [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
        Some(escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)))
    };
    let of_markdown = || start.lines().find_map(|line| line.strip_prefix("# ")).map(str::to_owned);
    let mut title = printable(of_html().or_else(of_markdown)?.trim());
    shorten(&mut title, MAX_TITLE_BYTES);
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn sample() -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        let reports = top.path().join("reports");
        fs::create_dir_all(reports.join("study/report")).unwrap();
        fs::create_dir(reports.join(".hidden")).unwrap();
        fs::write(reports.join("study/report/index.html"), "<title>Sizes &lt;1&gt;</title>")
            .unwrap();
        fs::write(reports.join("study/report/points.csv"), "a,b\n").unwrap();
        fs::write(reports.join("notes.md"), "\n# Notes \u{1b}[2J\n").unwrap();
        fs::write(reports.join(".hidden/a.html"), "x").unwrap();
        fs::write(reports.join("program.sh"), "x").unwrap();
        fs::write(top.path().join("secret.html"), "secret").unwrap();
        symlink("../secret.html", reports.join("link.html")).unwrap();
        symlink("..", reports.join("up")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            reports.join("pipe.html"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        top
    }

    /// Returns the status and the body of the reply with a file.
    fn get(top: &Path, path: &str) -> (&'static str, Vec<u8>) {
        let (directory, path) = (top.join("reports"), path.to_owned());
        let reply = skep_env::block_on(async move { Reports::new(&directory).file(path).await });
        let (reply, _) = reply.unwrap();
        (reply.status, reply.body)
    }

    #[test]
    fn reports_are_listed_with_their_titles() {
        let top = sample();
        let directory = top.path().join("reports");
        let listed = skep_env::block_on(async move { Reports::new(&directory).list().await });
        let listed = listed.unwrap().unwrap();
        let mut found: Vec<_> = listed["reports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["path"].as_str().unwrap(), it["title"].as_str().unwrap()))
            .collect();
        found.sort_unstable();
        let expected = [("notes.md", "Notes ?[2J"), ("study/report/index.html", "Sizes <1>")];
        assert_eq!(found, expected);
        assert_eq!((&listed["is_configured"], &listed["has_more"]), (&true.into(), &false.into()));
    }

    #[test]
    fn files_of_a_report_are_served_in_a_sandbox() {
        let top = sample();
        assert_eq!(get(top.path(), "study/report/points.csv"), ("200 OK", b"a,b\n".to_vec()));
        assert_eq!(type_of("a/Index.HTML"), Some("text/html; charset=utf-8"));
        assert_eq!(type_of("a/points.csv"), Some(PLAIN));
        let policy = HEADERS[0].1;
        assert!(policy.starts_with("default-src 'none';") && policy.ends_with("sandbox"));
        assert!(!policy.contains("script-src") && !policy.contains("allow-"));
    }

    #[test]
    fn no_request_reads_a_file_outside_of_the_report_directory() {
        let top = sample();
        for path in [
            "../secret.html",
            "study/../../secret.html",
            "link.html",
            "up/secret.html",
            "/etc/hostname.html",
            "//secret.html",
            ".hidden/a.html",
            "study/.//report/index.html",
            "pipe.html",
            "program.sh",
            "study/report",
            "study/report/",
            "missing.html",
            "notes.md\0.html",
            "",
        ] {
            assert_eq!(get(top.path(), path).0, "404 Not Found", "{path:?}");
        }
        let far = "a/".repeat(MAX_REPORT_DEPTH) + "b.html";
        assert_eq!(get(top.path(), &far).0, "404 Not Found");
        // The kernel refuses these paths too, even if the check of the text misses one.
        let directory = File::open(top.path().join("reports")).unwrap();
        for path in ["../secret.html", "link.html", "up/secret.html", "/etc/hostname"] {
            assert!(open(&directory, Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn large_and_unreadable_reports_are_refused() {
        let top = sample();
        let large = File::create(top.path().join("reports/large.html")).unwrap();
        large.set_len(MAX_REPORT_BYTES + 1).unwrap();
        assert_eq!(get(top.path(), "large.html").0, "413 Content Too Large");
        assert_eq!(get(&top.path().join("gone"), "a.html").0, "503 Service Unavailable");
        let none = skep_env::block_on(async { Reports::new(Path::new("")).list().await });
        assert_eq!(none.unwrap().unwrap()["is_configured"], false);
    }

    #[test]
    fn number_of_concurrently_sent_report_files_is_bounded() {
        let top = sample();
        let reports = Reports::new(&top.path().join("reports"));
        let status = skep_env::block_on(async move {
            let file = || Rc::clone(&reports).file("notes.md".into());
            let mut sent = Vec::new();
            for _ in 0..MAX_SENT_REPORTS {
                sent.push(file().await);
            }
            let next = skep_env::spawn(file());
            while reports.sent.waiting() == 0 && !next.is_finished() {
                skep_env::yield_now().await;
            }
            assert!(!next.is_finished(), "the request waits until another file has been sent");
            sent.pop();
            next.await.0.status
        });
        assert_eq!(status.unwrap(), "200 OK");
    }

    #[test]
    fn list_of_reports_is_bounded() {
        let top = sample();
        let directory = top.path().join("reports");
        for number in 0..=MAX_REPORTS {
            fs::write(directory.join(format!("{number}.md")), "").unwrap();
        }
        let (reports, has_more) = listed(&directory).unwrap();
        assert_eq!((reports.len(), has_more), (MAX_REPORTS, true));
        assert!(reports.is_sorted_by(|one, other| one.modified_ms >= other.modified_ms));
    }
}
