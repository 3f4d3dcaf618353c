//! Stripe patterns: on which groups the bytes of a file lie, and how chunk files are named.
//!
//! The arithmetic from file ranges to chunk pieces is in `skep-cluster`, module `striping`.

use crate::codec::record;
use crate::error::{Error, ErrorCode, Result};
use crate::{GroupId, InodeId, byte_enum};

byte_enum! {
    /// How a component protects its data.
    pub enum Redundancy {
        /// Each byte on one group; copies, if any, are the group's members.
        Stripe = 1,
        /// The bytes lie with the inode, in metadata: no groups, no chunks. The first component
        /// only.
        Inline = 2,
    }
}

byte_enum! {
    /// By which rule the groups of a component are chosen. `skep-cluster`, module `placement`, has
    /// the rules.
    pub enum Chooser {
        /// The one that the cluster's settings name. Only in what a directory hands down.
        Cluster = 0,
        /// The same number of each server, those with more space more often.
        Balanced = 1,
        /// Random ones of equal parts of the ring of all groups.
        Randomized = 2,
        /// The next in the order of their ids.
        RoundRobin = 3,
        /// The next in the order of their ids, in random order.
        RandomRobin = 4,
        /// A random one of each of several servers.
        RandomInterNode = 5,
        /// All of one random server.
        RandomIntraNode = 6,
        /// None: somebody has listed the groups.
        Listed = 7,
    }
}

impl Chooser {
    /// Those that choose, with their names for people.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Balanced, "balanced"),
        (Self::Randomized, "randomized"),
        (Self::RoundRobin, "roundrobin"),
        (Self::RandomRobin, "randomrobin"),
        (Self::RandomInterNode, "randominternode"),
        (Self::RandomIntraNode, "randomintranode"),
    ];

    /// Its name for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Listed => "listed",
            _ => Self::ALL.iter().find(|(it, _)| *it == self).map_or("", |(_, word)| *word),
        }
    }

    /// The one of a name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, it)| *it == word).map(|(it, _)| *it)
    }
}

byte_enum! {
    /// Whose word a pattern follows.
    pub enum PatternOrigin {
        /// The cluster's settings.
        Cluster = 0,
        /// The directory in which the file was made.
        Directory = 1,
        /// Somebody has asked for it for this file.
        Asked = 2,
    }
}

record! {
    /// One byte range of a file and where it lies.
    pub struct Component {
        /// First byte in the file. The component ends where the next one starts.
        pub start: u64,
        /// Bytes that go to one group before the next: a power of two from 64 KiB to 1 GiB. Zero in
        /// metadata.
        pub chunk_bytes: u64,
        /// How many groups were wanted; `groups` may hold fewer when the pool had fewer.
        pub wanted: u16,
        /// Kind of redundancy.
        pub redundancy: Redundancy,
        /// How its groups are chosen, or were.
        pub chooser: Chooser,
        /// The groups in the order of the stripe; empty until the file first reaches the component.
        pub groups: Vec<GroupId>,
    }
}

record! {
    /// The stripe pattern of a file: its components in order, the first at byte 0.
    pub struct StripePattern {
        /// Which layout of the file this is; restriping writes a new generation beside the old.
        pub generation: u32,
        /// Whose word it follows.
        pub origin: PatternOrigin,
        /// Components, by rising `start`.
        pub components: Vec<Component>,
    }
}

/// Smallest chunk.
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Largest chunk.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// Most groups in one component.
pub const MAX_STRIPE_WIDTH: usize = 256;
/// Most components in one pattern.
pub const MAX_COMPONENTS: usize = 16;
/// Where bytes in metadata may end: at multiples of this.
pub const INLINE_UNIT: u64 = 4 << 10;
/// Most bytes of a file in metadata: each write changes the record of all of them.
pub const MAX_INLINE_BYTES: u64 = 64 << 10;

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

    /// Checks that one in metadata has nothing of those on groups.
    fn check_inline(&self) -> Result<()> {
        if *self == (Self { start: self.start, ..Self::inline() }) {
            return Ok(());
        }
        let what =
            "inline bytes lie in metadata: they have no count, chunk size, chooser or targets";
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }
}

impl StripePattern {
    /// Checks what every user of a file's pattern relies on; call it on each pattern that comes
    /// from outside.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first rule broken.
    pub fn check(&self) -> Result<()> {
        self.check_rules(false)
    }

    /// Checks a pattern that somebody asks for, or that a directory hands down: sizes and counts
    /// may be zero, and the chooser [`Chooser::Cluster`], where others have the word.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first rule broken.
    pub fn check_asked(&self) -> Result<()> {
        self.check_rules(true)
    }

    /// How many bytes of the file lie in metadata; zero for most patterns.
    pub fn inline_bytes(&self) -> u64 {
        match &self.components[..] {
            [first, next, ..] if first.is_inline() => next.start,
            _ => 0,
        }
    }

    fn check_rules(&self, may_be_open: bool) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
        if self.components.is_empty() || self.components.len() > MAX_COMPONENTS {
            return wrong(format!("a stripe pattern has 1 to {MAX_COMPONENTS} components"));
        }
        if self.components[0].start != 0 {
            return wrong("the first component of a stripe pattern starts at byte 0".into());
        }
        for (index, component) in self.components.iter().enumerate() {
            if index > 0 && component.start <= self.components[index - 1].start {
                return wrong("components must be in the order of their start".into());
            }
            if component.is_inline() {
                component.check_inline()?;
                self.check_inline_place(index)?;
                continue;
            }
            let size = component.chunk_bytes;
            let is_open = may_be_open && size == 0;
            let is_size =
                size.is_power_of_two() && (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&size);
            if !is_size && !is_open {
                return wrong(format!(
                    "chunk size {size} is not a power of two from 64 KiB to 1 GiB"
                ));
            }
            if (component.wanted == 0 && !may_be_open)
                || usize::from(component.wanted) > MAX_STRIPE_WIDTH
                || component.groups.len() > MAX_STRIPE_WIDTH
            {
                return wrong(format!("a component lies on 1 to {MAX_STRIPE_WIDTH} groups"));
            }
            // Where bytes in metadata end was checked with these.
            let unit = size.max(MIN_CHUNK_BYTES);
            let is_behind_inline = index > 0 && self.components[index - 1].is_inline();
            if component.start % unit != 0 && !is_behind_inline {
                return wrong(format!(
                    "component {index} starts at {}, which is no multiple of {unit}",
                    component.start
                ));
            }
        }
        Ok(())
    }

    /// Checks that only the first component lies in metadata, and where it ends.
    fn check_inline_place(&self, index: usize) -> Result<()> {
        let what = match self.components.get(index + 1) {
            _ if index > 0 => format!("component {index} is inline; only the first can be"),
            None => "inline bytes end where another component starts, at most 64 KiB on: \
                     inline/from=4KiB"
                .into(),
            Some(next) if next.start % INLINE_UNIT != 0 || next.start > MAX_INLINE_BYTES => {
                format!(
                    "inline bytes end at {}, which is no multiple of 4 KiB up to 64 KiB",
                    next.start
                )
            }
            Some(_) => return Ok(()),
        };
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }
}

record! {
    /// The name of a chunk file: what one group stores for one file.
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
