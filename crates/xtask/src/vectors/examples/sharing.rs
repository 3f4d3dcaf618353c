//! Examples of messages about shared files.

use super::a_file;
use crate::vectors::{Example, example};
use skep_wire::management::EmptyReply;
use skep_wire::sharing::{
    AcknowledgeNotifications, Notification, Notifications, WaitNotifications,
};

pub(super) fn examples() -> Vec<Example> {
    let notification = Notification { number: 0x0102_0304_0506_0708, inode: a_file() };
    vec![
        example(
            &WaitNotifications { known: vec![7, 9] },
            &Notifications { notifications: vec![notification] },
        )
        .request(&WaitNotifications { known: Vec::new() })
        .reply::<WaitNotifications>(&Notifications { notifications: Vec::new() }),
        example(&AcknowledgeNotifications { numbers: vec![notification.number] }, &EmptyReply {}),
    ]
}
