//! From what is asked for to the stripe pattern of a file: whether somebody may ask for it, whose
//! word counts where nothing is asked, and the groups.
//!
//! What is asked for is a [`StripePattern`] too, with zeros and [`Chooser::Cluster`] where somebody
//! else has the word, and with groups only where they are listed: a directory's for its files, and
//! where that is silent too, the cluster's settings.

use crate::placement::{Candidates, Cursor};
use skep_types::map::{Policy, UserPatterns};
use skep_types::pattern::{Chooser, MIN_CHUNK_BYTES, PatternOrigin};
use skep_types::{
    ClusterMap, Component, Error, ErrorCode, Redundancy, Result, StripePattern, TargetKind,
};
use std::collections::HashSet;

/// A component that leaves everything to others.
fn open_component() -> Component {
    Component {
        start: 0,
        chunk_bytes: 0,
        wanted: 0,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Cluster,
        groups: Vec::new(),
    }
}

/// Checks that a user may ask for a pattern.
///
/// # Errors
/// `InvalidArgument` if it can't be, `NotFound` for groups that aren't there, `PermissionDenied`
/// for what only root may ask for. Each says what it is about.
pub fn check_asked(map: &ClusterMap, asked: &StripePattern, uid: u32) -> Result<()> {
    asked.check_asked()?;
    for component in &asked.components {
        check_groups(map, component)?;
    }
    if uid == 0 { Ok(()) } else { check_user(&map.policy, asked) }
}

fn check_groups(map: &ClusterMap, component: &Component) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
    let mut seen = HashSet::new();
    for id in &component.groups {
        if map.group(*id).is_none_or(|group| group.kind != TargetKind::Storage) {
            let what = format!("there is no storage group {id}; see `skep target list`");
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        if !seen.insert(*id) {
            return wrong(format!("group {id} is listed twice"));
        }
    }
    let listed = component.groups.len();
    let is_right = match component.chooser {
        Chooser::Listed => listed > 0 && usize::from(component.wanted) == listed,
        _ => listed == 0,
    };
    if !is_right {
        return wrong("either groups are listed, as many as are wanted, or they are chosen".into());
    }
    Ok(())
}

fn check_user(policy: &Policy, asked: &StripePattern) -> Result<()> {
    let denied = |setting: &str, what: String| {
        let what = format!("{what}: `skep config get {setting}`");
        Err(Error::new(ErrorCode::PermissionDenied, what))
    };
    if policy.user_patterns == UserPatterns::No {
        return denied("user-patterns", "only root sets stripe patterns in this cluster".into());
    }
    for component in &asked.components {
        if policy.user_patterns != UserPatterns::Targets && !component.groups.is_empty() {
            return denied("user-patterns", "only root lists targets in this cluster".into());
        }
        if component.wanted > policy.user_max_width {
            let most = policy.user_max_width;
            let what = format!("only root stripes files over more than {most} targets here");
            return denied("user-stripe-width-max", what);
        }
        let sizes = policy.user_min_chunk_bytes..=policy.user_max_chunk_bytes;
        if component.chunk_bytes != 0 && !sizes.contains(&component.chunk_bytes) {
            let what = format!(
                "only root asks for chunks of less than {} or more than {} bytes here",
                sizes.start(),
                sizes.end()
            );
            return denied("user-chunk-size-max", what);
        }
    }
    Ok(())
}

/// What counts when somebody asks for a pattern, or nobody does, within a directory that hands one
/// down or not. Still without the cluster's word, which comes when groups are chosen.
pub fn merged(
    asked: Option<&StripePattern>,
    of_directory: Option<&StripePattern>,
) -> StripePattern {
    let silent = || StripePattern {
        generation: 0,
        origin: PatternOrigin::Cluster,
        components: vec![open_component()],
    };
    let mut below = of_directory.cloned().unwrap_or_else(silent);
    if of_directory.is_some() {
        below.origin = PatternOrigin::Directory;
    }
    let Some(asked) = asked else { return below };
    let (of_below, below) = (below.inline_bytes(), on_groups(below.components));
    let (of_asked, asked_for) = (asked.inline_bytes(), on_groups(asked.components.clone()));
    let silent = |it: &Component| it.wanted == 0 && it.chooser == Chooser::Cluster;
    // Who says nothing of targets says nothing against bytes in metadata either.
    let (inline, components) = match &asked_for[..] {
        [only] if silent(only) => {
            let inline = if of_asked > 0 { of_asked } else { of_below };
            match below.len() {
                1 => (inline, laid_over(&asked_for, &below)),
                _ => (inline, with_chunks_of(&below, only.chunk_bytes)),
            }
        }
        _ => (of_asked, laid_over(&asked_for, &below)),
    };
    StripePattern {
        generation: asked.generation,
        origin: PatternOrigin::Asked,
        components: with_inline(inline, components),
    }
}

/// The components that lie on groups, the first from byte 0 on.
fn on_groups(mut components: Vec<Component>) -> Vec<Component> {
    components.retain(|component| !component.is_inline());
    if let Some(first) = components.first_mut() {
        first.start = 0;
    }
    components
}

