//! The working directory of a service process.
//!
//! An administrator may start a service in any directory, and may remove this directory later. So a
//! service makes the paths in its settings absolute, and then changes to the root directory. The
//! key-value store of metadata targets, for example, panics in a directory that was removed. A
//! further effect is that a running service does not prevent the unmount of a file system in which
//! the service was started. The service manager starts services in the root directory too.

use skep_types::{Error, ErrorCode, Result};
use std::path::{Path, PathBuf};

/// Makes these paths absolute, and changes the working directory of this process to `/`. The caller
/// must not have other relative paths.
///
/// # Errors
/// `Configuration` if a path is relative and the working directory does not exist any more. The
/// error names the path.
pub fn leave<'a>(paths: impl IntoIterator<Item = &'a mut PathBuf>) -> Result<()> {
    for path in paths {
        *path = absolute(path)?;
    }
    std::env::set_current_dir("/").map_err(|error| {
        Error::new(ErrorCode::Io, format!("cannot change to the directory `/`: {error}"))
    })
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        let what = format!(
            "cannot find the directory {}: this path is relative, and the working directory of \
             this process was removed or cannot be read ({error}); start the service in another \
             directory, or set an absolute path",
            path.display()
        );
        Error::new(ErrorCode::Configuration, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_do_not_depend_on_the_working_directory() {
        assert_eq!(absolute(Path::new("/disk1/skep")).unwrap(), Path::new("/disk1/skep"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute(Path::new("disk1")).unwrap(), here.join("disk1"));
    }
}
