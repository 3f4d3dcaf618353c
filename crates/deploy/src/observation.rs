//! The progress of the observations at the beginning of each command: scripts that run on many
//! hosts at the same time, and that change nothing.

use crate::execute::in_parallel;
use crate::hosts::Host;
use std::sync::Mutex;

/// Maximum number of hosts that [`Observation::waiting`] names.
const MOST_NAMED: usize = 3;

/// The progress of a script that runs on several hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The object of the observation, for people.
    pub object: &'static str,
    /// Number of hosts on which the script has ended, or that cannot be reached.
    pub ended: usize,
    /// Number of hosts on which the script runs.
    pub total: usize,
    /// Names of the first hosts that have not ended, in the order of the hosts file.
    pub waiting: Vec<String>,
}

/// Called when a script begins, and each time it has ended on a host. No two calls run at the same
/// time.
pub type Observed<'a> = &'a (dyn Fn(&Observation) + Sync);

/// Calls `work` for all hosts, with at most `limit` calls at the same time, and reports the
/// progress to `observed`. Returns the results in the order of the hosts.
pub(crate) fn observe<R: Send>(
    hosts: &[Host],
    limit: usize,
    (object, observed): (&'static str, Observed<'_>),
    work: impl Fn(&Host) -> R + Sync,
) -> Vec<R> {
    // The lock also prevents two calls of `observed` at the same time.
    let waiting = Mutex::new(hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>());
    let report = |ended: Option<&Host>| {
        let mut waiting = waiting.lock().expect("no thread panics while it holds this lock");
        waiting.retain(|name| ended.is_none_or(|host| host.name != *name));
        observed(&Observation {
            object,
            ended: hosts.len() - waiting.len(),
            total: hosts.len(),
            waiting: waiting.iter().take(MOST_NAMED).map(|name| (*name).to_owned()).collect(),
        });
    };
    report(None);
    in_parallel(hosts, limit, |host| {
        let result = work(host);
        report(Some(host));
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Deployment;
    use crate::hosts::tests::SEVERAL;

    #[test]
    fn progress_of_an_observation_names_the_missing_hosts() {
        let deployment = Deployment::parse(SEVERAL).unwrap();
        let seen = Mutex::new(Vec::new());
        let observed = |it: &Observation| {
            let line =
                format!("{} {} of {}: {}", it.object, it.ended, it.total, it.waiting.join(" "));
            seen.lock().unwrap().push(line);
        };
        let names = observe(&deployment.hosts, 1, ("x", &observed), |host| host.name.clone());
        assert_eq!(names, ["a1", "a2", "a3", "s1", "s2", "s3"]);
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), 7);
        assert_eq!(seen[..2], ["x 0 of 6: a1 a2 a3", "x 1 of 6: a2 a3 s1"]);
        assert_eq!(seen[5..], ["x 5 of 6: s3", "x 6 of 6: "]);
    }
}
