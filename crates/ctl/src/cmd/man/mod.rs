//! `skep man`: writes a manual page for each command, or the pages of docs/commands.

pub(crate) mod manual;
mod markdown;

use crate::help::{Example, examples};
use crate::output::print;
use clap::Command;
use serde::Serialize;
use skep_types::{Error, Result};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[("write all manual pages", "skep man --dir /usr/local/share/man")];

/// Write the manual pages of all commands and of mount.skep
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ManArgs {
    /// Directory of manual pages; its subdirectories man1 and man8 are created if missing
    #[arg(long)]
    dir: PathBuf,
    /// Write the pages of docs/commands instead
    #[arg(long = "markdown", hide = true)]
    is_markdown: bool,
}

/// The JSON output: the pages that the command has written.
#[derive(Debug, Serialize)]
struct WrittenPages {
    directory: String,
    pages: usize,
}

pub(crate) fn run(args: &ManArgs, command: Command) -> Result<()> {
    let ManArgs { dir: directory, is_markdown } = args;
    let pages = match is_markdown {
        true => {
            markdown::pages(command).into_iter().map(|(name, text)| (name + ".md", text)).collect()
        }
        false => manual::pages(command),
    };
    for (name, text) in &pages {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(directory);
        std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text)).map_err(
            |error| Error::from(error).within(format_args!("cannot write {}", path.display())),
        )?;
    }
    let written = WrittenPages { directory: directory.display().to_string(), pages: pages.len() };
    print(&written, |it| format!("Wrote {} manual pages to {}.", it.pages, it.directory))
}
