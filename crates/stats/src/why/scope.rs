//! The scope of a report: the targets, and the client, user or job, whose requests it covers.

use super::cause::Cause;
use super::focus::Focus;

/// The requests that a report covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only requests to these targets. `None` means all targets.
    pub targets: Option<Vec<u32>>,
    /// Only requests of this client, user or job.
    pub focus: Focus,
}

impl Scope {
    /// Whether a cause makes requests in this scope slow.
    pub(super) fn has(&self, cause: &Cause) -> bool {
        let meets = |targets: &Vec<u32>| {
            cause.targets.is_empty() || cause.targets.iter().any(|id| targets.contains(id))
        };
        // A slow link of another client does not slow the requests of this client.
        let is_of_other = cause.rule == "link-slow"
            && self.focus.client.is_some()
            && cause.client.is_some_and(|client| Some(client) != self.focus.client);
        self.targets.as_ref().is_none_or(meets) && !is_of_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::{change, healthy, map, requests};
    use crate::why::{Evidence, Report, Thresholds, explain};

    fn explained(evidence: &Evidence, focus: Focus) -> Report {
        let scope = Scope { targets: None, focus };
        explain(evidence, &map(), &scope, &Thresholds::default())
    }

    #[test]
    fn report_about_a_client_user_or_job_has_only_its_requests() {
        let client = Focus { client: Some(8), ..Focus::default() };
        let of_client = explained(&healthy(), client);
        assert!(of_client.phases.iter().all(|phase| phase.stage == "network"), "{of_client:?}");
        let of_user = explained(&healthy(), Focus { user: Some(1001), ..Focus::default() });
        assert!(of_user.phases.iter().all(|phase| phase.target <= 2), "{of_user:?}");
        assert_eq!((of_user.requests, of_user.unreachable.len()), (2_000, 0));
        let of_job = explained(&healthy(), Focus { job: Some(7), ..Focus::default() });
        assert_eq!((of_job.requests, of_job.phases.len()), (0, 0));
    }

    #[test]
    fn light_user_is_listed_if_the_report_is_about_this_user() {
        let mut sum = Evidence::default();
        for second in 0..20_u64 {
            let mut evidence = healthy();
            change(&mut evidence, 1).users = [(second.to_string(), requests(second, 1))].into();
            sum.add(&evidence);
        }
        let user = Focus { user: Some(1), ..Focus::default() };
        let of_user = |evidence: &Evidence| {
            let report = explained(evidence, user);
            (report.requests, report.unreachable.len())
        };
        assert_eq!(
            of_user(&sum),
            (0, 1),
            "a target that does not name all users counts as one without a reply"
        );
        let mut about = Evidence { focus: user, ..Evidence::default() };
        for second in 0..20_u64 {
            let mut evidence = healthy();
            change(&mut evidence, 1).users = [(second.to_string(), requests(second, 1))].into();
            about.add(&evidence);
        }
        assert_eq!(of_user(&about), (1, 0));
    }
}
