//! `skep target remove --lost`: marks a target whose disk is lost for good as lost.
//!
//! This module lists the files that lose bytes, and checks the value of `--confirm`. The effect of
//! a lost target on requests is in `skep_rpc::routing`. Metadata targets count their pending
//! removals and truncations of chunk files on a lost target as done.

use crate::access::{Access, PATIENCE, block_on};
use crate::entry_paths::{EntryPaths, WITHOUT_NAME};
use crate::group_files::{GroupUses, is_unwritten};
use crate::output::{print, render, size, table};
use crate::view::target_named;
use serde::Serialize;
use skep_types::map::Consistency;
use skep_types::{ClusterMap, Error, ErrorCode, FileKind, Result, Target, TargetId};
use skep_wire::management::RemoveTarget;
use std::fmt::Write;
use std::time::Duration;

/// Time between two rounds of requests to metadata targets.
const PAUSE: Duration = Duration::from_millis(200);

/// The JSON output: a lost target, and the files that lose bytes because of this loss.
#[derive(Debug, Serialize)]
struct Loss {
    id: u32,
    path: String,
    /// Whether the target is marked as lost, by this command or by an earlier command. `false` if
    /// the command only lists the files.
    is_given_up: bool,
    /// The reason why the target cannot be marked as lost now. Set only if the command lists the
    /// files and changes nothing.
    refusal: Option<String>,
    /// The files that lose bytes, or may lose bytes.
    files: Vec<DamagedFile>,
    /// Number of files that have no bytes on the target, but whose patterns name the target. Files
    /// without bytes on the target lose nothing, but later writes beyond their current size can
    /// fail with EIO.
    unwritten_files: usize,
    /// The paths of the directories whose patterns name the target.
    directories: Vec<String>,
    /// Number of transactions in progress. These transactions may have created files that are
    /// missing in `files`.
    transactions: u64,
}

/// A file that loses bytes.
#[derive(Debug, Serialize)]
struct DamagedFile {
    entry_id: String,
    path: String,
    /// Number of bytes on the target that the file loses, computed as if the file had no holes.
    lost_bytes: u64,
    /// Whether a client has the file open for writing. A file that is open for writing may lose
    /// more bytes.
    is_written: bool,
}

/// Lists the files that lose bytes, and marks the target as lost if `confirm` is its id.
pub(super) fn run(access: Access, target: String, confirm: Option<String>) -> Result<()> {
    let loss = block_on(async move {
        let map = access.map().await?;
        let target = target_named(&map, &target)?;
        check_confirmation(target, confirm.as_deref())?;
        let request = |is_dry_run| RemoveTarget { target: target.id, is_dry_run, is_lost: true };
        let refusal = match access.ask(&request(true)).await {
            // Without `--confirm`, the command changes nothing, so the list is shown even if the
            // target cannot be marked as lost now.
            Err(error) if confirm.is_none() && error.code() == ErrorCode::InUse => {
                Some(error.context().to_owned())
            }
            checked => checked.map(|_| None)?,
        };
        // Lists the uses of the target even if the user has confirmed the loss. If a metadata
        // target does not answer, the command fails at this point, and has changed nothing.
        let mut uses = uses_of(&access, &map, target.id).await?;
        let is_given_up = confirm.is_some() || target.consistency == Consistency::Bad;
        if confirm.is_some() {
            access.ask(&request(false)).await?;
            uses = uses_after_loss(&access, target.id).await.map_err(|error| {
                let id = target.id.raw();
                error.within(format_args!(
                    "target {id} is marked as lost, but this command cannot list the files that \
                     lose bytes"
                ))
            })?;
        }
        let loss = loss_of(&access, target, is_given_up, uses).await?;
        Ok(Loss { refusal, ..loss })
    })?;
    print(&loss, as_text)
}

async fn uses_of(access: &Access, map: &ClusterMap, target: TargetId) -> Result<GroupUses> {
    match map.group_of(target) {
        Some(group) => GroupUses::of(access, map, group.id).await,
        None => Ok(GroupUses::default()),
    }
}

/// Waits until all metadata targets have a map in which the target is lost, so that no metadata
/// target places more files on the lost target. Also waits for transactions, but returns after a
/// time limit even if some transactions are still in progress. Then lists the uses of the target.
///
/// # Errors
/// `TimedOut` if a metadata target does not get the map. Without this error, the list could lack
/// files that this metadata target still places on the lost target.
async fn uses_after_loss(access: &Access, target: TargetId) -> Result<GroupUses> {
    let map = access.map().await?;
    let deadline = skep_env::now() + PATIENCE;
    loop {
        let uses = uses_of(access, &map, target).await?;
        let is_current = uses.oldest_map.is_none_or(|oldest| oldest >= map.version);
        let is_late = skep_env::now() > deadline;
        if is_current && (uses.prepared == 0 || is_late) {
            return Ok(uses);
        }
        if is_late {
            let what = "a metadata target has not received the cluster map in which the target is \
                        lost; repeat the command to list the files";
            return Err(Error::new(ErrorCode::TimedOut, what));
        }
        skep_env::sleep(PAUSE).await;
    }
}

