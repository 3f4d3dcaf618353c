//! The statistics of the live view: requests to the services or to a mount, and the rows of the
//! load between two replies.

use super::super::fetch::{Fetched, Fetcher};
use super::super::selection::is_within;
use super::super::show::{self, Line, Names};
use super::super::{Division, SpanArgs, own};
use super::view::Level;
use crate::path_lookup::{entry_at, in_mount};
use skep_env::Mailbox;
use skep_fuse::UserLoad;
use skep_stats::{LoadScope, Round, rows_within};
use skep_types::{ClusterMap, Error, ErrorCode, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time limit for the reply of a mount, which takes milliseconds if the mount works.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two checks of a thread that waits for an earlier reply of the mount.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The source of the statistics.
#[derive(Debug)]
pub(in super::super) enum Source {
    /// The services of a cluster.
    Services(Box<Fetcher>),
    /// The mount of this directory, which counts only the requests of this user's programs.
    Mount {
        place: PathBuf,
        map: Rc<ClusterMap>,
        /// Whether a thread waits for a reply of the mount.
        is_asked: Arc<AtomicBool>,
    },
}

/// The reply to one request.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) map: Rc<ClusterMap>,
    names: Rc<Names>,
    counts: Counts,
}

/// The counts in a reply.
#[derive(Debug)]
enum Counts {
    Services {
        round: Round,
        unreachable: Vec<String>,
    },
    /// The load of a mount. A mount divides its counts in only one way at a time, by the objects of
    /// the kind `by`.
    Mount {
        load: UserLoad,
        by: Division,
        place: PathBuf,
    },
}

impl Source {
    /// Returns the mount at `path` as a source of statistics.
    ///
    /// # Errors
    /// - `InvalidArgument` if the path is not in a mount, or if an option needs statistics that
    ///   only services have.
    /// - `Unsupported` if the mount is of an older version.
    /// - `TimedOut` if the mount does not reply in time.
    /// - Errors of the mount.
    pub(in super::super) fn of_mount(path: &Path, by: Division, span: &SpanArgs) -> Result<Self> {
        let (_, place) = entry_at(path)?;
        own::check(span)?;
        span.selection.check_has_nodes(by, "a mount counts")?;
        // The signals of the live view are blocked, so Ctrl-C cannot end a call that does not
        // return.
        let asked = place.clone();
        let map = Rc::new(in_mount(&place, move || own::map(&asked))??);
        Ok(Self::Mount { place, map, is_asked: Arc::default() })
    }

    /// Whether the statistics come from a mount.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Mount { .. })
    }

    /// Asks for the statistics. `interval` is the time until the next request. `by` is the kind of
    /// objects that the rows show.
    ///
    /// # Errors
    /// Errors of the request to management, which lists the services, or of the mount.
    pub(super) async fn ask(&self, by: Division, interval: Duration) -> Result<Reply> {
        match self {
            Self::Services(fetcher) => {
                let Fetched { map, round, unreachable, .. } = fetcher.fetch().await?;
                let names = Rc::new(Names::of(&map));
                Ok(Reply {
                    map: Rc::new(map),
                    names,
                    counts: Counts::Services { round, unreachable },
                })
            }
            Self::Mount { place, map, is_asked } => {
                let load = ask_mount(place, is_asked, by, interval).await?;
                let counts = Counts::Mount { load, by, place: place.clone() };
                Ok(Reply { map: Rc::clone(map), names: Rc::new(Names::of(map)), counts })
            }
        }
    }
}

/// Asks the mount at `place` on a separate thread, so that keys and signals have an effect while
/// the mount does not reply. `is_asked` limits the number of waiting threads to one. The kernel
/// does not interrupt a request that a mount has received. So a command that ends meanwhile
/// restores the terminal immediately, and its process ends when the mount replies.
///
/// # Errors
/// - `TimedOut` if the mount does not reply in time.
/// - Errors of the mount.
async fn ask_mount(
    place: &Path,
    is_asked: &Arc<AtomicBool>,
    by: Division,
    interval: Duration,
) -> Result<UserLoad> {
    let late = || {
        let what = format!(
            "no reply from the mount at {0}; `skep why {0}` shows the requests that wait",
            place.display()
        );
        Error::new(ErrorCode::TimedOut, what)
    };
    let earlier_reply = async {
        while is_asked.load(Ordering::Relaxed) {
            skep_env::sleep(POLL_INTERVAL).await;
        }
    };
    skep_env::timeout(PATIENCE, earlier_reply).await.ok_or_else(late)?;
    let (sender, mailbox) = Mailbox::new(1)?;
    let (asked, is_waiting) = (place.to_owned(), Arc::clone(is_asked));
    let ask = move || {
        let reply = own::load(&asked, by, interval);
        is_waiting.store(false, Ordering::Relaxed);
        // The queue has space for the only reply.
        let _ = sender.send(reply);
    };
    is_asked.store(true, Ordering::Relaxed);
    if let Err(error) = skep_env::spawn_thread("skep-load".into(), None, ask) {
        is_asked.store(false, Ordering::Relaxed);
        return Err(error.into());
    }
    skep_env::timeout(PATIENCE, mailbox.receive()).await.ok_or_else(late)??
}

