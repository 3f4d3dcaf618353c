//! Stripe patterns as people write them and read them, in commands, in the attribute
//! `user.skep.pattern` and in the variable `SKEP_PATTERN`:
//!
//! ```text
//! count=4,chunk-size=1MiB,chooser=balanced
//! targets=3:5:8
//! count=1/from=16MiB,count=4/from=1GiB,count=all,chunk-size=4MiB
//! inline/from=4KiB,count=1/from=4MiB,count=all
//! ```
//!
//! Words of one component are joined by commas, components by slashes; in what is left out somebody
//! else has the word (see [`crate::patterns`]). docs/operations/patterns.md is the manual.

use skep_types::pattern::{Chooser, MAX_STRIPE_WIDTH, PatternOrigin};
use skep_types::{
    ClusterMap, Component, Error, ErrorCode, Group, GroupId, Redundancy, Result, StripePattern,
    TargetId, TargetKind, size,
};
use std::fmt::Write;

fn wrong(what: String) -> Error {
    Error::new(ErrorCode::InvalidArgument, what)
}

/// Something that names a place to store data at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The group whose only member is this target.
    Target(TargetId),
    /// This group.
    Group(GroupId),
}

impl Place {
    fn group(self, map: &ClusterMap) -> Result<GroupId> {
        let is_storage = |group: &&Group| group.kind == TargetKind::Storage;
        let target = match self {
            Self::Group(id) => {
                return map.group(id).filter(is_storage).map(|_| id).ok_or_else(|| {
                    let what = format!("there is no storage group {id}; see `skep target list`");
                    Error::new(ErrorCode::NotFound, what)
                });
            }
            Self::Target(target) => target,
        };
        let group = map.group_of(target).filter(is_storage);
        match group {
            None => {
                let what = format!("there is no storage target {target}; see `skep target list`");
                Err(Error::new(ErrorCode::NotFound, what))
            }
            Some(group) if group.members.len() > 1 => {
                let (group, members) = (group.id, group.members.len());
                Err(wrong(format!(
                    "target {target} is one of {members} in {group}: name the group instead"
                )))
            }
            Some(group) => Ok(group.id),
        }
    }
}

fn number<T: std::str::FromStr>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(format!("{key}={text}: '{text}' is no such number")))
}

fn bytes(key: &str, text: &str) -> Result<u64> {
    size::parse(text).ok_or_else(|| {
        wrong(format!(
            "{key}={text}: write a number of bytes, or one with KiB, MiB, GiB or TiB behind it"
        ))
    })
}

/// A list of ids, with or without their letter.
fn ids(key: &str, text: &str, letter: char) -> Result<Vec<u32>> {
    text.split(':').map(|id| number(key, id.strip_prefix(letter).unwrap_or(id))).collect()
}

fn component(text: &str, map: &ClusterMap) -> Result<Component> {
    let mut read = Component {
        start: 0,
        chunk_bytes: 0,
        wanted: 0,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Cluster,
        groups: Vec::new(),
    };
    let mut places = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        if seen.contains(&key) {
            return Err(wrong(format!("{key} is there twice")));
        }
        seen.push(key);
        match key {
            "inline" if !word.contains('=') => read.redundancy = Redundancy::Inline,
            "from" => read.start = bytes(key, value)?,
            "count" if value == "all" => read.wanted = MAX_STRIPE_WIDTH as u16,
            "count" => read.wanted = number(key, value)?,
            "chunk-size" => read.chunk_bytes = bytes(key, value)?,
            "chooser" => {
                read.chooser = Chooser::named(value).ok_or_else(|| {
                    let words = Chooser::ALL.map(|(_, word)| word).join(", ");
                    wrong(format!("there is no chooser '{value}'; there are {words}"))
                })?;
            }
            "targets" => {
                let ids = ids(key, value, 't')?.into_iter();
                places.extend(ids.map(|id| Place::Target(TargetId::new(id))));
            }
            "groups" => {
                let ids = ids(key, value, 'g')?.into_iter();
                places.extend(ids.map(|id| Place::Group(GroupId::new(id))));
            }
            _ => {
                return Err(wrong(format!(
                    "'{word}' is none of count=, chunk-size=, chooser=, targets=, groups=, from=, \
                     inline"
                )));
            }
        }
        // Zero is for what isn't said.
        let is_zero = match key {
            "count" => read.wanted == 0,
            "chunk-size" => read.chunk_bytes == 0,
            _ => false,
        };
        if is_zero {
            return Err(wrong(format!("{word}: at least 1")));
        }
    }
    if !places.is_empty() {
        if seen.contains(&"count") || seen.contains(&"chooser") {
            return Err(wrong("a list of targets or groups says how many and which".into()));
        }
        read.groups = places.iter().map(|place| place.group(map)).collect::<Result<_>>()?;
        read.wanted = u16::try_from(read.groups.len()).unwrap_or(u16::MAX);
        read.chooser = Chooser::Listed;
    }
    Ok(read)
}

