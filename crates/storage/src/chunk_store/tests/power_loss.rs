//! A test of realistic power losses. The store is on a loop device, and the test copies the
//! device's image by reflink while the store works. The copy contains the data that was on the
//! device at that moment, without the kernel's page cache.
//!
//! After each power loss, the test checks that every byte can be read and that the incarnation has
//! changed. Synced data must be present unless a write after the sync has overwritten the data. The
//! test does not check how much unsynced data survives.
//!
//! The test needs root and `mkfs.xfs`. Without root, the test prints a line and passes. The seed in
//! `SKEP_TEST_SEED` repeats a run.

use super::*;
use skep_testkit::thin::may_mount;
use skep_types::HostIncarnation;
use skep_types::random::SplitMix64;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

const FILES: u64 = 6;
const LONGEST: u64 = 5 << 20;
const ROUNDS: usize = 6;
const GRANULE: usize = 4096;

/// A file system whose image is a file on an outer file system. The outer file system can copy the
/// image instantly by reflink.
struct Disk {
    _dir: tempfile::TempDir,
    outer: PathBuf,
    inner: PathBuf,
    image: u32,
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have plain names")
}

impl Disk {
    /// Creates the disk. Returns `None` if the test does not run as root.
    fn new() -> Option<Self> {
        if !may_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner) = (dir.path().join("outer"), dir.path().join("inner"));
        std::fs::create_dir(&outer).unwrap();
        std::fs::create_dir(&inner).unwrap();
        let image = dir.path().join("outer.image");
        let disk = Self { _dir: dir, outer, inner, image: 0 };
        Self::format(&image, 4 << 30);
        let mounted = succeeds("mount", &["-o", "loop", text(&image), text(&disk.outer)]);
        assert!(mounted, "cannot mount {}", image.display());
        Self::format(&disk.image(), 400 << 20);
        disk.mount();
        Some(disk)
    }

    fn format(image: &Path, bytes: u64) {
        std::fs::File::create(image).unwrap().set_len(bytes).unwrap();
        let is_made = succeeds("mkfs.xfs", &["-q", "-m", "reflink=1", text(image)]);
        assert!(is_made, "cannot run mkfs.xfs (package xfsprogs) on {}", image.display());
    }

    fn image(&self) -> PathBuf {
        self.outer.join(format!("{}.image", self.image))
    }

    fn mount(&self) {
        let image = self.image();
        let options = ["-o", "loop,nouuid", text(&image), text(&self.inner)];
        assert!(succeeds("mount", &options), "{} mounts", image.display());
    }

    /// Returns a function that copies the current image in a separate thread.
    fn cut(&self) -> impl FnOnce() -> std::thread::JoinHandle<bool> + 'static {
        let (from, to) = (self.image(), self.outer.join(format!("{}.image", self.image + 1)));
        let copy = move || succeeds("cp", &["--reflink=always", text(&from), text(&to)]);
        move || std::thread::spawn(copy)
    }

    /// Replaces the disk by the copy, which simulates the power loss.
    fn restore(&mut self) {
        // An io_uring worker, or a program that another test is starting, may keep a file of the
        // disk open for a short time. So try to unmount the disk until the deadline.
        let deadline = skep_env::now() + Duration::from_secs(20);
        while !succeeds("umount", &[text(&self.inner)]) {
            assert!(skep_env::now() < deadline, "no process uses the disk any more");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(self.image()).unwrap();
        self.image += 1;
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for path in [&self.inner, &self.outer] {
            succeeds("umount", &["-l", text(path)]);
        }
    }
}

/// A generator of random numbers with a seed.
struct Random(RefCell<SplitMix64>);

impl Random {
    fn below(&self, end: u64) -> u64 {
        self.0.borrow_mut().below(end)
    }
}

/// The contents that a chunk file may have after a power loss.
#[derive(Default)]
struct Expected {
    /// The contents after the last write.
    now: Vec<u8>,
    /// Size in bytes at the last sync.
    synced_size: usize,
    /// For each granule that was written since the last sync, the contents at the sync and after
    /// each later write.
    versions: BTreeMap<usize, Vec<Vec<u8>>>,
}

fn granule(bytes: &[u8], index: usize) -> Vec<u8> {
    let start = (index * GRANULE).min(bytes.len());
    let mut granule = bytes[start..(start + GRANULE).min(bytes.len())].to_vec();
    granule.resize(GRANULE, 0);
    granule
}

