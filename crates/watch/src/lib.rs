//! A run in a terminal.
//!
//! - [`RunSource`]: where the run is seen, which is the page of its server or its run folder.
//! - [`RunNews`] of a source come from a thread: all of the run, then what changes, from [`RunSource::follow`].
//! - [`show`] draws them in the terminal until the user quits; [`as_text`] draws a run once, as plain text.
//!
//! What is drawn is a [`SeenRun`](paceline_report::view::SeenRun), the data that the page's script has, in the same words.

mod curves;
mod draw;
mod error;
mod folder_source;
mod keys;
mod page_source;
mod palette;
mod screen;
mod source;
mod words;
mod worker_rows;

pub use draw::as_text;
pub use error::WatchError;
pub use screen::{WatchEnding, restore_terminal, show};
pub use source::{RunNews, RunSource};
