//! Runs the steps of a plan on many hosts at the same time, and reports each step.
//!
//! If a step fails on a host, no further step runs on this host. The other hosts finish the phase.
//! The run then ends with the errors of all hosts. The run undoes no step, so the same command can
//! continue later.

use crate::actions::{Secrets, script, token_script};
use crate::checks::Program;
use crate::hosts::{Deployment, Host};
use crate::plan::{Action, Phase, count};
use crate::ssh::Ssh;
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A step that has ended, or a step that a plan lists.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    /// Name of the phase to which the step belongs.
    pub phase: &'static str,
    /// Name of the host.
    pub host: String,
    /// Description of the step.
    pub step: String,
    /// Duration of the step. `None` means that the step did not run.
    pub seconds: Option<f64>,
    /// The reason why the step failed. `None` means that the step succeeded or did not run.
    pub error: Option<String>,
}

/// Called for each step that has ended. Gets the number of ended steps, the number of all steps,
/// and the step.
pub type Report<'a> = &'a (dyn Fn(usize, usize, &StepReport) + Sync);

/// Calls `work` for all items, with at most `limit` calls at the same time. Returns the results in
/// the order of the items.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    limit: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..limit.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    *results[index].lock().expect("no thread panics while it holds this lock") =
                        Some(result);
                }
            });
        }
    });
    let taken = results.into_iter().map(|it| it.into_inner().ok().flatten());
    taken.map(|it| it.expect("each item has its result")).collect()
}

/// Runs the steps of plans.
pub struct Executor<'a> {
    deployment: &'a Deployment,
    program: &'a Program,
    /// The host that prints the token.
    acting: &'a Host,
    ssh: Ssh<'a>,
    parallel: usize,
    report: Report<'a>,
    /// The join token. The first step that needs the token reads it. The thread of this step holds
    /// the lock during the read, so that no other thread reads the token again.
    token: Mutex<Option<String>>,
}

impl<'a> Executor<'a> {
    /// Returns an executor that works on at most `parallel` hosts at a time. The host of management
    /// `acting` prints the token.
    pub fn new(
        deployment: &'a Deployment,
        program: &'a Program,
        acting: &'a Host,
        parallel: usize,
        report: Report<'a>,
    ) -> Self {
        let ssh = Ssh::new(deployment);
        Self { deployment, program, acting, ssh, parallel, report, token: Mutex::new(None) }
    }

    /// Runs all phases. Returns the steps that ran, and the error of the first phase that failed.
    pub fn run(&self, phases: &[Phase]) -> (Vec<StepReport>, Option<Error>) {
        let total = count(phases);
        let done = AtomicUsize::new(0);
        let mut reports = Vec::new();
        for phase in phases {
            let results = in_parallel(&phase.hosts, self.parallel, |steps| {
                let mut reports = Vec::new();
                for action in &steps.actions {
                    let begin = Instant::now();
                    let result = self.step(&steps.host, action);
                    let report = StepReport {
                        phase: phase.name,
                        host: steps.host.clone(),
                        step: action.to_string(),
                        seconds: Some(begin.elapsed().as_secs_f64()),
                        error: result.as_ref().err().map(|error| error.context().to_owned()),
                    };
                    (self.report)(done.fetch_add(1, Ordering::Relaxed) + 1, total, &report);
                    reports.push(report);
                    if let Err(error) = result {
                        return (reports, Some(error));
                    }
                }
                (reports, None)
            });
            let mut errors = Vec::new();
            for (part, error) in results {
                reports.extend(part);
                errors.extend(error);
            }
            if let Some(first) = errors.first() {
                let lines: Vec<_> = errors.iter().map(Error::context).collect();
                let what = format!(
                    "{}\nAll steps before this phase are done; run the same command again to \
                     continue",
                    lines.join("\n")
                );
                return (reports, Some(Error::new(first.code(), what)));
            }
        }
        (reports, None)
    }

    fn step(&self, host: &str, action: &Action) -> Result<()> {
        let named = |error: Error| {
            let (code, context) = (error.code(), error.context());
            Error::new(code, format!("cannot {action} on host {host}: {context}"))
        };
        let host = self.deployment.host(host)?;
        let token = match action {
            Action::WriteToken => self.token().map_err(named)?,
            _ => String::new(),
        };
        let secrets = Secrets { token: &token, program_hash: &self.program.hash };
        let script = script(self.deployment, host, action, secrets);
        let done = match action {
            Action::Install => self.ssh.send(host, &script, &self.program.path),
            _ => self.ssh.run(host, &script),
        };
        done.map(drop).map_err(named)
    }

    /// Returns the token, with the addresses of all management nodes of the hosts file. The first
    /// call reads the token on a host of management. The token on this host may lack some of the
    /// addresses.
    fn token(&self) -> Result<String> {
        let mut kept = self.token.lock().expect("no thread panics while it holds this lock");
        if let Some(token) = &*kept {
            return Ok(token.clone());
        }
        let text = self.ssh.run(self.acting, &token_script())?.text;
        let token = with_addresses(text.trim(), &self.deployment.management_addresses())?;
        Ok(kept.insert(token).clone())
    }
}

/// Replaces the addresses of management in a token.
fn with_addresses(token: &str, addresses: &[String]) -> Result<String> {
    let (secret, _) = token.split_once('@').ok_or_else(|| {
        let what = "cannot read the token: management has printed a text without addresses";
        Error::new(ErrorCode::Protocol, what)
    })?;
    Ok(format!("{secret}@{}", addresses.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn token_gets_the_addresses_of_the_hosts_file() {
        let addresses = ["10.0.0.1:7400", "10.0.0.2:7400"].map(str::to_owned);
        let token = with_addresses("skep1-ab-cd@10.0.0.1:7400", &addresses).unwrap();
        assert_eq!(token, "skep1-ab-cd@10.0.0.1:7400,10.0.0.2:7400");
        assert!(with_addresses("no token", &addresses).is_err());
    }

    #[test]
    fn results_of_parallel_work_have_the_order_of_the_items() {
        let items: Vec<u32> = (0..50).collect();
        let running = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        let results = in_parallel(&items, 4, |item| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            item * 2
        });
        assert_eq!(results, items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert!(most.into_inner() <= 4);
        assert!(in_parallel(&[] as &[u32], 4, |_| Duration::ZERO).is_empty());
    }
}
