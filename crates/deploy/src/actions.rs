//! The shell script of each step of a deployment.
//!
//! The module does no I/O, and returns the scripts as texts. Each script can run again after an
//! interruption at any point. Secrets are only in scripts, and a host receives its script on
//! standard input ([`crate::ssh`]).
//!
//! # Hosts without systemd
//! On a host without systemd, the scripts start the services directly, with a pid file in
//! `/run/skep` and a log in `/var/log/skep`. After a crash or a boot, these services start again
//! only when an administrator runs `skep deploy apply`.

mod cluster;

use crate::checks::failed_disk;
use crate::config::{MONITOR_DIRECTORY, config, config_hash, fstab, mount_source};
use crate::facts::{DISKS, STORED, disk_uuid};
use crate::hosts::{Deployment, Disk, Host, Role};
use crate::plan::Action;
use crate::tuning;
use crate::units;
use std::fmt::Write;

const PRELUDE: &str = include_str!("scripts/prelude.sh");
const REMOVE: &str = include_str!("scripts/remove.sh");
/// Name of the file that a deployment writes and reads to verify the mounts of the clients.
const CHECK_FILE: &str = ".skep-deploy-check";
/// Time limit in seconds for the restarted members of groups to serve again. A member usually needs
/// seconds. The limit is long, because a member that was absent for a long time receives a copy of
/// all metadata of its group.
const MEMBERS_LIMIT: u32 = 600;
/// Time limit in seconds for a check of a mount. A check of a working mount takes about a second. A
/// mount whose servers do not run never answers.
const CHECK_LIMIT: u32 = 300;
/// Length of the check file in MiB. The file is long enough for several chunks, so that several
/// targets store its bytes.
const CHECK_MIB: u32 = 4;

/// The values in a script that are not in the hosts file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Secrets<'a> {
    /// The join token. Empty for steps that do not need the token.
    pub token: &'a str,
    /// SHA-256 of the program that the deployment installs.
    pub program_hash: &'a str,
}

/// Returns the script that prints the cluster's token. The script runs on the host of management.
pub fn token_script() -> String {
    "/usr/bin/skep cluster token --cluster /srv/skep/management\n".into()
}

/// Returns the script that receives the program on standard input and installs the program.
pub fn install_script(deployment: &Deployment, hash: &str) -> String {
    format!(
        "CLUSTER={}\n{PRELUDE}\
         temporary=/usr/bin/.skep.deploy\n\
         record \"file $temporary\"\n\
         [ -e /usr/bin/skep ] || record \"file /usr/bin/skep\"\n\
         cat >$temporary\n\
         [ \"$(sha256sum <$temporary | cut -c1-64)\" = {hash} ] ||\n\
         die \"the copy of the program is incomplete\"\n\
         chmod 755 $temporary\n\
         $temporary --version >/dev/null || die \"the program does not run on this host; it may \
         need a newer C library: name one with --program \
         that was built on an older distribution\"\n\
         mv $temporary /usr/bin/skep\n\
         sync /usr/bin/skep\n\
         for name in mount.skep mount.fuse.skep umount.fuse.skep; do\n\
         [ ! -e /sbin/$name ] || continue\n\
         record \"file /sbin/$name\"\n\
         ln -sf /usr/bin/skep /sbin/$name\n\
         done\n",
        deployment.cluster
    )
}

