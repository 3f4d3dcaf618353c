//! Page-aligned, reference-counted buffers for one thread. The thread keeps the memory of dropped
//! buffers in a pool by size, and reuses this memory until the thread ends.
//!
//! # Aliasing
//! Clones and slices of a buffer share its memory, and the kernel fills buffers while their handles
//! exist. Rust permits a reference to bytes only while nothing changes them. So each buffer counts
//! its users at run time, like a `RefCell`:
//! - [`Buf::bytes`] returns a guard. While a guard of some part of the memory exists, no method
//!   changes the memory, and no operation begins to fill the memory.
//! - [`Buf::begin_fill`] marks a range that the kernel fills. Until the mark is dropped,
//!   [`Buf::bytes`] refuses every range that overlaps with the marked range. Operations may fill
//!   other ranges of the same memory at the same time, for example the pieces of one large read.
//!
//! A violation of these rules is a bug of the caller, and causes a panic. Each operation that fills
//! a buffer keeps the mark until its completion has arrived, even if its future is dropped.

use std::alloc::{Layout, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

/// A thread pools memory of sizes from [`SMALLEST_CLASS`] to [`LARGEST_CLASS`], at most
/// [`POOLED_PER_CLASS`] pieces of each size.
const SMALLEST_CLASS: usize = 4096;
const LARGEST_CLASS: usize = 8 << 20;
const POOLED_PER_CLASS: usize = 16;
/// Minimum size in bytes of a buffer whose memory comes from `mmap` instead of the allocator. The
/// kernel adds zeroed pages to a mapping on first use. The allocator would have to zero the whole
/// aligned block during the allocation.
const SMALLEST_MAPPED: usize = 256 << 10;

/// Memory that is freed or unmapped when dropped.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

/// Memory of a buffer, with the number of its guards and the ranges that the kernel fills. The
/// memory returns to the thread's pool when dropped.
struct Allocation {
    memory: ManuallyDrop<Memory>,
    /// Number of guards ([`BufBytes`]).
    readers: Cell<usize>,
    /// The ranges that the kernel fills ([`Fill`]).
    fills: RefCell<Fills>,
}

/// The ranges of an [`Allocation`] that the kernel fills, in bytes from its start. The first range
/// needs no heap memory, since most allocations have at most one range.
#[derive(Default)]
struct Fills {
    first: Option<Range<usize>>,
    more: Vec<Range<usize>>,
}

impl Fills {
    fn iter(&self) -> impl Iterator<Item = &Range<usize>> {
        self.first.iter().chain(&self.more)
    }

    fn add(&mut self, range: Range<usize>) {
        match self.first {
            None => self.first = Some(range),
            Some(_) => self.more.push(range),
        }
    }

    /// Removes one of the ranges that equal `range`.
    fn remove(&mut self, range: &Range<usize>) {
        if self.first.as_ref() == Some(range) {
            self.first = self.more.pop();
        } else if let Some(at) = self.more.iter().position(|it| it == range) {
            self.more.swap_remove(at);
        }
    }
}

thread_local! {
    /// Free memory, indexed by size class.
    static POOL: RefCell<Vec<Vec<Memory>>> = const { RefCell::new(Vec::new()) };
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, 4096).expect("buffer sizes are far below isize::MAX")
}

impl Allocation {
    fn new(len: usize) -> Self {
        let capacity = len.next_power_of_two().max(SMALLEST_CLASS);
        let pooled = (capacity <= LARGEST_CLASS)
            .then(|| POOL.with_borrow_mut(|pool| pool.get_mut(class(capacity))?.pop()))
            .flatten();
        let memory = ManuallyDrop::new(pooled.unwrap_or_else(|| Memory::new(capacity)));
        Self { memory, readers: Cell::new(0), fills: RefCell::default() }
    }
}

impl Memory {
    fn new(capacity: usize) -> Self {
        let raw = if capacity >= SMALLEST_MAPPED {
            map(capacity)
        } else {
            // SAFETY: the layout has a size of at least one page. This call zeroes the bytes before
            // any reader can access them. Zeroing costs no time for pages that the allocator has
            // just received from the kernel, because these pages are zero already.
            unsafe { std::alloc::alloc_zeroed(layout(capacity)) }
        };
        let start = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout(capacity)));
        Self { start, capacity }
    }
}

/// Maps zeroed pages. The kernel allocates memory for a page only at the first use of the page.
fn map(capacity: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: this call creates a new mapping and replaces no existing mapping.
    let raw = unsafe { libc::mmap(std::ptr::null_mut(), capacity, access, flags, -1, 0) };
    if raw == libc::MAP_FAILED { std::ptr::null_mut() } else { raw.cast() }
}

