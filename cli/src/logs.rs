//! Logs, one line per event, and the output of worker processes, above any progress bar.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::MultiProgress;
use paceline_net::{OutputStream, ShowOutput};
use tracing_subscriber::filter::LevelFilter;

/// The environment variable for the log level: error, warn, info (the default) or debug (every decision).
const VARIABLE: &str = "PACELINE_LOG";

/// Sends all logs to standard error without disturbing the progress bars.
pub fn install(bars: &MultiProgress) {
    let level = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let bars = bars.clone();
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || AboveBars(bars.clone()));
    // It fails only if a subscriber is installed already; that one is kept.
    let _ = logs.try_init();
}

/// What is printed while something else has the screen, in bytes; of more, the latest is kept.
const MAX_HELD: usize = 1 << 20;

/// Texts that are to be printed later, in order.
type HeldOutput = VecDeque<(OutputStream, Vec<u8>)>;

/// `None`: everything is printed at once.
static HELD: Mutex<Option<HeldOutput>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<HeldOutput>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what is printed from now on.
pub fn hold() {
    held().get_or_insert_default();
}

/// Prints what was kept.
pub fn release(bars: &MultiProgress) {
    let kept = held().take();
    kept.into_iter().flatten().for_each(|(stream, text)| print(bars, stream, &text));
}

/// Prints text above the progress bars, now or later.
fn print(bars: &MultiProgress, stream: OutputStream, text: &[u8]) {
    if let Some(held) = &mut *held() {
        held.push_back((stream, text.to_vec()));
        while held.iter().map(|(_, text)| text.len()).sum::<usize>() > MAX_HELD {
            held.pop_front();
        }
        return;
    }
    // A terminal that is gone does not end the run.
    let _ = bars.suspend(|| match stream {
        OutputStream::Stdout => io::stdout().write_all(text),
        OutputStream::Stderr => io::stderr().write_all(text),
    });
}

/// Shows what workers print where they printed it. With `--json`, standard output has nothing but the JSON object.
pub fn worker_output(bars: &MultiProgress, as_json: bool) -> ShowOutput {
    let bars = bars.clone();
    Box::new(move |stream, text| {
        let stream = if as_json { OutputStream::Stderr } else { stream };
        print(&bars, stream, text.as_bytes());
    })
}

struct AboveBars(MultiProgress);

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        print(&self.0, OutputStream::Stderr, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
