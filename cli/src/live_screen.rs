//! `--tui`: the run on the screen in place of its progress bar. It is read from the run's own page, as anybody else does.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use indicatif::{MultiProgress, ProgressDrawTarget};
use paceline_report::view::SeenRun;
use paceline_watch::{RunSource, WatchEnding, WatchError, show};
use rustix::process::{Signal, getpid, kill_process};

use crate::logs;

/// The screen of a run. It is left when this is dropped.
pub struct LiveScreen {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LiveScreen {
    /// Shows the run whose page is at this address. The progress bars come back when the user quits.
    pub fn start(page: SocketAddr, bars: &MultiProgress) -> io::Result<Self> {
        let (is_over, bars) = (Arc::new(AtomicBool::new(false)), bars.clone());
        // A terminal that is gone does not end the run.
        let _ = bars.clear();
        bars.set_draw_target(ProgressDrawTarget::hidden());
        logs::hold();
        let end = is_over.clone();
        let watch = move || {
            let ending = watch(page, &end);
            bars.set_draw_target(ProgressDrawTarget::stderr());
            logs::release(&bars);
            match ending {
                // What the terminal would have sent.
                Ok(WatchEnding::Interrupted) => drop(kill_process(getpid(), Signal::INT)),
                Ok(WatchEnding::Quit | WatchEnding::Over) => {}
                Err(error) => tracing::warn!("the run goes on without a screen: {error}"),
            }
        };
        let thread = thread::Builder::new().name("screen".into()).spawn(watch)?;
        Ok(LiveScreen { is_over, thread: Some(thread) })
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it panicked, there is nothing left to end.
            let _ = thread.join();
        }
    }
}

fn watch(mut page: SocketAddr, is_over: &AtomicBool) -> Result<WatchEnding, WatchError> {
    // A server that listens everywhere is here too.
    match page {
        SocketAddr::V4(address) if address.ip().is_unspecified() => page.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(address) if address.ip().is_unspecified() => page.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let source: RunSource = page.to_string().parse()?;
    let run = SeenRun::new(source.read()?);
    show(run, true, &source.follow(), || is_over.load(Ordering::Relaxed))
}
