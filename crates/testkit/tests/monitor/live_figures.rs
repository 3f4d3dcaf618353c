//! A `skep stats` that prints the load of each second while a test causes load.

use super::*;

/// The fields of statistics that count bytes, in the order of the phases of `skep bench io`.
pub(super) const FIELDS: [&str; 2] = ["written_bytes", "read_bytes"];

/// The bytes of an object (a user, job or client) at the end of an interval, counted from the start
/// of the command.
#[derive(Debug, Clone)]
pub(super) struct LiveSample {
    /// The time at which the services have read their counters, in seconds since 1970.
    pub(super) at: f64,
    /// The largest error of `at`, in seconds.
    pub(super) error: f64,
    /// The written and the read bytes since the start of the command.
    pub(super) bytes: [u64; 2],
    /// The written and the read bytes per second in this interval.
    pub(super) rates: [f64; 2],
}

/// A running `skep stats`. Dropping this value kills the process.
pub(super) struct LiveFigures {
    /// The grouping of the load, as in the option `--by`.
    pub(super) by: &'static str,
    child: Child,
    lines: Receiver<String>,
    /// The samples by the id of the object, in the order of their times.
    objects: BTreeMap<String, Vec<LiveSample>>,
    /// The sums over all objects.
    sum: Vec<LiveSample>,
}

impl LiveFigures {
    /// Starts the command, and waits until its first interval has begun. `command` is `skep stats`
    /// with the options that name its cluster.
    pub(super) fn start(mut command: Command, by: &'static str) -> Self {
        command.args(["--by", by, "--interval", "1s", "--output", "ndjson"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("built");
        // The command prints this line after its first request to the services.
        let mut announcement = String::new();
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        errors.read_line(&mut announcement).expect("the command prints a line");
        assert!(announcement.contains("--once prints one interval"), "{announcement}");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        // A thread reads the lines, so that the test can limit its wait for the next line.
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Self { by, child, lines, objects: BTreeMap::new(), sum: Vec::new() }
    }

    /// Reads the lines until the first interval that ends after `time` (in seconds since 1970) is
    /// complete. Returns the samples of each object by its id, and the sums over all objects.
    pub(super) fn read_until(
        mut self,
        time: f64,
    ) -> (BTreeMap<String, Vec<LiveSample>>, Vec<LiveSample>) {
        let deadline = Instant::now() + PATIENCE;
        // An interval is complete when the next interval has begun.
        while self.sum.iter().filter(|it| it.at - it.error > time).count() < 2 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.add(&line),
                Err(error) => panic!("by {}: {:?} only: {error}", self.by, self.sum),
            }
        }
        (std::mem::take(&mut self.objects), std::mem::take(&mut self.sum))
    }

    fn add(&mut self, line: &str) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|it| panic!("{it}: {line}"));
        let (at, error) = (line["at_unix_s"].float(), line["at_error_s"].float());
        let own = self.objects.entry(line["id"].text().to_owned()).or_default();
        for samples in [own, &mut self.sum] {
            let last = samples.last().map(|it| (it.at, it.bytes));
            if last.is_none_or(|(before, _)| before < at) {
                let bytes = last.map_or([0; 2], |(_, bytes)| bytes);
                samples.push(LiveSample { at, error, bytes, rates: [0.0; 2] });
            }
            let sample = samples.last_mut().expect("a sample was added");
            for (index, field) in FIELDS.iter().enumerate() {
                sample.bytes[index] += line[*field].number();
                sample.rates[index] += line[format!("{field}_per_second")].float();
            }
        }
    }
}

impl Drop for LiveFigures {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
