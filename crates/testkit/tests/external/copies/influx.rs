//! InfluxDB has every point that the monitor has written, and the points agree with the work of the
//! test. A recorder between monitor and InfluxDB keeps a copy of each write.

use super::{PATIENCE, Running, ask};
use crate::text;
use serde_json::Value;
use skep_testkit::http_request::HttpRequest;
use skep_testkit::program::run;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, Transport, eventually, files, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

const DATABASE: &str = "skep";
/// Number of MiB that the job of the test writes.
const WRITTEN_MIB: u64 = 8;
/// Number of writes that the monitor must have done before the job of the test begins.
const FIRST_WRITES: usize = 2;

/// A series: the measurement, and its tags.
type Series = (String, BTreeMap<String, String>);
/// The points of each series: their times in milliseconds, each with its fields.
type Points = BTreeMap<Series, BTreeMap<u64, BTreeMap<String, i64>>>;

/// A running InfluxDB with an empty database.
struct Influx {
    _program: Running,
    address: String,
}

impl Influx {
    fn start(directory: &Path) -> Self {
        let path = |name: &str| text(&directory.join(name)).to_owned();
        let settings = format!(
            "reporting-disabled = true\nbind-address = \"127.0.0.1:0\"\n\
             [meta]\ndir = \"{}\"\n[data]\ndir = \"{}\"\nwal-dir = \"{}\"\n\
             [monitor]\nstore-enabled = false\n\
             [http]\nbind-address = \"127.0.0.1:0\"\nlog-enabled = false\n",
            path("meta"),
            path("data"),
            path("wal")
        );
        let file = directory.join("influxdb.conf");
        files::write(&file, settings);
        let mut command = Command::new("influxd");
        command.args(["run", "-config", text(&file)]);
        let (program, address) =
            Running::listening(&mut command, "msg=\"Listening on HTTP\"", " addr=");
        let influx = Self { _program: program, address };
        influx.query("POST", &format!("CREATE DATABASE {DATABASE}"));
        influx
    }

    /// Sends a query, and returns the series of its result.
    fn query(&self, method: &str, query: &str) -> Vec<Value> {
        let path = format!("/query?db={DATABASE}&epoch=ms&q={}", escaped(query));
        let (status, reply) = ask(&self.address, method, &path).expect("InfluxDB replies");
        let result = &reply["results"][0];
        assert!(status == 200 && result["error"].is_null(), "{query}: {status} {reply}");
        result["series"].as_array().cloned().unwrap_or_default()
    }

    /// Returns all points of the database.
    fn points(&self) -> Points {
        let mut points = Points::new();
        for series in self.query("GET", "SELECT * FROM /.*/ GROUP BY *") {
            // The result names all tags of the database. A tag that a series does not have is
            // empty.
            let tags = series["tags"].as_object().expect("tags").iter();
            let tags = tags.map(|(tag, value)| (tag.clone(), value.text().to_owned()));
            let tags = tags.filter(|(_, value)| !value.is_empty()).collect();
            let all = points.entry((series["name"].text().to_owned(), tags)).or_default();
            let columns = series["columns"].list();
            for row in series["values"].list() {
                let fields = columns.iter().zip(row.list()).skip(1);
                let fields = fields.filter(|(_, value)| !value.is_null());
                let number = |value: &Value| value.as_i64().expect("an integer");
                let fields = fields.map(|(name, value)| (name.text().to_owned(), number(value)));
                all.insert(row[0].number(), fields.collect());
            }
        }
        points
    }

    /// Returns the number of bytes that an object of the load (such as a user or a job) has
    /// written: the sum over its points in the database.
    fn written(&self, by: &str, id: &str) -> u64 {
        let query = format!(
            "SELECT SUM(written_bytes) FROM skep_load WHERE \"by\" = '{by}' AND id = '{id}'"
        );
        let series = self.query("GET", &query);
        series.first().map_or(0, |it| it["values"][0][1].number())
    }
}

/// Escapes a text for the query of a URL.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The writes of the monitor that a [`Recorder`] has passed on.
#[derive(Default)]
struct Recorded {
    writes: usize,
    points: Points,
    /// Replies in which InfluxDB did not report that it accepted the write.
    refusals: Vec<String>,
}

/// A server that passes writes to InfluxDB, and keeps a copy of each write that InfluxDB accepts.
struct Recorder {
    address: String,
    recorded: Arc<Mutex<Recorded>>,
}

impl Recorder {
    fn start(influx: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let recorded = Arc::<Mutex<Recorded>>::default();
        let (influx, into) = (influx.to_owned(), Arc::clone(&recorded));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let Some(request) = HttpRequest::read(&stream, PATIENCE) else { continue };
                let reply = forward(&influx, &request.bytes());
                let body = String::from_utf8(request.body).expect("UTF-8");
                let mut recorded = into.lock().unwrap_or_else(PoisonError::into_inner);
                recorded.writes += 1;
                match reply.starts_with("HTTP/1.1 204 ") {
                    true => body.lines().for_each(|line| add(&mut recorded.points, line)),
                    false => recorded.refusals.push(reply.clone()),
                }
                drop(recorded);
                // Ignore errors, because the monitor may have ended.
                let _ = stream.write_all(reply.as_bytes());
            }
        });
        Self { address, recorded }
    }

    fn read<T>(&self, of: impl FnOnce(&Recorded) -> T) -> T {
        of(&self.recorded.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sends a request to InfluxDB, and returns its reply. The monitor asks InfluxDB to close the
/// connection after the reply.
fn forward(influx: &str, request: &[u8]) -> String {
    let send = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(influx)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request)?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    };
    send().unwrap_or_else(|error| format!("HTTP/1.1 503 {error}\r\n\r\n"))
}

