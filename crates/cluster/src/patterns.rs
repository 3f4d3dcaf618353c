//! Resolves a pattern request to the stripe pattern of a file, in four steps:
//!
//! 1. [`check_request`] checks whether the user is allowed to make the request.
//! 2. [`merge`] fills unset fields from the default pattern of the directory.
//! 3. [`resolve`] fills the remaining unset fields from the cluster's settings.
//! 4. [`place`] chooses the groups.
//!
//! Owns the precedence: request before directory before cluster. Does not own the policies that
//! choose groups ([`crate::placement`]) or the text form of requests ([`crate::pattern_text`]).

use crate::placement::{Candidates, Cursor};
use crate::state::ClosedGroup;
use skep_types::map::{Policy, UserPatterns};
use skep_types::pattern::{Chooser, MIN_CHUNK_BYTES, PatternOrigin};
use skep_types::{
    ClusterMap, Component, ComponentRequest, Error, ErrorCode, PatternRequest, Placement,
    Redundancy, Result, StripePattern, TargetKind,
};
use std::collections::HashSet;

/// Checks that the user with id `uid` is allowed to request a pattern.
///
/// # Errors
/// - `InvalidArgument` if the request is inconsistent.
/// - `NotFound` if the request lists a group that is not a storage group of the cluster.
/// - `PermissionDenied` if only root may make the request.
pub fn check_request(map: &ClusterMap, request: &PatternRequest, uid: u32) -> Result<()> {
    request.check()?;
    for component in &request.components {
        check_groups(map, component)?;
    }
    if uid == 0 { Ok(()) } else { check_user(&map.policy, request) }
}

