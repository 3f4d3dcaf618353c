//! The steps of a plan. The `Display` implementation writes the text of a step, which is shown in
//! the plan and in the report.

use crate::hosts::{Disk, Place, Role};
use std::fmt::{self, Display};

/// A step: one change of one host, or a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Copy the program to the host.
    Install,
    /// Write configuration files, units, and the lines of `/etc/fstab`.
    Configure,
    /// Write the systemd units of the services.
    WriteUnits,
    /// Create a file system on an empty disk.
    Format(Disk),
    /// Mount all disks of the host.
    MountDisks,
    /// Write the join token to a file.
    WriteToken,
    /// Initialise the directories of a service.
    Initialise(Role),
    /// Stop a service, and wait for its end.
    Stop(Role),
    /// Start a service, and wait until it is ready.
    Start(Role),
    /// Initialise the directory of a further management node of the cluster, and register the node.
    JoinManagement,
    /// Make the management node of this host a member, which stores the log and votes.
    AddMember,
    /// Remove a management node from the members and from the cluster. Its service does not run.
    RemoveMember {
        /// Name of the node's host.
        host: String,
        /// Id of the node.
        node: u32,
    },
    /// Remove the directory of the management node that was on this host.
    DiscardManagement,
    /// Set the number of copies of metadata.
    SetCopies(u32),
    /// Create a group of these metadata targets. The first target is the primary.
    CreateGroup(Vec<Place>),
    /// Add a member to a metadata group. The member gets a copy of the group's metadata.
    AddCopy {
        /// Id of the group.
        group: u32,
        /// Host and directory of the new member.
        place: Place,
    },
    /// Wait until all targets are registered, and then divide the namespace among the metadata
    /// targets.
    FormatCluster,
    /// Wait until all servers of the hosts file answer.
    AwaitHealth,
    /// Wait until all members of metadata groups serve, and until all management nodes have the
    /// whole log. After this wait, another host can stop, and the cluster continues to work.
    AwaitMembers,
    /// Change the settings of the kernel for the roles of the host.
    Tune,
    /// Restore the settings of the kernel from before the first [`Action::Tune`].
    RestoreTuning,
    /// Mount the cluster.
    Mount,
    /// Unmount the cluster.
    Unmount,
    /// Write the check file through the mount.
    WriteCheck,
    /// Read the check file through the mount, and compare its checksum.
    ReadCheck,
    /// Remove the check file.
    RemoveCheck,
    /// Remove all files and directories that a deployment has created on the host.
    Remove {
        /// Whether the step fails and removes nothing if a removal would delete data of the
        /// cluster.
        keeps_data: bool,
    },
}

impl Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Install => "install the program",
            Self::Configure => "write the configuration and the systemd units",
            Self::WriteUnits => "write the systemd units",
            Self::Format(disk) => {
                return write!(formatter, "format {} for {}", disk.device, disk.role);
            }
            Self::MountDisks => "mount the disks",
            Self::WriteToken => "write the token",
            Self::Initialise(role) => return write!(formatter, "initialise {role}"),
            Self::Stop(role) => return write!(formatter, "stop {role}"),
            Self::Start(role) => return write!(formatter, "start {role}"),
            Self::JoinManagement => "initialise a further management node",
            Self::AddMember => "make the node a member of management",
            Self::RemoveMember { host, node } => {
                return write!(formatter, "remove the management node of {host} [ID: {node}]");
            }
            Self::DiscardManagement => "remove the directory of management",
            Self::SetCopies(copies) => {
                return write!(formatter, "set the number of copies of metadata to {copies}");
            }
            Self::CreateGroup(members) => {
                let members: Vec<_> = members.iter().map(Place::to_string).collect();
                return write!(formatter, "create a metadata group of {}", members.join(", "));
            }
            Self::AddCopy { group, place } => {
                return write!(formatter, "give metadata group {group} a copy on {place}");
            }
            Self::FormatCluster => "format the cluster",
            Self::AwaitHealth => "wait until the cluster is healthy",
            Self::AwaitMembers => "wait until all copies of metadata and management are complete",
            Self::Tune => "tune the kernel for the roles of the host",
            Self::RestoreTuning => "restore the previous kernel settings",
            Self::Mount => "mount the cluster",
            Self::Unmount => "unmount the cluster",
            Self::WriteCheck => "write a file through the mount",
            Self::ReadCheck => "read the file through the mount",
            Self::RemoveCheck => "remove the file",
            Self::Remove { .. } => "remove all files and services of Skep",
        };
        formatter.write_str(text)
    }
}
