//! Starts named threads, which may be pinned to a CPU, and sets the CPUs and the preferred NUMA
//! node of a process.

use std::io;
use std::sync::OnceLock;
use std::thread::JoinHandle;

/// Size of the stack of a thread. Builds without optimisation hold several copies of each nested
/// future on the stack. In a mount, these copies need more than 2 MiB, the default of the standard
/// library. Stack pages that a thread never uses take no memory.
const STACK_BYTES: usize = 8 << 20;

/// Maximum number of CPUs in a kernel's CPU set that this program reads.
const MAX_CPUS: usize = 1 << 16;

/// Returns the numbers of the CPUs on which this process may run. The list has at least one number.
pub fn available_cpus() -> Vec<usize> {
    // The kernel refuses a set that is smaller than its own.
    let mut words = vec![0_u64; 16];
    while words.len() * 64 <= MAX_CPUS {
        // SAFETY: the vector has the given length in bytes, and the kernel writes at most this
        // number of bytes.
        let result = unsafe {
            libc::sched_getaffinity(0, words.len() * size_of::<u64>(), words.as_mut_ptr().cast())
        };
        let is_set = |cpu: &usize| words[cpu / 64] >> (cpu % 64) & 1 == 1;
        let cpus: Vec<_> = (0..words.len() * 64).filter(is_set).collect();
        if result == 0 && !cpus.is_empty() {
            return cpus;
        }
        words = vec![0; words.len() * 2];
    }
    vec![0]
}

/// Starts a thread, and pins it to `cpu` if a CPU is given. The function ignores a refusal of the
/// kernel to pin the thread, because the refusal costs only speed.
///
/// # Errors
/// Returns an error if the process may start no more threads.
pub fn spawn_thread<T: Send + 'static>(
    name: String,
    cpu: Option<usize>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
        if let Some(cpu) = cpu {
            // Ignore a refusal to pin the thread.
            set_affinity(&[cpu]).ok();
        }
        body()
    })
}

/// Starts a thread that may run on all of `cpus`. Without this function, a thread inherits the CPUs
/// of the calling thread, which may be pinned to one CPU. The function ignores a refusal of the
/// kernel to change the CPUs, because the refusal costs only speed.
///
/// # Errors
/// Returns an error if the process may start no more threads.
pub fn spawn_thread_on<T: Send + 'static>(
    name: String,
    cpus: Vec<usize>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_thread(name, None, move || {
        // Ignore a refusal to change the CPUs.
        set_affinity(&cpus).ok();
        body()
    })
}

/// The CPUs to which [`bind_to_cpus`] has bound this process.
static BOUND: OnceLock<Vec<usize>> = OnceLock::new();

/// Binds the calling thread, and all threads that the calling thread starts after this call, to
/// `cpus`. The event loops of these threads also bind their io_uring workers to `cpus`. A process
/// calls this function once, before it starts threads.
///
/// # Errors
/// Returns the error of the kernel if this process may use none of the CPUs.
pub fn bind_to_cpus(cpus: &[usize]) -> io::Result<()> {
    set_affinity(cpus)?;
    BOUND.set(cpus.to_vec()).ok();
    Ok(())
}

/// Returns the CPUs to which [`bind_to_cpus`] has bound this process. `None` means that the process
/// is not bound.
pub(crate) fn bound_cpus() -> Option<&'static [usize]> {
    BOUND.get().map(Vec::as_slice)
}

/// Binds the calling thread, and all threads that it starts after this call, to these CPUs.
fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    let words = bits(cpus);
    // SAFETY: the vector has the given length in bytes; thread 0 is the calling thread.
    let result = unsafe {
        libc::sched_setaffinity(0, words.len() * size_of::<u64>(), words.as_ptr().cast())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the kernel to allocate memory on a NUMA node as long as the node has free memory. The
/// preference applies to the pages that the calling thread is the first to use. It also applies to
/// the threads that the calling thread starts after this call.
///
/// # Errors
/// Returns the error of the kernel if there is no such node, or if the process may not use it.
pub fn prefer_memory_of(node: usize) -> io::Result<()> {
    let words = bits(&[node]);
    // The kernel subtracts one from the passed number of bits, so pass one bit more.
    let bits = words.len() * 64 + 1;
    // SAFETY: the vector has at least the given number of bits minus one, and the kernel only reads
    // it.
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, words.as_ptr(), bits)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a set of numbers in the form of the kernel: one bit for each number.
fn bits(numbers: &[usize]) -> Vec<u64> {
    let mut words = vec![0_u64; numbers.iter().max().map_or(1, |last| last / 64 + 1)];
    for number in numbers {
        words[number / 64] |= 1 << (number % 64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_thread_inherits_the_cpus_of_a_bound_thread() {
        let cpus = available_cpus();
        let chosen = vec![cpus[cpus.len() - 1]];
        let expected = chosen.clone();
        let inner = move || {
            set_affinity(&chosen).unwrap();
            spawn_thread("inner".into(), None, available_cpus).unwrap().join().unwrap()
        };
        let outer = spawn_thread("outer".into(), None, inner).unwrap();
        assert_eq!(outer.join().unwrap(), expected);
        assert!(set_affinity(&[MAX_CPUS]).is_err(), "this CPU does not exist");
        assert_eq!(available_cpus(), cpus, "other threads keep their CPUs");
    }

    #[test]
    fn pinned_thread_can_start_a_thread_for_all_cpus() {
        let cpus = available_cpus();
        let (first, all) = (cpus[0], cpus.clone());
        let inner =
            move || spawn_thread_on("inner".into(), all, available_cpus).unwrap().join().unwrap();
        let outer = spawn_thread("outer".into(), Some(first), inner).unwrap();
        assert_eq!(outer.join().unwrap(), cpus);
    }

    #[test]
    fn bit_mask_has_one_bit_for_each_number_of_a_set() {
        assert_eq!(bits(&[]), [0]);
        assert_eq!(bits(&[0, 3, 64]), [0b1001, 1]);
    }

    #[test]
    fn pinned_thread_runs_on_the_chosen_cpu() {
        for cpu in available_cpus() {
            let pinned = spawn_thread("pinned".into(), Some(cpu), available_cpus).unwrap();
            assert_eq!(pinned.join().unwrap(), [cpu]);
        }
        // Pinning to a CPU that does not exist has no effect.
        let all = spawn_thread("unpinned".into(), Some(MAX_CPUS), available_cpus).unwrap();
        assert_eq!(all.join().unwrap(), available_cpus());
    }
}
