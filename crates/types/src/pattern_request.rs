//! Requests for a stripe pattern, and default patterns of directories. Any field of a request may
//! be unset. `skep-cluster`, module `patterns`, resolves a request to the [`StripePattern`] of a
//! file.
//!
//! # Encoding
//!
//! A request has the same encoding as a [`StripePattern`], on the wire and on disk. Only this file
//! translates the values that represent unset fields:
//!
//! | field | encoded in | unset |
//! |---|---|---|
//! | `inline_bytes` | an inline first component; `start` of the second | no inline component |
//! | `chunk_bytes` | [`Component::chunk_bytes`] | 0 |
//! | `width` | [`Component::wanted`] | 0 |
//! | `placement: Policy` | [`Component::chooser`] | [`Chooser::Cluster`] |
//! | `placement: Groups` | [`Component::groups`], their count in `wanted`, [`Chooser::Listed`] | |
//!
//! The `generation` is 0. Each request has exactly one encoding, and decoders refuse every other
//! encoding.

use crate::GroupId;
use crate::codec::{Codec, Described, FieldDoc, Reader, Writer};
use crate::error::Result;
use crate::pattern::{
    Chooser, Component, MAX_STRIPE_WIDTH, MIN_CHUNK_BYTES, PatternOrigin, Redundancy,
    StripePattern, check_chunk_size, check_component_count, check_inline_end, check_start, invalid,
};

/// A stripe pattern as a client requests it, or as a directory stores it as the default for its new
/// files. Fields may be unset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternRequest {
    /// The most specific of the levels (cluster, directory, request) that set a field of the
    /// request.
    pub origin: PatternOrigin,
    /// Number of inline bytes at the start of the file. `None` means unset.
    pub inline_bytes: Option<u64>,
    /// The components after the inline component, in ascending order of `start`. The `start` of the
    /// first of these components is always 0, even if the file has inline bytes.
    pub components: Vec<ComponentRequest>,
}

/// The request for one byte range of the file. Fields that are `None` are unset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ComponentRequest {
    /// First byte of the range in the file. The range ends where the next component starts.
    pub start: u64,
    /// Chunk size: number of consecutive bytes stored on one group before the next group follows.
    pub chunk_bytes: Option<u64>,
    /// Number of groups. Must be unset with [`Placement::Groups`], because the length of the list
    /// is then the number of groups.
    pub width: Option<u16>,
    /// The way in which metadata determines the groups of the component.
    pub placement: Option<Placement>,
}

/// The way in which metadata determines the groups of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// The metadata target chooses the groups by this policy when it creates the file. Neither
    /// [`Chooser::Cluster`] nor [`Chooser::Listed`] is allowed here.
    Policy(Chooser),
    /// Exactly these groups, in this order.
    Groups(Vec<GroupId>),
}

impl ComponentRequest {
    /// Returns the listed groups. Empty if the request lists no groups.
    pub fn groups(&self) -> &[GroupId] {
        match &self.placement {
            Some(Placement::Groups(groups)) => groups,
            _ => &[],
        }
    }

    /// Whether the request lists groups.
    pub fn is_listed(&self) -> bool {
        matches!(self.placement, Some(Placement::Groups(_)))
    }

    /// Whether the number of groups is open: the request has neither a width nor a list of groups.
    pub fn has_open_width(&self) -> bool {
        self.width.is_none() && !self.is_listed()
    }

    /// Whether both width and placement are unset.
    pub fn has_open_targets(&self) -> bool {
        self.width.is_none() && self.placement.is_none()
    }

    fn from_record(record: &Component) -> Result<Self> {
        let placement = match record.chooser {
            Chooser::Cluster => None,
            Chooser::Listed => Some(Placement::Groups(record.groups.clone())),
            policy => Some(Placement::Policy(policy)),
        };
        let is_listed = record.chooser == Chooser::Listed;
        let listed = if is_listed { usize::from(record.wanted) } else { 0 };
        if record.groups.len() != listed {
            return Err(invalid(EITHER_LISTED_OR_CHOSEN));
        }
        Ok(Self {
            start: record.start,
            chunk_bytes: Some(record.chunk_bytes).filter(|bytes| *bytes != 0),
            width: Some(record.wanted).filter(|wanted| *wanted != 0 && !is_listed),
            placement,
        })
    }

