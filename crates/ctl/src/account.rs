//! Programs that root runs with the rights of a user.
//!
//! # Invariants
//! - The program gets no right, group, variable or file descriptor of root.
//! - Root never opens a path that the user has chosen. Only the program opens such a path.
//! - The program ends at its time limit, even if the user has stopped the program.
//!
//! The invariants concern processes of the host, so no function of this module can check the
//! invariants.
//!
//! Held by the tests `programs_of_an_account_have_only_the_rights_of_its_user` and
//! `stopped_program_of_a_user_ends_at_its_time_limit`, and by the jobs of the external check
//! `slurm_jobs_get_an_on_demand_file_system` that name paths of root.

use skep_types::{Error, ErrorCode, Result};
use std::process::Command;

/// A user and the primary group of this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    user: u32,
    group: u32,
}

impl Account {
    /// Returns the account of a user of this host.
    ///
    /// # Errors
    /// `NotFound` if this host does not have this user.
    pub(crate) fn of(user: u32) -> Result<Self> {
        let output = Command::new("id").args(["-g", "--", &user.to_string()]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.trim().parse() {
            Ok(group) if output.status.success() => Ok(Self { user, group }),
            _ => {
                let what = format!("cannot find user {user} on this host; check `getent passwd`");
                Err(Error::new(ErrorCode::NotFound, what))
            }
        }
    }

    /// Returns the command that runs a program with the rights of this user. `words` are the
    /// program and its arguments. After `seconds` seconds, `timeout` kills the program.
    pub(crate) fn command(self, seconds: u32, words: &[String]) -> Command {
        // `timeout` runs as root, so the user cannot stop `timeout`. The signal KILL also ends a
        // program that the user has stopped.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", &seconds.to_string(), "setpriv"]);
        command.args([&format!("--reuid={}", self.user), &format!("--regid={}", self.group)]);
        command.args(["--init-groups", "--reset-env", "--no-new-privs", "--inh-caps=-all", "--"]);
        command.args(words).current_dir("/");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_arguments_never_become_options_of_setpriv() {
        let account = Account { user: 7, group: 8 };
        let words = ["skep".to_owned(), "--reuid=0".to_owned(), "; id".to_owned()];
        let command = account.command(9, &words);
        let arguments: Vec<_> = command.get_args().map(|it| it.to_str().unwrap()).collect();
        assert_eq!(
            arguments.join(" "),
            "--signal=KILL 9 setpriv --reuid=7 --regid=8 --init-groups --reset-env --no-new-privs \
             --inh-caps=-all -- skep --reuid=0 ; id"
        );
    }

    #[test]
    fn programs_of_an_account_have_only_the_rights_of_its_user() {
        // Only root can change the user of a process, so other users skip this check.
        if std::fs::metadata("/proc/self/environ").is_err() || std::fs::read("/etc/shadow").is_err()
        {
            return;
        }
        let line = "id -u; id -g; id -G; \
            grep -E '^(Cap(Inh|Prm|Eff)|NoNewPrivs)' /proc/self/status; \
            cat /etc/shadow; env | grep -c CARGO; pwd";
        let words = ["sh", "-c", line].map(str::to_owned);
        let output = Account::of(1).unwrap().command(10, &words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let none = "0000000000000000";
        assert_eq!(
            text.replace('\t', " "),
            format!(
                "1\n1\n1\nCapInh: {none}\nCapPrm: {none}\nCapEff: {none}\nNoNewPrivs: 1\n0\n/\n"
            )
        );
        assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"));
        assert!(Account::of(u32::MAX - 7).unwrap_err().context().contains("cannot find user"));
    }

    #[test]
    fn stopped_program_of_a_user_ends_at_its_time_limit() {
        // Only root can change the user of a process, so other users skip this check.
        if std::fs::read("/etc/shadow").is_err() {
            return;
        }
        // The program stops itself. If `timeout` sent a signal other than KILL, the program would
        // not end.
        let words = ["sh", "-c", "kill -STOP $$; exit 0"].map(str::to_owned);
        let status = Account::of(1).unwrap().command(1, &words).status().unwrap();
        assert!(!status.success(), "{status}");
    }
}
