//! Runs a cluster on one host. The supervisor initialises the cluster if necessary, starts its
//! processes in order, mounts the cluster, and restarts processes that exit. At the end, the
//! supervisor stops all processes in the opposite order.

use super::children::{Role, Service, describe};
use super::former::await_end;
use super::layout::SupervisorLock;
use super::ownership::give_root_to;
use super::plan::Plan;
use super::readiness::Readiness;
use super::shape::Shape;
use super::summary;
use crate::access::{Access, ClusterArgs};
use crate::mounts::{is_mount_point, unmount};
use crate::output::{is_for_people, say};
use crate::program::program;
use skep_service::listen::ADDRESS_FILE;
use skep_store::identity::{is_initialised, read_identity};
use skep_types::map::Reachability;
use skep_types::{ClusterMap, Error, ErrorCode, NodeKind, Result};
use skep_wire::consensus::AddMember;
use skep_wire::management::{ChangeSetting, CreateGroup, Format};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// Time limit for all services to start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for the processes of one role to end. After this time, the supervisor kills the
/// processes. The mount ends only after programs have closed their files.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Time to wait for the end of a monitor that failed to start and was killed.
const MONITOR_END_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two checks of the child processes.
const TICK: Duration = Duration::from_millis(50);
/// Number of signals after which the supervisor kills the processes. A user can send these signals
/// with Ctrl-C.
const SIGNALS_TO_KILL: u32 = 2;
/// Time after which the supervisor prints why processes have not ended yet.
const SILENCE: Duration = Duration::from_secs(1);

/// The state of a running cluster.
struct Supervisor {
    plan: Plan,
    services: Vec<Service>,
    readiness: Readiness,
    /// Number of signals that the supervisor has received. Each signal asks the supervisor to end.
    asked_to_end: Rc<Cell<u32>>,
    _lock: SupervisorLock,
}

/// Starts the cluster, and restarts processes that exit, until a signal arrives.
pub(crate) async fn run(plan: Plan, signals: skep_env::Signals) -> Result<()> {
    let lock = plan.layout.lock()?;
    let asked_to_end = Rc::new(Cell::new(0));
    let asked = Rc::clone(&asked_to_end);
    let _listening = skep_env::spawn(async move {
        while signals.next().await.is_ok() {
            asked.set(asked.get() + 1);
        }
    });
    let readiness = Readiness::new()?;
    let mut supervisor =
        Supervisor { plan, services: Vec::new(), readiness, asked_to_end, _lock: lock };
    let result = supervisor.start().await;
    if result.is_ok() {
        skep_service::notify::ready();
        supervisor.watch().await;
    }
    skep_service::notify::stopping();
    supervisor.end().await;
    result
}

impl Supervisor {
    async fn start(&mut self) -> Result<()> {
        let started = skep_env::now();
        self.await_former().await?;
        self.start_management().await?;
        self.set_copies().await?;
        let services: Vec<_> = self.plan.shape.services().collect();
        for (kind, name) in &services {
            self.initialise(
                name,
                vec!["--token-file".into(), self.plan.layout.token().display().to_string()],
            )?;
            let role = if *kind == "metadata" { Role::Metadata } else { Role::Storage };
            self.add(role, name, self.plan.arguments(kind, name));
        }
        self.await_ready(services.len()).await?;
        let access = self.access()?;
        self.await_registered(&access).await?;
        let (uid, gid) = self.plan.layout.owner()?;
        if uid != 0 {
            give_root_to(&access, uid, gid).await?;
        }
        if let Some(mount_point) = self.plan.mount_point.clone() {
            // `create_dir_all` would fail on a dead mount. The new mount process will remove the
            // dead mount.
            if !is_mount_point(&mount_point) {
                std::fs::create_dir_all(&mount_point).map_err(|error| {
                    Error::from(error).within(format_args!(
                        "cannot create the mount point {}",
                        mount_point.display()
                    ))
                })?;
            }
            let arguments = self.plan.mount_arguments(&mount_point);
            self.add(Role::Mount, "mount", arguments);
            self.await_ready(1).await?;
        }
        if self.plan.has_monitor {
            self.start_monitor().await?;
        }
        self.note_processes();
        let seconds = (skep_env::now() - started).as_secs_f64();
        if self.plan.in_foreground {
            let Plan { layout, mount_point, has_monitor, .. } = &self.plan;
            summary::print(layout, mount_point.as_deref(), *has_monitor, true).await?;
        }
        print_line(&format!("Up after {seconds:.1} s."));
        Ok(())
    }

