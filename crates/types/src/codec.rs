//! Binary encoding: a bounds-checked little-endian reader and writer, the [`Codec`] trait,
//! checksums, and the `record!` macro, which derives the layout of a struct from its fields.
//!
//! Decoding never panics on bytes from the network or the disk. The decoder returns `Corrupt` with
//! the offset.

use crate::error::{Error, ErrorCode, Result};

mod bytes;

pub use crate::{choice, record};
pub use bytes::Bytes;

/// Returns the CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Encodes values into a growing byte vector.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Creates an empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a writer that appends to `bytes`.
    pub fn over(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Appends bytes without a length prefix.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Allocates space for `count` more bytes.
    pub fn reserve(&mut self, count: usize) {
        self.bytes.reserve(count);
    }

    /// Returns the number of bytes in the vector.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the vector.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Decodes values one after the other from a byte slice.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Consumes the next `count` bytes.
    ///
    /// # Errors
    /// Returns `Corrupt` if fewer bytes are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let left = self.bytes.len() - self.at;
        if count > left {
            return Err(self.corrupt(format_args!("expected {count} bytes, found only {left}")));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    /// Consumes the next `N` bytes as an array.
    ///
    /// # Errors
    /// Returns `Corrupt` if fewer bytes are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Returns the number of bytes not yet consumed.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns a `Corrupt` error with the current offset and `what`.
    pub fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorCode::Corrupt, format!("at byte {}: {what}", self.at))
    }

    /// Checks that all bytes were consumed.
    ///
    /// # Errors
    /// Returns `Corrupt` if bytes are left.
    pub fn finish(self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.corrupt(format_args!("{left} bytes follow the end of the record"))),
        }
    }
}

/// A type with a fixed binary layout, the same on the wire and on disk.
pub trait Codec: Sized {
    /// Description of the layout in the generated reference, such as `u32` or `u16 length, bytes`.
    const LAYOUT: &'static str;

    /// Appends the encoded value to `w`.
    fn encode(&self, w: &mut Writer);

    /// Decodes the next value of `r`.
    ///
    /// # Errors
    /// Returns `Corrupt` with the offset if the bytes do not encode a value of this type.
    fn decode(r: &mut Reader<'_>) -> Result<Self>;

    /// Returns the encoded value.
    fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.encode(&mut w);
        w.finish()
    }

    /// Decodes a value that must fill all of `bytes`.
    ///
    /// # Errors
    /// Returns `Corrupt` if the bytes do not encode a value of this type, or if bytes are left
    /// after it.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let value = Self::decode(&mut r)?;
        r.finish()?;
        Ok(value)
    }
}

