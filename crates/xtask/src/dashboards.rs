//! `cargo xtask dashboards`: writes the dashboards for Grafana from one description
//! ([`description`]), and the list of their queries for the test with a real Prometheus.
//!
//! This module generates the JSON files in `dashboards/grafana`. People write the settings and
//! rules for Prometheus in `dashboards/prometheus`.

mod description;

use crate::repository::{Generated, Outcome, write_or_check};
use description::{DASHBOARDS, Dashboard, Form, Panel, Query, ROW};
use serde_json::{Map, Value, json};

/// Version of the dashboard format. Grafana 10 and later versions can read this version, and
/// convert it to their own version.
const SCHEMA_VERSION: u32 = 38;
/// Number of columns of Grafana's grid.
const COLUMNS: usize = 24;
/// The label matcher that replaces the word `CLUSTER` in queries.
const CLUSTER: &str = "skep_cluster=~\"$cluster\"";
/// The interval that replaces the word `RATE` in queries. Grafana sets this interval to at least
/// four scrape intervals.
const RATE: &str = "$__rate_interval";

/// Writes the dashboards, or (with `check`) checks that the dashboards are up to date.
///
/// # Errors
/// Lists the stale files, or describes the reason why a file cannot be written.
pub(crate) fn run(check: bool) -> Outcome {
    write_or_check(&files(), check, "cargo xtask dashboards")
}

fn files() -> Vec<Generated> {
    let dashboards = DASHBOARDS.iter().map(|dashboard| Generated {
        path: format!("dashboards/grafana/skep-{}.json", dashboard.name).into(),
        text: text(&of(dashboard)),
    });
    dashboards.collect()
}

fn text(value: &Value) -> String {
    format!("{value:#}\n")
}

