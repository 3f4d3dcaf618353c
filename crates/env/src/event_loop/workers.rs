//! The io_uring workers: kernel threads that execute operations which cannot complete immediately.

use super::{Ring, with_loop};
use crate::threads::bound_cpus;
use std::io;

/// Sets the maximum number of io_uring workers that execute file operations, such as syncs, for
/// this thread's loop (Linux 5.15). The default is four workers per processor.
///
/// # Errors
/// Returns the error of the kernel. After an error, the limit is unchanged.
pub fn limit_kernel_workers(count: u32) -> io::Result<()> {
    // Zero leaves the limit of the workers for sockets and pipes unchanged.
    with_loop(|it| it.ring.submitter().register_iowq_max_workers(&mut [count, 0]))
}

/// Binds the io_uring workers of a new ring to the CPUs to which this process is bound. Unlike
/// threads, workers do not inherit the CPUs of the thread that causes their start. A failed binding
/// only makes file operations slower than with the binding.
pub(super) fn bind_kernel_workers(ring: &Ring) {
    let Some(cpus) = bound_cpus() else { return };
    // SAFETY: all bits of an empty set are zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < 8 * size_of::<libc::cpu_set_t>()) {
        // SAFETY: the set has a bit for this CPU.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    ring.submitter().register_iowq_aff(&set).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_io_uring_workers_reaches_the_kernel() {
        crate::block_on(async {
            limit_kernel_workers(37).unwrap();
            // Zeros change nothing, and the kernel returns its current limits.
            let mut limits = [0, 0];
            with_loop(|it| it.ring.submitter().register_iowq_max_workers(&mut limits)).unwrap();
            assert_eq!(limits[0], 37);
        })
        .unwrap();
    }
}