macro_rules! integers {
    ($($int:ident)*) => {$(
        impl Codec for $int {
            const LAYOUT: &'static str = stringify!($int);
            fn encode(&self, w: &mut Writer) {
                w.raw(&self.to_le_bytes());
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self> {
                Ok(Self::from_le_bytes(r.array()?))
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 u128 i64);

impl Codec for bool {
    const LAYOUT: &'static str = "u8 (0 or 1)";
    fn encode(&self, w: &mut Writer) {
        u8::from(*self).encode(w);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        match u8::decode(r)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(r.corrupt(format_args!("expected 0 or 1, found {other}"))),
        }
    }
}

impl Codec for String {
    const LAYOUT: &'static str = "u32 length, UTF-8 bytes";
    fn encode(&self, w: &mut Writer) {
        (self.len() as u32).encode(w);
        w.raw(self.as_bytes());
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let len = u32::decode(r)? as usize;
        let bytes = r.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(r.corrupt("the text is not UTF-8")),
        }
    }
}

/// Maximum number of bytes of memory for a decoded list. `MOST_GROWTH` more bytes are allowed for
/// each byte of remaining input.
const SMALL_LIST_BYTES: usize = 1 << 20;
const MOST_GROWTH: usize = 16;
impl<T: Codec> Codec for Vec<T> {
    const LAYOUT: &'static str = "u32 count, items";
    fn encode(&self, w: &mut Writer) {
        (self.len() as u32).encode(w);
        self.iter().for_each(|item| item.encode(w));
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let count = u32::decode(r)? as usize;
        // An encoded item has at least one byte. The two checks limit the memory of the list by the
        // size of the input.
        if count > r.left() {
            return Err(r.corrupt(format_args!("{count} items do not fit into {} bytes", r.left())));
        }
        let item_bytes = std::mem::size_of::<T>().max(1);
        if count.saturating_mul(item_bytes) > SMALL_LIST_BYTES + MOST_GROWTH * r.left() {
            return Err(r.corrupt(format_args!("a list of {count} items takes too much memory")));
        }
        let mut items = Self::with_capacity(count.min(r.left() / item_bytes));
        for _ in 0..count {
            items.push(T::decode(r)?);
        }
        Ok(items)
    }
}

impl<T: Codec> Codec for Option<T> {
    const LAYOUT: &'static str = "u8 (0: none, 1: some), item";
    fn encode(&self, w: &mut Writer) {
        self.is_some().encode(w);
        if let Some(item) = self {
            item.encode(w);
        }
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(if bool::decode(r)? { Some(T::decode(r)?) } else { None })
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    const LAYOUT: &'static str = "pair";
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
        self.1.encode(w);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok((A::decode(r)?, B::decode(r)?))
    }
}

/// Description of one field of a record, for the generated reference.
#[derive(Debug, Clone, Copy)]
pub struct FieldDoc {
    /// Name of the field in the source.
    pub name: &'static str,
    /// Type of the field in the source.
    pub kind: &'static str,
    /// Layout of the field: [`Codec::LAYOUT`].
    pub layout: &'static str,
    /// Doc comment of the field.
    pub doc: &'static str,
}

/// A record with a description for the generated reference.
pub trait Described {
    /// Name of the struct.
    const NAME: &'static str;
    /// Doc comment of the struct.
    const DOC: &'static str;
    /// Fields in the order of the encoding.
    const FIELDS: &'static [FieldDoc];
}

/// Description of one enum variant, for the generated reference.
#[derive(Debug, Clone, Copy)]
pub struct VariantDoc {
    /// The byte that encodes the variant.
    pub number: u8,
    /// Name of the variant in the source.
    pub name: &'static str,
    /// Doc comment of the variant.
    pub doc: &'static str,
    /// Fields that follow the byte, in the order of the encoding.
    pub fields: &'static [FieldDoc],
}

/// An enum with a description for the generated reference.
pub trait DescribedEnum {
    /// Name of the enum.
    const NAME: &'static str;
    /// Doc comment of the enum.
    const DOC: &'static str;
    /// Variants in ascending order of their numbers.
    const VARIANTS: &'static [VariantDoc];
}

/// Defines a struct whose layout is its fields in declaration order, each encoded by its own
/// [`Codec`], without padding.
///
/// ```
/// use skep_types::codec::{record, Codec};
/// record! {
///     /// A point.
///     pub struct Point {
///         /// To the right.
///         pub x: u16,
///         /// Upwards.
///         pub y: u32,
///     }
/// }
/// assert_eq!(Point { x: 1, y: 2 }.to_bytes(), [1, 0, 2, 0, 0, 0]);
/// ```
/// The macro expands to the struct with `Debug, Clone, PartialEq, Eq`, an `impl Codec` that encodes
/// and decodes `x`, then `y`, and an `impl Described` with names, layouts and doc comments.
#[macro_export]
macro_rules! record {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        pub struct $name:ident {
            $($(#[doc = $field_doc:literal])* pub $field:ident : $kind:ty,)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Eq $($(, $derive)*)?)]
        pub struct $name { $($(#[doc = $field_doc])* pub $field: $kind,)* }

        impl $crate::codec::Codec for $name {
            const LAYOUT: &'static str = stringify!($name);
            fn encode(&self, _w: &mut $crate::codec::Writer) {
                $($crate::codec::Codec::encode(&self.$field, _w);)*
            }
            fn decode(_r: &mut $crate::codec::Reader<'_>) -> $crate::Result<Self> {
                Ok(Self { $($field: $crate::codec::Codec::decode(_r)?,)* })
            }
        }

        impl $crate::codec::Described for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const FIELDS: &'static [$crate::codec::FieldDoc] = &[$($crate::codec::FieldDoc {
                name: stringify!($field),
                kind: stringify!($kind),
                layout: <$kind as $crate::codec::Codec>::LAYOUT,
                doc: concat!($($field_doc, "\n"),*),
            },)*];
        }
    };
}

/// Defines an enum without fields that is encoded as one byte.
#[macro_export]
macro_rules! byte_enum {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident {
            $($(#[doc = $variant_doc:literal])* $variant:ident = $number:literal,)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[doc = $variant_doc])* $variant = $number,)* }

        impl $crate::codec::Codec for $name {
            const LAYOUT: &'static str = "u8";
            fn encode(&self, w: &mut $crate::codec::Writer) {
                (*self as u8).encode(w);
            }
            fn decode(r: &mut $crate::codec::Reader<'_>) -> $crate::Result<Self> {
                match u8::decode(r)? {
                    $($number => Ok(Self::$variant),)*
                    other => Err(r.corrupt(format_args!(
                        concat!("{} is not a value of ", stringify!($name)), other))),
                }
            }
        }

        impl $crate::codec::DescribedEnum for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const VARIANTS: &'static [$crate::codec::VariantDoc] = &[$($crate::codec::VariantDoc {
                number: $number,
                name: stringify!($variant),
                doc: concat!($($variant_doc, "\n"),*),
                fields: &[],
            },)*];
        }
    };
}

/// Defines an enum whose variants may have named fields. The layout is one byte with the number of
/// the variant, then its fields in declaration order, each encoded by its own [`Codec`].
///
/// ```
/// use skep_types::codec::{choice, Codec};
/// choice! {
///     /// A shape.
///     pub enum Shape {
///         /// Round.
///         Circle = 1 {
///             /// Its radius.
///             radius: u16,
///         },
///         /// Nothing.
///         Empty = 2,
///     }
/// }
/// assert_eq!(Shape::Circle { radius: 5 }.to_bytes(), [1, 5, 0]);
/// assert_eq!(Shape::Empty.to_bytes(), [2]);
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[doc = $doc:literal])*
        pub enum $name:ident { $(
            $(#[doc = $variant_doc:literal])*
            $variant:ident = $number:literal $({
                $($(#[doc = $field_doc:literal])* $field:ident : $kind:ty,)*
            })?,
        )* }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $(
            $(#[doc = $variant_doc])*
            $variant $({ $($(#[doc = $field_doc])* $field: $kind,)* })?,
        )* }

        impl $crate::codec::Codec for $name {
            const LAYOUT: &'static str = "u8 variant, its fields";
            fn encode(&self, w: &mut $crate::codec::Writer) {
                match self {$(
                    Self::$variant { $($($field,)*)? } => {
                        <u8 as $crate::codec::Codec>::encode(&$number, w);
                        $($($crate::codec::Codec::encode($field, w);)*)?
                    }
                )*}
            }
            fn decode(r: &mut $crate::codec::Reader<'_>) -> $crate::Result<Self> {
                Ok(match <u8 as $crate::codec::Codec>::decode(r)? {
                    $($number => Self::$variant {
                        $($($field: $crate::codec::Codec::decode(r)?,)*)?
                    },)*
                    other => return Err(r.corrupt(format_args!(
                        concat!("{} is not a value of ", stringify!($name)), other))),
                })
            }
        }

        impl $crate::codec::DescribedEnum for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const VARIANTS: &'static [$crate::codec::VariantDoc] = &[$($crate::codec::VariantDoc {
                number: $number,
                name: stringify!($variant),
                doc: concat!($($variant_doc, "\n"),*),
                fields: &[$($($crate::codec::FieldDoc {
                    name: stringify!($field),
                    kind: stringify!($kind),
                    layout: <$kind as $crate::codec::Codec>::LAYOUT,
                    doc: concat!($($field_doc, "\n"),*),
                },)*)?],
            },)*];
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_counts_beyond_the_input_are_refused() {
        let bytes = u32::MAX.to_bytes();
        assert!(Vec::<u64>::from_bytes(&bytes).is_err());
        assert!(Bytes::from_bytes(&bytes).is_err());
        assert!(String::from_bytes(&bytes).is_err());
    }

    #[test]
    fn decoded_list_cannot_take_unbounded_memory() {
        type Large = Option<((u128, u128), (u128, u128))>;
        let list = |count: usize| vec![Large::None; count].to_bytes();
        assert_eq!(Vec::<Large>::from_bytes(&list(1000)).unwrap().len(), 1000);
        let error = Vec::<Large>::from_bytes(&list(1 << 20)).unwrap_err();
        assert!(error.context().contains("memory"), "{error}");
    }

    #[test]
    fn bytes_after_the_encoded_value_are_refused() {
        let error = u16::from_bytes(&[1, 2, 3]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.context().contains("at byte 2"), "{error}");
    }

    #[test]
    fn crc32c_has_the_known_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    proptest::proptest! {
        #[test]
        fn decoded_value_equals_the_encoded_value(
            a: u64, b: Vec<u32>, c: Option<String>, d: Vec<u8>, e: bool,
        ) {
            let value = (((a, b), (c, Bytes(d))), e);
            type All = (((u64, Vec<u32>), (Option<String>, Bytes)), bool);
            proptest::prop_assert_eq!(All::from_bytes(&value.to_bytes()).unwrap(), value);
        }
    }
}
