//! The monitor asks all services of a cluster for their statistics each second. The monitor stores
//! the history, reports problems, and serves a web page and an interface for programs.
//!
//! - [`settings`]: the settings of `skep monitor`. `clusters`: the clusters of one monitor.
//! - `collect`, `observe`: the requests to the services, and the computation of a [`frame`] (the
//!   load of one second). `late_replies`: the rounds that some services missed.
//! - [`history`], [`tier`], [`codec`], `removals`: the stored frames of seconds, minutes and hours.
//! - `findings`, `fill_watch`, `consequences`, `alerts`, `evictions`: the rules and the alerts.
//!   `alert_log`: the alerts on disk. `notify`, `alertmanager`, `page_links`: the notifications.
//! - [`names`], `name_service`: the names of clients, users and groups. `child_program`: runs
//!   programs of the host, with a time limit.
//! - `routes`, `live`, `live_cache`, `series`, `export`, `page`: the HTTP server.
//!   `wrong_passwords`: the limit of attempts to guess its password. `target_figures`, `placement`,
//!   `target_causes`, `host_loads`, `background`, `group_rounds`: the data that the server shows
//!   about targets, hosts and background work. `metrics_pages`: the pages that Prometheus reads.
//!   `reports`: the reports of studies.
//! - `copies`: sends the load to programs that store time series, in the formats of `influx` and
//!   `remote_write` (Prometheus). `ganglia`: the load in the format that gmetad reads.
//! - `otlp`: the export of traces to collectors. `record_rounds`, `slow_operations`: the traces on
//!   the web page.
//! - [`http_client`]: single requests over HTTP. `skep stats --history` uses this module, too.
//!
//! `skep-metrics` counts the load, and `skep-stats` computes the rates. No service needs the
//! monitor. See `docs/design/0016-monitor.md`.

mod alert_log;
mod alertmanager;
mod alerts;
mod back_off;
mod background;
mod child_program;
mod clusters;
pub mod codec;
mod collect;
mod consequences;
mod copies;
mod evictions;
mod evidence;
mod export;
mod fill_watch;
mod findings;
pub mod frame;
mod ganglia;
mod group_rounds;
pub mod history;
mod host_loads;
pub mod http_client;
mod influx;
mod late_replies;
pub mod limits;
mod live;
mod live_cache;
mod metrics_pages;
mod name_service;
pub mod names;
mod notify;
mod observe;
mod otlp;
mod page;
mod page_links;
mod placement;
mod quantile;
mod record_rounds;
mod remote_write;
mod removals;
mod reports;
mod routes;
mod series;
pub mod settings;
mod slow_operations;
mod target_causes;
mod target_figures;
pub mod tier;
mod trace_source;
mod wrong_passwords;

pub use clusters::{WatchedCluster, is_name};
pub use settings::{DEFAULT_PORT, MonitorSettings};

