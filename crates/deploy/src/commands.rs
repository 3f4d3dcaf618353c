//! The commands of `skep deploy`. Each command observes the hosts and plans steps. All commands
//! except `plan` and `status` then execute these steps.

use crate::checks::{Program, Verdict, judge, judge_reach, peers, reach_script};
use crate::execute::{Executor, Report, StepReport, in_parallel};
use crate::facts::{self, Facts, Running};
use crate::hosts::{Deployment, Host, Role};
use crate::plan::{self, Action, AllFacts, Phase};
use crate::ssh::{HostProblem, Ssh};
use serde::Serialize;
use skep_types::{Error, ErrorCode, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// A run of a command: a deployment, with the options of the run.
pub struct Run<'a> {
    /// The checked hosts file.
    pub deployment: &'a Deployment,
    /// The program that the run installs on hosts.
    pub program: &'a Program,
    /// Maximum number of hosts that the run works on at the same time.
    pub parallel: usize,
    /// Called for each step that has ended.
    pub report: Report<'a>,
}

/// The state of one service on a host.
#[derive(Debug, Serialize)]
pub struct ServiceReport {
    /// The service.
    pub role: Role,
    /// `running`, `running the program before the upgrade`, `stopped` or `missing`.
    pub state: &'static str,
}

/// The state of one host.
#[derive(Debug, Serialize)]
pub struct HostReport {
    /// Name of the host.
    pub host: String,
    /// Address of the host for ssh.
    pub address: String,
    /// Roles of the host.
    pub roles: Vec<Role>,
    /// Release of the host's kernel. Empty if the host did not answer.
    pub kernel: String,
    /// Version line of the installed program. Empty if the program does not run, or if the host did
    /// not answer.
    pub version: String,
    /// Services of the host.
    pub services: Vec<ServiceReport>,
    /// Whether the cluster is mounted on the host. `None` means that the host is not a client.
    pub is_mounted: Option<bool>,
}

/// The result of a command.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Name of the cluster.
    pub cluster: String,
    /// All hosts, as they were at the start.
    pub hosts: Vec<HostReport>,
    /// Facts about hosts that an administrator should check.
    pub warnings: Vec<HostProblem>,
    /// Problems of hosts. If there is one, no step ran.
    pub problems: Vec<HostProblem>,
    /// The steps that ran. If there are problems, the steps that would have run without them.
    pub steps: Vec<StepReport>,
    /// Duration of the command.
    pub seconds: f64,
}

/// An outcome, and the error of the command, if it failed.
pub type Ended = (Outcome, Option<Error>);

