//! Interrupting what computes: the first Ctrl-C asks it to end with its result so far.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks everything in this process that computes to end soon. Returns whether it was asked before.
pub fn request_interrupt() -> bool {
    REQUESTED.swap(true, Ordering::Relaxed)
}

/// Takes the request back, when everything that it was meant for has ended.
pub fn withdraw_interrupt() {
    REQUESTED.store(false, Ordering::Relaxed);
}

/// Whether everything that computes is to end soon.
#[inline]
pub fn is_interrupted() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
