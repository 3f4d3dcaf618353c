//! Converts the replies of the HTTP interface to JSON, CSV or XML. The parameter `format` of a
//! request names the form.
//!
//! CSV has one table, so a reply with several lists needs the parameter `list`, which names the
//! list, such as `services` or `top.user`. The other formats have the whole reply.

use crate::series::{self, Parameters};
use serde_json::Value;
use skep_stats::{csv, xml};

/// The paths whose replies have a main list, each with the name of this list. A reply in CSV has
/// this list unless the request names another list.
const LISTS: [(&str, &str); 4] = [
    ("/api/load", "rows"),
    ("/api/operations", "operations"),
    ("/api/operation", "requests"),
    ("/api/reports", "reports"),
];
/// The default format.
const JSON: &str = "json";
/// The path whose reply has columns instead of a list of rows.
const HISTORY: &str = "/api/history";

fn format_of(parameters: &Parameters) -> &str {
    parameters.get("format").map_or(JSON, String::as_str)
}

/// Whether a request asks for JSON, which is the default.
pub(crate) fn is_json(parameters: &Parameters) -> bool {
    format_of(parameters) == JSON
}

/// Returns the content type and the body of a reply in the format that the parameter `format`
/// requests. Control characters that XML forbids are replaced.
///
/// # Errors
/// A description of the problem: the format is unknown, or a request for CSV does not name the list
/// that becomes the table.
pub(crate) fn in_format(
    path: &str,
    value: &Value,
    parameters: &Parameters,
) -> Result<(&'static str, String), String> {
    match format_of(parameters) {
        JSON => Ok(("application/json", value.to_string())),
        "xml" => Ok(("application/xml", xml::document("skep-monitor", value))),
        "csv" => Ok(("text/csv; charset=utf-8", as_csv(path, value, parameters)?)),
        other => Err(format!("unknown format '{other}': expected json, csv or xml")),
    }
}

fn as_csv(path: &str, value: &Value, parameters: &Parameters) -> Result<String, String> {
    if path == HISTORY {
        return Ok(series::as_csv(value));
    }
    let usual = LISTS.iter().find(|(known, _)| *known == path).map(|(_, list)| *list);
    let wanted = parameters.get("list").map(String::as_str).or(usual);
    let within = |name: &str| name.split('.').try_fold(value, |value, part| value.get(part));
    let found = wanted.and_then(|name| within(name)?.as_array());
    found.map(|rows| csv::table(rows)).ok_or_else(|| {
        let lists = lists_in(value, "").join(", ");
        format!("CSV has one table; choose it with list=NAME, one of: {lists}")
    })
}

/// Returns the names of the lists in an object and in the objects of its fields, with `prefix`
/// before each name.
fn lists_in(value: &Value, prefix: &str) -> Vec<String> {
    let fields = value.as_object().into_iter().flatten();
    let found = fields.flat_map(|(name, value)| match value {
        Value::Array(_) => vec![format!("{prefix}{name}")],
        Value::Object(_) if prefix.is_empty() => lists_in(value, &format!("{name}.")),
        _ => Vec::new(),
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parameters(text: &[(&str, &str)]) -> Parameters {
        text.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn csv_has_the_rows_of_the_requested_list() {
        let live = json!({
            "clients": 3,
            "services": [{ "id": 1, "name": "a,b" }, { "id": 2, "name": "=c", "cpu": 7 }],
            "targets": [],
        });
        let of = |list: &[(&str, &str)]| {
            in_format("/api/live", &live, &parameters(&[&[("format", "csv")][..], list].concat()))
        };
        let (kind, text) = of(&[("list", "services")]).unwrap();
        assert_eq!(kind, "text/csv; charset=utf-8");
        assert_eq!(text, "cpu,id,name\n,1,\"a,b\"\n7,2,'=c\n");
        for wrong in [&[][..], &[("list", "clients")], &[("list", "none")]] {
            let problem = of(wrong).unwrap_err();
            assert!(problem.ends_with("one of: services, targets"), "{problem}");
        }
        let nested = json!({ "all": [], "top": { "n": 1, "user": [{ "id": "7" }] } });
        let of = |list| {
            let parameters = parameters(&[("format", "csv"), ("list", list)]);
            in_format("/api/live", &nested, &parameters)
        };
        assert_eq!(of("top.user").unwrap().1, "id\n7\n");
        for wrong in ["top", "top.n", "top.user.id", ".", "user"] {
            let problem = of(wrong).unwrap_err();
            assert!(problem.ends_with("one of: all, top.user"), "{problem}");
        }
        let load = json!({ "rows": [{ "id": "1" }] });
        let text = in_format("/api/load", &load, &parameters(&[("format", "csv")])).unwrap().1;
        assert_eq!(text, "id\n1\n");
    }

    #[test]
    fn hostile_texts_are_escaped_in_xml() {
        let value = json!({ "rows": [{ "name": "</rows><x a=\"\u{1b}\">" }], "free": null });
        let (kind, text) =
            in_format("/api/load", &value, &parameters(&[("format", "xml")])).unwrap();
        assert_eq!(kind, "application/xml");
        let document = roxmltree::Document::parse(&text).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "skep-monitor");
        let name = root.descendants().find(|it| it.has_tag_name("name")).unwrap();
        assert_eq!(name.text(), Some("</rows><x a=\"\u{fffd}\">"));
    }

    #[test]
    fn json_is_the_default_and_unknown_formats_are_refused() {
        let value = json!({ "a": 1 });
        let of = |text: &[(&str, &str)]| in_format("/api/live", &value, &parameters(text));
        assert_eq!(of(&[]), Ok(("application/json", "{\"a\":1}".into())));
        assert!(of(&[("format", "yaml")]).unwrap_err().contains("expected json, csv or xml"));
    }
}