/// Splits a text at each separator that no backslash escapes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == separator && !is_escaped {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    parts.push(&text[start..]);
    parts
}

/// Adds a line of line protocol: `measurement,tag=value field=1i,field=2i time`.
fn add(points: &mut Points, line: &str) {
    let parts = split(line, ' ');
    let [key, fields, time] = parts[..] else { panic!("expected three parts in the line: {line}") };
    let plain = |text: &str| text.replace('\\', "");
    let pair = |text: &str| match split(text, '=')[..] {
        [name, value] => (plain(name), plain(value)),
        _ => panic!("expected a name and a value in the line: {line}"),
    };
    let key = split(key, ',');
    let series = (plain(key[0]), key[1..].iter().map(|tag| pair(tag)).collect());
    let fields = fields.split(',').map(|field| {
        let (name, value) = pair(field);
        let value = value.strip_suffix('i').expect("an integer");
        (name, value.parse().expect("an integer"))
    });
    let time = time.parse().expect("a time");
    points.entry(series).or_default().insert(time, fields.collect());
}

/// Writes files as a job of a batch system. The monitor counts the bytes of this job separately.
fn write_as_job(directory: &Path) {
    let file = format!("of={}", text(&directory.join("file of a job")));
    let count = format!("count={WRITTEN_MIB}");
    let words = ["dd", "if=/dev/zero", &file, "bs=1M", &count, "conv=fsync", "status=none"];
    run("env", std::iter::once("SLURM_JOB_ID=4711").chain(words));
}

/// Returns the ids that the points of a measurement name. If `by` is set, returns only the ids in
/// this grouping of the load.
fn ids(points: &Points, measurement: &str, by: Option<&str>) -> BTreeSet<String> {
    let is_it = |tags: &BTreeMap<String, String>| by.is_none_or(|by| tags["by"] == by);
    let series = points.keys().filter(|(name, tags)| name == measurement && is_it(tags));
    series.map(|(_, tags)| tags["id"].clone()).collect()
}

/// InfluxDB has exactly the points that the monitor has written. These points name each target and
/// each server, and count the bytes of the test's job.
pub(crate) fn influxdb_has_every_point_that_the_monitor_writes(_: &()) {
    let mut cluster = Cluster::start(Shape::default());
    let scratch = Scratch::new();
    let influx = Influx::start(scratch.path());
    let recorder = Recorder::start(&influx.address);
    let url = format!("influx.url=http://{}/write?db={DATABASE}", recorder.address);
    let monitor = Running::monitor(&cluster, &scratch, &[url, "influx.interval=1s".into()]);
    wait_for("the first writes", PATIENCE, || {
        recorder.read(|it| (it.writes >= FIRST_WRITES).then_some(()))
    });
    let mount = cluster.mount_with(Transport::Device, "job_accounting");
    write_as_job(mount.path());
    for (by, id) in [("job", "4711"), ("user", "0")] {
        let what = format!("InfluxDB has the bytes by {by}");
        wait_for(&what, PATIENCE, || {
            let written = influx.written(by, id);
            assert!(written <= WRITTEN_MIB << 20, "{by}: {written} bytes");
            (written == WRITTEN_MIB << 20).then_some(())
        });
    }
    drop(monitor);
    // A write that the monitor began before the monitor ended may still be under way.
    let (written, mut found) = (|| recorder.read(|it| it.points.clone()), Points::new());
    let is_equal = eventually(PATIENCE, || {
        found = influx.points();
        (found == written()).then_some(())
    });
    if is_equal.is_none() {
        let written = written();
        let (found, written) = (found.keys(), written.keys());
        assert_eq!(found.collect::<Vec<_>>(), written.collect::<Vec<_>>(), "series");
        panic!("InfluxDB has all series, but not the same points");
    }
    let refusals = recorder.read(|it| it.refusals.clone());
    assert!(refusals.is_empty(), "{refusals:?}");
    let kinds = ["metadata", "storage"];
    let targets = kinds.iter().flat_map(|kind| cluster.target_ids(kind));
    let targets: BTreeSet<_> = targets.map(|id| id.to_string()).collect();
    for measurement in ["skep_free_bytes", "skep_size_bytes"] {
        assert_eq!(ids(&found, measurement, None), targets, "{measurement}");
    }
    let nodes = ["management", "metadata", "storage"].into_iter();
    let nodes = nodes.flat_map(|kind| cluster.nodes(kind));
    let nodes: BTreeSet<_> = nodes.map(|node| node["id"].number().to_string()).collect();
    assert_eq!(ids(&found, "skep_memory_bytes", None), nodes);
    // An idle object has no points in the measurement `skep_load`.
    let loaded = |by: &str| ids(&found, "skep_load", Some(by));
    for (by, all) in [("node", &nodes), ("target", &targets), ("log-sync", &targets)] {
        assert!(!loaded(by).is_empty() && loaded(by).is_subset(all), "{by}: {:?}", loaded(by));
    }
    assert!(loaded("operation").contains("write_chunk"), "{:?}", loaded("operation"));
    for by in ["client", "group"] {
        assert!(!loaded(by).is_empty(), "{by}");
    }
    let points: usize = found.values().map(BTreeMap::len).sum();
    println!("InfluxDB has {points} points of {} series", found.len());
    mount.unmount();
    cluster.stop();
}
