//! Forms the commands that start MPI jobs, which have processes on several hosts.

use super::Assignment;
use std::path::Path;

/// The implementations of MPI. The options of their `mpirun` differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// MPICH and its derivatives.
    Hydra,
    OpenMpi,
}

impl Dialect {
    /// Returns the implementation that the output of `mpirun --version` names.
    pub(super) fn of(version: &str) -> Self {
        if version.contains("Open MPI") || version.contains("OpenRTE") {
            Self::OpenMpi
        } else {
            Self::Hydra
        }
    }
}

/// Whether the prefix command of a host is ssh. `mpirun` itself also uses ssh for such a host.
fn is_remote(enter: &[String]) -> bool {
    enter.first().is_some_and(|word| word.ends_with("ssh"))
}

/// Returns the content of a host file for `mpirun`. `None` if no host is reached by ssh.
///
/// # Errors
/// Fails if some hosts are reached by ssh and others are not, because one MPI job cannot start
/// processes on both kinds of hosts.
pub(super) fn host_file(
    assignment: &Assignment,
    dialect: Dialect,
) -> Result<Option<String>, String> {
    let hosts = &assignment.hosts;
    let remote = hosts.iter().filter(|host| is_remote(&host.enter)).count();
    if remote == 0 {
        return Ok(None);
    }
    if remote < hosts.len() {
        return Err(
            "cannot run an MPI job on this host and by ssh on others: use only hosts that are \
             reached by ssh, or only this host"
                .into(),
        );
    }
    let each = assignment.processes / hosts.len().max(1) as u32;
    let line = |name: &str| match dialect {
        // Hydra starts one process for each line in turn, and continues with the first line after
        // the last line.
        Dialect::Hydra => format!("{name}:1\n"),
        Dialect::OpenMpi => format!("{name} slots={each}\n"),
    };
    Ok(Some(hosts.iter().map(|host| line(&host.name)).collect()))
}

/// Returns the command that starts a program on all hosts. Process 0 runs on the first host,
/// process 1 on the second host, and so on. Each process works in `directory`, in which `{host}`
/// stands for the name of its host.
pub(super) fn command(
    assignment: &Assignment,
    program: &[String],
    directory: &str,
    (dialect, host_file): (Dialect, Option<&Path>),
) -> Vec<String> {
    let mut words = assignment.runner.mpirun.clone();
    let of = |host: &str| directory.replace("{host}", host);
    if let Some(file) = host_file {
        let option = if dialect == Dialect::OpenMpi { "--hostfile" } else { "-f" };
        words.extend([option.to_owned(), file.display().to_string()]);
        if dialect == Dialect::OpenMpi {
            words.extend(["--map-by", "node"].map(str::to_owned));
        }
        words.extend(["-np".to_owned(), assignment.processes.to_string()]);
        words.extend(["-wdir".to_owned(), directory.to_owned()]);
        words.extend_from_slice(program);
        return words;
    }
    let hosts = &assignment.hosts;
    let is_one = hosts.len() == 1;
    let contexts = if is_one { 1 } else { assignment.processes as usize };
    for rank in 0..contexts {
        let host = &hosts[rank % hosts.len()];
        if rank > 0 {
            words.push(":".into());
        }
        let count = if is_one { assignment.processes } else { 1 };
        words.extend(["-np".to_owned(), count.to_string(), "-wdir".into(), of(&host.name)]);
        // `mpirun` itself runs on the first host, so the processes on this host need no prefix.
        if rank % hosts.len() > 0 {
            words.extend_from_slice(&host.enter);
        }
        words.extend_from_slice(program);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::{Runner, Tool, Work};
    use super::*;
    use crate::launcher::Host;

    fn assignment(hosts: &[Host], processes: u32) -> Assignment {
        Assignment {
            runner: Runner { tool: Tool::Ior, mpirun: vec!["mpirun".into(), "-x".into()] },
            work: Work::Io(crate::io::Plan::default()),
            hosts: hosts.to_vec(),
            processes,
        }
    }

    fn line(assignment: &Assignment, directory: &str, way: (Dialect, Option<&Path>)) -> String {
        command(assignment, &["ior".into(), "-w".into()], directory, way).join(" ")
    }

    #[test]
    fn mpi_processes_are_assigned_to_hosts_round_robin() {
        let here = assignment(&[Host::here()], 4);
        let hydra = (Dialect::Hydra, None);
        let place = "/mnt/{host}";
        assert_eq!(line(&here, place, hydra), "mpirun -x -np 4 -wdir /mnt/localhost ior -w");
        let host = |name: &str| Host { name: name.into(), enter: vec!["in".into(), name.into()] };
        let two = assignment(&[host("a"), host("b")], 3);
        assert_eq!(
            line(&two, place, hydra),
            "mpirun -x -np 1 -wdir /mnt/a ior -w : -np 1 -wdir /mnt/b in b ior -w : -np 1 -wdir \
             /mnt/a ior -w"
        );
        assert_eq!(host_file(&two, Dialect::Hydra), Ok(None));
    }

    #[test]
    fn mpirun_gets_a_host_file_if_hosts_are_reached_over_ssh() {
        let mut far = assignment(&[Host::over_ssh("a"), Host::over_ssh("b")], 4);
        let file = Path::new("/tmp/h");
        assert_eq!(host_file(&far, Dialect::Hydra), Ok(Some("a:1\nb:1\n".into())));
        assert_eq!(
            line(&far, "/mnt", (Dialect::Hydra, Some(file))),
            "mpirun -x -f /tmp/h -np 4 -wdir /mnt ior -w"
        );
        let slots = "a slots=2\nb slots=2\n";
        assert_eq!(host_file(&far, Dialect::OpenMpi), Ok(Some(slots.into())));
        assert_eq!(
            line(&far, "/mnt", (Dialect::OpenMpi, Some(file))),
            "mpirun -x --hostfile /tmp/h --map-by node -np 4 -wdir /mnt ior -w"
        );
        far.hosts.push(Host::here());
        assert!(host_file(&far, Dialect::Hydra).unwrap_err().contains("ssh"));
        assert_eq!(Dialect::of("mpirun (Open MPI) 4.1.4"), Dialect::OpenMpi);
        assert_eq!(Dialect::of("HYDRA build details:"), Dialect::Hydra);
    }
}
