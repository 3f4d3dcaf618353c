//! Pages of a file, which writers on several mounts overwrite at the same time, and the check of
//! these pages after a crash.
//!
//! Each write fills a page with a number that no other write uses. A page must contain exactly one
//! such number, because writes of a page are atomic (docs/semantics.md 2.5). The number must belong
//! to a write that no subsequent acknowledged write has replaced.

use skep_testkit::{Random, files};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Name of the file in the root directory of the file system.
const NAME: &str = "shared-pages";
const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Distance of the beginnings of two pages in bytes. The pages lie in several chunks.
const STRIDE: usize = 17 * PAGE;

/// A write whose bytes the page may contain.
struct Write {
    number: u64,
    /// This field is `None` until the file system has acknowledged the write.
    acknowledged: Option<Instant>,
}

/// The file, and the possible writes of each page.
pub(crate) struct SharedPages {
    possible: Vec<Mutex<Vec<Write>>>,
    next: AtomicU64,
}

fn offset(page: usize) -> u64 {
    (page * STRIDE) as u64
}

fn filled(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / size_of::<u64>())
}

/// Returns the number that fills a page. `None` means that the page has bytes of several writes.
fn number_of(page: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(page.first_chunk().copied()?);
    (page == filled(number)).then_some(number)
}

impl SharedPages {
    /// Creates the file on a mount, writes each page once, and syncs the file.
    pub(crate) fn new(mount: &Path) -> Self {
        let file = files::create_new(mount.join(NAME));
        let first = |page: usize| {
            // The test could not distinguish a page of zeros from a hole.
            let number = page as u64 + 1;
            files::write_all_at(&file, &filled(number), offset(page));
            Mutex::new(vec![Write { number, acknowledged: Some(Instant::now()) }])
        };
        let possible = (0..PAGES).map(first).collect();
        files::sync_all(&file);
        files::sync_all(&files::open(mount));
        Self { possible, next: AtomicU64::new(PAGES as u64 + 1) }
    }

    /// Writes random pages on a mount until `stop` is set. Several threads may call this function
    /// at the same time.
    ///
    /// # Errors
    /// Returns the error of the open, or of the first write that fails. This write may or may not
    /// have taken effect, and [`Self::check`] accepts either case.
    pub(crate) fn write_until(
        &self,
        stop: &AtomicBool,
        mount: &Path,
        mut random: Random,
    ) -> Result<(), String> {
        let opened = OpenOptions::new().write(true).open(mount.join(NAME));
        let file = opened.map_err(|error| format!("open {NAME}: {error}"))?;
        while !stop.load(Ordering::Relaxed) {
            let page = random.below(PAGES);
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let begun = Instant::now();
            self.change(page, |possible| possible.push(Write { number, acknowledged: None }));
            file.write_all_at(&filled(number), offset(page))
                .map_err(|error| format!("write page {page}: {error}"))?;
            let acknowledged = Instant::now();
            self.change(page, |possible| {
                // The acknowledged write replaces each write that had returned before the
                // acknowledged write began.
                possible.retain(|it| it.acknowledged.is_none_or(|at| at >= begun));
                let this = possible.iter_mut().find(|it| it.number == number);
                this.expect("the write in progress is in the list of possible writes")
                    .acknowledged = Some(acknowledged);
            });
        }
        Ok(())
    }

    fn change(&self, page: usize, change: impl FnOnce(&mut Vec<Write>)) {
        change(&mut self.possible[page].lock().expect("no writer panics"));
    }

    /// Compares the pages on each mount with the possible writes, and returns a line for each
    /// problem. No writer may run. The next writers continue from the found pages.
    pub(crate) fn check(&self, mounts: &[&Path]) -> Vec<String> {
        let found: Vec<_> = mounts.iter().map(|mount| files::read(mount.join(NAME))).collect();
        let mut problems = Vec::new();
        for page in 0..PAGES {
            let range = page * STRIDE..page * STRIDE + PAGE;
            let numbers: BTreeSet<_> =
                found.iter().map(|bytes| bytes.get(range.clone()).and_then(number_of)).collect();
            self.change(page, |possible| {
                let allowed: Vec<_> = possible.iter().map(|it| it.number).collect();
                let number = numbers.first().copied().flatten();
                let number = number.filter(|it| numbers.len() == 1 && allowed.contains(it));
                let Some(number) = number else {
                    problems.push(format!(
                        "page {page}: the mounts have {numbers:?} (`None` is a mixed page), not \
                         one of {allowed:?}"
                    ));
                    return;
                };
                possible.retain(|it| it.number == number);
                possible[0].acknowledged.get_or_insert_with(Instant::now);
            });
        }
        problems
    }

    /// Removes the file.
    pub(crate) fn remove(self, mount: &Path) {
        files::remove_file(mount.join(NAME));
    }
}
