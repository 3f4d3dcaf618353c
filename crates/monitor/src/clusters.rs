//! The clusters that one monitor watches, and the choice of a cluster by a request.
//!
//! Each cluster has its own state, history and connections. All clusters share the HTTP server, the
//! receivers of notifications and the thread. Requests choose a cluster by the parameter `cluster`,
//! whose value is the name or the id of the cluster. Requests without this parameter get the first
//! cluster, so programs that were written for one cluster need no change. Commands send the id of
//! the cluster, because they do not have its name.

use crate::live::MonitorState;
use crate::routes::{self, Access};
use serde_json::{Value, json};
use skep_exporter::http::{Reply, Request};
use skep_metrics::Registry;
use skep_rpc::JoinToken;
use skep_types::ClusterId;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Maximum length of the name of a cluster.
const MAX_NAME: usize = 64;

/// Name of a file beside the history. The file contains the id of the history's cluster.
const OWNER_FILE: &str = "history-of";

/// A cluster that the monitor watches.
#[derive(Debug, Clone)]
pub struct WatchedCluster {
    /// The name on the page and in the interface. The name is unique, and valid by [`is_name`].
    pub name: String,
    /// The token, with the addresses of management.
    pub token: JoinToken,
    /// The file with the token. If an administrator replaces the file, the monitor uses the new
    /// token.
    pub token_file: PathBuf,
}

/// Whether a text is valid as the name of a cluster. The name is a part of paths and addresses.
pub fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=MAX_NAME).contains(&text.len()) && text.chars().all(is_plain)
}

/// Returns the directory of the history of a cluster. `number` is the position of the cluster in
/// the list of clusters, from zero. The first cluster uses the same directory as a monitor of a
/// single cluster does.
pub(crate) fn history_of(directory: &Path, number: usize, name: &str) -> PathBuf {
    match number {
        0 => directory.join("history"),
        _ => directory.join("clusters").join(name).join("history"),
    }
}

/// Makes the history in the directory `place` the history of the cluster `id`. If another cluster
/// had this directory before, for example because the order of the clusters was different, its
/// history is set aside as `history-ID`. If the history of `id` was set aside, it becomes the
/// history in `place` again. So the metrics of different clusters never mix.
///
/// # Errors
/// The errors of the file system.
pub(crate) fn claim_history(place: &Path, id: ClusterId) -> io::Result<()> {
    let (owner_file, id) = (place.with_file_name(OWNER_FILE), id.to_string());
    let set_aside = |owner: &str| place.with_file_name(format!("history-{owner}"));
    let text = fs::read_to_string(&owner_file).unwrap_or_default();
    let owner = text.trim();
    if owner == id {
        return Ok(());
    }
    let is_id = owner.len() == id.len() && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id && place.exists() {
        // Remove the file before the history is renamed. If the process ends in between, no later
        // start sets aside a history under the id of the wrong cluster.
        fs::remove_file(&owner_file)?;
        let former = set_aside(owner);
        fs::rename(place, &former)?;
        tracing::warn!(
            "the monitor has moved the history of the former cluster {owner} to {}",
            former.display()
        );
    }
    let own = set_aside(&id);
    if !place.exists() && own.exists() {
        fs::rename(own, place)?;
    }
    place.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(owner_file, id + "\n")
}

/// A cluster that requests can choose.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) name: String,
    /// The id of the cluster, from its token. Requests can use this id before a cluster map has
    /// arrived.
    pub(crate) id: String,
    pub(crate) state: Rc<RefCell<MonitorState>>,
}

/// The clusters in the order of the command line, at least one cluster.
#[derive(Debug)]
pub(crate) struct Clusters(pub(crate) Vec<Choice>);