    fn to_record(&self) -> Component {
        let (wanted, chooser) = match &self.placement {
            None => (self.width.unwrap_or(0), Chooser::Cluster),
            Some(Placement::Policy(policy)) => (self.width.unwrap_or(0), *policy),
            // `check` limits the length of the list, so the conversion does not fail for a valid
            // request.
            Some(Placement::Groups(groups)) => {
                (u16::try_from(groups.len()).unwrap_or(u16::MAX), Chooser::Listed)
            }
        };
        Component {
            start: self.start,
            chunk_bytes: self.chunk_bytes.unwrap_or(0),
            wanted,
            redundancy: Redundancy::Stripe,
            chooser,
            groups: self.groups().to_vec(),
        }
    }
}

const EITHER_LISTED_OR_CHOSEN: &str =
    "invalid groups of a component: list the groups, or set a count or policy, but not both";

impl PatternRequest {
    /// Returns the request in which every field is unset.
    pub fn unset() -> Self {
        Self {
            origin: PatternOrigin::Cluster,
            inline_bytes: None,
            components: vec![ComponentRequest::default()],
        }
    }

    /// Builds a request from components that were parsed from text or decoded from a record. If the
    /// file has inline bytes, the first of these components is inline. Does not check the other
    /// rules of a request: see [`Self::check`].
    ///
    /// # Errors
    /// - `InvalidArgument` if an inline component is not the first component, is the last
    ///   component, does not start at byte 0, or has any other field set.
    /// - `InvalidArgument` if the inline bytes end at an offset that is not a multiple of 4 KiB or
    ///   exceeds 64 KiB.
    pub fn from_listed(
        origin: PatternOrigin,
        listed: Vec<(Redundancy, ComponentRequest)>,
    ) -> Result<Self> {
        let is_inline = |it: &(Redundancy, ComponentRequest)| it.0 == Redundancy::Inline;
        if let Some(index) = listed.iter().skip(1).position(is_inline) {
            return Err(invalid(format!(
                "invalid stripe pattern: component {} is inline, but only the first can be inline",
                index + 1
            )));
        }
        let starts_inline = listed.first().is_some_and(is_inline);
        let mut components: Vec<_> = listed.into_iter().map(|(_, component)| component).collect();
        if !starts_inline {
            return Ok(Self { origin, inline_bytes: None, components });
        }
        let inline = components.remove(0);
        if inline.start != 0 {
            return Err(invalid(
                "invalid stripe pattern: the first component must start at byte 0",
            ));
        }
        if inline != ComponentRequest::default() {
            return Err(invalid(
                "invalid inline component: metadata stores inline bytes, so the component takes no \
                 count, chunk size, chooser or targets; remove these fields",
            ));
        }
        check_inline_end(components.first().map(|next| next.start))?;
        let inline_bytes = components.first_mut().map(|next| std::mem::take(&mut next.start));
        Ok(Self { origin, inline_bytes, components })
    }

    /// Decodes a request or a directory's default pattern from its record.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the record does not encode a request.
    pub fn from_record(record: &StripePattern) -> Result<Self> {
        let listed = record
            .components
            .iter()
            .map(|component| Ok((component.redundancy, ComponentRequest::from_record(component)?)));
        Self::from_listed(record.origin, listed.collect::<Result<_>>()?)
    }

    /// Returns the record in which the request is sent and stored.
    pub fn to_record(&self) -> StripePattern {
        let mut components: Vec<_> =
            self.components.iter().map(ComponentRequest::to_record).collect();
        if let Some(bytes) = self.inline_bytes {
            if let Some(first) = components.first_mut() {
                first.start = bytes;
            }
            components.insert(0, Component::inline());
        }
        StripePattern { generation: 0, origin: self.origin, components }
    }

    /// Returns a request for the same components as in `pattern`. `placement` returns the placement
    /// for each component.
    fn like(pattern: &StripePattern, placement: impl Fn(&Component) -> Placement) -> Self {
        let mut components: Vec<_> = pattern
            .components
            .iter()
            .filter(|component| !component.is_inline())
            .map(|component| {
                let placement = placement(component);
                let is_listed = matches!(placement, Placement::Groups(_));
                ComponentRequest {
                    start: component.start,
                    chunk_bytes: Some(component.chunk_bytes),
                    width: Some(component.wanted).filter(|_| !is_listed),
                    placement: Some(placement),
                }
            })
            .collect();
        let inline_bytes = Some(pattern.inline_bytes()).filter(|bytes| *bytes != 0);
        if let Some(first) = components.first_mut() {
            first.start = 0;
        }
        Self { origin: pattern.origin, inline_bytes, components }
    }

