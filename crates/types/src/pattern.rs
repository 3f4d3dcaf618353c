//! Resolved stripe patterns: the groups that store each byte range of a file, and the names of the
//! chunk files.
//!
//! A client's request for a pattern, and the default pattern of a directory, are
//! [`crate::PatternRequest`]s. The mapping from file ranges to pieces of chunk files is in
//! `skep-cluster`, module `striping`.

use crate::codec::record;
use crate::error::{Error, ErrorCode, Result};
use crate::{GroupId, InodeId, byte_enum};

byte_enum! {
    /// How a component protects its data.
    pub enum Redundancy {
        /// Each byte is stored on one group. The members of the group store the copies, if any.
        Stripe = 1,
        /// The metadata target stores the bytes with the inode, so the component has no groups and
        /// no chunk files. Only the first component of a pattern can be inline. If the next
        /// component also starts at byte 0, the inline bytes were moved to storage, and the inline
        /// component has no bytes any more.
        Inline = 2,
    }
}

byte_enum! {
    /// The policy that chooses the groups of a component. `skep-cluster`, module `placement`,
    /// implements the policies.
    pub enum Chooser {
        /// No policy is set. This value occurs only in an encoded `PatternRequest` and in an inline
        /// component.
        Cluster = 0,
        /// The policy takes the same number of groups from each server, with a difference of at
        /// most one. The policy chooses groups with more free space more often than groups with
        /// less free space.
        Balanced = 1,
        /// Divides the ring of all groups into equal sections and takes a random group from each
        /// section.
        Randomized = 2,
        /// The groups that follow the last chosen group in the order of their ids.
        RoundRobin = 3,
        /// The same groups as for `RoundRobin`, in random order.
        RandomRobin = 4,
        /// One random group from each of several servers.
        RandomInterNode = 5,
        /// Several groups of one random server.
        RandomIntraNode = 6,
        /// No policy, because the request lists the groups.
        Listed = 7,
    }
}

impl Chooser {
    /// All policies, each with its name in commands and output.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Balanced, "balanced"),
        (Self::Randomized, "randomized"),
        (Self::RoundRobin, "roundrobin"),
        (Self::RandomRobin, "randomrobin"),
        (Self::RandomInterNode, "randominternode"),
        (Self::RandomIntraNode, "randomintranode"),
    ];

    /// Returns the name of the policy in commands and output.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Listed => "listed",
            _ => {
                let named = Self::ALL.iter().find(|(chooser, _)| *chooser == self);
                named.map_or("", |(_, name)| *name)
            }
        }
    }

    /// Returns the policy called `name`. `None` if no policy has that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, it)| *it == name).map(|(chooser, _)| *chooser)
    }
}

byte_enum! {
    /// The most specific of the levels (cluster, directory, request) that set a field of a pattern.
    pub enum PatternOrigin {
        /// The settings of the cluster.
        Cluster = 0,
        /// The default pattern of the directory in which the file was created.
        Directory = 1,
        /// A request for this file.
        Asked = 2,
    }
}

record! {
    /// One byte range of a file and the groups that store it.
    pub struct Component {
        /// First byte of the range in the file. The range ends where the next component starts.
        pub start: u64,
        /// Chunk size: number of consecutive bytes stored on one group before the next group
        /// follows. A power of two from 64 KiB to 1 GiB; zero for an inline component.
        pub chunk_bytes: u64,
        /// Number of groups that the request asked for. `groups` is shorter if the cluster had too
        /// few suitable groups.
        pub wanted: u16,
        /// The protection of the bytes.
        pub redundancy: Redundancy,
        /// The policy that chose `groups`.
        pub chooser: Chooser,
        /// The groups in stripe order. The metadata target chooses them when it creates the file.
        /// Empty for an inline component.
        pub groups: Vec<GroupId>,
    }
}

record! {
    /// The stripe pattern of a file. A directory's default pattern has the same encoding: see
    /// `PatternRequest`.
    pub struct StripePattern {
        /// Generation of the file's pattern. The metadata target raises it with each new pattern.
        /// Targets and clients therefore do not mistake chunk files of an old pattern for chunk
        /// files of the new pattern.
        pub generation: u32,
        /// The most specific of the levels (cluster, directory, request) that set a field of the
        /// pattern.
        pub origin: PatternOrigin,
        /// The components in ascending order of `start`. The first component starts at byte 0.
        pub components: Vec<Component>,
    }
}

