//! Clusters whose feature level a test raises (`docs/protocol/versions.md`).
//!
//! From level [`STAGING`] on, metadata targets stage changes of two metadata groups
//! (`docs/design/0028-staged-transactions.md`). A metadata target receives the new level with the
//! next cluster map, a moment after the command of the administrator has ended. So
//! [`Cluster::raise_feature_level`] waits until a target has staged a change. Without this wait, a
//! test could end before any change was staged.

use crate::cluster::Cluster;
use crate::files;
use crate::metrics_page;
use crate::wait::{PATIENCE, wait_for};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Feature level from which metadata targets stage changes of two metadata groups.
pub const STAGING: u32 = 2;
/// Number of directories that a test creates between two readings of [`Cluster::staged_changes`].
/// Metadata selects the group of each directory by a hash of the directory's name.
const PROBES: usize = 4;

/// The number in the name of the next directory that [`Cluster::raise_feature_level`] creates.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl Cluster {
    /// Raises the feature level of the cluster to `level`. If the cluster has several metadata
    /// services, waits until metadata stages changes of two groups. For this purpose, creates and
    /// removes directories in the root directory of the file system.
    ///
    /// # Panics
    /// Panics if `skep config set` or a file system call fails, or if no change is staged within a
    /// minute.
    #[track_caller]
    pub fn raise_feature_level(&self, level: u32) {
        self.skep(&["config", "set", "feature-level", &level.to_string()]);
        if level < STAGING || self.metadata_services().len() < 2 {
            return;
        }
        let before = self.staged_changes();
        wait_for("metadata stages changes of two groups", PATIENCE, || {
            for _ in 0..PROBES {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let name = format!("staging-probe-{}-{number}", std::process::id());
                let path = self.path().join(name);
                files::create_dir(&path);
                files::remove_dir(&path);
            }
            (self.staged_changes() > before).then_some(())
        });
    }

    /// Returns the number of requests of the kind `BeginPrepare` that all metadata services have
    /// answered since their last start. A target sends such a request for each change that it
    /// stages. A service that does not reply counts as zero requests.
    pub fn staged_changes(&self) -> u64 {
        let services = self.metadata_services();
        let pages = services.iter().filter_map(|directory| metrics_page::of_service(directory));
        pages.map(|page| sum_of_begin_prepare(&page)).sum()
    }

    /// Returns the directories of the metadata services.
    fn metadata_services(&self) -> Vec<PathBuf> {
        let directory = |number| self.data().join(format!("metadata-{number}"));
        (1_usize..).map(directory).take_while(|it| it.exists()).collect()
    }
}

/// Adds up the samples of the operation `begin_prepare` on a metrics page. A service with several
/// targets has one sample for each target.
fn sum_of_begin_prepare(page: &str) -> u64 {
    let counts = page.lines().filter_map(|line| {
        let labels = line.strip_prefix("skep_metadata_operations_total{")?;
        let (labels, count) = labels.split_once("} ")?;
        labels.contains("operation=\"begin_prepare\"").then(|| count.parse::<u64>().ok())?
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_changes_of_a_service_are_the_sum_over_its_targets() {
        let page = "skep_metadata_operations_total{target=\"1\",operation=\"begin_prepare\"} 3\n\
            skep_metadata_operations_total{target=\"1\",operation=\"prepare\"} 50\n\
            skep_metadata_operations_total{target=\"2\",operation=\"begin_prepare\"} 4\n\
            # EOF\n";
        assert_eq!(sum_of_begin_prepare(page), 7);
        assert_eq!(sum_of_begin_prepare("# EOF\n"), 0);
    }
}
