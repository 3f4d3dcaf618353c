//! Tests of the monitor's paths and JSON, without sockets. `access` has the tests of passwords and
//! of other restrictions.

mod access;

use super::*;
use crate::collect::Collected;
use crate::frame::tests::frame;
use crate::history::History;
use crate::settings::MonitorSettings;
use crate::slow_operations::tests::{book, record};
use skep_types::{ClusterId, ClusterMap, MapVersion, Node, NodeId};

const NOW: u64 = 1_800_000_000_000;

fn request(path: &str) -> Request {
    Request {
        method: "GET".into(),
        path: path.into(),
        host: "localhost:7480".into(),
        ..Request::default()
    }
}

fn state() -> (tempfile::TempDir, MonitorState) {
    let directory = tempfile::tempdir().unwrap();
    let mut history = History::open(directory.path(), 1 << 30).unwrap();
    for second in 0..60 {
        history.add(frame(NOW / 1000 - 60 + second, 10));
    }
    let mut state = MonitorState::new(history, MonitorSettings::default().alerts);
    let mut map = ClusterMap::empty(ClusterId::default());
    map.version = MapVersion::new(5);
    map.nodes.push(Node {
        id: NodeId::new(2),
        kind: NodeKind::Storage,
        name: HOSTILE.into(),
        addresses: vec!["127.0.0.1:7420".into()],
        domain: String::new(),
        reachability: skep_types::map::Reachability::Online,
        version: "1".into(),
    });
    state.names.learn(&map);
    state.collected.map = Some(map);
    (directory, state)
}

/// A name that the browser would execute if the page parsed the name as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'&\u{1b}[2J";

fn answer(request: &Request, password: Option<&str>) -> Reply {
    let (_directory, state) = state();
    let access = Access::new(password.map(str::to_owned));
    reply(request, &access, &state, &Registry::new(), NOW)
}

fn get(path: &str) -> Value {
    let reply = answer(&request(path), None);
    assert_eq!((reply.status, reply.content_type), (OK, JSON), "{path}");
    serde_json::from_slice(&reply.body).unwrap()
}

#[test]
fn page_and_files_have_a_strict_content_security_policy() {
    for (path, content_type, text) in FILES {
        let reply = answer(&request(path), None);
        assert_eq!((reply.status, reply.content_type), (OK, content_type));
        assert_eq!(reply.body, text.as_bytes());
        let policy = reply.headers.iter().find(|(name, _)| *name == "Content-Security-Policy");
        assert!(policy.unwrap().1.starts_with("default-src 'none';"));
    }
}

#[test]
fn live_data_has_the_load_and_the_services() {
    let live = get("/api/live");
    assert_eq!(live["totals"]["storage"]["operations_per_second"], 10.0);
    assert_eq!(live["services"][0]["written_bytes"], 40_960);
    assert_eq!(live["services"][0]["errors_per_second"], 0.0);
    assert_eq!(live["top"]["user"][0]["id"], "1000");
    assert_eq!(
        (&live["placement"][0]["kind"], &live["background"]),
        (&"storage".into(), &json!([]))
    );
    let history = get("/api/history?by=node&span=60&service=storage");
    assert_eq!(history["operations"][30], 10.0);
    let load = get("/api/load?by=target&span=60");
    assert_eq!(
        (&load["rows"][0]["id"], &load["rows"][0]["operations"]),
        (&"7".into(), &600.into())
    );
    assert_eq!(get("/api/alerts")["holding"], json!([]));
    let hosts = get("/api/hosts?id=2");
    assert_eq!((&hosts["disks"], &hosts["interfaces"]), (&json!([]), &json!([])));
    let causes = get("/api/causes?targets=7,8&span=60");
    assert_eq!((&causes["users"], &causes["directories"]), (&json!([]), &json!([])));
}

