//! Verbs of studies.

pub(super) mod plan;
pub(super) mod plans;
pub(super) mod report;
pub(super) mod run;
