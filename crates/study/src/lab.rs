//! The lab of a plan: returns its description, and represents a running lab as a [`Place`].

use crate::plan::Lab;
use crate::record::LimitRecord;
use crate::runner::Place;
use skep_bench::Host;
use skep_lab::{Description, Rate, Role, State, shape, shapes};
use skep_types::{Error, ErrorCode, Result};
use std::path::Path;

fn wrong(what: String) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// Returns the description of the lab that a plan describes: a predefined shape, with the plan's
/// changes to this shape.
///
/// # Errors
/// `Configuration` if the shape is unknown or a rate is malformed. The error names the key of the
/// plan.
pub fn description(lab: &Lab) -> Result<Description> {
    let found = shape(&lab.shape).ok_or_else(|| {
        let names: Vec<&str> = shapes().iter().map(|shape| shape.name).collect();
        let known = names.join(", ");
        wrong(format!("`lab.shape`: unknown shape \"{}\"; the shapes are {known}", lab.shape))
    })?;
    let rate = |key: &str, text: &Option<String>| -> Result<Option<Rate>> {
        let parsed = text.as_ref().map(|text| text.parse::<Rate>()).transpose();
        parsed.map_err(|what| wrong(format!("`lab.{key}`: {what}")))
    };
    let mut description = found.description;
    description.servers = lab.servers.unwrap_or(description.servers);
    description.targets = lab.targets.unwrap_or(description.targets);
    description.clients = lab.clients.unwrap_or(description.clients);
    description.metadata_servers = lab.metadata_servers.unwrap_or(description.metadata_servers);
    description.metadata_link =
        rate("metadata-link", &lab.metadata_link)?.or(description.metadata_link);
    description.link = rate("link", &lab.link)?.or(description.link);
    description.client_link = rate("client-link", &lab.client_link)?.or(description.client_link);
    description.target_rate = rate("target-rate", &lab.target_rate)?.or(description.target_rate);
    match description.problems() {
        problems if problems.is_empty() => Ok(description),
        problems => Err(wrong(format!("`lab`: {}", problems.join("; ")))),
    }
}

/// Returns a running lab as a place in which a study can run.
///
/// # Errors
/// `NotReady` if a client of the lab has no mount.
pub fn place(state: &State) -> Result<Place> {
    let clients: Vec<&skep_lab::Host> = state.hosts_of(Role::Client).collect();
    let mount = clients.first().and_then(|client| client.mount_point.as_deref());
    let above = mount.and_then(Path::parent).ok_or_else(|| {
        Error::new(
            ErrorCode::NotReady,
            format!("cannot use lab '{}': the lab has no mounts", state.name),
        )
    })?;
    let host = |it: &&skep_lab::Host| Host { name: it.name.clone(), enter: it.enter() };
    Ok(Place {
        name: format!("lab {}", state.name),
        hosts: clients.iter().map(host).collect(),
        // All hosts of the lab share one kernel with its caches, so a drop of the caches on the
        // clients suffices.
        server_hosts: Vec::new(),
        path: above.join("{host}").display().to_string(),
        path_here: above.join(&clients[0].name),
        is_emulated: true,
        limit: limit(&state.description),
    })
}

/// Returns the rates of the hosts that a lab emulates. The rate of a server is the smaller rate of
/// its link and of all its targets together.
fn limit(description: &Description) -> LimitRecord {
    let targets = description
        .target_rate
        .map(|rate| rate.bytes_per_second().saturating_mul(u64::from(description.targets)));
    let link = description.link.map(Rate::bytes_per_second);
    LimitRecord {
        server_bytes_per_second: [link, targets].into_iter().flatten().min(),
        client_bytes_per_second: description.client_link.map(Rate::bytes_per_second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn of(keys: &str) -> Result<Description> {
        let text = format!(
            "name = 'x'\ntitle = 't'\nlab = {{ {keys} }}\n[[experiment]]\nname = 'a'\ntitle = 'a'\n"
        );
        description(&Plan::parse(&text).expect("a plan").lab.expect("a lab"))
    }

    #[test]
    fn plan_overrides_keys_of_its_lab_shape() {
        let plain = shape("small").expect("a shape").description;
        assert_eq!(of("shape = 'small'").expect("a lab"), plain);
        let other = of("shape = 'small', targets = 3, link = '80Mbit', metadata-servers = 2");
        let other = other.expect("a lab");
        assert_eq!((other.targets, other.clients), (3, plain.clients));
        assert_eq!((plain.metadata_servers, other.metadata_servers), (1, 2));
        assert_eq!(other.link.map(Rate::bytes_per_second), Some(10_000_000));
    }

    #[test]
    fn server_limit_is_the_lower_rate_of_its_link_and_targets() {
        let of = |keys: &str| {
            let limit =
                limit(&of(&format!("shape = 'small', targets = 2, {keys}")).expect("a lab"));
            (limit.server_bytes_per_second, limit.client_bytes_per_second)
        };
        assert_eq!(of("link = '80Mbit'"), (Some(10_000_000), None));
        assert_eq!(of("link = '80Mbit', target-rate = '2MB/s'"), (Some(4_000_000), None));
        let both = of("link = '80Mbit', client-link = '40Mbit'");
        assert_eq!(both, (Some(10_000_000), Some(5_000_000)));
    }

    #[test]
    fn error_for_an_invalid_lab_names_the_wrong_key() {
        for (keys, words) in [
            ("shape = 'huge'", &["`lab.shape`", "huge", "scenario1"][..]),
            ("shape = 'small', link = 'fast'", &["`lab.link`", "fast"]),
            ("shape = 'small', metadata-link = 'slow'", &["`lab.metadata-link`", "slow"]),
            ("shape = 'small', clients = 0", &["`lab`", "clients 0"]),
            ("shape = 'small', metadata-servers = 0", &["`lab`", "metadata servers 0"]),
        ] {
            let error = of(keys).expect_err("refused");
            assert_eq!(error.code(), ErrorCode::Configuration);
            assert!(words.iter().all(|word| error.context().contains(word)), "{error}");
        }
    }
}