/// Reads the program file that a deployment installs.
///
/// # Errors
/// Returns an error if the file cannot be read or is not an ELF file for a known processor.
pub fn program(path: &Path) -> Result<Program> {
    use sha2::{Digest, Sha256};
    let named = |error: std::io::Error| {
        Error::from(error).within(format!("cannot read the program {}", path.display()))
    };
    let mut file = File::open(path).map_err(named)?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    let mut head = Vec::new();
    loop {
        let count = file.read(&mut buffer).map_err(named)?;
        if count == 0 {
            break;
        }
        if head.is_empty() {
            head.extend_from_slice(&buffer[..count.min(20)]);
        }
        hasher.update(&buffer[..count]);
    }
    let hash = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    // Bytes 18 and 19 of an ELF header contain the machine architecture. All known values fit into
    // byte 18.
    let machine = match (head.get(..4), head.get(18)) {
        (Some(b"\x7fELF"), Some(0x3e)) => "x86_64",
        (Some(b"\x7fELF"), Some(0xb7)) => "aarch64",
        _ => {
            let what = format!(
                "cannot install {}: expected a program for x86_64 or aarch64; name such a program \
                 with --program",
                path.display()
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
    };
    Ok(Program { path: path.to_owned(), hash, machine })
}

/// The facts about the hosts, after they were observed.
struct Survey {
    facts: AllFacts,
    /// Names of the hosts that did not answer.
    absent: Vec<String>,
    verdict: Verdict,
}

impl Run<'_> {
    /// Returns the steps that [`Self::apply`] would run. Runs no step.
    pub fn plan(&self) -> Ended {
        let begin = Instant::now();
        let survey = self.survey(true);
        let phases = plan::apply(self.deployment, self.program, &survey.facts);
        let steps = planned(&phases);
        self.outcome(begin, survey, steps, None)
    }

    /// Creates the cluster that the hosts file describes. If a part of it exists, completes or
    /// extends it.
    pub fn apply(&self) -> Ended {
        self.change(true, |survey| {
            let behind = self.behind(&survey.facts);
            for host in behind {
                let problem = "services of the host run another version of the program; `skep \
                               deploy upgrade` replaces this version";
                let problem = HostProblem { host, problem: problem.into() };
                survey.verdict.warnings.push(problem);
            }
            Ok(plan::apply(self.deployment, self.program, &survey.facts))
        })
    }

    /// Adds one host of the hosts file to the running cluster.
    pub fn add(&self, name: &str) -> Ended {
        self.change(true, |survey| {
            self.deployment.host(name)?;
            let management = &self.deployment.management().name;
            // Problems of other hosts, except the host of management, do not prevent adding this
            // host.
            let verdict = &mut survey.verdict;
            let (own, others) = std::mem::take(&mut verdict.problems)
                .into_iter()
                .partition(|it: &HostProblem| it.host == name || it.host == *management);
            verdict.problems = own;
            verdict.warnings.extend::<Vec<HostProblem>>(others);
            let phases = plan::apply(self.deployment, self.program, &survey.facts);
            Ok(plan::only(phases, name))
        })
    }

    /// Replaces the program on all hosts, and restarts the services one after the other.
    pub fn upgrade(&self, remount: bool) -> Ended {
        self.change(false, |survey| {
            for host in &self.deployment.hosts {
                if survey.facts.get(&host.name).is_some_and(|it| it.deployed.is_none()) {
                    let problem =
                        "the host is not in a cluster yet; run `skep deploy apply`".to_owned();
                    let problem = HostProblem { host: host.name.clone(), problem };
                    survey.verdict.problems.push(problem);
                }
            }
            Ok(plan::upgrade(self.deployment, self.program, &survey.facts, remount))
        })
    }

    /// Removes a host from the cluster, with all that the deployment has created on it.
    pub fn remove(&self, name: &str, destroy_data: bool) -> Ended {
        self.change(false, |survey| {
            let host = self.deployment.host(name)?;
            if host.has(Role::Management) && self.deployment.hosts.len() > 1 {
                let what = format!(
                    "cannot remove host {name}: it runs management, which the cluster needs; `skep \
                     deploy destroy` removes the whole cluster"
                );
                return Err(Error::new(ErrorCode::NotPermitted, what));
            }
            let names = [name.to_owned()];
            survey
                .verdict
                .problems
                .retain(|it| it.host == name && survey.absent.contains(&it.host));
            refuse_data(self.deployment, &names, &survey.facts, destroy_data)?;
            Ok(plan::remove(self.deployment, &names))
        })
    }

    /// Removes the whole cluster. `skip_absent` means that hosts which do not answer are left out.
    pub fn destroy(&self, destroy_data: bool, skip_absent: bool) -> Ended {
        self.change(false, |survey| {
            survey.verdict.problems.retain(|it| !skip_absent && survey.absent.contains(&it.host));
            // Leaves out hosts that are not in this cluster.
            let is_ours = |facts: &Facts| {
                facts.deployed.as_ref().is_some_and(|it| *it == self.deployment.cluster)
            };
            let ours = survey.facts.iter().filter(|(_, facts)| is_ours(facts));
            let names: Vec<String> = ours.map(|(name, _)| name.clone()).collect();
            refuse_data(self.deployment, &names, &survey.facts, destroy_data)?;
            Ok(plan::remove(self.deployment, &names))
        })
    }

    /// Observes the hosts. The second returned value is true if the cluster is complete.
    pub fn status(&self) -> (Ended, bool) {
        let begin = Instant::now();
        let survey = self.survey(false);
        let phases = plan::apply(self.deployment, self.program, &survey.facts);
        let is_change = |action: &Action| {
            !matches!(
                action,
                Action::AwaitHealth
                    | Action::AwaitMembers
                    | Action::Install
                    | Action::WriteCheck
                    | Action::ReadCheck
                    | Action::RemoveCheck
            )
        };
        let mut actions = phases.iter().flat_map(|it| &it.hosts).flat_map(|it| &it.actions);
        let is_complete = survey.absent.is_empty() && !actions.any(is_change);
        (self.outcome(begin, survey, Vec::new(), None), is_complete)
    }

    fn change(&self, is_new: bool, plan: impl FnOnce(&mut Survey) -> Result<Vec<Phase>>) -> Ended {
        let begin = Instant::now();
        let mut survey = self.survey(is_new);
        let phases = match plan(&mut survey) {
            Ok(phases) => phases,
            Err(error) => return self.outcome(begin, survey, Vec::new(), Some(error)),
        };
        if !survey.verdict.problems.is_empty() {
            return self.outcome(begin, survey, planned(&phases), None);
        }
        let executor = Executor::new(self.deployment, self.program, self.parallel, self.report);
        let (steps, error) = executor.run(&phases);
        self.outcome(begin, survey, steps, error)
    }

    /// Observes all hosts. `is_new` means that the network between all pairs of hosts is checked
    /// too.
    fn survey(&self, is_new: bool) -> Survey {
        let ssh = Ssh::new(self.deployment);
        let hosts = &self.deployment.hosts;
        let results = in_parallel(hosts, self.parallel, |host| {
            let output = ssh.run(host, &facts::script(self.deployment, host))?;
            Facts::parse(self.deployment, host, &output)
        });
        let (mut facts, mut absent) = (AllFacts::new(), Vec::new());
        let mut problems = Vec::new();
        for (host, result) in hosts.iter().zip(results) {
            match result {
                Ok(found) => drop(facts.insert(host.name.clone(), found)),
                Err(error) => {
                    absent.push(host.name.clone());
                    let problem = error.context().to_owned();
                    problems.push(HostProblem { host: host.name.clone(), problem });
                }
            }
        }
        let mut verdict = judge(self.deployment, self.program, &facts);
        if is_new && absent.is_empty() {
            let reached = in_parallel(hosts, self.parallel, |host| self.reach(&ssh, host));
            verdict.problems.extend(reached.into_iter().flatten());
        }
        problems.append(&mut verdict.problems);
        verdict.problems = problems;
        Survey { facts, absent, verdict }
    }

    fn reach(&self, ssh: &Ssh<'_>, host: &Host) -> Vec<HostProblem> {
        let peers = peers(self.deployment, host);
        if peers.is_empty() {
            return Vec::new();
        }
        match ssh.run(host, &reach_script(&peers)) {
            Ok(output) => judge_reach(host, &peers, &output.text),
            Err(error) => {
                let problem = error.context().to_owned();
                vec![HostProblem { host: host.name.clone(), problem }]
            }
        }
    }

    /// Returns the names of the hosts that run services, and on which the installed program is not
    /// the program of this run.
    fn behind(&self, facts: &AllFacts) -> Vec<String> {
        let is_behind = |facts: &Facts| {
            !facts.running.is_empty() && facts.program.as_ref() != Some(&self.program.hash)
        };
        let behind = facts.iter().filter(|(_, facts)| is_behind(facts));
        behind.map(|(name, _)| name.clone()).collect()
    }

    fn outcome(
        &self,
        begin: Instant,
        survey: Survey,
        steps: Vec<StepReport>,
        error: Option<Error>,
    ) -> Ended {
        let report = |host: &Host| host_report(host, survey.facts.get(&host.name));
        let Verdict { problems, warnings } = survey.verdict;
        let outcome = Outcome {
            cluster: self.deployment.cluster.clone(),
            hosts: self.deployment.hosts.iter().map(report).collect(),
            warnings,
            problems,
            steps,
            seconds: begin.elapsed().as_secs_f64(),
        };
        (outcome, error)
    }
}

fn planned(phases: &[Phase]) -> Vec<StepReport> {
    let mut steps = Vec::new();
    for phase in phases {
        for host in &phase.hosts {
            steps.extend(host.actions.iter().map(|action| StepReport {
                phase: phase.name,
                host: host.host.clone(),
                step: action.to_string(),
                seconds: None,
                error: None,
            }));
        }
    }
    steps
}

fn host_report(host: &Host, facts: Option<&Facts>) -> HostReport {
    let state = |role: Role| {
        let Some(facts) = facts else { return "unknown" };
        match facts.running.get(&role) {
            Some(Running::Current) => "running",
            Some(Running::Old) => "running the program before the upgrade",
            None if facts.initialised.contains(&role) => "stopped",
            None if !role.is_node() && facts.configs.contains_key(&role) => "stopped",
            None => "missing",
        }
    };
    HostReport {
        host: host.name.clone(),
        address: host.address.clone(),
        roles: host.roles.clone(),
        kernel: facts.map(|it| it.platform.kernel.clone()).unwrap_or_default(),
        version: facts.map(|it| it.version.clone()).unwrap_or_default(),
        services: host.services().map(|role| ServiceReport { role, state: state(role) }).collect(),
        is_mounted: host.has(Role::Client).then(|| facts.is_some_and(|it| it.mount == Some(true))),
    }
}

/// Returns an error if the hosts store data and the user has not given `--destroy-data`.
fn refuse_data(
    deployment: &Deployment,
    names: &[String],
    facts: &AllFacts,
    destroy_data: bool,
) -> Result<()> {
    if destroy_data {
        return Ok(());
    }
    let mut lost = Vec::new();
    for name in names {
        let Some(facts) = facts.get(name) else { continue };
        let host = deployment.host(name)?;
        for role in &facts.initialised {
            let targets = host.targets(*role);
            let places = match targets.is_empty() {
                true => format!("/srv/skep/{role}"),
                false => targets.join(", "),
            };
            lost.push(format!("{role} on host {name} ({places})"));
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    let what = format!(
        "cannot remove {}: the removal would delete data of the cluster; to delete the data, add \
         --destroy-data",
        lost.join("; ")
    );
    Err(Error::new(ErrorCode::NotPermitted, what))
}
