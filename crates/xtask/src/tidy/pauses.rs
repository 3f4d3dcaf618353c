//! The list of all files whose code may pause. A pause belongs to a retry, a poll, a periodic task
//! or a delay. The list must stay short, because retries at several levels multiply. Code that
//! needs a pause should call a function that already pauses. If no such function fits, add the file
//! of the code to the list, with the reason.

use super::Problems;
use std::path::PathBuf;

/// Files that call `sleep`, each with the reason.
#[rustfmt::skip]
const PAUSES: &[(&str, &str)] = &[
    ("crates/bench/src/storage.rs", "poll: asks storage targets for the progress of a benchmark"),
    ("crates/client/src/attributes/pattern.rs",
     "poll: closes of this mount that the kernel has not reported yet"),
    ("crates/client/src/files/deferred_close.rs", "delay: collects closes for one message"),
    ("crates/client/src/files/later_report.rs", "delay: one report of times for many syncs"),
    ("crates/client/src/mount.rs", "poll: the capacity of the cluster, for one lease at most"),
    ("crates/client/src/session/restore_opens.rs",
     "delay: until closes in progress have ended, before the next comparison"),
    ("crates/client/src/sharing/follow.rs", "retry: waits for notifications of a metadata target"),
    ("crates/consensus/src/runtime.rs", "timers of the Raft library"),
    ("crates/copy/src/hosts.rs", "delay: until the process of a lost host has certainly ended"),
    ("crates/copy/src/pace.rs",
     "delay: keeps a copy or a purge below the rate that the user allows"),
    ("crates/ctl/src/cmd/client/evict.rs", "poll: locks and opens of the evicted client"),
    ("crates/ctl/src/cmd/target/give_up.rs",
     "poll: metadata targets that have the map in which a target is lost, and end their \
      transactions"),
    ("crates/ctl/src/cmd/target/remove.rs",
     "poll: requests and removals of chunk files in progress on a target; the next heartbeat of \
      its node"),
    ("crates/ctl/src/cmd/target/replace.rs",
     "poll: the copy of the store of a group to a new member; the reply of its primary"),
    ("crates/ctl/src/cmd/down.rs", "poll: the end of the supervisor"),
    ("crates/ctl/src/cmd/ondemand/job_output.rs",
     "poll: the state of the results of a Slurm job, written by its first node, and the nodes that \
      have not read it; delay: before a copy, for cached names"),
    ("crates/ctl/src/cmd/stats/live/figures.rs",
     "poll: the reply of the mount to an earlier question"),
    ("crates/ctl/src/cmd/stats/live/mod.rs",
     "period: the interval between two requests for statistics"),
    ("crates/ctl/src/cmd/stats/measure.rs", "period: the length of the measurement"),
    ("crates/ctl/src/cmd/trace.rs", "period: the interval between two questions to the mount"),
    ("crates/ctl/src/cmd/umount.rs", "poll: the end of the process of a mount"),
    ("crates/ctl/src/cmd/why/own.rs", "period: the interval between two questions to the mount"),
    ("crates/ctl/src/ending_signals.rs", "poll: a signal that ends a command"),
    ("crates/ctl/src/local/former.rs", "poll: the end of processes of a killed supervisor"),
    ("crates/ctl/src/local/readiness.rs", "poll: readiness of a child process"),
    ("crates/ctl/src/local/supervisor.rs",
     "period: looks at its child processes; delay: before it restarts one"),
    ("crates/ctl/src/output.rs",
     "period: the interval between two outputs of a command that runs until it is interrupted; \
      poll: the end of the reader of these outputs"),
    ("crates/exporter/src/http.rs", "retry: accepting a connection"),
    ("crates/exporter/src/pauses.rs", "period: checks whether the threads of the process have run"),
    ("crates/exporter/src/tls.rs", "period: looks for a changed certificate"),
    ("crates/fuse/src/ops/holds.rs", "delay: before the release of a file for a repeated open"),
    ("crates/fuse/src/session.rs", "delay: time for programs to leave a detached mount"),
    ("crates/fuse/src/trace_reports.rs",
     "period: the interval between two reports of slow operations"),
    ("crates/fuse/src/transport/control.rs", "delay: between FORGET messages"),
    ("crates/fuse/src/worker.rs",
     "delay: until the kernel has accepted all registrations; pause between two wake-ups"),
    ("crates/lab/src/capacity.rs", "period: the time of a measurement"),
    ("crates/lab/src/process.rs", "poll: the end of a process"),
    ("crates/lab/src/services.rs", "poll: readiness of the lab's services"),
    ("crates/management/src/follower.rs", "poll: whether this member of management leads"),
    ("crates/management/src/handlers/get_map.rs", "delay: spreads replies to many waiting nodes"),
    ("crates/management/src/leadership.rs",
     "period: asks a majority whether this member still leads"),
    ("crates/management/src/lib.rs",
     "period: the clock tick of the authority; retry: accepting a connection; delay: the start \
      after repeated panics"),
    ("crates/monitor/src/alertmanager.rs",
     "period: looks for changed alerts; retry: alerts that an Alertmanager does not accept"),
    ("crates/monitor/src/child_program.rs", "poll: the end of a program of the host"),
    ("crates/monitor/src/group_rounds.rs",
     "period: the interval between two questions for the progress of members"),
    ("crates/monitor/src/copies.rs",
     "period: the interval between two copies of the load; retry: copies that failed"),
    ("crates/monitor/src/ganglia.rs", "retry: accepting a connection"),
    ("crates/monitor/src/lib.rs", "period: the interval between rounds"),
    ("crates/monitor/src/record_rounds.rs",
     "period: the interval between two questions for traces"),
    ("crates/monitor/src/otlp.rs", "period: the interval between two exports of traces"),
    ("crates/monitor/src/name_service.rs", "period: looks for users without a known name"),
    ("crates/monitor/src/notify.rs", "retry: notifications that a webhook does not accept"),
    ("crates/rpc/src/client.rs",
      "delay: until the rest of the reply to a dropped call has arrived"),
    ("crates/rpc/src/membership/lost_targets.rs",
     "retry: reports of lost targets to a management that was restored from a backup"),
    ("crates/rpc/src/membership/client.rs", "retry: registration and heartbeats of a client"),
    ("crates/rpc/src/membership/management.rs", "retry: requests to management and to its leader"),
    ("crates/rpc/src/membership/map.rs", "retry: polling the cluster map"),
    ("crates/rpc/src/refusal_log.rs",
     "delay: collects refused connections for one line of the log"),
    ("crates/rpc/src/routing/idle.rs", "period: looks for idle connections of a client"),
    ("crates/rpc/src/routing.rs", "retry: requests to targets, by retry class, with back-off"),
    ("crates/s3/src/retry.rs", "retry: requests to an object store, with back-off"),
    ("crates/service/src/cached_map.rs",
     "delay: limits writes of the cached cluster map; retry: after a failed write"),
    ("crates/service/src/followed_token.rs", "period: looks for a changed token"),
    ("crates/service/src/host/connections.rs", "retry: accepting a connection"),
    ("crates/service/src/host/mod.rs", "delay: the start after repeated panics"),
    ("crates/service/src/host/retries.rs", "retry: a target that cannot be served"),
    ("crates/service/src/listen.rs", "retry: binding an address that is still in use"),
    ("crates/service/src/token_proof.rs",
     "retry: management may not have read its own new token yet"),
    ("crates/service/src/tokens.rs", "retry: another process changes the tokens of the directory"),
    ("crates/storage/src/benchmark.rs",
     "poll: the end of a benchmark's streams; whether its client still asks for the progress"),
    ("crates/storage/src/event_loops.rs",
     "period: a loop waits again for targets after an error of the kernel"),
    ("crates/storage/src/emulation.rs", "delay: emulates a slow device"),
    ("crates/storage/src/orphans.rs", "period: the clean-up of chunk files without inodes"),
    ("crates/store/src/identity.rs",
     "poll: the end of a killed process that still holds the lock of a directory"),
    ("crates/tune/src/record_lock.rs", "retry: another command changes the settings of the kernel"),
];

