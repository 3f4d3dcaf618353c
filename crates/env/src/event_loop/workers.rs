//! The kernel's worker threads, which carry out operations that cannot complete at once.

use super::with_loop;
use std::io;

/// Sets the maximum number of kernel threads that carry out operations on files for this thread's
/// loop, such as syncs (Linux 5.15). By default it is four for each processor.
///
/// # Errors
/// Returns the error of the kernel. Its present limit stays then.
pub fn limit_kernel_workers(count: u32) -> io::Result<()> {
    // Zero leaves the limit of the other kind of workers, which wait for sockets and pipes.
    with_loop(|it| it.ring.submitter().register_iowq_max_workers(&mut [count, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_kernel_workers_reaches_the_kernel() {
        crate::block_on(async {
            limit_kernel_workers(37).unwrap();
            // Zeros change nothing, and the kernel returns its present limits.
            let mut limits = [0, 0];
            with_loop(|it| it.ring.submitter().register_iowq_max_workers(&mut limits)).unwrap();
            assert_eq!(limits[0], 37);
        })
        .unwrap();
    }
}
