//! Tests of the encrypted server with a client of rustls, and of the files of its certificate.

use super::*;
use crate::http::tests::during;
use crate::http::{Answer, Request, plain, serve_pages};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use skep_env::TcpListener;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

/// A certificate for `localhost` that signs itself, and its key. Only tests use this certificate.
const CERTIFICATE: &str = include_str!("test-certificate.pem");
const KEY: &str = include_str!("test-key.pem");

/// Writes the certificate and the key to a new directory.
fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.path().join(name));
    fs::write(&certificate, CERTIFICATE).unwrap();
    fs::write(&key, KEY).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    (directory, certificate, key)
}

/// Runs `client` in a separate thread, against a server that replies with `body` to all requests.
fn with_server<T: Send + 'static>(
    body: &'static str,
    client: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> T {
    let (_directory, certificate, key) = files();
    skep_env::block_on(async move {
        let tls = ServerTls::open(&certificate, &key).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_address().unwrap();
        let handler = move |_: &Request| Answer::Now(plain("200 OK", body));
        let serving = serve_pages(listener, 4, Some(tls), Rc::new(handler));
        during(serving, move || client(address)).await
    })
    .unwrap()
}

fn connect(address: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Returns the TLS of a client that trusts the certificates in `roots`.
fn client(roots: &[&str], name: &'static str) -> ClientConnection {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(provider().unwrap())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap()
}

/// Sends a request over TLS, and returns the reply.
fn get(address: SocketAddr, roots: &[&str], name: &'static str) -> io::Result<String> {
    let mut stream = StreamOwned::new(client(roots, name), connect(address));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

#[test]
fn client_that_trusts_the_certificate_gets_the_page() {
    let reply = with_server("the page", |address| get(address, &[CERTIFICATE], "localhost"));
    let reply = reply.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("the page"), "{reply}");
}

#[test]
fn long_replies_over_tls_arrive_complete() {
    let body: &'static str = Box::leak("0123456789".repeat(100_000).into_boxed_str());
    let reply = with_server(body, |address| get(address, &[CERTIFICATE], "localhost")).unwrap();
    assert_eq!(reply.split_once("\r\n\r\n").unwrap().1, body);
}

#[test]
fn client_refuses_a_certificate_that_it_cannot_check() {
    let error = with_server("x", |address| get(address, &[], "localhost")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    let other = with_server("x", |address| get(address, &[CERTIFICATE], "other.example"));
    assert!(other.is_err(), "the certificate is for another name");
}

#[test]
fn reply_to_a_client_without_tls_names_https() {
    let reply = with_server("secret", |address| {
        let mut stream = connect(address);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    });
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{reply}");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{reply}");
    assert!(body.contains("https://") && !reply.contains("secret"), "{reply}");
}

#[test]
fn invalid_tls_bytes_end_only_their_own_connection() {
    with_server("the page", |address| {
        let mut record = vec![HANDSHAKE, 3, 1, 0, 200];
        record.extend([0xAA; 200]);
        let mut stream = connect(address);
        stream.write_all(&record).unwrap();
        let mut reply = Vec::new();
        // The server may close the connection before the client has read the alert.
        let _ = stream.read_to_end(&mut reply);
        assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
        get(address, &[CERTIFICATE], "localhost").unwrap();
    });
}

/// Receives a stream until its end, or until an error.
async fn receive_all(address: &str) -> (Vec<u8>, Option<ErrorKind>) {
    let socket = TcpStream::connect(address).await.unwrap();
    let mut stream = TlsStream::new(socket, client(&[CERTIFICATE], "localhost").into());
    stream.handshake().await.unwrap();
    let mut received = Vec::new();
    loop {
        match stream.receive(&mut received).await {
            Ok(0) => return (received, None),
            Ok(_) => {}
            Err(error) => return (received, Some(error.kind())),
        }
    }
}

#[test]
fn tls_stream_without_close_notify_is_reported_as_truncated() {
    let (_directory, certificate, key) = files();
    let config = load(&certificate, &key).unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        for is_complete in [true, false] {
            let (socket, _) = server.accept().unwrap();
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, socket);
            stream.write_all(b"text").unwrap();
            if is_complete {
                stream.conn.send_close_notify();
            }
            stream.flush().unwrap();
        }
    });
    let both = async move { (receive_all(&address).await, receive_all(&address).await) };
    let (complete, cut_off) = skep_env::block_on(both).unwrap();
    serving.join().unwrap();
    assert_eq!(complete, (b"text".to_vec(), None));
    assert_eq!(cut_off, (b"text".to_vec(), Some(ErrorKind::UnexpectedEof)));
}

fn problem(certificate: &Path, key: &Path) -> String {
    let error = ServerTls::open(certificate, key).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Configuration);
    error.context().to_owned()
}

#[test]
fn unusable_certificate_and_key_files_are_refused_with_a_reason() {
    let (directory, certificate, key) = files();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let missing = directory.path().join("missing.pem");
    assert!(problem(&missing, &key).contains("missing.pem: No such file"));
    assert!(problem(&certificate, &missing).contains("missing.pem: No such file"));
    let empty = file("empty.pem", "no certificate\n");
    assert!(problem(&empty, &key).contains("the file has no certificate"));
    assert!(problem(&certificate, &empty).contains("expected a private key"));
    // A key of Ed25519 whose secret bytes are the numbers from 0 to 31.
    let other = "MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";
    let lines: Vec<&str> = KEY.lines().collect();
    let other = [lines[0], other, lines[lines.len() - 1]].join("\n");
    let found = problem(&certificate, &file("other.pem", &other));
    assert!(found.contains("KeyMismatch; check that "), "{found}");
    let large = file("large.pem", &" ".repeat(2 << 20));
    assert!(problem(&large, &key).contains("larger than 1 MiB"));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let found = problem(&certificate, &key);
    assert!(found.contains("all users of this host") && found.contains("chmod 600"), "{found}");
}

fn read_changed(tls: &Rc<ServerTls>) {
    let tls = Rc::clone(tls);
    skep_env::block_on(async move { tls.read_changed().await }).unwrap().unwrap();
}

#[test]
fn new_certificate_is_used_only_if_it_is_valid() {
    let (directory, certificate, key) = files();
    let tls = ServerTls::open(&certificate, &key).unwrap();
    let config = || Arc::clone(&tls.config.borrow());
    let first = config();
    read_changed(&tls);
    assert!(Arc::ptr_eq(&config(), &first), "nothing has changed");
    let replace = |text: &str| {
        let new = directory.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(&new, &certificate).unwrap();
    };
    replace("half of a cert");
    read_changed(&tls);
    assert!(Arc::ptr_eq(&config(), &first), "the former certificate stays");
    replace(CERTIFICATE);
    read_changed(&tls);
    assert!(!Arc::ptr_eq(&config(), &first));
}
