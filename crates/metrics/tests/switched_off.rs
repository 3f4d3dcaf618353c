//! The switch that turns all statistics off. This test is in a separate program, because the switch
//! affects the whole process.

use skep_metrics::{
    Completed, Gauge, OpenRequests, OperationTable, Origin, Registry, Value, catalog, is_off,
    switch_off,
};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn disabled_statistics_count_and_store_nothing() {
    let registry = Registry::new();
    let labels = vec![("target", "1".to_owned())];
    let table = OperationTable::new(&registry, &catalog::STORAGE, labels, |_| None);
    let (count, oldest) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
    let mut open = OpenRequests::new(Arc::clone(&count), oldest);
    let slow = Completed { duration: Duration::from_secs(1), ..Completed::default() };
    let origin = Origin { user: Some(1000), ..Origin::default() };
    let mut work = || {
        table.record(&slow, &origin);
        table.record_sent(slow.operation, slow.duration, slow.duration, &origin);
        open.begin(slow.duration)
    };
    let shown = || {
        let snapshot = registry.snapshot();
        let operations = snapshot.iter().find(|it| it.definition.name == "skep_storage_operations");
        let records = registry.traces().read(None, 0, 10).operations.len();
        (operations.map(|it| it.value), records, count.get())
    };
    let number = work();
    let before = shown();
    assert_eq!(before, (Some(Value::Number(1)), 1, 1));
    switch_off();
    assert!(is_off());
    let other = work();
    assert_eq!(shown(), before);
    open.end(other);
    open.end(number);
    assert_eq!(shown(), before, "the table of open requests does not change either");
}