fn expression(template: &str) -> String {
    template.replace("CLUSTER", CLUSTER).replace("RATE", RATE)
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn of(dashboard: &Dashboard) -> Value {
    let mut variables = vec![
        json!({
            "name": "datasource", "label": "Prometheus", "type": "datasource",
            "query": "prometheus", "refresh": 1,
        }),
        json!({
            "name": "cluster", "label": "Cluster", "type": "query", "datasource": datasource(),
            "query": { "query": "label_values(skep_node_info, skep_cluster)", "refId": "cluster" },
            "refresh": 2, "includeAll": true, "multi": true,
            // This pattern also matches series without a cluster label. Prometheus stores series
            // without a cluster label if it does not use service discovery.
            "allValue": ".*",
            "current": { "text": "All", "value": "$__all" },
        }),
    ];
    if dashboard.has_target {
        let query = expression("label_values(skep_target_size_bytes{CLUSTER}, target)");
        variables.push(json!({
            "name": "target", "label": "Target", "type": "query", "datasource": datasource(),
            "query": { "query": query, "refId": "target" },
            "refresh": 2, "sort": 3,
        }));
    }
    json!({
        "uid": format!("skep-{}", dashboard.name),
        "title": dashboard.title,
        "description": dashboard.help,
        "tags": ["skep"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "timezone": "browser",
        "links": [{
            "type": "dashboards", "tags": ["skep"], "title": "Skep", "includeVars": true,
            "keepTime": true,
        }],
        "templating": { "list": variables },
        "panels": panels(dashboard.panels),
    })
}

/// Places the panels in rows. A row has four panels with a number, one table, or two panels of any
/// other form.
fn panels(panels: &[Panel]) -> Vec<Value> {
    let (mut x, mut y, mut row_height) = (0, 0, 0);
    let mut placed = Vec::new();
    for (index, panel) in panels.iter().enumerate() {
        let (width, height) = match panel.form {
            Form::Number => (COLUMNS / 4, 4),
            Form::Table => (COLUMNS, 8),
            _ => (COLUMNS / 2, 8),
        };
        if x + width > COLUMNS || (row_height > 0 && height != row_height) {
            (x, y) = (0, y + row_height);
        }
        let mut value = of_panel(panel);
        value["id"] = (index + 1).into();
        value["gridPos"] = json!({ "x": x, "y": y, "w": width, "h": height });
        placed.push(value);
        x += width;
        row_height = height;
    }
    placed
}

fn of_panel(panel: &Panel) -> Value {
    let format = match panel.form {
        Form::Heat => "heatmap",
        Form::Table => "table",
        Form::Number | Form::Lines | Form::Areas => "time_series",
    };
    let is_instant = matches!(panel.form, Form::Number | Form::Table);
    let queries = panel.queries.iter().zip('A'..).map(|(query, id)| {
        json!({
            "refId": id.to_string(),
            "datasource": datasource(),
            "expr": expression(query.expression),
            "legendFormat": query.legend,
            "format": format,
            "instant": is_instant,
            "range": !is_instant,
        })
    });
    let mut value = json!({
        "title": panel.title,
        "description": panel.help,
        "datasource": datasource(),
        "targets": queries.collect::<Vec<_>>(),
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
    });
    let legend = json!({ "displayMode": "list", "placement": "bottom", "showLegend": true });
    match panel.form {
        Form::Number => {
            value["type"] = "stat".into();
            value["options"] = json!({
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "colorMode": "none", "graphMode": "none",
            });
        }
        Form::Lines | Form::Areas => {
            let is_stacked = panel.form == Form::Areas;
            value["type"] = "timeseries".into();
            value["options"] = json!({ "legend": legend, "tooltip": { "mode": "multi" } });
            value["fieldConfig"]["defaults"]["custom"] = json!({
                "fillOpacity": if is_stacked { 40 } else { 0 },
                "stacking": { "mode": if is_stacked { "normal" } else { "none" }, "group": "A" },
            });
        }
        Form::Heat => {
            value["type"] = "heatmap".into();
            value["options"] = json!({
                "calculate": false,
                "yAxis": { "unit": panel.unit },
                "color": { "mode": "scheme", "scheme": "Blues", "steps": 32 },
                "cellGap": 0,
            });
        }
        Form::Table => {
            value["type"] = "table".into();
            value["options"] = json!({ "showHeader": true });
            value["transformations"] = columns(panel);
            value["fieldConfig"]["overrides"] = units(panel);
        }
    }
    value
}

/// Returns the transformations that make one table of the results of all queries. The
/// transformations merge rows with equal labels, and set the titles and the order of the columns.
fn columns(panel: &Panel) -> Value {
    // Grafana names the values of query A `Value #A`.
    let values = panel.queries.iter().zip('A'..);
    let values = values.map(|(query, id)| (format!("Value #{id}"), query.legend));
    let [target, server, cluster] = ROW;
    let labels = [(target.to_owned(), "Target"), (server.to_owned(), "Server")];
    let (mut titles, mut order) = (Map::new(), Map::new());
    for (position, (name, title)) in labels.into_iter().chain(values).enumerate() {
        titles.insert(name.clone(), title.into());
        order.insert(name, position.into());
    }
    json!([
        { "id": "merge", "options": {} },
        { "id": "organize", "options": {
            "excludeByName": { "Time": true, cluster: true },
            "indexByName": order,
            "renameByName": titles,
        }},
    ])
}

/// Returns the units of the columns of a table, by the titles of the columns.
fn units(panel: &Panel) -> Value {
    let unit = |query: &Query| {
        let unit = query.unit?;
        Some(json!({
            "matcher": { "id": "byName", "options": query.legend },
            "properties": [{ "id": "unit", "value": unit }],
        }))
    };
    panel.queries.iter().filter_map(unit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;
    use std::collections::BTreeSet;

    #[test]
    fn dashboard_queries_use_only_known_metrics_and_labels() {
        let metric = Regex::new(r"(skep_[a-z0-9_]+)\{([^}]*)\}").unwrap();
        let matcher = Regex::new(r#"([a-z_]+)(?:=~|!=|=)""#).unwrap();
        let known = skep_metrics::catalog::all();
        let find = |name: &str| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            known.iter().find(|it| {
                let exposed = it.exposed_name();
                exposed == name
                    || (it.kind == skep_metrics::Kind::Histogram && Some(&*exposed) == base)
            })
        };
        let mut queries = 0;
        for query in DASHBOARDS.iter().flat_map(|it| it.panels).flat_map(|it| it.queries) {
            queries += 1;
            assert!(
                query.expression.contains("CLUSTER") && !query.expression.contains("[5m]"),
                "{}: chosen cluster and interval",
                query.expression
            );
            for found in metric.captures_iter(query.expression) {
                let definition = find(&found[1]);
                let definition = definition.unwrap_or_else(|| panic!("{}: no metric", &found[1]));
                for label in matcher.captures_iter(&found[2]) {
                    let of_scrape = label[1].starts_with("skep_");
                    assert!(
                        of_scrape || definition.labels.contains(&&label[1]),
                        "{} has no label {}",
                        &found[1],
                        &label[1]
                    );
                }
            }
        }
        assert!(queries > 60, "{queries} queries");
    }

    #[test]
    fn dashboard_panels_fill_the_grid_without_overlap() {
        for dashboard in DASHBOARDS {
            let mut used = BTreeSet::new();
            for panel in panels(dashboard.panels) {
                let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
                for x in at("x")..at("x") + at("w") {
                    for y in at("y")..at("y") + at("h") {
                        assert!(x < COLUMNS as u64);
                        assert!(used.insert((x, y)), "{}: {}", dashboard.name, panel["title"]);
                    }
                }
            }
        }
    }

    #[test]
    fn dashboard_tables_have_target_rows_and_a_unit_per_column() {
        let all = DASHBOARDS.iter().flat_map(|it| it.panels);
        let tables: Vec<_> = all.filter(|panel| panel.form == Form::Table).collect();
        assert!(!tables.is_empty());
        for table in tables {
            let value = of_panel(table);
            let organize = &value["transformations"][1]["options"];
            let titles = organize["renameByName"].as_object().unwrap();
            assert_eq!(titles.len(), table.queries.len() + 2, "{}", table.title);
            assert_eq!(titles["Value #A"], table.queries[0].legend);
            assert_eq!(organize["indexByName"]["Value #A"], 2);
            let units = value["fieldConfig"]["overrides"].as_array().unwrap();
            assert_eq!(units.len(), table.queries.len(), "{}", table.title);
            for query in table.queries {
                let rows = format!("sum by ({}) (", ROW.join(", "));
                assert!(query.expression.contains(&rows), "{}", query.expression);
            }
        }
    }

    #[test]
    fn dashboards_and_panels_have_distinct_names_and_a_description() {
        let names: BTreeSet<_> = DASHBOARDS.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), DASHBOARDS.len());
        for dashboard in DASHBOARDS {
            let titles: BTreeSet<_> = dashboard.panels.iter().map(|it| it.title).collect();
            assert_eq!(titles.len(), dashboard.panels.len(), "{}", dashboard.name);
            assert!(dashboard.panels.iter().all(|panel| panel.help.ends_with('.')));
        }
    }

    #[test]
    fn written_dashboards_are_up_to_date() {
        run(true).unwrap();
    }
}
