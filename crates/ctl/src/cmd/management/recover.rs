//! `skep management recover`: reduces the management of a cluster to one member. Administrators use
//! this command when the majority of the members is lost for ever.

use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_management::recover;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "show which changes the member has",
        "skep management recover --directory /srv/skep/management",
    ),
    (
        "make this member the only one",
        "skep management recover --directory /srv/skep/management --confirm",
    ),
];

/// Make one member the only member of management, after the majority is lost for ever
///
/// Run the command on the member with the most changes, while the service of this member is
/// stopped. Changes that only the lost members have are gone, so new ids and map versions continue
/// at much higher numbers, as after `skep cluster restore`. Never restart the other members: make
/// their directories empty, and add the nodes as new members.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RecoverArgs {
    /// Directory of the member
    #[arg(long)]
    directory: PathBuf,
    /// Make this member the only member; without this option, only show which changes this member
    /// has
    #[arg(long = "confirm")]
    is_confirmed: bool,
}

/// The JSON output: the recovered member.
#[derive(Debug, Serialize)]
struct Recovery {
    cluster: String,
    #[serde(serialize_with = "crate::output::path")]
    directory: PathBuf,
    /// Index of the last log entry that this member has stored.
    last: u64,
    /// Term of the last log entry that this member has stored. The member with the highest term has
    /// the most changes. If several members have this term, the member with the highest index among
    /// them has the most changes.
    term: u64,
    /// The ids of the members, as stored by this member.
    members: Vec<u64>,
    is_dry_run: bool,
}

pub(crate) fn run(args: &RecoverArgs) -> Result<()> {
    let found = recover(&args.directory, args.is_confirmed)?;
    let recovery = Recovery {
        cluster: found.cluster.to_string(),
        directory: args.directory.clone(),
        last: found.last,
        term: found.term,
        members: found.members,
        is_dry_run: !args.is_confirmed,
    };
    print(&recovery, as_text)
}

fn as_text(recovery: &Recovery) -> String {
    let Recovery { cluster, directory, last, term, members, is_dry_run } = recovery;
    let members: Vec<_> = members.iter().map(u64::to_string).collect();
    let (members, directory) = (members.join(", "), directory.display());
    match is_dry_run {
        true => format!(
            "{directory} has the changes up to {last} of cluster {cluster}, whose members were \
             {members}. The last change is of term {term}. If other members remain, run this \
             command with --confirm on the member with the highest term. If several members have \
             this term, choose the member with the highest number of the last change.\n"
        ),
        false => format!(
            "{directory} is now the only member of cluster {cluster}, with the changes up to \
             {last}. Start management with this directory. Never restart the previous members \
             {members}.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A former leader may have many entries that no majority has stored.
    #[test]
    fn members_are_compared_by_term_before_the_number_of_changes() {
        let recovery = Recovery {
            cluster: "c".into(),
            directory: "/srv/skep/management".into(),
            last: 110,
            term: 5,
            members: vec![1, 2, 3, 4],
            is_dry_run: true,
        };
        let text = as_text(&recovery);
        assert!(text.contains("is of term 5") && text.contains("up to 110"), "{text}");
        assert!(text.find("highest term") < text.find("highest number"), "{text}");
    }
}
