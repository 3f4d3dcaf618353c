//! Finds the name and the nodes of the Slurm job that this process belongs to. Uses the environment
//! variables of the job, and `scontrol`.

use skep_types::{Error, ErrorCode, Result};

/// Returns the nodes of the Slurm job of this process.
///
/// # Errors
/// - `Configuration` if this process does not belong to a job.
/// - `NotFound` if `scontrol` cannot expand the list of nodes.
pub(crate) fn job_hosts() -> Result<Vec<String>> {
    node_names(&job_variable(&["SLURM_JOB_NODELIST", "SLURM_NODELIST"])?)
}

/// Returns the name of the on-demand file system that belongs to the job of this process.
///
/// # Errors
/// `Configuration` if this process does not belong to a job.
pub(crate) fn name_of_job() -> Result<String> {
    Ok(format!("job-{}", job_variable(&["SLURM_JOB_ID"])?))
}

/// Returns the value of the first environment variable in `names` that is set.
///
/// # Errors
/// `Configuration` if none of them is set.
pub(crate) fn job_variable(names: &[&str]) -> Result<String> {
    let value = names.iter().find_map(|name| std::env::var(name).ok());
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let what = format!(
            "cannot use --job: the environment variable {} is not set; run the command in the job \
             (skep copy), or in the prolog or epilog of slurmd (skep ondemand), or name the hosts \
             with --hosts",
            names.join(" or ")
        );
        Error::new(ErrorCode::Configuration, what)
    })
}

/// Expands Slurm's form of a list of nodes, such as `n[1-4]`, with the program `scontrol`.
fn node_names(list: &str) -> Result<Vec<String>> {
    let refuse = |reason: String| {
        let what = format!("cannot expand the list of nodes '{list}' with scontrol: {reason}");
        Error::new(ErrorCode::NotFound, format!("{what}; check that scontrol is in the PATH"))
    };
    let mut scontrol = std::process::Command::new("scontrol");
    let output = scontrol.args(["show", "hostnames", list]).output();
    let output = output.map_err(|error| refuse(error.to_string()))?;
    if !output.status.success() {
        return Err(refuse(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}
