//! What can be typed after `skep study`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum StudyVerb {
    /// List the plans that are ready to run
    Plans,
    /// Print a ready plan, to look at or to change
    Plan {
        /// Its name
        name: String,
    },
}
