//! The text form of stripe patterns, in commands, in the extended attribute `user.skep.pattern` and
//! in the environment variable `SKEP_PATTERN`:
//!
//! ```text
//! count=4,chunk-size=1MiB,chooser=balanced
//! targets=3:5:8
//! count=1/from=16MiB,count=4/from=1GiB,count=all,chunk-size=4MiB
//! inline/from=4KiB,count=1/from=4MiB,count=all
//! ```
//!
//! Commas separate the words of one component, and slashes separate components. A field that the
//! text omits is unset (see [`crate::patterns`]). The manual is docs/operations/patterns.md.

use skep_types::pattern::{Chooser, MAX_STRIPE_WIDTH, PatternOrigin};
use skep_types::{
    ClusterMap, ComponentRequest, Error, ErrorCode, Group, GroupId, PatternRequest, Placement,
    Redundancy, Result, StripePattern, TargetId, TargetKind, size,
};
use std::fmt::Write;

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// An id in a list of targets or groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListedId {
    Target(TargetId),
    Group(GroupId),
}

impl ListedId {
    fn group(self, map: &ClusterMap) -> Result<GroupId> {
        match self {
            Self::Target(target) => group_of_target(target, map),
            Self::Group(group) => storage_group(group, map),
        }
    }
}

/// Returns `id` if it is the id of a storage group.
fn storage_group(id: GroupId, map: &ClusterMap) -> Result<GroupId> {
    let group = map.group(id).filter(|group| group.kind == TargetKind::Storage);
    group.map(|group| group.id).ok_or_else(|| {
        let what = format!("there is no storage group {id}; see `skep target list`");
        Error::new(ErrorCode::NotFound, what)
    })
}

/// Returns the group whose only member is the storage target.
fn group_of_target(target: TargetId, map: &ClusterMap) -> Result<GroupId> {
    let is_storage = |group: &&Group| group.kind == TargetKind::Storage;
    match map.group_of(target).filter(is_storage) {
        None => {
            let what = format!("there is no storage target {target}; see `skep target list`");
            Err(Error::new(ErrorCode::NotFound, what))
        }
        Some(group) if group.members.len() > 1 => {
            let (group, members) = (group.id, group.members.len());
            Err(wrong(format!(
                "cannot list target {target}: it is one of {members} members of {group}; list the \
                 group instead"
            )))
        }
        Some(group) => Ok(group.id),
    }
}

fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(format!("{key}={text}: invalid number '{text}'")))
}

/// Returns `number`, or an error if it is zero.
fn positive<T: Default + PartialEq>(word: &str, number: T) -> Result<T> {
    if number == T::default() {
        return Err(wrong(format!("{word}: expected at least 1")));
    }
    Ok(number)
}

fn bytes(key: &str, text: &str) -> Result<u64> {
    size::parse(text).ok_or_else(|| {
        wrong(format!(
            "{key}={text}: expected a number of bytes, or a number with {}",
            size::SUFFIXES
        ))
    })
}

/// Parses a list of ids, each with or without its prefix `letter`.
fn ids(key: &str, text: &str, letter: char) -> Result<Vec<u32>> {
    text.split(':').map(|id| number(key, id.strip_prefix(letter).unwrap_or(id))).collect()
}

fn policy(name: &str) -> Result<Placement> {
    Chooser::named(name).map(Placement::Policy).ok_or_else(|| {
        let names = Chooser::ALL.map(|(_, name)| name).join(", ");
        wrong(format!("unknown chooser '{name}': expected one of {names}"))
    })
}

