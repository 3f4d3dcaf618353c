//! The commands on a page of the documentation, and hosts that run these commands unchanged.
//!
//! A block of commands begins with `sh host=NAME[,NAME]` after the three backticks. The word
//! `background` marks a command that continues to run after the block. The word `stop` means that
//! the test ends all running commands of these hosts before the block starts. The word `endless`
//! marks commands that print until Ctrl-C.
//!
//! A block that begins with `console` has commands with their output. Each command is a line that
//! begins with `$ `.
//!
//! Each host has its own network namespace and its own root directory, which is an overlay over the
//! root directory of this machine. So the commands can use the paths and addresses on the page, and
//! change no file of this machine.

use crate::cluster::program;
use crate::files;
use crate::process::Process;
use crate::program::{Finished, clean_up, finish, run};
use crate::scratch::Scratch;
use crate::wait::{PATIENCE, wait_for};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A block of commands on a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The hosts that run the commands.
    pub hosts: Vec<String>,
    /// Whether the command continues to run after the block.
    pub is_background: bool,
    /// Whether the test ends the running commands of the hosts before the block starts.
    pub stops_others: bool,
    /// Whether each line of the block is a command that prints until Ctrl-C.
    pub is_endless: bool,
    /// The lines of the block, which are shell commands.
    pub commands: String,
}

/// Returns the code blocks of the page whose first line names a host, in their order on the page.
///
/// # Panics
/// Panics if a block has an unknown word, or no end.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        // The lines of a block in a list item are indented like the first line of the block.
        let indent = line.len() - line.trim_start().len();
        let Some(words) = line.trim_start().strip_prefix("```sh host=") else { continue };
        let mut words = words.split(' ');
        let hosts = words.next().unwrap_or_default().split(',').map(str::to_owned).collect();
        let mut block = Block {
            hosts,
            is_background: false,
            stops_others: false,
            is_endless: false,
            commands: String::new(),
        };
        for word in words {
            match word {
                "background" => block.is_background = true,
                "stop" => block.stops_others = true,
                "endless" => block.is_endless = true,
                other => panic!("unknown word '{other}' in: {line}"),
            }
        }
        loop {
            let line = lines.next().expect("a block has an end");
            if line.trim_start() == "```" {
                break;
            }
            block.commands += line.get(indent..).unwrap_or_default();
            block.commands.push('\n');
        }
        blocks.push(block);
    }
    blocks
}

/// Returns the code blocks of the page that only the host `name` runs, in their order on the page.
///
/// # Panics
/// Panics if the page has no such block, or if a block has an unknown word, or no end.
pub fn blocks_of(page: &str, name: &str) -> Vec<Block> {
    let blocks: Vec<_> = blocks(page).into_iter().filter(|it| it.hosts == [name]).collect();
    assert!(!blocks.is_empty(), "the page has commands for the host {name}");
    blocks
}

/// A command on a page, with the output that the page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quoted {
    /// The shell command.
    pub command: String,
    /// The lines of the output, without empty lines at the end.
    pub output: String,
}

/// Returns the commands of the code blocks that begin with `console`, in their order on the page.
///
/// # Panics
/// Panics if a block does not begin with a command, or has no end.
pub fn quoted(page: &str) -> Vec<Quoted> {
    let mut all: Vec<Quoted> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() != "```console" {
            continue;
        }
        let first = all.len();
        loop {
            let line = lines.next().expect("a block has an end");
            if line.trim_start() == "```" {
                break;
            }
            if let Some(command) = line.strip_prefix("$ ") {
                all.push(Quoted { command: command.to_owned(), output: String::new() });
                continue;
            }
            assert!(all.len() > first, "expected a command at the start of the block: {line}");
            let last = all.last_mut().expect("the block has a command");
            last.output += line;
            last.output.push('\n');
        }
    }
    for it in &mut all {
        it.output.truncate(it.output.trim_end().len());
    }
    all
}

/// A network of hosts behind one switch. Dropping this value removes the namespaces of the switch
/// and of the hosts.
#[derive(Debug)]
pub struct PageNetwork {
    scratch: Scratch,
    switch: String,
    /// Path of the program `skep` without symbols. Each host copies the program into memory, and
    /// symbols would be most of the program's size.
    program: PathBuf,
}

impl PageNetwork {
    /// Creates a network without hosts.
    ///
    /// # Panics
    /// Panics if the test does not run as root.
    pub fn new() -> Self {
        let switch = format!("skep-page-{}", std::process::id());
        run("ip", ["netns", "add", &switch]);
        let scratch = Scratch::new();
        let stripped = scratch.directory("stripped-program").join("skep");
        let network = Self { scratch, switch, program: stripped };
        let paths = [&network.program, &program()].map(|path| path.display().to_string());
        run("strip", ["-o", &paths[0], &paths[1]]);
        run("ip", ["-n", &network.switch, "link", "add", "br0", "type", "bridge"]);
        run("ip", ["-n", &network.switch, "link", "set", "br0", "up"]);
        network
    }

