//! Tests of reading and checking hosts files.

use super::*;

pub(crate) const GOOD: &str = r#"
cluster = "scratch"
[ssh]
user = "root"
[mount]
point = "/scratch"
[[host]]
name = "m1"
address = "10.0.0.1"
roles = ["management", "metadata"]
metadata_directories = ["/nvme0/skep"]
[[host]]
name = "s1"
address = "10.0.0.2"
network = ["10.1.0.2", "10.0.0.2"]
roles = ["client", "storage"]
storage_disks = ["/dev/nvme1n1", "/dev/mapper/data"]
storage_directories = ["/data/skep"]
domain = "rack-1"
"#;

/// A cluster with three management nodes and two copies of metadata.
pub(crate) const SEVERAL: &str = r#"
copies = 2
monitor = false
[[host]]
name = "a1"
address = "10.0.0.1"
roles = ["management", "metadata"]
metadata_directories = ["/nvme0/skep"]
[[host]]
name = "a2"
address = "10.0.0.2"
roles = ["management", "metadata"]
metadata_directories = ["/nvme0/skep"]
[[host]]
name = "a3"
address = "10.0.0.3"
network = ["2001:db8::3"]
roles = ["management"]
[[host]]
name = "s1"
address = "10.0.0.4"
roles = ["storage"]
storage_directories = ["/data/skep"]
[[host]]
name = "s2"
address = "10.0.0.5"
roles = ["storage"]
storage_directories = ["/data/skep"]
[[host]]
name = "s3"
address = "10.0.0.6"
roles = ["storage"]
storage_directories = ["/data/skep"]
"#;

/// Returns the problems of a hosts file, as one text.
fn problems(text: &str) -> String {
    Deployment::parse(text).unwrap_err().context().to_owned()
}

#[test]
fn valid_host_file_gives_hosts_with_their_targets() {
    let read = Deployment::parse(GOOD).unwrap();
    assert_eq!(read.managers().map(|host| &host.name).collect::<Vec<_>>(), ["m1"]);
    assert_eq!(read.management_addresses(), ["10.0.0.1:7400"]);
    assert_eq!(read.copies, None);
    let host = read.host("s1").unwrap();
    assert_eq!(host.roles, [Role::Storage, Role::Client]);
    assert_eq!(
        host.targets(Role::Storage),
        ["/srv/skep/disks/nvme1n1/target", "/srv/skep/disks/mapper-data/target", "/data/skep"]
    );
    assert!(read.host("s9").unwrap_err().context().contains("m1, s1"));
}

#[test]
fn hosts_files_in_the_documentation_are_valid() {
    let page = include_str!("../../../../docs/operations/deploying.md");
    let files = page.split("```toml\n").skip(1).filter_map(|it| it.split("```").next());
    let read = files.map(|text| Deployment::parse(text).unwrap());
    let shapes: Vec<_> = read.map(|it| (it.managers().count(), it.copies)).collect();
    assert_eq!(shapes, [(1, None), (3, Some(2))]);
}

#[test]
fn each_mistake_is_reported_with_its_host_and_a_remedy() {
    let check = |from: &str, to: &str, words: &[&str]| {
        let text = problems(&GOOD.replacen(from, to, 1));
        for word in words {
            assert!(text.contains(word), "{to}: {text}");
        }
    };
    check("\"storage\"]", "\"storag\"]", &["s1", "'storag'", "expected management"]);
    check(
        "\"client\",",
        "\"management\",",
        &["m1 and s1", "fail more often", "one, three or five hosts"],
    );
    check("\"client\",", "\"storage\",", &["s1", "storage appears twice"]);
    check("\"metadata\"]", "\"client\"]", &["metadata is missing", "m1: metadata_disks"]);
    check("[\"/nvme0/skep\"]", "[]", &["m1: the role metadata has no target"]);
    check("/dev/nvme1n1", "/dev/mapper/data", &["/dev/mapper/data is used by two targets"]);
    check(
        "/dev/nvme1n1",
        "/dev/mapper-data",
        &["/dev/mapper-data and /dev/mapper/data", "mounted on /srv/skep/disks/mapper-data"],
    );
    check("/dev/nvme1n1", "/data/../etc", &["invalid path", "not a block device"]);
    check("10.0.0.2\"\nnetwork", "10.0.0.1\"\nnetwork", &["m1 and s1 have the same address"]);
    check("name = \"s1\"", "name = \"m1\"", &["m1 appears twice"]);
    check("point = \"/scratch\"", "point = \"/\"", &["mount.point '/'"]);
    check("[mount]", "[disks]\nstorage_mkfs = \"-f\"\n[mount]", &["disks.storage_mkfs", "-f"]);
    check("[mount]", "[disks]\nmkfs = \"-K\"\n[mount]", &["unknown field `mkfs`"]);
    check("cluster = \"scratch\"", "cluster = \"$(x)\"", &["invalid cluster"]);
    check("\"client\",", "\"monitor\", \"monitor\",", &["s1", "monitor appears twice"]);
    check("domain", "domian", &["unknown field `domian`"]);
    check("\"rack-1\"", "\"rack 1\"", &["s1: 'rack 1' cannot name a failure domain"]);
    check("domain =", "cpus = \"3-1\"\ndomain =", &["s1: invalid cpus '3-1'", "0-7,16"]);
    check("domain =", "cpus = \"3\"\nnuma_node = 0\ndomain =", &["s1: cpus and numa_node"]);
    check("address = \"10.0.0.2\"", "address = \"-oProxyCommand=x\"", &["invalid address"]);
    check("\"10.1.0.2\"", "\"a b\"", &["s1: invalid address 'a b'"]);
}