impl Expected {
    fn written(&mut self, offset: usize, bytes: &[u8]) {
        let touched = offset / GRANULE..(offset + bytes.len()).div_ceil(GRANULE);
        for index in touched.clone() {
            let before = granule(&self.now, index);
            self.versions.entry(index).or_insert_with(|| vec![before]);
        }
        self.now.resize(self.now.len().max(offset + bytes.len()), 0);
        self.now[offset..offset + bytes.len()].copy_from_slice(bytes);
        for index in touched {
            let after = granule(&self.now, index);
            self.versions.entry(index).or_default().push(after);
        }
    }

    fn cleared(&mut self, range: Range<usize>) {
        let range = range.start.min(self.now.len())..range.end.min(self.now.len());
        self.written(range.start, &vec![0; range.len()]);
    }

    fn synced(&mut self) {
        self.versions.clear();
        self.synced_size = self.now.len();
    }

    /// Checks the contents that a start found after a power loss. After this check, the found
    /// contents are the expected contents.
    fn check(&mut self, found: Vec<u8>, name: &str) {
        assert!(
            found.len() >= self.synced_size,
            "{name}: {} of {} synced bytes",
            found.len(),
            self.synced_size
        );
        for index in 0..found.len().div_ceil(GRANULE) {
            let got = granule(&found, index);
            // The data on the device may be newer than the size on the device. Bytes beyond the
            // size are not visible.
            let seen = (found.len() - index * GRANULE).min(GRANULE);
            let is_right = match self.versions.get(&index) {
                None => got[..seen] == granule(&self.now, index)[..seen],
                // A device writes sectors atomically, so different sectors of a granule may have
                // different ages.
                Some(versions) => (0..seen).step_by(512).all(|start| {
                    let sector = start..seen.min(start + 512);
                    versions.iter().any(|version| version[sector.clone()] == got[sector.clone()])
                }),
            };
            assert!(
                is_right,
                "{name}: granule {index} of {} bytes has wrong contents; {} versions",
                found.len(),
                self.versions.get(&index).map_or(0, Vec::len)
            );
        }
        self.synced_size = 0;
        self.versions.clear();
        // Until the next sync, none of these contents is certainly on the device.
        for index in 0..found.len().div_ceil(GRANULE) {
            self.versions.insert(index, vec![vec![0; GRANULE], granule(&found, index)]);
        }
        self.now = found;
    }
}

fn file_key(file: u64) -> ChunkFileKey {
    ChunkFileKey { inode: InodeId::new(1 + file * 1000), generation: 0, component: 0, index: 0 }
}

async fn write_some(store: &Rc<ChunkStore>, random: &Random, file: u64, expected: &mut Expected) {
    let length = if random.below(2) == 0 { 1 + random.below(9000) } else { random.below(700_000) };
    let offset = random.below(LONGEST - length);
    let fill = random.below(255) as u8 + 1;
    let bytes: Vec<u8> = (0..length).map(|at| fill ^ (at / 777) as u8).collect();
    let mut checksums = Vec::new();
    let first = GRANULE - (offset as usize % GRANULE);
    let (head, rest) = bytes.split_at(first.min(bytes.len()));
    checksums.extend((!head.is_empty()).then(|| crc32c(head)));
    checksums.extend(rest.chunks(GRANULE).map(crc32c));
    let stripe = StripeHint { chunk_bytes: 1 << 20, width: 1, component_start: 0 };
    // Expect the new bytes too, because a write that is in progress during the power loss may
    // survive.
    expected.written(offset as usize, &bytes);
    let key = file_key(file);
    let to =
        Destination { key: &key, stripe, offset, truncate_generation: u64::MAX, must_exist: false };
    store.write(to, &Buf::copy_of(&bytes), &checksums).await.unwrap();
}

async fn clear_some(store: &Rc<ChunkStore>, random: &Random, file: u64, expected: &mut Expected) {
    let (start, length) = (random.below(LONGEST), random.below(3 << 20));
    expected.cleared(start as usize..(start + length) as usize);
    store.clear(&file_key(file), start..start + length, u64::MAX).await.unwrap();
    if random.below(2) == 0 {
        store.reserve(&file_key(file), start..start + length, u64::MAX, false).await.unwrap();
    }
}