/// Returns the script of a step. For [`Action::Install`], the caller sends the program to the
/// standard input of the script.
pub fn script(
    deployment: &Deployment,
    host: &Host,
    action: &Action,
    secrets: Secrets<'_>,
) -> String {
    let body = match action {
        Action::Install => return install_script(deployment, secrets.program_hash),
        Action::Configure => configure(deployment, host),
        Action::WriteUnits => {
            format!("{}systemctl daemon-reload\n", write_units(deployment, host))
        }
        Action::Format(disk) => format_disk(deployment, host, disk),
        Action::MountDisks => mount_disks(deployment, host),
        Action::WriteToken => {
            format!("write_file /etc/skep/token 600 <<'END'\n{}\nEND\n", secrets.token.trim())
        }
        Action::Initialise(role) => initialise(host, *role, false),
        Action::JoinManagement => initialise(host, Role::Management, true),
        Action::AddMember => cluster::add_member(),
        Action::RemoveMember { node, .. } => cluster::remove_member(*node),
        Action::DiscardManagement => cluster::discard_management(),
        Action::SetCopies(copies) => cluster::set_copies(*copies),
        Action::CreateGroup(members) => cluster::create_group(members),
        Action::AddCopy { group, place } => cluster::add_copy(*group, place),
        // A monitor that this deployment has not started keeps running.
        Action::Stop(Role::Monitor) => {
            "if is_recorded 'file /etc/skep/monitor.toml'; then stop_service monitor; fi\n".into()
        }
        Action::Stop(role) => format!("stop_service {role}\n"),
        Action::Start(Role::Monitor) => {
            let port = Role::Monitor.port().unwrap_or_default();
            format!("make_dir {MONITOR_DIRECTORY} 700\nstart_service monitor {port}\n")
        }
        Action::Start(role) => {
            format!("start_service {role} {}\n", role.port().unwrap_or_default())
        }
        Action::FormatCluster => format_cluster(deployment),
        Action::AwaitHealth => await_health(deployment),
        Action::AwaitMembers => await_members(),
        Action::Mount => mount(deployment),
        Action::Unmount => format!("unmount_cluster {}\n", deployment.mount.point),
        Action::WriteCheck => on_mount(
            deployment,
            &format!(
                "rm -f {CHECK_FILE} {CHECK_FILE}.sum\n\
                 head -c {CHECK_MIB}M /dev/urandom >{CHECK_FILE}\nsync {CHECK_FILE}\n\
                 sha256sum {CHECK_FILE} >{CHECK_FILE}.sum\n"
            ),
        ),
        Action::ReadCheck => {
            on_mount(deployment, &format!("sha256sum --quiet --check {CHECK_FILE}.sum\n"))
        }
        Action::RemoveCheck => {
            on_mount(deployment, &format!("rm -f {CHECK_FILE} {CHECK_FILE}.sum\n"))
        }
        Action::Tune => tuning::script(host),
        Action::RestoreTuning => tuning::restoring_script(),
        Action::Remove { keeps_data } => {
            let (point, keeps) = (&deployment.mount.point, if *keeps_data { "yes" } else { "no" });
            format!("MOUNT={point} KEEP_DATA={keeps}\n{}{STORED}{REMOVE}", tuning::FUNCTIONS)
        }
    };
    // A shell runs each line as soon as it has received the line, and also an incomplete line when
    // the ssh session is lost. The braces around the script make the shell wait for the whole
    // script before it runs the first line. Programs in the script must not read the rest of the
    // script as their input.
    format!("{{\nCLUSTER={}\n{PRELUDE}{body}}} </dev/null\n", deployment.cluster)
}

/// Returns the script that creates the file system of a target on an empty disk.
fn format_disk(deployment: &Deployment, host: &Host, disk: &Disk) -> String {
    let (device, uuid) = (&disk.device, disk_uuid(deployment, host, &disk.device));
    let point = disk.mount_point();
    let options: String = deployment.disks.mkfs(disk.role).map(|word| format!(" {word}")).collect();
    // The script checks again that the disk is empty, because time has passed since the facts were
    // read. After a boot, an empty disk may have the name of a disk that has data. If the script
    // gave the empty disk the UUID of the disk with data, the next boot could mount the wrong disk.
    format!(
        "if [ \"$(blkid -p -s UUID -o value {device})\" != {uuid} ]; then\n\
         [ -z \"$(blkid -p -o export {device} 2>/dev/null)\" ] || die \"{device} holds data\"\n\
         if is_mounted {point} || [ -e /dev/disk/by-uuid/{uuid} ]; then\n\
         die \"cannot format {device}: another disk of this host has the file system for {point}, \
         so the names of the disks have changed; restore the names, or detach {device}\"\n\
         fi\n\
         record 'disk {device} {uuid} {point}'\n\
         mkfs.xfs -q{options} -m uuid={uuid} {device} >/dev/null\n\
         fi\n"
    )
}

/// Returns the script that runs commands in the mount. The script fails if the cluster is not
/// mounted, because the commands would then change the directory below the mount.
fn on_mount(deployment: &Deployment, commands: &str) -> String {
    let point = &deployment.mount.point;
    format!(
        "is_skep_mount {point} ||\n\
         die 'the cluster is not mounted on {point}; skep deploy apply mounts the cluster'\n\
         status=0\n\
         timeout {CHECK_LIMIT} sh -euc 'cd {point}\n{commands}' || status=$?\n\
         [ \"$status\" != 124 ] || die 'the mount on {point} does not answer within {CHECK_LIMIT} \
         s; its log is in /var/log/skep'\n\
         [ \"$status\" = 0 ] || exit \"$status\"\n"
    )
}

