//! Page-aligned, reference-counted buffers for one thread. The thread keeps the memory of dropped
//! buffers in a pool by size, and reuses it until the thread ends.

use std::alloc::{Layout, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

/// A thread pools memory of sizes from [`SMALLEST_CLASS`] to [`LARGEST_CLASS`], at most
/// [`POOLED_PER_CLASS`] pieces of each size.
const SMALLEST_CLASS: usize = 4096;
const LARGEST_CLASS: usize = 8 << 20;
const POOLED_PER_CLASS: usize = 16;
/// Minimum size in bytes of memory that is mapped with `mmap` instead of allocated. The kernel adds
/// zeroed pages to a mapping on first use. The allocator would have to zero an aligned block at
/// once.
const SMALLEST_MAPPED: usize = 256 << 10;

/// Memory that is freed or unmapped when dropped.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

/// Memory of a buffer. It returns to the thread's pool when dropped.
struct Allocation(ManuallyDrop<Memory>);

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
        Self(ManuallyDrop::new(pooled.unwrap_or_else(|| Memory::new(capacity))))
    }
}

impl Memory {
    fn new(capacity: usize) -> Self {
        let raw = if capacity >= SMALLEST_MAPPED {
            map(capacity)
        } else {
            // SAFETY: the layout has a size of at least one page. The bytes are zeroed here, before
            // any reader can see them. A page that is new from the kernel costs the same with and
            // without zeroing.
            unsafe { std::alloc::alloc_zeroed(layout(capacity)) }
        };
        let start = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout(capacity)));
        Self { start, capacity }
    }
}

/// Maps zeroed pages. A page takes memory only from its first use on.
fn map(capacity: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: this creates a new mapping and replaces no existing one.
    let raw = unsafe { libc::mmap(std::ptr::null_mut(), capacity, access, flags, -1, 0) };
    if raw == libc::MAP_FAILED { std::ptr::null_mut() } else { raw.cast() }
}

fn class(capacity: usize) -> usize {
    (capacity.trailing_zeros() - SMALLEST_CLASS.trailing_zeros()) as usize
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `drop` runs once, and the field is not used afterwards.
        let mut memory = Some(unsafe { ManuallyDrop::take(&mut self.0) });
        // While a thread ends, its pool may be gone already. In that case the memory is freed.
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
    /// Creates a buffer of `len` bytes. Its contents are arbitrary: zeros, or the bytes of an
    /// earlier buffer.
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

    /// Returns the number of handles to the buffer's memory, including this one. If there is more
    /// than one handle, an operation whose future was dropped may still be filling the memory.
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
        unsafe { self.allocation.0.start.as_ptr().add(self.start) }
    }

    /// Returns the bytes of the buffer.
    ///
    /// # Hazard: buffers in flight
    /// The caller must not call this function while the kernel is filling the buffer.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is allocated and initialised. By the contract above, no caller calls
        // this while the kernel is filling the buffer.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Copies `bytes` into the buffer from offset `at` on.
    ///
    /// # Panics
    /// Panics if `bytes` do not fit into the buffer from `at` on.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "write within its buffer");
        // SAFETY: the destination lies within the allocation; `copy` allows overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.as_ptr().add(at), bytes.len()) };
    }

    /// Copies the bytes of `range` to the start of the buffer.
    ///
    /// # Panics
    /// Panics if `range` is not within the buffer.
    pub fn move_to_start(&self, range: Range<usize>) {
        let part = self.slice(range);
        // SAFETY: both ranges lie within the allocation; `copy` allows overlap.
        unsafe { std::ptr::copy(part.as_ptr(), self.as_ptr(), part.len) };
    }

    /// Sets the bytes of `range` to zero.
    ///
    /// # Panics
    /// Panics if `range` is not within the buffer.
    pub fn zero(&self, range: Range<usize>) {
        let part = self.slice(range);
        // SAFETY: the range lies within the allocation.
        unsafe { std::ptr::write_bytes(part.as_ptr(), 0, part.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_memory_and_are_aligned() {
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

    /// Regression test for a leak that a fuzzer found. Each thread that ended leaked up to 16
    /// buffers of each size.
    #[test]
    fn a_thread_that_ends_frees_its_memory() {
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
