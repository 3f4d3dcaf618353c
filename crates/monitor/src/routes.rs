//! The paths of the monitor's HTTP server, and the check whether a request is permitted.
//!
//! No request changes the cluster or the history, so the only danger is that other web pages read
//! the replies. If there is no password, only this host can connect, and the header `Host` must
//! name this host. Otherwise, a foreign web page in the browser of a user of this host could make
//! its own host name resolve to this address (DNS rebinding), and could read the replies. If there
//! is a password, [`crate::wrong_passwords`] limits the attempts to guess it.

use crate::consequences::service_of_object;
use crate::export;
use crate::limits::EXPORTED_ALERTS;
use crate::live::MonitorState;
use crate::metrics_pages::mount_pages;
use crate::page::FILES;
use crate::reports::Reports;
use crate::series::{self, Parameters, SeriesQuery, Window};
use crate::slow_operations::MAX_LISTED;
use crate::target_causes;
use crate::wrong_passwords::{Treatment, WrongPasswords};
use serde_json::{Value, json};
use skep_exporter::http::{Answer, Reply, Request, plain};
use skep_metrics::{Registry, Snapshot, catalog, text};
use skep_stats::operation::OperationReport;
use skep_stats::why::{Focus, Scope, host_address};
use skep_types::{NodeId, NodeKind};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Headers of all replies, except for the files of reports. Because of these headers, the browser
/// loads no files from other servers, does not show the page in a frame, and stores no reply. Only
/// the frame for a report may contain another page of the monitor.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src \
         'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
];
const ASK_PASSWORD: &[(&str, &str)] =
    &[("WWW-Authenticate", "Basic realm=\"Skep monitor\", charset=\"UTF-8\"")];
/// The pause of the limit [`crate::limits::PASSWORD_PAUSE`].
const WAIT: &[(&str, &str)] = &[("Retry-After", "10")];
const OK: &str = "200 OK";
const JSON: &str = "application/json";

/// The access restrictions of the server.
#[derive(Debug)]
pub(crate) struct Access {
    /// The password. `None` means that only programs on this host can connect, and that they need
    /// no password.
    password: Option<String>,
    wrong: RefCell<WrongPasswords>,
}

/// The path of the list of reports, and the beginning of the paths of their files.
const LIST_OF_REPORTS: &str = "/api/reports";
const REPORT: &str = "/reports/";

/// Returns the answer to a request for reports. `None` means that the request is not for reports.
pub(crate) fn report(request: &Request, access: &Access, reports: &Rc<Reports>) -> Option<Answer> {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let file = path.strip_prefix(REPORT);
    if file.is_none() && path != LIST_OF_REPORTS {
        return None;
    }
    if let Some(refusal) = refusal(request, access) {
        return Some(Answer::Now(refusal));
    }
    let reports = Rc::clone(reports);
    let Some(file) = file else {
        let parameters = match parameters(query) {
            Ok(parameters) => parameters,
            Err(problem) => return Some(Answer::Now(bad(&problem))),
        };
        let listing = async move {
            let list = reports.list().await;
            let of_list = |list: Value| in_format(LIST_OF_REPORTS, &list, &parameters);
            (list.map_or_else(|refusal| refusal, of_list), None)
        };
        return Some(Answer::Later(Box::pin(listing)));
    };
    // In the path of a URL, a `+` stands for itself. Only in a query does a `+` stand for a space.
    Some(match unescaped(&file.replace('+', "%2B")) {
        Ok(file) => Answer::Later(Box::pin(reports.file(file))),
        Err(problem) => Answer::Now(bad(&problem)),
    })
}

/// Returns the reply to a request that is not permitted, or has another method than `GET` or
/// `HEAD`.
pub(crate) fn refusal(request: &Request, access: &Access) -> Option<Reply> {
    access.refusal(request).or_else(|| {
        let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
        (!is_read)
            .then(|| plain("405 Method Not Allowed", "The monitor can only be read: use GET.\n"))
    })
}

