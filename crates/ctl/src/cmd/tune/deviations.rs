//! The deviations of this host from the rules of `skep tune check`, for the records of benchmarks.

use skep_tune::check::{Scope, check, disks, interfaces};
use skep_tune::{Role, Rules, Tree};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns for each role the names of the rules from which this host deviates, without repetition.
/// Checks all disks and all network interfaces of the host, as `skep tune check` does without
/// further options.
pub(in crate::cmd) fn deviating_rules() -> BTreeMap<String, Vec<String>> {
    deviating_rules_of(&Tree::new(Path::new("/")))
}

fn deviating_rules_of(tree: &Tree) -> BTreeMap<String, Vec<String>> {
    let rules = Rules::built_in();
    let of_role = |role: Role| {
        let scope = Scope {
            roles: vec![role],
            devices: disks(tree),
            interfaces: interfaces(tree),
            mounts: Vec::new(),
        };
        let findings = check(tree, &rules, &scope).into_iter().filter(|it| !it.passes);
        let mut names: Vec<String> = findings.map(|it| it.rule).collect();
        names.sort();
        names.dedup();
        names
    };
    Role::ALL.into_iter().map(|(role, name)| (name.to_owned(), of_role(role))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_rules_that_a_host_violates_are_listed_by_role() {
        let root = tempfile::tempdir().unwrap();
        let vm = root.path().join("proc/sys/vm");
        std::fs::create_dir_all(&vm).unwrap();
        let found = |swappiness: &str| {
            std::fs::write(vm.join("swappiness"), swappiness).unwrap();
            deviating_rules_of(&Tree::new(root.path()))
        };
        let deviating = found("60\n");
        assert_eq!(deviating.len(), Role::ALL.len());
        assert_eq!(deviating["storage"], ["swappiness"]);
        assert_eq!(found("10\n")["storage"], Vec::<String>::new());
    }
}
