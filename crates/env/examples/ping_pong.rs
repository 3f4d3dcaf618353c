//! Measures the cost of a wake-up, and the gain of spinning before sleeping. Two processes exchange
//! requests and replies of 64 bytes over one TCP connection on loopback. The results are in
//! docs/design/0001-threads-and-store.md.
//!
//! `ping_pong [ROUNDS] [IN_FLIGHT] [apart]` prints one line for each length of the spin: round
//! trips per second, and the CPU time of each side per round trip. With `apart`, the program pins
//! each side to a separate CPU. Without `apart`, the kernel may run both sides on one CPU. This
//! program is not a test, because it asserts nothing.

use skep_env::{Buf, MessagePart, TcpListener, TcpStream};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MESSAGE: usize = 64;

fn cpu_time() -> Duration {
    // SAFETY: all-zero is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        })
        .sum()
}

/// Serves one connection until the peer closes it.
fn serve(spin: Duration) -> std::io::Result<()> {
    skep_env::block_on(async move {
        skep_env::set_spin(spin);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_address()?);
        std::io::stdout().flush()?;
        let stream = listener.accept().await?;
        let before = cpu_time();
        loop {
            let request = Buf::new(MESSAGE);
            if stream.receive_exact(request.clone()).await.is_err() {
                break;
            }
            stream.send(vec![MessagePart::Buf(request)]).await?;
        }
        println!("{}", (cpu_time() - before).as_micros());
        Ok(())
    })?
}

async fn ask(address: String, spin: Duration, rounds: usize, in_flight: usize) -> Duration {
    skep_env::set_spin(spin);
    let stream = TcpStream::connect(&address).await.expect("the server listens");
    let mut expected = Vec::new();
    let start = Instant::now();
    for round in 0..rounds + in_flight {
        if round < rounds {
            expected.push(skep_env::expect_reply(skep_env::ReplyTime::Prompt));
            stream.send(vec![MessagePart::Bytes(vec![1; MESSAGE])]).await.expect("sent");
        }
        if round >= in_flight {
            stream.receive_exact(Buf::new(MESSAGE)).await.expect("answered");
            expected.pop();
        }
    }
    start.elapsed()
}

/// Runs `body` on a new thread. If `apart` is set, pins the thread to the CPU at `index` in the
/// list of available CPUs.
fn on_cpu<T: Send + 'static>(
    apart: bool,
    index: usize,
    body: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let cpus = skep_env::available_cpus();
    let cpu = apart.then(|| cpus[index % cpus.len()]);
    skep_env::spawn_thread("side".into(), cpu, body)?.join().expect("the thread does not panic")
}

fn measure(spin_us: u64, rounds: usize, in_flight: usize, apart: bool) -> std::io::Result<()> {
    let mut server = Command::new(std::env::current_exe()?)
        .args(["serve", &spin_us.to_string(), if apart { "apart" } else { "" }])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let address = lines.next().expect("the server prints its address")?;
    let before = cpu_time();
    let spin = Duration::from_micros(spin_us);
    let time = on_cpu(apart, 0, move || skep_env::block_on(ask(address, spin, rounds, in_flight)))?;
    let client = (cpu_time() - before).as_secs_f64() * 1e6 / rounds as f64;
    server.wait()?;
    let text = lines.next().expect("the server prints its CPU time")?;
    let server_cpu = text.parse::<f64>().expect("a number") / rounds as f64;
    let rate = rounds as f64 / time.as_secs_f64();
    println!(
        "spin {spin_us:>3} us, {in_flight} in flight: {rate:>7.0} per s, \
         CPU us: {client:>5.1} client, {server_cpu:>5.1} server"
    );
    Ok(())
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let apart = arguments.get(3).is_some_and(|word| word == "apart");
    if arguments.get(1).is_some_and(|word| word == "serve") {
        let spin = arguments.get(2).and_then(|it| it.parse().ok()).unwrap_or(0);
        return on_cpu(apart, 1, move || serve(Duration::from_micros(spin)));
    }
    let number = |index: usize, default| {
        arguments.get(index).and_then(|it: &String| it.parse().ok()).unwrap_or(default)
    };
    for spin_us in [0, 20, 50, 100, 0, 50] {
        measure(spin_us, number(1, 50_000), number(2, 1), apart)?;
    }
    Ok(())
}