fn component(text: &str, map: &ClusterMap) -> Result<(Redundancy, ComponentRequest)> {
    let mut request = ComponentRequest::default();
    let mut redundancy = Redundancy::Stripe;
    let mut listed = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        // `skep entry create` and `skep entry set` call this field `num-targets`.
        let key = if key == "num-targets" { "count" } else { key };
        if seen.contains(&key) {
            return Err(wrong(format!("the part {key}= appears twice")));
        }
        seen.push(key);
        match key {
            "inline" if !word.contains('=') => redundancy = Redundancy::Inline,
            "from" => request.start = bytes(key, value)?,
            "count" if value == "all" => request.width = Some(MAX_STRIPE_WIDTH as u16),
            "count" => request.width = Some(positive(word, number(key, value)?)?),
            "chunk-size" => request.chunk_bytes = Some(positive(word, bytes(key, value)?)?),
            "chooser" => request.placement = Some(policy(value)?),
            "targets" => {
                let ids = ids(key, value, 't')?.into_iter();
                listed.extend(ids.map(|id| ListedId::Target(TargetId::new(id))));
            }
            "groups" => {
                let ids = ids(key, value, 'g')?.into_iter();
                listed.extend(ids.map(|id| ListedId::Group(GroupId::new(id))));
            }
            _ => {
                return Err(wrong(format!(
                    "unknown part '{word}': expected count=, chunk-size=, chooser=, targets=, \
                     groups=, from=, inline"
                )));
            }
        }
    }
    if !listed.is_empty() {
        if seen.contains(&"count") || seen.contains(&"chooser") {
            return Err(wrong(
                "a list of targets or groups already sets the count and the chooser; remove count= \
                 and chooser=",
            ));
        }
        let groups = listed.into_iter().map(|id| id.group(map));
        request.placement = Some(Placement::Groups(groups.collect::<Result<_>>()?));
    }
    Ok((redundancy, request))
}

/// Parses a pattern request and looks up its targets in the map. Does not check whether the user
/// may make the request. [`crate::patterns::check_request`] makes this check.
///
/// # Errors
/// - `InvalidArgument` if a word is invalid. The context names the word.
/// - `NotFound` if a target or group does not exist. The context names the target or group.
pub fn parse(text: &str, map: &ClusterMap) -> Result<PatternRequest> {
    let listed = text.split('/').map(|part| component(part, map)).collect::<Result<_>>()?;
    let request = PatternRequest::from_listed(PatternOrigin::Asked, listed)?;
    request.check()?;
    Ok(request)
}

/// Formats a request as text from which [`parse`] gets the same request.
pub fn text(request: &PatternRequest) -> String {
    let mut text = if request.inline_bytes.is_some() { "inline".to_owned() } else { String::new() };
    let size = |bytes: u64| {
        let (number, unit) = size::whole(bytes);
        format!("{number}{unit}")
    };
    for (index, component) in request.components.iter().enumerate() {
        let mut words = Vec::new();
        let start = if index == 0 { request.inline_bytes } else { Some(component.start) };
        if let Some(start) = start {
            words.push(format!("from={}", size(start)));
            text.push('/');
        }
        if let Some(bytes) = component.chunk_bytes {
            words.push(format!("chunk-size={}", size(bytes)));
        }
        if let Some(width) = component.width {
            words.push(format!("count={width}"));
        }
        match &component.placement {
            None => {}
            Some(Placement::Policy(chooser)) => words.push(format!("chooser={}", chooser.word())),
            Some(Placement::Groups(groups)) => {
                let ids: Vec<_> = groups.iter().map(|id| id.raw().to_string()).collect();
                words.push(format!("groups={}", ids.join(":")));
            }
        }
        let _ = write!(text, "{}", words.join(","));
    }
    text
}