#[test]
fn health_reply_has_balances_and_start_times_of_findings() {
    let (_directory, mut state) = state();
    for second in 1..4 {
        let map = state.collected.map.clone();
        let collected = Collected { map, ..Collected::default() };
        state.take(collected, NOW + second * 1000, 1000);
    }
    let health = state.health(NOW + 4000);
    let findings = health["findings"].as_array().unwrap();
    let unformatted = findings.iter().find(|it| it["rule"] == "not-formatted").unwrap();
    assert_eq!(unformatted["object"], "cluster");
    assert_eq!(unformatted["since_ms"], NOW + 1000);
    assert_eq!(health["balance"], state.live(NOW + 4000)["balance"]);
    assert_eq!(health["balance"]["metadata_work"]["percent"], Value::Null);
    let reason = health["balance"]["storage_space"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("fewer than two storage targets"), "{reason}");
}

#[test]
fn replies_are_exported_as_csv_and_xml() {
    let of = |path: &str| {
        let reply = answer(&request(path), None);
        (reply.status, reply.content_type, String::from_utf8(reply.body).unwrap())
    };
    let (status, kind, text) = of("/api/history?span=60&format=csv");
    assert_eq!((status, kind), (OK, "text/csv; charset=utf-8"));
    assert!(text.starts_with("at,"), "{text}");
    let (_, _, text) = of("/api/live?format=csv&list=services");
    assert_eq!(text.lines().count(), 2, "{text}");
    let (status, kind, text) = of("/api/live?format=xml");
    assert_eq!((status, kind), (OK, "application/xml"));
    let document = roxmltree::Document::parse(&text).unwrap();
    let names = document.descendants().filter(|it| it.has_tag_name("name"));
    assert!(names.filter_map(|it| it.text()).any(|it| it.starts_with("<img")), "{text}");
    assert_eq!(of("/api/live?format=csv").0, "400 Bad Request");
    assert_eq!(of("/api/alerts?format=yaml").0, "400 Bad Request");
}

/// Returns the addresses of the lists in the exports of the page, with the id 7 for each object.
fn exports_of_the_page() -> Vec<String> {
    let views = FILES.iter().find(|(path, ..)| *path == "/views.js").unwrap().2;
    let paths = views.split("listed(").filter_map(|call| {
        let path = &call[call.find("/api/")?..];
        Some(&path[..path.find(['"', '`'])?])
    });
    let with_ids = paths.map(|path| {
        let mut parts = path.split("${");
        let mut whole = parts.next().unwrap().to_owned();
        for part in parts {
            let (_, rest) = part.split_once('}').unwrap();
            // After `by=` and `why?`, the address needs a kind of objects. All other gaps in the
            // addresses need ids.
            whole += if whole.ends_with("by=") || whole.ends_with("why?") { "user" } else { "7" };
            whole += rest;
        }
        whole
    });
    with_ids.collect()
}

#[test]
fn each_list_of_the_page_can_be_exported_as_csv_and_xml() {
    let paths = exports_of_the_page();
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths.iter().filter(|path| !path.starts_with(LIST_OF_REPORTS)) {
        for format in ["csv", "xml"] {
            let reply = answer(&request(&format!("{path}&format={format}")), None);
            let text = String::from_utf8_lossy(&reply.body);
            // The monitor of this test has no record of an operation.
            let expected = if path.starts_with("/api/operation?") { "404 Not Found" } else { OK };
            assert_eq!(reply.status, expected, "{path} as {format}: {text}");
        }
    }
}

