//! Limits of the monitor, each with its reason.

use std::time::Duration;

/// Maximum number of clients in one frame. The same limit applies to users, to groups and to jobs.
/// An administrator looks for the clients and users with the most load. The limit makes the size of
/// a frame independent of the number of users.
pub const MAX_CAUSES: usize = 64;
/// Number of newest frames of one second that the monitor has in memory for the page and the rules.
/// They cover ten minutes.
pub const RECENT_FRAMES: usize = 600;
/// Maximum length of a stored frame. A larger length in a file shows that the file is damaged.
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// Time limit for the reply of one service with its figures. A slower service is missing in the
/// round.
pub const SERVICE_PATIENCE: Duration = Duration::from_millis(900);
/// Time limit for the cluster map.
pub const MAP_PATIENCE: Duration = Duration::from_secs(2);
/// Collecting takes at most one tenth of the time of one CPU. After a round that took longer, the
/// monitor waits longer.
pub const CPU_SHARE: u32 = 10;
/// Maximum number of connections to the page at a time. A browser opens up to six.
pub const MAX_CONNECTIONS: usize = 256;
/// Maximum number of points in the reply to a query of the history.
pub const MAX_POINTS: usize = 1000;
/// Time for which a finding must hold before it becomes an alert, so that a short problem raises no
/// alert.
pub const ALERT_AFTER: Duration = Duration::from_secs(5);
/// Time after the end of a finding at which its alert ends, so that an alert does not begin and end
/// each second.
pub const ALERT_ENDS_AFTER: Duration = Duration::from_secs(15);
/// Maximum number of ended alerts that the monitor has in memory for the page.
pub const KEPT_ALERTS: usize = 200;
/// Maximum number of notifications that wait to be sent. If there are more, the oldest
/// notifications are dropped with a warning.
pub const MAX_PENDING: usize = 256;
/// Time limit for a webhook, a command and a write to InfluxDB.
pub const SEND_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a reply that the monitor reads from another program over HTTP.
pub const MAX_REPLY_BYTES: usize = 64 << 20;
/// Minimum length of the password for the page.
pub const MIN_PASSWORD: usize = 8;
/// Span of the newest evidence that the rules about slowness read. A shorter span has too few
/// requests to compare. With a longer span, a cause would be found late.
pub const FINDING_WINDOW_MS: u64 = 5_000;
/// Time in milliseconds that one stored piece of older evidence covers.
pub const EVIDENCE_PIECE_MS: u64 = 10_000;
/// Maximum number of pieces of older evidence. They cover ten minutes. The evidence of a target
/// takes about 5 KB for each piece, so the evidence of 64 targets takes 20 MB.
pub const EVIDENCE_PIECES: usize = 60;
/// Maximum number of records in one export of traces. As JSON, records with the maximum number of
/// requests take 40 MB, and usual records take 2 MB.
pub const MAX_EXPORTED_RECORDS: usize = 2000;
