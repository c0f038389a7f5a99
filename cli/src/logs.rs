//! Logs, one line per event, and the output of worker processes, above any progress bar.

use std::io::{self, Write};

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

/// Shows what workers print where they printed it. With `--json`, standard output has nothing but the JSON object.
pub fn worker_output(bars: &MultiProgress, as_json: bool) -> ShowOutput {
    let bars = bars.clone();
    Box::new(move |stream, text| {
        // A terminal that is gone does not end the run.
        let _ = bars.suspend(|| match stream {
            OutputStream::Stdout if !as_json => io::stdout().write_all(text.as_bytes()),
            _ => io::stderr().write_all(text.as_bytes()),
        });
    })
}

struct AboveBars(MultiProgress);

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A terminal that is gone does not end the run.
        let _ = self.0.suspend(|| io::stderr().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