#[test]
fn slow_operations_are_listed_and_explained_in_words() {
    let (_directory, mut state) = state();
    let slow = record(0x2a, (NOW - 1000) * 1000, 1_500_000);
    state.slow_operations = book(vec![slow], NOW * 1000);
    let get = |path: &str| {
        let access = Access::new(None);
        let reply = reply(&request(path), &access, &state, &Registry::new(), NOW);
        (reply.status, serde_json::from_slice(&reply.body).unwrap_or(Value::Null))
    };
    let (_, listed) = get("/api/operations?span=60");
    let first = &listed["operations"][0];
    assert_eq!((&first["operation"], &first["ms"]), (&"fsync".into(), &1500.0.into()));
    assert_eq!(first["mainly"], "100 % waiting in the mount without a request to a target");
    let (_, live) = get("/api/live");
    assert_eq!(live["slowest"], listed["operations"]);
    let trace = first["trace"].as_str().unwrap();
    let (status, report) = get(&format!("/api/operation?id={trace}"));
    assert_eq!((status, &report["parts"][0]["share"]), (OK, &1.0.into()));
    assert_eq!(get("/api/operation?id=2b").0, "404 Not Found");
    assert_eq!(get("/api/operation?id=%3Cimg%3E").0, "400 Bad Request");
}

#[test]
fn monitor_computes_the_state_for_pages_once_per_round() {
    let (_directory, mut state) = state();
    let live = |state: &MonitorState, now_ms: u64| -> Value {
        let access = Access::new(None);
        let reply = reply(&request("/api/live"), &access, state, &Registry::new(), now_ms);
        assert_eq!((reply.status, reply.content_type), (OK, JSON));
        serde_json::from_slice(&reply.body).unwrap()
    };
    let first = live(&state, NOW);
    assert_eq!(first, state.live(NOW));
    let slow = record(0x2a, (NOW - 1000) * 1000, 1_500_000);
    state.slow_operations = book(vec![slow], NOW * 1000);
    let second = live(&state, NOW + 700);
    assert_eq!(second["now_ms"], NOW + 700, "the page must detect that rounds have stopped");
    assert_eq!(second["slowest"], first["slowest"], "not computed a second time");
    let collected = Collected { map: state.collected.map.clone(), ..Collected::default() };
    state.take(collected, NOW + 1000, 1000);
    let third = live(&state, NOW + 1000);
    assert_eq!(third["slowest"][0]["ms"], 1500.0);
    assert_eq!(third["frame_ms"], NOW + 1000);
}

