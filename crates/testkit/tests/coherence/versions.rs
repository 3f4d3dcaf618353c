//! Checks that readers get no outdated page of a file while another program writes, maps, punches
//! and truncates the file.
//!
//! One mount changes a file page by page and counts the changes. Every eight bytes of a page
//! contain the index of the page and the sequence number of the change that wrote these bytes.
//! Before a reader reads a page, the reader notes the last completed change of this page. The read
//! must return the bytes of that change, or of a more recent change that has already begun. All
//! bytes of a page must come from a single change. In this way, readers on both mounts can check
//! the file while the file changes all the time.

use crate::Mounts;
use crate::statements::Stepwise;
use rustix::fs::FallocateFlags;
use skep_testkit::PATIENCE;
use skep_testkit::Random;
use skep_testkit::files;
use skep_testkit::suite::Case;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![versions:
    read_never_returns_bytes_overwritten_before_it_began,
];

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// First page that the test may truncate. A program that accesses a truncated page through a
/// mapping gets SIGBUS.
const KEPT: usize = 32;
/// Duration for which the test changes the file. During this time, each reader must complete at
/// least [`ENOUGH`] reads.
const SPAN: Duration = Duration::from_millis(1200);
const ENOUGH: usize = 10;
/// Returns the eight bytes that `change` writes to a page.
fn word(change: u64, page: usize) -> u64 {
    (change << 8) | page as u64
}

fn offset(page: usize) -> u64 {
    (page * PAGE) as u64
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let parts = bytes.chunks_exact(8).map(|part| part.try_into().expect("eight bytes"));
    parts.map(u64::from_le_bytes).collect()
}

/// Whether only a mapping writes the page. The kernel may write such a page back in the middle of a
/// change.
fn is_mapped(page: usize) -> bool {
    page % 4 == 3
}

/// Progress of the changes of one page. In each field, zero means that no change has reached this
/// state.
#[derive(Default)]
struct Page {
    /// Sequence number of the last change whose call has returned.
    done: AtomicU64,
    /// Sequence number of the last change that was complete when the writer last closed the file.
    closed: AtomicU64,
    /// Sequence number of the last change that has begun.
    begun: AtomicU64,
    /// Sequence number of the last change that has begun and that writes zeros.
    cleared: AtomicU64,
}

/// The progress of all changes of a file. Only the writer updates this value.
struct Story {
    pages: [Page; PAGES],
    is_over: AtomicBool,
}

impl Story {
    /// Creates the progress for a file that contains only zeros.
    fn new() -> Self {
        let pages = std::array::from_fn(|_| Page::default());
        Self { pages, is_over: AtomicBool::new(false) }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn done(&self, page: usize) -> u64 {
        self.pages[page].done.load(Ordering::SeqCst)
    }

    fn closed(&self, page: usize) -> u64 {
        self.pages[page].closed.load(Ordering::SeqCst)
    }

    /// Runs a change of `pages` by calling `call`, and records the start and the end of the change.
    fn change(&self, pages: Range<usize>, number: u64, clears: bool, call: impl FnOnce()) {
        for page in &self.pages[pages.clone()] {
            if clears {
                page.cleared.store(number, Ordering::SeqCst);
            }
            page.begun.store(number, Ordering::SeqCst);
        }
        call();
        for page in &self.pages[pages] {
            page.done.store(number, Ordering::SeqCst);
        }
    }

    /// Checks the bytes that a read has returned for a page. `least` is the last change that was
    /// already complete when the read began.
    fn check(&self, page: usize, found: &[u64], least: u64) {
        let Page { begun, cleared, .. } = &self.pages[page];
        let (cleared, most) = (cleared.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
        for &word in found {
            let (change, of) = (word >> 8, word & 0xff);
            let is_right = match word {
                0 => cleared >= least,
                _ => of == page as u64 && (least..=most).contains(&change),
            };
            assert!(
                is_right,
                "page {page} was at change {least} before and is at {most} now (cleared by \
                 {cleared}): found {change} of page {of}"
            );
        }
    }

    /// Checks bytes like [`Self::check`], but for a whole page that no mapping writes. Also checks
    /// that all bytes come from the same change.
    fn check_whole(&self, page: usize, found: &[u64], least: u64) {
        self.check(page, found, least);
        let mut written = found.iter().filter(|word| **word != 0);
        let first = written.next();
        assert!(
            written.all(|word| Some(word) == first),
            "page {page} has bytes of several changes"
        );
    }
}

/// Makes all other threads end when this value is dropped, even if the thread that owns this value
/// panics.
struct Stops<'a>(&'a Story);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// A program that writes pages of a file through a mapping. Each line of its input contains the
/// index of a page and the page's new bytes.
const MAPPER: &str = "
import mmap, sys
PAGE = 4096
with open(sys.argv[1], 'r+b') as file:
    mapped = mmap.mmap(file.fileno(), 0)
    print('mapped', flush=True)
    for line in sys.stdin:
        page, word = (int(number) for number in line.split())
        mapped[page * PAGE:(page + 1) * PAGE] = word.to_bytes(8, 'little') * (PAGE // 8)
        mapped.flush(page * PAGE, PAGE)
        print('synced', flush=True)
";

/// A program that opens and maps the file anew for each line of input. The program prints the words
/// at the beginning of each page.
const LOOKER: &str = "
import mmap, sys
PAGE, pages = 4096, int(sys.argv[2])
for line in sys.stdin:
    with open(sys.argv[1], 'rb') as file:
        with mmap.mmap(file.fileno(), pages * PAGE, prot=mmap.PROT_READ) as mapped:
            found = mapped[:]
    words = (set(memoryview(found[at:at + PAGE]).cast('Q')) for at in range(0, len(found), PAGE))
    print(' '.join(','.join(map(str, of_page)) for of_page in words), flush=True)
";

/// The thread that changes the file.
struct Writer<'a> {
    story: &'a Story,
    random: Random,
    /// Sequence number of the current change, or of the last change if no change is running.
    number: u64,
    path: PathBuf,
    file: File,
    mapper: Stepwise,
}

impl Writer<'_> {
    fn step(&mut self) {
        self.number += 1;
        match self.random.below(100) {
            0..70 => self.write(),
            70..85 => self.clear(),
            85..90 => self.cut(),
            90..95 => files::sync_all(&self.file),
            _ => self.reopen(),
        }
    }

