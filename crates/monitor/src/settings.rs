//! Settings of `skep monitor`. The manual is generated from the doc comments.

use crate::limits::{LONGEST_COPY_INTERVAL, MAX_ALERTMANAGERS, MIN_PASSWORD};
use serde::{Deserialize, Serialize};
use skep_exporter::tls::ServerTls;
use skep_service::{ByteSize, Interval, Manual};
use skep_types::{Error, ErrorCode, Result};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The default port of the monitor.
pub const DEFAULT_PORT: u16 = 7480;
/// Minimum size limit of the history. Each tier needs at least a few files.
const MIN_HISTORY: u64 = 16 << 20;
/// Shortest and longest interval of rounds. The shortest frames of the history cover one second.
const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);

/// Settings of `skep monitor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorSettings {
    /// Directory in which the monitor stores the history. The monitor creates a missing directory.
    /// There is no default.
    pub directory: PathBuf,
    /// Address of the web page and of the HTTP API, as `host:port`. With port 0, the monitor
    /// chooses a free port at the first start, and writes the address to the file `address` in its
    /// data directory. An address that other hosts can reach needs a `password_file`.
    pub listen: String,
    /// File with the password of the web page, in its first line. Browsers ask for it. The monitor
    /// accepts any user name. Programs send the password as `Authorization: Bearer PASSWORD`.
    /// Empty: no password, and the web page can be opened on this host only.
    pub password_file: PathBuf,
    /// Directory that contains the reports of studies and benchmarks, as `skep study` writes them.
    /// The web page lists these reports. It shows them in a sandbox, and follows no symbolic
    /// links. Empty: no reports.
    pub reports: PathBuf,
    /// Port at which mounts serve their metrics: the port of the mount option `metrics` on all
    /// hosts with clients. Prometheus gets a list of these hosts with this port. Zero: Prometheus
    /// gets no metrics of mounts.
    pub mount_metrics_port: u16,
    /// Maximum size of the history of each cluster on disk. If the history reaches this size, the
    /// oldest files are removed.
    pub history: ByteSize,
    /// Time between two rounds of requests to all services: 1 s to 60 s. The monitor waits longer
    /// if the computation of a round takes more than 1/18 of this time.
    pub interval: Interval,
    /// Log level: `error`, `warn`, `info`, `debug` or `trace`.
    pub log: String,
    /// If the log is a file and has grown to this size, the monitor renames it to `.old` and
    /// starts a new file. Zero: no limit.
    pub log_limit: ByteSize,
    /// Encryption of the web page.
    pub tls: TlsSettings,
    /// Alerts.
    pub alerts: AlertSettings,
    /// Copies of the metrics in InfluxDB.
    pub influx: InfluxSettings,
    /// Copies of the metrics in Prometheus, or in another store with the same interface.
    pub remote_write: RemoteWriteSettings,
    /// Figures for Ganglia.
    pub ganglia: GangliaSettings,
    /// Export of traces to a collector.
    pub otlp: OtlpSettings,
}

/// Settings of the encryption of the web page and of the HTTP API. Without them, both are not
/// encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// File with the certificate of the page in PEM, followed by the certificates that lead to an
    /// authority. The monitor reads a changed file within ten seconds. Empty: no encryption.
    pub certificate: PathBuf,
    /// File with the private key of the certificate in PEM, without a password. The monitor refuses
    /// a file whose mode gives other users any access, for example mode 644: set it to 600. Empty:
    /// no encryption.
    pub key: PathBuf,
}

/// Settings of the export of traces, which are the records of slow and sampled operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSettings {
    /// Address of an OpenTelemetry collector that takes OTLP over HTTP with JSON, as
    /// `http://host:4318/v1/traces`. Empty: no export.
    pub url: String,
    /// Time between two exports.
    pub interval: Interval,
}

