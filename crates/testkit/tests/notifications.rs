//! The notifications of alerts by the monitor, with receivers of the test that are slow, fail, or
//! send replies that are not HTTP.

use serde_json::Value;
use skep_testkit::http_request::HttpRequest;
use skep_testkit::process::Suspended;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, PATIENCE, Scratch, Shape, files, wait_for};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The alert about the service that the tests suspend.
const RULE: &str = "service-unreachable";

/// The reaction of a receiver to a request.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Closes the connection without a reply.
    Close,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends HTTP headers without an end, until the sender of the request closes the connection.
    EndlessHead,
    /// Sends no reply, and waits until the sender of the request closes the connection.
    Silence,
    /// Replies with this status, and with a body of this many bytes.
    Reply(&'static str, usize),
}

/// A request that a receiver has received.
#[derive(Debug)]
struct Request {
    path: String,
    content_type: String,
    body: Value,
    /// Whether the receiver has accepted the request.
    is_accepted: bool,
}

/// Reads a single request. `None` means that the sender has closed the connection before the end of
/// the request.
fn read_request(stream: &TcpStream) -> Option<Request> {
    let request = HttpRequest::read(stream, PATIENCE)?;
    assert!(request.head.starts_with("POST "), "{}", request.head);
    Some(Request {
        path: request.path().to_owned(),
        content_type: request.header("content-type").to_owned(),
        body: serde_json::from_slice(&request.body).expect("JSON"),
        is_accepted: false,
    })
}

fn behave(mut stream: TcpStream, behaviour: Behaviour) -> std::io::Result<()> {
    match behaviour {
        Behaviour::Close => Ok(()),
        Behaviour::Garbage => stream.write_all(b"SSH-2.0-OpenSSH_10.0\r\n"),
        Behaviour::EndlessHead => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX-Endless: ")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        Behaviour::Silence => stream.read(&mut [0]).map(drop),
        Behaviour::Reply(status, body) => {
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {body}\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(&vec![b'x'; body])
        }
    }
}

fn serve(listener: &TcpListener, first: &[Behaviour], last: Behaviour, sender: &Sender<Request>) {
    for (number, stream) in listener.incoming().enumerate() {
        let stream = stream.expect("a connection");
        let Some(mut request) = read_request(&stream) else { continue };
        let behaviour = *first.get(number).unwrap_or(&last);
        request.is_accepted = matches!(behaviour, Behaviour::Reply("200 OK", _));
        // An error means that the monitor has closed the connection. The test allows such a close.
        let _ = behave(stream, behaviour);
        if sender.send(request).is_err() {
            return;
        }
    }
}

/// Starts a receiver. The receiver behaves as `first` for its first requests, and as `last` for all
/// other requests. Returns its address, and a channel with the requests.
fn receiver(first: &'static [Behaviour], last: Behaviour) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || serve(&listener, first, last, &sender));
    (address, requests)
}

fn monitored(settings: &[String]) -> Cluster {
    let more = settings.iter().flat_map(|it| ["--set".to_owned(), format!("monitor:{it}")]);
    Cluster::start(Shape { monitor: true, more: more.collect(), ..Shape::small() })
}

fn log_lines(cluster: &Cluster, words: &str) -> usize {
    let log = files::read_to_string(cluster.data().join("logs/monitor.log"));
    log.lines().filter(|line| line.contains(words)).count()
}

/// Returns the alerts of the rule in a request to an Alertmanager.
fn alerts_of_rule(request: &Request) -> Vec<Value> {
    let all = request.body.list().iter();
    all.filter(|it| it["labels"]["rule"] == RULE).cloned().collect()
}

