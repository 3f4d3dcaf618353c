//! Maps the names of types in the message catalog to layouts, which consist of fields and variants.
//!
//! The catalog names the type of each field. This module maps these names to records, enums and
//! plain types. With this map, documents can list the types, and [`read`] can print any message
//! body field by field. The layouts come from the declarations in `types` and `wire`.

use serde_json::{Map, Value, json};
use skep_types::codec::{Bytes, Codec, Described, DescribedEnum, FieldDoc, Reader, VariantDoc};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{
    Capacity, CapacityPool, ClusterMap, Condition, Consistency, Policy, Reachability, TargetHealth,
    UserPatterns,
};
use skep_types::map::{Group, GroupMember, MemberState, Node, NodeKind, ShardRange, Target};
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{Attributes, ChunkFileKey, ChunkFileSet, ClusterId, Component, Epoch};
use skep_types::{
    Chooser, HostIncarnation, InodeId, Lsn, MapVersion, NodeId, PatternOrigin, PatternRequest,
    Redundancy, Result,
};
use skep_types::{Eviction, EvictionCause, FileKind, GroupId, GroupRecord};
use skep_types::{SessionId, ShardId, StripePattern, TargetId, TargetKind, Timestamp};
use skep_wire::{
    consensus as cs, file_locks as fl, inline as il, log_shipping as ls, management as mg,
    metadata as md, node, sharing as sh, storage as st, traces as tr,
};

/// A named type, with its description and its layout.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) shape: Shape,
}