/// Returns the reply to a request.
pub(crate) fn reply(
    request: &Request,
    access: &Access,
    state: &MonitorState,
    registry: &Arc<Registry>,
    now_ms: u64,
) -> Reply {
    if let Some(refusal) = refusal(request, access) {
        return refusal;
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    if let Some((_, content_type, text)) = FILES.iter().find(|(name, ..)| *name == path) {
        return Reply { status: OK, content_type, headers: HEADERS, body: (*text).into() };
    }
    let parameters = match parameters(query) {
        Ok(parameters) => parameters,
        Err(problem) => return bad(&problem),
    };
    if path == "/api/live" && export::is_json(&parameters) {
        let body = state.live_json(now_ms).into();
        return Reply { status: OK, content_type: JSON, headers: HEADERS, body };
    }
    let found = match path {
        "/api/live" => Ok(state.live(now_ms)),
        "/api/health" => Ok(state.health(now_ms)),
        "/api/history" => SeriesQuery::of(&parameters).map(|mut query| {
            query.node = query.node.or_else(|| state.node_of(&query));
            series::series(&state.history, &query, now_ms, &state.measured(&query))
        }),
        "/api/load" => load(&parameters, state, now_ms),
        "/api/why" => why(&parameters, state, now_ms),
        "/api/causes" => causes(&parameters, state, now_ms),
        "/api/hosts" => hosts(&parameters, state),
        "/api/operations" => series::span_of(&parameters, 600)
            .map(|span_ms| json!({ "operations": state.slowest(now_ms, span_ms, MAX_LISTED) })),
        "/api/operation" => match operation(&parameters, state) {
            Ok(Some(report)) => Ok(json!(report)),
            Ok(None) => {
                return plain("404 Not Found", "The monitor has no record of this operation.\n");
            }
            Err(problem) => Err(problem),
        },
        "/api/alerts" => Ok(json!({
            "holding": state.alerts.holding(),
            "ended": state.alert_log.newest(),
        })),
        "/api/prometheus" => return discovery(&[state], now_ms),
        "/api/prometheus/mounts" => return discovery_of_mounts(&[state]),
        "/metrics" => return metrics_of(&[state], registry, now_ms),
        _ => return plain("404 Not Found", "The monitor has no page at this address.\n"),
    };
    found.map_or_else(|problem| bad(&problem), |value| in_format(path, &value, &parameters))
}

/// Returns a reply with `value` in the format that the parameters ask for.
fn in_format(path: &str, value: &Value, parameters: &Parameters) -> Reply {
    match export::in_format(path, value, parameters) {
        Ok((content_type, text)) => {
            Reply { status: OK, content_type, headers: HEADERS, body: text.into() }
        }
        Err(problem) => bad(&problem),
    }
}

/// Returns the reply with the metrics of the monitor's process, and the alerts and balances of the
/// clusters.
pub(crate) fn metrics_of(states: &[&MonitorState], registry: &Registry, now_ms: u64) -> Reply {
    let mut snapshot = registry.snapshot();
    states.iter().for_each(|state| add_findings(state, now_ms, &mut snapshot));
    let body = text::encode(&snapshot).into();
    Reply { status: OK, content_type: text::CONTENT_TYPE, headers: HEADERS, body }
}

/// Returns the reply with the metrics pages of the services of the clusters.
pub(crate) fn discovery(states: &[&MonitorState], now_ms: u64) -> Reply {
    let mut all = Vec::new();
    for state in states {
        state.discovery_at_ms.set(Some(now_ms));
        all.extend(prometheus_targets(state));
    }
    as_json(&Value::Array(all))
}

/// Returns the reply with the metrics pages of the mounts of the clusters.
pub(crate) fn discovery_of_mounts(states: &[&MonitorState]) -> Reply {
    let pages = |state: &&MonitorState| {
        let map = state.collected.map.as_ref();
        map.map_or_else(Vec::new, |map| mount_pages(map, state.mount_metrics_port))
    };
    as_json(&Value::Array(states.iter().flat_map(pages).collect()))
}

/// Adds the balances and the alerts of a cluster to the metrics, so that Prometheus and
/// Alertmanager send the alerts too. If an alert follows from another alert, its label `fault` is
/// the object of the other alert. With this label, Alertmanager can suppress the alert that
/// follows.
fn add_findings(state: &MonitorState, now_ms: u64, snapshot: &mut Snapshot) {
    let (cluster, map) = (state.cluster(), state.collected.map.as_ref());
    let alerts = state.alerts.holding().into_iter().flat_map(|alert| {
        let present = alert.consequences.iter().filter(|it| it.ended_ms.is_none());
        let following = present.map(|it| (it.rule, it.severity, &it.object));
        let all = std::iter::once((alert.rule, alert.severity, &alert.object)).chain(following);
        all.map(move |of_alert| (of_alert, &alert.object))
    });
    for ((rule, severity, object), fault) in alerts.take(EXPORTED_ALERTS) {
        let service = map.and_then(|map| service_of_object(object, map));
        let labels = vec![
            ("rule", rule.to_owned()),
            ("severity", severity.to_owned()),
            ("object", object.clone()),
            ("fault", fault.clone()),
            ("skep_cluster", cluster.clone()),
            ("skep_name", service.map_or_else(String::new, |node| node.name.clone())),
        ];
        snapshot.number(&catalog::ALERT, labels, 1);
    }
    for (name, balance) in map.iter().flat_map(|map| state.balances(map, now_ms)) {
        if let Some(percent) = balance.percent {
            let labels = vec![("of", name.to_owned()), ("skep_cluster", cluster.clone())];
            // The unit is a millionth of the ratio.
            snapshot.number(&catalog::BALANCE, labels, (percent * 1e4).round() as i64);
        }
    }
}

fn load(parameters: &Parameters, state: &MonitorState, now_ms: u64) -> Result<Value, String> {
    let dimension = series::dimension_of(parameters)?;
    let window = Window::of(parameters, 60)?;
    let names = (&state.names, state.collected.map.as_ref());
    Ok(series::loads(&state.history, dimension, window, now_ms, names))
}

fn why(parameters: &Parameters, state: &MonitorState, now_ms: u64) -> Result<Value, String> {
    let span_ms = series::span_of(parameters, 60)?;
    let of = |name: &str| parameters.get(name).map(|id| number(id)).transpose();
    let focus = Focus { client: of("client")?, user: of("user")?, job: of("job")? };
    let scope = Scope { targets: targets_of(parameters)?, focus };
    let report = state.why(&scope, now_ms, span_ms);
    let report = report.ok_or("the monitor has no cluster map yet")?;
    serde_json::to_value(report).map_err(|error| error.to_string())
}

fn causes(parameters: &Parameters, state: &MonitorState, now_ms: u64) -> Result<Value, String> {
    let span_ms = series::span_of(parameters, 60)?;
    let targets = targets_of(parameters)?;
    let evidence = state.evidence_of(now_ms, span_ms);
    let names = (&state.names, state.collected.map.as_ref());
    Ok(target_causes::causes(&evidence, targets.as_deref(), names))
}

/// Returns the load of the disks and network interfaces of the host of one service, or of all
/// hosts.
fn hosts(parameters: &Parameters, state: &MonitorState) -> Result<Value, String> {
    let id = parameters.get("id").map(|id| number(id)).transpose()?;
    let map = state.collected.map.as_ref();
    let name = |id: u32| {
        let node = map.and_then(|map| map.node(NodeId::new(id)));
        node.and_then(host_address).map_or_else(|| id.to_string(), str::to_owned)
    };
    Ok(state.host_loads().loads(id, name))
}

/// Returns the target ids in the parameter `targets`. `None` means that the request names no
/// targets.
fn targets_of(parameters: &Parameters) -> Result<Option<Vec<u32>>, String> {
    let targets = parameters.get("targets");
    targets.map(|ids| ids.split(',').map(number).collect()).transpose()
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("invalid id '{text}': expected a number"))
}