    fn write(&mut self) {
        let (story, page) = (self.story, self.random.below(PAGES));
        let word = word(self.number, page);
        story.change(page..page + 1, self.number, false, || {
            if is_mapped(page) {
                self.mapper.send(&format!("{page} {word}"));
                assert_eq!(self.mapper.line(), "synced");
            } else {
                let bytes = word.to_le_bytes().repeat(PAGE / 8);
                // Use a single call, because two calls would be two separate writes.
                assert_eq!(self.file.write_at(&bytes, offset(page)).expect("written"), PAGE);
            }
        });
    }

    fn clear(&mut self) {
        let page = self.random.below(PAGES);
        self.story.change(page..page + 1, self.number, true, || {
            let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            files::fallocate(&self.file, flags, offset(page), PAGE as u64);
        });
    }

    /// Truncates the file at a random page. After that, extends the file to its full length, which
    /// adds zeros.
    fn cut(&mut self) {
        let page = KEPT + self.random.below(PAGES - KEPT);
        self.story.change(page..PAGES, self.number, true, || {
            files::set_len(&self.file, offset(page));
            files::set_len(&self.file, offset(PAGES));
        });
    }

    fn reopen(&mut self) {
        // Open the file a second time, because the test must have the file open during the close of
        // the old handle.
        let file = open(&self.path);
        drop(std::mem::replace(&mut self.file, file));
        for page in (0..PAGES).filter(|page| !is_mapped(*page)) {
            let done = self.story.done(page);
            self.story.pages[page].closed.store(done, Ordering::SeqCst);
        }
    }
}

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true), path)
}

/// Reads and checks random pages until the test ends. Each call reads at most `most` pages.
fn read(story: &Story, looks: &AtomicUsize, file: &File, most: usize, mut random: Random) {
    let _stops = Stops(story);
    let mut bytes = vec![0; most * PAGE];
    while !story.is_over() {
        let count = 1 + random.below(most);
        let first = random.below(PAGES - count + 1);
        let least: Vec<_> = (first..first + count).map(|page| story.done(page)).collect();
        let bytes = &mut bytes[..count * PAGE];
        let len = files::read_at(file, bytes, offset(first));
        // A read during a truncation may return fewer bytes. The missing pages count as zeros.
        bytes[len..].fill(0);
        for ((page, found), least) in (first..).zip(bytes.chunks_exact(PAGE)).zip(least) {
            match is_mapped(page) {
                true => story.check(page, &words(found), least),
                false => story.check_whole(page, &words(found), least),
            }
        }
        looks.fetch_add(1, Ordering::SeqCst);
    }
}

