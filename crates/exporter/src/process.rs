//! Statistics of this process, from `/proc/self`.

use skep_metrics::catalog::{
    PROCESS_CPU, PROCESS_FDS, PROCESS_MAX_FDS, PROCESS_RESIDENT, PROCESS_THREADS, PROCESS_VIRTUAL,
};
use skep_metrics::{Snapshot, Source};

/// Reads the statistics of this process for each snapshot. Omits values that the kernel does not
/// provide.
#[derive(Debug)]
pub struct ProcessFigures;

impl Source for ProcessFigures {
    fn collect(&self, snapshot: &mut Snapshot) {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}"));
        if let Some((ticks, threads)) = read("stat").ok().as_deref().and_then(cpu_and_threads) {
            snapshot.count(&PROCESS_CPU, Vec::new(), crate::host::ns_of_ticks(ticks));
            snapshot.count(&PROCESS_THREADS, Vec::new(), threads);
        }
        let status = read("status").unwrap_or_default();
        for (definition, key) in [(&PROCESS_RESIDENT, "VmRSS:"), (&PROCESS_VIRTUAL, "VmSize:")] {
            if let Some(kib) = crate::host::number_after(&status, key) {
                snapshot.count(definition, Vec::new(), kib.saturating_mul(1024));
            }
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            // One of the entries is the file descriptor that this function uses to list the
            // entries.
            let count = open.count().saturating_sub(1) as u64;
            snapshot.count(&PROCESS_FDS, Vec::new(), count);
        }
        if let Some(limit) = read("limits").ok().as_deref().and_then(open_files_limit) {
            snapshot.count(&PROCESS_MAX_FDS, Vec::new(), limit);
        }
    }
}

/// Returns the CPU time in clock ticks, and the number of threads, from `/proc/self/stat`.
fn cpu_and_threads(stat: &str) -> Option<(u64, u64)> {
    // The name of the program is in parentheses, and may itself contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((number(11)?.saturating_add(number(12)?), number(17)?))
}

fn open_files_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_does_not_shift_stat_fields() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 100 0 0 0 250 150 0 0 20 0 9 0 1 2 3";
        assert_eq!(cpu_and_threads(stat), Some((400, 9)));
        assert_eq!(cpu_and_threads("42 (a) S 1"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   4096  files\n";
        assert_eq!(open_files_limit(limits), Some(1024));
    }

    #[test]
    fn process_metrics_are_complete_and_positive() {
        let mut snapshot = Snapshot::default();
        ProcessFigures.collect(&mut snapshot);
        let names: Vec<_> = snapshot.iter().map(|series| series.definition.name).collect();
        assert_eq!(names.len(), 6, "{names:?}");
        for series in snapshot.iter().filter(|series| series.definition != &PROCESS_CPU) {
            assert!(matches!(series.value, skep_metrics::Value::Number(1..)), "{series:?}");
        }
    }
}