    /// Starts the management nodes. Existing nodes start first, because a new node can become a
    /// member only while a majority of the existing nodes runs.
    async fn start_management(&mut self) -> Result<()> {
        self.initialise("management", Vec::new())?;
        let names: Vec<_> = self.plan.shape.management().collect();
        let exists = |name: &String| is_initialised(&self.plan.layout.service(name));
        let (existing, new): (Vec<_>, Vec<_>) = names.iter().partition(|name| exists(name));
        for name in &existing {
            self.add(Role::Management, name, self.plan.arguments("management", name));
        }
        self.await_ready(existing.len()).await?;
        for name in new {
            let token = self.plan.layout.token().display().to_string();
            self.initialise(name, vec!["--join".into(), "--token-file".into(), token])?;
            self.add(Role::Management, name, self.plan.arguments("management", name));
            self.await_ready(1).await?;
        }
        // Add all management nodes as members. An earlier start may have ended before one of these
        // nodes became a member.
        let access = self.access()?;
        for name in names.iter().skip(1) {
            let node = read_identity(&self.plan.layout.service(name))?.map(|it| it.node);
            let request = AddMember { node: node.unwrap_or_default() };
            let added = access.ask_once(&request, START_PATIENCE).await;
            added.map_err(|error| error.within(format_args!("cannot add {name}")))?;
        }
        Ok(())
    }

    /// Starts the monitor. If the monitor fails, the cluster continues without a monitor, because
    /// files do not depend on the monitor.
    ///
    /// # Errors
    /// The error of another process that exits while the monitor starts, or `Interrupted`.
    async fn start_monitor(&mut self) -> Result<()> {
        // The file contains the address of the web page of an earlier monitor. This page no longer
        // exists.
        let address = self.plan.layout.service("monitor").join(ADDRESS_FILE);
        let _ = std::fs::remove_file(address);
        let arguments = self.plan.monitor_arguments();
        self.add(Role::Monitor, "monitor", arguments);
        let Err(error) = self.await_ready(1).await else { return Ok(()) };
        let Some(mut monitor) = self.services.pop() else { return Err(error) };
        let others_run = self.services.iter().all(|service| service.process().is_some());
        if self.asked_to_end.get() > 0 || !others_run {
            self.services.push(monitor);
            return Err(error);
        }
        monitor.signal(libc::SIGKILL);
        print_line(&format!(
            "warning: the monitor did not start, so the history of the load, the alerts and the \
             web page are missing; files do not need the monitor. `skep monitor` starts it later; \
             its log is {}:\n{}",
            self.plan.layout.log("monitor").display(),
            monitor.tail()
        ));
        let deadline = skep_env::now() + MONITOR_END_PATIENCE;
        while monitor.process().is_some() && skep_env::now() < deadline {
            if monitor.take_end().is_none() {
                skep_env::sleep(TICK).await;
            }
        }
        Ok(())
    }

