//! The report of a file system on demand: the data and the requests that the file system has served
//! since its start, and its cost.
//!
//! The services count in memory. A script on the first host asks all services for their counts, so
//! the command must make the report before the removal. If a service does not reply, its counts are
//! missing, and the report contains the number of such services. A report never prevents a removal.

use crate::cmd::plan::catalogue_with;
use crate::output::{count, size, span};
use clap::Args;
use serde::{Deserialize, Serialize};
use skep_deploy::ondemand::{OnDemand, OnDemandOutcome, deployment};
use skep_deploy::ssh::Ssh;
use skep_types::{Error, ErrorCode, Result};
use std::fmt::Write;
use std::path::PathBuf;

/// The options of a report. An option with a price also requests a report.
#[derive(Debug, Args)]
#[command(next_help_heading = "Report")]
pub(super) struct ReportArgs {
    /// Also report what the file system has delivered since its start: bytes written and read,
    /// requests for names and attributes, and their mean rates
    #[arg(long, conflicts_with = "job")]
    report: bool,
    /// Price of one host in USD per hour, for the cost in the report
    #[arg(long, value_name = "USD", conflicts_with_all = ["job", "server"])]
    price: Option<f64>,
    /// Type of the hosts. The report uses its price in the catalogue of `skep plan`
    #[arg(long, value_name = "NAME", conflicts_with = "job")]
    server: Option<String>,
    /// Add the servers and prices of this file to the catalogue
    #[arg(long = "catalogue", value_name = "FILE", requires = "server")]
    catalogues: Vec<PathBuf>,
}

/// The price of one host.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Price {
    usd_per_hour: f64,
    /// The source of the price: the option, or the region and the date of the catalogue.
    source: String,
}

/// The request for a report, with the price of one host if the price is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    price: Option<Price>,
}

impl ReportArgs {
    /// Returns the report that the options request. `None` means that the options request no
    /// report.
    ///
    /// # Errors
    /// - `InvalidArgument` if the price is not a positive number, or if the catalogue has no price
    ///   of the server.
    /// - `NotFound` if the catalogue has no such server, or if its file does not exist.
    pub(super) fn request(&self) -> Result<Option<Request>> {
        let price = match (self.price, &self.server) {
            (Some(usd), _) if usd.is_finite() && usd > 0.0 => {
                Some(Price { usd_per_hour: usd, source: "--price".to_owned() })
            }
            (Some(usd), _) => {
                return Err(invalid(format!("invalid --price '{usd}': expected more than 0")));
            }
            (None, Some(name)) => Some(self.price_of(name)?),
            (None, None) => None,
        };
        Ok((self.report || price.is_some()).then_some(Request { price }))
    }

    fn price_of(&self, name: &str) -> Result<Price> {
        let catalogue = catalogue_with(&self.catalogues)?;
        let server = catalogue.server(name)?;
        let Some(usd_per_hour) = server.usd_per_hour else {
            let what = format!(
                "cannot compute the cost of {name}: the catalogue has no price of this server; \
                 give the price of a host with --price, or a catalogue of your own with --catalogue"
            );
            return Err(invalid(what));
        };
        let source = format!("{name} in {}, {}", server.origin.place, server.origin.as_of);
        Ok(Price { usd_per_hour, source })
    }
}

fn invalid(what: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// A report, as JSON.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    /// Time since the start of the file system. `None` if the first host does not report this time.
    seconds: Option<u64>,
    /// The data and requests that were served. `None` if the services could not be asked.
    delivered: Option<Delivered>,
    /// The cost so far. `None` if no option has a price, or if the time since the start is unknown.
    cost: Option<Cost>,
    /// The reason why values are missing in the report.
    problem: Option<String>,
}

/// The data and requests that the services have served since the start.
#[derive(Debug, PartialEq, Serialize)]
struct Delivered {
    /// Bytes of file data that storage servers have received and written.
    written_bytes: u64,
    /// Bytes of file data that storage servers have read and sent.
    read_bytes: u64,
    /// Requests to the metadata service. `None` if the service did not reply.
    metadata_requests: Option<u64>,
    written_bytes_per_second: f64,
    read_bytes_per_second: f64,
    metadata_requests_per_second: Option<f64>,
}

/// The cost since the start.
#[derive(Debug, PartialEq, Serialize)]
struct Cost {
    usd: f64,
    hosts: usize,
    usd_per_host_hour: f64,
    price_source: String,
    /// Cost per TB that was written or read. `None` if no data was written or read.
    usd_per_tb: Option<f64>,
}

/// A line of `skep stats --by node --total`.
#[derive(Debug, Deserialize)]
struct Line {
    service: String,
    operations: u64,
    read_bytes: u64,
    written_bytes: u64,
}

/// The outcome of a command, with the report.
#[derive(Debug, Serialize)]
pub(super) struct Reported<'a> {
    #[serde(flatten)]
    pub(super) outcome: &'a OnDemandOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) report: Option<Report>,
}