/// An Alertmanager that first fails in several ways gets the alert, and after that the end of the
/// alert.
///
/// Command: skep monitor.
#[test]
fn alert_is_resent_until_alertmanager_accepts_its_end() {
    let (address, requests) = receiver(
        &[
            Behaviour::Close,
            Behaviour::Garbage,
            Behaviour::EndlessHead,
            Behaviour::Reply("503 Service Unavailable", 1 << 20),
        ],
        Behaviour::Reply("200 OK", 0),
    );
    let cluster = monitored(&[format!("alerts.alertmanagers=http://{address}/prefix")]);
    let suspended = Suspended::of(cluster.processes("storage"));
    let (mut failed, mut begin) = (0, None);
    let begin = wait_for("the Alertmanager accepts the alert", PATIENCE, || {
        for request in requests.try_iter() {
            assert_eq!(request.path, "/prefix/api/v2/alerts");
            assert_eq!(request.content_type, "application/json");
            failed += usize::from(!request.is_accepted);
            let found = alerts_of_rule(&request);
            begin = found.into_iter().next().filter(|_| request.is_accepted).or(begin.take());
        }
        begin.clone()
    });
    assert_eq!(failed, 4, "{begin}");
    assert_eq!(begin["labels"]["alertname"], "SkepAlert");
    assert_eq!(begin["labels"]["severity"], "critical");
    assert_eq!(begin["labels"]["skep_name"], "storage-1");
    assert!(!begin["annotations"]["summary"].text().is_empty(), "{begin}");
    // The text of a time has a fixed length, so times can be compared as texts.
    let is_ended = |alert: &Value, begin: &Value| {
        assert_eq!(alert["labels"], begin["labels"]);
        assert_eq!(alert["startsAt"], begin["startsAt"]);
        alert["endsAt"].text() < begin["endsAt"].text()
    };
    assert!(begin["endsAt"].text() > begin["startsAt"].text(), "{begin}");
    drop(suspended);
    wait_for("the Alertmanager gets the end of the alert", PATIENCE, || {
        let mut all = requests.try_iter().flat_map(|request| alerts_of_rule(&request));
        all.any(|alert| is_ended(&alert, &begin)).then_some(())
    });
    assert_eq!(log_lines(&cluster, "cannot send alerts to Alertmanager"), 1);
    assert_eq!(log_lines(&cluster, "accepts alerts"), 1);
    cluster.stop_checked(&[]);
}

/// Returns the states of the notifications of the rule.
fn states(notifications: &[Value]) -> Vec<&str> {
    let of_rule = notifications.iter().filter(|it| it["alert"]["rule"] == RULE);
    of_rule.map(|it| it["state"].text()).collect()
}

fn write_program(path: &Path, output: &Path) {
    let script = format!("#!/bin/sh\ncat >>{}\n", output.display());
    files::write(path, script);
    files::set_permissions(path, std::fs::Permissions::from_mode(0o755));
}

#[test]
fn failing_webhook_gets_each_alert_and_delays_no_other_receiver() {
    let scratch = Scratch::new();
    let (program, output) = (scratch.join("notify"), scratch.join("notified"));
    write_program(&program, &output);
    let (address, requests) = receiver(
        &[Behaviour::Silence, Behaviour::EndlessHead, Behaviour::Reply("503 Busy", 0)],
        Behaviour::Reply("200 OK", 3 << 20),
    );
    let cluster = monitored(&[
        format!("alerts.webhook=http://{address}/secret"),
        format!("alerts.command={}", program.display()),
    ]);
    let suspended = Suspended::of(cluster.processes("storage"));
    let of_program = || -> Vec<Value> {
        let text = std::fs::read_to_string(&output).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    wait_for("the program is notified", PATIENCE, || {
        (states(&of_program()) == ["began"]).then_some(())
    });
    drop(suspended);
    let mut accepted: Vec<Value> = Vec::new();
    wait_for("the webhook gets both notifications", PATIENCE, || {
        for request in requests.try_iter() {
            assert_eq!(request.path, "/secret");
            accepted.extend(request.is_accepted.then_some(request.body));
        }
        (states(&accepted) == ["began", "ended"]).then_some(())
    });
    wait_for("the program gets both notifications", PATIENCE, || {
        (states(&of_program()) == ["began", "ended"]).then_some(())
    });
    assert_eq!(log_lines(&cluster, "cannot notify the webhook"), 1);
    assert_eq!(log_lines(&cluster, "accepts notifications again"), 1);
    assert_eq!(log_lines(&cluster, "/secret"), 0, "the path of a webhook may be a secret");
}

/// For a receiver that does not exist, the monitor logs only a single line, and continues to watch
/// the cluster.
#[test]
fn unreachable_receiver_of_alerts_is_logged_once() {
    // The port of a connected socket refuses connections, and no other test can get this port
    // during the test.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = listener.local_addr().expect("an address");
    let reserved = TcpStream::connect(place).expect("a connection");
    let address = reserved.local_addr().expect("an address").to_string();
    let cluster = monitored(&[
        format!("alerts.webhook=http://{address}/"),
        format!("alerts.alertmanagers=http://{address}"),
    ]);
    let suspended = Suspended::of(cluster.processes("storage"));
    let failures = ["cannot notify the webhook", "cannot send alerts to Alertmanager"];
    for words in failures {
        wait_for(words, PATIENCE, || (log_lines(&cluster, words) > 0).then_some(()));
    }
    drop(suspended);
    let ended = format!("alert {RULE} ended");
    wait_for("the alert ends", PATIENCE, || (log_lines(&cluster, &ended) > 0).then_some(()));
    for words in failures {
        assert_eq!(log_lines(&cluster, words), 1, "{words}");
    }
    files::write(cluster.path().join("file"), "text");
    assert_eq!(files::read_to_string(cluster.path().join("file")), "text");
}
