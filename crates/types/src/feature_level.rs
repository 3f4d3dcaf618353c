//! The feature level of this program. The level of a cluster is in its [`ClusterMap`], and
//! `docs/protocol/versions.md` describes its purpose.

use crate::{ClusterMap, Error, ErrorCode, Result};

/// Newest feature level whose records this program can read and write.
pub const NEWEST_FEATURE_LEVEL: u32 = 2;
/// Feature level from which metadata targets stage changes of two groups
/// (`docs/design/0028-staged-transactions.md`). A program of an older level cannot continue a
/// staged transaction.
pub const STAGING_FEATURE_LEVEL: u32 = 2;

impl ClusterMap {
    /// Checks that this program can read the records of the cluster.
    ///
    /// # Errors
    /// `VersionMismatch` if the cluster has a newer feature level than this program.
    pub fn check_feature_level(&self) -> Result<()> {
        let level = self.feature_level;
        if level <= NEWEST_FEATURE_LEVEL {
            return Ok(());
        }
        let what = format!(
            "cannot use this cluster: the cluster writes records of feature level {level}, and \
             this program reads records up to level {NEWEST_FEATURE_LEVEL}; install the version of \
             Skep that the other hosts run (`skep node list` shows this version), since the level \
             of a cluster never falls"
        );
        Err(Error::new(ErrorCode::VersionMismatch, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterId;

    #[test]
    fn program_refuses_a_cluster_with_a_newer_feature_level() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.feature_level = NEWEST_FEATURE_LEVEL;
        map.check_feature_level().unwrap();
        map.feature_level += 1;
        let error = map.check_feature_level().unwrap_err();
        assert_eq!(error.code(), ErrorCode::VersionMismatch);
        let newest = format!("up to level {NEWEST_FEATURE_LEVEL}");
        for words in [format!("feature level {}", map.feature_level), newest] {
            assert!(error.context().contains(&words), "{error}");
        }
    }
}