/// Opens and maps the file repeatedly. Each new mapping must show at least the changes that were
/// complete at the last close.
fn look(story: &Story, looks: &AtomicUsize, looker: &mut Stepwise) {
    let _stops = Stops(story);
    while !story.is_over() {
        let least: Vec<_> = (0..KEPT).map(|page| story.closed(page)).collect();
        looker.send("");
        let line = looker.line();
        let found: Vec<_> = line.split(' ').collect();
        assert_eq!(found.len(), KEPT, "{line}");
        for (page, (found, least)) in found.into_iter().zip(least).enumerate() {
            let words = found.split(',').map(|word| word.parse::<u64>().expect("a number"));
            story.check(page, &words.collect::<Vec<_>>(), least);
        }
        looks.fetch_add(1, Ordering::SeqCst);
    }
}

/// The kind of readers on the other mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    /// A reader that opened the file earlier than the writer. No other program uses the reader's
    /// mount, because concurrent calls on the same mount may hide a change (docs/semantics.md 2.3).
    FromBefore,
    /// Readers that open and map the file while the writer changes it.
    New,
}

fn run(writer: &Path, reader: &Path, readers: Readers, mut random: Random) {
    let name = format!("file-{readers:?}");
    let (here, there) = (writer.join(&name), reader.join(&name));
    files::set_len(&files::create(&here), offset(PAGES));
    let from_before = [(); 2].map(|()| files::open(&there));
    for file in &from_before {
        // Read all pages, so that the kernel has cached pages that the kernel must drop after the
        // changes.
        files::read_exact_at(file, &mut vec![1; PAGES * PAGE], 0);
    }
    let story = Story::new();
    let mut mapper = Command::new("python3");
    mapper.args(["-c", MAPPER, &name]);
    let mut writer = Writer {
        story: &story,
        random: Random::new(random.number()),
        number: 0,
        path: here.clone(),
        file: open(&here),
        mapper: Stepwise::start(writer, &mut mapper),
    };
    assert_eq!(writer.mapper.line(), "mapped");
    let files = match readers {
        Readers::FromBefore => from_before,
        Readers::New => from_before.map(|_| files::open(&there)),
    };
    let same_mount = files::open(&here);
    let mut looker = (readers == Readers::New).then(|| {
        let mut looker = Command::new("python3");
        looker.args(["-c", LOOKER, &name, &KEPT.to_string()]);
        Stepwise::start(reader, &mut looker)
    });
    let looks = [(); 4].map(|()| AtomicUsize::new(0));
    let (looking, many) = (looker.as_mut(), if readers == Readers::New { 4 } else { 2 });
    std::thread::scope(|scope| {
        let _stops = Stops(&story);
        // Use only one reader that opened the file earlier than the writer. A second such reader
        // could hide changes from the first reader (docs/semantics.md 2.3).
        let reading: &[_] = match readers {
            Readers::FromBefore => &[(&same_mount, 1), (&files[0], 5)],
            Readers::New => &[(&same_mount, 1), (&files[0], 5), (&files[1], 1)],
        };
        for (&(file, most), looks) in reading.iter().zip(&looks) {
            let (story, random) = (&story, Random::new(random.number()));
            scope.spawn(move || read(story, looks, file, most, random));
        }
        if let Some(looker) = looking {
            let (story, looks) = (&story, &looks[3]);
            scope.spawn(move || look(story, looks, looker));
        }
        let begin = Instant::now();
        let were_enough = || looks[..many].iter().all(|it| it.load(Ordering::SeqCst) >= ENOUGH);
        while !story.is_over() && (begin.elapsed() < SPAN || !were_enough()) {
            assert!(begin.elapsed() < PATIENCE, "not all threads have read enough: {looks:?}");
            writer.step();
        }
    });
    let Writer { file, mapper, number, .. } = writer;
    mapper.end();
    drop(file);
    println!("    {name}: {number} changes, {looks:?} reads");
    for path in [&here, &there] {
        let bytes = files::read(path);
        assert_eq!(bytes.len(), PAGES * PAGE);
        for (page, found) in bytes.chunks_exact(PAGE).enumerate() {
            story.check_whole(page, &words(found), story.done(page));
        }
    }
    files::remove_file(&here);
}

/// docs/semantics.md 2.1, 2.2, 2.3, 2.5, 2.7 and 2.8.
fn read_never_returns_bytes_overwritten_before_it_began(mounts: &Mounts) {
    let seed = Random::seed_of_run();
    println!("    seed {seed} (SKEP_TEST_SEED={seed} repeats it)");
    let mut random = Random::new(seed);
    for (writer, reader) in [(&mounts.one, &mounts.other), (&mounts.other, &mounts.one)] {
        for readers in [Readers::FromBefore, Readers::New] {
            run(writer, reader, readers, Random::new(random.number()));
        }
    }
}
