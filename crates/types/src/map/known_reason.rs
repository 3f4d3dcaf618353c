//! Reasons for the condition of a target. Skep recognizes these reasons, and adapts a log line, a
//! reported problem or a remedy to them.
//!
//! Messages and the cluster map carry each reason as text, in `TargetHealth::problem`. Details may
//! follow the text. This module is the only one that compares this text. All other code matches on
//! [`KnownReason`].

use super::TargetHealth;

/// A reason for the condition of a target. The reason changes a log line, a reported problem or the
/// remedy of this problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownReason {
    /// The service opens the target again in another role, after a moment. The condition is `Down`.
    Reopens,
    /// The heartbeats of the target's service do not contain the target. The condition is `Down`.
    Unreported,
    /// A target of a metadata group waits after a restoration of management, until management has
    /// compared the logs of the members. The condition is `Down`, or `Serving` if the target is in
    /// no group according to the map. The members that the target has recorded follow the text.
    ComparedAfterRestore,
    /// The target is the primary of a metadata group, and management has not decided on its request
    /// to drop a member. The condition is `Serving`.
    AwaitsOwnDisk,
}

impl KnownReason {
    const ALL: [Self; 4] =
        [Self::Reopens, Self::Unreported, Self::ComparedAfterRestore, Self::AwaitsOwnDisk];

    /// Returns the reason as text for people. A program of another version recognizes the reason
    /// only if that version uses the same text.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Reopens => "its service opens it again, since its role in its group has changed",
            Self::Unreported => {
                "its service does not report this target; check that the settings of the service \
                 name the directory of the target"
            }
            Self::ComparedAfterRestore => {
                "management was restored from a backup, so another member of the group may have \
                 newer log records; the target waits until management has compared the logs, \
                 usually for a few seconds"
            }
            Self::AwaitsOwnDisk => {
                "management has not decided yet on a request to drop another member of the group, \
                 so replies of the group wait for the disk of this target too"
            }
        }
    }
}

impl TargetHealth {
    /// Returns the reason for the condition if it is one of the reasons in [`KnownReason`].
    pub fn known_reason(&self) -> Option<KnownReason> {
        KnownReason::ALL.into_iter().find(|reason| self.problem.starts_with(reason.text()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Condition;

    #[test]
    fn each_known_reason_is_recognized_in_a_report() {
        for reason in KnownReason::ALL {
            let health = TargetHealth::new(Condition::Down, reason.text());
            assert_eq!(health.known_reason(), Some(reason));
            let details = TargetHealth::new(Condition::Down, &format!("{}: t1", reason.text()));
            assert_eq!(details.known_reason(), Some(reason));
        }
        assert_eq!(TargetHealth::new(Condition::Down, "no disk").known_reason(), None);
        assert_eq!(TargetHealth::default().known_reason(), None);
    }
}