/// Script that prints the seconds since the start, a new line, and the JSON of `skep stats`. Prints
/// only the first line if management does not reply.
const SCRIPT: &str = r#"
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
for run in "$PARENT/$NAME".*; do
  [ -e "$run/complete" ] || continue
  echo "$(($(date +%s) - $(stat -c %Y "$run/started")))"
  timeout 10 skep stats --cluster "$run" --by node --total --output json </dev/null 2>/dev/null
  exit 0
done
"#;

/// Makes the report about a file system that is still running. `status` is the state of the file
/// system on the hosts. Values that cannot be found are `None`.
pub(super) fn report(system: &OnDemand, status: &OnDemandOutcome, request: &Request) -> Report {
    let Some(first) = status.hosts.iter().find(|it| it.is_first) else {
        let problem = "the first host, which runs management, has no part of the file system or \
                       does not answer; repair this host, then `skep ondemand status` shows the \
                       state of the file system";
        return Report { problem: Some(problem.to_owned()), ..Report::default() };
    };
    let hosts = deployment(&system.name, &system.mount, &system.hosts);
    // `OnDemand::check` refuses values with quotes.
    let script =
        format!("PARENT='{}/skep-ondemand'\nNAME='{}'\n{SCRIPT}", system.directory, system.name);
    let output = hosts.host(&first.host).and_then(|host| Ssh::new(&hosts).run(host, &script));
    match output {
        Ok(output) => read(&output.text, system.hosts.len(), request.price.as_ref()),
        Err(error) => Report { problem: Some(error.context().to_owned()), ..Report::default() },
    }
}

/// Parses the output of [`SCRIPT`].
fn read(output: &str, hosts: usize, price: Option<&Price>) -> Report {
    let (seconds, figures) = output.split_once('\n').unwrap_or((output, ""));
    let Ok(seconds) = seconds.trim().parse::<u64>() else {
        let problem = "no start of the file system has succeeded".to_owned();
        return Report { problem: Some(problem), ..Report::default() };
    };
    let lines = serde_json::from_str::<Vec<Line>>(figures);
    let problem = match &lines {
        Err(_) => Some("the services did not reply within 10 s".to_owned()),
        Ok(lines) => silent_services(lines, hosts),
    };
    let delivered = lines.ok().map(|lines| Delivered::of(&lines, seconds));
    let bytes = delivered.as_ref().map(|it| it.written_bytes + it.read_bytes);
    let cost = price.map(|price| Cost::of(price, hosts, seconds, bytes.unwrap_or(0)));
    Report { seconds: Some(seconds), delivered, cost, problem }
}

/// Describes the services that did not reply. `None` if all have replied.
fn silent_services(lines: &[Line], hosts: usize) -> Option<String> {
    // Each host has one storage server. A service that replies has a line, even without load.
    let silent = hosts.saturating_sub(lines.iter().filter(|it| it.is_storage()).count());
    let storage = format!("{silent} of {hosts} storage servers did not reply");
    match (silent == 0, lines.iter().any(Line::is_metadata)) {
        (true, true) => None,
        (true, false) => Some("the metadata service did not reply".to_owned()),
        (false, true) => Some(storage),
        (false, false) => Some(format!("{storage}, nor did the metadata service")),
    }
}

impl Line {
    fn is_metadata(&self) -> bool {
        self.service == "metadata"
    }

    fn is_storage(&self) -> bool {
        self.service == "storage"
    }
}

impl Delivered {
    fn of(lines: &[Line], seconds: u64) -> Self {
        let storage = || lines.iter().filter(|it| it.is_storage());
        let written_bytes: u64 = storage().map(|it| it.written_bytes).sum();
        let read_bytes: u64 = storage().map(|it| it.read_bytes).sum();
        let metadata = lines.iter().find(|it| it.is_metadata());
        let metadata_requests = metadata.map(|it| it.operations);
        let rate = |total: u64| total as f64 / seconds.max(1) as f64;
        Self {
            written_bytes,
            read_bytes,
            metadata_requests,
            written_bytes_per_second: rate(written_bytes),
            read_bytes_per_second: rate(read_bytes),
            metadata_requests_per_second: metadata_requests.map(rate),
        }
    }
}

impl Cost {
    fn of(price: &Price, hosts: usize, seconds: u64, bytes: u64) -> Self {
        let usd = price.usd_per_hour * hosts as f64 * seconds as f64 / 3600.0;
        Self {
            usd,
            hosts,
            usd_per_host_hour: price.usd_per_hour,
            price_source: price.source.clone(),
            usd_per_tb: (bytes > 0).then(|| usd / (bytes as f64 / 1e12)),
        }
    }
}

