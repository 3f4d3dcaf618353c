//! Before the creation of a lab, measures how many bytes per second this machine can move. The
//! result shows whether the machine is fast enough to emulate the rates of the lab.
//!
//! For half a second, one pair of threads for each two processors sends data over the loopback
//! interface. The two threads of a pair compute checksums of the data, as the processes of a lab
//! do. A lab can attain the measured rate divided by [`COST_OF_A_LAB`], since the bytes of a lab
//! also pass through a mount, a page cache and two more interfaces. The measurement counts bytes in
//! elapsed time, not in CPU time. So the load of other programs on this machine lowers the result.

use skep_types::codec::crc32c;
use skep_types::{Error, ErrorCode, Result};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Duration of the measurement.
const SPAN: Duration = Duration::from_millis(500);
/// Length in bytes of one message, which is the length of a typical request in a lab.
const PIECE: usize = 1 << 20;
/// Cost of one byte in a lab, relative to one byte in this measurement. The cost is the product of
/// two factors. The first factor is 4, because this measurement moves about four bytes in the time
/// in which a lab without rate limits writes one byte. The second factor is 2, because half of the
/// machine must stay idle. A busy machine cannot keep the emulated rates.
const COST_OF_A_LAB: u64 = 8;

/// Measures the number of bytes per second that a lab on this machine can move now.
///
/// # Errors
/// Returns `Io` if the loopback interface cannot be used.
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
        // Ignore the error of a thread. A thread with a broken connection moves fewer bytes, which
        // already lowers the measured rate.
        let _ = thread.join();
    }
    let seconds = (skep_env::now() - start).as_secs_f64();
    Ok((moved.load(Ordering::Relaxed) as f64 / seconds) as u64 / COST_OF_A_LAB)
}

fn send(mut to: TcpStream, is_over: &AtomicBool) {
    let mut piece = vec![0x5a; PIECE];
    while !is_over.load(Ordering::Relaxed) {
        // Each message contains the checksum of the previous message. So the compiler cannot remove
        // the computation of the checksum.
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

/// Returns the problem, as text, if a lab needs `wanted` bytes per second and this machine can move
/// only `capacity` bytes per second. `None` means that the machine is fast enough.
fn objection(wanted: u64, capacity: u64) -> Option<String> {
    let megabytes = |bytes: u64| bytes / 1_000_000;
    (wanted > capacity).then(|| {
        format!(
            "the servers of the lab transfer {} MB/s together, and this machine can currently \
            emulate about {} MB/s",
            megabytes(wanted),
            megabytes(capacity)
        )
    })
}

/// Measures whether this machine can move `wanted` bytes per second. Passes the result to `report`.
///
/// # Errors
/// - `LimitReached` with both rates: this machine is too slow, and `is_forced` is not set.
/// - `Io`: the loopback interface cannot be used.
pub(crate) fn check(wanted: u64, is_forced: bool, report: &mut dyn FnMut(&str)) -> Result<()> {
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
            report(&format!("{what}; the lab starts anyway because of --force"));
            Ok(())
        }
        None => {
            let megabytes = capacity / 1_000_000;
            report(&format!("this machine can emulate about {megabytes} MB/s"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lab_beyond_host_capacity_is_refused_unless_forced() {
        let found = capacity().unwrap();
        assert!(found > 1_000_000, "{found}");
        let mut reports = String::new();
        let mut report = |text: &str| reports += text;
        let refused = check(u64::MAX, false, &mut report).unwrap_err();
        assert!(refused.context().contains("--force"), "{refused}");
        check(u64::MAX, true, &mut report).unwrap();
        check(1, false, &mut report).unwrap();
        assert!(
            reports.contains("the lab starts anyway because of --force")
                && reports.contains("can emulate about"),
            "{reports}"
        );
        assert_eq!(objection(100, 100), None);
        let refusal = objection(250_000_000, 100_000_000).unwrap();
        assert!(
            refusal.contains("transfer 250 MB/s") && refusal.contains("about 100 MB/s"),
            "{refusal}"
        );
    }
}