impl Clusters {
    /// Returns the reply to a request that is not for reports.
    pub(crate) fn reply(
        &self,
        request: &Request,
        access: &Access,
        registry: &Arc<Registry>,
        now_ms: u64,
    ) -> Reply {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let wanted = routes::parameters(query).ok().and_then(|mut it| it.remove("cluster"));
        let has_all = matches!(
            path,
            "/api/clusters" | "/metrics" | "/api/prometheus" | "/api/prometheus/mounts"
        );
        if has_all && wanted.is_none() {
            if let Some(refusal) = routes::refusal(request, access) {
                return refusal;
            }
            let states: Vec<_> = self.0.iter().map(|it| it.state.borrow()).collect();
            let states: Vec<&MonitorState> = states.iter().map(|state| &**state).collect();
            return match path {
                "/metrics" => routes::metrics_of(&states, registry, now_ms),
                "/api/prometheus" => routes::discovery(&states, now_ms),
                "/api/prometheus/mounts" => routes::discovery_of_mounts(&states),
                _ => routes::as_json(&self.list(&states)),
            };
        }
        let chosen = match &wanted {
            None => self.0.first(),
            Some(wanted) => self.0.iter().find(|it| it.name == *wanted || it.id == *wanted),
        };
        match chosen {
            Some(it) => routes::reply(request, access, &it.state.borrow(), registry, now_ms),
            None => routes::refusal(request, access).unwrap_or_else(|| {
                routes::bad(&format!("unknown cluster; the monitor has {}", self.names()))
            }),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|it| it.name.as_str()).collect();
        names.join(", ")
    }

