//! The options that select rows: `--filter` selects objects by their names, and `--node` selects
//! the load of one service.

use super::Division;
use super::show::{Line, full_name};
use crate::near_misses::hint;
use crate::view::node_named;
use skep_stats::LoadScope;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, Error, ErrorCode, NodeKind, Result};

/// Maximum length of a filter in characters. No name that the table shows is longer than this
/// limit.
pub(super) const MAX_FILTER_CHARS: usize = 256;

/// The options that select rows.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SelectionArgs {
    /// Show only the objects whose name or id contains this text, in upper or lower case. The sum
    /// covers only these objects
    #[arg(long, value_name = "TEXT", value_parser = filter_text)]
    filter: Option<Filter>,
    /// Show only the load of this service. With --by user, for example, the load that users cause
    /// at this service
    #[arg(long, value_name = "NAME|ID")]
    node: Option<String>,
}

fn filter_text(text: &str) -> Result<Filter, String> {
    match text.chars().count() {
        0 => Err("expected a part of a name or of an id".into()),
        1..=MAX_FILTER_CHARS => Ok(Filter::new(text)),
        _ => Err(format!("expected at most {MAX_FILTER_CHARS} characters")),
    }
}

/// A text that the name or the id of an object must contain, in upper or lower case. The empty
/// filter matches all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter(String);

impl Filter {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn matches(&self, line: &Line, by: Division) -> bool {
        let contains = |text: &str| text.to_lowercase().contains(&self.0);
        contains(&full_name(line, by)) || contains(&line.id)
    }
}

impl SelectionArgs {
    /// Returns the filter. It is empty without the option.
    pub(super) fn filter(&self) -> Filter {
        self.filter.clone().unwrap_or_default()
    }

    /// Whether the option `--node` is set.
    pub(super) fn has_node(&self) -> bool {
        self.node.is_some()
    }