impl Report {
    /// Returns the report as lines of text, each after a newline.
    pub(super) fn as_text(&self) -> String {
        let mut text = String::new();
        let time = self.seconds.map(|it| span(it * 1000)).unwrap_or_default();
        let rate = |rate: f64| format!("{}/s", size(rate as u64));
        if let Some(it) = &self.delivered {
            let _ = write!(
                text,
                "\nDelivered in {time}: written {} ({}), read {} ({})",
                size(it.written_bytes),
                rate(it.written_bytes_per_second),
                size(it.read_bytes),
                rate(it.read_bytes_per_second),
            );
            if let (Some(requests), Some(rate)) =
                (it.metadata_requests, it.metadata_requests_per_second)
            {
                let requests = count(requests);
                let _ =
                    write!(text, ", {requests} requests for names and attributes ({rate:.1}/s)");
            }
        }
        if let Some(it) = &self.cost {
            let _ = write!(
                text,
                "\nCost: {:.2} USD for {} hosts in {time}, at {} USD per host and hour ({})",
                it.usd, it.hosts, it.usd_per_host_hour, it.price_source
            );
            if let Some(usd) = it.usd_per_tb {
                let _ = write!(text, "; {usd:.2} USD per TB written and read");
            }
        }
        if let Some(problem) = &self.problem {
            let _ = write!(text, "\nMissing in the report: {problem}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct CommandLine {
        /// The options of a report conflict with the option `--job` of all subcommands.
        #[arg(long)]
        job: bool,
        #[command(flatten)]
        report: ReportArgs,
    }

    fn request(words: &str) -> Result<Option<Request>, String> {
        let words = ["x"].into_iter().chain(words.split_whitespace());
        let line = CommandLine::try_parse_from(words).map_err(|it| it.to_string())?;
        assert!(!line.job, "a report conflicts with --job");
        line.report.request().map_err(|it| it.context().to_owned())
    }

    const FIGURES: &str = r#"7200
        [{"service": "storage", "operations": 9, "read_bytes": 720, "written_bytes": 7200},
         {"service": "storage", "operations": 9, "read_bytes": 0, "written_bytes": 7200},
         {"service": "metadata", "operations": 36000, "read_bytes": 0, "written_bytes": 0},
         {"service": "management", "operations": 5, "read_bytes": 0, "written_bytes": 0}]"#;

    #[test]
    fn report_price_comes_from_an_option_or_the_catalogue() {
        assert_eq!(request(""), Ok(None));
        assert_eq!(request("--report"), Ok(Some(Request { price: None })));
        let usd = |words: &str| request(words).unwrap().unwrap().price.unwrap().usd_per_hour;
        assert_eq!(usd("--price 0.5"), 0.5);
        assert_eq!(usd("--server c3.8xlarge"), 1.912);
        for (wrong, word) in [
            ("--price 0", "invalid --price '0': expected more than 0"),
            ("--price nan", "expected more than 0"),
            ("--price 1 --server c3.8xlarge", "cannot be used with"),
            ("--report --job", "cannot be used with"),
            ("--server twelve-nvme-100g", "give the price of a host with --price"),
            ("--server nothing", "nothing"),
        ] {
            let error = request(wrong).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn report_has_sums_mean_rates_and_cost() {
        let price = Price { usd_per_hour: 1.5, source: "--price".into() };
        let report = read(FIGURES, 2, Some(&price));
        let delivered = report.delivered.as_ref().unwrap();
        assert_eq!((delivered.written_bytes, delivered.read_bytes), (14_400, 720));
        assert_eq!(delivered.written_bytes_per_second, 2.0);
        assert_eq!(delivered.metadata_requests_per_second, Some(5.0));
        let cost = report.cost.as_ref().unwrap();
        assert_eq!((cost.usd, cost.hosts), (6.0, 2));
        assert_eq!(report.problem, None);
        let text = report.as_text();
        let words = "Delivered in 2.0h: written 14.1KiB (2B/s), read 720B (0B/s), 36.0k requests";
        assert!(text.contains(words), "{text}");
        assert!(text.contains("\nCost: 6.00 USD for 2 hosts in 2.0h, at 1.5 USD per"), "{text}");
    }

    #[test]
    fn report_names_services_that_did_not_reply() {
        let price = Price { usd_per_hour: 1.5, source: "--price".into() };
        let silent = read(FIGURES, 3, None);
        assert_eq!(silent.problem.unwrap(), "1 of 3 storage servers did not reply");
        let without_metadata = FIGURES.replace("metadata", "other");
        let silent = read(&without_metadata, 2, None);
        assert_eq!(silent.problem.unwrap(), "the metadata service did not reply");
        assert_eq!(silent.delivered.unwrap().metadata_requests, None);
        let silent = read(&without_metadata, 5, None);
        let problem = "3 of 5 storage servers did not reply, nor did the metadata service";
        assert_eq!(silent.problem.unwrap(), problem);
        let dead = read("60\n", 3, Some(&price));
        assert_eq!((dead.seconds, &dead.delivered), (Some(60), &None));
        assert_eq!(dead.cost.as_ref().unwrap().usd_per_tb, None);
        let text = dead.as_text();
        assert!(text.contains("Missing in the report: the services did not reply"), "{text}");
        let never = read("", 3, Some(&price));
        assert_eq!((never.seconds, never.cost), (None, None));
        assert!(never.problem.unwrap().contains("no start"));
    }
}
