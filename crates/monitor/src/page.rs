//! The files of the web page, which are compiled into the program. The page loads no files from
//! other servers.

/// The path, type and content of each file.
pub(crate) const FILES: [(&str, &str, &str); 11] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("/app.js", JAVASCRIPT, include_str!("../page/app.js")),
    ("/charts.js", JAVASCRIPT, include_str!("../page/charts.js")),
    ("/findings.js", JAVASCRIPT, include_str!("../page/findings.js")),
    ("/format.js", JAVASCRIPT, include_str!("../page/format.js")),
    ("/span.js", JAVASCRIPT, include_str!("../page/span.js")),
    ("/tables.js", JAVASCRIPT, include_str!("../page/tables.js")),
    ("/values.mjs", JAVASCRIPT, include_str!("../page/values.mjs")),
    ("/views.js", JAVASCRIPT, include_str!("../page/views.js")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_refers_only_to_its_own_files() {
        for (path, _, text) in FILES {
            for word in ["http://", "https://", "//cdn", "@import"] {
                let outside = text.matches(word).count();
                let names_of_svg = text.matches("http://www.w3.org/2000/svg").count();
                let allowed = if word == "http://" { names_of_svg } else { 0 };
                assert_eq!(outside, allowed, "{path}: {word}");
            }
        }
    }

    /// Names of users, clients and paths are untrusted, and the page shows them as text nodes. So
    /// the page must not use any function that parses text as HTML or as a program.
    #[test]
    fn the_page_never_parses_text_as_html_or_program() {
        for (path, _, text) in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
            ] {
                assert!(!text.contains(word), "{path}: {word}");
            }
            for attribute in [" onclick=", " onload=", " style=", "javascript:"] {
                assert!(!text.contains(attribute), "{path}: {attribute}");
            }
        }
    }
}