/// The layout of a named type.
pub(crate) enum Shape {
    /// One value. The text names its layout.
    Plain(&'static str),
    /// A sequence of fields.
    Record(&'static [FieldDoc]),
    /// One byte that selects the variant, followed by the fields of the variant.
    Enum(&'static [VariantDoc]),
}

const fn plain<T: Codec>(name: &'static str) -> Kind {
    Kind { name, doc: "", shape: Shape::Plain(T::LAYOUT) }
}

const fn record<T: Described>() -> Kind {
    Kind { name: T::NAME, doc: T::DOC, shape: Shape::Record(T::FIELDS) }
}

const fn choice<T: DescribedEnum>() -> Kind {
    Kind { name: T::NAME, doc: T::DOC, shape: Shape::Enum(T::VARIANTS) }
}

/// All types of message fields except `Vec`, `Option` and pairs.
pub(crate) const KINDS: &[Kind] = &[
    plain::<u8>("u8"),
    plain::<u16>("u16"),
    plain::<u32>("u32"),
    plain::<u64>("u64"),
    plain::<u128>("u128"),
    plain::<i64>("i64"),
    plain::<bool>("bool"),
    plain::<Bytes>("Bytes"),
    plain::<String>("String"),
    plain::<ClusterId>("ClusterId"),
    plain::<Epoch>("Epoch"),
    plain::<GroupId>("GroupId"),
    plain::<HostIncarnation>("HostIncarnation"),
    plain::<InodeId>("InodeId"),
    plain::<Lsn>("Lsn"),
    plain::<MapVersion>("MapVersion"),
    plain::<NodeId>("NodeId"),
    plain::<SessionId>("SessionId"),
    plain::<ShardId>("ShardId"),
    plain::<TargetId>("TargetId"),
    record::<Timestamp>(),
    record::<Attributes>(),
    record::<StripePattern>(),
    record::<PatternRequest>(),
    record::<Component>(),
    record::<ChunkFileKey>(),
    record::<ClusterMap>(),
    record::<Node>(),
    record::<Target>(),
    record::<Capacity>(),
    record::<TargetHealth>(),
    record::<mg::TargetReport>(),
    record::<mg::RequestWait>(),
    record::<mg::NodeWait>(),
    record::<mg::NodeOutage>(),
    record::<Eviction>(),
    record::<mg::HostEntry>(),
    record::<mg::TargetOutage>(),
    record::<cs::MemberEntry>(),
    record::<Group>(),
    record::<GroupMember>(),
    record::<GroupRecord>(),
    record::<ShardRange>(),
    record::<Policy>(),
    record::<ServerRegistration>(),
    record::<TargetClaim>(),
    record::<md::SetTime>(),
    record::<md::TruncatedChunk>(),
    record::<md::NewInode>(),
    record::<md::WrittenExtent>(),
    record::<md::ClosingReport>(),
    record::<md::ClosedFile>(),
    record::<md::OpenedFile>(),
    record::<md::SlotSequence>(),
    record::<md::SyncedChunkFiles>(),
    record::<ChunkFileSet>(),
    record::<md::DirectoryEntry>(),
    record::<md::EntryReply>(),
    record::<md::TransactionId>(),
    record::<fl::LockRequest>(),
    record::<fl::HeldLock>(),
    record::<fl::ListedWait>(),
    record::<fl::LockParty>(),
    record::<sh::Notification>(),
    record::<il::InlineContents>(),
    record::<il::InlineMark>(),
    record::<ls::ShippedRecord>(),
    record::<ls::StoredPair>(),
    record::<ls::CopyProgress>(),
    record::<ls::MemberProgress>(),
    record::<GroupChange>(),
    record::<fl::FileUse>(),
    record::<mg::ClientEntry>(),
    record::<mg::LogLevelChange>(),
    record::<node::LogLevel>(),
    record::<node::StatisticsSeries>(),
    record::<tr::StageTimes>(),
    record::<tr::TraceRecord>(),
    record::<tr::TraceCall>(),
    record::<tr::TraceWait>(),
    record::<md::SessionEntry>(),
    record::<md::TransactionEntry>(),
    record::<md::CoordinatedEntry>(),
    record::<md::GroupFile>(),
    record::<st::StripeHint>(),
    choice::<FileKind>(),
    choice::<Redundancy>(),
    choice::<Chooser>(),
    choice::<PatternOrigin>(),
    choice::<UserPatterns>(),
    choice::<NodeKind>(),
    choice::<TargetKind>(),
    choice::<Reachability>(),
    choice::<Condition>(),
    choice::<EvictionCause>(),
    choice::<Consistency>(),
    choice::<CapacityPool>(),
    choice::<MemberState>(),
    choice::<MemberChange>(),
    choice::<ls::CopyStep>(),
    choice::<md::Outcome>(),
    choice::<md::OpenMode>(),
    choice::<md::XattrMode>(),
    choice::<md::Decision>(),
    choice::<md::Step>(),
    choice::<fl::LockKind>(),
    choice::<fl::LockMode>(),
];

/// A type, as parsed from the declaration of a field.
#[derive(Debug, PartialEq)]
pub(crate) enum Type<'a> {
    Named(&'a str),
    Vec(Box<Type<'a>>),
    Option(Box<Type<'a>>),
    Pair(Box<Type<'a>>, Box<Type<'a>>),
}

impl<'a> Type<'a> {
    /// Parses the notation of a type: a name, `Vec<..>`, `Option<..>` or `(.., ..)`.
    pub(crate) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let inside = |open: &str, close: &str| text.strip_prefix(open)?.strip_suffix(close);
        if let Some(item) = inside("Vec<", ">") {
            Self::Vec(Box::new(Self::parse(item)))
        } else if let Some(item) = inside("Option<", ">") {
            Self::Option(Box::new(Self::parse(item)))
        } else if let Some((first, second)) = inside("(", ")").and_then(|t| t.split_once(',')) {
            Self::Pair(Box::new(Self::parse(first)), Box::new(Self::parse(second)))
        } else {
            Self::Named(text)
        }
    }
}

/// Returns the type with this name.
///
/// # Panics
/// Panics if [`KINDS`] has no type with this name.
pub(crate) fn kind(name: &str) -> &'static Kind {
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.unwrap_or_else(|| panic!("add the type {name} to KINDS in crates/xtask/src/schema.rs"))
}

/// Reads fields in order, and returns their values as a JSON object.
///
/// # Errors
/// `Corrupt` if the bytes are malformed. The decoders of the messages return the same error.
pub(crate) fn read(fields: &[FieldDoc], r: &mut Reader<'_>) -> Result<Map<String, Value>> {
    fields
        .iter()
        .map(|field| Ok((field.name.to_owned(), read_type(&Type::parse(field.kind), r)?)))
        .collect()
}

fn read_type(of: &Type<'_>, r: &mut Reader<'_>) -> Result<Value> {
    Ok(match of {
        Type::Named(name) => read_named(kind(name), r)?,
        Type::Vec(item) => {
            let count = u32::decode(r)?;
            Value::Array((0..count).map(|_| read_type(item, r)).collect::<Result<_>>()?)
        }
        Type::Option(item) => {
            if bool::decode(r)? {
                read_type(item, r)?
            } else {
                Value::Null
            }
        }
        Type::Pair(first, second) => json!([read_type(first, r)?, read_type(second, r)?]),
    })
}

fn read_named(kind: &Kind, r: &mut Reader<'_>) -> Result<Value> {
    Ok(match (&kind.shape, kind.name) {
        (Shape::Record(fields), _) => Value::Object(read(fields, r)?),
        (Shape::Enum(variants), _) => {
            let number = u8::decode(r)?;
            let variant = variants.iter().find(|variant| variant.number == number);
            let variant = variant.ok_or_else(|| r.corrupt(format_args!("no {}", kind.name)))?;
            if variants.iter().all(|variant| variant.fields.is_empty()) {
                json!(variant.name)
            } else {
                json!({ variant.name: read(variant.fields, r)? })
            }
        }
        (Shape::Plain("u8"), _) => json!(u8::decode(r)?),
        (Shape::Plain("u16"), _) => json!(u16::decode(r)?),
        (Shape::Plain("u32"), _) => json!(u32::decode(r)?),
        (Shape::Plain("u64"), _) => json!(u64::decode(r)?),
        (Shape::Plain("i64"), _) => json!(i64::decode(r)?),
        (Shape::Plain("u128"), _) => json!(format!("0x{:032x}", u128::decode(r)?)),
        (Shape::Plain(_), "bool") => json!(bool::decode(r)?),
        (Shape::Plain(_), "Bytes") => json!(escape(&Bytes::decode(r)?)),
        (Shape::Plain(_), "String") => json!(String::decode(r)?),
        (Shape::Plain(_), "ClusterId") => json!(ClusterId::decode(r)?.to_string()),
        (Shape::Plain(layout), name) => {
            panic!("add {name} ({layout}) to read_named in crates/xtask/src/schema.rs")
        }
    })
}

/// Converts bytes to text. Printable ASCII characters except the backslash do not change, and all
/// other bytes become `\xNN`.
pub(crate) fn escape(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| match byte {
            b'\\' => "\\x5c".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => format!("\\x{byte:02x}"),
        })
        .collect()
}

/// Returns the size of a type in bytes. `None` means that the size varies.
pub(crate) fn fixed_bytes(of: &Type<'_>) -> Option<usize> {
    let all = |fields: &[FieldDoc]| -> Option<usize> {
        fields.iter().map(|field| fixed_bytes(&Type::parse(field.kind))).sum()
    };
    match of {
        Type::Vec(_) | Type::Option(_) => None,
        Type::Pair(first, second) => Some(fixed_bytes(first)? + fixed_bytes(second)?),
        Type::Named(name) => match &kind(name).shape {
            Shape::Record(fields) => all(fields),
            Shape::Enum(variants) => {
                variants.iter().all(|variant| variant.fields.is_empty()).then_some(1)
            }
            Shape::Plain(layout) => match *layout {
                "u8" | "u8 (0 or 1)" => Some(1),
                "u16" => Some(2),
                "u32" => Some(4),
                "u64" | "i64" => Some(8),
                "u128" | "u8[16]" => Some(16),
                _ => None,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::catalog::CATALOG;

    /// Returns all names of types in a parsed type.
    fn names<'a>(of: &Type<'a>) -> Vec<&'a str> {
        match of {
            Type::Named(name) => vec![name],
            Type::Vec(item) | Type::Option(item) => names(item),
            Type::Pair(first, second) => [names(first), names(second)].concat(),
        }
    }

    #[test]
    fn nested_type_notations_are_parsed() {
        let of = Type::parse("Vec<(TargetId, Option<Capacity>)>");
        assert_eq!(names(&of), ["TargetId", "Capacity"]);
        assert_eq!(fixed_bytes(&Type::parse("(TargetId, Timestamp)")), Some(16));
        assert_eq!(fixed_bytes(&of), None);
    }

    #[test]
    fn every_field_type_of_the_catalog_is_known_to_the_schema() {
        let mut fields: Vec<FieldDoc> = Vec::new();
        for line in CATALOG {
            fields.extend(line.fields.iter().chain(line.reply_fields));
        }
        for kind in KINDS {
            match kind.shape {
                Shape::Record(inner) => fields.extend(inner),
                Shape::Enum(variants) => fields.extend(variants.iter().flat_map(|v| v.fields)),
                Shape::Plain(_) => {}
            }
        }
        for field in fields {
            names(&Type::parse(field.kind)).into_iter().map(kind).for_each(|_| {});
        }
    }

    #[test]
    fn arbitrary_bytes_are_printed_without_loss() {
        assert_eq!(escape(b"a\\b \xc3\xa9"), "a\\x5cb \\xc3\\xa9");
    }
}
