//! What can be typed after `skep study`.

use clap::Subcommand;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum StudyVerb {
    /// List the plans that are ready to run
    Plans,
    /// Print a ready plan, to look at or to change
    Plan {
        /// Its name
        name: String,
    },
    /// Say what the results of a study mean: a page, figures, tables
    Report {
        /// The study's directory; the report is written to its directory `report`
        directory: PathBuf,
    },
}