#[test]
fn control_characters_in_names_are_replaced() {
    let name = get("/api/live")["services"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(name, HOSTILE.replace('\u{1b}', "?"));
    let reply = answer(&request("/api/live"), None);
    // The content type of the reply is not HTML, so the browser never shows the reply as a page.
    assert_eq!(reply.content_type, JSON);
}

#[test]
fn findings_and_alerts_contain_no_control_characters() {
    let (_directory, mut state) = state();
    let map = state.collected.map.clone();
    let mut alerts = Vec::new();
    for second in 1..10 {
        let unreachable = [(2, "broken\r\nX: y".to_owned())].into_iter().collect();
        let collected = Collected { map: map.clone(), unreachable, ..Collected::default() };
        alerts.extend(state.take(collected, NOW + second * 1000, 1000));
    }
    let alert = alerts.iter().find(|it| it.rule == "service-unreachable").unwrap();
    let end = "\\u{1b}[2J does not reply: broken\\r\\nX: y";
    assert!(alert.what.ends_with(end), "{alert:?}");
    let texts = [&alert.object, &alert.what, &alert.remedy];
    assert!(!texts.iter().any(|text| text.contains(char::is_control)), "{alert:?}");
    let health = state.health(NOW + 10_000);
    let found = health["findings"].as_array().unwrap();
    assert!(found.iter().any(|it| it["what"] == alert.what), "{health}");
}

#[test]
fn long_texts_of_findings_are_shortened() {
    let long = crate::findings::Finding {
        rule: "target-full",
        severity: skep_cluster::problems::Severity::Critical,
        object: "t7".into(),
        what: "\u{4e2d}".repeat(crate::limits::MAX_FINDING_BYTES),
        remedy: String::new(),
        cause: Some(("host-unreachable", "host\t1".to_owned())),
    };
    let safe = long.with_safe_texts();
    let least = crate::limits::MAX_FINDING_BYTES - 4;
    assert!((least..=crate::limits::MAX_FINDING_BYTES).contains(&safe.what.len()));
    assert_eq!(safe.cause, Some(("host-unreachable", "host\\t1".to_owned())));
}

#[test]
fn unknown_methods_paths_and_parameters_are_refused() {
    for (path, status) in [
        ("/no", "404 Not Found"),
        ("/../etc/passwd", "404 Not Found"),
        ("/api/history?by=moon", "400 Bad Request"),
        ("/api/history?span=%zz", "400 Bad Request"),
        ("/api/load?span=x", "400 Bad Request"),
        ("/api/causes?targets=7,x", "400 Bad Request"),
        ("/api/causes?span=0", "400 Bad Request"),
        ("/api/hosts?id=s1", "400 Bad Request"),
    ] {
        assert_eq!(answer(&request(path), None).status, status, "{path}");
    }
    let post = Request { method: "POST".into(), ..request("/api/live") };
    assert_eq!(answer(&post, None).status, "405 Method Not Allowed");
}

#[test]
fn query_parameters_are_percent_decoded() {
    let decoded = parameters("a=b%20c+d&e&f=%C3%A4&&g=%3C").unwrap();
    let pairs: Vec<_> =
        decoded.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(pairs, [("a", "b c d"), ("e", ""), ("f", "\u{e4}"), ("g", "<")]);
    assert!(parameters("a=%f").is_err() && parameters("a=%ff").is_err());
}

#[test]
fn alerts_are_metrics_with_rule_severity_and_object() {
    let (_directory, mut state) = state();
    let finding = || crate::findings::Finding {
        rule: "target-full",
        severity: skep_cluster::problems::Severity::Critical,
        object: "t7".into(),
        what: HOSTILE.into(),
        remedy: "delete files".into(),
        cause: None,
    };
    let text = |state: &MonitorState| {
        let access = Access::new(None);
        let reply = reply(&request("/metrics"), &access, state, &Registry::new(), NOW);
        String::from_utf8(reply.body.to_vec()).unwrap()
    };
    // A finding that has just begun is no alert yet.
    state.alerts.update(NOW, vec![finding()]);
    assert!(!text(&state).contains("skep_alert{"), "{}", text(&state));
    state.alerts.update(NOW + 60_000, vec![finding()]);
    let line = format!(
        "skep_alert{{rule=\"target-full\",severity=\"critical\",object=\"t7\",fault=\"t7\",\
         skep_cluster=\"{}\",skep_name=\"\"}} 1\n",
        state.cluster()
    );
    assert!(text(&state).contains(&line), "{}", text(&state));
    assert!(!text(&state).contains("onerror"), "the text of an alert is not a label");
}

#[test]
fn balance_of_used_space_is_a_metric_between_0_and_1() {
    let (_directory, mut state) = state();
    let map = state.collected.map.as_mut().unwrap();
    for (id, free_bytes) in [(7, 50), (8, 75)] {
        let (id, kind) = (skep_types::TargetId::new(id), skep_types::TargetKind::Storage);
        let mut target = skep_types::Target::new(id, kind, NodeId::new(2), "/d");
        (target.capacity.total_bytes, target.capacity.free_bytes) = (100, free_bytes);
        map.targets.push(target);
    }
    let access = Access::new(None);
    let reply = reply(&request("/metrics"), &access, &state, &Registry::new(), NOW);
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let labels = format!("of=\"storage_space\",skep_cluster=\"{}\"", state.cluster());
    assert!(text.contains(&format!("skep_balance_ratio{{{labels}}} 0.75\n")), "{text}");
    assert!(!text.contains("of=\"metadata_work\""), "a balance that cannot be judged: {text}");
}

#[test]
fn history_of_space_counts_each_file_system_once() {
    let (_directory, mut state) = state();
    let map = state.collected.map.as_mut().unwrap();
    for (id, file_system, is_metadata) in
        [(7, 1, false), (8, 1, false), (9, 2, false), (1, 3, true)]
    {
        let kind = if is_metadata {
            skep_types::TargetKind::Metadata
        } else {
            skep_types::TargetKind::Storage
        };
        let mut target =
            skep_types::Target::new(skep_types::TargetId::new(id), kind, NodeId::new(2), "/d");
        target.capacity.file_system = file_system;
        map.targets.push(target);
    }
    let measured = |query: &str| {
        let query = SeriesQuery::of(&parameters(query).unwrap()).unwrap();
        state.measured(&query)
    };
    assert_eq!(measured("by=target"), [7, 9]);
    assert_eq!(measured("by=target&service=metadata"), [1]);
    assert_eq!(measured("by=target&id=8"), [8]);
    assert_eq!(measured("by=node&id=2"), [2]);
    assert!(measured("by=node").is_empty() && measured("by=user").is_empty());
    assert!(measured("by=target&id=x").is_empty());
    let access = Access::new(None);
    let path = "/api/history?by=target&span=60";
    let reply = reply(&request(path), &access, &state, &Registry::new(), NOW);
    let found: Value = serde_json::from_slice(&reply.body).unwrap();
    // Only target t7 has readings in the frames of this test.
    assert_eq!(found["free_bytes"][30], 99.0, "{found}");
}

#[test]
fn alert_metric_of_a_consequence_names_its_causing_object() {
    let (_directory, mut state) = state();
    let map = state.collected.map.as_mut().unwrap();
    let storage = Node { id: NodeId::new(3), name: "storage-3".into(), ..map.nodes[0].clone() };
    map.nodes.push(storage);
    let target = skep_types::TargetId::new(7);
    let kind = skep_types::TargetKind::Storage;
    map.targets.push(skep_types::Target::new(target, kind, NodeId::new(3), "/d"));
    let of = |rule, object: &str, cause| crate::findings::Finding {
        rule,
        severity: skep_cluster::problems::Severity::Critical,
        object: object.into(),
        what: String::new(),
        remedy: String::new(),
        cause,
    };
    for second in 0..10 {
        let cause = ("service-unreachable", "n3".to_owned());
        let findings =
            vec![of("service-unreachable", "n3", None), of("target-offline", "t7", Some(cause))];
        state.alerts.update(NOW + second * 1000, findings);
    }
    let access = Access::new(None);
    let reply = reply(&request("/metrics"), &access, &state, &Registry::new(), NOW);
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    for (rule, object) in [("service-unreachable", "n3"), ("target-offline", "t7")] {
        let line = format!(
            "skep_alert{{rule=\"{rule}\",severity=\"critical\",object=\"{object}\",fault=\"n3\",\
             skep_cluster=\"{}\",skep_name=\"storage-3\"}} 1\n",
            state.cluster()
        );
        assert!(text.contains(&line), "{text}");
    }
}

/// A label or a rule that does not exist would make a rule of Alertmanager have no effect.
#[test]
fn inhibit_rules_for_alertmanager_name_existing_labels() {
    let rules = include_str!("../../../../dashboards/prometheus/inhibit-rules.yml");
    let lines = || rules.lines().filter(|line| !line.trim_start().starts_with('#'));
    for rule in [crate::consequences::HOST, "service-unreachable"] {
        assert!(lines().any(|line| line.contains(rule)), "{rule}");
    }
    let of_pages = ["skep_cluster", "skep_name", "instance", "target"];
    let mut equal = 0;
    for line in lines().filter_map(|line| line.trim().strip_prefix("equal: [")) {
        equal += 1;
        for label in line.trim_end_matches(']').split(", ") {
            let is_known = catalog::ALERT.labels.contains(&label) || of_pages.contains(&label);
            assert!(is_known, "{label}");
        }
    }
    assert_eq!(equal, lines().filter(|line| line.contains("source_matchers")).count());
}
