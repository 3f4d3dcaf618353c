//! The hosts file that the Ansible collection in `deploy/ansible` makes from an inventory. The test
//! does not need Ansible itself. `cargo xtask external --only ansible` runs the playbooks.

use serde_json::{Value, json};
use skep_testkit::PATIENCE;
use skep_testkit::program::{Finished, finish};
use std::path::Path;
use std::process::Command;

/// Prints the hosts file for the groups and the variables in its argument.
const PROGRAM: &str = "\
import json, sys
import hosts_file as it
inventory = json.loads(sys.argv[1])
try:
    print(it.hosts_file(inventory['groups'], inventory['variables'], '/base'), end='')
except it.InventoryError as error:
    sys.exit(str(error))
";

fn hosts_file(groups: &Value, variables: &Value) -> Finished {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let inventory = json!({ "groups": groups, "variables": variables }).to_string();
    let mut command = Command::new("python3");
    // Without `-B`, Python would write a cache file with compiled code beside the source.
    command.args(["-B", "-c", PROGRAM, &inventory]);
    command.env("PYTHONPATH", deploy.join("ansible/plugins/module_utils"));
    finish(&mut command, PATIENCE)
}

#[test]
fn hosts_file_has_the_skep_hosts_and_settings_of_the_inventory() {
    let groups = json!({
        "skep_management": ["m1"],
        "skep_metadata": ["m1", "m2"],
        "skep_storage": ["s1"],
        "skep_monitor": ["s1"],
        "skep_client": ["c1"],
        "others": ["x1"],
    });
    let login = json!({ "ansible_user": "admin", "ansible_port": 2222, "ansible_ssh_private_key_file": "key" });
    let with = |more: Value| {
        let mut variables = login.as_object().expect("an object").clone();
        variables.extend(more.as_object().expect("an object").clone());
        Value::Object(variables)
    };
    let variables = json!({
        "m1": with(json!({
            "skep_cluster": "scratch", "skep_copies": 2, "skep_mount_point": "/mnt/skep",
            "ansible_host": "10.0.0.1", "skep_storage_mkfs": "-d su=128k,sw=8",
            "skep_metadata_directories": ["/nvme0/skep"], "skep_ssh_options": ["ProxyJump=gate"],
        })),
        "m2": with(json!({ "skep_metadata_disks": ["/dev/sdb"], "skep_network": ["10.1.0.2"] })),
        "s1": with(json!({
            "ansible_host": "10.0.0.2", "skep_address": "s1.example", "skep_domain": "rack \"1\" \u{1f600}",
            "skep_storage_disks": ["/dev/sdb", "/dev/sdc"], "skep_tune": true, "skep_numa_node": 1,
        })),
        "c1": login,
        "x1": {},
    });
    let expected = r#"# Written by Ansible from its inventory. Changes of this file will be lost.
cluster = "scratch"
copies = 2

[ssh]
user = "admin"
port = 2222
identity = "/base/key"
options = ["ProxyJump=gate"]

[mount]
point = "/mnt/skep"

[disks]
storage_mkfs = "-d su=128k,sw=8"

[[host]]
name = "m1"
address = "10.0.0.1"
roles = ["management", "metadata"]
metadata_directories = ["/nvme0/skep"]

[[host]]
name = "m2"
address = "m2"
roles = ["metadata"]
network = ["10.1.0.2"]
metadata_disks = ["/dev/sdb"]

[[host]]
name = "s1"
address = "s1.example"
roles = ["storage", "monitor"]
domain = "rack \"1\" FACE"
storage_disks = ["/dev/sdb", "/dev/sdc"]
tune = true
numa_node = 1

[[host]]
name = "c1"
address = "c1"
roles = ["client"]
"#;
    // JSON escapes this emoji as two surrogates. TOML has no surrogates, so the hosts file must
    // contain the character itself.
    let expected = expected.replace("FACE", "\u{1f600}");
    assert_eq!(hosts_file(&groups, &variables).expect_success(), expected);
}

#[test]
fn inventory_without_a_valid_cluster_is_refused() {
    let groups = json!({ "skep_management": ["m1"], "skep_client": ["c1"] });
    let cases = [
        (json!({}), json!({}), "no host has a role"),
        (json!({ "skep_storage": ["m1"] }), json!({ "m1": {} }), "into the group skep_management"),
        (
            groups.clone(),
            json!({ "m1": { "ansible_user": "a" }, "c1": {} }),
            "ansible_user differs between hosts (a on m1; none on c1)",
        ),
        (
            groups.clone(),
            json!({ "m1": {}, "c1": { "ansible_ssh_common_args": "-J gate" } }),
            "set skep_ssh_options instead",
        ),
        (
            groups.clone(),
            json!({ "m1": { "skep_metadata_disks": "/dev/sdb" }, "c1": {} }),
            "invalid skep_metadata_disks '/dev/sdb': expected a list of texts",
        ),
        (
            groups.clone(),
            json!({ "m1": { "skep_monitor": "no" }, "c1": {} }),
            "invalid skep_monitor 'no': expected true or false",
        ),
        (
            groups.clone(),
            json!({ "m1": { "skep_copies": true }, "c1": {} }),
            "invalid skep_copies True: expected a number",
        ),
        (
            groups,
            json!({ "m1": { "ansible_port": 70000 }, "c1": { "ansible_port": 70000 } }),
            "expected a number from 1 to 65535",
        ),
    ];
    for (groups, variables, message) in cases {
        let refused = hosts_file(&groups, &variables).expect_failure();
        assert!(refused.contains(message), "{message}: {refused}");
    }
}
