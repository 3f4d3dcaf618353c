//! All records that Skep's services keep on disk: layouts, versions, keys.
