//! A copy out of a file system on demand: the form in which hosts record it, and the paths that it
//! may have.

/// A copy out of a file system on demand. The copy must succeed before the file system is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageOut {
    /// Path of the source, below the mount point.
    pub source: String,
    /// Path of the destination, or a location in an object store.
    pub destination: String,
}

impl StageOut {
    /// Returns the copy in the form in which it is recorded: `SOURCE:DESTINATION`.
    pub fn shown(&self) -> String {
        format!("{}:{}", self.source, self.destination)
    }

    /// Parses the form that [`Self::shown`] returns.
    pub fn parse(note: &str) -> Option<Self> {
        let (source, destination) = note.split_once(':')?;
        Some(Self { source: source.to_owned(), destination: destination.to_owned() })
    }
}

/// Whether a text can be a path in the record of a stage-out and in a script. Such a text is an
/// absolute path, or a location in an object store.
pub(super) fn is_staged_path(path: &str) -> bool {
    let path = match path.strip_prefix("s3:/") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    };
    let is_good = |it: char| it != ':' && it != '\'' && !it.is_control();
    path.starts_with('/') && path.chars().all(is_good) && path.split('/').all(|it| it != "..")
}
