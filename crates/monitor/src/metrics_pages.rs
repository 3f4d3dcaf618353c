//! The pages with metrics that Prometheus reads: the addresses of the pages of services, and the
//! list of the pages of mounts.
//!
//! Clients register no address with management, only the name of their host. So the list has the
//! name of each host with clients, and the port of the setting `mount_metrics_port`. A mount serves
//! its metrics at this port if the mount has the option `metrics`.

use serde_json::{Value, json};
use skep_types::{ClusterMap, Node, NodeKind};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Error: the metrics page listens on the loopback address of another host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HiddenPage;

/// Returns the address at which this host can read the metrics page of a service. `page` is the
/// address on which the page listens, and `registered` are the addresses of the service for other
/// nodes. `own` are the addresses of this host.
pub(crate) fn reachable_page(
    page: &str,
    registered: &[String],
    own: &[IpAddr],
) -> Result<String, HiddenPage> {
    let Ok(bound) = page.parse::<SocketAddr>() else { return Ok(page.to_owned()) };
    if bound.ip().is_unspecified() {
        let host = registered.first().and_then(|it| it.rsplit_once(':')).map(|(host, _)| host);
        return Ok(host.map_or_else(|| page.to_owned(), |host| format!("{host}:{}", bound.port())));
    }
    let is_here = |address: &String| match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback() || own.contains(&address.ip()),
        // Treat a host name as a name of this host, because it may belong to this host.
        Err(_) => true,
    };
    match bound.ip().is_loopback() && !registered.iter().any(is_here) {
        true => Err(HiddenPage),
        false => Ok(page.to_owned()),
    }
}

/// Returns the pages of all hosts that have clients. Returns no pages if `port` is zero.
pub(crate) fn mount_pages(map: &ClusterMap, port: u16) -> Vec<Value> {
    let clients = map.nodes.iter().filter(|node| node.kind == NodeKind::Client && port > 0);
    // A host with several mounts has one page, because only one process can listen at the port.
    let hosts: BTreeSet<&str> = clients.filter_map(host_of).collect();
    let page = |host: &str| {
        json!({
            "targets": [format!("{host}:{port}")],
            "labels": {
                "skep_service": "mount",
                "skep_name": host,
                "skep_cluster": map.cluster.to_string(),
            },
        })
    };
    hosts.into_iter().map(page).collect()
}

/// Returns the name of a client's host. The name of a client is `HOST:MOUNT_POINT`, or `HOST`.
/// `None` means that the name of the host is not valid in an address.
fn host_of(client: &Node) -> Option<&str> {
    let host = client.name.split(':').next().unwrap_or_default();
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!host.is_empty() && host.chars().all(is_valid)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::map::Reachability;
    use skep_types::{ClusterId, NodeId};

    #[test]
    fn each_host_with_mounts_has_one_page() {
        let mut map = ClusterMap::empty(ClusterId::new([7; 16]));
        let names = ["n2:/mnt/a", "n1.site:/mnt/a", "n2:/mnt/b", "n3", "a/b:/mnt", "", "storage-1"];
        map.nodes = (1..).zip(names).map(|(id, name)| node(id, name)).collect();
        map.nodes[6].kind = NodeKind::Storage;
        let found = mount_pages(&map, 7490);
        let targets: Vec<_> = found.iter().map(|page| &page["targets"][0]).collect();
        assert_eq!(targets, ["n1.site:7490", "n2:7490", "n3:7490"]);
        assert_eq!(found[1]["labels"]["skep_name"], "n2");
        assert_eq!(found[1]["labels"]["skep_cluster"], map.cluster.to_string());
        assert!(mount_pages(&map, 0).is_empty());
    }

    #[test]
    fn address_of_a_metrics_page_is_reachable_from_the_monitor() {
        let own: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap()];
        let page = |page: &str, registered: &str| {
            reachable_page(page, &[registered.to_owned()], &own).unwrap_or_default()
        };
        assert_eq!(page("0.0.0.0:7421", "10.0.0.2:7420"), "10.0.0.2:7421");
        assert_eq!(page("[::]:7421", "[2001:db8::2]:7420"), "[2001:db8::2]:7421");
        assert_eq!(page("10.0.0.2:7421", "10.0.0.2:7420"), "10.0.0.2:7421");
        assert_eq!(page("127.0.0.1:7421", "10.0.0.2:7420"), "", "another host");
        assert_eq!(page("127.0.0.1:7421", "10.0.0.1:7420"), "127.0.0.1:7421", "this host");
        assert_eq!(page("127.0.0.1:7421", "127.0.0.1:7420"), "127.0.0.1:7421");
    }

    fn node(id: u32, name: &str) -> Node {
        Node {
            id: NodeId::new(id),
            kind: NodeKind::Client,
            name: name.to_owned(),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: Reachability::Online,
            version: String::new(),
        }
    }
}