/// Settings of alerts: thresholds of the rules, and the programs that are notified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertSettings {
    /// Program that is started for each alert that begins or ends, with the alert as JSON on its
    /// standard input. The further texts of the list are the arguments of the program. Empty: no
    /// program.
    pub command: Vec<String>,
    /// Address that gets each alert as an HTTP POST with JSON, as `http://host:port/path` or
    /// `https://host/path`. If the server is busy or cannot be reached, the monitor repeats the
    /// POST for some minutes. Empty: no address.
    pub webhook: String,
    /// Addresses of Alertmanagers, as `http://host:9093`, at most 8. The monitor sends all current
    /// alerts to each of them, and repeats this as long as the alerts last. So each member of a
    /// group of Alertmanagers needs an entry. Empty: no Alertmanager. Leave it empty if Prometheus
    /// sends these alerts.
    pub alertmanagers: Vec<String>,
    /// Address of the web page that the receivers of notifications can open, as
    /// `https://monitor.example:7480`. Notifications then have a link to the view about the object
    /// of the alert. Empty: no links.
    pub page: String,
    /// A target with a mean latency of this many times the median of its peers is reported as
    /// slow. The latencies of disks of one kind differ by a factor of less than 2 under the same
    /// load.
    pub slow_factor: u32,
    /// Only mean latencies above this time count as slow, since short latencies differ by chance.
    pub slow_from: Interval,
    /// A metadata target is reported if one of a hundred syncs of its log takes longer than this.
    /// Each `fsync` of a file waits for such a sync.
    pub log_sync: Interval,
    /// A queue is reported if it grows and has more requests than this. A target works on one
    /// request of each client at a time, so a long queue delays all clients.
    pub queue: u64,
    /// Management is reported if `skep cluster backup` has not copied its directory for longer than
    /// this. Set `0 s` if another program makes the backups: then it is never reported.
    pub backup: Interval,
}

/// Settings of the copies of metrics that go to InfluxDB.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InfluxSettings {
    /// Address that gets the metrics in line protocol, as `http://host:8086/write?db=skep` for
    /// version 1 or `http://host:8086/api/v2/write?org=ORG&bucket=BUCKET` for version 2. The
    /// monitor adds the precision. Empty: no copies.
    pub url: String,
    /// File with the token for version 2, in its first line. Empty: no token is sent.
    pub token_file: PathBuf,
    /// Time between two writes. Each write has one point for each object.
    pub interval: Interval,
}

/// Settings of the copies of metrics that go to a store with the interface remote write of
/// Prometheus (version 1), such as Prometheus, Mimir, Thanos or `VictoriaMetrics`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteWriteSettings {
    /// Address that gets the metrics, as `http://host:9090/api/v1/write`. Prometheus accepts them
    /// if it runs with `--web.enable-remote-write-receiver`. Empty: no copies.
    pub url: String,
    /// File with a token, in its first line, which is sent as `Authorization: Bearer TOKEN`. Empty:
    /// no token is sent.
    pub token_file: PathBuf,
    /// Time between two writes. Each write has one sample for each metric of each object.
    pub interval: Interval,
}

/// Settings of the metrics for Ganglia.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GangliaSettings {
    /// Address at which `gmetad` reads the metrics, as `host:port`. The usual port is 8649. All
    /// programs that can connect to the address can read the metrics, as with `gmond`. A monitor of
    /// several clusters has the metrics of the first one. Empty: no metrics for Ganglia.
    pub listen: String,
}

impl Default for MonitorSettings {
    fn default() -> Self {
        Self {
            directory: PathBuf::new(),
            listen: format!("127.0.0.1:{DEFAULT_PORT}"),
            password_file: PathBuf::new(),
            reports: PathBuf::new(),
            mount_metrics_port: 0,
            history: ByteSize(2 << 30),
            interval: Interval(Duration::from_secs(1)),
            log: "info".into(),
            log_limit: ByteSize(0),
            tls: TlsSettings { certificate: PathBuf::new(), key: PathBuf::new() },
            alerts: AlertSettings {
                command: Vec::new(),
                webhook: String::new(),
                alertmanagers: Vec::new(),
                page: String::new(),
                slow_factor: 4,
                slow_from: Interval(Duration::from_millis(5)),
                log_sync: Interval(Duration::from_millis(100)),
                queue: 64,
                backup: Interval(Duration::from_nanos(skep_stats::backup::MAX_AGE_NS)),
            },
            influx: InfluxSettings {
                url: String::new(),
                token_file: PathBuf::new(),
                interval: Interval(Duration::from_secs(10)),
            },
            remote_write: RemoteWriteSettings {
                url: String::new(),
                token_file: PathBuf::new(),
                interval: Interval(Duration::from_secs(10)),
            },
            ganglia: GangliaSettings { listen: String::new() },
            otlp: OtlpSettings { url: String::new(), interval: Interval(Duration::from_secs(5)) },
        }
    }
}

