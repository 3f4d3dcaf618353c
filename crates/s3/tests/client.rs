//! Sends requests to the object store of the test kit. This store checks signatures and checksums
//! with its own code, and can simulate the failures of real services.

use skep_s3::client::Client;
use skep_s3::credentials::{Credentials, Provider};
use skep_s3::location::Location;
use skep_s3::settings::{Environment, Settings};
use skep_s3::store::{Objects, Uploads};
use skep_testkit::object_store::{ACCESS, BUCKET, Fault, ObjectStore, SECRET, Stored, TOKEN};
use skep_types::ErrorCode;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;

fn client_of(url: &str, bucket: &str, provider: Provider) -> Client {
    let settings = Settings { endpoint: Some(url.to_owned()), ..Settings::default() };
    let location = Location { bucket: bucket.to_owned(), key: String::new() };
    Client::new(&settings, &location, Arc::new(provider)).expect("a client of the test store")
}

fn keys() -> Credentials {
    Credentials {
        access_key_id: ACCESS.into(),
        secret_access_key: SECRET.into(),
        session_token: Some(TOKEN.into()),
        expires: None,
    }
}

fn client(store: &ObjectStore) -> Client {
    client_of(&store.url(), BUCKET, Provider::given(Some(keys())))
}

fn read(client: &Client, key: &str) -> skep_types::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    client.get(key, None, None, &mut |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

#[test]
fn objects_with_any_key_are_stored_listed_and_read() {
    let store = ObjectStore::start();
    let client = client(&store);
    let metadata = BTreeMap::from([("mode".to_owned(), "33188".to_owned())]);
    let keys = ["a b+c", "a/b//c", "line\nfeed", "\u{e4}/\u{20ac}", "~=&?#%41", "z", "zz/"];
    for key in keys {
        client.put(key, &key.as_bytes(), &metadata).unwrap();
    }
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = client.list("", next.as_deref()).unwrap();
        found.extend(page.objects.into_iter().map(|it| it.key));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let mut sorted = keys.map(str::to_owned);
    sorted.sort();
    assert_eq!(found, sorted);
    for key in keys {
        assert_eq!(read(&client, key).unwrap(), key.as_bytes());
        let head = client.head(key).unwrap().unwrap();
        assert_eq!((head.size, &head.metadata), (key.len() as u64, &metadata));
        assert!(head.crc.is_some());
    }
    assert_eq!(client.list("a/", None).unwrap().objects.len(), 1);
    client.remove("z").unwrap();
    assert_eq!(client.head("z").unwrap(), None);
    assert_eq!(read(&client, "z").unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn errors_for_wrong_credentials_and_buckets_name_the_reason() {
    let store = ObjectStore::start();
    let with = |change: fn(&mut Credentials)| {
        let mut keys = keys();
        change(&mut keys);
        client_of(&store.url(), BUCKET, Provider::given(Some(keys))).list("", None).unwrap_err()
    };
    let wrong = with(|it| it.secret_access_key = "hidden".into());
    assert_eq!(wrong.code(), ErrorCode::PermissionDenied);
    assert!(wrong.context().contains("SignatureDoesNotMatch"), "{wrong}");
    assert!(!wrong.context().contains("hidden"), "{wrong}");
    assert!(with(|it| it.session_token = None).context().contains("InvalidToken"));
    let anonymous = client_of(&store.url(), BUCKET, Provider::given(None));
    assert_eq!(anonymous.list("", None).unwrap_err().code(), ErrorCode::PermissionDenied);
    let missing = client_of(&store.url(), "missing", Provider::given(Some(keys())));
    let error = missing.list("", None).unwrap_err();
    assert!(error.context().contains("no bucket missing"), "{error}");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nothing = client_of(&format!("http://{port}"), BUCKET, Provider::given(Some(keys())));
    let error = nothing.list("", None).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Disconnected);
    assert!(error.context().contains("3 attempts"), "{error}");
}

#[test]
fn throttled_and_lost_requests_are_retried() {
    let store = ObjectStore::start();
    let client = client(&store);
    store.fail("PUT", "/a", Fault::SlowDown, 3);
    store.fail("PUT", "/a", Fault::Lost, 1);
    client.put("a", &&b"bytes"[..], &BTreeMap::new()).unwrap();
    assert_eq!(store.count("PUT", "/a"), 5);
    store.fail("GET", "/a", Fault::Denied, 1);
    assert_eq!(read(&client, "a").unwrap_err().code(), ErrorCode::PermissionDenied);
    assert_eq!(store.count("GET", "/a"), 1);
}

#[test]
fn interrupted_read_continues_after_its_last_byte() {
    let store = ObjectStore::start();
    let client = client(&store);
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|it| it.wrapping_mul(2_654_435_761) as u8).collect();
    client.put("a", &&bytes[..], &BTreeMap::new()).unwrap();
    store.fail("GET", "/a", Fault::CutAfter(1_000_000), 2);
    assert!(read(&client, "a").unwrap() == bytes);
    assert_eq!(store.count("GET", "/a"), 3);
    let mut part = Vec::new();
    let mut take = |bytes: &[u8]| {
        part.extend_from_slice(bytes);
        Ok(())
    };
    client.get("a", Some(10..2_000_000), None, &mut take).unwrap();
    assert!(part == bytes[10..2_000_000]);
    // After a cut connection, bytes of another version must not be appended.
    store.fail("GET", "/a", Fault::CutAfter(1_000_000), 1);
    store.fail("GET", "/a", Fault::Change, 1);
    assert_eq!(read(&client, "a").unwrap_err().code(), ErrorCode::Stale);
}

#[test]
fn damaged_bytes_are_detected_in_both_directions() {
    let store = ObjectStore::start();
    let client = client(&store);
    let bytes = vec![7; 100_000];
    for has_checksums in [true, false] {
        if !has_checksums {
            store.without_checksums();
        }
        client.put("a", &&bytes[..], &BTreeMap::new()).unwrap();
        store.fail("GET", "/a", Fault::Damage, 1);
        assert_eq!(read(&client, "a").unwrap_err().code(), ErrorCode::Corrupt);
        store.fail("PUT", "/a", Fault::Damage, 1);
        let error = client.put("a", &&bytes[..], &BTreeMap::new()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt, "{error}");
    }
}

#[test]
fn uploads_in_parts_can_be_completed_or_removed() {
    let store = ObjectStore::start();
    let client = client(&store);
    let part = vec![1_u8; 5 << 20];
    let id = client.begin("a", &BTreeMap::new()).unwrap();
    let mut parts = Vec::new();
    for number in 1..=4 {
        parts.push(client.put_part("a", &id, number, &&part[..]).unwrap());
    }
    let listed = client.parts("a", &id).unwrap().unwrap();
    assert_eq!(listed, parts);
    store.fail("POST", "uploadId", Fault::LateError, 1);
    client.complete("a", &id, &parts, None).unwrap();
    assert_eq!(store.get("a").unwrap().bytes.len(), 20 << 20);
    assert_eq!(client.parts("a", &id).unwrap(), None);
    let id = client.begin("b", &BTreeMap::new()).unwrap();
    client.abort("b", &id).unwrap();
    client.abort("b", &id).unwrap();
    assert_eq!((store.uploads(), store.get("b").is_none()), (0, true));
}

#[test]
fn expiring_credentials_are_renewed_despite_lost_connections() {
    let store = ObjectStore::start();
    store.put("a", Stored::new(b"x", &[]));
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", service.local_addr().unwrap());
    // The first credentials that the server returns are about to expire. All later credentials are
    // valid. The server answers the first request of each kind only when the client repeats the
    // request.
    let server = std::thread::spawn(move || {
        let mut times = 0;
        let mut asked: Vec<String> = Vec::new();
        for stream in service.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            let mut head = Vec::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                head.push(std::mem::take(&mut line));
            }
            let first = head.remove(0);
            if !asked.contains(&first) {
                asked.push(first);
                continue;
            }
            // A server may close the connection after the header. An unread body would then reset
            // the connection.
            let has = |text: &str| head.iter().any(|it| it.to_ascii_lowercase().contains(text));
            assert!(!has("transfer-encoding"), "{head:?}");
            if first.starts_with("GET") {
                assert!(has("x-aws-ec2-metadata-token: tok"), "{head:?}");
            }
            let body = if first.contains("api/token") {
                "tok".to_owned()
            } else if first.contains("credentials/role") {
                times += 1;
                let year = if times == 1 { 2000 } else { 2999 };
                format!(
                    r#"{{"AccessKeyId":"{ACCESS}","SecretAccessKey":"{SECRET}","Token":"{TOKEN}",
                        "Expiration":"{year}-01-01T00:00:00Z"}}"#
                )
            } else {
                "role".to_owned()
            };
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            asked.push(first);
            if times == 2 {
                return asked;
            }
        }
        asked
    });
    let environment = Environment::of(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url)]);
    let provider = Provider::find(&environment, &Settings::default()).unwrap();
    let client = client_of(&store.url(), BUCKET, provider);
    assert_eq!(read(&client, "a").unwrap(), b"x");
    assert_eq!(read(&client, "a").unwrap(), b"x");
    let asked = server.join().unwrap();
    assert_eq!(asked.iter().filter(|it| it.contains("credentials/role")).count(), 3);
}