/// Formats the pattern of a file, with its groups, as a request that [`parse`] accepts.
pub fn text_of_file(pattern: &StripePattern) -> String {
    text(&PatternRequest::with_groups_of(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::{cluster, server};

    fn map() -> ClusterMap {
        let mut state = cluster();
        state.apply(&server(TargetKind::Metadata, 9_000, &[9_001])).unwrap();
        state.apply(&server(TargetKind::Storage, 1_000, &[1, 2, 3])).unwrap();
        state.map().clone()
    }

    #[test]
    fn patterns_survive_formatting_and_parsing() {
        let map = map();
        let storage: Vec<_> = map
            .targets
            .iter()
            .filter(|it| it.kind == TargetKind::Storage)
            .map(|it| it.id)
            .collect();
        let group = |index: usize| map.group_of(storage[index]).unwrap().id.raw();
        for (written, again) in [
            ("", ""),
            ("count=4", "count=4"),
            ("count=all", "count=256"),
            ("num-targets=4", "count=4"),
            (" chunk-size=1 MiB, count=2,", "chunk-size=1MiB,count=2"),
            ("chunk-size=65536,chooser=roundrobin", "chunk-size=64KiB,chooser=roundrobin"),
            ("count=1/from=16MiB,count=4", "count=1/from=16MiB,count=4"),
            ("count=1/from=1GiB", "count=1/from=1GiB"),
            ("inline/from=4KiB", "inline/from=4KiB"),
            (
                "inline/from=4096,count=1/from=4MiB,count=all",
                "inline/from=4KiB,count=1/from=4MiB,count=256",
            ),
            ("inline/from=64KiB,chunk-size=1MiB", "inline/from=64KiB,chunk-size=1MiB"),
            (
                &format!("targets={}:{}", storage[2], storage[0]),
                &format!("groups={}:{}", group(2), group(0)),
            ),
            (
                &format!("groups=g{}:{},chunk-size=4MiB", group(1), group(0)),
                &format!("chunk-size=4MiB,groups={}:{}", group(1), group(0)),
            ),
        ] {
            let read = parse(written, &map).unwrap();
            assert_eq!(text(&read), again, "{written}");
            assert_eq!(parse(again, &map).unwrap(), read, "{written}");
        }
    }

    #[test]
    fn error_for_an_invalid_pattern_quotes_the_invalid_part() {
        let map = map();
        let of_metadata = map.targets.iter().find(|it| it.kind == TargetKind::Metadata).unwrap().id;
        for (text, words) in [
            ("colour=red", "unknown part 'colour=red': expected count=, chunk-size="),
            ("4", "unknown part '4'"),
            ("num-targets=2,count=3", "count= appears twice"),
            ("count=many", "invalid number 'many'"),
            ("count=-1", "invalid number"),
            ("count=0", "at least 1"),
            ("count=257", "1 to 256"),
            ("count=1,count=2", "twice"),
            ("chunk-size=1MB", "not a power of two"),
            ("chunk-size=1MX", "KiB, MiB"),
            ("chunk-size=0", "at least 1"),
            ("chunk-size=100KiB", "not a power of two"),
            ("chunk-size=32KiB", "64 KiB to 1 GiB"),
            ("chooser=best", "expected one of balanced, randomized"),
            ("targets=99", "no storage target t99"),
            (&format!("targets={of_metadata}"), "no storage target"),
            ("targets=", "invalid number"),
            ("groups=1,count=1", "already sets the count and the chooser"),
            ("groups=g99", "no storage group g99"),
            ("from=1MiB", "must start at byte 0"),
            ("count=1/count=2", "in the order of their start"),
            ("count=1/from=100000", "multiple of 65536"),
            ("inline", "inline/from=4KiB"),
            ("inline=4KiB/from=4KiB", "unknown part 'inline=4KiB'"),
            ("inline/from=5000,count=1", "expected a multiple of 4 KiB up to 64 KiB"),
            ("inline/from=68KiB", "expected a multiple of 4 KiB up to 64 KiB"),
            ("inline/from=0", "in the order of their start"),
            ("inline,count=1/from=4KiB", "no count, chunk size"),
            ("inline,chunk-size=64KiB/from=64KiB", "no count, chunk size"),
            ("inline,groups=2/from=4KiB", "no count, chunk size"),
            ("count=1/inline,from=1MiB/from=2MiB", "only the first can be"),
            ("inline/from=4KiB/from=100000", "multiple of 65536"),
        ] {
            let error = parse(text, &map).unwrap_err();
            assert!(error.context().contains(words), "{text}: {error}");
        }
    }
}