/// Returns the script that waits until every metadata and storage server of the hosts file answers.
/// Management may still list a server that was removed from the hosts file. This server is not
/// counted.
fn await_health(deployment: &Deployment) -> String {
    let names: Vec<_> = deployment.hosts.iter().map(|host| host.name.as_str()).collect();
    let servers = deployment.hosts.iter().flat_map(Host::services);
    let servers = servers.filter(|role| matches!(role, Role::Metadata | Role::Storage)).count();
    format!(
        "check() {{ /usr/bin/skep health check --cluster /srv/skep/management \"$@\"; \
         }}\nhealthy() {{\ncheck --output json 2>/dev/null | awk -v names=' {} ' '\n/\"name\":/ {{ \
         gsub(/[\",]/, \"\"); name = $2 }}\n/\"kind\":/ {{ gsub(/[\",]/, \"\"); kind = $2 \
         }}\n/\"reachable\": true/ && kind ~ /^(metadata|storage)$/ && index(names, \" \" name \" \
         \") {{ n++ }}\nEND {{ exit n < {servers} }}'\n}}\n(await 60 'not all {servers} servers of \
         the cluster answer after 60 s' healthy) ||\n{{ check >&2 || true; exit 1; }}\n",
        names.join(" ")
    )
}

/// Returns the script that waits until every member of a metadata group serves, and until every
/// member of management answers and has stored the whole log. Does not wait for targets that are
/// marked as lost.
fn await_members() -> String {
    format!(
        "ask() {{ /usr/bin/skep \"$@\" --cluster /srv/skep/management; }}\n\
         all_serve() {{\n\
         found=$(ask group list --output ndjson 2>/dev/null) || return 1\n\
         ! printf '%s\\n' \"$found\" | grep '\"kind\":\"metadata\"' |\n\
         grep -Eq '\"state\":\"(Waiting|Syncing|Offline)\"'\n\
         }}\n\
         all_have_the_log() {{\n\
         found=$(ask management status --output ndjson 2>/dev/null) || return 1\n\
         found=$(printf '%s\\n' \"$found\" | tr '{{' '\\n' | grep '\"role\":\"follower\"') ||\n\
         return 0\n\
         ! printf '%s\\n' \"$found\" | grep -vq '\"lag\":0[,}}]' &&\n\
         ! printf '%s\\n' \"$found\" | grep -vq '\"reachability\":\"Online\"'\n\
         }}\n\
         (await {MEMBERS_LIMIT} 'not all members of the metadata groups serve after \
         {MEMBERS_LIMIT} s, so no further service was stopped; start the services of these \
         members, or take lost members out of their groups with skep group remove' all_serve) ||\n\
         {{ ask group list >&2 || true; exit 1; }}\n\
         (await {MEMBERS_LIMIT} 'not all management nodes answer and have the whole log after \
         {MEMBERS_LIMIT} s, so no further service was stopped; start management where it does not \
         run, or remove lost nodes with skep management remove' all_have_the_log) ||\n\
         {{ ask management status >&2 || true; exit 1; }}\n"
    )
}

fn configure(deployment: &Deployment, host: &Host) -> String {
    let mut text = "record \"cluster $CLUSTER\"\nmake_dir /srv/skep 755\n".to_owned();
    for role in host.services() {
        let path = role.config_path(&deployment.cluster);
        let config = config(deployment, host, role);
        // The initialisation of the service removes this record. If a run is interrupted before
        // this initialisation, the next run finds the record and initialises the directories of the
        // service. The monitor has nothing to initialise.
        if role.is_node() {
            let hash = config_hash(deployment, host, role);
            let _ = writeln!(
                text,
                "[ \"$(sha256sum 2>/dev/null <{path} | cut -c1-64)\" = {hash} ] || \
                 record 'changed {role}'"
            );
        }
        let _ = write!(text, "write_file {path} 600 <<'END'\n{config}END\n");
    }
    text += "if has_systemd; then\n";
    text += &write_units(deployment, host);
    format!("{text}:\nfi\nwrite_fstab <<'END'\n{}END\n", fstab(deployment, host))
}

/// Returns the script that writes the units with their drop-in files, and creates the user that
/// runs the services.
fn write_units(deployment: &Deployment, host: &Host) -> String {
    let mut text = format!("{}write_units {}\n", units::FUNCTIONS, units::options(host));
    for role in host.services() {
        if let Some(drop_in) = units::drop_in(host, role) {
            let path = units::drop_in_path(&deployment.cluster, role);
            let _ = write!(text, "write_file {path} 644 <<'END'\n{drop_in}END\n");
        }
    }
    text
}