    /// Returns the list of the clusters. `states` are in the order of this list.
    fn list(&self, states: &[&MonitorState]) -> Value {
        let all = self.0.iter().zip(states).map(|(Choice { name, .. }, state)| {
            let holding = state.alerts.holding();
            let critical = holding.iter().filter(|alert| alert.severity == "critical").count();
            json!({
                "name": name,
                "cluster": state.cluster(),
                "alerts": holding.len(),
                "critical_alerts": critical,
            })
        });
        json!({ "clusters": all.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Collected;
    use crate::history::History;
    use crate::settings::MonitorSettings;
    use skep_types::ClusterMap;

    const NOW: u64 = 1_800_000_000_000;

    fn two() -> (tempfile::TempDir, Clusters) {
        let directory = tempfile::tempdir().unwrap();
        let state = |number: usize, name: &str| {
            let place = history_of(directory.path(), number, name);
            let history = History::open(&place, 1 << 30).unwrap();
            let mut state = MonitorState::new(history, MonitorSettings::default().alerts);
            let id = ClusterId::new([u8::try_from(number).unwrap() + 1; 16]);
            state.collected.map = Some(ClusterMap::empty(id));
            let (name, id) = (name.to_owned(), id.to_string());
            Choice { name, id, state: Rc::new(RefCell::new(state)) }
        };
        let clusters = Clusters(vec![state(0, "main"), state(1, "test")]);
        (directory, clusters)
    }

    fn get(clusters: &Clusters, path: &str, password: Option<&str>) -> (&'static str, String) {
        let request = Request {
            method: "GET".into(),
            path: path.into(),
            host: "localhost".into(),
            ..Request::default()
        };
        let access = Access::new(password.map(str::to_owned));
        let reply = clusters.reply(&request, &access, &Registry::new(), NOW);
        (reply.status, String::from_utf8(reply.body).unwrap())
    }

    #[test]
    fn request_chooses_the_cluster_and_gets_the_first_by_default() {
        let (_directory, clusters) = two();
        let id_of = |path: &str| {
            let live: Value = serde_json::from_str(&get(&clusters, path, None).1).unwrap();
            live["cluster"].as_str().unwrap()[..2].to_owned()
        };
        assert_eq!(id_of("/api/live"), "01");
        assert_eq!(id_of("/api/live?cluster=main"), "01");
        assert_eq!(id_of("/api/live?cluster=test"), "02");
        let by_id = format!("/api/live?cluster={}", ClusterId::new([2; 16]));
        assert_eq!(id_of(&by_id), "02");
        let (status, text) = get(&clusters, "/api/live?cluster=other", None);
        assert_eq!(status, "400 Bad Request");
        assert!(text.contains("main, test"), "{text}");
        let listed: Value = serde_json::from_str(&get(&clusters, "/api/clusters", None).1).unwrap();
        assert_eq!(listed["clusters"][1]["name"], "test");
        assert_eq!(listed["clusters"][1]["alerts"], 0);
        clusters.0[1].state.borrow_mut().collected.map = None;
        let (status, text) = get(&clusters, &by_id, None);
        assert_eq!(status, "200 OK", "the id is known before the map: {text}");
    }

    #[test]
    fn password_protects_the_names_of_the_clusters() {
        let (_directory, clusters) = two();
        for path in [
            "/api/clusters",
            "/metrics",
            "/api/prometheus",
            "/api/prometheus/mounts",
            "/api/live?cluster=other",
        ] {
            let (status, text) = get(&clusters, path, Some("correct horse"));
            assert_eq!(status, "401 Unauthorized", "{path}: {text}");
            assert!(!text.contains("main"), "{text}");
        }
    }

    #[test]
    fn metrics_have_the_alerts_of_all_clusters() {
        let (_directory, clusters) = two();
        for Choice { state, .. } in &clusters.0 {
            for second in 0..10 {
                let finding = crate::findings::Finding {
                    rule: "target-full",
                    severity: skep_cluster::problems::Severity::Critical,
                    object: "t7".into(),
                    what: String::new(),
                    remedy: String::new(),
                    cause: None,
                };
                state.borrow_mut().alerts.update(NOW + second * 1000, vec![finding]);
            }
        }
        let (_, text) = get(&clusters, "/metrics", None);
        assert_eq!(text.matches("skep_alert{").count(), 2, "{text}");
        let (_, text) = get(&clusters, "/metrics?cluster=test", None);
        assert_eq!(text.matches("skep_alert{").count(), 1, "{text}");
    }

    #[test]
    fn alerts_name_their_cluster_before_its_first_map() {
        let (_directory, clusters) = two();
        for (number, Choice { state, .. }) in clusters.0.iter().enumerate() {
            let id = Some(ClusterId::new([u8::try_from(number).unwrap() + 1; 16]));
            for second in 0..10 {
                let map_problem = Some("no reply".to_owned());
                let collected = Collected { id, map_problem, ..Collected::default() };
                state.borrow_mut().take(collected, NOW + second * 1000, 1000);
            }
        }
        let (_, text) = get(&clusters, "/metrics", None);
        let alerts = text.lines().filter(|line| line.contains("management-unreachable"));
        let different: std::collections::BTreeSet<&str> = alerts.collect();
        assert_eq!(different.len(), 2, "{text}");
    }

    #[test]
    fn history_of_another_cluster_is_set_aside_and_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        for number in [0, 1] {
            let place = history_of(directory.path(), number, "b");
            let [one, other] = [1, 2].map(|byte| ClusterId::new([byte; 16]));
            let figures = place.join("figures");
            claim_history(&place, one).unwrap();
            fs::create_dir_all(&place).unwrap();
            fs::write(&figures, "one").unwrap();
            claim_history(&place, one).unwrap();
            assert!(figures.exists());
            claim_history(&place, other).unwrap();
            assert!(!figures.exists(), "the other cluster has no figures yet");
            fs::create_dir_all(&place).unwrap();
            fs::write(&figures, "other").unwrap();
            claim_history(&place, one).unwrap();
            assert_eq!(fs::read_to_string(&figures).unwrap(), "one");
            claim_history(&place, other).unwrap();
            assert_eq!(fs::read_to_string(&figures).unwrap(), "other");
        }
    }

    #[test]
    fn histories_of_clusters_are_separate() {
        let directory = Path::new("/d");
        assert_eq!(history_of(directory, 0, "a"), Path::new("/d/history"));
        assert_eq!(history_of(directory, 1, "b"), Path::new("/d/clusters/b/history"));
        for (text, is_valid) in
            [("a-1_B", true), ("", false), ("a/b", false), ("..", false), ("a b", false)]
        {
            assert_eq!(is_name(text), is_valid, "{text}");
        }
        assert!(!is_name(&"a".repeat(MAX_NAME + 1)));
    }
}
