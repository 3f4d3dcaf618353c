//! The commands of `skep deploy`. Each command observes the hosts and plans steps. All commands
//! except `plan` and `status` then execute these steps.

mod refusals;

use crate::checks::{Program, Verdict, judge, judge_reach, peers, reach_script};
use crate::cluster::{self, Cluster};
use crate::execute::{Executor, Report, StepReport};
use crate::facts::{self, Facts};
use crate::hosts::{Deployment, Host, Role};
use crate::observation::{Observed, observe};
use crate::plan::{self, Action, AllFacts, Phase};
use crate::removal;
use crate::report::{Outcome, host_report, management, metadata_groups, planned};
use crate::ssh::{HostProblem, Ssh};
use refusals::{refuse_copies, refuse_data};
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
    /// Receives the progress of each observation of the hosts.
    pub observed: Observed<'a>,
    /// Called for each step that has ended.
    pub report: Report<'a>,
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

impl Survey {
    /// Whether all hosts have answered, and the plan `phases` only verifies the cluster. Ignores
    /// the steps that install the program, because this run and the cluster may have different
    /// versions of the program.
    fn is_complete(&self, phases: &[Phase]) -> bool {
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
        self.absent.is_empty() && !actions.any(is_change)
    }
}

impl Run<'_> {
    /// Returns the steps that [`Self::apply`] would run. Runs no step.
    pub fn plan(&self) -> Ended {
        let begin = Instant::now();
        let survey = self.survey(true);
        let phases = plan::apply(self.deployment, self.program, &survey.facts);
        let is_complete = survey.is_complete(&phases);
        let (outcome, error) = self.outcome(begin, survey, planned(&phases), None);
        (Outcome { is_complete: Some(is_complete), ..outcome }, error)
    }

    /// Creates the cluster that the hosts file describes. If a part of the cluster exists,
    /// completes or extends this part.
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
            let host = self.deployment.host(name)?;
            if host.has(Role::Management) && self.deployment.has_several_managers() {
                let what = format!(
                    "cannot add host {name} alone: this host has the role management, and all \
                     hosts need the addresses of all management nodes; run `skep deploy apply`, \
                     which adds this host"
                );
                return Err(Error::new(ErrorCode::NotPermitted, what));
            }
            // Only problems of this host, and of the host of management that runs the steps for the
            // cluster, prevent the addition.
            let acting = &plan::acting(self.deployment, &survey.facts).name;
            let verdict = &mut survey.verdict;
            let (own, others) = std::mem::take(&mut verdict.problems)
                .into_iter()
                .partition(|it: &HostProblem| it.host == name || it.host == *acting);
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

    /// Removes a host from the cluster, with all that the deployment has created on it. If the
    /// cluster uses targets of the host, `confirm` must repeat the name of the host.
    pub fn remove(&self, name: &str, destroy_data: bool, confirm: Option<&str>) -> Ended {
        self.change(false, |survey| {
            let host = self.deployment.host(name)?;
            removal::check_confirmation(host, confirm)?;
            self.refuse_foreign(host, survey)?;
            self.refuse_management(host, survey)?;
            refuse_copies(host, survey)?;
            survey
                .verdict
                .problems
                .retain(|it| it.host == name && survey.absent.contains(&it.host));
            // Without a record of the deployment, the deployment owns nothing on the host.
            if survey.facts.get(name).is_some_and(|facts| facts.deployed.is_none()) {
                return Ok(Vec::new());
            }
            if confirm.is_none() {
                self.refuse_used(host, survey)?;
            }
            let names = [name.to_owned()];
            refuse_data(self.deployment, &names, &survey.facts, destroy_data)?;
            Ok(plan::remove(self.deployment, &names, !destroy_data))
        })
    }

    /// Removes the whole cluster. `skip_absent` means that hosts which do not answer are left out.
    pub fn destroy(&self, destroy_data: bool, skip_absent: bool) -> Ended {
        self.change(false, |survey| {
            survey.verdict.problems.retain(|it| !skip_absent && survey.absent.contains(&it.host));
            // Leave out hosts to which this cluster was not deployed.
            let is_ours = |facts: &Facts| {
                facts.deployed.as_ref().is_some_and(|it| *it == self.deployment.cluster)
            };
            let ours = survey.facts.hosts.iter().filter(|(_, facts)| is_ours(facts));
            let names: Vec<String> = ours.map(|(name, _)| name.clone()).collect();
            let left = survey.facts.hosts.iter().filter_map(|(name, facts)| left_out(name, facts));
            survey.verdict.warnings.extend(left);
            refuse_data(self.deployment, &names, &survey.facts, destroy_data)?;
            Ok(plan::remove(self.deployment, &names, !destroy_data))
        })
    }

    /// Observes the hosts, and finds out whether the cluster is complete.
    pub fn status(&self) -> Ended {
        let begin = Instant::now();
        let survey = self.survey(false);
        let phases = plan::apply(self.deployment, self.program, &survey.facts);
        let is_complete = survey.is_complete(&phases);
        let (outcome, error) = self.outcome(begin, survey, Vec::new(), None);
        (Outcome { is_complete: Some(is_complete), ..outcome }, error)
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
        let acting = plan::acting(self.deployment, &survey.facts);
        let executor =
            Executor::new(self.deployment, self.program, acting, self.parallel, self.report);
        let (steps, error) = executor.run(&phases);
        self.outcome(begin, survey, steps, error)
    }

    /// Observes all hosts and the cluster. `is_new` means that changes of the cluster, and the
    /// network between all pairs of hosts, are checked too.
    fn survey(&self, is_new: bool) -> Survey {
        let ssh = Ssh::new(self.deployment);
        let hosts = &self.deployment.hosts;
        let progress = ("the state of the hosts", self.observed);
        let results = observe(hosts, self.parallel, progress, |host| {
            let output = ssh.observe(host, &facts::script(self.deployment, host))?;
            Facts::parse(self.deployment, host, &output)
        });
        let (mut facts, mut absent) = (AllFacts::default(), Vec::new());
        let mut problems = Vec::new();
        for (host, result) in hosts.iter().zip(results) {
            match result {
                Ok(found) => drop(facts.hosts.insert(host.name.clone(), found)),
                Err(error) => {
                    absent.push(host.name.clone());
                    let problem = error.context().to_owned();
                    problems.push(HostProblem { host: host.name.clone(), problem });
                }
            }
        }
        let mut verdict = judge(self.deployment, self.program, &facts.hosts);
        facts.cluster = self.cluster(&ssh, &facts, &mut verdict);
        if is_new && !absent.is_empty() {
            plan::judge_founder(self.deployment, &facts, &mut verdict);
        } else if is_new {
            plan::judge_cluster(self.deployment, &facts, &mut verdict);
            let progress = ("the network between the hosts", self.observed);
            let reached = observe(hosts, self.parallel, progress, |host| self.reach(&ssh, host));
            verdict.problems.extend(reached.into_iter().flatten());
        }
        problems.append(&mut verdict.problems);
        verdict.problems = problems;
        Survey { facts, absent, verdict }
    }

    /// Returns the state of the cluster, as printed by the first host on which management answers.
    /// `None` means that management answers on no host. Each host on which a management service
    /// runs then gets a warning, because too few of the other management nodes may run.
    fn cluster(&self, ssh: &Ssh<'_>, facts: &AllFacts, verdict: &mut Verdict) -> Option<Cluster> {
        let runs = |host: &&Host| {
            facts.get(&host.name).is_some_and(|it| {
                it.runs(Role::Management) && it.initialised.contains(&Role::Management)
            })
        };
        let mut warnings = Vec::new();
        for host in self.deployment.hosts.iter().filter(runs) {
            let progress = ("the state of the cluster", self.observed);
            let results = observe(std::slice::from_ref(host), 1, progress, |host| {
                let output = ssh.observe(host, &cluster::script())?;
                Cluster::parse(&output.text)
            });
            for result in results {
                match result {
                    Ok(cluster) => return Some(cluster),
                    Err(error) => {
                        let problem = format!("management does not answer: {}", error.context());
                        warnings.push(HostProblem { host: host.name.clone(), problem });
                    }
                }
            }
        }
        verdict.warnings.append(&mut warnings);
        None
    }

    fn reach(&self, ssh: &Ssh<'_>, host: &Host) -> Vec<HostProblem> {
        let peers = peers(self.deployment, host);
        if peers.is_empty() {
            return Vec::new();
        }
        match ssh.observe(host, &reach_script(&peers)) {
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
        let behind = facts.hosts.iter().filter(|(_, facts)| is_behind(facts));
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
            management: management(self.deployment, &survey.facts),
            copies: self.deployment.copies.unwrap_or_else(|| {
                survey.facts.cluster.as_ref().map_or(1, |cluster| cluster.copies)
            }),
            metadata_groups: metadata_groups(self.deployment, &survey.facts),
            is_complete: None,
            warnings,
            problems,
            steps,
            seconds: begin.elapsed().as_secs_f64(),
        };
        (outcome, error)
    }
}

