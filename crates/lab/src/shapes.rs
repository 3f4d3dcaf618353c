//! The predefined descriptions of labs, called shapes.

use crate::description::Description;
use serde::Serialize;

/// A predefined description of a lab, with a name.
#[derive(Debug, Clone, Serialize)]
pub struct Shape {
    /// Name of the shape in commands.
    pub name: &'static str,
    /// The purpose of the shape.
    pub about: &'static str,
    /// Description of the lab.
    pub description: Description,
}

/// Returns all predefined shapes.
pub fn shapes() -> Vec<Shape> {
    let of = |name, about, text| Shape {
        name,
        about,
        description: Description::parse(text).expect("a test parses the built-in shapes"),
    };
    vec![
        of("small", "fits a laptop: two servers with two targets each, two clients", SMALL),
        of(
            "scenario1",
            "the servers' links are the limit; eight targets, eight clients",
            SCENARIO1,
        ),
        of(
            "scenario2",
            "the targets are the limit, and their rates vary; eight targets, eight clients",
            SCENARIO2,
        ),
        of(
            "azure",
            "the size of AzureCAT's BeeGFS cluster: 20 servers, 46 clients; the servers' links are \
             the limit",
            AZURE,
        ),
    ]
}

/// Returns the shape with the name `name`. `None` means that no shape has this name.
pub fn shape(name: &str) -> Option<Shape> {
    shapes().into_iter().find(|shape| shape.name == name)
}

const SMALL: &str = r#"
servers = 2
targets = 2
clients = 2
link = "200Mbit"
in_memory = true
"#;

const SCENARIO1: &str = r#"
servers = 2
targets = 4
clients = 8
link = "400Mbit"
in_memory = true
"#;

const SCENARIO2: &str = r#"
servers = 2
targets = 4
clients = 8
target_rate = "12MB/s"
target_variability = "10%"
in_memory = true
"#;

// Each server has one target, as in the published cluster, in which a target is an array of ten
// disks.
const AZURE: &str = r#"
servers = 20
targets = 1
clients = 46
link = "40Mbit"
in_memory = true
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shapes_are_valid_and_found_by_name() {
        for shape in shapes() {
            assert_eq!(shape.description.problems(), Vec::<String>::new(), "{}", shape.name);
            assert!(super::shape(shape.name).is_some());
        }
        assert!(shape("scenario9").is_none());
        let total = |name: &str| shape(name).and_then(|it| it.description.total_rate());
        assert_eq!(total("scenario1"), Some(100_000_000));
        assert_eq!(total("scenario2"), Some(96_000_000));
        assert_eq!(total("azure"), Some(100_000_000));
    }
}
