//! The page and the HTTP interface of the monitor: passwords, encryption, several clusters, reports
//! and placement.

use super::*;

fn refused(result: Finished, words: &str) {
    let text = result.expect_failure();
    assert!(text.contains(words), "{words}: {text}");
}

#[test]
fn monitor_refuses_unauthorized_requests_and_wrong_options() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let directory = scratch.path().join("monitor");
    let directory_text = directory.to_str().expect("UTF-8");
    let open = ["monitor", "--directory", directory_text, "--listen", "0.0.0.0:0"];
    refused(cluster.try_skep(&open), "password_file");
    let wrong = ["monitor", "--directory", directory_text, "--set", "histry=1GiB"];
    refused(cluster.try_skep(&wrong), "histry");
    let nobody = ["stats", "--history", "1h", "--monitor", "127.0.0.1:1"];
    refused(cluster.try_skep(&nobody), "cannot ask the monitor at 127.0.0.1:1");
    refused(cluster.try_skep(&["stats", "--history", "1h", "--total"]), "--total");

    let password = scratch.path().join("password");
    fs::write(&password, "correct horse\n").unwrap();
    let password = password.to_str().expect("UTF-8");
    let setting = format!("password_file={password}");
    let monitor = Monitor::start(&cluster, &directory, &["--set", &setting]);
    let address = monitor.address();
    for path in ["/", "/api/live", "/metrics"] {
        let (status, _) = request(&address, path, "").unwrap();
        assert_eq!(status, "HTTP/1.1 401 Unauthorized", "{path}");
        let right = "Authorization: Bearer correct horse\r\n";
        let (status, _) = request(&address, path, right).unwrap();
        assert_eq!(status, "HTTP/1.1 200 OK", "{path}");
    }
    let history = ["stats", "--history", "1min", "--monitor", &address];
    refused(cluster.try_skep(&history), "--monitor-password-file");
    let with_password = [&history[..], &["--monitor-password-file", password]].concat();
    cluster.skep(&with_password);
    // A second monitor in the same directory is refused, because both monitors would write frames
    // to the same files.
    let second = Command::new(cluster::program())
        .args(["monitor", "--directory", directory_text, "--listen", "127.0.0.1:0", "--cluster"])
        .arg(cluster.data())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && text.contains("another monitor runs there"), "{text}");
}

/// Command: skep monitor, skep stats.
#[test]
fn encrypted_page_is_served_to_clients_that_trust_its_ca() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let authority = Authority::create(&scratch.directory("authority"));
    let (certificate, key) = authority.issue("DNS:localhost");
    let files = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--tls-certificate", files[0], "--tls-key", files[1]];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let monitor = Monitor::start(&cluster, &scratch.path().join("monitor"), &options);
    let address = monitor.address();
    let (status, body) = request(&address, "/api/live", "").expect("a reply");
    assert_eq!(status, "HTTP/1.1 400 Bad Request", "{body}");
    assert!(body.contains("https://"), "{body}");
    let port = address.rsplit_once(':').expect("a port").1;
    let ask = |roots: &Path| {
        let mut command = Command::new(cluster::program());
        command.args(["stats", "--history", "1min", "--monitor"]);
        command.arg(format!("https://localhost:{port}")).env("SSL_CERT_FILE", roots);
        command.env_remove("SSL_CERT_DIR").arg("--cluster").arg(cluster.data());
        finish(&mut command, PATIENCE)
    };
    wait_for("the client that trusts the authority gets the history", PATIENCE, || {
        ask(&authority.certificate()).status.success().then_some(())
    });
    let stranger = Authority::create(&scratch.directory("stranger"));
    refused(ask(&stranger.certificate()), "TLS");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let directory = scratch.path().join("other");
    let directory = directory.to_str().expect("UTF-8");
    let open = [&["monitor", "--directory", directory, "--listen", "127.0.0.1:0"][..], &options];
    refused(cluster.try_skep(&open.concat()), "all users of this host");
}

