//! Limits of the monitor, each with its reason.

use std::time::Duration;

/// Maximum number of clients in one frame. The same limit applies to users, to groups and to jobs.
/// Administrators are interested in the clients and users with the most load. The limit makes the
/// size of a frame independent of the number of users.
pub const MAX_CAUSES: usize = 64;
/// Maximum number of clients, of users, of groups or of jobs in the load of a time span. A span of
/// two years may have a million jobs. The load of all further clients, users, groups or jobs is
/// added up.
pub const MAX_LOADS: usize = 1000;
/// Number of frames of single rounds that the monitor has in memory for its web page and its rules.
/// The monitor keeps the newest frames. With the default interval of rounds, these frames cover ten
/// minutes.
pub const RECENT_FRAMES: usize = 600;
/// Maximum length of a stored frame. A larger length in a file shows that the file is damaged.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Time limit for the reply of one service with its statistics. The statistics of a slower service
/// are missing in the round.
pub const SERVICE_PATIENCE: Duration = Duration::from_millis(900);
/// Time limit for the reply of management with the cluster map. A round waits only
/// [`SERVICE_PATIENCE`] for the map if the monitor has an earlier map. After this longer time, the
/// monitor reports that management does not reply.
pub const MAP_PATIENCE: Duration = Duration::from_secs(2);
/// After a round, the monitor pauses until its use of one CPU since the last round is at most the
/// share 1 / `CPU_SHARE`. HTTP requests during the pause count for the next round, so in total the
/// monitor uses less than a tenth of one CPU.
pub const CPU_SHARE: u32 = 18;
/// Maximum number of simultaneous HTTP connections. A browser opens up to six connections.
pub const MAX_CONNECTIONS: usize = 256;
/// Maximum number of points in the reply to a query of the history.
pub const MAX_POINTS: usize = 1000;
/// Time for which a finding must exist before it becomes an alert, so that a short problem causes
/// no alert.
pub const ALERT_AFTER: Duration = Duration::from_secs(5);
/// Time after the end of a finding at which its alert ends, so that an alert does not begin and end
/// each second.
pub const ALERT_ENDS_AFTER: Duration = Duration::from_secs(15);
/// Time after a restart of the monitor for which an alert lasts although its problem is not found
/// again. Some rules need the load of a minute.
pub const RESTORED_ALERT_LASTS: Duration = Duration::from_secs(90);
/// Maximum number of alerts of a cluster in the metrics of the monitor, the most severe first.
/// Prometheus stores a series for each alert.
pub const EXPORTED_ALERTS: usize = 200;
/// Maximum number of consequences that one alert lists. For example, the alert about a failed host
/// lists the findings about its targets.
pub const MAX_CONSEQUENCES: usize = 64;
/// Maximum length of each text of a finding in bytes. The text about a host has a sentence for each
/// of its services. With this limit and [`MAX_CONSEQUENCES`], a notification has at most about 1
/// MiB.
pub const MAX_FINDING_BYTES: usize = 4 << 10;
/// Maximum number of past alerts that the monitor has in memory, and shows on its web page.
pub const KEPT_ALERTS: usize = 200;
/// Maximum length of the file with the alerts that have ended. Usual texts have less than 1 KB, so
/// the file usually has a few hundred kilobytes.
pub const MAX_ALERT_LOG_BYTES: u64 = 4 << 20;
/// Maximum number of notifications that wait for one receiver. If more notifications wait, the
/// monitor drops the oldest notifications and logs their number.
pub const MAX_PENDING: usize = 256;
/// Age at which the monitor drops a notification that a webhook could not accept yet. A host can be
/// restarted in this time. Each notification is sent at least once. A webhook that fails because of
/// one notification delays the other notifications by at most this time.
pub const MAX_NOTIFICATION_AGE: Duration = Duration::from_secs(900);
/// Shortest pause after a failed attempt to send alerts. The pause doubles up to [`LONGEST_PAUSE`].
pub const ALERT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of Alertmanagers in the settings. The monitor sends all alerts to each
/// Alertmanager. A group of Alertmanagers usually has three members.
pub const MAX_ALERTMANAGERS: usize = 8;
/// Time after which the monitor sends unchanged alerts to an Alertmanager again, as Prometheus
/// does. An Alertmanager that has been restarted gets all alerts within this time.
pub const ALERTMANAGER_REPEATS: Duration = Duration::from_secs(60);
/// Time for which an Alertmanager keeps an alert if the monitor does not send it again. This time
/// covers four repetitions, so that a lost request does not end an alert. Prometheus uses the same
/// time.
pub const ALERTMANAGER_HOLDS: Duration = Duration::from_secs(240);
/// Time for which the monitor continues to send an alert that has ended. Prometheus uses the same
/// time.
pub const ALERTMANAGER_ENDS: Duration = Duration::from_secs(900);
/// Maximum number of entries in the list of background work.
pub const MAX_WORK: usize = 200;
/// Maximum length of a file of a report that the page shows.
pub const MAX_REPORT_BYTES: u64 = 32 << 20;
/// Maximum number of names in the path of a report below its directory.
pub const MAX_REPORT_DEPTH: usize = 8;
/// Maximum number of entries of directories that the monitor reads for the list of reports.
pub const MAX_REPORT_ENTRIES: usize = 20_000;
/// Maximum number of reports in the list, the newest first.
pub const MAX_REPORTS: usize = 500;
/// Maximum number of threads that read reports at the same time. A thread that reads from a hanging
/// file system does not end, so the number must have a limit.
pub const MAX_REPORT_READERS: usize = 4;
/// Maximum number of files of reports that are in memory at the same time, because their readers
/// have not received them yet. These files take at most 512 MiB.
pub const MAX_SENT_REPORTS: usize = 16;
/// Time limit for reading a report.
pub const REPORT_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of clusters of one monitor. All clusters share one thread, so the rounds become
/// longer than a second with many large clusters.
pub const MAX_CLUSTERS: usize = 16;
/// Maximum number of alerts in one request to an Alertmanager, the most severe first. Usual texts
/// have less than 1 KB, so such a request usually has less than 1 MB.
pub const MAX_SENT_ALERTS: usize = 500;
/// Longest interval of copies of the load. The monitor computes a copy from the frames in memory
/// ([`RECENT_FRAMES`]), which cover ten minutes, and Prometheus shows a sample for five minutes.
pub const LONGEST_COPY_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum number of copies of the load that wait because the other program does not accept them.
/// If more copies wait, the monitor drops the oldest copies. With the default interval, the copies
/// cover ten minutes, and take up to 20 MB on a large cluster.
pub const MAX_WAITING_COPIES: usize = 60;
/// Maximum pause after a failed attempt to send alerts, or copies of the load or of traces. If the
/// interval of the copies is longer than this time, the pause is this interval.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Length of the time span before a query of gmetad over which the metrics are averaged. The length
/// equals the usual interval of these queries.
pub const GANGLIA_SPAN_MS: u64 = 15_000;
/// Time limit for sending the metrics to gmetad.
pub const GANGLIA_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of simultaneous connections of gmetad.
pub const MAX_GANGLIA_CONNECTIONS: usize = 16;
/// Time limit for each request to another program over HTTP, such as a webhook, and for the run of
/// a notified program.
pub const SEND_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a reply that the monitor reads from another program over HTTP.
pub const MAX_REPLY_BYTES: usize = 64 << 20;
/// Minimum length of the password for the web page.
pub const MIN_PASSWORD: usize = 8;
/// Number of wrong passwords that an address can send before it must pause. A user may mistype the
/// password some times.
pub const FREE_PASSWORDS: u32 = 10;
/// Time after which an address can send one more password. In a year, an address can then try 3
/// million passwords, which is far too few for a random password of [`MIN_PASSWORD`] characters.
pub const PASSWORD_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of addresses whose wrong passwords the monitor counts. These addresses take about
/// 1 MB.
pub const MAX_PASSWORD_ADDRESSES: usize = 4096;
/// Length of the time span whose evidence the rules about slowness use. A shorter span contains too
/// few requests for a comparison. With a longer span, the rules would find a cause later.
pub const FINDING_WINDOW_MS: u64 = 5_000;
/// Length of the time span of one stored piece of older evidence, in milliseconds.
pub const EVIDENCE_PIECE_MS: u64 = 10_000;
/// Maximum number of pieces of older evidence. The pieces cover ten minutes. In each piece, the
/// evidence of a target takes at most about 8 KB, so the evidence of 64 targets takes 30 MB.
pub const EVIDENCE_PIECES: usize = 60;
/// Maximum number of records in one export of traces. In JSON, this number of records of usual
/// length takes 2 MB. If each record has the maximum number of requests, the records take 40 MB.
pub const MAX_EXPORTED_RECORDS: usize = 2000;