    /// Adds a host. `address` is its IPv4 address with the prefix length, as in `10.0.0.1/24`.
    ///
    /// # Panics
    /// Panics if the host cannot be created.
    pub fn host(&self, name: &str, address: &str) -> PageHost {
        let network = format!("{}-{name}", self.switch);
        let (root, tmp) = (self.scratch.directory(name), "mnt-overlay");
        run("ip", ["netns", "add", &network]);
        let (inner, outer) = ("eth0", format!("to-{name}"));
        let outer = &outer[..outer.len().min(15)];
        let pair = ["link", "add", inner, "netns", &network, "type", "veth", "peer", "name", outer];
        run("ip", [&["-n", &self.switch][..], &pair].concat());
        run("ip", ["-n", &self.switch, "link", "set", outer, "master", "br0", "up"]);
        run("ip", ["-n", &network, "addr", "add", address, "dev", inner]);
        run("ip", ["-n", &network, "link", "set", inner, "up"]);
        run("ip", ["-n", &network, "link", "set", "lo", "up"]);
        let overlay = root.join(tmp);
        files::create_dir_all(&overlay);
        let script = "mount -t tmpfs tmpfs \"$1\"\n\
            mkdir \"$1/upper\" \"$1/work\" \"$1/root\"\n\
            layers=\"lowerdir=/,upperdir=$1/upper,workdir=$1/work\"\n\
            mount -t overlay overlay -o \"$layers\" \"$1/root\"\n\
            cd \"$1/root\"\n\
            for place in dev proc sys; do mount --rbind /$place $place; done\n\
            for place in srv nvme0 disk1 disk2 disk3 mnt; do\n\
              mkdir -p \"$2/$place\" $place; mount --bind \"$2/$place\" $place\n\
            done\n\
            rm -rf etc/skep; rm -f usr/bin/skep; cp \"$3\" usr/bin/skep\n\
            exec chroot . sh -c 'echo ready >/srv/ready; exec sleep infinity'";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network, "unshare", "--mount", "--propagation", "private"]);
        command.args(["sh", "-ec", script, "sh"]).arg(&overlay).arg(&root).arg(&self.program);
        let keeper = command.stdin(Stdio::null()).spawn().expect("unshare can be started");
        let host = PageHost {
            name: name.to_owned(),
            network,
            keeper,
            running: Vec::new(),
            starts: 0,
            root,
        };
        // A command that ran before the `chroot` would change files in the root directory of this
        // machine. So wait until the process has created a file in the new root directory.
        let ready = host.root.join("srv/ready");
        wait_for("the host has its root directory", PATIENCE, || ready.exists().then_some(()));
        files::remove_file(&ready);
        host
    }
}

impl Default for PageNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PageNetwork {
    fn drop(&mut self) {
        clean_up(Command::new("ip").args(["netns", "delete", &self.switch]));
    }
}

/// A host of a [`PageNetwork`]. Dropping this value ends the processes of the host, and removes the
/// host.
#[derive(Debug)]
pub struct PageHost {
    name: String,
    network: String,
    /// The process that owns the host's mount namespace.
    keeper: Child,
    running: Vec<Child>,
    /// Number of commands that [`Self::start`] has started so far.
    starts: u32,
    /// Directory on this machine that contains the host's files.
    root: PathBuf,
}