/// Minimum chunk size.
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Maximum chunk size.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// Maximum number of groups of one component.
pub const MAX_STRIPE_WIDTH: usize = 256;
/// Maximum number of components of one pattern.
pub const MAX_COMPONENTS: usize = 16;
/// The size of an inline component must be a multiple of this number of bytes.
pub const INLINE_UNIT: u64 = 4 << 10;
/// Maximum number of inline bytes of one file.
pub const MAX_INLINE_BYTES: u64 = 64 << 10;

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

pub(crate) fn check_component_count(count: usize) -> Result<()> {
    if count == 0 || count > MAX_COMPONENTS {
        return Err(invalid(format!(
            "invalid number of components {count}: expected 1 to {MAX_COMPONENTS}"
        )));
    }
    Ok(())
}

pub(crate) fn check_chunk_size(bytes: u64) -> Result<()> {
    if !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes) {
        return Err(invalid(format!(
            "invalid chunk size of {bytes} bytes: expected a power of two from 64 KiB to 1 GiB"
        )));
    }
    if !bytes.is_power_of_two() {
        let above = bytes.next_power_of_two();
        let below = above / 2;
        // A user may have written `1MB`, which means a million bytes, so the error names the
        // nearest powers of two.
        return Err(invalid(format!(
            "the chunk size of {bytes} bytes is not a power of two; the nearest ones are {} and {}",
            binary(below),
            binary(above)
        )));
    }
    Ok(())
}

/// Formats a power of two from 64 KiB to 1 GiB in the largest unit that divides it.
fn binary(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 => format!("{}GiB", bytes >> 30),
        _ if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        _ => format!("{}KiB", bytes >> 10),
    }
}

/// Checks `next_start`, which is the end of an inline component and the first byte of the next
/// component. A next component must exist.
pub(crate) fn check_inline_end(next_start: Option<u64>) -> Result<()> {
    match next_start {
        None => Err(invalid(
            "missing component after the inline bytes: add a component that starts at the end of \
             the inline bytes, at most at 64 KiB, as in inline/from=4KiB",
        )),
        Some(end) if !end.is_multiple_of(INLINE_UNIT) || end > MAX_INLINE_BYTES => Err(invalid(
            format!("invalid end {end} of inline bytes: expected a multiple of 4 KiB up to 64 KiB"),
        )),
        Some(_) => Ok(()),
    }
}

pub(crate) fn check_start(index: usize, start: u64, unit: u64) -> Result<()> {
    if !start.is_multiple_of(unit) {
        return Err(invalid(format!(
            "invalid start {start} of component {index}: expected a multiple of {unit}"
        )));
    }
    Ok(())
}

impl Component {
    /// Returns an inline component. An inline component starts at byte 0, so it must be the first
    /// component of its pattern.
    pub fn inline() -> Self {
        Self {
            start: 0,
            chunk_bytes: 0,
            wanted: 0,
            redundancy: Redundancy::Inline,
            chooser: Chooser::Cluster,
            groups: Vec::new(),
        }
    }

    /// Whether the bytes of the component are stored with the inode.
    pub fn is_inline(&self) -> bool {
        self.redundancy == Redundancy::Inline
    }
}

impl StripePattern {
    /// Returns the number of chunk files.
    pub fn chunk_file_count(&self) -> usize {
        self.components.iter().map(|component| component.groups.len()).sum()
    }

    /// Returns the index of a chunk file in a `ChunkFileSet`. `None` means that the pattern has no
    /// such chunk file.
    pub fn chunk_file_number(&self, component: u16, index: u16) -> Option<usize> {
        let (component, index) = (usize::from(component), usize::from(index));
        let its = self.components.get(component)?.groups.len();
        let before = self.components[..component].iter().map(|it| it.groups.len()).sum::<usize>();
        (index < its).then_some(before + index)
    }