fn class(capacity: usize) -> usize {
    (capacity.trailing_zeros() - SMALLEST_CLASS.trailing_zeros()) as usize
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and no code uses the field after `drop`.
        let mut memory = Some(unsafe { ManuallyDrop::take(&mut self.memory) });
        // While a thread ends, its pool may have been dropped already. This code then frees the
        // memory itself.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            let Some(capacity) = memory.as_ref().map(|memory| memory.capacity) else { return };
            if capacity > LARGEST_CLASS {
                return;
            }
            let class = class(capacity);
            if pool.len() <= class {
                pool.resize_with(class + 1, Vec::new);
            }
            let free = &mut pool[class];
            if free.len() < POOLED_PER_CLASS {
                free.extend(memory.take());
            }
        });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.capacity >= SMALLEST_MAPPED {
            // SAFETY: the memory was mapped with this length, and no other handle to it exists.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.capacity) };
        } else {
            // SAFETY: the memory was allocated with this layout, and no other handle to it exists.
            unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) };
        }
    }
}

/// A handle to a range of page-aligned memory. Clones and slices share the memory.
#[derive(Clone)]
pub struct Buf {
    allocation: Rc<Allocation>,
    start: usize,
    len: usize,
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

impl Buf {
    /// Creates a buffer of `len` bytes. The contents of the new buffer are arbitrary: zeros, or the
    /// bytes of an earlier buffer.
    pub fn new(len: usize) -> Self {
        Self { allocation: Rc::new(Allocation::new(len)), start: 0, len }
    }

    /// Creates a buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let buf = Self::new(bytes.len());
        buf.write(0, bytes);
        buf
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of handles to the buffer's memory, including this handle. If there is
    /// more than one handle, an operation whose future was dropped may still be filling the memory.
    pub fn handles(&self) -> usize {
        Rc::strong_count(&self.allocation)
    }

    /// Returns a handle to a part of the buffer. `range` is in bytes from the start of the buffer.
    ///
    /// # Panics
    /// Panics if `range` is not within the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "slice within its buffer");
        Self {
            allocation: Rc::clone(&self.allocation),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// Returns the address of the first byte, for system calls.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` lies within the allocation.
        unsafe { self.allocation.memory.start.as_ptr().add(self.start) }
    }

    /// Returns a guard that derefs to the bytes of the buffer. The caller must keep the guard only
    /// for a few statements, and not over an `await`. While the guard exists, nothing may change
    /// the memory.
    ///
    /// # Panics
    /// Panics if the kernel is filling a part of these bytes.
    pub fn bytes(&self) -> BufBytes<'_> {
        let (start, end) = (self.start, self.start + self.len);
        let is_filled = |fill: &Range<usize>| fill.start < end && start < fill.end;
        let is_free = !self.allocation.fills.borrow().iter().any(is_filled);
        assert!(is_free, "no operation fills the bytes that a caller reads");
        let readers = &self.allocation.readers;
        readers.set(readers.get() + 1);
        // SAFETY: the range is allocated and initialised. The guard has been counted, so until it
        // is dropped no method of this type changes the memory, and no operation fills it.
        let bytes = unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) };
        BufBytes { bytes, readers }
    }

    /// Marks the buffer as being filled by the kernel until the returned value is dropped. The
    /// returned value is also a handle to the memory.
    ///
    /// # Panics
    /// Panics if a guard of [`Self::bytes`] exists for any part of the memory.
    pub fn begin_fill(&self) -> Fill {
        self.assert_no_reader();
        let range = self.start..self.start + self.len;
        self.allocation.fills.borrow_mut().add(range);
        Fill(self.clone())
    }

    /// Checks that no reference to bytes of the memory exists.
    fn assert_no_reader(&self) {
        assert!(self.allocation.readers.get() == 0, "nothing changes bytes that a caller reads");
    }

    /// Copies `bytes` into the buffer from offset `at` on.
    ///
    /// # Panics
    /// Panics if `bytes` do not fit into the buffer from `at` on, or if a guard of [`Self::bytes`]
    /// exists for any part of the memory.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "write within its buffer");
        self.assert_no_reader();
        // SAFETY: the destination lies within the allocation, and no reference to its bytes exists.
        // So `bytes` does not overlap with the destination.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(at), bytes.len())
        };
    }

    /// Copies the bytes of `range` to the start of the buffer.
    ///
    /// # Panics
    /// Panics if `range` is not within the buffer, or if a guard of [`Self::bytes`] exists for any
    /// part of the memory.
    pub fn move_to_start(&self, range: Range<usize>) {
        let part = self.slice(range);
        self.assert_no_reader();
        // SAFETY: both ranges lie within the allocation, and no reference to its bytes exists.
        // `copy` allows overlap.
        unsafe { std::ptr::copy(part.as_ptr(), self.as_ptr(), part.len) };
    }

    /// Sets the bytes of `range` to zero.
    ///
    /// # Panics
    /// Panics if `range` is not within the buffer, or if a guard of [`Self::bytes`] exists for any
    /// part of the memory.
    pub fn zero(&self, range: Range<usize>) {
        let part = self.slice(range);
        self.assert_no_reader();
        // SAFETY: the range lies within the allocation, and no reference to its bytes exists.
        unsafe { std::ptr::write_bytes(part.as_ptr(), 0, part.len) };
    }
}

