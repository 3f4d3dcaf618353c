//! Tests of the HTTP server, over real sockets.

use super::*;
use skep_metrics::catalog;
use std::io::{Read, Write};

/// Runs `client` in a separate thread, against a server whose metrics are a gauge and a histogram.
fn with_server<T: Send + 'static>(
    client: impl FnOnce(std::net::SocketAddr) -> T + Send + 'static,
) -> T {
    skep_env::block_on(async move {
        let registry = Registry::new();
        let name = "a\"b\\c\nd".to_owned();
        let labels = vec![("kind", "storage".to_owned()), ("name", name), ("version", "1".into())];
        registry.gauge(&catalog::NODE_INFO, &labels).set(1);
        let sync = registry.histogram(&catalog::LOG_SYNC, &vec![("target", "7".to_owned())]);
        sync.record(Duration::from_millis(2));
        sync.record(Duration::from_secs(500));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap();
        during(serve(listener, registry), move || client(address)).await
    })
    .unwrap()
}

/// Runs `client` in a separate thread while `serving` runs. Returns the result of `client`.
pub(crate) async fn during<T: Send + 'static>(
    serving: impl Future<Output = ()> + 'static,
    client: impl FnOnce() -> T + Send + 'static,
) -> T {
    let serving = skep_env::spawn(serving);
    let (sender, done) = skep_env::Mailbox::new(1).unwrap();
    let running = std::thread::spawn(move || {
        let result = client();
        let _ = sender.send(());
        result
    });
    done.receive().await.unwrap();
    drop(serving);
    running.join().unwrap()
}

fn exchange(address: std::net::SocketAddr, request: &[u8]) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may close the connection before the client has sent the whole invalid request.
    let _ = stream.write_all(request);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

#[test]
fn metrics_page_is_valid_openmetrics_text() {
    let reply = with_server(|address| {
        exchange(address, b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    });
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains(&format!("Content-Type: {}\r\n", text::CONTENT_TYPE)), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let lines = body.lines().map(|line| Ok(line.to_owned()));
    let parsed = prometheus_parse::Scrape::parse(lines).unwrap();
    let named = |name: &str| {
        parsed.samples.iter().filter(|sample| sample.metric == name).cloned().collect::<Vec<_>>()
    };
    let info = named("skep_node_info");
    assert_eq!(info.len(), 1);
    // The parser in this test does not decode escaped characters, so the expected value contains
    // the escapes.
    assert_eq!(info[0].labels.get("name"), Some(r#"a\"b\\c\nd"#));
    let syncs = named("skep_metadata_log_sync_seconds");
    let prometheus_parse::Value::Histogram(buckets) = &syncs[0].value else { panic!("{syncs:?}") };
    let last = buckets.last().unwrap();
    assert_eq!((last.less_than, last.count), (f64::INFINITY, 2.0));
    let at = |seconds: f64| buckets.iter().find(|it| it.less_than >= seconds).unwrap().count;
    assert_eq!((at(0.001), at(0.005)), (0.0, 1.0));
}

#[test]
fn handler_receives_the_address_of_the_client() {
    let reply = skep_env::block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap();
        let handler = |request: &Request| {
            let text = request.peer.map_or_else(String::new, |peer| peer.to_string());
            Answer::Now(plain("200 OK", &text))
        };
        let serving = serve_pages(listener, 1, None, Rc::new(handler));
        during(serving, move || exchange(address, b"GET / HTTP/1.0\r\n\r\n")).await
    });
    let reply = reply.unwrap();
    assert!(reply.ends_with("\r\n\r\n127.0.0.1"), "{reply}");
}

#[test]
fn several_requests_share_a_connection() {
    let replies = with_server(|address| {
        exchange(
            address,
            b"GET / HTTP/1.1\r\n\r\nHEAD /metrics HTTP/1.1\r\n\r\n\
              GET /no HTTP/1.1\r\nConnection: close\r\n\r\n",
        )
    });
    let statuses: Vec<_> = replies.lines().filter(|line| line.starts_with("HTTP/1.1")).collect();
    assert_eq!(statuses, ["HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found"]);
}

#[test]
fn invalid_requests_are_refused_and_the_server_continues() {
    let replies = with_server(|address| {
        let long = [&b"GET /metrics HTTP/1.1\r\nX: "[..], &vec![b'a'; 100_000]].concat();
        let wrong: [&[u8]; 4] = [
            b"POST /metrics HTTP/1.1\r\nConnection: close\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            b"\x16\x03\x01\x02\x00 not HTTP\r\n\r\n",
            &long,
        ];
        let mut replies: Vec<_> = wrong.iter().map(|request| exchange(address, request)).collect();
        // Connections that send nothing must not block other connections.
        let _idle: Vec<_> =
            (0..8).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        replies.push(exchange(address, b"GET /metrics HTTP/1.0\r\n\r\n"));
        replies
    });
    for (reply, status) in replies.iter().zip(["405", "400", "400", "", "200"]) {
        // If a request is too long, the reset of the connection may destroy the reply.
        assert!(status.is_empty() || reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
    }
}
