//! Reads the address and the password file of a cluster's monitor from the arguments of a command,
//! and sends requests to the monitor.

use crate::access::Access;
use serde_json::Value;
use skep_monitor::DEFAULT_PORT;
use skep_monitor::http_client::{HttpRequest, Url, send};
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

/// The options that name the monitor.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MonitorAddress {
    /// Address of the monitor, for metrics of past times and findings that need them; as
    /// https://HOST:PORT if its page is encrypted [default: the address in the cluster's data
    /// directory, or 127.0.0.1:7480]
    #[arg(long, value_name = "HOST:PORT")]
    monitor: Option<String>,
    /// File with the password of the monitor, in its first line
    #[arg(long, value_name = "FILE")]
    monitor_password_file: Option<PathBuf>,
}

/// Returns the error for a reply that is not in the form of a monitor's reply.
pub(crate) fn not_a_monitor(address: &str) -> Error {
    let what = format!(
        "cannot read the reply of {address}: the service at this address is not a monitor of this \
         version"
    );
    Error::new(ErrorCode::Protocol, what)
}

impl MonitorAddress {
    /// Returns the address of the monitor of a cluster.
    pub(crate) fn of(&self, access: &Access) -> String {
        self.monitor.clone().unwrap_or_else(|| address_in(Path::new(&access.name)))
    }

    /// Refuses the options of this struct in a command that does not ask the monitor. `option` is
    /// the option that would make the command ask the monitor.
    ///
    /// # Errors
    /// `InvalidArgument` if one of the options is given.
    pub(crate) fn refuse_without(&self, option: &str) -> Result<()> {
        if !self.is_given() {
            return Ok(());
        }
        let what = format!(
            "cannot use --monitor or --monitor-password-file without {option}: without this \
             option, the statistics come from the services, not from the monitor"
        );
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    /// Refuses the options of this struct together with `option`. With `option`, the command does
    /// not ask the monitor.
    ///
    /// # Errors
    /// `InvalidArgument` if one of the options is given.
    pub(crate) fn refuse_with(&self, option: &str) -> Result<()> {
        if !self.is_given() {
            return Ok(());
        }
        let what = format!(
            "cannot use --monitor or --monitor-password-file with {option}: with this option, the \
             command asks only the services, not the monitor"
        );
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    fn is_given(&self) -> bool {
        self.monitor.is_some() || self.monitor_password_file.is_some()
    }

    /// Sends a request such as `/api/load?span=60` about the cluster of `access` to the monitor,
    /// and returns the JSON of the reply.
    ///
    /// # Errors
    /// - `Disconnected` if the monitor cannot be reached.
    /// - `Configuration` if the password is missing or wrong.
    /// - `InvalidArgument` if the monitor refuses the request, for example because the monitor does
    ///   not watch this cluster.
    /// - `Protocol` if the reply is not the expected JSON.
    pub(crate) async fn ask(&self, access: &Access, path: &str) -> Result<Value> {
        let address = self.of(access);
        let scheme = if address.contains("://") { "" } else { "http://" };
        let path = of_cluster(path, access.token.cluster);
        let url = Url::parse(&format!("{scheme}{}{path}", address.trim_end_matches('/')))
            .map_err(|problem| Error::new(ErrorCode::Configuration, problem))?;
        let authorization = match &self.monitor_password_file {
            Some(file) => format!("Bearer {}", password(file)?),
            None => String::new(),
        };
        let request = HttpRequest {
            method: "GET",
            url: &url,
            authorization: &authorization,
            content_type: "",
            headers: &[],
            body: &[],
        };
        let unreachable = |problem| {
            let what = format!(
                "cannot ask the monitor at {problem}; start it with `skep monitor`, or name its \
                 address with --monitor"
            );
            Error::new(ErrorCode::Disconnected, what)
        };
        let (code, body) = send(&request).await.map_err(unreachable)?;
        match code {
            200 => serde_json::from_slice(&body).map_err(|_| not_a_monitor(&address)),
            401 => {
                let what = format!(
                    "cannot ask the monitor at {address}: the monitor needs a password; name the \
                     file that holds the password with --monitor-password-file"
                );
                Err(Error::new(ErrorCode::Configuration, what))
            }
            _ => {
                let reason: String = String::from_utf8_lossy(&body).chars().take(200).collect();
                let what = format!(
                    "cannot ask the monitor at {address}: the monitor replied {code} {}",
                    reason.trim().escape_debug()
                );
                Err(Error::new(ErrorCode::InvalidArgument, what))
            }
        }
    }
}

/// Returns the path of a request with the parameter that names the cluster. Without the id, a
/// monitor would reply about its first cluster, which may be another cluster.
fn of_cluster(path: &str, cluster: ClusterId) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}cluster={cluster}")
}

/// Returns the address of the monitor that `skep up` runs in the data directory `data`. If that
/// directory has no address file, returns the default address.
fn address_in(data: &Path) -> String {
    let file = data.join("monitor").join(skep_service::listen::ADDRESS_FILE);
    let known = skep_service::listen::read_address(&file);
    known.unwrap_or_else(|| format!("127.0.0.1:{DEFAULT_PORT}"))
}

fn password(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Error::from(error).within(format_args!("cannot read the password file {}", file.display()))
    })?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_monitor_options_are_refused() {
        let given = MonitorAddress { monitor: Some("a:1".into()), ..MonitorAddress::default() };
        for refused in [given.refuse_with("--watch"), given.refuse_without("--since")] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidArgument);
        }
        assert!(MonitorAddress::default().refuse_with("--watch").is_ok());
    }

    #[test]
    fn requests_to_the_monitor_name_the_cluster() {
        let id = "01".repeat(16);
        let named = |path| of_cluster(path, ClusterId::new([1; 16]));
        assert_eq!(named("/api/health"), format!("/api/health?cluster={id}"));
        assert_eq!(named("/api/why?span=5"), format!("/api/why?span=5&cluster={id}"));
    }

    #[test]
    fn monitor_address_is_found_from_the_data_directory() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(address_in(data.path()), "127.0.0.1:7480");
        std::fs::create_dir(data.path().join("monitor")).unwrap();
        std::fs::write(data.path().join("monitor/address"), "127.0.0.1:5\n").unwrap();
        assert_eq!(address_in(data.path()), "127.0.0.1:5");
    }
}
