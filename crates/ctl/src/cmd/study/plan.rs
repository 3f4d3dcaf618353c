//! `skep study plan`: the text of a ready plan, as it would stand in a file.

use crate::output::say;
use skep_types::Result;

pub(crate) fn run(name: &str) -> Result<()> {
    say(skep_study::plans::text(name)?.trim_end())
}