    /// Returns component and stripe index of the chunk file with this number, the reverse of
    /// [`Self::chunk_file_number`].
    pub fn chunk_file_at(&self, number: usize) -> Option<(u16, u16)> {
        let mut index = number;
        for (component, its) in (0..).zip(&self.components) {
            match index.checked_sub(its.groups.len()) {
                None => return Some((component, index as u16)),
                Some(rest) => index = rest,
            }
        }
        None
    }

    /// Checks the rules for the pattern of a file. Receivers must call this function for each
    /// pattern from another process or from disk.
    ///
    /// # Errors
    /// Returns `InvalidArgument`, which names the first violated rule.
    pub fn check(&self) -> Result<()> {
        check_component_count(self.components.len())?;
        if self.components[0].start != 0 {
            return Err(invalid(
                "invalid stripe pattern: the first component must start at byte 0",
            ));
        }
        for (index, component) in self.components.iter().enumerate() {
            let previous = index.checked_sub(1).map(|at| &self.components[at]);
            // If the inline bytes were moved to storage, both the inline component and the next
            // component start at byte 0.
            let is_behind = previous.is_none_or(|it| {
                component.start > it.start || it.is_inline() && component.start == 0
            });
            if !is_behind {
                return Err(invalid(
                    "invalid stripe pattern: components must be in the order of their start",
                ));
            }
            if component.is_inline() {
                self.check_inline(index)?;
                continue;
            }
            check_chunk_size(component.chunk_bytes)?;
            if component.wanted == 0
                || usize::from(component.wanted) > MAX_STRIPE_WIDTH
                || component.groups.len() > MAX_STRIPE_WIDTH
            {
                return Err(invalid(format!(
                    "invalid stripe pattern: the number of targets must be 1 to {MAX_STRIPE_WIDTH}"
                )));
            }
            // A component after the inline component starts at the end of the inline bytes, which
            // may lie inside a chunk.
            if index == 0 || !self.components[index - 1].is_inline() {
                check_start(index, component.start, component.chunk_bytes)?;
            }
        }
        Ok(())
    }

    /// Checks component `index`, which is inline.
    fn check_inline(&self, index: usize) -> Result<()> {
        let component = &self.components[index];
        if *component != (Component { start: component.start, ..Component::inline() }) {
            return Err(invalid(
                "invalid inline component: metadata stores inline bytes, so the component takes no \
                 count, chunk size, chooser or targets; remove these fields",
            ));
        }
        if index > 0 {
            return Err(invalid(format!(
                "invalid stripe pattern: component {index} is inline, but only the first can be \
                 inline"
            )));
        }
        check_inline_end(self.components.get(1).map(|next| next.start))
    }

    /// Returns the number of inline bytes of the file. Zero if the pattern has no inline component,
    /// or if the inline bytes were moved to storage.
    pub fn inline_bytes(&self) -> u64 {
        match &self.components[..] {
            [first, next, ..] if first.is_inline() => next.start,
            _ => 0,
        }
    }

    /// Whether the file had inline bytes that were moved to storage.
    pub fn has_moved_inline(&self) -> bool {
        matches!(&self.components[..], [first, next, ..] if first.is_inline() && next.start == 0)
    }
}

record! {
    /// The name of a chunk file. A chunk file contains those bytes of one component of a file that
    /// one group stores.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ChunkFileKey {
        /// The file.
        pub inode: InodeId,
        /// Generation of the file's pattern.
        pub generation: u32,
        /// Index of the component in the pattern.
        pub component: u16,
        /// Index of the group in the component.
        pub index: u16,
    }
}

impl std::fmt::Display for ChunkFileKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}.{}", self.inode, self.generation, self.component, self.index)
    }
}

impl std::str::FromStr for ChunkFileKey {
    type Err = ();

    fn from_str(s: &str) -> std::result::Result<Self, ()> {
        let mut parts = s.split('.');
        let mut next = || parts.next().ok_or(());
        let key = Self {
            inode: next()?.parse().map_err(|_| ())?,
            generation: next()?.parse().map_err(|_| ())?,
            component: next()?.parse().map_err(|_| ())?,
            index: next()?.parse().map_err(|_| ())?,
        };
        if parts.next().is_some() { Err(()) } else { Ok(key) }
    }
}
