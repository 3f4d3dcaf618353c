//! Comparisons of studies: one table and one figure with the results of several studies, for
//! example of several file systems.

use super::{Row, analyse, html, scaling, table};
use crate::journal::Contents;
use skep_types::Result;

/// Returns one table with the results of several studies, each with its name. Rows with equally
/// many clients and processes follow each other. `includes_invalid` means that the table includes
/// invalid runs.
pub fn compare(studies: &[(String, Contents)], includes_invalid: bool) -> Vec<Row> {
    let mut all = Vec::new();
    for (name, contents) in studies {
        let report = analyse(contents, includes_invalid);
        let limit = contents.study.limit.unwrap_or_default();
        all.extend(table::rows(name, contents, &report.experiments, limit));
    }
    // The sort is stable, so equal rows stay in the order of the studies.
    all.sort_by(|one, two| {
        let key = |it: &Row| (it.clients, it.processes, it.servers, it.condition.clone());
        key(one).cmp(&key(two))
    });
    all
}

/// Returns the names and contents of the files of a comparison: an HTML page that needs no network,
/// its figures, and the table as CSV.
///
/// # Errors
/// `Io` if a figure cannot be drawn.
pub fn compared_files(rows: &[Row]) -> Result<Vec<(String, Vec<u8>)>> {
    let drawn = scaling::draw(rows)?;
    let page = html::comparison("Comparison of studies", rows, &drawn);
    let mut files = vec![
        ("index.html".to_owned(), page.into_bytes()),
        ("table.csv".to_owned(), table::csv(rows).into_bytes()),
    ];
    files.extend(drawn.into_iter().map(|it| (it.file, it.svg.into_bytes())));
    Ok(files)
}