/// Crates that the check omits: the event loop itself, and programs that users do not run.
const UNCHECKED: &[&str] = &["crates/env/", "crates/sim/", "crates/testkit/", "crates/xtask/"];

/// Checks that the list contains each source file that pauses, and no other file.
pub(super) fn check(sources: &[(PathBuf, String)]) -> Problems {
    let mut problems = Problems::new();
    let mut pausing = Vec::new();
    for (path, text) in sources {
        let name = path.to_string_lossy();
        let is_product = name.starts_with("crates/") && name.contains("/src/");
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if !is_product || is_test || UNCHECKED.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        if let Some(line) = first_pause(text) {
            if PAUSES.iter().all(|(listed, _)| *listed != name) {
                problems.push(format!(
                    "{name}:{line}: this line sleeps; use the retries of rpc::routing, or list \
                     the file with its reason in tidy/pauses.rs"
                ));
            }
            pausing.push(name.into_owned());
        }
    }
    let gone = PAUSES.iter().filter(|(listed, _)| pausing.iter().all(|name| name != listed));
    problems.extend(
        gone.map(|(listed, _)| format!("tidy/pauses.rs: {listed} never sleeps; remove its row")),
    );
    problems
}

/// Returns the number of the line with the first call of `sleep` that is not in a unit test or a
/// comment.
fn first_pause(text: &str) -> Option<usize> {
    let code = text.split("\n#[cfg(test)]").next().unwrap_or(text);
    let pauses = |line: &str| line.split("//").next().unwrap_or_default().contains("sleep(");
    code.lines().position(pauses).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_calls_outside_of_tests_are_found() {
        assert_eq!(first_pause("a\nskep_env::sleep(PAUSE).await"), Some(2));
        assert_eq!(first_pause("// sleep(1)\n\n#[cfg(test)]\nmod tests { sleep(1) }"), None);
    }

    #[test]
    fn file_with_a_new_sleep_call_must_be_listed() {
        let source = (PathBuf::from("crates/client/src/new.rs"), "sleep(1)".to_owned());
        assert!(check(&[source]).iter().any(|problem| problem.contains("client/src/new.rs")));
    }
}
