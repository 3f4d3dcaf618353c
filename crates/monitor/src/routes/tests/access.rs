//! Tests of the access restrictions of the web page.

use super::super::{Access, OK, reply, report};
use super::{NOW, answer, request, state};
use crate::limits::FREE_PASSWORDS;
use crate::reports::Reports;
use serde_json::{Value, json};
use skep_exporter::http::{Answer, Request};
use skep_metrics::Registry;
use std::net::Ipv4Addr;

#[test]
fn reports_need_the_same_permission_as_the_page() {
    let reports = Reports::new(std::path::Path::new(""));
    let answer = |path: &str, host: &str, password: Option<&str>| {
        let access = Access::new(password.map(str::to_owned));
        let request = Request { host: host.into(), ..request(path) };
        let answer = report(&request, &access, &reports)?;
        Some(match answer {
            Answer::Now(reply) => reply,
            Answer::Later(reply) => skep_env::block_on(reply).unwrap().0,
        })
    };
    let status = |path: &str, host: &str, password: Option<&str>| {
        answer(path, host, password).map(|reply| reply.status)
    };
    for path in ["/api/reports", "/reports/a.html"] {
        assert_eq!(status(path, "attacker.example", None), Some("403 Forbidden"));
        assert_eq!(status(path, "localhost", Some("password")), Some("401 Unauthorized"));
    }
    assert_eq!(status("/api/reports", "localhost", None), Some(OK));
    assert_eq!(status("/reports/a.html", "localhost", None), Some("404 Not Found"));
    assert_eq!(status("/reports/%zz", "localhost", None), Some("400 Bad Request"));
    assert_eq!(status("/api/live", "localhost", None), None);
    let list = answer("/api/reports?x=1", "localhost", None).unwrap();
    let list: Value = serde_json::from_slice(&list.body).unwrap();
    assert_eq!(list["reports"], json!([]));
}

#[test]
fn without_a_password_only_host_names_of_this_host_are_served() {
    for (host, is_served) in [
        ("localhost:7480", true),
        ("127.0.0.1:7480", true),
        ("[::1]:7480", true),
        ("", true),
        ("attacker.example:7480", false),
        ("192.0.2.1", false),
        ("127.0.0.1.attacker.example", false),
    ] {
        let request = Request { host: host.into(), ..request("/api/live") };
        let status = answer(&request, None).status;
        assert_eq!(status == OK, is_served, "{host}: {status}");
    }
}

#[test]
fn every_path_needs_the_password() {
    let with = |path: &str, authorization: &str| {
        let request = Request {
            authorization: authorization.into(),
            host: "monitor.example".into(),
            ..request(path)
        };
        answer(&request, Some("correct horse")).status
    };
    // The two valid base64 values are the encodings of "any:correct horse" and "any:wrong".
    for (authorization, is_served) in [
        ("Basic YW55OmNvcnJlY3QgaG9yc2U=", true),
        ("bearer correct horse", true),
        ("Basic YW55Ondyb25n", false),
        ("Basic !!!", false),
        ("Bearer correct horse battery", false),
        ("Bearer ", false),
        ("", false),
    ] {
        for path in ["/", "/app.js", "/api/live", "/metrics", "/no"] {
            let status = with(path, authorization);
            assert_eq!(status != "401 Unauthorized", is_served, "{path} {authorization}");
        }
    }
}

#[test]
fn many_wrong_passwords_are_refused_without_a_check() {
    let (_directory, state) = state();
    let access = Access::new(Some("correct horse".into()));
    let status = |address: &str, password: &str| {
        let request = Request {
            authorization: format!("Bearer {password}"),
            peer: Some(address.parse().unwrap()),
            ..request("/api/live")
        };
        reply(&request, &access, &state, &Registry::new(), NOW).status
    };
    for number in 0..FREE_PASSWORDS {
        assert_eq!(status("10.0.0.5", &format!("guess {number}")), "401 Unauthorized");
    }
    assert_eq!(status("10.0.0.5", "correct horse"), "429 Too Many Requests");
    assert_eq!(status("10.0.0.5", "another guess"), "429 Too Many Requests");
    assert_eq!(status("10.0.0.6", "correct horse"), OK);
    let without = Request { peer: Some(Ipv4Addr::new(10, 0, 0, 5).into()), ..request("/") };
    let reply = reply(&without, &access, &state, &Registry::new(), NOW);
    assert_eq!(reply.status, "401 Unauthorized", "a request without a password is no attempt");
}