#[test]
fn management_runs_on_one_three_or_five_hosts() {
    let read = Deployment::parse(SEVERAL).unwrap();
    assert!(read.has_several_managers());
    let addresses = ["10.0.0.1:7400", "10.0.0.2:7400", "[2001:db8::3]:7400"];
    assert_eq!(read.management_addresses(), addresses);
    let with = |count: usize| {
        let storage = "[\"storage\"]";
        SEVERAL.replacen(storage, "[\"management\", \"storage\"]", count)
    };
    assert_eq!(Deployment::parse(&with(2)).unwrap().managers().count(), 5);
    assert!(problems(&with(1)).contains("survive the loss of only one node, as three nodes do"));
    assert!(problems(&with(3)).contains("waits for more than half of the nodes"));
}

#[test]
fn monitor_runs_beside_management_by_default() {
    let monitors = |text: &str| {
        let read = Deployment::parse(text).unwrap();
        let having = read.hosts.iter().filter(|host| host.has(Role::Monitor));
        having.map(|host| host.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(monitors(GOOD), ["m1"]);
    let named = GOOD.replace("[\"client\",", "[\"monitor\", \"client\",");
    assert_eq!(monitors(&named), ["s1"]);
    assert_eq!(monitors(&format!("monitor = false{GOOD}")), [""; 0]);
    let both = problems(&format!("monitor = false{named}"));
    assert!(both.contains("host s1") && both.contains("remove the role or this setting"), "{both}");
    let two = problems(&named.replace("\"metadata\"]", "\"metadata\", \"monitor\"]"));
    assert!(two.contains("hosts m1 and s1 have the role monitor"), "{two}");
}

#[test]
fn settings_of_the_monitor_come_from_the_hosts_file() {
    let with = |lines: &str| GOOD.replace("[mount]", &format!("[monitor]\n{lines}\n[mount]"));
    let config = |text: &str| {
        let read = Deployment::parse(text).unwrap();
        crate::config::config(&read, read.host("m1").unwrap(), Role::Monitor)
    };
    let directory = "directory = \"/srv/skep/monitor\"\n";
    assert!(config(GOOD).ends_with(&format!("hosts file.\n{directory}")), "{}", config(GOOD));
    let lines = "listen = \"0.0.0.0:7480\"\npassword_file = \"/etc/skep/it's\"\n\
        alerts.webhook = \"http://10.0.0.9:9000/skep\"\ntls.key = \"/k\"";
    let text = config(&with(lines));
    let table: toml::Table = text.parse().unwrap();
    let mut wanted: toml::Table = lines.parse().unwrap();
    wanted.insert("directory".into(), "/srv/skep/monitor".into());
    assert_eq!(table, wanted, "{text}");
    for (lines, words) in [
        ("directory = \"/d\"", "monitor.directory"),
        ("listen = \"0.0.0.0:80\"", "monitor.listen \"0.0.0.0:80\""),
        ("listen = 7480", "monitor.listen 7480"),
        ("alerts.command = [\"a\\nEND\\nreboot\"]", "a line break"),
    ] {
        let found = problems(&with(lines));
        assert!(found.contains(words), "{lines}: {found}");
    }
    assert!(problems(&format!("monitor = 1{GOOD}")).contains("invalid monitor"));
}

#[test]
fn all_mistakes_are_reported_together() {
    let text = problems("[[host]]\nname = \"a\"\nroles = [\"x\", \"storage\"]\n");
    for word in ["'x'", "storage has no target", "management is missing", "metadata is missing"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