/// The same with the first bytes in metadata, if any are to be.
fn with_inline(bytes: u64, mut components: Vec<Component>) -> Vec<Component> {
    if bytes == 0 {
        return components;
    }
    // One that begins no later than they end has the bytes behind them.
    let gone = components.iter().skip(1).take_while(|it| it.start <= bytes).count();
    components.drain(..gone);
    if let Some(first) = components.first_mut() {
        first.start = bytes;
    }
    components.insert(0, Component::inline());
    components
}

/// What is asked for, with the words of the first component below where it is silent.
fn laid_over(asked: &[Component], below: &[Component]) -> Vec<Component> {
    let first = below.first().cloned().unwrap_or_else(open_component);
    let over = |component: &Component| {
        let mut over = component.clone();
        if over.chunk_bytes == 0 {
            over.chunk_bytes = first.chunk_bytes;
        }
        // A list says how many, by which rule and which: part of it says nothing.
        let is_silent = over.wanted == 0 && over.chooser == Chooser::Cluster;
        if is_silent || first.chooser != Chooser::Listed {
            if over.wanted == 0 {
                over.wanted = first.wanted;
            }
            if over.chooser == Chooser::Cluster {
                over.chooser = first.chooser;
                over.groups.clone_from(&first.groups);
            }
        }
        over
    };
    asked.iter().map(over).collect()
}

/// Components with chunks of another size. They begin where chunks end; one that has no bytes of
/// its own any more is left out.
fn with_chunks_of(components: &[Component], chunk_bytes: u64) -> Vec<Component> {
    let mut new: Vec<Component> = Vec::new();
    for component in components {
        let mut component = component.clone();
        if chunk_bytes != 0 {
            component.chunk_bytes = chunk_bytes;
            component.start = component.start.next_multiple_of(chunk_bytes);
        }
        if new.last().is_some_and(|last| last.start == component.start) {
            new.pop();
        }
        new.push(component);
    }
    new
}

/// The same with the cluster's word wherever nobody else has said anything: where nobody has said
/// how many targets, the first bytes lie on one ([`Policy::stripe_from`]), or before that in
/// metadata ([`Policy::inline_bytes`]).
pub fn resolved(pattern: &StripePattern, policy: &Policy) -> StripePattern {
    let mut pattern = pattern.clone();
    let mut inline = pattern.inline_bytes();
    let mut components = on_groups(pattern.components);
    let is_silent = matches!(&components[..], [only] if only.wanted == 0);
    for component in &mut components {
        if component.chunk_bytes == 0 {
            // The cluster's setting may have changed since the component's start was checked.
            let fits = 1_u64 << component.start.trailing_zeros().min(63);
            component.chunk_bytes = policy.default_chunk_bytes.min(fits).max(MIN_CHUNK_BYTES);
        }
        if component.wanted == 0 {
            component.wanted = policy.default_width;
        }
        if component.chooser == Chooser::Cluster {
            component.chooser = policy.default_chooser;
        }
    }
    if is_silent {
        narrow_at_first(&mut components, policy.stripe_from);
        if inline == 0 {
            inline = policy.inline_bytes;
        }
    }
    pattern.components = with_inline(inline, components);
    pattern
}

/// Puts the bytes before `stripe_from` on one target. The border is where a chunk ends.
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

/// Whether a file is narrow at first only to be as narrow further on: one component says the same.
fn is_narrow_for_nothing(components: &[Component]) -> bool {
    matches!(components, [narrow, wide] if (narrow.wanted, wide.groups.len()) == (1, 1)
        && narrow.chunk_bytes == wide.chunk_bytes && wide.chooser != Chooser::Listed)
}

/// The pattern of a new file: resolved, and with groups for all components.
///
/// `seed` is any number that differs from file to file.
///
/// # Errors
/// `NoSpace` if there is no storage target to choose; `InvalidArgument` if all words together make
/// no pattern.
pub fn with_groups(
    pattern: &StripePattern,
    policy: &Policy,
    candidates: &Candidates,
    seed: u64,
    cursor: &mut Cursor,
) -> Result<StripePattern> {
    let mut pattern = resolved(pattern, policy);
    let inline = pattern.inline_bytes();
    let mut components = on_groups(std::mem::take(&mut pattern.components));
    for component in &mut components {
        if component.chooser != Chooser::Listed {
            let wanted = usize::from(component.wanted);
            component.groups = candidates.choose(component.chooser, wanted, seed, cursor);
        }
        if component.groups.is_empty() {
            return Err(Error::new(
                ErrorCode::NoSpace,
                "no storage target is online with room left: see `skep health check`",
            ));
        }
    }
    if is_narrow_for_nothing(&components) {
        components.remove(0);
        components[0].start = 0;
    }
    pattern.components = with_inline(inline, components);
    pattern.generation = pattern.generation.max(1);
    // What is put together of several words may have too many components.
    pattern.check()?;
    Ok(pattern)
}

#[cfg(test)]
mod tests;
