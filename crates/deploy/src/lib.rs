//! Deploys clusters over ssh (`skep deploy`): one file with hosts and roles leads to a mounted and
//! verified cluster. Also creates file systems on the local disks of a job's hosts (`skep
//! ondemand`).
//!
//! The crate owns:
//! - [`hosts`]: the hosts file, and its checks
//! - [`facts`]: the state of a host, as a script on that host prints it
//! - [`cluster`]: the state of the running cluster, as management prints it
//! - [`groups`]: the division of the metadata targets into groups
//! - [`checks`]: facts about hosts that prevent a deployment
//! - [`plan`]: the steps that lead from the observed state to the described cluster
//! - [`config`]: the configuration file of each service
//! - [`units`]: the systemd units of a host
//! - [`actions`]: the script of each step
//! - [`tuning`]: the settings of the kernel of each host
//! - [`ssh`]: sessions of the `ssh` client that is installed on this host
//! - [`observation`]: the progress of scripts that observe many hosts at the same time
//! - [`execute`]: runs steps on many hosts at the same time
//! - `removal`: whether the cluster uses the targets of a host that is removed
//! - [`report`]: the result of a command
//! - [`commands`]: plan, apply, upgrade, remove, destroy, status
//! - [`job_lines`]: the lines of a batch script that ask for copies
//! - [`ondemand`]: file systems of the local disks of a job's hosts
//!
//! `facts`, `cluster`, `groups`, `checks`, `plan`, `config`, `units`, `tuning`, `job_lines` and
//! `actions` do no I/O. The crate starts the program `skep` on hosts, but does not link its
//! libraries. The crate stores no state on the host that deploys. Each run observes the hosts and
//! the cluster again, so the same command continues an interrupted run.

pub mod actions;
pub mod checks;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod execute;
pub mod facts;
pub mod groups;
pub mod hosts;
pub mod job_lines;
pub mod observation;
pub mod ondemand;
pub mod plan;
mod removal;
pub mod report;
pub mod ssh;
mod text_hash;
pub mod tuning;
pub mod units;
