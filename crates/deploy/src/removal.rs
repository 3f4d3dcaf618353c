//! Checks whether the cluster uses the targets of a host, before `skep deploy remove` deletes their
//! data. Management decides this for each storage target (`skep target remove --dry-run`).
//!
//! The module owns the script and the texts of the refusals. The script changes nothing.

use crate::cluster::{Cluster, ClusterTarget};
use crate::hosts::{Host, Role};
use skep_types::{Error, ErrorCode, Result};

/// End of the refusal of `skep target remove` if the service serves a closed storage target without
/// files. Each other refusal counts as a use, also if another version of `skep` words it otherwise.
const UNUSED: &str = "; no file lies on the target, and no directory's pattern names the target";
/// Time limit in seconds for the check of one target. All metadata targets list their files.
const CHECK_SECONDS: u32 = 60;
/// Page and section that explain how files leave a target.
const PAGE: &str = "docs/operations/administration.md#retire-a-storage-target-or-server";

/// Returns the ids of the storage targets of a host.
pub(crate) fn storage_targets(cluster: &Cluster, host: &Host) -> Vec<u32> {
    let targets = cluster.targets_on(host).into_iter();
    targets.filter(|it| it.kind == Role::Storage.word()).map(|it| it.id).collect()
}

/// Returns the script that prints the uses of storage targets, one target per line: its id, tab,
/// `free` or `refused`, tab, and the text of `skep`. The script runs on a host of management.
pub(crate) fn script(targets: &[u32]) -> String {
    let ids: Vec<_> = targets.iter().map(u32::to_string).collect();
    format!(
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         export PATH LC_ALL=C\n\
         for id in {}; do\n\
         state=free\n\
         text=$(timeout {CHECK_SECONDS} /usr/bin/skep target remove --dry-run \"$id\" \
         --cluster /srv/skep/management 2>&1) || state=refused\n\
         text=$(printf '%s' \"$text\" | tr '\\n\\t' '  ')\n\
         printf '%s\\t%s\\t%s\\n' \"$id\" \"$state\" \"$text\"\n\
         done\n",
        ids.join(" ")
    )
}

/// Returns an error if the cluster uses targets of the host. `output` is the output of [`script`].
///
/// # Errors
/// `InUse` with one line for each used target, and the way to remove the host.
pub(crate) fn refuse_used(cluster: &Cluster, host: &Host, output: &str) -> Result<()> {
    let uses = cluster.targets_on(host).into_iter().filter_map(|target| {
        let ClusterTarget { id, path, .. } = target;
        let reason = use_of(cluster, target, output)?;
        Some(format!("\n  target {id} ({path}): {reason}"))
    });
    let uses: String = uses.collect();
    if uses.is_empty() {
        return Ok(());
    }
    let name = &host.name;
    let what = format!(
        "cannot remove host {name}: the cluster uses its targets, and the removal would delete \
         data of the cluster:{uses}\nClose the targets and move their files first ({PAGE}). To \
         delete the data, add --destroy-data --confirm {name}"
    );
    Err(Error::new(ErrorCode::InUse, what))
}

/// Returns how the cluster uses a target. `None` means that the removal of the target loses no
/// file.
fn use_of(cluster: &Cluster, target: &ClusterTarget, output: &str) -> Option<String> {
    if target.kind != Role::Storage.word() {
        let mut groups = cluster.groups.iter();
        let group = groups.find(|it| it.members.iter().any(|it| it.target == target.id))?;
        return Some(format!("metadata group {} may have a part of the namespace on it", group.id));
    }
    let of_target = |line: &str| {
        let (id, rest) = line.split_once('\t')?;
        let (state, text) = rest.split_once('\t')?;
        (id == target.id.to_string()).then(|| (state.to_owned(), text.trim().to_owned()))
    };
    match output.lines().find_map(of_target) {
        Some((state, _)) if state == "free" => None,
        Some((_, text)) if text.contains(UNUSED) => None,
        Some((_, text)) if !text.is_empty() => Some(text),
        _ => Some(format!("management has not listed its files within {CHECK_SECONDS} s")),
    }
}

/// Returns the error for a host with targets if management does not answer.
pub(crate) fn unknown_uses(host: &Host) -> Error {
    let name = &host.name;
    let what = format!(
        "cannot remove host {name}: management does not answer, so this command cannot check \
         whether files lie on the targets of the host; start management, for example with `skep \
         deploy apply`. To delete the data without this check, add --destroy-data --confirm {name}"
    );
    Error::new(ErrorCode::NotReady, what)
}

/// Returns an error if the option `--confirm` names another host than the one to remove.
///
/// # Errors
/// `InvalidArgument` if the names differ.
pub(crate) fn check_confirmation(host: &Host, confirm: Option<&str>) -> Result<()> {
    let Some(confirm) = confirm.filter(|it| *it != host.name) else { return Ok(()) };
    let what = format!(
        "cannot remove host {}: --confirm names '{confirm}'; repeat the name of the host",
        host.name
    );
    Err(Error::new(ErrorCode::InvalidArgument, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::{add_storage, group, led_by};
    use crate::hosts::Deployment;
    use crate::hosts::tests::SEVERAL;

    /// Returns the reason why the host `s1` cannot be removed. Its targets are 4 and 5.
    fn refused(output: &str) -> String {
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let mut cluster = led_by(&["a1"]);
        add_storage(&mut cluster, "s1", "10.0.0.4", &[4, 5]);
        let host = deployment.host("s1").unwrap();
        assert_eq!(storage_targets(&cluster, host), [4, 5]);
        let refused = refuse_used(&cluster, host, output);
        refused.map_or_else(|error| error.context().to_owned(), |()| String::new())
    }

    #[test]
    fn host_is_removed_only_if_no_file_lies_on_its_targets() {
        let free = "4\tfree\tTarget 4 (/disk4) can be removed.\n";
        let served = format!("5\trefused\tskep: cannot remove target t5: s1 serves it{UNUSED}\n");
        assert_eq!(refused(&format!("{free}{served}")), "");
        let used = "5\trefused\tskep: cannot remove target 5: 2187 files lie on the target\n";
        let text = refused(&format!("{free}{used}"));
        for words in ["target 5 (/disk5): ", "2187 files", PAGE, "--destroy-data --confirm s1"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("target 4 ("), "{text}");
        let open = "5\trefused\tskep: this target is open to new files; close the target. At the \
                    moment no file lies on the target, and no directory's pattern names the target";
        assert!(refused(&format!("{free}{open}")).contains("open to new files"));
    }

    #[test]
    fn target_without_an_answer_counts_as_used() {
        let text = refused("4\trefused\t\n");
        assert_eq!(text.matches("has not listed its files").count(), 2, "{text}");
    }

    #[test]
    fn host_with_the_only_copy_of_a_metadata_group_is_not_removed() {
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let mut cluster = led_by(&["a1"]);
        add_storage(&mut cluster, "s1", "10.0.0.4", &[2]);
        for it in &mut cluster.targets {
            it.kind = "metadata".into();
        }
        let host = deployment.host("s1").unwrap();
        assert!(refuse_used(&cluster, host, "").is_ok(), "no group has the target");
        cluster.groups = vec![group(9, &[("s1", "/disk2")])];
        let text = refuse_used(&cluster, host, "").unwrap_err().context().to_owned();
        assert!(text.contains("metadata group 9 may have a part of the namespace"), "{text}");
    }

    #[test]
    fn confirmation_must_name_the_removed_host() {
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let host = deployment.host("s1").unwrap();
        assert!(check_confirmation(host, None).is_ok());
        assert!(check_confirmation(host, Some("s1")).is_ok());
        let error = check_confirmation(host, Some("s2")).unwrap_err();
        assert!(error.context().contains("--confirm names 's2'"), "{error}");
    }

    /// The script must print one line for each target, also if the text has several lines.
    #[test]
    fn script_prints_one_line_for_each_target() {
        let fake = "fake() { printf 'a\\tb\\nc'; return 1; }\n";
        let script = script(&[4, 5]).replace("timeout 60 /usr/bin/skep", "fake");
        let output = crate::ssh::run_here(&format!("{fake}{script}")).unwrap();
        assert_eq!(output.text, "4\trefused\ta b c\n5\trefused\ta b c\n");
    }
}
