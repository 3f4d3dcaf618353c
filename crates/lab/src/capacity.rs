//! Whether this machine can carry what a lab is asked to: measured before anything is made.
//!
//! For half a second pairs of threads, one for each two processors, do what a lab does with each
//! byte: a connection over loopback, with a checksum on both sides. What a lab can carry is one
//! part in [`COST_OF_A_LAB`] of that: its bytes also pass through a mount, a page cache and two
//! more interfaces. It is measured in elapsed time, so that what else runs here counts.

use skep_types::codec::crc32c;
use skep_types::{Error, ErrorCode, Result};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long is measured.
const SPAN: Duration = Duration::from_millis(500);
/// Bytes of one request of a lab.
const PIECE: usize = 1 << 20;
/// How many times as much work a byte is in a lab as it is here. A lab without limits writes one
/// byte for about four of these; and a machine that is busy all the time is too slow to emulate
/// anything, so half of it is to be left.
const COST_OF_A_LAB: u64 = 8;

/// Bytes in a second that a lab on this machine can carry now.
///
/// # Errors
/// `Io` if loopback can't be used.
pub fn capacity() -> Result<u64> {
    let pairs = (thread::available_parallelism().map_or(1, usize::from) / 2).max(1);
    let is_over = Arc::new(AtomicBool::new(false));
    let moved = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for _ in 0..pairs {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        let over = Arc::clone(&is_over);
        threads.push(thread::spawn(move || send(sender, &over)));
        let moved = Arc::clone(&moved);
        threads.push(thread::spawn(move || receive(receiver, &moved)));
    }
    let start = skep_env::now();
    thread::sleep(SPAN);
    is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        // A connection that broke shows in what was moved.
        let _ = thread.join();
    }
    let seconds = (skep_env::now() - start).as_secs_f64();
    Ok((moved.load(Ordering::Relaxed) as f64 / seconds) as u64 / COST_OF_A_LAB)
}

fn send(mut to: TcpStream, is_over: &AtomicBool) {
    let mut piece = vec![0x5a; PIECE];
    while !is_over.load(Ordering::Relaxed) {
        // The sum goes into the data, so that it can't be left out.
        let sum = crc32c(&piece);
        piece[..4].copy_from_slice(&sum.to_le_bytes());
        if to.write_all(&piece).is_err() {
            return;
        }
    }
}

fn receive(mut from: TcpStream, moved: &AtomicU64) {
    let mut piece = vec![0; PIECE];
    let mut sums = 0_u64;
    while from.read_exact(&mut piece).is_ok() {
        sums = sums.wrapping_add(u64::from(crc32c(&piece)));
        moved.fetch_add(PIECE as u64, Ordering::Relaxed);
    }
    std::hint::black_box(sums);
}

/// What is to be said of a lab that needs `wanted` bytes in a second on a machine that carries
/// `capacity`; none if it is fast enough.
fn objection(wanted: u64, capacity: u64) -> Option<String> {
    let megabytes = |bytes: u64| bytes / 1_000_000;
    (wanted > capacity).then(|| {
        format!(
            "the servers of the lab move {} MB/s together, and this machine can currently emulate \
             about {} MB/s",
            megabytes(wanted),
            megabytes(capacity)
        )
    })
}

/// Checks that this machine carries `wanted` bytes in a second.
///
/// # Errors
/// `LimitReached` with both figures if it doesn't, unless it is forced to: then that is told.
pub(crate) fn check(wanted: u64, is_forced: bool, tell: &mut dyn FnMut(&str)) -> Result<()> {
    let capacity = capacity()?;
    match objection(wanted, capacity) {
        Some(what) if !is_forced => Err(Error::new(
            ErrorCode::LimitReached,
            format!(
                "cannot start the lab: {what}; use lower rates or a faster machine, or \
                     continue with --force"
            ),
        )),
        Some(what) => {
            tell(&format!("{what}; continuing because of --force"));
            Ok(())
        }
        None => {
            let megabytes = capacity / 1_000_000;
            tell(&format!("this machine can emulate about {megabytes} MB/s"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_carries_something_and_not_everything() {
        let found = capacity().unwrap();
        assert!(found > 1_000_000, "{found}");
        let mut told = String::new();
        let mut tell = |text: &str| told += text;
        let refused = check(u64::MAX, false, &mut tell).unwrap_err();
        assert!(refused.context().contains("--force"), "{refused}");
        check(u64::MAX, true, &mut tell).unwrap();
        check(1, false, &mut tell).unwrap();
        assert!(told.contains("going on, as asked") && told.contains("carries about"), "{told}");
        assert_eq!(objection(100, 100), None);
        let said = objection(250_000_000, 100_000_000).unwrap();
        assert!(said.contains("move 250 MB/s") && said.contains("about 100 MB/s"), "{said}");
    }
}