async fn loss_of(
    access: &Access,
    target: &Target,
    is_given_up: bool,
    uses: GroupUses,
) -> Result<Loss> {
    let mut loss = Loss {
        id: target.id.raw(),
        path: target.path.clone(),
        is_given_up,
        refusal: None,
        files: Vec::new(),
        unwritten_files: uses.unwritten(),
        directories: Vec::new(),
        transactions: uses.prepared,
    };
    let mut paths = EntryPaths::of(access).await?;
    for file in uses.files.into_iter().filter(|file| !is_unwritten(file)) {
        let path = paths.text_of(file.inode).await;
        match file.kind {
            FileKind::Directory => loss.directories.push(path),
            _ => loss.files.push(DamagedFile {
                entry_id: file.inode.to_string(),
                path,
                lost_bytes: file.bytes,
                is_written: file.is_written,
            }),
        }
    }
    Ok(loss)
}

fn check_confirmation(target: &Target, confirm: Option<&str>) -> Result<()> {
    let is_same = |text: &str| text == target.id.to_string() || text == target.id.raw().to_string();
    match confirm {
        Some(text) if !is_same(text) => {
            let what = format!(
                "cannot mark target {} as lost: --confirm names another target, '{text}'",
                target.id.raw()
            );
            Err(Error::new(ErrorCode::InvalidArgument, what))
        }
        _ => Ok(()),
    }
}

fn as_text(loss: &Loss) -> String {
    let Loss { id, path, files, unwritten_files, directories, transactions, .. } = loss;
    let mut text = String::new();
    if !files.is_empty() {
        let mut shown = table(&[">LOST", "ENTRY", "PATH"]);
        for file in files {
            let path = match file.is_written {
                true => format!("{} (open for writing)", file.path),
                false => file.path.clone(),
            };
            shown.add_row([size(file.lost_bytes), file.entry_id.clone(), path]);
        }
        text += &render(&shown);
    }
    let bytes: u64 = files.iter().map(|file| file.lost_bytes).sum();
    let _ = writeln!(
        text,
        "Target {id} ({path}): {} {}. `skep entry map FILE` shows which ranges of a file are on \
         this target.",
        match files.iter().filter(|file| file.lost_bytes > 0).count() {
            1 => "1 file loses".to_owned(),
            count => format!("{count} files lose"),
        },
        size(bytes)
    );
    let written = files.iter().filter(|file| file.is_written).count();
    if written > 0 {
        let _ = writeln!(
            text,
            "Clients have {written} of the listed files open for writing, so these files may lose \
             more bytes."
        );
    }
    if *unwritten_files > 0 {
        let _ = writeln!(
            text,
            "Further files that have no bytes on the target, but name the target in their stripe \
             patterns: {unwritten_files}. These files lose nothing, but after the loss, writes \
             beyond their current size can fail with EIO. `skep target files --paths {id}` also \
             lists these files; `cp -a FILE FILE.new && mv FILE.new FILE` places such a file on \
             other targets."
        );
    }
    if *transactions > 0 {
        let _ = writeln!(
            text,
            "{transactions} transactions are in progress and may have created files that the list \
             lacks. `skep target files {id}` lists such files after the end of the transactions."
        );
    }
    for directory in directories {
        let _ = writeln!(
            text,
            "The pattern of {directory} names the target: give the directory another pattern with \
             `skep entry set`."
        );
    }
    if files.iter().any(|file| file.path == WITHOUT_NAME) {
        let _ = writeln!(
            text,
            "For files {WITHOUT_NAME}, `skep client files` shows which mounts have these files \
             open: such a file vanishes when the programs close the file."
        );
    }
    text + &last_line(loss)
}

/// Returns the last line of the output. The last line names the change, and the commands that the
/// user can run next.
fn last_line(loss: &Loss) -> String {
    let id = loss.id;
    match (loss.is_given_up, &loss.refusal) {
        (true, _) => format!(
            "Target {id} is marked as lost. Restore or remove the files that lost bytes. Copy the \
             other files whose stripe patterns name the target: the copies lie on other targets. \
             Then run `skep target remove {id}`.\n"
        ),
        (false, Some(refusal)) => format!("Nothing is changed. Not yet possible: {refusal}\n"),
        (false, None) => format!(
            "Nothing is changed. `skep target remove --lost --confirm {id} {id}` marks the target \
             as lost for ever.\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_about_a_lost_target_names_the_next_step() {
        let mut loss = Loss {
            id: 7,
            path: "/disk".into(),
            is_given_up: false,
            refusal: Some("it has been silent for only 22 s".into()),
            files: vec![DamagedFile {
                entry_id: "i1".into(),
                path: WITHOUT_NAME.into(),
                lost_bytes: 4096,
                is_written: false,
            }],
            unwritten_files: 0,
            directories: Vec::new(),
            transactions: 0,
        };
        let text = as_text(&loss);
        assert!(text.contains("skep client files") && text.contains("1 file loses"), "{text}");
        assert!(text.ends_with("Not yet possible: it has been silent for only 22 s\n"), "{text}");
        loss.refusal = None;
        assert!(as_text(&loss).contains("--confirm 7 7"), "{}", as_text(&loss));
        assert!(!as_text(&loss).contains("Further files"), "{}", as_text(&loss));
        (loss.is_given_up, loss.unwritten_files) = (true, 118);
        let text = as_text(&loss);
        assert!(text.contains("name the target in their stripe patterns: 118."), "{text}");
        assert!(text.contains("is marked as lost") && !text.contains("--confirm"), "{text}");
    }
}