fn operation(
    parameters: &Parameters,
    state: &MonitorState,
) -> Result<Option<OperationReport>, String> {
    let id = parameters.get("id").map_or("", String::as_str);
    let trace = u128::from_str_radix(id, 16)
        .map_err(|_| format!("invalid id '{id}': expected a trace id of hexadecimal digits"))?;
    Ok(state.operation(trace))
}

/// Returns the list of the metrics pages of all services, in the form that Prometheus reads for its
/// HTTP service discovery. Omits the pages that only programs on the host of the service can read
/// ([`MonitorState::hidden_pages`]).
fn prometheus_targets(state: &MonitorState) -> Vec<Value> {
    let Some(map) = &state.collected.map else { return Vec::new() };
    let services = map.nodes.iter().filter(|node| node.kind != NodeKind::Client);
    let found = services.filter_map(|node| {
        let page = state.page_of(node)?.ok()?;
        Some(json!({
            "targets": [page],
            "labels": {
                "skep_service": skep_cluster::state::kind_word(node.kind),
                "skep_name": node.name,
                "skep_cluster": map.cluster.to_string(),
            },
        }))
    });
    found.collect()
}

pub(crate) fn as_json(value: &Value) -> Reply {
    Reply { status: OK, content_type: JSON, headers: HEADERS, body: value.to_string().into() }
}

