//! Deploys clusters over ssh (`skep deploy`): from one file of hosts and roles to a mounted and
//! verified cluster. Also creates file systems on the local disks of a job's hosts (`skep
//! ondemand`).
//!
//! The crate owns:
//! - [`hosts`]: the file of hosts, and its checks
//! - [`facts`]: the state of a host, as a script on this host prints it
//! - [`checks`]: reasons against a deployment on these hosts
//! - [`plan`]: the steps from the observed to the desired state
//! - [`config`]: the configuration file of each service
//! - [`actions`]: the script of each step
//! - [`ssh`]: sessions of the host's own `ssh` client
//! - [`execute`]: runs steps on many hosts at a time
//! - [`commands`]: plan, apply, upgrade, remove, destroy, status
//! - [`ondemand`]: file systems of the local disks of a job's hosts
//!
//! `hosts`, `facts`, `checks`, `plan`, `config` and `actions` are pure. The crate starts the
//! program `skep` on hosts and links none of its libraries. It stores no state on the deploying
//! host. Each run observes the hosts again, so the same command continues an interrupted run.

pub mod actions;
pub mod checks;
pub mod commands;
pub mod config;
pub mod execute;
pub mod facts;
pub mod hosts;
pub mod ondemand;
pub mod plan;
pub mod ssh;