/// The bytes of a buffer. See [`Buf::bytes`].
#[must_use]
pub struct BufBytes<'a> {
    bytes: &'a [u8],
    readers: &'a Cell<usize>,
}

impl std::ops::Deref for BufBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl std::fmt::Debug for BufBytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes.fmt(f)
    }
}

impl Drop for BufBytes<'_> {
    fn drop(&mut self) {
        self.readers.set(self.readers.get() - 1);
    }
}

/// A buffer that the kernel fills. See [`Buf::begin_fill`].
#[derive(Debug)]
#[must_use]
pub struct Fill(Buf);

impl Drop for Fill {
    fn drop(&mut self) {
        let range = self.0.start..self.0.start + self.0.len;
        self.0.allocation.fills.borrow_mut().remove(&range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned_and_slices_share_their_memory() {
        let buf = Buf::new(10_000);
        assert_eq!(buf.as_ptr() as usize % 4096, 0);
        buf.slice(5000..5004).write(0, b"skep");
        assert_eq!(&buf.bytes()[5000..5004], b"skep");
        buf.zero(5001..5003);
        assert_eq!(&buf.bytes()[5000..5004], b"s\0\0p");
        buf.write(2, b"overlapping");
        buf.move_to_start(2..13);
        assert_eq!(&buf.bytes()[..13], b"overlappingng");
    }

    /// Returns whether a call panics.
    fn panics(call: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    }

    #[test]
    fn buffer_bytes_do_not_change_while_a_guard_exists() {
        let buf = Buf::copy_of(b"before");
        let other = buf.slice(3..6);
        {
            let bytes = buf.bytes();
            assert!(panics(|| other.write(0, b"xyz")), "a slice shares the memory");
            assert!(panics(|| buf.zero(0..1)));
            assert!(panics(|| buf.move_to_start(1..3)));
            assert!(panics(|| drop(buf.begin_fill())));
            assert_eq!(*bytes, *b"before");
        }
        other.write(0, b"xyz");
        assert_eq!(*buf.bytes(), *b"befxyz");
    }

    #[test]
    fn buffer_cannot_be_read_during_a_fill_by_the_kernel() {
        let buf = Buf::copy_of(b"0123456789");
        let (one, other) = (buf.slice(2..5).begin_fill(), buf.slice(5..8).begin_fill());
        for range in [0..3, 4..6, 7..8, 0..10] {
            assert!(panics(|| drop(buf.slice(range.clone()).bytes())), "{range:?}");
        }
        assert_eq!(
            (&*buf.slice(0..2).bytes(), &*buf.slice(8..10).bytes()),
            (&b"01"[..], &b"89"[..])
        );
        drop(one);
        assert_eq!(*buf.slice(2..5).bytes(), *b"234", "the first operation has ended");
        assert!(panics(|| drop(buf.slice(5..6).bytes())));
        drop(other);
        assert_eq!(buf.bytes().len(), 10);
    }

    #[test]
    fn buffer_cannot_be_read_until_all_fills_have_ended() {
        let buf = Buf::new(8);
        let (one, other) = (buf.begin_fill(), buf.begin_fill());
        assert_eq!(buf.handles(), 3, "an operation keeps the memory");
        drop(one);
        assert!(panics(|| drop(buf.bytes())));
        drop(other);
        assert_eq!((buf.bytes().len(), buf.handles()), (8, 1));
    }

    #[test]
    fn buffers_of_the_same_size_share_no_memory() {
        for len in [0, 1, 4096, 4097, SMALLEST_MAPPED, SMALLEST_MAPPED + 1] {
            let buffers: Vec<_> = (0..3).map(|_| Buf::new(len)).collect();
            for (number, buf) in buffers.iter().enumerate() {
                buf.zero(0..len);
                buf.write(0, &vec![number as u8 + 1; len.min(5)]);
            }
            for (number, buf) in buffers.iter().enumerate() {
                assert!(buf.bytes().iter().take(5).all(|byte| *byte == number as u8 + 1));
            }
        }
    }

    /// Regression test for a leak that a fuzzer found. Each thread that ended leaked up to 16
    /// buffers of each size. The test does not run under Miri, because Miri has no `/proc`. Miri
    /// detects leaks in each test that it runs.
    #[cfg(not(miri))]
    #[test]
    fn ended_thread_frees_the_memory_of_its_buffers() {
        let mapped_pages = || {
            let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
            sizes.split(' ').next().unwrap().parse::<usize>().unwrap()
        };
        let leaked_pages = || {
            let before = mapped_pages();
            for _ in 0..40 {
                let work = || drop([4096, 1 << 20, LARGEST_CLASS].map(Buf::new));
                std::thread::spawn(work).join().unwrap();
            }
            mapped_pages().saturating_sub(before)
        };
        // Other tests of this process map memory at the same time, but not during every attempt.
        assert!((0..5).any(|_| leaked_pages() < 20 * LARGEST_CLASS / 4096));
    }
}
