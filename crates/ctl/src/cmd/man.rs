//! `skep man`: a manual page for each command, or the pages of docs/commands.

use crate::help;
use crate::output::print;
use serde::Serialize;
use skep_types::{Error, Result};
use std::path::Path;

/// What was written.
#[derive(Debug, Serialize)]
struct Written {
    directory: String,
    pages: usize,
}

pub(super) fn run(directory: &Path, is_markdown: bool) -> Result<()> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    match is_markdown {
        true => {
            for (name, text) in help::pages() {
                std::fs::write(directory.join(name + ".md"), text).map_err(failed)?;
            }
        }
        false => clap_mangen::generate_to(help::command(), directory).map_err(failed)?,
    }
    let pages = std::fs::read_dir(directory).map_err(failed)?.count();
    print(&Written { directory: directory.display().to_string(), pages }, |it| {
        format!("{} has {} pages.", it.directory, it.pages)
    })
}
