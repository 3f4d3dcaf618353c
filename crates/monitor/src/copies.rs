//! Copies of the load for programs that store time series: InfluxDB, Prometheus, and other programs
//! with the interface "remote write" of Prometheus.
//!
//! Each copy contains the data points of the time since the previous copy. If the other program
//! does not reply or is busy, the copies wait, and the monitor sends them later in their order. The
//! monitor drops a copy that the other program refuses, because the program would refuse the copy
//! again. The history of the monitor still has the metrics.
//!
//! [`influx`] and [`remote_write`] own the formats.

use crate::back_off::BackOff;
use crate::frame::Frame;
use crate::http_client::{Failure, HttpRequest, Url, post};
use crate::limits::MAX_WAITING_COPIES;
use crate::live::MonitorState;
use crate::remote_write::SentSeries;
use crate::settings::{MonitorSettings, secret_in};
use crate::{influx, now_ms, of_cluster, remote_write};
use skep_types::{Error, ErrorCode, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The program that gets the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiver {
    Influx,
    RemoteWrite,
}

/// The copies for one program.
#[derive(Debug)]
pub(crate) struct Copies {
    receiver: Receiver,
    url: Url,
    authorization: String,
    interval: Duration,
}

/// The copies that wait, the oldest first.
#[derive(Debug, Default)]
struct Waiting {
    copies: VecDeque<Vec<u8>>,
    /// Number of copies that were dropped since the last success.
    dropped: usize,
}

impl Waiting {
    fn add(&mut self, copy: Vec<u8>) {
        if self.copies.len() == MAX_WAITING_COPIES {
            self.copies.pop_front();
            self.dropped += 1;
        }
        self.copies.push_back(copy);
    }
}

/// Returns the copies of the load for each program in the settings.
///
/// # Errors
/// `Configuration` if an address is invalid, or a file with a token cannot be read.
pub(crate) fn of_settings(settings: &MonitorSettings) -> Result<Vec<Copies>> {
    let (influx, remote) = (&settings.influx, &settings.remote_write);
    let mut found = Vec::new();
    for (receiver, url, token_file, (setting, scheme), interval) in [
        (
            Receiver::Influx,
            &influx.url,
            &influx.token_file,
            ("influx.token_file", "Token"),
            influx.interval,
        ),
        (
            Receiver::RemoteWrite,
            &remote.url,
            &remote.token_file,
            ("remote_write.token_file", "Bearer"),
            remote.interval,
        ),
    ] {
        if url.is_empty() {
            continue;
        }
        let url =
            Url::parse(url).map_err(|problem| Error::new(ErrorCode::Configuration, problem))?;
        let token = secret_in(token_file, setting)?;
        let authorization = token.map_or_else(String::new, |token| format!("{scheme} {token}"));
        found.push(Copies { receiver, url, authorization, interval: interval.0 });
    }
    Ok(found)
}

impl Copies {
    /// Sends copies until this future is dropped. `name` is the name of the cluster for the log, or
    /// `None` if the monitor watches only one cluster.
    pub(crate) async fn run(self, name: Option<String>, state: Rc<RefCell<MonitorState>>) {
        let points = format!("points{}", of_cluster(name.as_deref()));
        let mut from_ms = now_ms();
        let mut waiting = Waiting::default();
        let mut sent = SentSeries::default();
        let mut back_off = BackOff::default();
        let mut problem = String::new();
        // Retry: after growing pauses, the monitor again sends a copy that the other program could
        // not accept. The monitor drops the oldest copy if more than `MAX_WAITING_COPIES` copies
        // wait.
        loop {
            skep_env::sleep(self.interval).await;
            let to_ms = now_ms();
            if let Some(copy) = self.copy(&state.borrow(), from_ms..to_ms, &mut sent) {
                waiting.add(copy);
            }
            from_ms = to_ms;
            if !back_off.is_due(skep_env::now()) {
                continue;
            }
            let newest = self.send_all(&mut waiting).await;
            match waiting.copies.is_empty() {
                true => back_off.succeeded(),
                false => back_off.failed(skep_env::now(), self.interval),
            }
            if newest != problem {
                let dropped = match newest.is_empty() {
                    true => std::mem::take(&mut waiting.dropped),
                    false => 0,
                };
                let line = self.line(&points, &newest, dropped);
                match newest.is_empty() && dropped == 0 {
                    true => tracing::info!("{line}"),
                    false => tracing::warn!("{line}"),
                }
                problem = newest;
            }
        }
    }

    /// Returns the points of the frames that ended in `span`. `None` means that the frames have no
    /// points, for example because no frame ended in `span`. `sent` contains the series of the
    /// previous copy.
    fn copy(
        &self,
        state: &MonitorState,
        span: Range<u64>,
        sent: &mut SentSeries,
    ) -> Option<Vec<u8>> {
        let frames = state.history.recent().iter();
        let new = frames.filter(|it| span.contains(&(it.start_ms + it.span_ms)));
        let sum = Frame::sum_with_newest_readings(new);
        let (names, map) = (&state.names, state.collected.map.as_ref());
        let copy = match self.receiver {
            Receiver::Influx => influx::lines(&sum, names, map).into_bytes(),
            Receiver::RemoteWrite => remote_write::body(&sum, names, map, sent),
        };
        (!copy.is_empty()).then_some(copy)
    }

    /// Sends the waiting copies until the other program cannot accept a copy at the moment. Returns
    /// the newest problem, or an empty text.
    async fn send_all(&self, waiting: &mut Waiting) -> String {
        let mut problem = String::new();
        while let Some(copy) = waiting.copies.front() {
            match self.send(copy).await {
                Ok(()) => {}
                Err(Failure::Refused(why)) => {
                    waiting.dropped += 1;
                    problem = format!("{why}; the monitor drops these points");
                }
                Err(Failure::Later(why)) => {
                    return format!("{why}; the monitor sends these points again later");
                }
            }
            waiting.copies.pop_front();
        }
        problem
    }

    async fn send(&self, body: &[u8]) -> std::result::Result<(), Failure> {
        let url = match self.receiver {
            Receiver::Influx => influx::write_url(&self.url),
            Receiver::RemoteWrite => self.url.clone(),
        };
        let (content_type, headers) = match self.receiver {
            Receiver::Influx => ("text/plain; charset=utf-8", &[][..]),
            Receiver::RemoteWrite => ("application/x-protobuf", remote_write::HEADERS),
        };
        let request = HttpRequest {
            method: "POST",
            url: &url,
            authorization: &self.authorization,
            content_type,
            headers,
            body,
        };
        post(&request).await
    }

    /// Returns the log line about a new problem, or about the end of the previous problem if
    /// `problem` is empty. `points` names the points with their cluster. `dropped` is the number of
    /// copies that were dropped during the previous problem.
    fn line(&self, points: &str, problem: &str, dropped: usize) -> String {
        let name = match self.receiver {
            Receiver::Influx => "InfluxDB",
            Receiver::RemoteWrite => "the receiver of Prometheus remote write",
        };
        let name = format!("{name} at {}", self.url.address);
        if !problem.is_empty() {
            return format!("cannot write {points} to {name}: {problem}");
        }
        match dropped {
            0 => format!("{name} accepts {points} again"),
            _ => format!(
                "{name} accepts {points} again; the points of {dropped} intervals of {} s are lost \
                 there",
                self.interval.as_secs()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http_client::tests::answer;
    use skep_env::TcpListener;

    #[test]
    fn oldest_unsent_points_are_dropped_over_the_limit() {
        let mut waiting = Waiting::default();
        for number in 0..MAX_WAITING_COPIES + 2 {
            waiting.add(vec![u8::try_from(number).unwrap()]);
        }
        assert_eq!((waiting.copies.len(), waiting.dropped), (MAX_WAITING_COPIES, 2));
        assert_eq!(waiting.copies.front(), Some(&vec![2]));
    }

    #[test]
    fn points_are_sent_in_order_until_the_server_is_busy() {
        let sent = skep_env::block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let server = skep_env::spawn(async move {
                let mut got = Vec::new();
                for status in ["204 No Content", "400 Bad Request", "503 Busy"] {
                    got.extend(answer(&listener, status).await);
                }
                got
            });
            let copies = Copies {
                receiver: Receiver::RemoteWrite,
                url: Url { address, path: "/".into(), is_encrypted: false },
                authorization: String::new(),
                interval: Duration::from_secs(1),
            };
            let mut waiting = Waiting::default();
            (1..=4).for_each(|number| waiting.add(vec![number]));
            let problem = copies.send_all(&mut waiting).await;
            assert!(problem.contains("503"), "{problem}");
            assert_eq!((waiting.copies, waiting.dropped), ([vec![3], vec![4]].into(), 1));
            server.await
        });
        assert_eq!(sent.unwrap(), [1, 2, 3]);
    }

    #[test]
    fn log_lines_about_copies_name_their_cluster() {
        let mut settings = MonitorSettings::default();
        settings.remote_write.url = "http://a:9090/api/v1/write".into();
        settings.influx.url = "http://b:8086/write?db=skep".into();
        let copies = of_settings(&settings).unwrap();
        let points = format!("points{}", of_cluster(Some("rack-2")));
        let lines = |problem, dropped| {
            copies.iter().map(|it| it.line(&points, problem, dropped)).collect::<Vec<_>>()
        };
        assert_eq!(
            lines("no route", 0),
            [
                "cannot write points of cluster rack-2 to InfluxDB at b:8086: no route",
                "cannot write points of cluster rack-2 to the receiver of Prometheus remote write \
                 at a:9090: no route"
            ]
        );
        assert_eq!(lines("", 0)[0], "InfluxDB at b:8086 accepts points of cluster rack-2 again");
        let lost = &lines("", 3)[1];
        assert!(lost.contains("points of cluster rack-2 again; the points of 3"), "{lost}");
        assert_eq!(of_cluster(None), "", "the only cluster needs no name");
    }

    #[test]
    fn points_are_sent_only_to_addresses_in_the_settings() {
        let mut settings = MonitorSettings::default();
        assert!(of_settings(&settings).unwrap().is_empty());
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), "secret\n").unwrap();
        settings.remote_write.url = "http://a:9090/api/v1/write".into();
        settings.remote_write.token_file = token.path().into();
        settings.influx.url = "http://b:8086/write?db=skep".into();
        let found = of_settings(&settings).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.receiver, &*it.authorization)).collect();
        assert_eq!(found, [(Receiver::Influx, ""), (Receiver::RemoteWrite, "Bearer secret")]);
        settings.remote_write.token_file = "/missing".into();
        let error = of_settings(&settings).unwrap_err();
        assert!(error.context().contains("`remote_write.token_file` /missing"), "{error}");
    }
}