impl PageHost {
    /// Returns the host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file of the host's network namespace.
    pub fn network(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.network)
    }

    /// Returns a command that runs the shell commands `commands` on the host. The command fails if
    /// any line fails.
    pub fn shell(&self, commands: &str) -> Command {
        let mut command = Command::new("nsenter");
        let keeper = self.keeper.id().to_string();
        command.args(["--target", &keeper, "--mount", "--net", "--root", "--wd"]);
        command.args(["sh", "-ec", commands]).env_remove("SKEP_CLUSTER");
        command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/root");
        command
    }

    /// Runs the shell commands `commands` on the host, and waits until these commands end.
    ///
    /// # Panics
    /// Panics if the commands run longer than a minute.
    pub fn run(&self, commands: &str) -> Finished {
        finish(&mut self.shell(commands), PATIENCE)
    }

    /// Starts a command in the background. The output of the command goes to a log.
    ///
    /// # Panics
    /// Panics if the command cannot be started.
    pub fn start(&mut self, command: &str) {
        self.starts += 1;
        let log = files::create(self.log());
        let mut command = self.shell(&format!("exec {}", command.trim()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running.push(command.spawn().expect("nsenter can be started"));
    }

    /// Starts `sshd` on the host, and waits until `sshd` listens. `sshd` accepts the public key
    /// `key` for root.
    ///
    /// # Panics
    /// Panics if `sshd` does not listen.
    pub fn serve_ssh(&mut self, key: &str) {
        self.run(&format!(
            "rm -rf ~root/.ssh; mkdir -p /run/sshd ~root/.ssh\n\
             echo '{}' >~root/.ssh/authorized_keys\n\
             ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/test_host_key",
            key.trim()
        ))
        .expect_success();
        self.start(
            "/usr/sbin/sshd -D -e -f /dev/null -h /etc/ssh/test_host_key -o UsePAM=no \
             -o StrictModes=no -o PasswordAuthentication=no -o PidFile=none",
        );
        let log = self.log();
        wait_for("sshd listens", PATIENCE, || {
            files::read_to_string(&log).contains("Server listening").then_some(())
        });
    }

    /// Returns the path of the log of the command that [`Self::start`] has most recently started.
    pub fn log(&self) -> PathBuf {
        self.root.join(format!("{}-{}.log", self.name, self.starts))
    }

    /// Sends SIGTERM to the commands that [`Self::start`] has started, and waits until all commands
    /// have ended.
    ///
    /// # Panics
    /// Panics if a command still runs after a minute.
    pub fn stop(&mut self) {
        for mut child in self.running.drain(..) {
            let process = Process { pid: child.id(), arguments: Vec::new() };
            signal(&process, rustix::process::Signal::TERM);
            wait_for("a service ends", PATIENCE, || child.try_wait().expect("our own child"));
        }
    }

    /// Returns the names of the processes of Skep that run on the host: each name once, on a line
    /// of its own. All hosts share the process ids of this machine, so this function selects
    /// processes by their network namespaces.
    ///
    /// # Panics
    /// Panics if the search takes longer than a minute.
    pub fn names_of_processes(&self) -> String {
        // `cat` fails if a process ends during the search, but this failure must not end the loop.
        self.run(
            "own=$(readlink /proc/self/ns/net)\n\
             for process in /proc/[0-9]*; do\n\
             [ \"$(readlink $process/ns/net)\" != \"$own\" ] || cat $process/comm || true\n\
             done 2>/dev/null | grep '^skep' | sort -u",
        )
        .expect_success()
    }

    /// Checks that `before` and `after` have the same lines, and that no process of Skep runs on
    /// the host. The two texts are lists of the host's files at two moments.
    ///
    /// # Panics
    /// Panics with the lines that only one of the texts has, or with the names of the processes.
    pub fn expect_unchanged(&self, before: &str, after: &str) {
        let [before, after] = [before, after].map(|it| it.lines().collect::<BTreeSet<_>>());
        let differences: Vec<_> = before.symmetric_difference(&after).collect();
        assert!(differences.is_empty(), "{}: {differences:?}", self.name);
        assert_eq!(self.names_of_processes(), "", "{}", self.name);
    }

    /// Copies a file from another host to the same path on this host.
    ///
    /// # Panics
    /// Panics if the file cannot be read or written.
    pub fn copy_from(&self, other: &Self, path: &Path) {
        let shown = path.display();
        let text = other.run(&format!("cat {shown}")).expect_success();
        let parent = path.parent().expect("a file is in a directory").display();
        let write = format!("mkdir -p -m 700 {parent}; umask 077; printf %s '{text}' >{shown}");
        self.run(&write).expect_success();
    }
}

fn signal(process: &Process, signal: rustix::process::Signal) {
    let pid = i32::try_from(process.pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        rustix::process::kill_process(pid, signal).ok();
    }
}

impl Drop for PageHost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for number in 1..=self.starts {
                let log = self.root.join(format!("{}-{number}.log", self.name));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                eprintln!("--- log {number} of {}\n{log}", self.name);
            }
        }
        // End all processes in the host's network namespace, because processes of mounts in the
        // background are not in `running`.
        let pids = clean_up(Command::new("ip").args(["netns", "pids", &self.network]));
        let pids = pids.map(|ended| ended.stdout).unwrap_or_default();
        for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let process = Process { pid, arguments: Vec::new() };
            signal(&process, rustix::process::Signal::KILL);
        }
        for child in self.running.iter_mut().chain([&mut self.keeper]) {
            child.kill().ok();
            child.wait().ok();
        }
        clean_up(Command::new("ip").args(["netns", "delete", &self.network]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_options_are_read_from_the_first_line_of_a_block() {
        let page = "```sh host=a,b background stop\nskep x\n```\ntext\n\
            - item\n  ```sh host=a endless\n  skep y\n  ```\n```\nskep z\n```\n";
        let found = blocks(page);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].hosts.len(), found[0].commands.as_str()), (2, "skep x\n"));
        assert!(found[0].is_background && found[0].stops_others && !found[0].is_endless);
        assert_eq!((found[1].commands.as_str(), found[1].is_endless), ("skep y\n", true));
    }

    #[test]
    fn console_block_is_split_into_commands_and_outputs() {
        let page = "```console\n$ a\none\n\ntwo\n$ b\n```\n```\n$ c\n```\n";
        let quoted = |command: &str, output: &str| Quoted {
            command: command.to_owned(),
            output: output.to_owned(),
        };
        assert_eq!(super::quoted(page), [quoted("a", "one\n\ntwo"), quoted("b", "")]);
    }
}
