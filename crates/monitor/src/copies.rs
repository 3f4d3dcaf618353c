//! Copies of the load for programs that store time series: InfluxDB, Prometheus, and other programs
//! with the interface "remote write" of Prometheus.
//!
//! Each copy contains the data points of the time since the previous copy. If the other program
//! does not reply or is busy, the copies wait, and the monitor sends them later in their order. A
//! copy that the other program refuses is dropped, because it would refuse the copy again. The
//! history of the monitor still has the figures.
//!
//! Does not own the formats ([`influx`], [`remote_write`]).

use crate::back_off::BackOff;
use crate::frame::Frame;
use crate::http_client::{HttpRequest, Url, send};
use crate::limits::MAX_WAITING_COPIES;
use crate::live::MonitorState;
use crate::settings::{MonitorSettings, secret_in};
use crate::{influx, now_ms, remote_write};
use skep_types::{Error, ErrorCode, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
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

/// Why the other program did not accept a copy.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// A later attempt may succeed.
    Later(String),
    /// A later attempt would fail for the same reason.
    Refused(String),
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

/// Returns the copies that the settings ask for.
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
    /// Sends copies until this future is dropped.
    pub(crate) async fn run(self, state: Rc<RefCell<MonitorState>>) {
        let mut from_ms = now_ms();
        let mut waiting = Waiting::default();
        let mut back_off = BackOff::default();
        let mut problem = String::new();
        // Retry: a copy that the other program could not accept. After growing pauses, until more
        // than `MAX_WAITING_COPIES` wait.
        loop {
            skep_env::sleep(self.interval).await;
            let to_ms = now_ms();
            if let Some(copy) = self.copy(&state.borrow(), from_ms, to_ms) {
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
                self.log(&newest, &mut waiting);
                problem = newest;
            }
        }
    }

    /// Returns the points of the frames that ended in `from_ms..to_ms`. `None` means that there is
    /// no such frame.
    fn copy(&self, state: &MonitorState, from_ms: u64, to_ms: u64) -> Option<Vec<u8>> {
        let frames = state.history.recent().iter();
        let new = frames.filter(|it| (from_ms..to_ms).contains(&(it.start_ms + it.span_ms)));
        let sum = Frame::sum_with_newest_readings(new);
        let (names, map) = (&state.names, state.collected.map.as_ref());
        let copy = match self.receiver {
            Receiver::Influx => influx::lines(&sum, names, map).into_bytes(),
            Receiver::RemoteWrite => remote_write::body(&sum, names, map),
        };
        (!copy.is_empty()).then_some(copy)
    }

    /// Sends the waiting copies until one of them must wait longer. Returns the newest problem, or
    /// an empty text.
    async fn send_all(&self, waiting: &mut Waiting) -> String {
        let mut problem = String::new();
        while let Some(copy) = waiting.copies.front() {
            match self.send(copy).await {
                Ok(()) => {}
                Err(Failure::Refused(why)) => {
                    waiting.dropped += 1;
                    problem = why;
                }
                Err(Failure::Later(why)) => return why,
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
        let (code, body) = send(&request).await.map_err(Failure::Later)?;
        outcome(code, &body)
    }

    /// Logs a new problem. If `problem` is empty, logs the end of the previous problem.
    fn log(&self, problem: &str, waiting: &mut Waiting) {
        let name = match self.receiver {
            Receiver::Influx => "InfluxDB",
            Receiver::RemoteWrite => "the receiver of Prometheus remote write",
        };
        if !problem.is_empty() {
            tracing::warn!("cannot write points to {name}: {problem}");
            return;
        }
        let dropped = std::mem::take(&mut waiting.dropped);
        match dropped {
            0 => tracing::info!("{name} accepts points again"),
            _ => tracing::warn!(
                "{name} accepts points again; the points of {dropped} intervals of {} s are lost \
                 there",
                self.interval.as_secs()
            ),
        }
    }
}

/// Returns the outcome of sending a copy, from the status code and the body of the reply.
fn outcome(code: u16, body: &[u8]) -> std::result::Result<(), Failure> {
    let reason = || {
        let reason: String = String::from_utf8_lossy(body).chars().take(200).collect();
        format!("the server replied {code}: {}", reason.trim_end().escape_debug())
    };
    match code {
        200..=299 => Ok(()),
        // The server has waited too long (408), gets too many requests (429), or has failed (500
        // and above). A later attempt may succeed.
        408 | 429 | 500.. => Err(Failure::Later(reason())),
        _ => Err(Failure::Refused(reason())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_env::{Buf, MessagePart, TcpListener};

    #[test]
    fn refused_points_are_dropped_and_unsent_points_wait() {
        assert_eq!(outcome(204, b""), Ok(()));
        for code in [408, 429, 500, 503] {
            assert!(matches!(outcome(code, b"busy"), Err(Failure::Later(_))), "{code}");
        }
        for code in [302, 400, 401, 404] {
            assert!(matches!(outcome(code, b"no"), Err(Failure::Refused(_))), "{code}");
        }
        let wrong = Failure::Refused("the server replied 400: a\\nb".into());
        assert_eq!(outcome(400, b"a\nb\n"), Err(wrong));
    }

    #[test]
    fn oldest_unsent_points_are_dropped_over_the_limit() {
        let mut waiting = Waiting::default();
        for number in 0..MAX_WAITING_COPIES + 2 {
            waiting.add(vec![u8::try_from(number).unwrap()]);
        }
        assert_eq!((waiting.copies.len(), waiting.dropped), (MAX_WAITING_COPIES, 2));
        assert_eq!(waiting.copies.front(), Some(&vec![2]));
    }

    /// Receives a request with a body of one byte, and sends a reply. Returns the byte.
    async fn answer(listener: &TcpListener, status: &str) -> u8 {
        let stream = listener.accept().await.unwrap();
        let (buffer, mut received) = (Buf::new(4096), Vec::new());
        let is_whole = |bytes: &[u8]| bytes.iter().rev().skip(1).take(4).eq(b"\n\r\n\r");
        while !is_whole(&received) {
            let count = stream.receive(buffer.clone()).await.unwrap();
            assert!(count > 0, "the request is whole");
            received.extend_from_slice(&buffer.bytes()[..count]);
        }
        let reply = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        stream.send(vec![MessagePart::Bytes(reply.into_bytes())]).await.unwrap();
        *received.last().unwrap()
    }

    #[test]
    fn points_are_sent_in_order_until_the_server_is_busy() {
        let sent = skep_env::block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_address().unwrap().to_string();
            let server = skep_env::spawn(async move {
                let mut got = Vec::new();
                for status in ["204 No Content", "400 Bad Request", "503 Busy"] {
                    got.push(answer(&listener, status).await);
                }
                got
            });
            let copies = Copies {
                receiver: Receiver::RemoteWrite,
                url: Url { address, path: "/".into() },
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
