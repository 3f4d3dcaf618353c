//! The program behind `skep_testkit::power::Disk`: a disk with a volatile write cache.
//!
//! This program serves one file over FUSE. A loop device on this file is the disk. The kernel sends
//! each flush of the loop device as an `fsync` of the file. Writes since the last flush are only in
//! the cache (`cache.rs`). A power loss drops, keeps or tears each of these writes.
//!
//! The program is a separate process. If a test served the file itself and waited for the file
//! system on the disk, no signal could kill the test. The program ends at the end of its standard
//! input, also after a kill of the test. At its end, the program unmounts the file system on the
//! disk, and the file that it serves. So every later access fails.
//!
//! Usage: `skep-volatile-disk FILE LIVE DURABLE BYTES SEED MOUNT-POINT`. `LIVE` and `DURABLE` are
//! equal images of `BYTES` bytes. `FILE` is an empty file, and the program mounts the disk over
//! this file. `MOUNT-POINT` is the directory at which the test later mounts the file system on the
//! disk. Each line of the standard input is a command, and the program replies with one line:
//! - `ignore-flushes`: after this command, the disk acknowledges flushes without carrying them out
//! - `slow MILLISECONDS`: after this command, the disk carries out one request at a time, and each
//!   read, write and flush takes at least this time
//! - `stall`: after this command, no request completes
//! - `lose SECTOR`: the disk loses its power. A torn write loses some sectors of length `SECTOR`.
//!   The command also ends a stall and a slow phase. Until the next `restore`, write requests
//!   succeed and have no effect.
//! - `restore`: ends the power loss. The disk has the contents that the power loss did not destroy.
//!   No loop device may use the file during this command.

mod cache;
mod fuse;

use cache::Cache;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The result of a thread of this program.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Locks the cache. The lock is usable even after a panic, because each change of the cache
/// completes before another statement can panic.
fn lock(cache: &Mutex<Cache>) -> MutexGuard<'_, Cache> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes commands until the end of the standard input.
fn control(cache: &Mutex<Cache>) -> Outcome {
    let mut stalled = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut held = stalled.take().unwrap_or_else(|| lock(cache));
        let reply = match words.next().unwrap_or_default() {
            "ignore-flushes" => {
                held.ignore_flushes();
                "flushes are ignored from now on".to_owned()
            }
            "lose" => {
                let sector = words
                    .next()
                    .ok_or("the command 'lose' needs the length of a sector")?
                    .parse()?;
                held.set_delay(Duration::ZERO);
                held.lose_power(sector)?.to_string()
            }
            "restore" => {
                held.restore()?;
                "restored".to_owned()
            }
            "slow" => {
                let delay_ms = words
                    .next()
                    .ok_or("the command 'slow' needs a time in milliseconds")?
                    .parse()?;
                held.set_delay(Duration::from_millis(delay_ms));
                "slow".to_owned()
            }
            // Do not drop the guard, so that the thread that serves requests waits for the lock.
            "stall" => {
                stalled = Some(held);
                "stalled".to_owned()
            }
            other => return Err(format!("unknown command '{other}'").into()),
        };
        println!("{reply}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Removes the mounts that a killed test has left. Ignores errors, because a test that was not
/// killed has already removed these mounts.
fn unmount(paths: [&str; 2]) {
    for path in paths {
        let _result = Command::new("umount").args(["--lazy", path]).output();
    }
}

fn run(arguments: &[String]) -> Outcome {
    let [file, live, durable, bytes, seed, mount_point] = arguments else {
        return Err("expected FILE LIVE DURABLE BYTES SEED MOUNT-POINT".into());
    };
    let open = |path: &String| File::options().read(true).write(true).open(path);
    let cache = Cache::new(open(live)?, open(durable)?, seed.parse()?);
    let cache = Arc::new(Mutex::new(cache));
    let server = fuse::Server::mount(Path::new(file), bytes.parse()?)?;
    println!("ready");
    std::io::stdout().flush()?;
    let served = Arc::clone(&cache);
    std::thread::spawn(move || {
        if let Err(error) = server.serve(&served) {
            eprintln!("skep-volatile-disk: cannot serve the disk any more: {error}");
        }
    });
    let result = control(&cache);
    unmount([mount_point, file]);
    result
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("skep-volatile-disk: {error}");
        std::process::exit(1);
    }
}