impl Manual for MonitorSettings {
    const NAME: &'static str = "monitor";
    const SOURCES: &'static [&'static str] = &[include_str!("settings.rs")];

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.directory.as_os_str().is_empty() {
            problems.push(
                "`directory` is not set: name the directory for the history (`--directory`)".into(),
            );
        }
        if !has_port(&self.listen) {
            problems
                .push(format!("`listen`: invalid address '{}': expected host:port", self.listen));
        } else if self.password_file.as_os_str().is_empty() && !self.is_local() {
            problems.push(format!(
                "`listen`: other hosts can reach '{}', so a password must protect the web page; \
                 set `password_file`",
                self.listen
            ));
        }
        if self.tls.certificate.as_os_str().is_empty() != self.tls.key.as_os_str().is_empty() {
            problems.push(
                "`tls`: encryption needs both files; set `tls.certificate` and `tls.key`".into(),
            );
        }
        if self.history.0 < MIN_HISTORY {
            problems.push("`history` is less than 16 MiB: set a larger size".into());
        }
        if !INTERVALS.contains(&self.interval.0) {
            problems.push("`interval`: expected a time from 1 s to 60 s".into());
        }
        let listen = &self.ganglia.listen;
        if !listen.is_empty() && !has_port(listen) {
            problems
                .push(format!("`ganglia.listen`: invalid address '{listen}': expected host:port"));
        }
        for (name, interval) in [
            ("influx.interval", self.influx.interval),
            ("remote_write.interval", self.remote_write.interval),
        ] {
            if !(*INTERVALS.start()..=LONGEST_COPY_INTERVAL).contains(&interval.0) {
                problems.push(format!("`{name}`: expected a time from 1 s to 5 min"));
            }
        }
        if self.otlp.interval.0 < *INTERVALS.start() {
            problems.push("`otlp.interval`: expected a time of at least 1 s".into());
        }
        let urls = [
            ("alerts.webhook", &self.alerts.webhook),
            ("alerts.page", &self.alerts.page),
            ("influx.url", &self.influx.url),
            ("remote_write.url", &self.remote_write.url),
            ("otlp.url", &self.otlp.url),
        ];
        let alertmanagers = self.alerts.alertmanagers.iter();
        let alertmanagers = alertmanagers.map(|url| ("alerts.alertmanagers", url));
        for (name, url) in urls.into_iter().chain(alertmanagers) {
            if !url.is_empty()
                && let Err(problem) = crate::http_client::Url::parse(url)
            {
                problems.push(format!("`{name}`: {problem}"));
            }
        }
        if self.alerts.alertmanagers.len() > MAX_ALERTMANAGERS {
            problems.push(format!(
                "`alerts.alertmanagers`: expected at most {MAX_ALERTMANAGERS} addresses"
            ));
        }
        if self.alerts.slow_factor < 2 {
            problems.push("`alerts.slow_factor`: expected a number of at least 2".into());
        }
        problems
    }
}

/// Whether an address ends with a port.
fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

impl MonitorSettings {
    /// Reads the certificate and the key of the web page. `None` means that the page is not
    /// encrypted.
    ///
    /// # Errors
    /// `Configuration` or `Unsupported` as [`ServerTls::open`].
    pub(crate) fn tls(&self) -> Result<Option<Rc<ServerTls>>> {
        let TlsSettings { certificate, key } = &self.tls;
        let is_set = !certificate.as_os_str().is_empty();
        is_set.then(|| ServerTls::open(certificate, key)).transpose()
    }

    /// Whether only programs of this host can connect to the web page.
    fn is_local(&self) -> bool {
        let addresses = self.listen.to_socket_addrs();
        addresses.is_ok_and(|mut all| all.all(|address| IpAddr::is_loopback(&address.ip())))
    }

    /// Reads the password of the web page. `None` means that the settings name no password file.
    ///
    /// # Errors
    /// `Configuration` if the file cannot be read or the password is too short.
    pub fn password(&self) -> Result<Option<String>> {
        let password = secret_in(&self.password_file, "password_file")?;
        match &password {
            Some(text) if text.len() < MIN_PASSWORD => Err(Error::new(
                ErrorCode::Configuration,
                format!(
                    "cannot use the password in {}: the password has fewer than {MIN_PASSWORD} \
                     characters; choose a longer password",
                    self.password_file.display()
                ),
            )),
            _ => Ok(password),
        }
    }
}

