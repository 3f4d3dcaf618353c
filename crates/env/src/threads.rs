//! Named threads, which may be pinned to a CPU.

use std::io;
use std::thread::JoinHandle;

/// Size of the stack of a thread. Builds without optimisation hold several copies of each nested
/// future on the stack. In a mount, they need more than 2 MiB, the default of the standard library.
/// Pages that a thread never uses take no memory.
const STACK_BYTES: usize = 8 << 20;

/// Maximum number of CPUs in a kernel's CPU set that this program reads.
const MAX_CPUS: usize = 1 << 16;

/// Returns the numbers of the CPUs that this process may run on. There is at least one.
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

/// Starts a thread, and pins it to `cpu` if a CPU is given. If the kernel refuses to pin the
/// thread, this costs only speed and is ignored.
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
            let mut words = vec![0_u64; cpu / 64 + 1];
            words[cpu / 64] = 1 << (cpu % 64);
            // SAFETY: the vector has the given length in bytes; thread 0 is the calling one. A
            // failure costs only speed.
            unsafe {
                libc::sched_setaffinity(0, words.len() * size_of::<u64>(), words.as_ptr().cast());
            }
        }
        body()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
