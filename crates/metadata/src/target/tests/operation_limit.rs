//! Tests of a target with the maximum number of waiting operations.

use super::*;

/// Regression test: a target with too many waiting operations refused all further requests, even
/// the decision of a transaction for which some of these operations waited. So these operations
/// waited forever.
#[test]
fn request_that_other_operations_wait_for_is_never_refused() {
    let limits = Limits { parked: 1, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    let inode = story.create(1, (0, 1));
    let transaction = md::TransactionId { coordinator: GroupId::new(9), number: 1 };
    let steps = vec![md::Step::DropLink { inode }];
    story.ask(1, 0, (0, 0), &md::Prepare { transaction, steps }).unwrap();
    let open = open_of(inode, md::OpenMode::Read);
    story.send(1, 1, (0, 2), &open);
    assert!(story.replies.is_empty(), "the open waits for the end of the transaction");
    let refused = story.ask(1, 2, (0, 1), &open).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::LimitReached);
    story.ask(1, 2, (0, 0), &md::KeepAlive { lease_ms: 0 }).unwrap();
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    let own = md::TransactionId { coordinator: GroupId::new(1), number: 99 };
    let decision = story.ask(1, 0, (0, 0), &md::AskDecision { transaction: own }).unwrap();
    assert_eq!(decision.decision, md::Decision::Aborted);
    let other = md::TransactionId { coordinator: GroupId::new(9), number: 2 };
    story.ask(1, 0, (0, 0), &md::Prepare { transaction: other, steps: Vec::new() }).unwrap();
    story.send(3, 0, (0, 0), &md::Decide { transaction, commit: false });
    let (decided, opened) = (story.replies.len(), story.replies.iter().all(|it| it.1.is_ok()));
    assert!(
        decided == 2 && opened,
        "the target accepts the decision, and the waiting operation goes on"
    );
}
