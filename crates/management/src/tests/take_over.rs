//! Test of the choice of a new primary by management, when the primary of a group is silent.

use super::*;

/// A member that has all records takes over immediately. A member that may lack records takes over
/// only if all serving members have reported that they may lack records.
#[test]
fn silent_primary_is_replaced_by_a_member_with_all_records() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Metadata);
        let targets = two_metadata_targets(&token, &admin).await;
        let several = CreateGroup { targets: targets.to_vec() };
        let id = admin.call(&several, PATIENCE).await.unwrap().group;
        let group = async || {
            let map = admin.call(&GetMap { known: MapVersion::new(0) }, PATIENCE).await.unwrap();
            map.map.unwrap().group(id).unwrap().clone()
        };
        assert_eq!((group().await.primary, group().await.epoch.raw()), (targets[0], 1));
        let ask = async |epoch, target, lacks_records, last| {
            let request = AskTakeOver {
                group: id,
                epoch: Epoch::new(epoch),
                target,
                lacks_records,
                last_epoch: Epoch::new(1),
                last: Lsn::new(last),
                record: GroupRecord::default(),
            };
            let asked = admin.call_once(&request, Duration::from_secs(5)).await;
            asked.map(drop).map_err(|error| error.code())
        };
        assert_eq!(ask(1, targets[1], true, 9).await, Ok(()));
        assert_eq!(group().await.epoch.raw(), 1, "the primary may have all records");
        assert_eq!(ask(1, targets[0], true, 7).await, Ok(()));
        let after = group().await;
        assert_eq!((after.primary, after.epoch.raw()), (targets[1], 2), "the longest log wins");
        assert_eq!(ask(1, targets[0], true, 7).await, Err(ErrorCode::StaleMap));
        let (epoch, target) = (after.epoch, targets[0]);
        let change = GroupChange { group: id, epoch, change: MemberChange::MarkInSync, target };
        let changed = admin.call(&ChangeGroup { change }, PATIENCE).await.unwrap();
        assert_eq!(changed.epoch.raw(), 3);
        assert_eq!(ask(3, targets[0], false, 7).await, Ok(()));
        assert_eq!(group().await.primary, targets[0], "a member with all records leads");
    });
}
