//! The log of a member, and sets of records and of members. All these types are small, because the
//! checker stores some hundred thousand states.

/// A log record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Epoch in which a primary created the record. Members compare only the epoch and the index of
    /// a record.
    pub epoch: u8,
    /// Identifies the contents of the record. Each record of a run has a different identity, from
    /// 1. Only the properties of the model compare identities; members do not.
    pub identity: u8,
}

const BITS: u32 = 8;
const BITS_OF_IDENTITY: u32 = 4;

/// The records of a log. The first record has the index 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Log(u128);

impl Log {
    /// Maximum number of records that a run creates, and maximum epoch.
    pub const MAX: u8 = 15;

    /// Returns the index of the last record, counted from 1. Zero means that the log is empty.
    pub fn last(self) -> u8 {
        (u128::BITS - self.0.leading_zeros()).div_ceil(BITS) as u8
    }

    /// Returns the record with this index. The log must have this record.
    pub fn record(self, number: u8) -> Record {
        assert!(1 <= number && number <= self.last(), "the log has record {number}");
        let bits = (self.0 >> (u32::from(number - 1) * BITS)) as u8;
        Record { epoch: bits >> BITS_OF_IDENTITY, identity: bits & Self::MAX }
    }

    /// Returns the epoch of the record with this index. The epoch of record 0 is zero.
    pub fn epoch_of(self, number: u8) -> u8 {
        if number == 0 { 0 } else { self.record(number).epoch }
    }

    /// Returns the log with one more record.
    #[must_use]
    pub fn with(self, record: Record) -> Self {
        assert!(record.epoch <= Self::MAX && record.identity <= Self::MAX, "{record:?} fits");
        let bits = record.epoch << BITS_OF_IDENTITY | record.identity;
        Self(self.0 | u128::from(bits) << (u32::from(self.last()) * BITS))
    }

    /// Returns the log without the records after `last`.
    #[must_use]
    pub fn up_to(self, last: u8) -> Self {
        if last >= self.last() {
            return self;
        }
        Self(self.0 & ((1 << (u32::from(last) * BITS)) - 1))
    }

    /// Returns the set of the records.
    pub fn records(self) -> Records {
        let numbers = 1..=self.last();
        Records(numbers.fold(0, |set, number| set | 1 << self.record(number).identity))
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        let records = (1..=self.last()).map(|number| self.record(number));
        let texts = records.map(|record| format!("{}.{}", record.epoch, record.identity));
        formatter.write_str(&texts.collect::<Vec<_>>().join(" "))
    }
}

/// A set of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Records(u16);

impl Records {
    /// Returns the set of the records with the identities 1 to `last`.
    pub fn first(last: u8) -> Self {
        Self((1..=last).fold(0, |set, identity| set | 1 << identity))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the records that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set has no record.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Position of a member in the list of the group's members.
pub type Index = usize;

/// A set of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Members(u8);

impl Members {
    /// Returns the set of the first `count` members.
    pub fn first(count: usize) -> Self {
        Self((1 << count) - 1)
    }

    /// Whether the set has this member.
    pub fn has(self, member: Index) -> bool {
        self.0 & 1 << member != 0
    }

    /// Returns the set with this member.
    #[must_use]
    pub fn with(self, member: Index) -> Self {
        Self(self.0 | 1 << member)
    }

    /// Returns the set without this member.
    #[must_use]
    pub fn without(self, member: Index) -> Self {
        Self(self.0 & !(1 << member))
    }

    /// Returns the members that are not in `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set has no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the members in their order.
    pub fn iter(self) -> impl Iterator<Item = Index> {
        (0..8).filter(move |member| self.has(*member))
    }
}

/// The records of the group's log that a member has appended and synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Progress {
    /// Index of the last record that the member has appended.
    pub appended: u8,
    /// Index of the last record that the member has synced.
    pub synced: u8,
}

impl Progress {
    /// Returns the greater value of each field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { appended: self.appended.max(other.appended), synced: self.synced.max(other.synced) }
    }

    /// Whether `appended` and `synced` are at least as high as in `other`.
    pub fn reaches(self, other: Self) -> bool {
        self.appended >= other.appended && self.synced >= other.synced
    }
}
