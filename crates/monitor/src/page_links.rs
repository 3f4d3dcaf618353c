//! The addresses of views of the web page. Notifications contain such an address, so that a reader
//! of a mail or of a chat can open the view about the object of an alert with one click.

use crate::alerts::Alert;
use crate::consequences::service_of_object;
use skep_types::{ClusterMap, NodeKind};

/// Shortest span of the charts of an alert that has ended, in seconds.
const LEAST_SPAN_S: u64 = 3600;

/// The address of the web page, as the receivers of notifications can open it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageLinks {
    /// The address without a slash at its end. Empty if the settings name no address.
    base: String,
    /// The name of the cluster, if the monitor watches several.
    cluster: Option<String>,
}

impl PageLinks {
    /// `page` is the setting `alerts.page`.
    pub(crate) fn new(page: &str, cluster: Option<&str>) -> Self {
        Self { base: page.trim_end_matches('/').to_owned(), cluster: cluster.map(str::to_owned) }
    }

    /// Returns the address of the view about the object of an alert. For an alert that has ended,
    /// the charts of the view show the time of the alert. `None` means that the settings name no
    /// address.
    pub(crate) fn of_alert(&self, alert: &Alert, map: Option<&ClusterMap>) -> Option<String> {
        if self.base.is_empty() {
            return None;
        }
        let mut parameters = Vec::new();
        if let Some(ended_ms) = alert.ended_ms {
            let lasted_s = ended_ms.saturating_sub(alert.since_ms) / 1000;
            let span_s = lasted_s.saturating_mul(2).max(LEAST_SPAN_S);
            let until_s = alert.since_ms / 1000 + lasted_s / 2 + span_s / 2;
            parameters.push(format!("span={span_s}&until={until_s}"));
        }
        parameters.extend(self.cluster.iter().map(|name| format!("cluster={name}")));
        let query = if parameters.is_empty() { "" } else { "?" };
        let view = view_of(&alert.object, map);
        Some(format!("{}/#/{view}{query}{}", self.base, parameters.join("&")))
    }
}

/// Returns the path of the view about the object of an alert. Objects without a view of their own
/// are in the list of alerts. `viewOf` in `page/values.mjs` returns the same views for the links of
/// the page, except that it returns the list of servers for a host and for management.
fn view_of(object: &str, map: Option<&ClusterMap>) -> String {
    let number = |prefix: &str| object.strip_prefix(prefix)?.parse::<u32>().ok();
    if let Some(id) = number("t") {
        return format!("target/{id}");
    }
    if let Some(id) = number("user ") {
        return format!("load/user/{id}");
    }
    let node = map.and_then(|map| service_of_object(object, map));
    match (number("n"), node) {
        (Some(id), Some(node)) if node.kind != NodeKind::Client => format!("server/{id}"),
        (Some(id), _) => format!("load/client/{id}"),
        (None, _) => "alerts".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Node, NodeId};

    fn alert(object: &str, ended_ms: Option<u64>) -> Alert {
        Alert {
            rule: "target-slow",
            severity: "warning",
            former_severity: None,
            object: object.into(),
            what: String::new(),
            remedy: String::new(),
            since_ms: 1_800_000_000_000,
            ended_ms,
            consequences: Vec::new(),
        }
    }

    #[test]
    fn notifications_link_to_the_view_of_the_object() {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes.push(Node::online(NodeId::new(2), NodeKind::Storage, "storage-1"));
        map.nodes.push(Node::online(NodeId::new(9), NodeKind::Client, "host:/mnt"));
        let links = PageLinks::new("https://monitor.example:7480/", None);
        let of = |object: &str| links.of_alert(&alert(object, None), Some(&map)).unwrap();
        for (object, view) in [
            ("t7", "target/7"),
            ("n2", "server/2"),
            ("n9", "load/client/9"),
            ("user 1000", "load/user/1000"),
            ("host 10.0.0.3", "alerts"),
            ("<b>", "alerts"),
        ] {
            assert_eq!(of(object), format!("https://monitor.example:7480/#/{view}"));
        }
        let none = PageLinks::new("", Some("rack-2"));
        assert_eq!(none.of_alert(&alert("t7", None), None), None);
    }

    #[test]
    fn links_name_the_cluster_and_the_time_of_an_ended_alert() {
        let links = PageLinks::new("http://m:7480", Some("rack-2"));
        let begun = links.of_alert(&alert("t7", None), None).unwrap();
        assert_eq!(begun, "http://m:7480/#/target/7?cluster=rack-2");
        let ended = alert("t7", Some(1_800_000_060_000));
        let address = "http://m:7480/#/target/7?span=3600&until=1800001830&cluster=rack-2";
        assert_eq!(links.of_alert(&ended, None).as_deref(), Some(address));
    }
}
