//! The description of the current state as JSON, which all readers of a round share.
//!
//! Each open page asks for this description each second. If the monitor computed the description
//! for each page, many open pages would use the processor share of the monitor, and make its rounds
//! longer.
//!
//! The readers do not share the time of the reply. The page compares this time with the time of the
//! newest frame, and so detects that the monitor makes no rounds any more.

use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;

/// Name of the field with the time of the reply, in milliseconds since 1970.
const NOW: &str = "now_ms";
/// Time for which a description is used if no collection round ends, in milliseconds. Slow
/// operations and the progress of background work arrive every two seconds, also between two
/// collection rounds.
const REUSED_MS: u64 = 2_000;

/// The description of the last round.
#[derive(Debug, Default)]
pub(crate) struct LiveCache(RefCell<Option<(u64, Rc<str>)>>);

impl LiveCache {
    /// Drops the description, because a round has ended.
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut() = None;
    }

    /// Returns the description as JSON, with the time `now_ms`. Calls `compute`, which returns an
    /// object, if the cache has no description or its description is too old.
    pub(crate) fn json(&self, now_ms: u64, compute: impl FnOnce() -> Value) -> String {
        let is_new = |made_ms: u64| now_ms.abs_diff(made_ms) < REUSED_MS;
        let known = self.0.borrow().clone().filter(|(made_ms, _)| is_new(*made_ms));
        let (_, fields) = known.unwrap_or_else(|| {
            let made = (now_ms, fields_of(&compute()));
            *self.0.borrow_mut() = Some(made.clone());
            made
        });
        format!("{{\"{NOW}\":{now_ms}{fields}}}")
    }
}

/// Returns the fields of an object as JSON, each after a comma, except for the time of the reply.
fn fields_of(object: &Value) -> Rc<str> {
    let mut text = String::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if name != NOW {
            text += &format!(",{}:{value}", Value::from(name.as_str()));
        }
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn readers_of_a_round_share_one_description() {
        let expected = |now_ms: u64, number: u64| {
            let more = json!([1, "c"]);
            json!({ "now_ms": now_ms, "a\"b": more, "number": number })
        };
        let mut cache = LiveCache::default();
        let mut computed = 0;
        let mut at = |cache: &LiveCache, now_ms: u64| -> Value {
            let text = cache.json(now_ms, || {
                computed += 1;
                expected(now_ms, computed)
            });
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(at(&cache, 10_000), expected(10_000, 1));
        assert_eq!(at(&cache, 10_900), expected(10_900, 1), "only the time of the reply is new");
        cache.clear();
        assert_eq!(at(&cache, 11_000), expected(11_000, 2), "a round has ended");
        assert_eq!(at(&cache, 12_999), expected(12_999, 2));
        assert_eq!(at(&cache, 13_000), expected(13_000, 3), "rounds are a minute apart");
        assert_eq!(at(&cache, 5_000), expected(5_000, 4), "the clock was set back");
    }

    #[test]
    fn description_without_fields_is_valid_json() {
        let cache = LiveCache::default();
        assert_eq!(cache.json(7, || json!({})), "{\"now_ms\":7}");
    }
}