    /// Returns a request for the same components as in `pattern`. For a component with a policy,
    /// the request asks for new groups of this policy; listed groups stay the same.
    pub fn with_policies_of(pattern: &StripePattern) -> Self {
        Self::like(pattern, |component| match component.chooser {
            Chooser::Listed => Placement::Groups(component.groups.clone()),
            policy => Placement::Policy(policy),
        })
    }

    /// Returns a request for the same components as in `pattern`, with the same groups.
    pub fn with_groups_of(pattern: &StripePattern) -> Self {
        Self::like(pattern, |component| Placement::Groups(component.groups.clone()))
    }

    /// Checks the fields that are set. `skep-cluster`, module `patterns`, checks the request
    /// against the cluster.
    ///
    /// # Errors
    /// Returns `InvalidArgument`, which names the first violated rule.
    pub fn check(&self) -> Result<()> {
        let inline_components = usize::from(self.inline_bytes.is_some());
        check_component_count(self.components.len() + inline_components)?;
        let first = self.components.first();
        if first.is_some_and(|first| first.start != 0) {
            return Err(invalid(
                "invalid stripe pattern: the first component must start at byte 0",
            ));
        }
        if let Some(bytes) = self.inline_bytes {
            check_inline_end(first.map(|_| bytes))?;
        }
        // With inline bytes, the first of these components starts at the end of the inline bytes.
        let mut last_start = None;
        for (index, component) in self.components.iter().enumerate() {
            let start = match self.inline_bytes {
                Some(bytes) if index == 0 => bytes,
                _ => component.start,
            };
            let is_behind = last_start.map_or(inline_components == 0 || start > 0, |it| start > it);
            if !is_behind {
                return Err(invalid(
                    "invalid stripe pattern: components must be in the order of their start",
                ));
            }
            last_start = Some(start);
            if let Some(bytes) = component.chunk_bytes {
                check_chunk_size(bytes)?;
            }
            if component.width.is_some_and(|width| usize::from(width) > MAX_STRIPE_WIDTH)
                || component.groups().len() > MAX_STRIPE_WIDTH
                || component.width == Some(0)
            {
                return Err(invalid(format!(
                    "invalid stripe pattern: the number of targets must be 1 to {MAX_STRIPE_WIDTH}"
                )));
            }
            if component.is_listed() && (component.groups().is_empty() || component.width.is_some())
            {
                return Err(invalid(EITHER_LISTED_OR_CHOSEN));
            }
            if index > 0 {
                // If the chunk size is unset, `resolve` chooses a chunk size that divides `start`
                // after this check.
                let unit = component.chunk_bytes.unwrap_or(MIN_CHUNK_BYTES);
                check_start(index + inline_components, start, unit)?;
            }
        }
        Ok(())
    }
}

impl Codec for PatternRequest {
    const LAYOUT: &'static str = "PatternRequest";

    fn encode(&self, w: &mut Writer) {
        self.to_record().encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let record = StripePattern::decode(r)?;
        let request = Self::from_record(&record).map_err(|error| r.corrupt(error.context()))?;
        // Each request has one encoding, so that a reserved field cannot carry data.
        if request.to_record() == record {
            Ok(request)
        } else {
            Err(r.corrupt(
                "a pattern request has a generation other than 0, or a value in a field that must \
                 be unset",
            ))
        }
    }
}

impl Described for PatternRequest {
    const NAME: &'static str = "PatternRequest";
    const DOC: &'static str = "\
 A request for a stripe pattern, or the default pattern of a directory. It has the bytes of a\n \
 `StripePattern`, in which a zero `chunk_bytes`, a zero `wanted` and the chooser `Cluster` mean\n \
 that the field is unset. Groups are listed only with the chooser `Listed`, with their count in\n \
 `wanted`.\n";
    const FIELDS: &'static [FieldDoc] = &[
        FieldDoc {
            name: "generation",
            kind: "u32",
            layout: <u32 as Codec>::LAYOUT,
            doc: " Zero.\n",
        },
        FieldDoc {
            name: "origin",
            kind: "PatternOrigin",
            layout: <PatternOrigin as Codec>::LAYOUT,
            doc: " The most specific of the levels (cluster, directory, request) that set a field \
                  of the pattern. Receivers ignore this value.\n",
        },
        FieldDoc {
            name: "components",
            kind: "Vec<Component>",
            layout: <Vec<Component> as Codec>::LAYOUT,
            doc: " The components in ascending order of `start`. The first may hold inline \
                  bytes.\n",
        },
    ];
}
