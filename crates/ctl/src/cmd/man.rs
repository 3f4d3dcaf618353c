//! `skep man`: a manual page for each command, or the pages of docs/commands.

use crate::output::print;
use crate::{help, manual};
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
    let pages = match is_markdown {
        true => help::pages().into_iter().map(|(name, text)| (name + ".md", text)).collect(),
        false => manual::pages(),
    };
    for (name, text) in &pages {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(directory);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| Error::from(error).within(path.display()))?;
    }
    let written = Written { directory: directory.display().to_string(), pages: pages.len() };
    print(&written, |it| format!("{} pages are in {}.", it.pages, it.directory))
}