fn mount_disks(deployment: &Deployment, host: &Host) -> String {
    let mut text = DISKS.to_owned();
    for disk in &host.disks {
        let (device, point) = (&disk.device, disk.mount_point());
        let options = deployment.disks.mount(disk.role);
        // The name of the disk may have changed, so the script finds the disk by its UUID. On a
        // host without udev, which has no links for UUIDs, the script compares the UUID of the
        // device.
        let uuid = disk_uuid(deployment, host, device);
        let link = format!("/dev/disk/by-uuid/{uuid}");
        // Commands on the directory of a failed file system fail, so the script checks the mount
        // first.
        let failed = failed_disk(deployment, host, disk, "'\"$reason\"'");
        let _ = writeln!(
            text,
            "if is_mounted {point}; then\n\
             if reason=$(failed_mount {point}); then die '{failed}'; fi\n\
             else\nmake_dir {point} 755\n\
             if [ -b {link} ]; then mount -t xfs -o {options} {link} {point}\n\
             elif [ \"$(blkid -p -s UUID -o value {device})\" = {uuid} ]; then\n\
             mount -t xfs -o {options} {device} {point}\n\
             else die \"cannot mount the disk for {point}: {device} does not have its file system \
             any more; attach the disk again\"\nfi\nfi"
        );
    }
    text
}

/// Returns the script that initialises the directories of a service. `joins` is true for a further
/// management node.
fn initialise(host: &Host, role: Role, joins: bool) -> String {
    let mut text = String::new();
    for target in host.targets(role) {
        let parent = target.rsplit_once('/').map_or("", |(parent, _)| parent);
        if !parent.is_empty() {
            let _ = writeln!(text, "make_dir {parent} 755");
        }
        // If a target's directory existed before the deployment, it is not recorded as created. A
        // removal then deletes only the files of the target in this directory.
        let _ =
            writeln!(text, "[ -e {target} ] || record 'dir {target}'\nrecord 'target {target}'");
    }
    let token = match role {
        Role::Management if !joins => "",
        Role::Management => " --join --token-file /etc/skep/token",
        _ => " --token-file /etc/skep/token",
    };
    if role == Role::Management {
        text += cluster::REMOVE_HALF_INITIALISED;
    }
    // If the initialisation is interrupted, the directory exists but has no identity yet, so it is
    // initialised again.
    let _ = write!(
        text,
        "record 'dir /srv/skep/{role}'\n\
         config=/etc/skep/{role}-$CLUSTER.toml\n\
         make_once /usr/bin/skep {role} --init --config $config{token}\n\
         record 'initialised {role}'\n\
         forget 'changed {role}'\n"
    );
    text
}

fn format_cluster(deployment: &Deployment) -> String {
    let number = |role: Role| -> usize {
        deployment.hosts.iter().map(|host| host.targets(role).len()).sum()
    };
    let (metadata, storage) = (number(Role::Metadata), number(Role::Storage));
    format!(
        "management=/srv/skep/management\n\
         targets() {{ /usr/bin/skep target list --cluster $management --output ndjson; }}\n\
         has_all() {{\n\
         found=$(targets | grep '\"reachability\":\"Online\"') || return 1\n\
         [ \"$(echo \"$found\" | grep -c '\"kind\":\"metadata\"')\" -ge {metadata} ] &&\n\
         [ \"$(echo \"$found\" | grep -c '\"kind\":\"storage\"')\" -ge {storage} ]\n\
         }}\n\
         await 60 'not all of {metadata} metadata and {storage} storage targets are registered \
         after 60 s; skep target list shows those that are' has_all\n\
         make_once /usr/bin/skep cluster format --cluster /srv/skep/management\n\
         record formatted\n"
    )
}

fn mount(deployment: &Deployment) -> String {
    let (source, mount) = (mount_source(deployment), &deployment.mount);
    let (point, options) = (&mount.point, &mount.options);
    let log = format!("/var/log/skep/mount{}.log", point.replace('/', "-"));
    // Quotes keep the shell from interpreting characters of the options, such as `;` and `$`.
    // The options `_netdev` and `nofail` are in /etc/fstab only. The process of the mount must not
    // keep the streams of the ssh session open, nor descriptor 9, the lock of the deployment.
    format!(
        "[ -e /dev/fuse ] || modprobe fuse\nmake_dir {point} 755\nmake_dir /var/log/skep 700\n\
         [ -e {log} ] || record 'file {log}'\n\
         if ! is_mounted {point}; then\n\
         options='{options},token_file=/etc/skep/token'\n\
         text=$(mount -t skep -o \"$options\" '{source}' {point} 2>&1 9>&-) ||\n\
         die \"$text\"\nfi\n"
    )
}

#[cfg(test)]
#[path = "actions/tests.rs"]
mod tests;