/// Command: skep monitor.
#[test]
fn one_monitor_watches_two_clusters_separately() {
    let clusters = [(); 2].map(|()| Cluster::start(Shape::small()));
    let [first, second] = &clusters;
    let scratch = Scratch::new();
    let directory = scratch.path().join("monitor");
    let also = format!("second={}", second.data().display());
    let monitor = Monitor::start(first, &directory, &["--also", &also]);
    let address = monitor.address();
    wait_for("the monitor has the metrics of the second cluster", PATIENCE, || {
        let live = get(&address, "/api/live?cluster=second");
        let services = live["services"].as_array()?;
        services.iter().all(|service| service["cpu_permille"].is_u64()).then_some(())
    });
    fs::write(second.path().join("file"), vec![7; MIB]).unwrap();
    let ids = wait_for("both maps have arrived", PATIENCE, || {
        let listed = get(&address, "/api/clusters");
        let ids = listed["clusters"].list().iter().map(|it| it["cluster"].text().to_owned());
        let ids: Vec<String> = ids.filter(|id| !id.is_empty()).collect();
        (ids.len() == 2).then_some(ids)
    });
    assert_ne!(ids[0], ids[1]);
    for (path, id) in [
        ("/api/live", &ids[0]),
        ("/api/live?cluster=main", &ids[0]),
        ("/api/live?cluster=second", &ids[1]),
    ] {
        assert_eq!(get(&address, path)["cluster"].text(), id, "{path}");
    }
    let written = |more: &str| -> u64 {
        let load = get(&address, &format!("/api/load?by=user&span=300{more}"));
        load["rows"].list().iter().map(|row| row["written_bytes"].number()).sum()
    };
    wait_for("the load of the second cluster", PATIENCE, || {
        (written("&cluster=second") == MIB as u64).then_some(())
    });
    assert_eq!(written(""), 0, "the first cluster has no load");
    // Commands get the metrics of their own cluster.
    let history = ["stats", "--by", "user", "--history", "5min", "--monitor", &address];
    for (cluster, bytes) in [(first, 0), (second, MIB as u64)] {
        let lines = cluster.skep_json(&history);
        let written = lines.list().iter().map(|line| line["written_bytes"].number());
        assert_eq!(written.sum::<u64>(), bytes, "{lines}");
    }
    assert!(directory.join("history").is_dir());
    assert!(directory.join("clusters/second/history").is_dir());
    let (status, body) = request(&address, "/api/live?cluster=third", "").expect("a reply");
    assert!(status.contains("400") && body.contains("main, second"), "{status}: {body}");
    let same = format!("again={}", first.data().display());
    let other = scratch.path().join("other");
    let other = other.to_str().expect("UTF-8");
    let twice = ["monitor", "--directory", other, "--listen", "127.0.0.1:0", "--also", &same];
    refused(first.try_skep(&twice), "is the same cluster");
    refused(first.try_skep(&[&twice[..6], &["a/b=x"]].concat()), "invalid name");
}

/// Command: skep monitor.
#[test]
fn monitor_page_serves_reports_but_no_other_files() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let reports = scratch.directory("reports");
    fs::create_dir(reports.join("study")).unwrap();
    fs::write(reports.join("study/index.html"), "<title>Sizes</title><p>text").unwrap();
    fs::write(scratch.path().join("secret.html"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret.html", reports.join("link.html")).unwrap();
    let options = ["--reports", reports.to_str().expect("UTF-8")];
    let monitor = Monitor::start(&cluster, &scratch.path().join("monitor"), &options);
    let address = monitor.address();
    let listed = get(&address, "/api/reports");
    let found: Vec<_> = listed["reports"].list().iter().map(|it| it["path"].text()).collect();
    assert_eq!(found, ["study/index.html"], "{listed}");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /reports/study/index.html HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("<p>text"), "{reply}");
    let policy = reply.lines().find(|line| line.starts_with("Content-Security-Policy:"));
    assert!(policy.is_some_and(|it| it.contains("sandbox")), "{reply}");
    for path in ["../secret.html", "%2e%2e/secret.html", "link.html", "study", ""] {
        let (status, body) = request(&address, &format!("/reports/{path}"), "").expect("a reply");
        assert_eq!(status, "HTTP/1.1 404 Not Found", "{path}: {body}");
    }
}

/// Command: skep monitor.
#[test]
fn monitor_shows_placement_and_omits_completed_removals() {
    let cluster = Cluster::start(monitored());
    let address = address_of(&cluster);
    wait_for("the page has the placement", PATIENCE, || {
        let live = get(&address, "/api/live");
        let storage = live["placement"].as_array()?.first()?.clone();
        let has_all = storage["targets"] == 2 && storage["used_share"]["mean"].is_f64();
        (has_all && storage["kind"] == "storage").then_some(())
    });
    for number in 0..50 {
        // The files are larger than the inline bytes, so each file has a chunk file.
        fs::write(cluster.path().join(format!("file-{number}")), vec![7; 20_000]).unwrap();
    }
    assert!(cluster.chunk_files().len() >= 50);
    for number in 0..50 {
        fs::remove_file(cluster.path().join(format!("file-{number}"))).unwrap();
    }
    wait_for("no chunk file is left to remove", PATIENCE, || {
        let live = get(&address, "/api/live");
        let mut works = live["background"].as_array()?.iter();
        let is_over = works.all(|it| it["kind"] != "removal");
        (is_over && cluster.chunk_files().is_empty()).then_some(())
    });
    cluster.stop_checked(&[]);
}
