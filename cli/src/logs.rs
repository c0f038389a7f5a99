//! Logs: one line per thing that happened, on standard error, beside any progress bar.

use std::io::{self, Write};

use indicatif::MultiProgress;
use tracing_subscriber::filter::LevelFilter;

/// The variable that says how much is told: error, warn, info (the default) or debug (every decision).
const VARIABLE: &str = "PACELINE_LOG";

/// Has everything that is logged written to standard error, where it does not disturb the bars.
pub fn install(bars: &MultiProgress) {
    let level = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(LevelFilter::INFO);
    let bars = bars.clone();
    let logs = tracing_subscriber::fmt()
        .with_max_level(level)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || BesideBars(bars.clone()));
    // Whoever uses this program as a library may have its own.
    let _ = logs.try_init();
}

struct BesideBars(MultiProgress);

impl Write for BesideBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