/// Runs random operations until the disk is copied. Returns the incarnation.
async fn work(
    store: Rc<ChunkStore>,
    random: Rc<Random>,
    model: Rc<RefCell<Vec<Expected>>>,
    start_truncation: impl FnOnce() -> std::thread::JoinHandle<bool>,
) -> HostIncarnation {
    let mut start_truncation = Some(start_truncation);
    let mut cut = None;
    let cut_at = 40 + random.below(60);
    let mut step = 0;
    while !cut.as_ref().is_some_and(std::thread::JoinHandle::is_finished) {
        step += 1;
        if step == cut_at {
            cut = start_truncation.take().map(|start| start());
        }
        let file = random.below(FILES);
        let mut expected = std::mem::take(&mut model.borrow_mut()[file as usize]);
        match random.below(14) {
            0..9 => write_some(&store, &random, file, &mut expected).await,
            9..11 => {
                store.sync(&file_key(file)).await.unwrap();
                // If the copy of the disk has started, it may contain the state before this sync,
                // so the sync does not count.
                if cut.is_none() {
                    expected.synced();
                }
            }
            11 => store.clean().await.unwrap(),
            _ => clear_some(&store, &random, file, &mut expected).await,
        }
        model.borrow_mut()[file as usize] = expected;
    }
    assert!(cut.is_some_and(|cut| cut.join().unwrap()), "the image was copied");
    // Wait for the end of all write-backs. A write-back that outlives the event loop would keep its
    // file open, so the disk could not be unmounted.
    let deadline = skep_env::now() + Duration::from_secs(20);
    while !store.disk.has_no_write_back() {
        assert!(skep_env::now() < deadline, "all write-backs end");
        skep_env::sleep(Duration::from_millis(1)).await;
    }
    store.incarnation()
}

async fn check(store: Rc<ChunkStore>, model: Rc<RefCell<Vec<Expected>>>) {
    for file in 0..FILES {
        let mut found = Vec::new();
        loop {
            let read = store.read(&file_key(file), found.len() as u64, 1 << 20).await.unwrap();
            if read.data.is_empty() {
                break;
            }
            found.extend_from_slice(&read.data.bytes());
        }
        model.borrow_mut()[file as usize].check(found, &format!("file {file}"));
    }
}

#[test]
fn synced_chunk_data_survives_power_losses_and_is_readable() {
    let Some(mut disk) = Disk::new() else { return };
    let seed = std::env::var("SKEP_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(skep_env::random_u64);
    eprintln!("to repeat: SKEP_TEST_SEED={seed}");
    let random = Rc::new(Random(RefCell::new(SplitMix64::new(seed))));
    let model = Rc::new(RefCell::new(Vec::new()));
    model.borrow_mut().resize_with(FILES as usize, Expected::default);
    for round in 0..ROUNDS {
        eprintln!("round {round}");
        let store = ChunkStore::open(&disk.inner, CLUSTER, TARGET).unwrap();
        let working = work(store, Rc::clone(&random), Rc::clone(&model), disk.cut());
        let before = skep_env::block_on(working).unwrap();
        disk.restore();
        let store = ChunkStore::open(&disk.inner, CLUSTER, TARGET).unwrap();
        assert_ne!(store.incarnation(), before, "acknowledged writes may be lost");
        skep_env::block_on(check(store, Rc::clone(&model))).unwrap();
    }
}

/// docs/semantics.md 3.5. A process that was killed has left writes in the page cache, and the next
/// process ends cleanly. The end of this next process must make the writes durable, because the
/// start after a clean end keeps the incarnation.
#[test]
fn clean_end_makes_writes_of_a_killed_process_durable() {
    let Some(mut disk) = Disk::new() else { return };
    let data = pattern(1, MIB as usize);
    let (store, bytes) = (open(&disk.inner), data.clone());
    let before = store.incarnation();
    skep_env::block_on(async move { write(&store, key(1), 0, &bytes).await.unwrap() }).unwrap();
    let store = open(&disk.inner);
    skep_env::block_on(async move { store.close().await.unwrap() }).unwrap();
    assert!(disk.cut()().join().unwrap(), "the image was copied");
    disk.restore();
    let store = open(&disk.inner);
    let is_reported = store.incarnation() != before;
    let reading = async move { read(&store, key(1), 0, 1 << 20).await.unwrap() };
    let found = skep_env::block_on(reading).unwrap();
    assert!(is_reported || found == data, "{} bytes are left", found.len());
}