/// Returns a warning about a host that has directories of services, but no file `deploy.list`. The
/// removal of the cluster leaves this host out.
fn left_out(name: &str, facts: &Facts) -> Option<HostProblem> {
    let role = facts.foreign.first().filter(|_| facts.deployed.is_none())?;
    let problem = format!(
        "the host is left out: it has /srv/skep/{role}, but not /etc/skep/deploy.list, which names \
         the files of a deployment; if /srv/skep/{role} belongs to this cluster, remove the \
         services and the data of this host by hand"
    );
    Some(HostProblem { host: name.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::program;
    use crate::cluster::tests::{group, led_by};
    use crate::hosts::tests::{GOOD, SEVERAL};
    use crate::observation::Observation;

    /// Returns the reason why a host of a running cluster cannot be removed. Management runs on the
    /// hosts `voters`. Empty if the host can be removed.
    fn refusal(file: &str, voters: &[&str], name: &str) -> String {
        refusal_with(file, voters, name, |_| {})
    }

    /// Like [`refusal`]. First, `change` changes the facts.
    fn refusal_with(
        file: &str,
        voters: &[&str],
        name: &str,
        change: impl FnOnce(&mut AllFacts),
    ) -> String {
        let deployment = Deployment::parse(file).unwrap();
        let mut facts = AllFacts::default();
        for voter in voters {
            let facts = facts.hosts.entry((*voter).to_owned()).or_default();
            facts.initialised.insert(Role::Management);
        }
        let groups = vec![group(4, &[("a1", "/nvme0/skep"), ("a2", "/nvme0/skep")])];
        facts.cluster = Some(Cluster { groups, ..led_by(voters) });
        change(&mut facts);
        let survey = Survey { facts, absent: Vec::new(), verdict: Verdict::default() };
        let program = program();
        let (report, observed) = (|_: usize, _: usize, _: &StepReport| {}, |_: &Observation| {});
        let run = Run {
            deployment: &deployment,
            program: &program,
            parallel: 1,
            observed: &observed,
            report: &report,
        };
        let host = deployment.host(name).unwrap();
        let refused = run.refuse_foreign(host, &survey);
        let refused = refused.and(run.refuse_management(host, &survey));
        let refused = refused.and(refuse_copies(host, &survey));
        refused.map_or_else(|error| error.context().to_owned(), |()| String::new())
    }

    #[test]
    fn removal_is_refused_if_only_the_directories_show_data() {
        let deployment = Deployment::parse(GOOD).unwrap();
        let mut facts = AllFacts::default();
        let names = ["m1", "s1"].map(String::from);
        let host = facts.hosts.entry("s1".to_owned()).or_default();
        host.deployed = Some(deployment.cluster.clone());
        assert!(refuse_data(&deployment, &names, &facts, false).is_ok());
        let found = ["/disk1/skep", "/disk1 /dev/sdb", "/srv/skep/disks/sdc /dev/sdc not-mounted"];
        facts.hosts.entry("s1".to_owned()).or_default().stored = found.map(String::from).into();
        let refused = refuse_data(&deployment, &names, &facts, false).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotPermitted);
        let disk = "/srv/skep/disks/sdc /dev/sdc not-mounted on host s1";
        let words = ["/disk1/skep on host s1", disk, "`skep deploy apply` continues"];
        for word in words {
            assert!(refused.context().contains(word), "{refused}");
        }
        assert!(!refused.context().contains("/dev/sdb"), "{refused}");
        assert!(refuse_data(&deployment, &names, &facts, true).is_ok());
    }

    #[test]
    fn warning_names_a_host_with_services_but_without_a_list() {
        let mut facts = Facts::default();
        assert!(left_out("s1", &facts).is_none());
        facts.foreign.insert(Role::Storage);
        let warning = left_out("s1", &facts).expect("a warning");
        assert!(warning.host == "s1" && warning.problem.contains("/srv/skep/storage"));
        facts.deployed = Some("other".into());
        assert!(left_out("s1", &facts).is_none(), "the host belongs to another cluster");
    }

    #[test]
    fn removal_keeps_an_odd_number_of_management_nodes() {
        let all = ["a1", "a2", "a3"];
        let check = |refused: String, words: &str| assert!(refused.contains(words), "{refused}");
        check(refusal(GOOD, &["m1"], "m1"), "which the cluster needs");
        check(refusal(SEVERAL, &all, "a3"), "the 2 other management nodes would survive fewer");
        let moved = SEVERAL.replace("[\"management\"]", "[]");
        let moved = moved.replacen("[\"storage\"]", "[\"management\", \"storage\"]", 1);
        check(refusal(&moved, &all, "a3"), "is still a part of the cluster");
        assert_eq!(refusal(&moved, &["a1", "a2", "s1"], "a3"), "");
        assert_eq!(refusal(SEVERAL, &all, "s1"), "");
    }

    #[test]
    fn removal_is_refused_while_metadata_groups_are_unknown() {
        let text = SEVERAL.replacen("\"management\", \"metadata\"", "\"metadata\"", 1);
        let text = text.replacen("[\"storage\"]", "[\"management\", \"storage\"]", 1);
        let refused = |role: Role| {
            refusal_with(&text, &["a2", "a3", "s1"], "a1", |facts| {
                facts.cluster = None;
                facts.hosts.entry("a1".into()).or_default().initialised.insert(role);
            })
        };
        let reason = refused(Role::Metadata);
        assert!(reason.contains("management does not answer"), "{reason}");
        assert_eq!(refused(Role::Storage), "");
    }

    #[test]
    fn host_of_another_cluster_is_not_removed() {
        let reason = refusal_with(GOOD, &["m1"], "s1", |facts| {
            facts.hosts.entry("s1".into()).or_default().deployed = Some("other".into());
        });
        assert!(reason.contains("belongs to the cluster 'other'"), "{reason}");
    }

    #[test]
    fn cluster_is_complete_if_all_hosts_answer_and_need_no_change() {
        let phase = |action: Action| {
            let hosts = vec![plan::HostSteps { host: "s1".into(), actions: vec![action] }];
            [Phase { name: "x", hosts }]
        };
        let facts = AllFacts::default();
        let mut survey = Survey { facts, absent: Vec::new(), verdict: Verdict::default() };
        assert!(survey.is_complete(&phase(Action::ReadCheck)));
        assert!(!survey.is_complete(&phase(Action::Start(Role::Storage))));
        survey.absent.push("s2".into());
        assert!(!survey.is_complete(&phase(Action::ReadCheck)));
    }

    #[test]
    fn refused_removal_of_a_host_names_the_commands_to_run_first() {
        let moved = SEVERAL.replacen("\"management\", \"metadata\"", "\"metadata\"", 1);
        let moved = moved.replacen("[\"storage\"]", "[\"management\", \"storage\"]", 1);
        let refused = refusal(&moved, &["a2", "a3", "s1"], "a1");
        assert!(refused.contains("`skep group remove 4 2`"), "{refused}");
    }
}
