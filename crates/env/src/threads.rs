//! Named threads, which may be pinned to a CPU.

use std::io;
use std::thread::JoinHandle;

/// Returns the numbers of the CPUs that this process may run on.
pub fn available_cpus() -> Vec<usize> {
    // SAFETY: all-zero is a valid set, and the call fills it.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Starts a thread, pinned to `cpu` if there is one. If the kernel refuses to pin the thread, this
/// costs only speed and is ignored.
///
/// # Errors
/// Returns an error if the process may start no more threads.
pub fn spawn_thread<T: Send + 'static>(
    name: String,
    cpu: Option<usize>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name).spawn(move || {
        if let Some(cpu) = cpu {
            // SAFETY: the set is valid; thread 0 is the calling one.
            unsafe {
                let mut set = std::mem::zeroed::<libc::cpu_set_t>();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
            }
        }
        body()
    })
}