/// Reads the first line of the file in the setting `setting`. `None` means that the setting is
/// empty.
///
/// # Errors
/// `Configuration` if the file cannot be read.
pub(crate) fn secret_in(file: &std::path::Path, setting: &str) -> Result<Option<String>> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(file).map_err(|error| {
        let what = format!("cannot read `{setting}` {}: {error}", file.display());
        Error::new(ErrorCode::Configuration, what)
    })?;
    Ok(Some(text.lines().next().unwrap_or_default().trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_service::{config, manual};

    fn problems(change: impl Fn(&mut MonitorSettings)) -> String {
        let mut settings = MonitorSettings { directory: "/d".into(), ..Default::default() };
        change(&mut settings);
        settings.problems().join("\n")
    }

    #[test]
    fn help_text_of_the_interval_names_the_actual_cpu_limit() {
        // The reference of the settings is generated from the comments.
        let limit = format!("more than 1/{} of this time", crate::limits::CPU_SHARE);
        assert!(include_str!("settings.rs").contains(&limit), "{limit}");
    }

    #[test]
    fn listening_beyond_loopback_requires_a_password() {
        assert_eq!(problems(|_| ()), "");
        for listen in ["0.0.0.0:7480", "[::]:7480", "192.0.2.1:80"] {
            let found = problems(|it| it.listen = listen.into());
            assert!(found.contains("a password must protect the web page"), "{listen}: {found}");
            let found = problems(|it| {
                it.listen = listen.into();
                it.password_file = "/etc/skep/password".into();
            });
            assert_eq!(found, "", "{listen}");
        }
        assert_eq!(problems(|it| it.listen = "[::1]:0".into()), "");
    }

    #[test]
    fn error_names_each_setting_with_an_invalid_value() {
        for (found, word) in [
            (problems(|it| it.history = ByteSize(1)), "`history`"),
            (problems(|it| it.interval = Interval(Duration::ZERO)), "`interval`"),
            (problems(|it| it.alerts.webhook = "ftp://x".into()), "`alerts.webhook`"),
            (problems(|it| it.alerts.page = "monitor:7480".into()), "`alerts.page`"),
            (
                problems(|it| it.alerts.alertmanagers = vec!["a:9093".into()]),
                "`alerts.alertmanagers`",
            ),
            (
                problems(|it| it.alerts.alertmanagers = vec!["http://a".into(); 9]),
                "`alerts.alertmanagers`",
            ),
            (problems(|it| it.influx.url = "ftp://x/write".into()), "`influx.url`"),
            (problems(|it| it.remote_write.url = "ftp://x/write".into()), "`remote_write.url`"),
            (
                problems(|it| it.remote_write.interval = Interval(Duration::ZERO)),
                "`remote_write.interval`",
            ),
            (
                problems(|it| it.influx.interval = Interval(Duration::from_secs(301))),
                "`influx.interval`",
            ),
            (problems(|it| it.ganglia.listen = "8649".into()), "`ganglia.listen`"),
            (problems(|it| it.otlp.url = "ftp://x/v1/traces".into()), "`otlp.url`"),
            (problems(|it| it.tls.key = "/key".into()), "`tls`"),
            (problems(|it| it.tls.certificate = "/cert".into()), "`tls`"),
            (problems(|it| it.otlp.interval = Interval(Duration::ZERO)), "`otlp.interval`"),
            (problems(|it| it.directory = PathBuf::new()), "`directory`"),
            (problems(|it| it.listen = "7480".into()), "`listen`"),
        ] {
            assert!(found.starts_with(word) && found.lines().count() == 1, "{word}: {found}");
        }
    }

    #[test]
    fn sample_file_sets_every_default() {
        let sample = manual::sample::<MonitorSettings>();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &sample).unwrap();
        let set = [("directory".to_owned(), "/d".to_owned())];
        let loaded = config::load::<MonitorSettings>(Some(file.path()), &set).unwrap();
        assert_eq!(
            loaded.settings,
            MonitorSettings { directory: "/d".into(), ..Default::default() }
        );
    }

    #[test]
    fn password_file_is_read_and_a_short_password_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut settings = MonitorSettings::default();
        assert_eq!(settings.password().unwrap(), None);
        settings.password_file = file.path().into();
        for (text, is_valid) in [("", false), ("short\n", false), ("long enough\nnote", true)] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(settings.password().is_ok(), is_valid, "{text}");
        }
        assert_eq!(settings.password().unwrap().as_deref(), Some("long enough"));
    }
}