    /// Waits for processes that a killed supervisor has left behind. Kills the processes that still
    /// run after [`END_PATIENCE`].
    async fn await_former(&self) -> Result<()> {
        let data = self.plan.layout.data.display().to_string();
        let is_ours = |process: u32| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&data)
        };
        let kill = |process: u32| {
            print_line(&format!("killing process {process} of an earlier `skep up`"));
            let _ = skep_env::send_signal(process, libc::SIGKILL);
        };
        let former: Vec<u32> = self.plan.layout.processes().into_values().collect();
        let is_interrupted = || self.asked_to_end.get() > 0;
        await_end(&former, is_ours, (END_PATIENCE, END_PATIENCE), is_interrupted, kill).await
    }

    fn access(&self) -> Result<Access> {
        let cluster = Some(self.plan.layout.data.display().to_string());
        ClusterArgs { cluster, token_file: None }.access(None)
    }

    /// Initialises the directories of a service, unless all directories are initialised already.
    fn initialise(&self, name: &str, token: Vec<String>) -> Result<()> {
        let kind = name.split('-').next().unwrap_or(name);
        let directory = self.plan.layout.service(name);
        let mut all = self.plan.targets(kind, name);
        all.push(directory);
        if all.iter().all(|path| is_initialised(path)) {
            return Ok(());
        }
        let mut command = program();
        command.args(self.plan.arguments(kind, name)).arg("--init").args(token);
        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let what =
            format!("cannot initialise {name} ({}): {}", describe(output.status), errors.trim());
        Err(Error::new(ErrorCode::Configuration, what))
    }

    fn add(&mut self, role: Role, name: &str, arguments: Vec<String>) {
        self.services.push(Service::new(&self.plan.layout, role, name, arguments));
    }

    /// Starts the services that were added and do not run yet. Waits until `count` services have
    /// reported that they are ready.
    async fn await_ready(&mut self, count: usize) -> Result<()> {
        let readiness = &self.readiness;
        for service in self.services.iter_mut().filter(|service| service.process().is_none()) {
            service.start(|command| readiness.set_variable(command))?;
        }
        let mut ready = 0;
        while ready < count {
            let services = &mut self.services;
            let asked = &self.asked_to_end;
            let has_ended = || {
                if asked.get() > 0 {
                    return Some(Error::new(ErrorCode::Interrupted, "interrupted"));
                }
                let mut ends = services.iter_mut();
                ends.find_map(|service| service.take_end().map(|status| service.failed(status)))
            };
            match self.readiness.wait(Some(START_PATIENCE), has_ended).await {
                Ok(more) => ready += more,
                Err(error) if error.code() == ErrorCode::TimedOut => return Err(self.too_late()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn too_late(&self) -> Error {
        let Some(newest) = self.services.last() else {
            return Error::new(
                ErrorCode::TimedOut,
                "cannot start the cluster: no process was started",
            );
        };
        let (log, lines) = (self.plan.layout.log(&newest.name), newest.tail());
        let what = format!(
            "cannot start the cluster: {} (or a service of the same kind) was not ready within {} \
             s; the end of {}:\n{lines}",
            newest.name,
            START_PATIENCE.as_secs(),
            log.display()
        );
        Error::new(ErrorCode::TimedOut, what)
    }

    /// If each metadata group has several targets in the plan, sets `metadata-copies` of the
    /// cluster. With several copies, a new metadata target does not serve until it is a member of a
    /// group.
    async fn set_copies(&self) -> Result<()> {
        let copies = self.plan.shape.metadata_copies;
        if copies > 1 {
            let (name, value) = ("metadata-copies".to_owned(), u64::from(copies));
            self.access()?.ask(&ChangeSetting { name, value, is_dry_run: false }).await?;
        }
        Ok(())
    }

    /// Creates the metadata groups of a new cluster if a group has several targets. Changes nothing
    /// if these groups exist already.
    async fn create_groups(&self, access: &Access, map: &ClusterMap) -> Result<()> {
        if self.plan.shape.metadata_copies == 1 {
            return Ok(());
        }
        for group in self.plan.shape.metadata_groups() {
            let mut targets = Vec::new();
            for (service, number) in group {
                let path = self.plan.layout.service(&service).join(format!("t{number}"));
                let path = path.display().to_string();
                let target = map.targets.iter().find(|target| target.path == path);
                let missing = || {
                    let what = format!(
                        "cannot create the metadata groups: management has no target with the \
                         directory {path}"
                    );
                    Error::new(ErrorCode::NotFound, what)
                };
                targets.push(target.ok_or_else(missing)?.id);
            }
            access.ask(&CreateGroup { targets }).await?;
        }
        Ok(())
    }

    /// Waits until all services and targets have registered. Formats a new cluster.
    async fn await_registered(&self, access: &Access) -> Result<()> {
        let Shape {
            metadata_targets, metadata_copies, storage_services, targets_per_service, ..
        } = self.plan.shape;
        let wanted = [
            (NodeKind::Metadata, metadata_targets, metadata_targets * metadata_copies),
            (NodeKind::Storage, storage_services, storage_services * targets_per_service),
        ];
        let deadline = skep_env::now() + START_PATIENCE;
        loop {
            let map = access.map().await?;
            let all_there = wanted.iter().all(|(kind, nodes, targets)| {
                let online = |node: &&skep_types::Node| {
                    node.kind == *kind && node.reachability == Reachability::Online
                };
                let online: Vec<_> = map.nodes.iter().filter(online).map(|node| node.id).collect();
                let served = map.targets.iter().filter(|target| online.contains(&target.node));
                online.len() >= usize::from(*nodes) && served.count() >= usize::from(*targets)
            });
            if all_there && map.formatted {
                return Ok(());
            }
            if all_there {
                self.create_groups(access, &map).await?;
                access.ask(&Format {}).await?;
                return Ok(());
            }
            if self.asked_to_end.get() > 0 {
                return Err(Error::new(ErrorCode::Interrupted, "interrupted"));
            }
            if skep_env::now() > deadline {
                let what = "cannot start the cluster: some services did not register with \
                            management in time; `skep health check` lists these services";
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            skep_env::sleep(TICK).await;
        }
    }

    /// Stores the list of running processes. If the write fails, logs a warning and continues,
    /// because the cluster does not need the list.
    fn note_processes(&self) {
        let running = self.services.iter();
        let processes =
            running.filter_map(|service| Some((service.name.clone(), service.process()?)));
        if let Err(error) = self.plan.layout.note_processes(&processes.collect()) {
            tracing::warn!(
                "cannot write the list of the cluster's processes, so the next `skep up` does not \
                 find processes that still run: {error}"
            );
        }
    }

    /// Restarts services that exit, until a signal asks the supervisor to end.
    async fn watch(&mut self) {
        while self.asked_to_end.get() == 0 {
            // Restarted and ending services also send reports to the socket. Remove these reports,
            // so that the socket does not fill up.
            self.readiness.take();
            let mut has_changed = false;
            for service in &mut self.services {
                if let Some(status) = service.take_end() {
                    if service.role == Role::Mount && status.success() {
                        service.is_done = true;
                        print_line(
                            "another program has unmounted the cluster; the services keep running",
                        );
                        continue;
                    }
                    print_line(&service.note_death(status));
                }
                if service.is_due() {
                    match service.start(|_| ()) {
                        Ok(()) => {
                            has_changed = true;
                            let process = service.process().unwrap_or_default();
                            print_line(&format!(
                                "{} is running again (process {process})",
                                service.name
                            ));
                        }
                        Err(error) => {
                            service.put_off();
                            print_line(&format!("cannot start {}: {error}", service.name));
                        }
                    }
                }
            }
            if has_changed {
                self.note_processes();
            }
            skep_env::sleep(TICK).await;
        }
    }

    /// Ends all services, in the order of their roles: a service ends before the services of other
    /// kinds on which it depends.
    async fn end(&mut self) {
        for role in [Role::Monitor, Role::Mount, Role::Storage, Role::Metadata, Role::Management] {
            let of_role = |service: &&mut Service| service.role == role;
            for service in self.services.iter_mut().filter(of_role) {
                service.signal(libc::SIGTERM);
            }
            let started = skep_env::now();
            let deadline = started + END_PATIENCE;
            let (mut was_killed, mut was_announced) = (false, false);
            loop {
                let mut left = Vec::new();
                for service in self.services.iter_mut().filter(of_role) {
                    match service.take_end() {
                        Some(status) if !status.success() && !was_killed => {
                            let how = describe(status);
                            print_line(&format!("{} ended with an error ({how})", service.name));
                        }
                        _ if service.process().is_some() => left.push(service),
                        _ => {}
                    }
                }
                if left.is_empty() {
                    break;
                }
                if skep_env::now() > started + SILENCE && !was_announced {
                    was_announced = true;
                    announce_wait(&left, self.plan.mount_point.as_deref());
                }
                let is_late = skep_env::now() > deadline;
                if (is_late || self.asked_to_end.get() >= SIGNALS_TO_KILL) && !was_killed {
                    was_killed = true;
                    for service in left {
                        print_line(&format!(
                            "{} has not ended after SIGTERM; `skep up` kills this process",
                            service.name
                        ));
                        service.signal(libc::SIGKILL);
                    }
                }
                skep_env::sleep(TICK).await;
            }
        }
        // A killed mount process leaves a dead mount behind, which this code unmounts.
        let was_mounted = self.services.iter().any(|service| service.role == Role::Mount);
        if let Some(mount_point) = self.plan.mount_point.as_ref().filter(|_| was_mounted)
            && is_mount_point(mount_point)
            && let Err(error) = unmount(mount_point, true)
        {
            print_line(&error.to_string());
        }
        print_line("Down.");
    }
}

/// Prints why the cluster has not ended yet.
fn announce_wait(left: &[&mut Service], mount_point: Option<&Path>) {
    for service in left {
        match (service.role, mount_point) {
            (Role::Mount, Some(point)) => print_line(&format!(
                "the mount on {0} is in use; files that stay open return errors; `fuser -vm {0}` \
                 lists the programs",
                point.display()
            )),
            _ => print_line(&format!("waiting for {} to end", service.name)),
        }
    }
}

/// Prints an event for people. Ignores errors, because a closed terminal must not end the
/// supervisor. With JSON output, prints nothing, because the summary must be the only value.
fn print_line(text: &str) {
    if is_for_people() {
        let _ = say(text);
    }
}