impl Reply {
    /// Returns the lines of the load since the reply `before`, the heaviest first. `None` means
    /// that the mount has divided the counts in a reply by another kind of objects.
    fn lines_since(&self, before: &Self, by: Division, scope: LoadScope) -> Option<Vec<Line>> {
        let rows = match (&before.counts, &self.counts) {
            (Counts::Services { round: before, .. }, Counts::Services { round: now, .. }) => {
                rows_within(scope, by.into(), Some(before), now)
            }
            (
                Counts::Mount { load: before, by: by_before, .. },
                Counts::Mount { load, by: by_now, place },
            ) => {
                let is_counted = |it: &Division| own::division_name(*it) == own::division_name(by);
                if !is_counted(by_before) || !is_counted(by_now) {
                    return None;
                }
                let mut rows = own::rows((before, load), by, &self.map, place);
                rows.retain(|row| is_within(scope, by, &row.id, &self.map));
                rows
            }
            _ => return None,
        };
        Some(show::lines(&rows, by, &self.names))
    }
}

/// Lines of the view, with the kind of objects and the scope of the level that has these lines.
type Computed = (Division, LoadScope, Option<Rc<[Line]>>);

/// The replies between which the load is shown.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// The replies at the start and at the end of the last complete interval.
    shown: Option<(Rc<Reply>, Rc<Reply>)>,
    /// The reply at the start of the interval that has not ended yet.
    latest: Option<Rc<Reply>>,
    /// The result of the last call of [`Self::lines`]. Each key and each drawing of the screen
    /// needs these lines.
    computed: Option<Computed>,
}

impl Figures {
    /// Adds a reply, which ends an interval and begins the next interval.
    pub(super) fn add(&mut self, reply: Reply) {
        let reply = Rc::new(reply);
        if let Some(before) = self.latest.replace(Rc::clone(&reply)) {
            self.shown = Some((before, reply));
            self.computed = None;
        }
    }

    /// Makes the next reply begin an interval without ending an earlier interval, because this
    /// command has paused. The statistics that are shown stay until this interval has ended.
    pub(super) fn interrupt(&mut self) {
        self.latest = None;
    }

    /// Returns the lines of the last interval, the heaviest first. `None` means that no interval
    /// has ended, or that the source has changed since then to another kind of objects.
    pub(super) fn lines(&mut self, level: &Level) -> Option<Rc<[Line]>> {
        let (by, scope) = (level.by, level.scope);
        match &self.computed {
            Some((known_by, known_scope, lines)) if (*known_by, *known_scope) == (by, scope) => {
                lines.clone()
            }
            _ => {
                let (before, now) = self.shown.as_ref()?;
                let lines: Option<Rc<[Line]>> = now.lines_since(before, by, scope).map(Rc::from);
                self.computed = Some((by, scope, lines.clone()));
                lines
            }
        }
    }

    /// Returns the services that did not reply at the end of the last interval, each with the
    /// reason.
    pub(super) fn unreachable(&self) -> &[String] {
        match self.shown.as_ref().map(|(_, now)| &now.counts) {
            Some(Counts::Services { unreachable, .. }) => unreachable,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::selection::Filter;
    use super::*;
    use skep_stats::ServiceFigures;
    use skep_types::ClusterId;
    use skep_wire::node::{Statistics, StatisticsSeries};

    /// Returns a reply of one service that has executed `operations` requests.
    fn reply(second: u64, operations: i64) -> Reply {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let series = StatisticsSeries {
            metric: "skep_storage_operations".into(),
            labels: vec![label("target", "7"), label("operation", "write_chunk")],
            value: operations,
            buckets: Vec::new(),
        };
        let moment_ns = second * 1_000_000_000;
        let statistics =
            Statistics { moment_ns, incarnation: 5, page: String::new(), series: vec![series] };
        let round = vec![ServiceFigures { node: 4, name: "storage-1".into(), statistics }];
        let map = ClusterMap::empty(ClusterId::default());
        let unreachable = vec!["storage-2: no reply".to_owned()];
        let counts = Counts::Services { round, unreachable };
        Reply { names: Rc::new(Names::of(&map)), map: Rc::new(map), counts }
    }

    fn rate(figures: &mut Figures, scope: LoadScope) -> Option<f64> {
        let level = Level::new(Division::Target, scope, String::new(), Filter::default());
        let lines = figures.lines(&level)?;
        Some(lines.iter().map(|line| line.operations_per_second).sum())
    }

    #[test]
    fn live_load_covers_the_time_between_the_last_two_replies() {
        let (mut figures, all) = (Figures::default(), LoadScope::default());
        figures.add(reply(1, 100));
        assert_eq!((rate(&mut figures, all), figures.unreachable().len()), (None, 0));
        figures.add(reply(3, 300));
        assert_eq!((rate(&mut figures, all), figures.unreachable().len()), (Some(100.0), 1));
        let other = LoadScope { target: Some(8), ..all };
        assert_eq!(rate(&mut figures, other), Some(0.0));
        // A pause does not count as an interval.
        figures.interrupt();
        figures.add(reply(60, 90_000));
        assert_eq!(rate(&mut figures, all), Some(100.0));
        figures.add(reply(61, 90_005));
        assert_eq!(rate(&mut figures, all), Some(5.0));
    }
}
