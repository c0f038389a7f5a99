//! Output of runs: progress, tables, figures, rankings and the HTML report.
//!
//! - [`view`]: what is seen of a run, whether it has ended or goes on; [`live`]: the page that follows one. The crate
//!   `paceline-watch` shows the same in a terminal.
//! - [`page`]: the HTML report of one run or several; [`timeline_figure`]: a run's timeline as a figure.
//! - [`comparison`]: schemes compared and ranked, in one scenario or in several; [`HeatTable`]: a table as a picture.
//! - [`plot`]: figures, as SVG and PNG.
//! - [`progress`], [`live_table`]: progress during a run and a comparison.
//! - [`tables`], [`numbers`], [`statistics`]: results as text.
//! - [`speeds`]: how well workers' speeds could have been predicted.
//! - [`stragglers`]: the stragglers in a trace, and what they cost; [`cluster_findings`]: what its times tell about the cluster.

mod activity;
pub mod cluster_findings;
pub mod comparison;
mod error;
mod heat_table;
pub mod live;
pub mod live_table;
pub mod numbers;
pub mod page;
pub mod plot;
pub mod progress;
pub mod speeds;
pub mod statistics;
pub mod stragglers;
pub mod tables;
pub mod view;

pub use error::ReportError;
pub use heat_table::{HeatCell, HeatTable};
pub use page::timeline_figure;