fn check_groups(map: &ClusterMap, component: &ComponentRequest) -> Result<()> {
    let mut seen = HashSet::new();
    for id in component.groups() {
        if map.group(*id).is_none_or(|group| group.kind != TargetKind::Storage) {
            let what = format!("there is no storage group {id}; see `skep target list`");
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        if !seen.insert(*id) {
            let what = format!("cannot use the pattern: group {id} is listed twice");
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
    }
    Ok(())
}

fn check_user(policy: &Policy, request: &PatternRequest) -> Result<()> {
    let denied = |setting: &str, what: String| {
        let what = format!("{what}; an administrator can change the setting {setting}");
        Err(Error::new(ErrorCode::PermissionDenied, what))
    };
    if policy.user_patterns == UserPatterns::No {
        return denied("user-patterns", "only root may set stripe patterns in this cluster".into());
    }
    for component in &request.components {
        if policy.user_patterns != UserPatterns::Targets && component.is_listed() {
            return denied(
                "user-patterns",
                "only root may list targets in a pattern in this cluster".into(),
            );
        }
        let listed = component.groups().len();
        let width = component.width.map_or(listed, usize::from);
        if width > usize::from(policy.user_max_width) {
            let most = policy.user_max_width;
            let what =
                format!("only root may stripe files over more than {most} targets in this cluster");
            return denied("user-stripe-width-max", what);
        }
        let sizes = policy.user_min_chunk_bytes..=policy.user_max_chunk_bytes;
        if component.chunk_bytes.is_some_and(|bytes| !sizes.contains(&bytes)) {
            let what = format!(
                "only root may set chunks of less than {} or more than {} bytes in this cluster",
                sizes.start(),
                sizes.end()
            );
            return denied("user-chunk-size-max", what);
        }
    }
    Ok(())
}

/// Merges a request with the default pattern of the directory. Fields that are unset in both stay
/// unset. [`resolve`] fills them later from the cluster's settings.
///
/// A request with one component that sets neither width nor placement keeps all components of the
/// directory. Such a request also keeps the directory's number of inline bytes, unless the request
/// sets this number. Any other request replaces the components of the directory. The directory's
/// first component then fills the fields that are unset in the request.
pub fn merge(
    request: Option<&PatternRequest>,
    directory: Option<&PatternRequest>,
) -> PatternRequest {
    let default = match directory {
        Some(directory) => PatternRequest { origin: PatternOrigin::Directory, ..directory.clone() },
        None => PatternRequest::unset(),
    };
    let Some(request) = request else { return default };
    let (inline_bytes, components) = match &request.components[..] {
        [only] if only.has_open_targets() => {
            let inline_bytes = request.inline_bytes.or(default.inline_bytes);
            let components = match default.components.len() {
                1 => filled(&request.components, &default.components[0]),
                _ => with_chunks_of(&default.components, only.chunk_bytes),
            };
            (inline_bytes, components)
        }
        components => {
            let first = default.components.first().cloned().unwrap_or_default();
            (request.inline_bytes, filled(components, &first))
        }
    };
    PatternRequest {
        origin: PatternOrigin::Asked,
        inline_bytes,
        components: behind_inline(components, inline_bytes, |component| &mut component.start),
    }
}

/// Fills the unset fields of a request's components from the directory's first component.
fn filled(components: &[ComponentRequest], first: &ComponentRequest) -> Vec<ComponentRequest> {
    let fill = |component: &ComponentRequest| {
        let mut filled = component.clone();
        filled.chunk_bytes = filled.chunk_bytes.or(first.chunk_bytes);
        // A list of groups determines both the number of groups (the width) and their placement. So
        // the directory fills neither field in two cases: if the request has a list, or if the
        // directory has a list and the request sets the width or the placement.
        if component.has_open_targets() || !(component.is_listed() || first.is_listed()) {
            filled.width = filled.width.or(first.width);
            filled.placement = filled.placement.or_else(|| first.placement.clone());
        }
        filled
    };
    components.iter().map(fill).collect()
}

/// Sets the chunk size of all components, if the request sets one. Then rounds the start of each
/// component up to a multiple of that size, and drops components that become empty.
fn with_chunks_of(
    components: &[ComponentRequest],
    chunk_bytes: Option<u64>,
) -> Vec<ComponentRequest> {
    let mut new: Vec<ComponentRequest> = Vec::new();
    for component in components {
        let mut component = component.clone();
        if let Some(chunk_bytes) = chunk_bytes {
            component.chunk_bytes = Some(chunk_bytes);
            component.start = component.start.next_multiple_of(chunk_bytes);
        }
        if new.last().is_some_and(|last| last.start == component.start) {
            new.pop();
        }
        new.push(component);
    }
    new
}

/// Drops each component whose bytes are all inline, because the next component starts at or before
/// the end of the inline bytes. Then the first remaining component starts at byte 0.
fn behind_inline<C>(
    mut components: Vec<C>,
    inline_bytes: Option<u64>,
    start: impl Fn(&mut C) -> &mut u64,
) -> Vec<C> {
    if let Some(bytes) = inline_bytes {
        while components.get_mut(1).is_some_and(|next| *start(next) <= bytes) {
            components.remove(0);
        }
        if let Some(first) = components.first_mut() {
            *start(first) = 0;
        }
    }
    components
}

/// Fills the fields that are still unset from the cluster's settings. Returns a pattern of
/// generation 0. Components whose groups a policy chooses have no groups yet.
///
/// If the request has only one component, without width and list of groups, one group stores the
/// first bytes of the file ([`Policy::stripe_from`]). If such a request does not set the number of
/// inline bytes either, the cluster's setting applies ([`Policy::inline_bytes`]).
pub fn resolve(request: &PatternRequest, policy: &Policy) -> StripePattern {
    let mut inline_bytes = request.inline_bytes;
    let mut components: Vec<_> =
        request.components.iter().map(|component| resolve_component(component, policy)).collect();
    if matches!(&request.components[..], [only] if only.has_open_width()) {
        narrow_at_first(&mut components, policy.stripe_from);
        inline_bytes = inline_bytes.or(Some(policy.inline_bytes).filter(|bytes| *bytes != 0));
    }
    let mut components = behind_inline(components, inline_bytes, |component| &mut component.start);
    if let (Some(bytes), Some(first)) = (inline_bytes, components.first_mut()) {
        first.start = bytes;
        components.insert(0, Component::inline());
    }
    StripePattern { generation: 0, origin: request.origin, components }
}

fn resolve_component(component: &ComponentRequest, policy: &Policy) -> Component {
    let chunk_bytes = component.chunk_bytes.unwrap_or_else(|| {
        // The cluster's chunk size may have changed since `start` was checked. So `start` is
        // perhaps not a multiple of that size any more.
        let fits = 1_u64 << component.start.trailing_zeros().min(63);
        policy.default_chunk_bytes.min(fits).max(MIN_CHUNK_BYTES)
    });
    let width = component.width.unwrap_or(policy.default_width);
    let (wanted, chooser, groups) = match &component.placement {
        None => (width, policy.default_chooser, Vec::new()),
        Some(Placement::Policy(chooser)) => (width, *chooser, Vec::new()),
        Some(Placement::Groups(groups)) => {
            let wanted = u16::try_from(groups.len()).expect("`check` limits the list's length");
            (wanted, Chooser::Listed, groups.clone())
        }
    };
    let (start, redundancy) = (component.start, Redundancy::Stripe);
    Component { start, chunk_bytes, wanted, redundancy, chooser, groups }
}

/// Rounds `stripe_from` up to a multiple of the chunk size, and places the bytes before this offset
/// on one group.
fn narrow_at_first(components: &mut Vec<Component>, stripe_from: u64) {
    let Some(wide) = components.first_mut() else { return };
    let border = stripe_from.checked_next_multiple_of(wide.chunk_bytes);
    if let Some(border @ 1..) = border
        && wide.wanted > 1
    {
        let narrow = Component { wanted: 1, ..wide.clone() };
        wide.start = border;
        components.insert(0, narrow);
    }
}

/// Chooses the groups of a resolved pattern, except where the request lists them. `seed` is any
/// number that differs from file to file.
///
/// # Errors
/// - `NoSpace` if there is no storage target to choose.
/// - `InvalidArgument` if the pattern that results from request, directory and cluster is invalid,
///   for example because it has too many components.
pub fn place(
    resolved: StripePattern,
    candidates: &Candidates,
    seed: u64,
    cursor: &mut Cursor,
) -> Result<StripePattern> {
    let mut pattern = resolved;
    for component in pattern.components.iter_mut().filter(|component| !component.is_inline()) {
        if component.chooser != Chooser::Listed {
            let wanted = usize::from(component.wanted);
            component.groups = candidates.choose(component.chooser, wanted, seed, cursor);
        }
        if let Some(closed) = component.groups.iter().find_map(|it| candidates.closed(*it)) {
            return Err(refusal(&closed, pattern.origin));
        }
        if component.groups.is_empty() {
            return Err(Error::new(
                ErrorCode::NoSpace,
                "no online storage target has free space: see `skep health check`",
            ));
        }
    }
    drop_needless_narrow(&mut pattern.components);
    pattern.generation = pattern.generation.max(1);
    pattern.check()?;
    Ok(pattern)
}

/// Returns the error for a pattern that lists a target which gets no new files.
fn refusal(closed: &ClosedGroup, origin: PatternOrigin) -> Error {
    let id = closed.target.raw();
    let fact = match closed.is_lost {
        true => "was marked as lost",
        false => "is closed to new files",
    };
    let remedy = match (origin, closed.is_lost) {
        (PatternOrigin::Directory, _) => {
            "the pattern of its directory lists this target; `skep entry set --inherit DIRECTORY` \
             or `skep entry set --targets IDS DIRECTORY` sets another pattern"
                .to_owned()
        }
        (_, true) => "list other targets; `skep target list` shows them".to_owned(),
        (_, false) => format!(
            "list other targets, or open this target with `skep target set-state {id} open`"
        ),
    };
    let what = format!("cannot place a file on target {}, which {fact}: {remedy}", closed.target);
    Error::new(ErrorCode::NoSpace, what)
}

/// Drops the narrow first component if the next component also has a single group. The next
/// component alone then stores the file, except inline bytes, in one chunk file.
fn drop_needless_narrow(components: &mut Vec<Component>) {
    let first = components.iter().take_while(|component| component.is_inline()).count();
    if let [narrow, wide] = &components[first..]
        && (narrow.wanted, wide.groups.len()) == (1, 1)
        && narrow.chunk_bytes == wide.chunk_bytes
        && wide.chooser != Chooser::Listed
    {
        let narrow = components.remove(first);
        components[first].start = narrow.start;
    }
}

#[cfg(test)]
mod tests;