pub(crate) fn bad(problem: &str) -> Reply {
    let body = json!({ "error": problem }).to_string().into();
    Reply { status: "400 Bad Request", content_type: JSON, headers: HEADERS, body }
}

/// Decodes the query of a URL, of the form `a=b&c=d` with `%` escapes and with `+` for spaces.
pub(crate) fn parameters(query: &str) -> Result<Parameters, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((unescaped(name)?, unescaped(value)?))
        })
        .collect()
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next(), rest.next()];
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                match digits.map(digit) {
                    [Some(high), Some(low)] => (high * 16 + low) as u8,
                    _ => return Err("invalid escape in the query".into()),
                }
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "the query is not UTF-8".into())
}

impl Access {
    pub(crate) fn new(password: Option<String>) -> Self {
        Self { password, wrong: RefCell::default() }
    }

    /// Returns the reply to a request that is not permitted. `None` means that the request is
    /// permitted.
    fn refusal(&self, request: &Request) -> Option<Reply> {
        let Some(password) = &self.password else {
            return (!is_this_host(&request.host)).then(|| {
                plain(
                    "403 Forbidden",
                    "Open this page under the name localhost, with its port. Set `password_file` \
                     to open this page under other names.\n",
                )
            });
        };
        // Browsers send their first request without a password, so such a request does not count as
        // a wrong password.
        let Some(given) = given_password(&request.authorization) else {
            return Some(ask_password());
        };
        let now = skep_env::now();
        let treatment = self.wrong.borrow().treatment(request.peer, &given, now);
        match treatment {
            Treatment::Check if is_equal(given.as_bytes(), password.as_bytes()) => None,
            Treatment::Check => {
                self.wrong.borrow_mut().add(request.peer, &given, now);
                Some(ask_password())
            }
            Treatment::Wrong => Some(ask_password()),
            Treatment::Refuse => Some(Reply {
                headers: WAIT,
                ..plain(
                    "429 Too Many Requests",
                    "Too many wrong passwords came from this address. Wait ten seconds, and try \
                     again.\n",
                )
            }),
        }
    }
}

fn ask_password() -> Reply {
    let refusal = plain("401 Unauthorized", "This page needs its password.\n");
    Reply { headers: ASK_PASSWORD, ..refusal }
}

/// Whether the header `Host` names this host, by `localhost` or by a loopback address.
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |ip: std::net::IpAddr| ip.is_loopback();
    // Accept an empty header, because programs that use HTTP/1.0 send no header `Host`. Browsers
    // always send this header.
    host.is_empty() || name == "localhost" || name.parse().is_ok_and(is_loopback)
}

/// Returns the password in the value of the header `Authorization`.
fn given_password(authorization: &str) -> Option<String> {
    let (scheme, value) = authorization.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(from_base64(value.trim())?).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| {
        Some(u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        }))
    };
    let mut bytes = Vec::new();
    for part in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut number = 0;
        for byte in part {
            number = number << 6 | digit(*byte)?;
        }
        // If the last group has fewer than four characters, shift its bits to the upper end of the
        // 24 bits.
        let all = (number << (6 * (4 - part.len()))).to_be_bytes();
        bytes.extend_from_slice(&all[1..part.len()]);
    }
    Some(bytes)
}

/// Compares two texts. The duration depends only on the lengths of the texts, so the duration
/// reveals nothing about the password except its length.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests;
