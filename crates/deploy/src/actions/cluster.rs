//! The scripts of the steps for several management nodes and for copies of metadata.

use crate::hosts::Place;
use std::fmt::Write;

/// The shell function `ask`, which runs a command of `skep` for the cluster whose management runs
/// on this host.
const ASK: &str = "ask() { /usr/bin/skep \"$@\" --cluster /srv/skep/management; }\n";
/// Time limit in seconds for a removal from management. The other members may have to elect a
/// leader first.
const REMOVAL_LIMIT: u32 = 60;
/// Time limit in seconds for the registration of a target.
const REGISTRATION_LIMIT: u32 = 60;

/// Removes a directory of management that an interrupted initialisation has left without a node id.
/// The initialisation then starts from the beginning. The node id is the number at byte 49 of the
/// file `skep-identity` (docs/format/identity.md), and is written at the end of the initialisation.
pub(super) const REMOVE_HALF_INITIALISED: &str = "\
    identity=/srv/skep/management/skep-identity\n\
    if [ -e $identity ] && ! is_recorded 'initialised management' &&\n\
    [ \"$(od -A n -t u4 -j 49 -N 4 $identity | tr -d ' ')\" = 0 ]; then\n\
    rm -rf /srv/skep/management\n\
    fi\n";

/// Returns the script that makes the management node of this host a member. The script changes
/// nothing if the node is a member.
pub(super) fn add_member() -> String {
    format!(
        "{ASK}text=$(ask management add --directory /srv/skep/management 2>&1) || die \"$text\"\n"
    )
}

/// Returns the script that removes a management node whose service was stopped. The script runs on
/// the host of another member. If the node was the leader, the script waits for the next leader.
pub(super) fn remove_member(node: u32) -> String {
    format!(
        "{ASK}is_gone() {{\n\
         found=$(ask management status --output ndjson 2>/dev/null) &&\n\
         ! printf '%s\\n' \"$found\" | grep -q '\"id\":{node}[,}}]'\n\
         }}\n\
         removed() {{\n\
         ! is_gone || return 0\n\
         ask management remove {node} >/dev/null 2>&1 || true\n\
         is_gone\n\
         }}\n\
         (await {REMOVAL_LIMIT} 'the node was not removed within {REMOVAL_LIMIT} s' removed) ||\n\
         {{ ask management remove {node} >&2 || true; exit 1; }}\n"
    )
}

/// Returns the script that removes the directory and the configuration file of a host's management
/// node. The script also removes their entries from `/etc/skep/deploy.list`. `remove.sh` reads this
/// list to find all that the deployment has created on the host.
pub(super) fn discard_management() -> String {
    "stop_service management\n\
     config=/etc/skep/management-$CLUSTER.toml\n\
     rm -rf /srv/skep/management\n\
     rm -f $config\n\
     for entry in 'initialised management' 'changed management' 'dir /srv/skep/management' \
     \"file $config\"; do\n\
     forget \"$entry\"\n\
     done\n"
        .into()
}

/// Returns the script that sets the number of copies of metadata.
pub(super) fn set_copies(copies: u32) -> String {
    format!("{ASK}text=$(ask config set metadata-copies {copies} 2>&1) || die \"$text\"\n")
}

/// Returns the shell function `registered`. The function succeeds if management lists the metadata
/// target of a host and a directory as online. The function sets the variable `id` to the id of the
/// target.
fn find_target() -> String {
    format!(
        "{ASK}targets() {{ ask target list --output ndjson; }}\n\
         registered() {{\n\
         id=$(targets | grep '\"kind\":\"metadata\"' | grep '\"reachability\":\"Online\"' |\n\
         grep -F \"\\\"node_name\\\":\\\"$1\\\"\" | grep -F \"\\\"path\\\":\\\"$2\\\"\" |\n\
         sed 's/.*\"id\":\\([0-9]*\\).*/\\1/' | head -n 1)\n\
         [ -n \"$id\" ]\n\
         }}\n"
    )
}

/// Returns the line that waits until a target is registered.
fn await_target(Place { host, path }: &Place) -> String {
    format!(
        "await {REGISTRATION_LIMIT} 'the metadata target {path} of host {host} is not registered \
         after {REGISTRATION_LIMIT} s; skep target list shows the targets' registered {host} \
         {path}\n"
    )
}

/// Returns the script that creates a metadata group. The script changes nothing if the group
/// exists.
pub(super) fn create_group(members: &[Place]) -> String {
    let mut text = find_target() + "ids=\n";
    for member in members {
        let _ = writeln!(text, "{}ids=\"$ids $id\"", await_target(member));
    }
    // `$ids` has no quotes, because it is one word for each target. The command checks again that
    // the targets are in different failure domains.
    text + "text=$(ask group create $ids 2>&1) || die \"$text\"\n"
}

/// Returns the script that makes a target a member of an existing metadata group. The script
/// changes nothing if the target is a member of the group.
pub(super) fn add_copy(group: u32, place: &Place) -> String {
    format!(
        "{}{}if ! targets | grep \"\\\"id\\\":$id[,}}]\" | grep -q '\"group\":{group}[,}}]'; then\n\
         text=$(ask group add {group} \"$id\" 2>&1) || die \"$text\"\n\
         fi\n",
        find_target(),
        await_target(place)
    )
}
