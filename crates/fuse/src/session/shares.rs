//! The workers of a mount: their number, and the queues of the kernel that each worker serves.
//!
//! Each worker has connections of its own to the targets, so the number of workers decides the
//! number of connections (docs/design/0001-threads-and-store.md). The module [`super`] owns the
//! threads.

use crate::limits;
use crate::transport::kernel;
use crate::transport::{TransportChoice, TransportKind};

/// Number of entries in the kernel's queue of a CPU without a worker. A worker is missing if this
/// process may not run on the CPU, or if the CPU may never come online. A few entries are enough
/// for requests to make progress.
const FOREIGN_SLOTS: usize = 4;

/// The ports that one worker serves.
#[derive(Debug)]
pub(super) struct WorkerPorts {
    /// The CPU to which the worker's thread is pinned, if any.
    pub(super) cpu: Option<usize>,
    /// Queues of the kernel (CPU numbers), each with its number of entries.
    pub(super) queues: Vec<(u16, usize)>,
}

/// Returns the maximum number of workers that a mount starts, summed over all transports that the
/// mount may try. `limit` is the largest number for one transport; `None` means one for each CPU.
pub(crate) fn most_workers(choice: TransportChoice, limit: Option<usize>) -> usize {
    match choice {
        TransportChoice::Only(kind) => shares(kind, limit).len(),
        TransportChoice::Auto => {
            shares(TransportKind::Uring, limit).len() + shares(TransportKind::Device, limit).len()
        }
    }
}

/// Returns the ports of each worker, for at most `limit` workers, but at least one.
pub(super) fn shares(transport: TransportKind, limit: Option<usize>) -> Vec<WorkerPorts> {
    let cpus = skep_env::available_cpus();
    let most = limit.unwrap_or(usize::MAX).max(1);
    match transport {
        TransportKind::Device => {
            let count = cpus.len().clamp(2, limits::MAX_DEVICE_WORKERS).min(most);
            (0..count).map(|_| WorkerPorts { cpu: None, queues: Vec::new() }).collect()
        }
        TransportKind::Uring => uring_shares(&cpus, kernel::possible_cpus(), most),
    }
}

/// Divides the queues of `possible` CPUs between at most `most` workers. `cpus` are the CPUs on
/// which this process may run. A worker serves neighbouring CPUs, which often share caches and
/// memory. Workers are pinned only if each CPU has a worker of its own: otherwise the scheduler
/// finds a free CPU.
fn uring_shares(cpus: &[usize], possible: u16, most: usize) -> Vec<WorkerPorts> {
    let workers = cpus.len().min(most);
    let mut shares: Vec<_> = (0..workers)
        .map(|index| {
            let cpu = (workers == cpus.len()).then(|| cpus[index]);
            WorkerPorts { cpu, queues: Vec::new() }
        })
        .collect();
    for queue in 0..possible {
        let own = cpus.iter().position(|cpu| *cpu == usize::from(queue));
        let slots = if own.is_some() { limits::SLOTS_PER_WORKER } else { FOREIGN_SLOTS };
        let index = own.map_or(usize::from(queue) % workers, |own| own * workers / cpus.len());
        shares[index].queues.push((queue, slots));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_of_the_kernel_has_one_worker() {
        let all: Vec<usize> = (0..12).collect();
        for cpus in [&all[..], &all[..1], &all[3..7], &[0, 2, 9][..]] {
            for most in 1..=13 {
                let shares = uring_shares(cpus, 12, most);
                assert_eq!(shares.len(), cpus.len().min(most));
                let queues = shares.iter().flat_map(|it| it.queues.iter().map(|(queue, _)| *queue));
                let mut queues: Vec<_> = queues.collect();
                queues.sort_unstable();
                assert!(queues.into_iter().eq(0..12), "{cpus:?} {most}");
            }
        }
    }

    #[test]
    fn cpus_are_divided_evenly_and_one_worker_per_cpu_is_pinned() {
        let cpus: Vec<usize> = (0..64).collect();
        let of = |most| uring_shares(&cpus, 64, most);
        let each = |most| of(most).iter().map(|it| it.queues.len()).collect::<Vec<_>>();
        assert_eq!(each(8), [8; 8]);
        assert_eq!((each(1), each(64)), (vec![64], vec![1; 64]));
        assert!(each(10).iter().all(|count| (6..=7).contains(count)));
        assert!(of(8).iter().all(|it| it.cpu.is_none()));
        assert!(of(64).iter().enumerate().all(|(index, it)| it.cpu == Some(index)));
        let neighbours: Vec<_> = of(8)[1].queues.iter().map(|(queue, _)| *queue).collect();
        assert!(neighbours.into_iter().eq(8..16));
    }

    #[test]
    fn at_least_one_worker_serves_a_mount() {
        for transport in [TransportKind::Uring, TransportKind::Device] {
            assert_eq!(shares(transport, Some(1)).len(), 1);
            assert_eq!(shares(transport, Some(0)).len(), 1);
        }
    }
}
