//! `fio`: several jobs write on one mount, each job in its own order. The other mount reads and
//! verifies the data.

use crate::{Places, text};
use skep_testkit::program::run_in;
use std::path::Path;

/// Options for all jobs. Each job has its own file. Each block begins with a header that contains
/// the block's offset and the time of the write.
const GENERAL: &str = "--size=24m --verify=crc32c --verify_fatal=1 --randseed=5 --allrandrepeat=1 \
                       --group_reporting";
const JOBS: &str = "\
    --name=random --rw=randwrite --bs=4k-64k --ioengine=psync --numjobs=2 \
    --name=direct --rw=randwrite --bs=128k --ioengine=libaio --iodepth=8 --direct=1 \
    --name=mapped --rw=randwrite --bs=4k --ioengine=mmap \
    --name=stream --rw=write --bs=1m --ioengine=io_uring --fsync=8";

fn fio(directory: &Path, more: &str) {
    let place = format!("--directory={}", text(directory));
    let words = format!("{GENERAL} {more} {JOBS}");
    run_in(directory, "fio", [&place[..]].into_iter().chain(words.split_whitespace()));
}

pub(crate) fn fio_verifies_on_one_mount_the_writes_of_the_other(places: &Places) {
    fio(&places.one, "--do_verify=0 --end_fsync=1");
    fio(&places.other, "--verify_only");
    // Now test the reverse direction: the other mount overwrites every byte of the existing files.
    fio(&places.other, "--do_verify=0 --end_fsync=1 --verify_pattern=0x5a");
    fio(&places.one, "--verify_only --verify_pattern=0x5a");
}
