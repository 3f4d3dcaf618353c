//! The faults of a run: ends of processes, broken connections, partitions, evictions, full disks,
//! restarts of management, and changes of the cluster map.
//!
//! This module chooses the faults. The modules of the processes execute the faults.

use crate::network::Node;
use crate::world::{Phase, SimEvent, World};
use std::time::Duration;

impl World {
    /// Injects one of the enabled faults.
    pub(crate) fn fault(&mut self) {
        if self.phase != Phase::Busy {
            return;
        }
        self.schedule_fault();
        let faults = self.knobs.faults;
        let which = self.random.below(11);
        let target = self.random.index(self.targets.len());
        match which {
            0 if faults.kills && self.picks_backup() => self.end_backup(target, false),
            1 if faults.power_losses && self.picks_backup() => self.end_backup(target, true),
            0 if faults.kills => self.end_target(target, false),
            1 if faults.power_losses => self.end_target(target, true),
            2 if faults.power_losses => {
                for target in 0..self.targets.len() {
                    self.end_target(target, true);
                }
            }
            3 | 4 if faults.breaks => {
                let open: Vec<u64> = (0..self.targets.len())
                    .flat_map(|it| self.network.open_connections(Node::Target(it), false))
                    .collect();
                if let Some(connection) = self.random.pick(&open) {
                    self.faults += 1;
                    let is_late = self.random.percent(60);
                    self.break_connection(connection, is_late);
                }
            }
            5 if faults.partitions => self.partition_two_nodes(),
            6 if faults.client_deaths => {
                let client = self.random.index(self.clients.len());
                if self.random.percent(50) {
                    self.kill_client(client);
                } else {
                    self.evict_running_client(client);
                }
            }
            7 if faults.storage_stops => {
                let storage = self.random.index(self.storages.len());
                self.stop_storage(storage);
            }
            8 if faults.full_disks => {
                self.faults += 1;
                self.witness.has_seen_full_disks = true;
                self.set_full(target, true);
                let pause = self.random.micros(5_000, 3_000_000);
                self.after(pause, SimEvent::FreeSpace { target });
            }
            9 if faults.management_restarts => self.restart_management(),
            10 if faults.map_changes => self.change_map(),
            _ => {}
        }
    }

    /// Decides at random whether a fault affects the backup member of a group (true) or the
    /// primary.
    fn picks_backup(&mut self) -> bool {
        self.knobs.has_backups && self.random.percent(40)
    }

    /// Lets an administrator evict a running client. In most cases the client's connections to
    /// targets break at the same moment, so that replies are lost together with the sessions.
    fn evict_running_client(&mut self, client: usize) {
        if !self.clients[client].is_running {
            return;
        }
        self.faults += 1;
        let evicted = self.clients[client].node;
        self.after(Duration::ZERO, SimEvent::Evict { client: evicted, unless_heard: false });
        if self.random.percent(20) {
            return;
        }
        for target in 0..self.targets.len() {
            let length = self.random.micros(1_000, 30_000);
            let (caller, callee) = (Node::Client(client), Node::Target(target));
            self.network.partition(caller, callee, self.now + length);
        }
        for connection in self.network.open_connections(Node::Client(client), false) {
            let is_late = self.random.percent(30);
            self.break_connection(connection, is_late);
        }
    }

    fn any_node(&mut self) -> Node {
        match self.random.below(3) {
            0 => Node::Client(self.random.index(self.clients.len())),
            1 => Node::Storage(self.random.index(self.storages.len())),
            _ => Node::Target(self.random.index(self.targets.len())),
        }
    }

    fn partition_two_nodes(&mut self) {
        let (a, b) = (Node::Target(self.random.index(self.targets.len())), self.any_node());
        if a == b {
            return;
        }
        self.faults += 1;
        let length = self.random.micros(1_000, 3_000_000);
        let until = self.now + length;
        self.network.partition(a, b, until);
        // Each of the two nodes may detect the partition. A node that detects the partition breaks
        // its connection to the other node.
        for connection in self.network.open_connections(a, false) {
            let of_both = self.network.connections.get(&connection).is_some_and(|it| {
                [it.caller.0, it.callee.0].contains(&a) && [it.caller.0, it.callee.0].contains(&b)
            });
            if of_both && self.random.percent(50) {
                let pause = self.random.micros(0, length.as_micros() as u64);
                self.after(pause, SimEvent::Break { connection });
            }
        }
    }
}
