//! Examples of messages about shared files.

use super::a_file;
use crate::vectors::{Example, example};
use skep_wire::management::Done;
use skep_wire::sharing::{AcknowledgeRecalls, Recall, Recalls, WaitRecalls};

pub(super) fn examples() -> Vec<Example> {
    let recall = Recall { number: 0x0102_0304_0506_0708, inode: a_file() };
    vec![
        example(&WaitRecalls { known: vec![7, 9] }, &Recalls { recalls: vec![recall] })
            .request(&WaitRecalls { known: Vec::new() })
            .reply::<WaitRecalls>(&Recalls { recalls: Vec::new() }),
        example(&AcknowledgeRecalls { numbers: vec![recall.number] }, &Done {}),
    ]
}
