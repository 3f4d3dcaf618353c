//! The Ansible collection in `deploy/ansible`: the linter of Ansible accepts the collection, and
//! its playbooks work. They deploy, extend, upgrade and remove a cluster of hosts with real
//! `sshd`s.

use skep_testkit::files;
use skep_testkit::page::{PageHost, PageNetwork};
use skep_testkit::program::{Finished, finish};
use std::path::Path;
use std::time::Duration;

/// Time limit of a playbook. The limit is long, because the machine may be busy with other work.
const LONG: Duration = Duration::from_secs(300);

const INVENTORY: &str = "\
all:
  vars:
    ansible_user: root
    ansible_ssh_private_key_file: key
    skep_cluster: scratch
    skep_ssh_options: [StrictHostKeyChecking=accept-new, UserKnownHostsFile=~/known]
  children:
    skep_management:
      hosts:
        m1: { ansible_host: 10.0.0.1 }
    skep_metadata:
      hosts:
        m1: { skep_metadata_directories: [/nvme0/skep] }
    skep_storage:
      hosts:
        s1: { ansible_host: 10.0.0.2, skep_storage_directories: [/disk1/skep, /disk2/skep] }
    skep_client:
      hosts:
        c1: { ansible_host: 10.0.0.3 }
";

/// A client that the test adds to the inventory after the first deployment.
const SECOND_CLIENT: &str = "        c2: { ansible_host: 10.0.0.4 }\n";

/// The controller, and the hosts of the cluster.
struct Site {
    // The hosts must be dropped before their switch, and Rust drops fields in the order of their
    // declaration.
    hosts: Vec<PageHost>,
    controller: PageHost,
    _network: PageNetwork,
}

impl Site {
    fn new() -> Self {
        let network = PageNetwork::new();
        let controller = network.host("admin", "10.0.0.99/24");
        controller
            .run("strip /usr/bin/skep || true; rm -rf ~/.ssh; ssh-keygen -q -t ed25519 -N '' -f ~/key")
            .expect_success();
        let key = controller.run("cat ~/key.pub").expect_success();
        let host = |(index, name): (usize, &str)| {
            let mut host = network.host(name, &format!("10.0.0.{}/24", index + 1));
            host.run("rm -rf /usr/bin/skep /var/log/skep /run/skep").expect_success();
            host.serve_ssh(&key);
            host
        };
        let hosts = ["m1", "s1", "c1", "c2"].into_iter().enumerate().map(host).collect();
        Self { hosts, controller, _network: network }
    }

    fn host(&self, name: &str) -> &PageHost {
        self.hosts.iter().find(|host| host.name() == name).expect("a host of the site")
    }

    /// Runs commands on the controller, in the directory with the inventory. The PATH of the
    /// commands contains the programs of Ansible.
    fn run(&self, commands: &str) -> Finished {
        let path = std::env::var("PATH").unwrap_or_default();
        let line = format!(
            "export PATH='{path}' ANSIBLE_COLLECTIONS_PATH=/srv/collections ANSIBLE_NOCOLOR=1\n\
             export LC_ALL=C.UTF-8; mkdir -p /srv/cluster; cd /srv/cluster\n{commands}"
        );
        finish(&mut self.controller.shell(&line), LONG)
    }

    fn write_inventory(&self, text: &str) {
        self.run(&format!("cp -n ~/key .; cat >inventory.yaml <<'END'\n{text}END\n"))
            .expect_success();
    }

    fn play(&self, arguments: &str) -> Finished {
        self.run(&format!("ansible-playbook -i inventory.yaml skep.cluster.{arguments}"))
    }
}

pub(crate) fn ansible_collection_deploys_and_removes_a_cluster(_: &()) {
    let site = Site::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/ansible");
    let source = files::canonicalize(&source);
    site.run(&format!(
        "ansible-galaxy collection build '{}' --output-path /srv\n\
         ansible-galaxy collection install --offline /srv/skep-cluster-*.tar.gz -p /srv/collections\n\
         cd /srv/collections/ansible_collections/skep/cluster; ansible-lint --offline",
        source.display()
    ))
    .expect_success();
    site.write_inventory(INVENTORY);

    let checked = site.play("apply --check").expect_success();
    assert!(checked.contains("changed=1"), "{checked}");
    site.host("m1").run("test -e /usr/bin/skep").expect_failure();
    let applied = site.play("apply").expect_success();
    assert!(applied.contains("changed=1"), "{applied}");
    site.host("c1").run("echo kept >/mnt/skep/file; sync /mnt/skep/file").expect_success();
    let again = site.play("apply").expect_success();
    assert!(again.contains("changed=0"), "{again}");

    site.write_inventory(&format!("{INVENTORY}{SECOND_CLIENT}"));
    let added = site.play("apply").expect_success();
    assert!(added.contains("changed=1"), "{added}");
    assert_eq!(site.host("c2").run("cat /mnt/skep/file").expect_success(), "kept\n");
    site.run("skep deploy status --hosts skep-hosts.toml").expect_success();
    site.run("cp /usr/bin/skep newer; echo >>newer").expect_success();
    let upgraded = site.play("upgrade -e skep_new_program=$PWD/newer").expect_success();
    assert!(upgraded.contains("changed=1"), "{upgraded}");
    site.play("remove -e skep_host=c2 -e skep_program=$PWD/newer").expect_success();
    site.host("c2").run("test -e /usr/bin/skep").expect_failure();

    let refused = site.play("destroy -e skep_program=$PWD/newer");
    let text = format!("{}{}", refused.stdout, refused.stderr);
    assert!(
        !refused.status.success() && text.contains("metadata on host m1 (/nvme0/skep)"),
        "{text}"
    );
    assert_eq!(site.host("c1").run("cat /mnt/skep/file").expect_success(), "kept\n");
    site.play("destroy -e skep_destroy_data=true -e skep_program=$PWD/newer").expect_success();
    for name in ["m1", "s1", "c1"] {
        site.host(name).run("test -e /usr/bin/skep -o -e /etc/skep").expect_failure();
    }
}