/// Reads a pattern that is asked for. Targets are looked up in the map; whether all of it is
/// allowed, [`crate::patterns::check_asked`] says.
///
/// # Errors
/// `InvalidArgument` that names the word, `NotFound` that names a target.
pub fn parse(text: &str, map: &ClusterMap) -> Result<StripePattern> {
    let components = text.split('/').map(|part| component(part, map)).collect::<Result<_>>()?;
    let pattern = StripePattern { generation: 0, origin: PatternOrigin::Asked, components };
    pattern.check_asked()?;
    Ok(pattern)
}

/// Writes a pattern, also one that leaves words to others, so that [`parse`] reads it; for a file,
/// with the groups that it has.
pub fn text(pattern: &StripePattern) -> String {
    let mut text = String::new();
    for (index, component) in pattern.components.iter().enumerate() {
        let mut words = Vec::new();
        let size = |bytes: u64| {
            let (number, unit) = size::whole(bytes);
            format!("{number}{unit}")
        };
        if index > 0 {
            words.push(format!("from={}", size(component.start)));
            text.push('/');
        }
        if component.is_inline() {
            words.push("inline".to_owned());
        }
        if component.chunk_bytes != 0 {
            words.push(format!("chunk-size={}", size(component.chunk_bytes)));
        }
        if !component.groups.is_empty() {
            let ids: Vec<_> = component.groups.iter().map(|id| id.raw().to_string()).collect();
            words.push(format!("groups={}", ids.join(":")));
        } else {
            if component.wanted != 0 {
                words.push(format!("count={}", component.wanted));
            }
            if component.chooser != Chooser::Cluster {
                words.push(format!("chooser={}", component.chooser.word()));
            }
        }
        let _ = write!(text, "{}", words.join(","));
    }
    text
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
    fn what_people_write_is_read_and_written_again() {
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
    fn what_cannot_be_meant_is_refused_by_its_word() {
        let map = map();
        let of_metadata = map.targets.iter().find(|it| it.kind == TargetKind::Metadata).unwrap().id;
        for (text, words) in [
            ("colour=red", "'colour=red' is none of count=, chunk-size="),
            ("4", "'4' is none of"),
            ("count=many", "'many' is no such number"),
            ("count=-1", "no such number"),
            ("count=0", "at least 1"),
            ("count=257", "1 to 256 groups"),
            ("count=1,count=2", "twice"),
            ("chunk-size=1MB", "KiB, MiB"),
            ("chunk-size=0", "at least 1"),
            ("chunk-size=100KiB", "not a power of two"),
            ("chunk-size=32KiB", "64 KiB to 1 GiB"),
            ("chooser=best", "there are balanced, randomized"),
            ("targets=99", "no storage target t99"),
            (&format!("targets={of_metadata}"), "no storage target"),
            ("targets=", "no such number"),
            ("groups=1,count=1", "says how many"),
            ("groups=g99", "no storage group g99"),
            ("from=1MiB", "starts at byte 0"),
            ("count=1/count=2", "in the order of their start"),
            ("count=1/from=100000", "multiple of 65536"),
            ("inline", "inline/from=4KiB"),
            ("inline=4KiB/from=4KiB", "'inline=4KiB' is none of"),
            ("inline/from=5000,count=1", "no multiple of 4 KiB up to 64 KiB"),
            ("inline/from=68KiB", "no multiple of 4 KiB up to 64 KiB"),
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
