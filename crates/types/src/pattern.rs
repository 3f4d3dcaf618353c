//! Resolved stripe patterns: on which groups the bytes of a file lie, and how chunk files are
//! named.
//!
//! A request, and the default pattern of a directory, is a [`crate::PatternRequest`]. The
//! arithmetic from file ranges to chunk pieces is in `skep-cluster`, module `striping`.

use crate::codec::record;
use crate::error::{Error, ErrorCode, Result};
use crate::{GroupId, InodeId, byte_enum};

byte_enum! {
    /// How a component protects its data.
    pub enum Redundancy {
        /// Each byte on one group; copies, if any, are the group's members.
        Stripe = 1,
        /// The bytes lie with the inode, in metadata: no groups, no chunks. Only the first
        /// component of a pattern can be inline.
        Inline = 2,
    }
}

byte_enum! {
    /// The policy by which the groups of a component are chosen. `skep-cluster`, module
    /// `placement`, implements the policies.
    pub enum Chooser {
        /// Not set. Occurs only in the bytes of a `PatternRequest` and in an inline component.
        Cluster = 0,
        /// As many groups on each server, groups with more free space more often.
        Balanced = 1,
        /// A random group from each of several equal sections of the ring of all groups.
        Randomized = 2,
        /// The next groups in the order of their ids.
        RoundRobin = 3,
        /// The next groups in the order of their ids, shuffled.
        RandomRobin = 4,
        /// One random group on each of several servers.
        RandomInterNode = 5,
        /// All groups on one random server.
        RandomIntraNode = 6,
        /// No policy: the request listed the groups.
        Listed = 7,
    }
}

impl Chooser {
    /// The policies, with their names in commands and output.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Balanced, "balanced"),
        (Self::Randomized, "randomized"),
        (Self::RoundRobin, "roundrobin"),
        (Self::RandomRobin, "randomrobin"),
        (Self::RandomInterNode, "randominternode"),
        (Self::RandomIntraNode, "randomintranode"),
    ];

    /// Returns its name in commands and output.
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

    /// Returns the policy with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, it)| *it == name).map(|(chooser, _)| *chooser)
    }
}

byte_enum! {
    /// The most specific level that set a part of a pattern.
    pub enum PatternOrigin {
        /// The cluster's settings.
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
        /// First byte in the file. The component ends where the next one starts.
        pub start: u64,
        /// Bytes that go to one group before the next: a power of two from 64 KiB to 1 GiB. Zero
        /// for an inline component.
        pub chunk_bytes: u64,
        /// Number of groups that the request asked for. `groups` is shorter if the cluster had
        /// fewer.
        pub wanted: u16,
        /// Kind of redundancy.
        pub redundancy: Redundancy,
        /// The policy that chose `groups`.
        pub chooser: Chooser,
        /// The groups in the order of the stripe. Metadata chooses them when it creates the file.
        /// Empty for an inline component.
        pub groups: Vec<GroupId>,
    }
}

record! {
    /// The stripe pattern of a file: its components in order, the first at byte 0. A directory's
    /// default pattern is stored and sent in the same bytes: see `PatternRequest`.
    pub struct StripePattern {
        /// Layout generation of the file. Metadata raises it when it sets another pattern, so that
        /// chunk files of the old layout are not mistaken for chunk files of the new one.
        pub generation: u32,
        /// The most specific level that set a part of the pattern.
        pub origin: PatternOrigin,
        /// Components, by rising `start`.
        pub components: Vec<Component>,
    }
}

/// Smallest chunk.
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Largest chunk.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// Largest number of groups in one component.
pub const MAX_STRIPE_WIDTH: usize = 256;
/// Largest number of components in one pattern.
pub const MAX_COMPONENTS: usize = 16;
/// The bytes in metadata end at a multiple of this.
pub const INLINE_UNIT: u64 = 4 << 10;
/// Largest number of bytes of one file in metadata. Each write rewrites the record of all of them.
pub const MAX_INLINE_BYTES: u64 = 64 << 10;

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

pub(crate) fn check_component_count(count: usize) -> Result<()> {
    if count == 0 || count > MAX_COMPONENTS {
        return Err(invalid(format!("a stripe pattern has 1 to {MAX_COMPONENTS} components")));
    }
    Ok(())
}

pub(crate) fn check_chunk_size(bytes: u64) -> Result<()> {
    if !bytes.is_power_of_two() || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes) {
        return Err(invalid(format!(
            "chunk size {bytes} is not a power of two from 64 KiB to 1 GiB"
        )));
    }
    Ok(())
}

/// Checks where the bytes in metadata end: at the start of the next component, if there is one.
pub(crate) fn check_inline_end(next_start: Option<u64>) -> Result<()> {
    match next_start {
        None => Err(invalid(
            "inline bytes end where another component starts, at most 64 KiB on: inline/from=4KiB",
        )),
        Some(end) if !end.is_multiple_of(INLINE_UNIT) || end > MAX_INLINE_BYTES => Err(invalid(
            format!("inline bytes end at {end}, which is no multiple of 4 KiB up to 64 KiB"),
        )),
        Some(_) => Ok(()),
    }
}

pub(crate) fn check_start(index: usize, start: u64, unit: u64) -> Result<()> {
    if !start.is_multiple_of(unit) {
        return Err(invalid(format!(
            "component {index} starts at {start}, which is no multiple of {unit}"
        )));
    }
    Ok(())
}

impl Component {
    /// The first component of a pattern whose first bytes lie in metadata.
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

    /// Whether its bytes lie in metadata.
    pub fn is_inline(&self) -> bool {
        self.redundancy == Redundancy::Inline
    }
}

impl StripePattern {
    /// Checks the rules of a file's pattern. A receiver calls it on each pattern that it gets from
    /// another process or from disk.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first rule broken.
    pub fn check(&self) -> Result<()> {
        check_component_count(self.components.len())?;
        if self.components[0].start != 0 {
            return Err(invalid("the first component of a stripe pattern starts at byte 0"));
        }
        for (index, component) in self.components.iter().enumerate() {
            if index > 0 && component.start <= self.components[index - 1].start {
                return Err(invalid("components must be in the order of their start"));
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
                return Err(invalid(format!("a component lies on 1 to {MAX_STRIPE_WIDTH} groups")));
            }
            // A component behind the bytes in metadata starts where these end.
            if index == 0 || !self.components[index - 1].is_inline() {
                check_start(index, component.start, component.chunk_bytes)?;
            }
        }
        Ok(())
    }

    /// Checks an inline component, which is the one number `index`.
    fn check_inline(&self, index: usize) -> Result<()> {
        let component = &self.components[index];
        if *component != (Component { start: component.start, ..Component::inline() }) {
            return Err(invalid(
                "inline bytes lie in metadata: they have no count, chunk size, chooser or targets",
            ));
        }
        if index > 0 {
            return Err(invalid(format!("component {index} is inline; only the first can be")));
        }
        check_inline_end(self.components.get(1).map(|next| next.start))
    }

    /// Returns how many bytes of the file lie in metadata; zero for most patterns.
    pub fn inline_bytes(&self) -> u64 {
        match &self.components[..] {
            [first, next, ..] if first.is_inline() => next.start,
            _ => 0,
        }
    }
}

record! {
    /// The name of a chunk file, in which one group stores its part of a file.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ChunkFileKey {
        /// The file.
        pub inode: InodeId,
        /// Layout generation of its pattern.
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