    /// Returns the part of the cluster that the option `--node` names.
    ///
    /// # Errors
    /// - `NotFound` if there is no such node, with similar names.
    /// - `InvalidArgument` if several nodes have the name, or if the node is a client.
    pub(super) fn scope(&self, map: &ClusterMap) -> Result<LoadScope> {
        let Some(name) = &self.node else { return Ok(LoadScope::default()) };
        let node = node_named(map, name)?;
        if node.kind == NodeKind::Client {
            let what = format!(
                "cannot show the load of node '{name}': this node is a client, and only services \
                 count load; `skep stats --by client --filter '{}'` shows the load of this client",
                escape_controls(&node.name)
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        Ok(LoadScope { node: Some(node.id.raw()), target: None })
    }

    /// Returns an error if `--node` is set although `source` has no load of single nodes by objects
    /// of the kind `by`. The reason in the message begins with `source`, for example with `the
    /// monitor stores`.
    pub(super) fn check_has_nodes(&self, by: Division, source: &str) -> Result<()> {
        let has_nodes = matches!(by, Division::Node | Division::Target);
        if !self.has_node() || has_nodes {
            return Ok(());
        }
        let by = by.word();
        let what = format!(
            "cannot show the load of one node by {by}: {source} the load by {by} only for all \
             nodes together; leave out --node, or use --by target"
        );
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    /// Returns the lines that match the filter. If the filter matches no line, also returns a
    /// sentence about this, with similar names.
    pub(super) fn select(&self, lines: Vec<Line>, by: Division) -> (Vec<Line>, Option<String>) {
        let Some(filter) = &self.filter else { return (lines, None) };
        if lines.iter().any(|line| filter.matches(line, by)) {
            return (lines.into_iter().filter(|line| filter.matches(line, by)).collect(), None);
        }
        let names: Vec<_> = lines.iter().map(|line| full_name(line, by)).collect();
        let problem = format!(
            "no {} with load matches the filter '{}'{}",
            by.word(),
            escape_controls(filter.text()),
            hint(filter.text(), names.iter().map(String::as_str))
        );
        (Vec::new(), Some(problem))
    }
}

/// Whether a target or a node belongs to the scope. `id` has the form of the statistics of load.
/// The id `other` stands for objects of all nodes, and belongs to no single node.
pub(super) fn is_within(scope: LoadScope, by: Division, id: &str, map: &ClusterMap) -> bool {
    let Some(node) = scope.node else { return true };
    match by {
        Division::Node => id.parse::<u32>() == Ok(node),
        Division::Target => {
            let is_it = |it: &&skep_types::Target| it.id.raw().to_string() == id;
            map.targets.iter().find(is_it).is_some_and(|target| target.node.raw() == node)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::show::{Names, line};
    use super::*;
    use skep_stats::Row;
    use skep_types::{ClusterId, Node, NodeId, Target, TargetId, TargetKind};

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        for (id, kind, name) in
            [(4, NodeKind::Storage, "storage-1"), (9, NodeKind::Client, "host:/mnt")]
        {
            map.nodes.push(Node::online(NodeId::new(id), kind, name));
        }
        let target = Target::new(TargetId::new(7), TargetKind::Storage, NodeId::new(4), "/data");
        map.targets.push(target);
        map
    }

    fn lines(by: Division, ids: &[&str]) -> Vec<Line> {
        let names = Names::of(&map());
        let row = |id: &&str| Row { id: (*id).into(), ..Row::default() };
        ids.iter().map(|id| line(&row(id), by, &names)).collect()
    }

    fn with_filter(text: &str) -> SelectionArgs {
        SelectionArgs { filter: Some(filter_text(text).unwrap()), node: None }
    }

    #[test]
    fn filter_for_names_and_ids_ignores_upper_and_lower_case() {
        let shown = |text: &str, by, ids: &[&str]| {
            let (lines, _) = with_filter(text).select(lines(by, ids), by);
            lines.into_iter().map(|line| line.id).collect::<Vec<_>>()
        };
        assert_eq!(shown("STORAGE", Division::Target, &["7", "8"]), ["7"]);
        assert_eq!(shown("t8", Division::Target, &["7", "8"]), ["8"]);
        assert_eq!(shown("/mnt", Division::Client, &["9", "10"]), ["9"]);
        assert_eq!(shown("left", Division::Client, &["9", "10"]), ["10"]);
        assert_eq!(
            shown("chunk", Division::Operation, &["write_chunk", "lookup"]),
            ["write_chunk"]
        );
        assert_eq!(shown("12", Division::User, &["12345", "54321"]), ["12345"]);
        for wrong in [String::new(), "x".repeat(MAX_FILTER_CHARS + 1)] {
            assert!(filter_text(&wrong).is_err());
        }
    }

    #[test]
    fn filter_without_a_match_names_similar_objects() {
        let by = Division::Operation;
        let (shown, problem) =
            with_filter("wirte_chunk\n").select(lines(by, &["write_chunk", "lookup"]), by);
        let expected = "no operation with load matches the filter 'wirte_chunk\\n' \
                        (similar: write_chunk)";
        assert_eq!((shown.len(), problem.as_deref()), (0, Some(expected)));
        assert_eq!(with_filter("look").select(lines(by, &["lookup"]), by).1, None);
        assert_eq!(SelectionArgs::default().select(lines(by, &["lookup"]), by).0.len(), 1);
    }

    #[test]
    fn option_node_must_name_a_service_of_the_cluster() {
        let scope = |name: &str| {
            let args = SelectionArgs { filter: None, node: Some(name.into()) };
            args.scope(&map()).map_err(|error| error.context().to_owned())
        };
        let expected = LoadScope { node: Some(4), target: None };
        assert_eq!((scope("storage-1"), scope("n4")), (Ok(expected), Ok(expected)));
        assert!(scope("storge-1").unwrap_err().contains("(similar: storage-1)"));
        assert!(scope("host:/mnt").unwrap_err().contains("--by client --filter 'host:/mnt'"));
        assert_eq!(SelectionArgs::default().scope(&map()), Ok(LoadScope::default()));
        let is_within = |by, id| is_within(expected, by, id, &map());
        assert!(is_within(Division::Target, "7") && is_within(Division::Node, "4"));
        assert!(!is_within(Division::Target, "8") && !is_within(Division::Node, "other"));
    }

    #[test]
    fn option_node_is_refused_if_the_rows_have_no_node() {
        let args = SelectionArgs { filter: None, node: Some("storage-1".into()) };
        let check = |by| args.check_has_nodes(by, "the monitor stores");
        assert!(check(Division::Target).is_ok() && check(Division::Node).is_ok());
        let refused = check(Division::User).unwrap_err();
        assert!(refused.context().contains("by user: the monitor stores"), "{refused}");
        assert!(SelectionArgs::default().check_has_nodes(Division::User, "").is_ok());
    }
}