use alert_log::AlertLog;
use alerts::Alert;
use clusters::{Choice, Clusters, claim_history, history_of};
use collect::Collector;
use history::History;
use live::MonitorState;
use notify::Notifications;
use page_links::PageLinks;
use reports::Reports;
use skep_env::{Task, UntilSignal};
use skep_exporter::http::{Answer, Request, serve_pages};
use skep_exporter::message::Figures;
use skep_rpc::JoinToken;
use skep_service::followed_token::follow_file;
use skep_service::listen::{IfTaken, listen};
use skep_types::{Error, ErrorCode, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Runs the monitor of one or several clusters, until a signal ends the monitor. If an
/// administrator replaces the token file of a cluster, the monitor uses the new token.
///
/// # Errors
/// - `Configuration` if the certificate of the page, the password, or a token for InfluxDB or
///   Prometheus cannot be used, or if the address of a receiver is invalid.
/// - `Io` if the monitor cannot listen, or cannot open its directory.
pub fn run(settings: &MonitorSettings, clusters: &[WatchedCluster]) -> Result<()> {
    let signals = skep_service::end_signals()?;
    let (settings, clusters) = (settings.clone(), clusters.to_vec());
    let result = skep_env::block_on(async move {
        let follow = |cluster: &WatchedCluster| {
            skep_env::spawn(follow_file(cluster.token_file.clone(), cluster.token.clone()))
        };
        let _following: Vec<_> = clusters.iter().map(follow).collect();
        let ended = signals.until_signal(serve(&settings, &clusters)).await;
        skep_service::notify::stopping();
        match ended {
            Ok(UntilSignal::Ready(Err(error))) => Err(error),
            Ok(_) => {
                tracing::info!("the monitor stops");
                Ok(())
            }
            Err(error) => Err(Error::from(error)),
        }
    });
    result
        .map_err(|error| Error::new(ErrorCode::Io, format!("cannot run the event loop: {error}")))?
}

/// Returns the current time in milliseconds since 1970.
fn now_ms() -> u64 {
    let now = skep_env::wall_time();
    u64::try_from(now.seconds).unwrap_or(0) * 1000 + u64::from(now.nanoseconds / 1_000_000)
}

/// Returns the words that name a cluster in log lines: ` of cluster NAME`. `None` means that the
/// monitor watches only one cluster. The result is then empty, because log lines need no name.
fn of_cluster(name: Option<&str>) -> String {
    name.map_or_else(String::new, |name| format!(" of cluster {name}"))
}

async fn serve(settings: &MonitorSettings, clusters: &[WatchedCluster]) -> Result<()> {
    let (password, tls) = (settings.password()?, settings.tls()?);
    let directory = &settings.directory;
    let named = |error: std::io::Error| Error::from(error).within(directory.display());
    std::fs::create_dir_all(directory).map_err(named)?;
    let _lock = lock(settings)?;
    let mut states = Vec::new();
    for (number, cluster) in clusters.iter().enumerate() {
        let place = history_of(directory, number, &cluster.name);
        claim_history(&place, cluster.token.cluster).map_err(named)?;
        let history = History::open(&place, settings.history.0).map_err(named)?;
        let mut state = MonitorState::new(history, settings.alerts.clone());
        state.mount_metrics_port = settings.mount_metrics_port;
        state.alert_log = AlertLog::open(&place);
        state.alerts.restore(state.alert_log.current(), now_ms());
        let (name, id) = (cluster.name.clone(), cluster.token.cluster.to_string());
        states.push(Choice { name, id, state: Rc::new(RefCell::new(state)) });
    }
    let own: Vec<_> = states.iter().map(|it| Rc::clone(&it.state)).collect();
    // The services use the function `listen`, too, so its errors name their setting `node.listen`.
    // Replace this name by the name of the monitor's setting.
    let renamed =
        |error: Error| Error::new(error.code(), error.context().replace("node.listen", "listen"));
    let listener = listen(&settings.listen, directory, IfTaken::Move).await.map_err(renamed)?;
    let address = listener.local_address()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!("the web page of the monitor is at {scheme}://{address}/");
    let _certificate = tls.clone().map(|tls| skep_env::spawn(tls.follow()));
    let figures = Figures::new(skep_metrics::Registry::new());
    let registry = Arc::clone(figures.registry());
    let handler = {
        let (clusters, access) = (Clusters(states), routes::Access::new(password));
        let reports = Reports::new(&settings.reports);
        move |request: &Request| {
            let of_report = routes::report(request, &access, &reports);
            of_report.unwrap_or_else(|| {
                Answer::Now(clusters.reply(request, &access, &registry, now_ms()))
            })
        }
    };
    let _page =
        skep_env::spawn(serve_pages(listener, limits::MAX_CONNECTIONS, tls, Rc::new(handler)));
    let notifications = Rc::new(Notifications::of_settings(&settings.alerts)?);
    let _sending: Vec<_> =
        notifications.queues().map(|queue| skep_env::spawn(queue.run())).collect();
    // `gmetad` can read only one cluster from an address, so it gets the first cluster.
    let ganglia = ganglia::listen(&settings.ganglia)?;
    let _polled = ganglia.map(|it| skep_env::spawn(ganglia::serve(it, Rc::clone(&own[0]))));
    let mut watching = Vec::new();
    for (cluster, state) in clusters.iter().zip(own) {
        let name = (clusters.len() > 1).then(|| cluster.name.clone());
        watching.extend(watch(settings, &cluster.token, name, &state, &notifications)?);
    }
    skep_service::notify::ready();
    for task in watching {
        task.await;
    }
    Ok(())
}

/// Starts the tasks for one cluster: its rounds, the requests for records and for the progress of
/// background work, and the alerts and copies for other programs. The tasks end when they are
/// dropped. `name` is the name of the cluster for the log, or `None` if the monitor watches only
/// one cluster.
fn watch(
    settings: &MonitorSettings,
    token: &JoinToken,
    name: Option<String>,
    state: &Rc<RefCell<MonitorState>>,
    notifications: &Rc<Notifications>,
) -> Result<Vec<Task<()>>> {
    let mut tasks = Vec::new();
    let links = PageLinks::new(&settings.alerts.page, name.as_deref());
    for alertmanager in alertmanager::of_settings(&settings.alerts)? {
        let alerts = alertmanager.run(links.clone(), name.clone(), Rc::clone(state));
        tasks.push(skep_env::spawn(alerts));
    }
    for copy in copies::of_settings(settings)? {
        tasks.push(skep_env::spawn(copy.run(name.clone(), Rc::clone(state))));
    }
    if let Some(traces) = otlp::Exporter::of(&settings.otlp, token)? {
        tasks.push(skep_env::spawn(traces.run(name.clone(), Rc::clone(state))));
    }
    let collector = Collector::new(token);
    let records = record_rounds::follow(collector.connections(), Rc::clone(state));
    tasks.push(skep_env::spawn(records));
    tasks.push(skep_env::spawn(group_rounds::follow(collector.identity(), Rc::clone(state))));
    tasks.push(skep_env::spawn(name_service::follow(Rc::clone(state))));
    let interval = settings.interval.0;
    let (state, notifications) = (Rc::clone(state), Rc::clone(notifications));
    let notify = move |state: &MonitorState, alert: &Alert| {
        let page = links.of_alert(alert, state.collected.map.as_ref());
        notifications.add(&state.cluster(), name.as_deref(), alert, page);
    };
    tasks.push(skep_env::spawn(collect_for_ever(interval, collector, state, notify)));
    Ok(tasks)
}

/// Locks the directory of the monitor. Only one monitor at a time can lock a directory.
fn lock(settings: &MonitorSettings) -> Result<std::fs::File> {
    let path = settings.directory.join("lock");
    let named = |error: std::io::Error| Error::from(error).within(path.display());
    let file = std::fs::File::create(&path).map_err(named)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::new(
            ErrorCode::InUse,
            format!(
                "cannot start the monitor in {}: another monitor runs there; name another \
                 directory with --directory",
                settings.directory.display()
            ),
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(named(error)),
    }
}

/// Asks the services of one cluster in rounds, until this future is dropped. Calls `notify` with
/// each alert that begins or ends, or whose severity changes.
async fn collect_for_ever(
    interval: Duration,
    mut collector: Collector,
    state: Rc<RefCell<MonitorState>>,
    notify: impl Fn(&MonitorState, &Alert),
) {
    let mut before = skep_env::now();
    let mut due = before;
    let mut used = skep_env::thread_time();
    loop {
        let collected = collector.collect().await;
        let now = skep_env::now();
        let span = now - before;
        before = now;
        let changes = {
            let mut state = state.borrow_mut();
            let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            let changes = state.take(collected, now_ms(), span_ms);
            changes.iter().for_each(|alert| notify(&state, alert));
            changes.len()
        };
        if changes > 0 {
            tracing::debug!("{changes} alerts have begun, changed or ended");
        }
        // The processor time since the last round also includes the time for decoding replies, for
        // serving the web page, and for other clusters. So the rounds of all clusters together stay
        // below the limit of processor time.
        let spent = skep_env::thread_time();
        let work = spent.saturating_sub(used);
        used = spent;
        due = next_round(due, interval, skep_env::now(), work);
        skep_env::sleep(due.saturating_sub(skep_env::now())).await;
    }
}

/// Returns the time of the next round. The time is one interval after `due`, the planned time of
/// the last round. The next round is later if the monitor would otherwise use more than its share
/// of one CPU (`limits::CPU_SHARE`). `work` is the processor time of the last round.
fn next_round(due: Duration, interval: Duration, now: Duration, work: Duration) -> Duration {
    let pause = (work * limits::CPU_SHARE).saturating_sub(work);
    // If the last round was late, the next round does not begin immediately.
    (due + interval).max(now + pause).max(now + interval / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_collection_rounds_use_at_most_their_share_of_the_time() {
        let ms = Duration::from_millis;
        let next = |due, now, work| next_round(ms(due), ms(1000), ms(now), ms(work));
        assert_eq!(next(5000, 5030, 3), ms(6000));
        assert_eq!(next(5000, 5500, 400), ms(12_300), "400 ms of 7.2 s are an eighteenth");
        assert_eq!(
            next(5000, 8000, 3),
            ms(8100),
            "a late round is not followed by a second one immediately"
        );
    }
}
