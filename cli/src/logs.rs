//! Logs: one line per event, on standard error, above any progress bar.

use std::io::{self, Write};

use indicatif::MultiProgress;
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

struct AboveBars(MultiProgress);

impl Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
